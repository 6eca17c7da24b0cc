package redislimit

import (
	"context"
	"errors"
	"fmt"
	"sync/atomic"
	"time"

	"github.com/redis/go-redis/v9"
)

// call is one command that go-redis must not send twice: an answer that is late may
// have been charged.
type call struct {
	redis.Cmd
	sent    atomic.Bool
	payload packed
	words   [5]any // of a call on one key
}

// packed is the last word of a call, in a form that go-redis takes by its address.
type packed []byte

// MarshalBinary returns the bytes.
func (p *packed) MarshalBinary() ([]byte, error) { return *p, nil }

// NoRetry tells go-redis not to repeat the command.
func (c *call) NoRetry() bool { return true }

// Args returns the command's words. go-redis asks for them when it writes the
// command, and not before it has a connection to write to.
func (c *call) Args() []any {
	c.sent.Store(true)
	return c.Cmd.Args()
}

// sender runs scripts on a client, each within a timeout of its own.
type sender struct {
	user     redis.UniversalClient // as New got it
	client   redis.UniversalClient
	timeout  time.Duration // below zero: none
	batch    int           // how many calls share a round trip at most
	direct   bool          // the client ends its calls in time by itself
	slots    chan struct{} // bounds the goroutines of one that does not
	combiner combiner
	apart    atomic.Bool // the server has slots: keys of several decisions cannot share a call
}

// maxGoroutines bounds the calls under way of a client that cannot be trusted to end
// them in time: those that come later wait, within their own timeout.
const maxGoroutines = 256

// newSender prepares a client. A *redis.Client is told, on a clone that shares its
// connections, to heed the deadline of each call: without that it would be its own
// options that say how long a call blocks. Only its pipelines are never repeated, so
// only there do calls share round trips.
func newSender(client redis.UniversalClient, timeout time.Duration, batch int) *sender {
	s := &sender{user: client, client: client, timeout: timeout, batch: batch}
	s.combiner.watch.due = s.wakeLate
	c, ok := client.(*redis.Client)
	if !ok || timeout < 0 {
		s.slots = make(chan struct{}, maxGoroutines)
		return s
	}
	clone := c.WithTimeout(timeout)
	clone.Options().ContextTimeoutEnabled = true
	s.client, s.direct = clone, true
	return s
}

// within returns a sender on the same connections with another timeout.
func (s *sender) within(timeout time.Duration) *sender {
	if timeout == s.timeout {
		return s
	}
	return newSender(s.user, timeout, s.batch)
}

// eval runs a script, in one round trip if the server knows it, within the timeout.
func (s *sender) eval(ctx context.Context, sc *script, keys []string, payload []byte, test []any) (string, error) {
	if err := ctx.Err(); err != nil {
		return "", ended(err, false)
	}
	bounded, timeout := s.bounded(ctx)
	defer timeout.stop()
	t := ticket{script: sc, keys: keys, payload: payload, test: test}
	if s.direct && s.batch > 1 {
		s.combine(bounded, &t)
	} else {
		s.alone(bounded, &t)
	}
	if t.err != nil {
		return "", classify(ctx, t.err, t.sent)
	}
	text, ok := t.reply.(string)
	if !ok {
		return "", fmt.Errorf("redislimit: the script answered %T, want a string", t.reply)
	}
	return text, nil
}

// bounded returns the context with the timeout's deadline.
func (s *sender) bounded(ctx context.Context) (context.Context, stopper) {
	if s.timeout < 0 {
		return ctx, stopFunc(func() {})
	}
	return withTimeout(ctx, s.timeout)
}

// alone runs a ticket's script in a round trip of its own; in two, if the server does
// not know it.
func (s *sender) alone(ctx context.Context, t *ticket) {
	s.process(ctx, t, t.bySHA(ctx))
	if t.err != nil && redis.HasErrorPrefix(t.err, "NOSCRIPT") {
		s.process(ctx, t, t.byText(ctx))
	}
}

// process sends a call, once, and notes the answer.
func (s *sender) process(ctx context.Context, t *ticket, c *call) {
	if s.direct || ctx.Done() == nil {
		t.err = s.client.Process(ctx, c)
		t.reply, t.sent = c.Val(), c.sent.Load()
		return
	}
	select {
	case s.slots <- struct{}{}:
	case <-ctx.Done():
		t.err = ctx.Err()
		return
	}
	s.aside(ctx, t, c)
}

// aside is process for a client that may not come back in time: the caller leaves at
// the context's end, and the call goes on in a goroutine.
func (s *sender) aside(ctx context.Context, t *ticket, c *call) {
	done := make(chan error, 1)
	go func() {
		defer func() { <-s.slots }()
		done <- s.client.Process(ctx, c)
	}()
	select {
	case t.err = <-done:
		t.reply, t.sent = c.Val(), c.sent.Load()
	case <-ctx.Done():
		t.err, t.sent = ctx.Err(), c.sent.Load()
	}
}

// del deletes a key. To do that twice does no harm.
func (s *sender) del(ctx context.Context, key string) error {
	if err := ctx.Err(); err != nil {
		return ended(err, false)
	}
	bounded, timeout := s.bounded(ctx)
	defer timeout.stop()
	var t ticket
	s.process(bounded, &t, &call{Cmd: *redis.NewCmd(bounded, "del", key)})
	if t.err != nil && !errors.Is(t.err, redis.Nil) {
		return classify(ctx, t.err, t.sent)
	}
	return nil
}
