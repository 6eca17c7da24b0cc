// Package failover decides while a limiter's store is down, slow, full or loading.
//
//	limiter, err := failover.New[string](shared, local, nil)
//
// A [Limiter] lets the primary decide. If the primary fails, the stand-in decides, and the Decision is Degraded. While the
// primary keeps failing, a breaker for all keys is open. After [Options.OpenFor], one decision at a time probes the primary.
//
// The primary fails if its error wraps [ratelimit.ErrUnavailable], if it does not answer within [Options.Timeout], or if
// it panics. Other errors are answers. A caller whose own deadline passes gets the stand-in's answer, and its running
// Take stays charged. Each request is reported once to OnDecision: by the deciding limiter. [Stats] counts the failures.
//
// After an outage, the primary is charged with the stand-in's spending, as far as it still counts
// under the stand-in's limits. The primary must have one limit and an Adjust, and keys must be values,
// not requests. Timed out calls are not charged, nor are unsettled reservations. A stand-in may charge
// the primary itself, as package policy's does. If it has a method Repay(context.Context) error,
// failover calls it after the primary's decisions, at most once a second, until it returns nil.
//
// https://github.com/weir-go/ratelimit/blob/main/docs/fleet.md describes when the breaker opens, and how much an outage admits.
package failover

import (
	"context"
	"errors"
	"time"

	"github.com/weir-go/ratelimit"
	"github.com/weir-go/ratelimit/internal/failures"
	"github.com/weir-go/ratelimit/internal/follow"
	"github.com/weir-go/ratelimit/internal/held"
	"github.com/weir-go/ratelimit/internal/optional"
	"github.com/weir-go/ratelimit/internal/reports"
)

// noContext is the context of calls without a caller's context.
var noContext = context.Background()

// late marks a limiter: it answers at once although its caller's deadline has passed. Package lease looks for the mark.
//
//lint:ignore U1000 failures.AnswersLate finds it.
type late = failures.Late

// Limiter decides by a primary limiter and, if it fails, by a stand-in. Make one
// with [New]. It is safe for concurrent use. The zero Limiter cannot be used.
type Limiter[K any] struct {
	//lint:ignore U1000 failures.AnswersLate finds it.
	late
	primary  ratelimit.Reserver[K]
	instead  ratelimit.Reserver[K]
	timeout  time.Duration
	openFor  time.Duration
	caller   *caller // for decisions
	settler  *caller // for settlements: they must not use up decisions' turns
	breaker  *breaker
	journal  *journal
	counters counters
	debts    *debts[K]
	waits    waits
}

var (
	_ ratelimit.Reserver[string] = (*Limiter[string])(nil)
	_ ratelimit.Waiter[string]   = (*Limiter[string])(nil)
)

// New returns a limiter that decides by primary, and by instead while primary
// cannot decide. It returns an error if one is nil or an option is invalid.
func New[K any](primary, instead ratelimit.Reserver[K], opts *Options) (*Limiter[K], error) {
	switch {
	case optional.IsNil(primary):
		return nil, optional.Nil("failover: New: primary")
	case optional.IsNil(instead):
		return nil, optional.Nil("failover: New: instead")
	}
	if opts == nil {
		opts = new(Options)
	}
	o, err := opts.withDefaults()
	if err != nil {
		return nil, err
	}
	window := max(time.Second, times(2, o.Timeout))
	l := &Limiter[K]{
		primary: primary,
		instead: instead,
		timeout: o.Timeout,
		openFor: o.OpenFor,
		caller:  newCaller(o.Timeout, window, o.MaxCalls, 0),
		settler: newCaller(o.Timeout, window, o.MaxCalls, settlementsPerCall*int64(o.MaxCalls)),
		journal: &journal{log: o.logger(), onStateChange: o.OnStateChange},
	}
	l.debts = newDebts(primary, instead, &o)
	l.breaker = newBreaker(o.Failures, window, o.OpenFor, l.changed, func() {
		l.caller.renew(0)
		l.settler.renew(0)
	})
	l.waits.standing, l.waits.stay = l.breaker.standing, o.OpenFor
	return l, nil
}

