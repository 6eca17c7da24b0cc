// Package failover decides what happens while a limiter cannot decide: its store is
// down, slow, full or loading.
//
//	shared, err := redislimit.New(client, ratelimit.TokenBucket(ratelimit.PerSecond(800), 800), nil)
//	…
//	local, err := ratelimit.New[string](ratelimit.TokenBucket(ratelimit.PerSecond(100), 100), nil) // one of eight nodes
//	…
//	limiter, err := failover.New[string](shared, local, nil)
//
// A [Limiter] asks the primary. When that fails, the caller is answered at once by what
// stands in: a local limiter with a share of the limit (fail static, the usual choice),
// [AllowAll] or [DenyAll]. No caller sees an error. After [Options.Failures] failures in a row a
// breaker opens (github.com/sony/gobreaker): the primary is not asked any more, until one
// decision at a time probes it after [Options.OpenFor]. The breaker only saves the calls
// that would fail. One state is shared by all keys; several primaries, such as shards,
// take several Limiters.
//
// Every Decision by what stands in has Degraded set.
//
// # What is a failure
//
// An error for which errors.Is(err, ratelimit.ErrUnavailable), no answer within
// [Options.Timeout], a panic. The end of the caller's own context and errors about the
// call, such as ErrExceedsLimit, are answers: they are passed on, and tell the breaker nothing.
// Each failure may have charged the primary; none has charged it twice. A reservation that
// arrives too late is cancelled. A Take that arrives too late stays charged.
//
// # The bound
//
// A window with one outage in it admits at most the shared limit, plus nodes × the
// local limit, plus the shared limit once more for each time that the store has lost its
// data. A local limiter is fresh when an outage begins, if the last one was long ago: so
// give it a burst of about capacity/nodes and a rate of rate/nodes.
//
// A cost above the stand-in's capacity, but not above that of the primary, is denied with a
// RetryAfter of OpenFor: it can pass once the primary is back.
package failover

import (
	"context"
	"errors"
	"fmt"
	"reflect"
	"time"

	"github.com/weir-go/ratelimit"
	"github.com/weir-go/ratelimit/internal/failures"
)

// noContext is for calls that no caller's context bounds.
var noContext = context.Background()

// Limiter asks a primary limiter, and another one while that cannot decide. Make one with
// [New]. It is safe for concurrent use. Each decision of the primary runs on a goroutine of
// its own, unless [Options.Timeout] is below zero; at most 128 are under way, and beyond that what
// stands in answers at once. The zero Limiter cannot be used.
type Limiter[K any] struct {
	primary  ratelimit.Reserver[K]
	instead  ratelimit.Reserver[K]
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
	case isNil(primary):
		return nil, errors.New("failover: the primary limiter is nil")
	case isNil(instead):
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
		openFor: o.OpenFor,
		caller:  newCaller(o.Timeout),
		settler: newCaller(o.Timeout),
		journal: &journal{log: o.logger()},
	}
	l.breaker = newBreaker(o.Failures, o.OpenFor, func(c change) {
		l.journal.changed(c)
		if o.OnStateChange != nil {
			o.OnStateChange(c.from, c.to)
		}
	})
	return l, nil
}

// isNil reports whether a limiter is nil, or an interface that holds a nil pointer.
func isNil(l any) bool {
	if l == nil {
		return true
	}
	v := reflect.ValueOf(l)
	return v.Kind() == reflect.Pointer && v.IsNil()
}

// State returns the state of the breaker. An open one becomes half-open when its time
// has passed.
func (l *Limiter[K]) State() State { return l.breaker.state() }

// Stats returns the counters.
func (l *Limiter[K]) Stats() Stats { return l.counters.report(l.breaker.opened.Load()) }

// Limits returns the limits of the primary, if it tells them.
func (l *Limiter[K]) Limits() []ratelimit.Limit {
	if r, ok := l.primary.(interface{ Limits() []ratelimit.Limit }); ok {
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
// primary fails, the decision is that of what stands in, with Degraded set. The errors are those
// of the call, and of the context.
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
// error if the primary fails: then what was reserved may stay charged.
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

// settling returns how to settle a reservation with the engine that made it.
func (l *Limiter[K]) settling(a answer) func(actual int) error {
	switch {
	case a.res == nil:
		return nil
	case a.standIn:
		return a.res.Settle
	}
	return func(actual int) error { return l.settle(a.res, actual) }
}

// settle settles a reservation of the primary, within the timeout.
func (l *Limiter[K]) settle(res *ratelimit.Reservation, actual int) error {
	a, o := l.settler.call(noContext, func(context.Context) answer {
		return answer{err: res.Settle(actual)}
	}, nil)
	switch o {
	case answered:
		return nil
	case overdue:
		return fmt.Errorf("failover: the primary did not settle within %v: %w", l.settler.timeout, ratelimit.ErrUnavailable)
	case busy:
		return fmt.Errorf("failover: %d settlements are under way: %w", maxUnderWay, ratelimit.ErrUnavailable)
	case panicked:
		return fmt.Errorf("%w: %w", a.err, ratelimit.ErrUnavailable)
	}
	return a.err
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
		return l.degrade(ctx, q, answered, nil)
	}
	done, ok := l.breaker.enter()
	if !ok {
		return l.degrade(ctx, q, answered, nil)
	}
	a, o := l.caller.call(ctx, func(ctx context.Context) answer { return q.ask(ctx, l.primary) }, q.late)
	done(o.health())
	l.breaker.announce()
	l.counters.count(o)
	if o.instead() {
		failures.Note(ctx, l)
		return l.degrade(ctx, q, o, a.err)
	}
	return a
}

// degrade lets what stands in decide.
func (l *Limiter[K]) degrade(ctx context.Context, q question[K], o outcome, cause error) answer {
	l.counters.instead.Add(1)
	l.journal.degraded(o, cause)
	a := q.ask(ctx, l.instead)
	a.standIn, a.decision.Degraded = true, true
	if errors.Is(a.err, ratelimit.ErrExceedsLimit) && !exceeds(l.Limits(), q.cost) {
		a.err = nil
		a.decision.Allowed, a.decision.RetryAfter = false, l.openFor
	}
	if a.decision.Limit == (ratelimit.Limit{}) {
		a.decision.Limit = only(l.Limits())
	}
	return a
}

// exceeds reports whether a cost is known to be above what these limits can ever allow.
func exceeds(limits []ratelimit.Limit, cost int) bool {
	for _, limit := range limits {
		if limit.Algorithm == 0 || cost <= limit.Capacity() {
			return false
		}
	}
	return len(limits) > 0
}

// only returns the limit if it is the only one, and else the zero Limit.
func only(limits []ratelimit.Limit) (limit ratelimit.Limit) {
	if len(limits) == 1 {
		limit = limits[0]
	}
	return limit
}
