package failover

import (
	"context"
	"errors"
	"time"

	"github.com/weir-go/ratelimit"
	"github.com/weir-go/ratelimit/internal/reports"
	"github.com/weir-go/ratelimit/internal/wait"
)

// Wait spends cost of the key's budget and returns nil when its time has come. The call waits in the
// primary's Wait, so callers are served in the primary's order and follow its changes. If the primary
// has not answered for [Options.Timeout], Wait calls its Peek first. If the primary fails or the breaker
// opens, the call goes on in the stand-in's Wait. When the breaker closes, or after [Options.OpenFor] if
// it did not open, the call returns to the primary. Each time it goes behind the calls waiting there.
//
// Timeout does not bound the primary's Wait. If that hangs, the call goes on in the stand-in's Wait once the breaker opens.
// From a limiter without a Wait, the call reserves the cost as [ratelimit.Wait] does. Wait fails with the errors of the limiter
// in which it waits, and with the context's error when the context ends. A Wait that fails has spent nothing.
func (l *Limiter[K]) Wait(ctx context.Context, key K, cost int) error {
	l.mustBeMade()
	ctx = wait.OrBackground(ctx)
	primary, ok := l.primary.(ratelimit.Waiter[K])
	if !ok {
		return ratelimit.Wait(ctx, plain[K]{l}, key, cost)
	}
	w := l.waits.newCall(ctx)
	defer w.Over()
	for {
		if _, err := wait.Left(ctx); err != nil {
			return err
		}
		why, err := l.waitPrimary(w, primary, key, cost)
		if !why.instead() {
			return err
		}
		if anew, err := l.waitInstead(w, key, cost, why); !anew {
			return err
		}
	}
}

// plain is a limiter without a Wait of its own.
type plain[K any] struct{ ratelimit.Reserver[K] }

// waitPrimary waits in the primary's line. Its ending states whether the call goes on in the stand-in's.
func (l *Limiter[K]) waitPrimary(w *waitingCall, primary ratelimit.Waiter[K], key K, cost int) (ending, error) {
	if o := l.alive(w.Context, key); o != answered {
		return o, w.Context.Err()
	}
	era := w.enters(atPrimary)
	attempt := w.Begin()
	held := reports.With(attempt)
	a := guarded(held, func(ctx context.Context) answer { return answer{err: primary.Wait(ctx, key, cost)} })
	w.left()
	o := answered
	switch anew := attempt.End(a.err); {
	case anew:
		o = shut
	case a.panicked:
		o = panicked
	case a.err == nil:
	case w.Context.Err() != nil:
		o = gone
	case errors.Is(a.err, ratelimit.ErrUnavailable):
		o = unavailable
	default:
		o = refused
	}
	l.failed(o, a.err)
	l.breaker.settled(era, o.health())
	l.breaker.announce()
	if o.instead() {
		held.Drop()
		return o, nil
	}
	l.counters.count(o)
	held.Release()
	if o == answered {
		l.debts.repay()
	}
	return o, a.err
}

// waitInstead waits in the stand-in's line. It reports true if the primary may decide again.
func (l *Limiter[K]) waitInstead(w *waitingCall, key K, cost int, why ending) (anew bool, err error) {
	w.enters(atStandIn)
	attempt := w.Begin()
	standIn, ok := l.instead.(ratelimit.Waiter[K])
	if !ok { // each of the tries is a decision of its own
		err = ratelimit.Wait(attempt, tries[K]{l, w}, key, cost)
		w.left()
		return attempt.End(err), err
	}
	l.journal.degraded(why)
	held := reports.With(attempt)
	err = standIn.Wait(l.debts.within(held, why), key, cost)
	w.left()
	if attempt.End(err) {
		held.Drop()
		return true, nil
	}
	if errors.Is(err, ratelimit.ErrExceedsLimit) && !l.exceeds(err, cost) { // only the primary might allow the cost
		held.Drop()
		err = wait.Sleep(w.Context, l.openFor)
		return err == nil, err
	}
	held.Release()
	l.counters.instead.Add(1)
	a := answer{decision: ratelimit.Decision{Allowed: true, Limit: only(ratelimit.Describe(l.instead).Limits)}, err: err}
	l.debts.charged(key, cost, why, &a)
	return false, err
}

// tries is the Limiter for a call whose stand-in has no Wait: the call reserves and tries again. If the
// primary has denied a try, Reserve ends the attempt, and the call then waits in the primary's line.
type tries[K any] struct {
	ratelimit.Reserver[K]
	call *waitingCall
}

func (t tries[K]) Reserve(ctx context.Context, key K, cost int, maxDelay time.Duration) (*ratelimit.Reservation, error) {
	r, err := t.Reserver.Reserve(ctx, key, cost, maxDelay)
	switch {
	case err != nil:
	case !r.Allowed && !r.Degraded:
		t.call.Anew()
		err = context.Canceled
	case r.Allowed && r.Degraded && r.Delay == 0:
		err = r.Settle(cost) // so that the debt is recorded, since the call ends here
	}
	return r, err
}

// alive returns answered if the primary decides now and has answered in the last Timeout. Otherwise
// it calls Peek, at most once at a time for all calls, and returns why the stand-in has to decide.
func (l *Limiter[K]) alive(ctx context.Context, key K) ending {
	if decides, tries := l.breaker.decides(l.timeout); decides {
		return answered
	} else if !tries {
		return shut
	}
	p := l.waits.peek(func() ending {
		_, o := l.callPrimary(noContext, question[K]{key: key, call: func(ctx context.Context, primary ratelimit.Reserver[K]) answer {
			_, err := ratelimit.Peek(ctx, ratelimit.Limiter[K](primary), key, 0)
			return answer{err: err}
		}})
		l.breaker.announce()
		return o
	})
	select {
	case <-p.done:
	case <-ctx.Done():
		return gone
	}
	switch o := p.ending; {
	case o == shut, o == busy:
		return o
	case o.instead():
		return unavailable // a Peek has charged nothing, however it failed
	}
	if l.breaker.standing().state != StateClosed {
		return shut
	}
	return answered
}
