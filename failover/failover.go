// Package failover decides while a limiter's store is down, slow, full or loading.
//
//	shared, err := redislimit.New(client, limit, &redislimit.Options{Name: "api"})
//	…
//	local, err := ratelimit.New[string](failover.Share(limit, 8), nil) // one of eight processes
//	…
//	limiter, err := failover.New[string](shared, local, nil)
//
// A [Limiter] asks the primary. If that fails, the stand-in answers at once, and the Decision has Degraded set: no
// caller sees an error of the store. While the primary fails, a breaker is open: one decision at a time probes it,
// after [Options.OpenFor]. All keys share one breaker.
//
// # What is a failure
//
// An error that wraps [ratelimit.ErrUnavailable], no answer within [Options.Timeout], a panic. Other errors are
// answers. Load is no failure: a caller who gets no turn within Timeout is answered by the stand-in.
//
// A caller whose deadline passes is answered by the stand-in. The call runs on for its Timeout: a reservation that
// arrives too late is cancelled, a Take stays charged.
//
// # When the breaker opens
//
// At [Options.Failures] failures that are at least half of the results in a window of 1 s, or of twice Timeout if
// that is longer; or at as many in a row over a window or more.
//
// # The bound
//
// A window with one outage in it admits at most the shared limit, plus processes × the local limit, plus the shared
// limit for each time that the store has lost its data. An outage begins with a burst of processes × the local burst:
// keep that small.
//
// A cost above the stand-in's capacity but not the primary's is denied with a RetryAfter of OpenFor.
package failover

import (
	"context"
	"errors"
	"time"

	"github.com/weir-go/ratelimit"
	"github.com/weir-go/ratelimit/internal/failures"
	"github.com/weir-go/ratelimit/internal/nilcheck"
	"github.com/weir-go/ratelimit/internal/optional"
)

// noContext is for calls that no caller's context bounds.
var noContext = context.Background()

// late lets package lease find out that a caller whose deadline has passed is answered at once.
//
//lint:ignore U1000 It is found by failures.AnswersLate.
type late = failures.Late

// Limiter asks a primary limiter, and a stand-in while that cannot decide. Make one with [New]. It is safe for
// concurrent use. The zero Limiter cannot be used.
type Limiter[K any] struct {
	//lint:ignore U1000 It is found by failures.AnswersLate.
	late
	primary  ratelimit.Reserver[K]
	instead  ratelimit.Reserver[K]
	timeout  time.Duration
	openFor  time.Duration
	caller   *caller // of decisions
	settler  *caller // of settlements, which must not take the decisions' place
	breaker  *breaker
	journal  *journal
	counters counters
}

var _ ratelimit.Reserver[string] = (*Limiter[string])(nil)

// New returns a limiter that asks primary, and instead while that cannot decide. It is an error if one of them is nil
// or an option is invalid. Nil options are the defaults.
func New[K any](primary, instead ratelimit.Reserver[K], opts *Options) (*Limiter[K], error) {
	switch {
	case nilcheck.IsNil(primary):
		return nil, errors.New("failover: the primary limiter is nil")
	case nilcheck.IsNil(instead):
		return nil, errors.New("failover: the limiter that stands in is nil: use AllowAll, DenyAll or a local limiter")
	}
	if opts == nil {
		opts = new(Options)
	}
	o, err := opts.withDefaults()
	if err != nil {
		return nil, err
	}
	l := &Limiter[K]{
		primary: primary,
		instead: instead,
		timeout: o.Timeout,
		openFor: o.OpenFor,
		caller:  newCaller(o.Timeout, o.MaxCalls, 0),
		settler: newCaller(o.Timeout, o.MaxCalls, settlementsPerCall*int64(o.MaxCalls)),
		journal: &journal{log: o.logger(), onStateChange: o.OnStateChange},
	}
	l.breaker = newBreaker(o.Failures, o.Timeout, o.OpenFor, l.journal.changed, func() {
		l.caller.renew()
		l.settler.renew()
	})
	return l, nil
}

// State returns the state of the breaker, or the one that it is forced into.
func (l *Limiter[K]) State() State {
	s := l.breaker.standing()
	l.breaker.announce()
	return s.state
}

// Force makes the stand-in (StateOpen) or the primary (StateClosed) decide until it is called again; a single failure
// is answered by the stand-in all the same. StateHalfOpen lifts that. Each call is logged.
func (l *Limiter[K]) Force(to State) {
	l.breaker.force(to)
	l.journal.force(to)
	l.breaker.announce()
}

// Stats returns the counters.
func (l *Limiter[K]) Stats() Stats {
	s := l.counters.report(l.breaker.standing())
	s.Settling = int(l.settler.waiting.Load())
	l.breaker.announce()
	return s
}

// Limits returns the limits of the primary, nil if it has no method Limits.
func (l *Limiter[K]) Limits() []ratelimit.Limit {
	if r, ok := l.primary.(ratelimit.LimitLister); ok {
		return r.Limits()
	}
	return nil
}

// Allow is Take, and reports only whether the cost was spent.
func (l *Limiter[K]) Allow(key K, cost int) bool {
	d, err := l.Take(noContext, key, cost)
	return err == nil && d.Allowed
}

