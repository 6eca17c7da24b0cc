package redislimit

import (
	"errors"
	"fmt"

	"github.com/weir-go/ratelimit"
)

// Layer is one of several limits on a request of type R. Make one with [By] or [Global].
type Layer[R any] interface {
	spec() (layer[R], error)
}

// layer is what the constructors of layers have to say.
type layer[R any] struct {
	l      *Limiter
	key    func(R) (string, error)
	cost   func(R) int              // the layer's own cost, or nil
	limit  func(R) ratelimit.Limit  // the limit of a request, or nil
	watch  func(ratelimit.Event[R]) // told of each decision, or nil
	shadow bool
	global bool // every request has the same key
	quiet  bool // the limiter's OnDecision is not told

	leased   bool // the budget is spent from leases
	maxBatch int
	leases   *leases // nil unless leased
}

// hasObserver reports whether anyone receives the layer's decisions.
func (y *layer[R]) hasObserver() bool { return y.l.onDecision != nil && !y.quiet || y.watch != nil }

// layerFunc is a Layer by what it says.
type layerFunc[R any] func() (layer[R], error)

func (f layerFunc[R]) spec() (layer[R], error) { return f() }

// By returns the layer that charges l for the key that the function finds in a request. Its error denies the request, charges
// nothing in any layer, and is returned wrapped. [ratelimit.SkipLayer] leaves the layer out.
func By[R any](l *Limiter, key func(R) (string, error)) Layer[R] {
	return layerFunc[R](func() (layer[R], error) {
		switch {
		case l == nil || l.store == nil:
			return layer[R]{}, errors.New("By was given no limiter")
		case key == nil:
			return layer[R]{}, errors.New("By was given no key function")
		}
		return layer[R]{l: l, key: key}, nil
	})
}

// Global returns the layer that charges l's key "" for every request. On a Ring or a ClusterClient the limiter needs an
// [Options.Slot], or the layer is [Leased].
func Global[R any](l *Limiter) Layer[R] {
	return wrapped(By(l, func(R) (string, error) { return "", nil }), "Global", false, "", func(y *layer[R]) { y.global = true })
}

// WithCost returns the layer with a cost of its own for each request: see [ratelimit.WithCost].
func WithCost[R any](l Layer[R], cost func(R) int) Layer[R] {
	return wrapped(l, "WithCost", cost == nil, "cost", func(y *layer[R]) { y.cost = cost })
}

// WithLimit returns the layer with a limit of its own for each request; the zero Limit means the limiter's. See
// [ratelimit.WithLimit].
func WithLimit[R any](l Layer[R], limit func(R) ratelimit.Limit) Layer[R] {
	return wrapped(l, "WithLimit", limit == nil, "limit", func(y *layer[R]) { y.limit = limit })
}

// Shadow returns the layer as one that never denies: see [ratelimit.Shadow]. A [Leased] shadow reports only what the other layers
// have charged.
func Shadow[R any](l Layer[R]) Layer[R] {
	return wrapped(l, "Shadow", false, "", func(y *layer[R]) { y.shadow = true })
}

// Observe returns the layer with a function that gets each of its decisions, with the request as the key: see [ratelimit.Observe].
// Of two functions the outer one is called.
func Observe[R any](l Layer[R], report func(ratelimit.Event[R])) Layer[R] {
	return wrapped(l, "Observe", report == nil, "report", func(y *layer[R]) { y.watch = report })
}

// wrapped returns a layer with a change made to it.
func wrapped[R any](l Layer[R], name string, missing bool, what string, change func(*layer[R])) Layer[R] {
	return layerFunc[R](func() (layer[R], error) {
		switch {
		case l == nil:
			return layer[R]{}, fmt.Errorf("%s was given no layer", name)
		case missing:
			return layer[R]{}, fmt.Errorf("%s was given no %s function", name, what)
		}
		y, err := l.spec()
		change(&y)
		return y, err
	})
}

// ask is what one layer has found out about a request.
type ask struct {
	layer  int
	key    string
	cost   int
	own    bool   // the cost is the layer's own, whatever the caller's
	charge int    // the index of its charge, -1 if there is none
	plan   *plan  // nil if it is not known
	err    error  // of a shadow layer: why it could not be asked
	redis  string // its Redis key

	// Of a leased layer:
	asked  bool // it has answered
	result ratelimit.Decision
	res    *ratelimit.Reservation // what was spent; nil if it was only looked at
}

// load finds out the key, the cost and the plan for a request. It reports false if the
// layer does not apply.
func (y *layer[R]) load(r R, cost int, a *ask) (bool, error) {
	key, err := y.key(r)
	if errors.Is(err, ratelimit.SkipLayer) {
		return false, nil
	}
	if err != nil {
		return y.shadow, fmt.Errorf("key: %w", err) // nobody but a shadow's limiter is told of it
	}
	a.key, a.cost, a.own = key, cost, y.cost != nil
	if a.own && cost > 0 {
		a.cost = y.cost(r)
	}
	if a.cost < 0 {
		return true, fmt.Errorf("%w: %d", ratelimit.ErrNegativeCost, a.cost)
	}
	if a.plan, err = y.planFor(r, key); err != nil {
		return true, err
	}
	if a.plan.kind == 0 && cost > 0 { // others are checked by sum, under the limit of the key
		return true, a.plan.check(int64(a.cost))
	}
	return true, nil
}

func (y *layer[R]) planFor(r R, key string) (*plan, error) {
	if y.limit != nil {
		return y.l.planOf(y.limit(r), "WithLimit", func() (*plan, error) { return y.l.planFor(key) })
	}
	return y.l.planFor(key)
}
