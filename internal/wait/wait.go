// Package wait sleeps until a delay or a context ends. It also has the bounds of the buckets for counting waits.
package wait

import (
	"context"
	"math"
	"time"
)

// Forever is the remaining time of a context without a deadline.
const Forever = time.Duration(math.MaxInt64)

// OrBackground returns the context, or the background context if it is nil.
func OrBackground(ctx context.Context) context.Context {
	if ctx == nil {
		return context.Background()
	}
	return ctx
}

// Left returns the time until the context's deadline, or the context's error if it has ended.
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

// Within returns a context for a wait of at most d. Unlike the caller's
// deadline, d bounds only the wait, not the work after it: see Caller.
func Within(ctx context.Context, d time.Duration) (context.Context, context.CancelFunc) {
	bounded, cancel := context.WithTimeout(ctx, d)
	return &within{bounded, ctx}, cancel
}

// Caller returns the context passed to Within. ok reports whether ctx comes from Within.
func Caller(ctx context.Context) (caller context.Context, ok bool) {
	if w, ok := ctx.(*within); ok {
		return w.caller, true
	}
	return nil, false
}

// Sleep sleeps for a delay and returns nil, or returns the context's error if the context ends first. If both end at
// the same instant, it returns nil. For a delay of at most 0 it returns nil at once, even if the context has ended.
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
		if time.Since(begin) >= delay { // nil even if the timer has not fired yet
			return nil
		}
		return ctx.Err()
	}
}
