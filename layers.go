package ratelimit

import (
	"context"
	"errors"
	"fmt"
	"math"
	"reflect"
	"sync"
	"time"
)

// Layer is one of several limits on a request of type R: a limiter, and how to
// find in a request the key that it counts. Make one with [By].
type Layer[R any] interface {
	limiter() (clock Clock, limit Limit, err error)
	slot() slot[R]
}

// SkipLayer is what a key function returns when its layer does not apply to the
// request: no key, an internal caller. It may be wrapped.
//
//lint:ignore ST1012 It is a signal rather than a failure, and named like fs.SkipDir.
var SkipLayer = errors.New("ratelimit: layer does not apply")

// By returns the layer that charges l for the key that the function finds in a
// request. The function runs once for each decision, outside every lock. An error
// of it denies the request, charges nothing in any layer, and is returned wrapped;
// [SkipLayer] leaves the layer out.
func By[R any, K comparable](l *Keyed[K], key func(R) (K, error)) Layer[R] {
	return &keyedLayer[R, K]{l: l, key: key}
}

// Global returns the layer that charges l's one budget for every request: the limit
// of a whole service.
func Global[R any](l *Keyed[struct{}]) Layer[R] {
	return By(l, func(R) (struct{}, error) { return struct{}{}, nil })
}

// Charging returns the layer with a cost of its own for each request, whatever
// the caller's: 1 per request beside LLM tokens per minute. Two costs of the
// caller are special: with 0 nothing is charged in any layer, and when a
// reservation is settled at 0, which is to cancel it, this layer is given back too.
// Otherwise what this layer has charged stays.
func Charging[R any](l Layer[R], cost func(R) int) Layer[R] {
	return &chargingLayer[R]{Layer: l, cost: cost}
}

type keyedLayer[R any, K comparable] struct {
	l   *Keyed[K]
	key func(R) (K, error)
}

func (y *keyedLayer[R, K]) limiter() (Clock, Limit, error) {
	switch {
	case y.l == nil:
		return nil, Limit{}, errors.New("By was given no limiter")
	case y.key == nil:
		return nil, Limit{}, errors.New("By was given no key function")
	}
	if y.l.limitFor != nil {
		return y.l.clock, Limit{}, nil
	}
	return y.l.clock, y.l.era.Load().def.limit, nil
}

func (y *keyedLayer[R, K]) slot() slot[R] { return &keyedSlot[R, K]{layer: y} }

type chargingLayer[R any] struct {
	Layer[R]
	cost func(R) int
}

func (c *chargingLayer[R]) limiter() (Clock, Limit, error) {
	switch {
	case c.Layer == nil:
		return nil, Limit{}, errors.New("Charging was given no layer")
	case c.cost == nil:
		return nil, Limit{}, errors.New("Charging was given no cost function")
	}
	return c.Layer.limiter()
}

func (c *chargingLayer[R]) slot() slot[R] {
	s := c.Layer.slot()
	s.charging(c.cost)
	return s
}

// Layered is several limits on one request: all of them allow it, or none is
// charged. Make one with [All]. It is safe for concurrent use, and several of them
// may share limiters in any order, or hold one twice.
//
// A decision is taken under the locks of all the keys' buckets at one reading of the
// clock. So a denial charges nothing anywhere, not even for an instant that another
// goroutine could see. What several layers charge to one key of one limiter adds up
// before it is checked.
//
// The [Decision]: if denied, Limit is that of the layer with the longest RetryAfter; if
// allowed, that of the layer that leaves the least. Remaining is the largest cost
// that the whole stack would take, ResetAfter and Delay are the longest of all. If
// all layers were skipped it is allowed, by [Unlimited]. An [ErrExceedsLimit] names
// the layer's limit.
//
// The zero Layered cannot be used.
type Layered[R any] struct {
	layers []Layer[R]
	clock  Clock
	stacks sync.Pool // of *stack[R]: what one decision needs, so that it allocates nothing
}

var _ Reserver[string] = (*Layered[string])(nil)

// All returns the limiter that holds requests to all the layers. It is an error if
// there are none, if one is nil, or if their limiters have different clocks.
func All[R any](layers ...Layer[R]) (*Layered[R], error) {
	if len(layers) == 0 {
		return nil, errors.New("ratelimit: All needs at least one layer")
	}
	l := &Layered[R]{layers: append([]Layer[R](nil), layers...)}
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
	}
	l.stacks.New = func() any { return newStack(l.layers) }
	return l, nil
}

// sameClock compares clocks, of which one that cannot be compared is like no other.
func sameClock(a, b Clock) bool { return reflect.ValueOf(a).Comparable() && a == b }

// Limits returns each layer's limit, in order: New's or SetLimit's, or the zero Limit
// where [Options.LimitFor] gives each key its own.
func (l *Layered[R]) Limits() []Limit {
	limits := make([]Limit, len(l.layers))
	for i, layer := range l.layers {
		_, limits[i], _ = layer.limiter()
	}
	return limits
}

// Allow charges the cost to all layers and reports true; or it charges none and
// reports false.
func (l *Layered[R]) Allow(r R, cost int) bool {
	d, _ := l.Take(context.Background(), r, cost)
	return d.Allowed
}

// Take charges the cost to all layers, or to none, and says how the stack stands.
// The errors are those of [Keyed.Take], and those of the layers' key functions,
// wrapped. The context is unused.
func (l *Layered[R]) Take(_ context.Context, r R, cost int) (d Decision, err error) {
	s := l.stack()
	_, err = s.take(l.clock, r, cost, request{ahead: math.MaxInt64})
	s.report(err)
	d = s.d
	l.done(s)
	return d, err
}

func (l *Layered[R]) stack() *stack[R] { return l.stacks.Get().(*stack[R]) }

func (l *Layered[R]) done(s *stack[R]) {
	s.clear()
	l.stacks.Put(s)
}

// Peek says what Take would answer, and how the stack stands. It changes nothing
// and tracks nothing.
func (l *Layered[R]) Peek(r R, cost int) (d Decision, err error) {
	s := l.stack()
	if err = s.load(r, cost); err == nil {
		err = s.look(l.clock, cost)
	}
	d = s.d
	l.done(s)
	return d, err
}

// Reserve is Take with a charge that can be settled, in all layers. It takes now or
// not at all; only what leaky buckets delay may be delayed, by up to maxDelay.
func (l *Layered[R]) Reserve(_ context.Context, r R, cost int, maxDelay time.Duration) (*Reservation, error) {
	s := l.stack()
	_, err := s.take(l.clock, r, cost, request{ahead: int64(max(0, maxDelay)), keep: true})
	var settle func(actual int) error
	if s.d.Allowed {
		settle = s.settler(l.clock)
	}
	res := NewReservation(s.d, settle)
	s.report(err)
	l.done(s)
	return res, err
}

// Wait charges the cost to all layers and returns nil when they allow it. It is not
// first come, first served: it books nothing ahead, so that one exhausted user does
// not hold up a layer that many share, but sleeps [Decision.RetryAfter] and tries
// again. It holds the work for as long as leaky buckets delay it. A Wait that fails
// has charged nothing: at once, with [context.DeadlineExceeded], if the deadline comes
// before the layers can allow it; else with the context's error, or those of Take.
func (l *Layered[R]) Wait(ctx context.Context, r R, cost int) error {
	if ctx == nil {
		ctx = context.Background()
	}
	s := l.stack()
	defer l.done(s)
	err := s.wait(ctx, l.clock, r, cost)
	s.report(err)
	return err
}
