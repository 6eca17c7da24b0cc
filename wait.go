package ratelimit

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/weir-go/ratelimit/internal/ctxwait"
	"github.com/weir-go/ratelimit/internal/meter"
	"github.com/weir-go/ratelimit/internal/nilcheck"
	"github.com/weir-go/ratelimit/internal/optional"
)

// Wait spends cost of the key's budget and returns nil when its time has come: at once if it fits, else after
// sleeping in real time. On a leaky bucket it returns when the work may leave the queue. Waiters of one key are
// served in the order of their calls: each books its instant, and later calls queue behind it.
//
// It fails at once with an error that wraps [context.DeadlineExceeded] if the deadline comes before its time; with
// the context's error when that ends; with [ErrLimited] if a leaky bucket's queue is full; and with the errors of
// [Keyed.Take]. A Wait that fails has spent nothing, as after [Reservation.Cancel].
func (l *Keyed[K]) Wait(ctx context.Context, key K, cost int) error {
	ctx = ctxwait.OrBackground(ctx)
	var d Decision
	spent, err := l.wait(ctx, key, cost, &d)
	if l.onDecision != nil {
		l.report(key, cost, d, spent && err == nil, err)
	}
	return err
}

// wait is Wait without the report. It also says whether it has charged anything.
func (l *Keyed[K]) wait(ctx context.Context, key K, cost int, d *Decision) (spent bool, err error) {
	left, err := ctxwait.Left(ctx)
	if err != nil {
		return false, err
	}
	b, o, err := l.decide(key, cost, reserveRequest(left, meter.Booked), d)
	switch {
	case err != nil:
		return false, err
	case !d.Allowed && d.Limit.Algorithm == AlgorithmLeakyBucket && cost > d.Remaining:
		return false, fmt.Errorf("%w: cost %d finds the queue full for another %v under %v", ErrLimited, cost, d.RetryAfter, d.Limit)
	case !d.Allowed && left == ctxwait.Forever:
		return false, fmt.Errorf("%w: cost %d would be booked more than 100 years ahead under %v", ErrLimited, cost, d.Limit)
	case !d.Allowed: // RetryAfter is how much too late the time would be
		return false, tooLate(cost, between(-int64(left), int64(d.RetryAfter)), left, d.Limit)
	}
	if err = ctxwait.Sleep(ctx, d.Delay); err != nil {
		b.settleAt(l.clock, spendingOf(o, int64(cost), meter.Booked), 0)
	}
	return b != nil, err
}

// tooLate is the error of a Wait whose time would come after the deadline.
func tooLate(cost int, wait, left time.Duration, l Limit) error {
	return fmt.Errorf("%w: cost %d must wait for %v under %v, but the deadline is in %v", context.DeadlineExceeded, cost, wait, l, left)
}

// Wait spends cost of the key's budget on any limiter, and returns nil when its time has come. It is r's Wait if r is
// a [Waiter]. Else it reserves the cost as far ahead as the deadline allows, or sleeps for RetryAfter and tries
// again.
//
// It fails with the errors of Reserve; with the context's error when that ends; with [context.DeadlineExceeded] if
// the cost is denied until after the deadline; and with [ErrLimited] if it is denied and there is no deadline. A Wait
// that fails has spent nothing.
func Wait[K any](ctx context.Context, r Reserver[K], key K, cost int) error {
	ctx = ctxwait.OrBackground(ctx)
	if nilcheck.IsNil(r) {
		return errors.New("ratelimit: Wait was given no limiter")
	}
	if w, ok := r.(Waiter[K]); ok {
		return w.Wait(ctx, key, cost)
	}
	return waitByReserve(ctx, r, key, cost)
}

// waitByReserve is Wait for a limiter without a Wait of its own.
func waitByReserve[K any](ctx context.Context, r Reserver[K], key K, cost int) error {
	for {
		left, err := ctxwait.Left(ctx)
		if err != nil {
			return err
		}
		res, retry, err := reserveWithin(ctx, r, key, cost, left)
		if err != nil {
			return err
		}
		if res != nil {
			return res.Wait(ctx)
		}
		if err := ctxwait.Sleep(ctx, retry); err != nil {
			return err
		}
	}
}

// reserveWithin reserves a cost for a time before the deadline, or returns when to try again. If the cost is denied, it asks
// a second time, without a delay: then an engine that books ahead returns the time at which the cost fits. If that is after
// the deadline, to try again would be in vain.
func reserveWithin[K any](ctx context.Context, r Reserver[K], key K, cost int, left time.Duration) (*Reservation, time.Duration, error) {
	res, err := reserveOnce(ctx, r, key, cost, left, left)
	if err != nil || res.Allowed {
		return res, 0, err
	}
	retry := res.RetryAfter
	if res, err = reserveOnce(ctx, r, key, cost, 0, left); err != nil || res.Allowed {
		return res, 0, err
	}
	return nil, retry, nil
}

// reserveOnce reserves a cost with a delay. It is an error if that is denied until after the deadline. The reservation is
// not nil without an error.
func reserveOnce[K any](ctx context.Context, r Reserver[K], key K, cost int, delay, left time.Duration) (*Reservation, error) {
	res, err := r.Reserve(new(optional.Passing).From(ctx), key, cost, delay)
	switch {
	case err != nil:
		return nil, also(err, res.Cancel())
	case res == nil:
		res = new(Reservation)
	case res.Allowed:
		return res, nil
	}
	switch {
	case left == ctxwait.Forever:
		return nil, fmt.Errorf("%w: cost %d is denied under %v, and there is no deadline to wait for", ErrLimited, cost, res.Limit)
	case res.RetryAfter <= 0:
		return nil, fmt.Errorf("%w: cost %d is denied under %v, without a time to wait for", context.DeadlineExceeded, cost, res.Limit)
	case res.RetryAfter > left:
		return nil, tooLate(cost, res.RetryAfter, left, res.Limit)
	}
	return res, nil
}
