package redislimit

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"sync/atomic"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/weir-go/ratelimit/internal/tentative"
	"github.com/weir-go/ratelimit/internal/wait"
)

// store sends a limiter's calls to Redis, each within the timeout.
type store struct {
	user      redis.UniversalClient // New's client
	client    redis.UniversalClient
	timeout   time.Duration // if negative, there is none
	batchSize int           // the maximum number of calls in a round trip
	declare   bool          // each call declares its keys
	direct    bool          // the client ends its calls at their deadlines by itself
	hooks     []redis.Hook  // hooks of the clone
	lane      *lane         // for a client of one server; nil if its calls do not share round trips
	nodes     *nodes        // for a client of several servers; nil if its calls do not share round trips
	skew      atomic.Int64  // how far the server's clock is ahead of this one, in µs, by the last reply
	slots     chan struct{} // bounds the goroutines of calls without a lane
	scripts   *scripts
	tentative *tentative.Process // nil if the store has no tentative bookings

	// Set by tests only:
	clock func() int64 // the time in µs, above 0, instead of the server's
	grace int64        // how much longer keys live, in µs, because a test's clock is not Redis's
}

// maxGoroutines bounds the calls under way that have goroutines of their own: later calls wait, within their own timeout.
const maxGoroutines = 256

// newStore prepares a client. If a *redis.Client does not heed each call's deadline, a clone with
// the same connections is configured to do so: otherwise its own options would determine how long
// a call blocks. A clone has only the hooks given here. Calls share round trips on this client,
// and on several servers' clients; the treatment of a pipeline by other types is unknown.
func newStore(client redis.UniversalClient, timeout time.Duration, batchSize int, declare bool, hooks []redis.Hook) *store {
	s := &store{user: client, client: client, timeout: timeout, batchSize: batchSize, declare: declare, hooks: hooks, slots: make(chan struct{}, maxGoroutines), scripts: current}
	if timeout < 0 {
		return s
	}
	c, ok := client.(*redis.Client)
	if !ok {
		if batchSize > 1 {
			s.nodes = newNodes(client, batchSize, declare)
		}
		return s
	}
	if !c.Options().ContextTimeoutEnabled {
		c = c.WithTimeout(timeout)
		c.Options().ContextTimeoutEnabled = true
		for _, h := range hooks {
			c.AddHook(h)
		}
	}
	s.client, s.direct = c, true
	if batchSize > 1 {
		s.lane = newLane(c, batchSize, true)
	}
	return s
}

// within returns a store with another timeout on the same connections.
func (s *store) within(timeout time.Duration) *store {
	if timeout == s.timeout {
		return s
	}
	other := newStore(s.user, timeout, s.batchSize, s.declare, s.hooks)
	other.scripts, other.clock, other.grace, other.tentative = s.scripts, s.clock, s.grace, s.tentative
	return other
}

// eval runs a call's script within the timeout, in one round trip if the server knows the script. It returns when the context
// ends, or at the timeout. If a call has not been sent by then, it is never sent. A sent call goes on without the caller.
func (s *store) eval(ctx context.Context, c *call) (string, error) {
	if err := ctx.Err(); err != nil {
		return "", ended(err, false)
	}
	c.ctx = ctx
	again := !c.deadline.IsZero()
	if again {
		defer c.hurry()()
	} else if s.timeout >= 0 {
		c.deadline = time.Now().Add(s.timeout)
	}
	reply, err, sent := s.run(c)
	for ; err != nil && redis.HasErrorPrefix(err, "TRYAGAIN"); reply, err, sent = s.run(c) {
		// The slot of these keys is being moved, and some keys are on each server. The move ends soon.
		c = c.again()
		if !again {
			again = true
			defer c.hurry()()
		}
		if wait.Sleep(c.ctx, tryAgainAfter) != nil {
			break
		}
	}
	if s.nodes != nil {
		s.nodes.observe(err)
	}
	if err != nil {
		if err = classify(ctx, s.late(c, err), sent); c.left {
			err = &unfinished{err, c}
		}
		return "", err
	}
	return textOf(reply)
}

// rest waits for the reply to a call whose caller has left.
func (s *store) rest(c *call) (string, error) {
	<-c.wake
	reply, err, sent := c.answer()
	if err != nil {
		return "", classify(context.Background(), s.late(c, err), sent)
	}
	return textOf(reply)
}

// textOf returns a script's reply.
func textOf(reply any) (string, error) {
	text, ok := reply.(string)
	if !ok {
		return "", fmt.Errorf("redislimit: the script answered %T, want a string", reply)
	}
	return text, nil
}

// late returns a call's error. If the timeout has ended the call, it adds
// the timeout: the client reports an ended context, whatever it waited for.
func (s *store) late(c *call, err error) error {
	if c.deadline.IsZero() || time.Now().Before(c.deadline) || !errors.Is(err, context.DeadlineExceeded) && !errors.Is(err, os.ErrDeadlineExceeded) {
		return err
	}
	return fmt.Errorf("no answer within %v (Options.Timeout): %w", s.timeout, err)
}

// together returns an error if one decision's keys are on several servers of a Ring. A Ring
// would send all to the server of the first key. A cluster refuses such a call by itself.
func (s *store) together(keys []string) error {
	ring, ok := s.user.(*redis.Ring)
	if !ok || len(keys) < 2 {
		return nil
	}
	tag := hashTag(keys[0])
	var first *redis.Client
	for _, key := range keys[1:] {
		if hashTag(key) == tag {
			continue
		}
		if first == nil {
			first, _ = ring.GetShardClientForKey(keys[0])
		}
		if other, err := ring.GetShardClientForKey(key); err == nil && other != first {
			return errShards
		}
	}
	return nil
}

// tryAgainAfter is the delay before a call is repeated because some of its keys were being moved.
const tryAgainAfter = 2 * time.Millisecond

// laneOf returns the lane to a call's server, nil if there is none.
func (s *store) laneOf(c *call) *lane {
	if s.nodes != nil {
		return s.nodes.lane(c.keys[0])
	}
	return s.lane
}

// run runs a call. With an error, sent is true if the server may have received the call, or still may.
func (s *store) run(c *call) (reply any, err error, sent bool) {
	if l := s.laneOf(c); l != nil {
		return l.run(c)
	}
	if c.ctx.Done() == nil && (s.direct || s.timeout < 0) {
		return c.runInline(s.client)
	}
	return s.aside(c)
}

// aside runs a call in a goroutine, since the client may take longer than the caller.
func (s *store) aside(c *call) (reply any, err error, sent bool) {
	c.batch, c.goesOn = &c.alone, false
	ctx, stop := c.bounded()
	select {
	case s.slots <- struct{}{}:
	case <-ctx.Done():
		defer stop()
		return nil, ctx.Err(), false
	}
	done := make(chan struct{})
	go func() {
		defer func() { <-s.slots }()
		defer stop()
		c.run(ctx, s.client)
		close(done)
	}()
	select {
	case <-done:
	case <-ctx.Done():
		if !c.answeredSoon(done) {
			return nil, ctx.Err(), c.batch.mayArrive()
		}
	}
	return c.reply, c.err, c.batch.written()
}

// testWords returns a test's further arguments for a call: its time in the form of Redis's TIME,
// how much longer keys live, and a mark for created keys. The mark distinguishes a key from
// earlier keys of the same name. In production the script derives the mark from the server's time.
func (s *store) testWords() []any {
	if s.clock == nil {
		return nil
	}
	now := s.clock()
	return []any{now / 1e6, now % 1e6, s.grace, rand.Uint32() & 0xFFFFFF}
}
