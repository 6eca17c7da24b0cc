package ratelimit

import (
	"context"
	"errors"
	"fmt"
	"reflect"
	"sync"
	"time"
	"unsafe"

	"github.com/weir-go/ratelimit/internal/ctxwait"
)

// Layered is several limits on one request: all of them allow it, or none is
// charged. Make one with [All] or [AllOf]. It is safe for concurrent use, and several of them
// may share limiters in any order, or hold one twice.
//
// A decision is made under the locks of all the keys, at one reading of the clock. So a
// denial charges nothing anywhere, not even for an instant that another goroutine could
// see. What several layers charge to one key of one limiter adds up before it is checked.
//
// In the [Decision], Remaining is the largest cost that the whole stack would take;
// RetryAfter, ResetAfter and Delay are the longest of all layers. Limit is that of the
// layer that binds: if denied, the one with the longest RetryAfter; if allowed, the one
// that leaves the least. Of layers that are equal in that, the one with the longer
// ResetAfter binds, then the one that comes first. If no layer applies, the request is
// allowed, by [Unlimited]. An [ErrExceedsLimit] names the layer's limit, and Limit is that.
//
// The zero Layered cannot be used: its methods panic.
type Layered[R any] struct {
	layers []Layer[R]
	pick   func(R, []int) []int // which layers apply; nil for all
	clock  Clock
	stacks sync.Pool // of *stack[R]: what one decision needs, so that it allocates nothing

	enforcing []Layer[R] // those that are no shadows
	replaces  bool       // one has a cost of its own
}

var _ Reserver[string] = (*Layered[string])(nil)

// All returns the limiter that holds requests to all the layers. It is an error if
// there are none, if one is nil, or if their limiters have different clocks.
func All[R any](layers ...Layer[R]) (*Layered[R], error) { return newLayered("All", nil, layers) }

// AllOf is [All] for requests to which only some of many layers apply. For each request, pick
// appends the indices of its layers to the slice which, and returns that slice. A decision takes
// as long as one of the layers that were picked, however many others there are.
//
// The decision is that of a stack of these layers, in pick's order; a layer that is picked twice
// counts once. If none is picked, the request is allowed, by [Unlimited]. An index that is
// out of range is an error that denies the request and charges nothing. The function
// runs once for each decision, outside every lock. It must not keep which.
func AllOf[R any](pick func(r R, which []int) []int, layers ...Layer[R]) (*Layered[R], error) {
	if pick == nil {
		return nil, errors.New("ratelimit: AllOf needs a function that picks layers")
	}
	return newLayered("AllOf", pick, layers)
}

func newLayered[R any](maker string, pick func(R, []int) []int, layers []Layer[R]) (*Layered[R], error) {
	if len(layers) == 0 {
		return nil, fmt.Errorf("ratelimit: %s needs at least one layer", maker)
	}
	l := &Layered[R]{layers: append([]Layer[R](nil), layers...), pick: pick}
	places := make([]int, len(layers))
	for i, layer := range layers {
		if layer == nil {
			return nil, fmt.Errorf("ratelimit: layer %d is nil", i)
		}
		clock, _, err := layer.limiter()
		switch {
		case err != nil:
			return nil, fmt.Errorf("ratelimit: layer %d: %w", i, err)
		case i == 0:
			l.clock = clock
		case !sameClock(l.clock, clock):
			return nil, fmt.Errorf("ratelimit: layer %d has another clock than layer 0", i)
		}
		places[i] = len(l.enforcing)
		var m member[R]
		if layer.join(&m); !m.shadow {
			l.enforcing = append(l.enforcing, layer)
		}
		l.replaces = l.replaces || m.cost != nil
	}
	l.stacks.New = func() any { return newStack(l.layers, places, l.pick, l.clock) }
	return l, nil
}

// sameClock reports whether two clocks are one. A clock that cannot be compared, such as a
// function, is the same if both are copies of one interface value: these have the same two words,
// the type and a pointer to data that the interface never changes. So a limiter has the same
// clock as itself, and as one that was made with the same Options.
func sameClock(a, b Clock) bool {
	type words [2]uintptr
	if *(*words)(unsafe.Pointer(&a)) == *(*words)(unsafe.Pointer(&b)) {
		return true
	}
	return reflect.ValueOf(a).Comparable() && a == b
}

// Limits returns the limit of each layer that is no [Shadow], in order: New's or SetLimit's, or the
// zero Limit where [WithLimit] or [Options.LimitFor] gives each request or key its own.
func (l *Layered[R]) Limits() []Limit {
	l.check()
	limits := make([]Limit, len(l.enforcing))
	for i, layer := range l.enforcing {
		_, limits[i], _ = layer.limiter()
	}
	return limits
}

// Allow charges the cost to all layers and reports true; or it charges none and
// reports false.
func (l *Layered[R]) Allow(r R, cost int) bool {
	s := l.stack()
	s.brief = true
	err := s.take(r, cost, take)
	s.report(r, err)
	ok := s.d.Allowed
	l.done(s)
	return ok
}

