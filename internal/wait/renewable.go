package wait

import (
	"context"
	"errors"
	"sync"
	"sync/atomic"
)

// Renewable is a call that waits in several attempts. [Renewable.Renew] ends the present attempt, for example because the
// rules of the call have changed. The next attempt takes the place of the last one in its line.
type Renewable struct {
	Context context.Context // the caller's
	Waits   func()          // is called whenever an attempt begins to wait

	// An attempt that ends leaves these for the next one.
	Number uint64                 // of the call's arrival; 0 if it has none yet
	Place  interface{ Abandon() } // the place in line, which the last attempt abandons; nil if there is none

	now   atomic.Pointer[Attempt]
	first Attempt
}

// Attempt is the context of one attempt of a call. What waits by it finds the [Renewable] in it, but in no context derived from it.
type Attempt struct {
	context.Context // the caller's
	call            *Renewable

	over  atomic.Bool // Renew has ended it
	waits atomic.Bool // Done was called

	mu    sync.Mutex
	inner context.Context // ends with the attempt; nil until the attempt waits
	end   context.CancelFunc
}

// Begin returns the next attempt.
func (r *Renewable) Begin() *Attempt {
	a := &r.first
	if r.now.Load() != nil {
		a = new(Attempt)
	}
	a.Context, a.call = r.Context, r
	r.now.Store(a)
	return a
}

// Clear forgets the attempts, so that another call can use r. None of the attempts may have waited.
func (r *Renewable) Clear() {
	r.Context, r.Number, r.Place = nil, 0, nil
	r.first.Context = nil
	r.first.over.Store(false)
	r.now.Store(nil)
}

// Renew ends the present attempt.
func (r *Renewable) Renew() {
	if a := r.now.Load(); a != nil {
		a.over.Store(true)
		a.stop()
	}
}

// stop ends the attempt if it waits.
func (a *Attempt) stop() {
	if !a.waits.Load() {
		return
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.end != nil {
		a.end()
	}
}

// End ends the attempt, which has returned an error. It reports whether the call starts again.
func (a *Attempt) End(err error) (anew bool) {
	anew = a.renewed(err)
	a.stop()
	return anew
}

// Done returns a channel that is closed when the attempt ends.
func (a *Attempt) Done() <-chan struct{} {
	a.waits.Store(true)
	a.mu.Lock()
	first := a.inner == nil
	if first {
		a.inner, a.end = context.WithCancel(a.Context)
		if a.over.Load() {
			a.end()
		}
	}
	done := a.inner.Done()
	a.mu.Unlock()
	if first {
		a.call.Waits()
	}
	return done
}

// Err returns the error of the caller's context, or context.Canceled once the attempt has ended.
func (a *Attempt) Err() error {
	if a.waits.Load() {
		a.mu.Lock()
		defer a.mu.Unlock()
		if a.inner != nil {
			return a.inner.Err()
		}
	}
	if a.over.Load() {
		return context.Canceled
	}
	return a.Context.Err()
}

func (a *Attempt) renewed(err error) bool {
	return err != nil && a.over.Load() && errors.Is(err, context.Canceled) && a.Context.Err() == nil
}

// RenewableOf returns the call whose attempt a context is, or nil.
func RenewableOf(ctx context.Context) *Renewable {
	if a, ok := ctx.(*Attempt); ok {
		return a.call
	}
	return nil
}

// Renewed returns the call whose attempt a context is, if Renew has ended it with this error. Otherwise it returns nil.
func Renewed(ctx context.Context, err error) *Renewable {
	a, ok := ctx.(*Attempt)
	if !ok || !a.renewed(err) {
		return nil
	}
	return a.call
}

// Charged returns the context for a call that has been charged. Renew does not end it.
func Charged(ctx context.Context) context.Context {
	if a, ok := ctx.(*Attempt); ok {
		return a.Context
	}
	return ctx
}