// Take spends cost of the key's budget, or nothing. The errors are those about the call, and the context's if it is
// cancelled.
func (l *Limiter[K]) Take(ctx context.Context, key K, cost int) (ratelimit.Decision, error) {
	a := l.decide(ctx, question[K]{cost: cost, ask: func(ctx context.Context, engine ratelimit.Reserver[K]) answer {
		d, err := engine.Take(ctx, key, cost)
		return answer{decision: d, err: err}
	}})
	return a.decision, a.err
}

// Reserve is Take with a charge that can be corrected, and may book up to maxDelay ahead; 0 means now or not at all.
// The limiter that decided settles it. If the primary fails to settle within [Options.Timeout], or fails already,
// Settle returns an error, and the cost may stay charged.
func (l *Limiter[K]) Reserve(ctx context.Context, key K, cost int, maxDelay time.Duration) (*ratelimit.Reservation, error) {
	a := l.decide(ctx, question[K]{cost: cost, late: giveBack, ask: func(ctx context.Context, engine ratelimit.Reserver[K]) answer {
		res, err := engine.Reserve(ctx, key, cost, maxDelay)
		if res == nil {
			res = new(ratelimit.Reservation)
		}
		return answer{decision: res.Decision, res: res, err: err}
	}})
	return ratelimit.NewReservation(a.decision, l.settling(a)), a.err
}

// giveBack cancels a reservation that nobody has waited for.
func giveBack(a answer) {
	if a.err == nil {
		_ = a.res.Cancel() // it stays charged: there is nobody to tell
	}
}

// question asks an engine for a decision.
type question[K any] struct {
	cost int
	ask  func(ctx context.Context, engine ratelimit.Reserver[K]) answer
	late func(answer) // what to do with an answer that nobody has waited for; may be nil
}

// decide asks the primary, if the breaker lets it, and else what stands in.
func (l *Limiter[K]) decide(ctx context.Context, q question[K]) answer {
	if ctx == nil {
		ctx = noContext
	}
	if failures.Noted(ctx, l) {
		return l.degrade(ctx, q, shut)
	}
	a, o := l.askPrimary(ctx, q)
	l.breaker.announce()
	l.counters.count(o)
	if o.instead() {
		failures.Note(ctx, l)
		return l.degrade(ctx, q, o)
	}
	return a
}

// askPrimary lets the primary decide, if the breaker lets it.
func (l *Limiter[K]) askPrimary(ctx context.Context, q question[K]) (answer, outcome) {
	var t ticket
	j := job{
		f:    func(ctx context.Context) answer { return q.ask(ctx, l.primary) },
		late: q.late,
		begin: func(turn bool) (e entry, shut <-chan struct{}) {
			t, e, shut = l.breaker.enter(turn)
			return e, shut
		},
		judge: func(o outcome, err error) {
			l.failed(o, err)
			l.breaker.done(t, o.health())
		},
		announce: l.breaker.announce,
	}
	if l.timeout >= 0 {
		return l.caller.call(ctx, j)
	}
	if e, _ := j.begin(true); e != entered {
		return answer{}, shut
	}
	a := guarded(ctx, j.f)
	o := judgeBy(ctx, a)
	j.judge(o, a.err)
	return a, o
}

// failed takes note of a call's failure, if it is one.
func (l *Limiter[K]) failed(o outcome, err error) {
	if o.health() == failure {
		l.counters.failed(o)
		l.journal.failure(o, err)
	}
}

// degrade lets what stands in decide, for want of the primary.
func (l *Limiter[K]) degrade(ctx context.Context, q question[K], why outcome) answer {
	l.counters.instead.Add(1)
	l.journal.degraded(why)
	a := q.ask(ctx, l.instead)
	a.standIn, a.decision.Degraded = true, true
	if errors.Is(a.err, ratelimit.ErrExceedsLimit) && !l.exceeds(a.err, q.cost) {
		a.err = nil
		a.decision.Allowed, a.decision.RetryAfter = false, l.openFor
	}
	if a.decision.Limit == (ratelimit.Limit{}) {
		a.decision.Limit = only(l.Limits())
	}
	return a
}

// exceeds reports whether a cost is known to be above what the primary can ever allow, when it is above
// what stands in can: err says so. A stack of the same layers knows which of them apply, at which cost.
func (l *Limiter[K]) exceeds(err error, cost int) (exceeds bool) {
	limits := l.Limits()
	above := func(limit, cost int) {
		exceeds = exceeds || limits[limit].Algorithm != 0 && cost > limits[limit].Capacity()
	}
	var layers interface {
		EachOverrun(f func(limit, cost int))
	}
	if stack, ok := l.instead.(*ratelimit.Layered[K]); ok && len(stack.Limits()) == len(limits) && errors.As(err, &layers) {
		layers.EachOverrun(above)
		return exceeds
	}
	if optional.ReplacesCost(l.primary) {
		return false
	}
	for i := range limits {
		above(i, cost)
	}
	return exceeds
}

// only returns the limit if it is the only one, and else the zero Limit.
func only(limits []ratelimit.Limit) (limit ratelimit.Limit) {
	if len(limits) == 1 {
		limit = limits[0]
	}
	return limit
}