// changed passes on a change of the breaker's state, to the waiting calls before the user.
func (l *Limiter[K]) changed(c change) {
	l.waits.changed()
	l.journal.changed(c)
}

// Force overrides the breaker: StateOpen makes the stand-in decide, StateClosed the primary, and
// StateHalfOpen ends the override. In any state the stand-in decides on calls if the primary fails at them.
func (l *Limiter[K]) Force(to State) {
	l.mustBeMade()
	l.breaker.force(to)
	l.journal.force(to)
	l.breaker.announce()
}

// Stats returns the counts.
func (l *Limiter[K]) Stats() Stats {
	l.mustBeMade()
	s := l.counters.report(l.breaker.standing())
	s.Settling = int(l.settler.waiting.Load())
	l.breaker.announce()
	return s
}

// Describe returns the primary's limits, or nil if they are not known.
// BooksAhead and ReplacesCost are true if they are for either limiter.
func (l *Limiter[K]) Describe() ratelimit.Description {
	l.mustBeMade()
	d, instead := ratelimit.Describe(l.primary), ratelimit.Describe(l.instead)
	d.BooksAhead = d.BooksAhead || instead.BooksAhead
	d.ReplacesCost, d.Holds = d.ReplacesCost || instead.ReplacesCost, d.Holds || instead.Holds
	return d
}

// Allow is Take without details. An error counts as false.
func (l *Limiter[K]) Allow(key K, cost int) bool {
	d, err := l.Take(noContext, key, cost)
	return err == nil && d.Allowed
}

// Take spends cost of the key's budget, or nothing. It returns the primary's
// errors about the call, and the context's error if the context is cancelled.
func (l *Limiter[K]) Take(ctx context.Context, key K, cost int) (ratelimit.Decision, error) {
	a := l.decide(ctx, question[K]{key: key, cost: cost, charges: true, call: func(ctx context.Context, engine ratelimit.Reserver[K]) answer {
		d, err := engine.Take(ctx, key, cost)
		return answer{decision: d, err: err}
	}})
	return a.decision, a.err
}

// Reserve is like Take, but returns a charge that can be corrected. It may book up to maxDelay ahead; 0 means now
// or not at all. If the primary cannot settle in time, Settle returns an error, and the cost may stay charged.
func (l *Limiter[K]) Reserve(ctx context.Context, key K, cost int, maxDelay time.Duration) (*ratelimit.Reservation, error) {
	a := l.decide(ctx, question[K]{key: key, cost: cost, charges: true, late: giveBack, call: func(ctx context.Context, engine ratelimit.Reserver[K]) answer {
		res, err := engine.Reserve(ctx, key, cost, maxDelay)
		if res == nil {
			res = new(ratelimit.Reservation)
		}
		return answer{decision: res.Decision, res: res, err: err}
	}})
	r := ratelimit.NewReservation(a.decision, l.settling(a))
	if a.res != nil && a.err == nil {
		follow.Inner(r, a.res)
		held.Follow(r, l.extending(a), a.res)
	}
	return r, a.err
}

// giveBack cancels a reservation without a waiting caller.
func giveBack(a answer) {
	if a.err == nil {
		_ = a.res.Cancel() // after an error the cost stays charged, and no caller is left for the error
	}
}

// question is an engine's decision to make.
type question[K any] struct {
	key     K
	cost    int
	charges bool // whether it charges the cost; false for Peek
	call    func(ctx context.Context, engine ratelimit.Reserver[K]) answer
	late    func(answer) // handles an answer without a waiting caller; may be nil
}

