package wait

import (
	"context"
	"errors"
	"sync"
	"sync/atomic"
)

// Renewable is a call that waits in attempts. [Renewable.Renew] ends the present attempt, for
// example because the call's limit has changed. The next attempt takes the last one's place in line.
type Renewable struct {
	Context context.Context // the caller's
	Waits   func()          // is called whenever an attempt begins to wait

	// An ended attempt leaves these fields to the next one.
	Number uint64                 // the number of the call's arrival; 0 if it has none yet
	Place  interface{ Abandon() } // the call's place in line, or nil; the last attempt abandons it

	now   atomic.Pointer[Attempt]
	first Attempt
}

// Attempt is one attempt's context. [RenewableOf] finds the call in this context, but in no context derived from it.
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

// Clear prepares r for another call. None of its attempts may have waited.
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

// End ends the attempt after it has returned err. It reports whether
// the call makes another attempt, because Renew has ended this one.
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

// RenewableOf returns an attempt's call, or nil if the context is no attempt.
func RenewableOf(ctx context.Context) *Renewable {
	if a, ok := ctx.(*Attempt); ok {
		return a.call
	}
	return nil
}

// Renewed returns an attempt's call if Renew has ended the attempt with this error. Otherwise it returns nil.
func Renewed(ctx context.Context, err error) *Renewable {
	a, ok := ctx.(*Attempt)
	if !ok || !a.renewed(err) {
		return nil
	}
	return a.call
}

// Charged returns the caller's context, for a call already charged. Renew does not end this context.
func Charged(ctx context.Context) context.Context {
	if a, ok := ctx.(*Attempt); ok {
		return a.Context
	}
	return ctx
}
