package redislimit

import (
	"context"
	"sync"
	"time"
)

// deadline is a context with a deadline of its own, above a context that never ends.
// It does what context.WithDeadline does, with fewer allocations.
type deadline struct {
	context.Context
	at time.Time

	mu    sync.Mutex // guards the fields below
	done  chan struct{}
	timer *time.Timer
}

// stopper ends what a context needs to end by itself.
type stopper interface{ stop() }

type stopFunc func()

func (f stopFunc) stop() { f() }

// withTimeout returns a context that ends with its parent, or after the timeout.
func withTimeout(parent context.Context, timeout time.Duration) (context.Context, stopper) {
	return withDeadline(parent, time.Now().Add(timeout))
}

func withDeadline(parent context.Context, at time.Time) (context.Context, stopper) {
	if parent.Done() != nil {
		ctx, cancel := context.WithDeadline(parent, at)
		return ctx, stopFunc(cancel)
	}
	d := &deadline{Context: parent, at: at}
	return d, d
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