// decide calls the primary, if the breaker permits it, and otherwise the stand-in.
func (l *Limiter[K]) decide(ctx context.Context, q question[K]) answer {
	if ctx == nil {
		ctx = noContext
	}
	if failures.Noted(ctx, l) {
		return l.degrade(ctx, q, shut)
	}
	held := reports.With(ctx)
	a, o := l.callPrimary(held, q)
	l.breaker.announce()
	l.counters.count(o)
	if o.instead() {
		held.Drop()
		failures.Note(ctx, l)
		return l.degrade(ctx, q, o)
	}
	held.Release()
	if o == answered {
		l.debts.repay()
	}
	return a
}

func (l *Limiter[K]) mustBeMade() {
	if l == nil || l.breaker == nil {
		panic(optional.Zero("failover", "Limiter", "New"))
	}
}

// callPrimary lets the primary decide, if the breaker permits it. It panics for the zero Limiter.
func (l *Limiter[K]) callPrimary(ctx context.Context, q question[K]) (answer, ending) {
	l.mustBeMade()
	var t ticket
	j := job{
		f:    func(ctx context.Context) answer { return q.call(ctx, l.primary) },
		late: q.late,
		begin: func(turn bool) (a admission, shut <-chan struct{}) {
			t, a, shut = l.breaker.enter(turn)
			return a, shut
		},
		judge: func(o ending, err error) {
			l.failed(o, err)
			l.breaker.done(t, o.health())
		},
		announce: l.breaker.announce,
	}
	if l.timeout >= 0 {
		return l.caller.call(ctx, j)
	}
	if got, _ := j.begin(true); got != admitted {
		return answer{}, shut
	}
	a := guarded(ctx, j.f)
	o := judgeBy(ctx, a)
	j.judge(o, a.err)
	return a, o
}

// failed records an ending if it is a failure.
func (l *Limiter[K]) failed(o ending, err error) {
	if o.health() == failure {
		l.counters.failed(o)
		l.journal.failure(o, err)
	}
}

// degrade lets the stand-in decide, because the primary has not decided.
func (l *Limiter[K]) degrade(ctx context.Context, q question[K], why ending) answer {
	l.counters.instead.Add(1)
	l.journal.degraded(why)
	a := q.call(l.debts.within(ctx, why), l.instead)
	a.standIn, a.decision.Degraded = true, true
	if q.charges {
		l.debts.charged(q.key, q.cost, why, &a)
	}
	if errors.Is(a.err, ratelimit.ErrExceedsLimit) && !l.exceeds(a.err, q.cost) {
		a.err = nil
		a.decision.Allowed, a.decision.RetryAfter = false, l.openFor
	}
	if a.decision.Limit == (ratelimit.Limit{}) {
		a.decision.Limit = only(ratelimit.Describe(l.primary).Limits)
	}
	return a
}

// exceeds reports whether the primary, too, would refuse a cost, given that it was too large for the stand-in. err
// is the stand-in's error. If both are stacks of the same layers, err names the applying layers, and their costs.
func (l *Limiter[K]) exceeds(err error, cost int) (exceeds bool) {
	primary := ratelimit.Describe(l.primary)
	limits := primary.Limits
	above := func(limit, cost int) {
		exceeds = exceeds || limits[limit].Algorithm != 0 && cost > limits[limit].Capacity()
	}
	var layers interface {
		EachOverrun(f func(limit, cost int))
	}
	if stack, ok := l.instead.(*ratelimit.Layered[K]); ok && len(stack.Describe().Limits) == len(limits) && errors.As(err, &layers) {
		layers.EachOverrun(above)
		return exceeds
	}
	if primary.ReplacesCost {
		return false
	}
	for i := range limits {
		above(i, cost)
	}
	return exceeds
}

// only returns the limit if there is exactly one, and otherwise the zero Limit.
func only(limits []ratelimit.Limit) (limit ratelimit.Limit) {
	if len(limits) == 1 {
		limit = limits[0]
	}
	return limit
}
