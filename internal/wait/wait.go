// Package wait sleeps within contexts, and has the bounds by which waits are counted.
package wait

import (
	"context"
	"math"
	"time"
)

// Forever is the time left to a context without a deadline.
const Forever = time.Duration(math.MaxInt64)

// OrBackground returns the context, or the background context if it is nil.
func OrBackground(ctx context.Context) context.Context {
	if ctx == nil {
		return context.Background()
	}
	return ctx
}

// Left returns the time until the context ends, or its error if it has ended.
func Left(ctx context.Context) (time.Duration, error) {
	if err := ctx.Err(); err != nil {
		return 0, err
	}
	deadline, ok := ctx.Deadline()
	if !ok {
		return Forever, nil
	}
	if left := time.Until(deadline); left > 0 {
		return left, nil
	}
	return 0, context.DeadlineExceeded
}

// within is a context that ends a wait.
type within struct {
	context.Context
	caller context.Context
}

// Within returns a context for a wait of at most d. Unlike a deadline of the caller, d does not bound what follows the wait: see Caller.
func Within(ctx context.Context, d time.Duration) (context.Context, context.CancelFunc) {
	bounded, cancel := context.WithTimeout(ctx, d)
	return &within{bounded, ctx}, cancel
}

// Caller returns the context that was given to Within, and whether Within has returned ctx.
func Caller(ctx context.Context) (caller context.Context, ok bool) {
	if w, ok := ctx.(*within); ok {
		return w.caller, true
	}
	return nil, false
}

// Sleep sleeps for a delay, and returns nil; or it returns the context's error if that ends
// first. If both come at the same instant, the sleep was in time. A delay of 0 or less
// is over at once, whatever the context.
func Sleep(ctx context.Context, delay time.Duration) error {
	if delay <= 0 {
		return nil
	}
	begin, timer := time.Now(), time.NewTimer(delay)
	defer timer.Stop()
	select {
	case <-timer.C:
		return nil
	case <-ctx.Done():
		if time.Since(begin) >= delay { // whether or not the timer has fired yet
			return nil
		}
		return ctx.Err()
	}
}
