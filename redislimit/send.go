package redislimit

import (
	"context"
	"fmt"
	"time"

	"github.com/redis/go-redis/v9"
)

// sender runs scripts on a client, each within a timeout of its own.
type sender struct {
	user    redis.UniversalClient // as New got it
	client  redis.UniversalClient
	timeout time.Duration // below zero: none
	batch   int           // how many calls share a round trip at most
	direct  bool          // the client ends its calls at their deadlines by itself
	hooks   []redis.Hook  // of the clone
	lane    *lane         // nil if calls do not share round trips
	slots   chan struct{} // bounds the goroutines of calls that have no lane
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
// say how long a call blocks. A clone has no hooks, but those that are given here. Only its
// pipelines are never repeated, so only there do calls share round trips.
func newSender(client redis.UniversalClient, timeout time.Duration, batch int, hooks []redis.Hook) *sender {
	s := &sender{user: client, client: client, timeout: timeout, batch: batch, hooks: hooks, slots: make(chan struct{}, maxGoroutines)}
	c, ok := client.(*redis.Client)
	if !ok || timeout < 0 {
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
	if batch > 1 {
		s.lane = newLane(c, batch)
	}
	return s
}

// within returns a sender on the same connections with another timeout.
func (s *sender) within(timeout time.Duration) *sender {
	if timeout == s.timeout {
		return s
	}
	return newSender(s.user, timeout, s.batch, s.hooks)
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
	var reply any
	var err error
	var sent bool
	switch {
	case s.lane != nil:
		reply, err, sent = s.lane.run(t)
	case ctx.Done() == nil && (s.direct || s.timeout < 0):
		reply, err, sent = t.here(s.client)
	default:
		reply, err, sent = s.aside(t)
	}
	if err != nil {
		return "", classify(ctx, err, sent)
	}
	text, ok := reply.(string)
	if !ok {
		return "", fmt.Errorf("redislimit: the script answered %T, want a string", reply)
	}
	return text, nil
}

// here runs a ticket on the caller's goroutine, for as long as the client takes.
func (t *ticket) here(client processor) (reply any, err error, sent bool) {
	t.trip = &t.alone
	ctx, stop := t.bounded()
	defer stop()
	t.run(ctx, client)
	return t.reply, t.err, t.trip.written()
}

// aside runs a ticket in a goroutine, since the client may take longer than the caller.
func (s *sender) aside(t *ticket) (reply any, err error, sent bool) {
	t.trip = &t.alone
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
			return nil, ctx.Err(), t.trip.mayArrive()
		}
	}
	return t.reply, t.err, t.trip.written()
}
