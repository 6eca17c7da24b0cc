package chain

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/weir-go/ratelimit"
	"github.com/weir-go/ratelimit/internal/held"
	"github.com/weir-go/ratelimit/internal/keys"
	"github.com/weir-go/ratelimit/internal/optional"
	"github.com/weir-go/ratelimit/internal/outcome"
	"github.com/weir-go/ratelimit/internal/turns"
	"github.com/weir-go/ratelimit/internal/wait"
)

// Wait charges the cost to all limiters when they allow it. This process's calls with equal requests are
// served in the order of their arrival: the first sleeps for RetryAfter and tries again, and the others
// stand behind it. Incomparable requests, and pointers to different requests, have their own lines.
//
// The first call follows settlements, grants and Reset through this chain at once. Once a second it peeks at
// the limiters, so it also follows other grants, bans and changed limits. Wait fails with
// [context.DeadlineExceeded], at once if a limiter denies the cost for longer; with the context's error; with
// [ratelimit.ErrLimited] if no time would help; and with the limiters' errors. It then gives back its charges.
func (c *Limiter[R]) Wait(ctx context.Context, r R, cost int) error {
	ctx = wait.OrBackground(ctx)
	switch {
	case len(c.all()) == 1:
		return ratelimit.Wait(ctx, c.limiters[0], r, cost)
	case c.booksAhead(): // the package's Wait calls Reserve, which books; the struct hides this method from it
		return ratelimit.Wait(ctx, ratelimit.Reserver[R](struct{ ratelimit.Reserver[R] }{c}), r, cost)
	}
	w := waiting[R]{chain: c, r: r, cost: cost, line: lineOf(r)}
	if cost <= 0 { // no call before it leaves less for it
		w.line = new(byte)
	}
	err := c.lines.Try(ctx, []turns.Budget[any]{{Key: w.line, Cost: cost}}, func(q turns.Request) (turns.Answer[any], error) {
		return w.try(ctx, q.Early)
	})
	var late *turns.LateError
	switch {
	case errors.As(err, &late):
		return &ratelimit.LateError{Limit: w.limit, After: late.In, Reason: context.DeadlineExceeded}
	case err != nil:
		return err
	case held.Hold(w.res) > 0:
		return errors.Join(&held.NoEnd{}, w.res.Cancel())
	}
	return w.res.Wait(ctx)
}

// lineOf returns the key of the line for a request's calls.
func lineOf[R any](r R) any {
	if key, ok := shared(r); ok {
		return key
	}
	return new(byte)
}

// shared returns the key of the line for all calls with equal requests, if there is one.
func shared[R any](r R) (key any, ok bool) {
	key = r
	return key, keys.CanCompare(key) && key == key // NaN cannot be found again
}

// moved lets the first call for a request try at once, since the limiters may have more room.
func (c *Limiter[R]) moved(r R) {
	if key, ok := shared(r); ok {
		c.lines.Moved(key)
	}
}

// waiting is a call to Wait.
type waiting[R any] struct {
	chain *Limiter[R]
	r     R
	cost  int
	line  any
	limit ratelimit.Limit        // of the last denial
	until time.Time              // the end of the last denial's time
	res   *ratelimit.Reservation // once all limiters have allowed the cost
}

// try charges the cost, or returns when to try again. An early call first peeks: most
// likely the limiters still deny the cost, and a Peek charges nothing and is not a strike.
func (w *waiting[R]) try(ctx context.Context, early bool) (a turns.Answer[any], err error) {
	left, err := wait.Left(ctx)
	if err != nil {
		return a, err
	}
	if early {
		retry, denied := w.peek(ctx, left)
		if denied {
			return w.denied(w.limit, retry), nil
		}
	}
	res, retry, err := w.chain.reserveInTime(new(optional.Passing).From(ctx), w.r, w.cost, left)
	switch {
	case err != nil:
		return a, err
	case !res.Allowed:
		return w.denied(res.Limit, retry), nil
	}
	w.res = res
	return turns.Answer[any]{Allowed: true, Remaining: res.Remaining, Pace: w.chain.paceOf(res.Limit), Line: w.line, Cost: w.cost, Settle: res.Settle}, nil
}

// peek reports whether the limiters deny the cost for a time, and not until after the deadline.
func (w *waiting[R]) peek(ctx context.Context, left time.Duration) (retry time.Duration, denied bool) {
	rest := time.Until(w.until)
	d, err := w.chain.Peek(ctx, w.r, w.cost)
	switch {
	case errors.Is(err, errors.ErrUnsupported), errors.Is(err, ratelimit.ErrUnavailable):
		return rest, rest > 0 // there is no Peek, or a store fails, which may be over when the call tries again
	case err != nil, d.Allowed, d.RetryAfter <= 0, d.RetryAfter > left:
		return 0, false
	}
	w.limit = d.Limit
	if d.Limit.Algorithm == ratelimit.AlgorithmLeakyBucket && rest > 0 {
		return min(rest, d.RetryAfter), true // the queue may have room before the work could leave it
	}
	return d.RetryAfter, true
}

// denied records a denial, and returns the answer for its line.
func (w *waiting[R]) denied(limit ratelimit.Limit, retry time.Duration) turns.Answer[any] {
	w.limit, w.until = limit, time.Now().Add(retry)
	return turns.Answer[any]{Retry: retry, Here: true, Pace: w.chain.paceOf(limit), Line: w.line, Cost: w.cost}
}

// paceOf returns a line's pace under the deciding limit. It is zero, for unknown, if a limiter counts
// costs of its own, or has several limits: one may be a ban's, and the ban's end lets all callers pass.
func (c *Limiter[R]) paceOf(limit ratelimit.Limit) turns.Pace {
	if d := c.Describe(); d.ReplacesCost || len(d.Limits) != len(c.limiters) {
		return turns.Pace{}
	}
	return outcome.PaceOf(limit)
}

// reserveInTime reserves the cost for a time before the deadline. After a denial it returns when to try again.
func (c *Limiter[R]) reserveInTime(ctx context.Context, r R, cost int, left time.Duration) (*ratelimit.Reservation, time.Duration, error) {
	res, err := c.Reserve(ctx, r, cost, left)
	if err != nil || res.Allowed {
		return res, 0, err
	}
	retry := res.RetryAfter
	if queueDenies(res) && left != wait.Forever {
		// For a call with a delay, RetryAfter is the time until the queue leaves room
		// for the cost before the deadline. By then the deadline is closer. For a call
		// without a delay, RetryAfter is the time until the work could leave the queue.
		if res, err = c.Reserve(ctx, r, cost, 0); err != nil || res.Allowed {
			return res, 0, err
		}
	}
	switch d := res.RetryAfter; {
	case d > left:
		return nil, 0, &ratelimit.LateError{Limit: res.Limit, After: d, Reason: context.DeadlineExceeded}
	case d <= 0:
		return nil, 0, fmt.Errorf("%w: cost %d is denied under %v, without a time to wait for", ratelimit.ErrLimited, cost, res.Limit)
	}
	return res, retry, nil
}