// Take charges the cost to all layers, or to none, and says how the stack stands.
// The errors are those of [Keyed.Take], and those of the layers' key functions,
// wrapped. The context is unused.
func (l *Layered[R]) Take(_ context.Context, r R, cost int) (d Decision, err error) {
	s := l.stack()
	err = s.take(r, cost, take)
	s.report(r, err)
	d = s.d
	l.done(s)
	return d, err
}

func (l *Layered[R]) stack() *stack[R] {
	l.check()
	return l.stacks.Get().(*stack[R])
}

// check panics for the zero Layered.
func (l *Layered[R]) check() {
	if l == nil || l.stacks.New == nil {
		panic("ratelimit: a Layered that was not made by All or AllOf")
	}
}

func (l *Layered[R]) done(s *stack[R]) {
	s.clear()
	l.stacks.Put(s)
}

// Peek says what Take would answer, and how the stack stands. It changes nothing
// and tracks nothing.
func (l *Layered[R]) Peek(r R, cost int) (d Decision, err error) {
	s := l.stack()
	if err = s.load(r, cost); err == nil {
		err = s.preview(peek)
	}
	d = s.d
	l.done(s)
	return d, err
}

// Reserve is Take with a charge that can be settled, in all layers. It takes now or
// not at all; only what leaky buckets delay may be delayed, by up to maxDelay.
//
// With a cost of 0 no layer is charged. To settle that reservation charges the actual
// cost as [Keyed.Adjust] does, in the layers that charge the caller's cost, but not in
// those of [WithCost] and [Shadow].
func (l *Layered[R]) Reserve(_ context.Context, r R, cost int, maxDelay time.Duration) (*Reservation, error) {
	s := l.stack()
	err := s.take(r, cost, queue(maxDelay))
	var settle func(actual int) error
	if s.d.Allowed {
		settle = s.settler(cost)
	}
	res := NewReservation(s.d, settle)
	s.report(r, err)
	l.done(s)
	return res, err
}

// Adjust charges delta to all layers, or forgives it if it is negative, whatever they allow: see
// [Keyed.Adjust]. Layers of [WithCost] and [Shadow] are left out: they do not charge the caller's cost.
func (l *Layered[R]) Adjust(r R, delta int) error {
	s := l.stack()
	defer l.done(s)
	if err := s.load(r, 0); err != nil {
		return err
	}
	return s.debit()(delta)
}

// BooksAhead reports false: Reserve charges no budget that is still to come, whatever its
// maxDelay. httplimit therefore lets the leaky buckets of a Layered delay requests.
func (l *Layered[R]) BooksAhead() bool { return false }

// ReplacesCost reports whether a layer has a cost of its own, by [WithCost].
func (l *Layered[R]) ReplacesCost() bool {
	l.check()
	return l.replaces
}

// Wait charges the cost to all layers and returns nil when they allow it. It is not
// first come, first served: it books nothing ahead, so that one exhausted user does
// not hold up a layer that many share, but sleeps [Decision.RetryAfter] and tries
// again. It holds the work for as long as leaky buckets delay it.
//
// It fails at once, with [context.DeadlineExceeded], if the deadline comes before the
// layers can allow the cost; else with the context's error, or those of Take. If it fails
// before the layers allow the cost, it has charged nothing. If it fails while a leaky
// bucket delays the work, it gives back what [Reservation.Cancel] gives back: all that it
// charged windows and logs, and what has not left the queue of a leaky bucket yet; of what
// it charged a token bucket, all but rate·(time slept).
//
// Each limiter's OnDecision is told of one decision for each Wait, however often it tries.
func (l *Layered[R]) Wait(ctx context.Context, r R, cost int) error {
	ctx = orBackground(ctx)
	s := l.stack()
	defer l.done(s)
	err := l.wait(ctx, s, r, cost)
	s.report(r, err)
	return err
}

// wait takes the cost as soon as that is possible, and sleeps out the delay.
func (l *Layered[R]) wait(ctx context.Context, s *stack[R], r R, cost int) error {
	for {
		left, err := ctxwait.Left(ctx)
		if err != nil {
			return err
		}
		s.clear()
		if err := s.take(r, cost, queue(left)); err != nil {
			return err
		}
		if s.d.Allowed {
			return l.sleepOut(ctx, s, cost)
		}
		if wait := s.wait(); wait > left {
			return tooLate(cost, wait-left, left, s.d.Limit)
		}
		if err := ctxwait.Sleep(ctx, s.d.RetryAfter); err != nil {
			return err
		}
	}
}

// sleepOut sleeps for the delay, and cancels what was charged if the context ends first.
func (l *Layered[R]) sleepOut(ctx context.Context, s *stack[R], cost int) error {
	if s.d.Delay == 0 {
		return nil
	}
	err := ctxwait.Sleep(ctx, s.d.Delay)
	if err != nil {
		_ = s.settler(cost)(0) // in memory there is no error of it
	}
	return err
}
