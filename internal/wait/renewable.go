package wait

import (
	"context"
	"errors"
	"sync"
)

// Renewable is a call that waits in several attempts. [Renewable.Renew] ends the present attempt, for example because the
// rules of the call have changed. The next attempt takes the place of the last one in its line.
type Renewable struct {
	Context context.Context // the caller's
	Waits   func()          // is called whenever an attempt begins to wait

	// An attempt that ends leaves these for the next one.
	Number uint64                 // of the call's arrival; 0 if it has none yet
	Place  interface{ Abandon() } // the place in line, which the last attempt abandons; nil if there is none

	mu  sync.Mutex // guards the field, and the attempt
	now *Attempt
}

// Attempt is the context of one attempt of a call. What waits by it finds the [Renewable] in it, but in no context derived from it.
type Attempt struct {
	context.Context // the caller's
	call            *Renewable

	// The lock of the call guards these fields.
	inner context.Context // ends with the attempt; nil until the attempt waits
	end   context.CancelFunc
	over  bool // Renew has ended it
}

// Begin returns the next attempt.
func (r *Renewable) Begin() *Attempt {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.now = &Attempt{Context: r.Context, call: r}
	return r.now
}

// Renew ends the present attempt.
func (r *Renewable) Renew() {
	r.mu.Lock()
	defer r.mu.Unlock()
	a := r.now
	if a == nil {
		return
	}
	if a.over = true; a.end != nil {
		a.end()
	}
}

// End ends the attempt, which has returned an error. It reports whether the call begins anew.
func (a *Attempt) End(err error) (anew bool) {
	a.call.mu.Lock()
	defer a.call.mu.Unlock()
	if a.end != nil {
		a.end()
	}
	return a.renewed(err)
}

// Done returns a channel that is closed when the attempt ends.
func (a *Attempt) Done() <-chan struct{} {
	a.call.mu.Lock()
	first := a.inner == nil
	if first {
		a.inner, a.end = context.WithCancel(a.Context)
		if a.over {
			a.end()
		}
	}
	done := a.inner.Done()
	a.call.mu.Unlock()
	if first {
		a.call.Waits()
	}
	return done
}

// Err returns the error of the caller's context, or context.Canceled once the attempt has ended.
func (a *Attempt) Err() error {
	a.call.mu.Lock()
	defer a.call.mu.Unlock()
	switch {
	case a.inner != nil:
		return a.inner.Err()
	case a.over:
		return context.Canceled
	}
	return a.Context.Err()
}

func (a *Attempt) renewed(err error) bool {
	return a.over && errors.Is(err, context.Canceled) && a.Context.Err() == nil
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
	if !ok || err == nil {
		return nil
	}
	a.call.mu.Lock()
	defer a.call.mu.Unlock()
	if !a.renewed(err) {
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
