package redislimit

import (
	"context"
	"errors"
	"fmt"
	"os"
	"sync/atomic"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/weir-go/ratelimit/internal/ctxwait"
)

// sender runs scripts on a client, each within a timeout of its own.
type sender struct {
	user      redis.UniversalClient // as New got it
	client    redis.UniversalClient
	timeout   time.Duration // below zero: none
	batchSize int           // how many calls share a round trip at most
	declare   bool          // each call declares its keys
	direct    bool          // the client ends its calls at their deadlines by itself
	hooks     []redis.Hook  // of the clone
	lane      *lane         // of a client of one server; nil if its calls do not share round trips
	nodes     *nodes        // of a client of several servers; nil if its calls do not share round trips
	skew      atomic.Int64  // µs by which the server's clock is ahead of ours, as far as that was noticed
	slots     chan struct{} // bounds the goroutines of calls that have no lane
}

// lingering is how long a Wait whose context has ended waits for the answer of its booking, to
// give it back.
const lingering = 50 * time.Millisecond

// answeredSoon waits for an answer after a ticket's context has ended: not at all, unless the
// ticket is to be taken back.
func (t *ticket) answeredSoon(answered <-chan struct{}) bool {
	if !t.undone {
		select {
		case <-answered:
			return true
		default:
			return false
		}
	}
	left := lingering
	if !t.deadline.IsZero() {
		left = min(left, time.Until(t.deadline))
	}
	timer := time.NewTimer(left)
	defer timer.Stop()
	select {
	case <-answered:
		return true
	case <-timer.C:
		return false
	}
}

// maxGoroutines bounds the calls under way that have goroutines of their own: those that come
// later wait, within their own timeout.
const maxGoroutines = 256

// newSender prepares a client. A *redis.Client that does not heed the deadline of each call is
// told to, on a clone that shares its connections: without that it would be its own options that
// say how long a call blocks. A clone has no hooks, but those that are given here. Calls share
// round trips on this client, and on those of several servers; of what other types do with a
// pipeline nothing is known.
func newSender(client redis.UniversalClient, timeout time.Duration, batchSize int, declare bool, hooks []redis.Hook) *sender {
	s := &sender{user: client, client: client, timeout: timeout, batchSize: batchSize, declare: declare, hooks: hooks, slots: make(chan struct{}, maxGoroutines)}
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

// within returns a sender on the same connections with another timeout.
func (s *sender) within(timeout time.Duration) *sender {
	if timeout == s.timeout {
		return s
	}
	return newSender(s.user, timeout, s.batchSize, s.declare, s.hooks)
}

// eval runs a ticket's script within the timeout, in one round trip if the server knows it. It
// returns when the context ends, or at the timeout. What has not been sent by then is not sent
// any more; what has been sent goes on without the caller.
func (s *sender) eval(ctx context.Context, t *ticket) (string, error) {
	if err := ctx.Err(); err != nil {
		return "", ended(err, false)
	}
	t.ctx = ctx
	if s.timeout >= 0 {
		t.deadline = time.Now().Add(s.timeout)
	}
	reply, err, sent := s.run(t)
	for ; err != nil && redis.HasErrorPrefix(err, "TRYAGAIN"); reply, err, sent = s.run(t) {
		// The slot of these keys is being moved, and has some here and some there. That passes soon.
		if t = t.again(); ctxwait.Sleep(t.ctx, tryAgainAfter) != nil || !t.deadline.IsZero() && time.Until(t.deadline) < tryAgainAfter {
			break
		}
	}
	if s.nodes != nil {
		s.nodes.heard(err)
	}
	if err != nil {
		return "", classify(ctx, s.late(t, err), sent)
	}
	text, ok := reply.(string)
	if !ok {
		return "", fmt.Errorf("redislimit: the script answered %T, want a string", reply)
	}
	return text, nil
}

// late returns the error of a ticket, which says so if it was the timeout that ended it: what the client
// says then is an ended context, whatever the client was waiting for.
func (s *sender) late(t *ticket, err error) error {
	if t.deadline.IsZero() || time.Now().Before(t.deadline) || !errors.Is(err, context.DeadlineExceeded) && !errors.Is(err, os.ErrDeadlineExceeded) {
		return err
	}
	return fmt.Errorf("no answer within %v (Options.Timeout): %w", s.timeout, err)
}

// together returns an error if the keys of one decision are on several servers of a Ring, which would ask the
// server of the first for all of them. A cluster refuses such a call by itself.
func (s *sender) together(keys []string) error {
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

// tryAgainAfter is how long to wait until keys are sent again of which a part is being moved.
const tryAgainAfter = 2 * time.Millisecond

// laneOf returns the lane that a ticket's round trips are shared in, nil if there is none.
func (s *sender) laneOf(t *ticket) *lane {
	if s.nodes != nil {
		return s.nodes.lane(t.keys[0])
	}
	return s.lane
}

// run runs a ticket. Sent says of an error whether the server may have received it, or still may.
func (s *sender) run(t *ticket) (reply any, err error, sent bool) {
	if l := s.laneOf(t); l != nil {
		return l.run(t)
	}
	if t.ctx.Done() == nil && (s.direct || s.timeout < 0) {
		return t.here(s.client)
	}
	return s.aside(t)
}

// here runs a ticket on the caller's goroutine, for as long as the client takes.
func (t *ticket) here(client processor) (reply any, err error, sent bool) {
	t.batch = &t.alone
	ctx, stop := t.bounded()
	defer stop()
	t.run(ctx, client)
	return t.reply, t.err, t.batch.written()
}

// aside runs a ticket in a goroutine, since the client may take longer than the caller.
func (s *sender) aside(t *ticket) (reply any, err error, sent bool) {
	t.batch = &t.alone
	ctx, stop := t.bounded()
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
		t.run(ctx, s.client)
		close(done)
	}()
	select {
	case <-done:
	case <-ctx.Done():
		if !t.answeredSoon(done) {
			return nil, ctx.Err(), t.batch.mayArrive()
		}
	}
	return t.reply, t.err, t.batch.written()
}
