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
	*redis.Cmd
	sent atomic.Bool
}

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
	client  redis.UniversalClient
	timeout time.Duration // below zero: none
	direct  bool          // the client ends its calls in time by itself
	slots   chan struct{} // bounds the goroutines of one that does not
}

// maxGoroutines bounds the calls under way of a client that cannot be trusted to end
// them in time: those that come later wait, within their own timeout.
const maxGoroutines = 256

// newSender prepares a client. A *redis.Client is told, on a clone that shares its
// connections, to heed the deadline of each call: without that it would be its own
// options that say how long a call blocks.
func newSender(client redis.UniversalClient, timeout time.Duration) *sender {
	s := &sender{client: client, timeout: timeout}
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
	return newSender(s.client, timeout)
}

// eval runs a script, in one round trip if the server knows it, within the timeout.
func (s *sender) eval(ctx context.Context, sc *script, keys []string, payload []byte) (string, error) {
	if err := ctx.Err(); err != nil {
		return "", ended(err, false)
	}
	bounded, cancel := s.bounded(ctx)
	defer cancel()
	reply, sent, err := s.send(bounded, "evalsha", sc.sha, keys, payload)
	if redis.HasErrorPrefix(err, "NOSCRIPT") {
		reply, sent, err = s.send(bounded, "eval", sc.text, keys, payload)
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

// bounded returns the context with the timeout's deadline.
func (s *sender) bounded(ctx context.Context) (context.Context, context.CancelFunc) {
	if s.timeout < 0 {
		return ctx, func() {}
	}
	return context.WithTimeout(ctx, s.timeout)
}

// send sends a script's call, once.
func (s *sender) send(ctx context.Context, verb, script string, keys []string, payload []byte) (any, bool, error) {
	args := make([]any, 0, 8)
	args = append(args, verb, script, len(keys))
	for _, k := range keys {
		args = append(args, k)
	}
	return s.process(ctx, append(args, payload)...)
}

func (s *sender) process(ctx context.Context, args ...any) (any, bool, error) {
	c := &call{Cmd: redis.NewCmd(ctx, args...)}
	if !s.direct && ctx.Done() != nil {
		return s.processAside(ctx, c)
	}
	err := s.client.Process(ctx, c)
	return c.Val(), c.sent.Load(), err
}

// processAside is process for a client that may not come back in time: the caller
// leaves at the context's end, and the call goes on in a goroutine.
func (s *sender) processAside(ctx context.Context, c *call) (any, bool, error) {
	select {
	case s.slots <- struct{}{}:
	case <-ctx.Done():
		return nil, false, ctx.Err()
	}
	done := make(chan error, 1)
	go func() {
		defer func() { <-s.slots }()
		done <- s.client.Process(ctx, c)
	}()
	select {
	case err := <-done:
		return c.Val(), c.sent.Load(), err
	case <-ctx.Done():
		return nil, c.sent.Load(), ctx.Err()
	}
}

// del deletes a key. To do that twice does no harm.
func (s *sender) del(ctx context.Context, key string) error {
	if err := ctx.Err(); err != nil {
		return ended(err, false)
	}
	bounded, cancel := s.bounded(ctx)
	defer cancel()
	_, sent, err := s.process(bounded, "del", key)
	if err != nil && !errors.Is(err, redis.Nil) {
		return classify(ctx, err, sent)
	}
	return nil
}
