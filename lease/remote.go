package lease

import (
	"context"
	"errors"
	"fmt"
	"sync/atomic"
	"time"

	"github.com/weir-go/ratelimit"
	"github.com/weir-go/ratelimit/internal/failures"
	"github.com/weir-go/ratelimit/internal/follow"
	"github.com/weir-go/ratelimit/internal/held"
	"github.com/weir-go/ratelimit/internal/outcome"
)

// remote is the limiter whose budget is leased. It bounds and counts each call.
type remote[K any] struct {
	limiter ratelimit.Reserver[K]
	timeout time.Duration
	trips   atomic.Uint64

	// answersLate is set if a caller whose deadline has passed is answered at once, without an error.
	answersLate bool
}

func newRemote[K any](limiter ratelimit.Reserver[K], timeout time.Duration) *remote[K] {
	return &remote[K]{limiter: limiter, timeout: timeout, answersLate: failures.AnswersLate(limiter)}
}

// take decides on one cost, on the caller's goroutine.
func (r *remote[K]) take(ctx context.Context, key K, cost int) (ratelimit.Decision, error) {
	bounded, cancel := context.WithTimeout(ctx, r.timeout)
	defer cancel()
	r.trips.Add(1)
	d, err := r.limiter.Take(bounded, key, cost)
	return d, r.explain(ctx, bounded, err)
}

// reserve reserves a cost, on the caller's goroutine. It also counts the settlement.
func (r *remote[K]) reserve(ctx context.Context, key K, cost int, maxDelay time.Duration) (*ratelimit.Reservation, error) {
	bounded, cancel := context.WithTimeout(ctx, r.timeout)
	defer cancel()
	res, err := r.call(bounded, key, cost, maxDelay)
	counted := ratelimit.NewReservation(res.Decision, func(actual int) error { return r.settle(res, actual) })
	follow.Inner(counted, res)
	held.Follow(counted, r.extend, res)
	return counted, r.explain(ctx, bounded, err)
}

// call makes one call to Reserve. The reservation is never nil.
func (r *remote[K]) call(ctx context.Context, key K, cost int, maxDelay time.Duration) (*ratelimit.Reservation, error) {
	r.trips.Add(1)
	res, err := r.limiter.Reserve(ctx, key, cost, maxDelay)
	if res == nil {
		res = new(ratelimit.Reservation)
	}
	return res, err
}

// wait calls the remote limiter's own Wait if there is one; that Wait
// bounds its calls itself. Otherwise it books and bounds each call.
func (r *remote[K]) wait(ctx context.Context, key K, cost int) error {
	w, ok := r.limiter.(ratelimit.Waiter[K])
	if !ok {
		return ratelimit.Wait(ctx, bookings[K]{r}, key, cost)
	}
	r.trips.Add(1)
	return w.Wait(ctx, key, cost)
}

// bookings adapts a remote limiter to [ratelimit.Wait].
type bookings[K any] struct{ r *remote[K] }

func (b bookings[K]) Allow(key K, cost int) bool { return b.r.limiter.Allow(key, cost) }

func (b bookings[K]) Take(ctx context.Context, key K, cost int) (ratelimit.Decision, error) {
	return b.r.take(ctx, key, cost)
}

func (b bookings[K]) Reserve(ctx context.Context, key K, cost int, maxDelay time.Duration) (*ratelimit.Reservation, error) {
	return b.r.reserve(ctx, key, cost, maxDelay)
}

func (r *remote[K]) settle(res *ratelimit.Reservation, actual int) error {
	r.trips.Add(1)
	return res.Settle(actual)
}

// extend restarts the hold of a reservation's units.
func (r *remote[K]) extend(ctx context.Context, res *ratelimit.Reservation) error {
	bounded, cancel := context.WithTimeout(ctx, r.timeout)
	defer cancel()
	r.trips.Add(1)
	return r.explain(ctx, bounded, res.Extend(bounded))
}

// charge charges a key for a reservation's actual cost above its batch.
func (r *remote[K]) charge(key K, cost int) error {
	res, err := r.reserve(context.Background(), key, 0, 0)
	switch {
	case err != nil:
	case res.Allowed:
		err = res.Settle(cost)
	default: // a ban denies even a cost of 0, but the work has been done
		err = r.adjust(key, cost)
	}
	if err != nil {
		return fmt.Errorf("lease: %d units above the reserved cost could not be charged: %w", cost, err)
	}
	return nil
}

// adjust calls the remote limiter's Adjust.
func (r *remote[K]) adjust(key K, cost int) error {
	bounded, cancel := context.WithTimeout(context.Background(), r.timeout)
	defer cancel()
	r.trips.Add(1)
	return r.explain(context.Background(), bounded, ratelimit.Adjust(bounded, ratelimit.Limiter[K](r.limiter), key, cost))
}

// explain distinguishes an error caused by this package's bound from an error of the caller's context.
func (r *remote[K]) explain(caller, bounded context.Context, err error) error {
	cause := outcome.CauseOf(err)
	if cause == outcome.CauseNone || cause == outcome.CauseUnavailable {
		return err
	}
	late := cause == outcome.CauseEnded
	if outcome.EndOf(caller) != nil && (!late || caller.Err() == nil || errors.Is(err, caller.Err())) {
		return err // otherwise the bound ended first, and the caller's context has ended since
	}
	if late || outcome.EndOf(bounded) != nil {
		return fmt.Errorf("%w: %w", r.overdue(), err)
	}
	return err
}

// overdue returns the error for a call that took too long.
func (r *remote[K]) overdue() error {
	return fmt.Errorf("lease: no answer from the remote limiter within %v: %w", r.timeout, ratelimit.ErrUnavailable)
}

// caught turns a panic of the remote limiter into an error. On a goroutine of this package, the panic would end the process.
func caught(err *error) {
	p := recover()
	if p == nil {
		return
	}
	*err = fmt.Errorf("lease: the remote limiter panicked: %s: %w", failures.PanicText(p), ratelimit.ErrUnavailable)
}
