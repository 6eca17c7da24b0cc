package failover

import (
	"context"
	"errors"
	"fmt"

	"github.com/weir-go/ratelimit"
)

// settlementsPerCall is the maximum number of waiting settlements for
// each call that may be under way. Further settlements fail at once.
const settlementsPerCall = 64

// settling returns a function to settle a reservation with its own engine.
func (l *Limiter[K]) settling(a answer) func(actual int) error {
	switch {
	case a.res == nil:
		return nil
	case a.owe != nil:
		return func(actual int) error {
			err := a.res.Settle(actual)
			if err == nil {
				a.owe(actual)
			}
			return err
		}
	case a.standIn:
		return a.res.Settle
	}
	return func(actual int) error {
		err := l.settle(a.res, actual)
		if err != nil {
			l.counters.unsettled.Add(1)
		}
		return err
	}
}

// extending returns a function to extend a reservation with its own engine. The timeout
// bounds a call to the primary. The call shows nothing about the primary. After an
// error, the units are held until the old hold ends, and the next extension may succeed.
func (l *Limiter[K]) extending(a answer) func(context.Context, *ratelimit.Reservation) error {
	return func(ctx context.Context, r *ratelimit.Reservation) error {
		if a.standIn || l.timeout < 0 {
			return r.Extend(ctx)
		}
		bounded, stop := context.WithTimeout(ctx, l.timeout)
		defer stop()
		done := make(chan error, 1)
		go func() {
			done <- guarded(bounded, func(ctx context.Context) answer { return answer{err: r.Extend(ctx)} }).err
		}()
		select {
		case err := <-done:
			if ctx.Err() == nil && errors.Is(err, context.DeadlineExceeded) {
				err = fmt.Errorf("%w: %w", err, ratelimit.ErrUnavailable)
			}
			return err
		case <-bounded.Done():
		}
		if err := ctx.Err(); err != nil {
			return fmt.Errorf("failover: %w", err)
		}
		return fmt.Errorf("failover: the primary did not extend within %v: %w", l.timeout, ratelimit.ErrUnavailable)
	}
}

// errNotCalled is returned by a settlement if it does not call the primary, because the primary fails.
var errNotCalled = fmt.Errorf("failover: the primary was not called to settle, since it fails: %w", ratelimit.ErrUnavailable)

// settle settles a reservation of the primary, within the timeout. The breaker counts a failure like one of a decision.
func (l *Limiter[K]) settle(res *ratelimit.Reservation, actual int) error {
	var era uint64
	begin := func(turn bool) (admission, <-chan struct{}) {
		st := l.breaker.standing()
		era = st.era
		switch {
		case st.state != StateClosed && l.counters.settleFailed.Load():
			return notAdmitted, nil
		case turn:
			return admitted, nil
		}
		return needsTurn, nil
	}
	judge := func(o ending, err error) {
		l.counters.settleFailed.Store(o.health() == failure)
		l.failed(o, err)
		l.breaker.settled(era, o.health())
	}
	f := func(context.Context) answer { return answer{err: res.Settle(actual)} }
	var a answer
	var o ending
	if l.timeout < 0 {
		if got, _ := begin(true); got != admitted {
			return errNotCalled
		}
		a = guarded(noContext, f)
		o = judgeBy(noContext, a)
		judge(o, a.err)
	} else {
		a, o = l.settler.call(noContext, job{f: f, begin: begin, judge: judge, announce: l.breaker.announce})
	}
	l.breaker.announce()
	switch o {
	case answered:
		return nil
	case overdue:
		if l.timeout < 0 { // the primary returned it itself
			return fmt.Errorf("failover: the primary did not settle: %w: %w", a.err, ratelimit.ErrUnavailable)
		}
		return fmt.Errorf("failover: the primary did not settle within %v: %w", l.timeout, ratelimit.ErrUnavailable)
	case busy:
		return fmt.Errorf("failover: %d settlements are under way, and %d wait: %w",
			l.settler.calls, l.settler.waiting.Load(), ratelimit.ErrUnavailable)
	case shut:
		return errNotCalled
	case panicked:
		return fmt.Errorf("%w: %w", a.err, ratelimit.ErrUnavailable)
	}
	return a.err
}
