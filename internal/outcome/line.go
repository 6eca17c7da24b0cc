package outcome

import (
	"context"
	"time"

	"github.com/weir-go/ratelimit"
	"github.com/weir-go/ratelimit/internal/turns"
	"github.com/weir-go/ratelimit/internal/wait"
)

// PaceOf returns the pace of a limit. It is zero for a limit without a rate. The length of a calendar's windows is not known.
func PaceOf(l ratelimit.Limit) turns.Pace {
	if l.Rate.Units <= 0 {
		return turns.Pace{}
	}
	bucket := l.Algorithm == ratelimit.AlgorithmTokenBucket || l.Algorithm == ratelimit.AlgorithmLeakyBucket
	return turns.Pace{Units: l.Rate.Units, Per: l.Rate.Per, AtOnce: !bucket}
}

// InLine is a store's Wait: it books in the turn of its caller, and waits for the booked instant. The book function books the cost that it
// gets, by up to a time ahead, as Reserve does; its reservation is never nil. The context has not ended.
func InLine(ctx context.Context, lines *turns.Lines[string], key string, cost int,
	book func(cost int, ahead time.Duration) (*ratelimit.Reservation, error)) (d ratelimit.Decision, err error) {
	left, err := wait.Left(ctx)
	if err != nil {
		return d, err
	}
	one := func(ahead time.Duration, cost int) (a turns.Answer[string], err error) {
		left, err := wait.Left(ctx)
		if err != nil {
			return a, err
		}
		ahead = min(ahead, left)
		res, err := book(cost, ahead)
		if d = res.Decision; err != nil {
			return a, err
		}
		a.Pace = PaceOf(d.Limit)
		a.Allowed, a.Delay, a.Remaining, a.Settle = d.Allowed, d.Delay, d.Remaining, res.Settle
		if d.Limit.Algorithm == ratelimit.AlgorithmLeakyBucket {
			a.Remaining = 0 // what remains of a queue can enter, and is let out later
		}
		if a.Retry = d.RetryAfter; d.Allowed {
			return a, nil
		}
		full := d.Limit.Algorithm == ratelimit.AlgorithmLeakyBucket && cost > d.Remaining
		if excess := d.RetryAfter - (left - ahead); full || left == ahead || excess > 0 {
			if !full {
				d.RetryAfter = excess
			}
			return a, Unbooked(d, cost, left)
		}
		return a, nil
	}
	if cost <= 0 { // there is nothing to wait for
		_, err = one(left, cost)
		return d, err
	}
	err = lines.Wait(ctx, key, cost, one)
	if e, ok := err.(*turns.LateError); ok { // behind other callers of this process
		d.Allowed, d.Delay, d.RetryAfter = false, 0, e.In-left
		err = late(d.Limit, e.In)
	}
	return d, err
}
