// Package failover decides what happens while a limiter cannot decide: its store is
// down, slow, full or loading.
//
//	shared, err := redislimit.New(client, ratelimit.TokenBucket(ratelimit.PerSecond(800), 800), &redislimit.Options{Name: "api"})
//	…
//	local, err := ratelimit.New[string](ratelimit.TokenBucket(ratelimit.PerSecond(100), 100), nil) // one of eight nodes
//	…
//	limiter, err := failover.New[string](shared, local, nil)
//
// A [Limiter] asks the primary. When that fails, the caller is answered at once by what
// stands in: a local limiter with a share of the limit (fail static, the usual choice),
// [AllowAll] or [DenyAll]. No caller sees an error because of the primary. Every Decision by what
// stands in has Degraded set.
//
// While the primary fails, a breaker is open: the primary is not asked, until one decision at a time
// probes it after [Options.OpenFor]. The breaker only saves the calls that would fail. One state is
// shared by all keys; several primaries, such as shards, take several Limiters.
//
// # What is a failure
//
// An error for which errors.Is(err, ratelimit.ErrUnavailable), no answer within
// [Options.Timeout], a panic. Errors about the call, such as ErrExceedsLimit, are answers: they are
// passed on, and tell the breaker nothing. A failure of a settlement counts too.
//
// Load is no failure. At most [Options.MaxCalls] calls are under way, and other callers wait for their
// turn. A caller waits no longer than Timeout in all; then what stands in answers. A caller that never
// had its turn tells the breaker nothing. While the breaker is not closed, nobody waits for a turn: the
// probe needs none, and all others are answered at once.
//
// The caller's context ends the waiting, not the call: that runs on for its full Timeout, and what
// it comes to is judged. A caller whose deadline has passed is answered by what stands in; one
// that is cancelled gets its context's error. A reservation that arrives too late is cancelled. A
// Take that arrives too late stays charged. So each failure may have charged the primary; none has
// charged it twice.
//
// # When the breaker opens
//
// It judges a window of 1 s, or of twice Timeout if that is longer. It opens when [Options.Failures]
// failures or more are in the window, and they are at least half of all its results; so a pause of a
// store that is asked often does not open it, and a store that fails every second call does. It
// also opens when Failures calls in a row have failed, over a window or more, which is what
// happens where there is little traffic. A result counts only in the state in which its call began.
//
// # The bound
//
// A window with one outage in it admits at most the shared limit, plus nodes × the
// local limit, plus the shared limit once more for each time that the store has lost its
// data.
//
// A local limiter that was not used for some time is fresh. So an outage begins with a burst of
// nodes × the local burst, whatever was spent of the shared limit before it. Give the local limiter
// a rate of rate/nodes, and a burst of no more than is needed: with rate/nodes × 1 s, the
// first second of an outage admits what two seconds of the shared limit do. If even that is too much,
// choose a local burst of 1 or a leaky bucket.
//
// A cost above the stand-in's capacity, but not above that of the primary, is denied with a
// RetryAfter of OpenFor: it can pass once the primary is back. If it is above the capacity of one of the primary's
// layers, it is an ErrExceedsLimit. Layers that do not apply to the request do not count if what stands in is a
// ratelimit.Layered of the same layers, such as Local of package redislimit makes.
package failover

import (
	"context"
	"errors"
	"time"

	"github.com/weir-go/ratelimit"
	"github.com/weir-go/ratelimit/internal/failures"
	"github.com/weir-go/ratelimit/internal/nilcheck"
)

// noContext is for calls that no caller's context bounds.
var noContext = context.Background()

// Limiter asks a primary limiter, and another one while that cannot decide. Make one with
// [New]. It is safe for concurrent use. Each decision of the primary runs on a goroutine of
// its own, unless [Options.Timeout] is below zero; at most [Options.MaxCalls] and a probe are under way, and others
// wait for their turn. The zero Limiter cannot be used.
type Limiter[K any] struct {
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

// New returns a limiter that asks primary, and instead while that cannot decide. The
// error names the option and the figure if one is invalid, and tells if a limiter is
// nil.
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
		journal: &journal{log: o.logger(), told: o.OnStateChange},
	}
	l.breaker = newBreaker(o.Failures, o.Timeout, o.OpenFor, l.journal.changed, func() {
		l.caller.renew()
		l.settler.renew()
	})
	return l, nil
}

// AnswersLate reports true: a caller whose deadline has passed is answered at once, by what stands
// in. Package lease asks for it.
func (l *Limiter[K]) AnswersLate() bool { return true }

// State returns the state of the breaker, or the one it is forced into. An open one becomes
// half-open when its time has passed.
func (l *Limiter[K]) State() State {
	s := l.breaker.standing()
	l.breaker.announce()
	return s.state
}

// Force is for whoever is on call. StateOpen lets what stands in make all decisions, and
// StateClosed lets the primary make them, until Force is called again; a single failure is
// answered by what stands in all the same. StateHalfOpen lifts that: the breaker decides again, and
// if it was open it begins with a probe. Each call is logged.
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

// Limits returns the limits of the primary, if it tells them.
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

// Take spends cost of the key's budget, or nothing, and says how the key stands. If the
// primary fails, or does not answer before the context's deadline, the decision is that of what
// stands in, with Degraded set. The errors are those of the call, and the context's if it is
// cancelled.
func (l *Limiter[K]) Take(ctx context.Context, key K, cost int) (ratelimit.Decision, error) {
	a := l.decide(ctx, question[K]{cost: cost, ask: func(ctx context.Context, engine ratelimit.Reserver[K]) answer {
		d, err := engine.Take(ctx, key, cost)
		return answer{decision: d, err: err}
	}})
	return a.decision, a.err
}

// Reserve is Take, but it may book ahead by up to maxDelay, and what it charged can be
// corrected. A reservation is settled with the engine that made it, also when the state
// has changed since. Settling takes no longer than [Options.Timeout], and returns an
// error if the primary fails: then what was reserved may stay charged. While the breaker is not
// closed, a settlement is tried only if the last one has not failed; else it is an error at once.
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
	if r, ok := l.primary.(ratelimit.CostReplacer); ok && r.ReplacesCost() {
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
