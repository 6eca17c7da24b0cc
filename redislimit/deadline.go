package redislimit

import (
	"context"
	"sync"
	"time"
)

// end returns when a call's answer is of no use any more: at its timeout, or at its caller's
// own deadline. Zero means never.
func (c *call) end() time.Time {
	own, ok := c.ctx.Deadline()
	if ok && (c.deadline.IsZero() || own.Before(c.deadline)) {
		return own
	}
	return c.deadline
}

// bounded returns the caller's context with the timeout, and what ends that.
func (c *call) bounded() (context.Context, func()) {
	if c.deadline.IsZero() {
		return c.ctx, func() {}
	}
	return withDeadline(c.ctx, c.deadline)
}

// deadline is a context with a deadline of its own, above a context that never ends.
// It does what context.WithDeadline does, with fewer allocations.
type deadline struct {
	context.Context
	at time.Time

	mu    sync.Mutex // guards the fields below
	done  chan struct{}
	timer *time.Timer
}

func withDeadline(parent context.Context, at time.Time) (context.Context, func()) {
	if parent.Done() != nil {
		return context.WithDeadline(parent, at)
	}
	d := &deadline{Context: parent, at: at}
	return d, d.stop
}

func (d *deadline) Deadline() (time.Time, bool) { return d.at, true }

// Done returns a channel that is closed at the deadline. The timer starts when it is
// first asked for.
func (d *deadline) Done() <-chan struct{} {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.done == nil {
		d.done = make(chan struct{})
		d.timer = time.AfterFunc(time.Until(d.at), func() { close(d.done) })
	}
	return d.done
}

// Err is never nil once Done is closed: the timer fires at the deadline, not before.
func (d *deadline) Err() error {
	if time.Now().Before(d.at) {
		return nil
	}
	return context.DeadlineExceeded
}

// stop ends the timer. The call is over: nobody waits for Done any more.
func (d *deadline) stop() {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.timer != nil {
		d.timer.Stop()
	}
}
