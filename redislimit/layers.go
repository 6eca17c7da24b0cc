package redislimit

import (
	"errors"
	"fmt"

	"github.com/weir-go/ratelimit"
	"github.com/weir-go/ratelimit/internal/merge"
)

// layer is a layer of a stack.
type layer[R any] struct {
	source[R]
	cost   func(R) int              // the layer's own cost, or nil
	limit  func(R) ratelimit.Limit  // the limit of a request, or nil
	watch  func(ratelimit.Event[R]) // receives each decision, or nil
	shadow bool

	leases *leases // nil unless leased
}

// source is the part of a [ratelimit.Layer] that By, Global and Leased make.
type source[R any] struct {
	l      *Limiter
	key    func(R) (string, error)
	global bool // every request has the same key
	quiet  bool // the limiter's OnDecision is not called

	leased   bool // the budget is spent from leases
	maxBatch int

	err error // which All is to return
}

// layerOf returns a layer for a stack, or the error that its maker was given.
func layerOf[R any](y ratelimit.Layer[R]) (layer[R], error) {
	s, ok := merge.SourceOf[source[R]](&y)
	if !ok {
		return layer[R]{}, errors.New("not made by By or Global of package redislimit")
	}
	return layer[R]{source: s, cost: y.Cost, limit: y.Limit, watch: y.Observe, shadow: y.Shadow}, s.err
}

// hasObserver reports whether anyone receives the layer's decisions.
func (y *layer[R]) hasObserver() bool { return y.l.onDecision != nil && !y.quiet || y.watch != nil }

// By returns the layer that charges l for the key that the function finds in a request. Its error denies the request, charges
// nothing in any layer, and is returned wrapped. [ratelimit.SkipLayer] leaves the layer out. A nil limiter or key function is an
// error of [All] and [AllOf], which take only layers that By and Global of this package have made.
func By[R any](l *Limiter, key func(R) (string, error)) ratelimit.Layer[R] {
	return made(source[R]{l: l, key: key})
}

// Global returns the layer that charges l's key "" for every request. On a Ring or a ClusterClient the limiter needs an
// [Options.Slot], or the layer is [Leased].
func Global[R any](l *Limiter) ratelimit.Layer[R] {
	return made(source[R]{l: l, key: func(R) (string, error) { return "", nil }, global: true})
}

func made[R any](s source[R]) (y ratelimit.Layer[R]) {
	switch {
	case s.l == nil || s.l.store == nil:
		s.err = errors.New("By was given no limiter")
	case s.key == nil:
		s.err = errors.New("By was given no key function")
	}
	merge.SetSource(&y, s)
	return y
}

// ask is one layer's part of a request.
type ask struct {
	layer  int
	key    string
	cost   int
	own    bool   // the cost is the layer's own, whatever the caller's
	charge int    // the index of its charge, -1 if there is none
	plan   *plan  // nil if it is not known
	err    error  // of a shadow layer: the error that kept it from deciding
	redis  string // its Redis key

	// Of a leased layer:
	asked  bool // it has answered
	result ratelimit.Decision
	res    *ratelimit.Reservation // the charge; nil for a Peek
}

// load finds out the key, the cost and the plan for a request. It reports false if the
// layer does not apply.
func (y *layer[R]) load(r R, cost int, a *ask) (bool, error) {
	key, err := y.key(r)
	if errors.Is(err, ratelimit.SkipLayer) {
		return false, nil
	}
	if err != nil {
		return y.shadow, fmt.Errorf("key: %w", err) // only a shadow's limiter reports it
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
		return y.l.planOf(y.limit(r), "Layer.Limit", func() (*plan, error) { return y.l.planFor(key) })
	}
	return y.l.planFor(key)
}
