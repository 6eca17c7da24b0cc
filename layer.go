package ratelimit

import (
	"errors"
	"fmt"
	"unsafe"
)

// Layer is one of several limits on a request of type R: a limiter, and how to find in a request the key that it counts. Make
// one with [By] or [Global]. [WithCost], [WithLimit], [Shadow] and [Observe] change it, in any order. Of two wrappers of one
// kind the outer one counts.
type Layer[R any] interface {
	spec() (layer[R], error)
}

// layer is what By and its wrappers say of a layer.
type layer[R any] struct {
	limiter     any              // a *Keyed of any type: to know a limiter that is held twice
	clock       Clock            // the limiter's
	own         func() Limit     // the limiter's limit; the zero Limit if each key has its own
	newKey      func() anyKey[R] // for the keys of a stack's requests
	hasObserver bool             // the limiter has an OnDecision
	meets       bool             // another layer of the stack has the same limiter
	shared      bool             // the limiter has one key, which all requests have

	cost   func(R) int    // the layer's own cost, whatever the caller's; or nil
	limit  func(R) Limit  // the limit of each request, or nil for the limiter's
	tell   func(Event[R]) // gets each decision; or nil
	shadow bool           // it never denies
}

// limits returns the layer's limit, or the zero Limit if each request or key has its own.
func (y *layer[R]) limits() Limit {
	if y.limit != nil {
		return Limit{}
	}
	return y.own()
}

// layerFunc is a Layer by its spec.
type layerFunc[R any] func() (layer[R], error)

func (f layerFunc[R]) spec() (layer[R], error) { return f() }

// SkipLayer is what a key function returns when its layer does not apply to the request. It may be wrapped.
//
//lint:ignore ST1012 It is a signal rather than a failure, and named like fs.SkipDir.
var SkipLayer = errors.New("ratelimit: layer does not apply")

// By returns the layer that charges l for the key that the function finds in a request. The function runs once for
// each decision, outside every lock. Its error denies the request, charges nothing in any layer, and is returned
// wrapped; [SkipLayer] leaves the layer out.
func By[R any, K comparable](l *Keyed[K], key func(R) (K, error)) Layer[R] {
	return layerFunc[R](func() (layer[R], error) {
		switch {
		case l == nil:
			return layer[R]{}, errors.New("By was given no limiter")
		case l.keys == nil:
			return layer[R]{}, errors.New("By was given a zero Keyed; use New")
		case key == nil:
			return layer[R]{}, errors.New("By was given no key function")
		}
		return layer[R]{
			limiter: l, clock: l.clock, hasObserver: l.onDecision != nil, shared: unsafe.Sizeof(*new(K)) == 0,
			own:    func() Limit { return l.Limits()[0] },
			newKey: func() anyKey[R] { return &layerKey[R, K]{l: l, keyOf: key} },
		}, nil
	})
}

// Global returns the layer that charges one budget for every request: the limit of a whole service. [Single.Keyed] is
// such a limiter.
func Global[R any](l *Keyed[struct{}]) Layer[R] {
	return By(l, func(R) (struct{}, error) { return struct{}{}, nil })
}

// WithCost returns the layer with a cost of its own for each request, whatever the caller's: 1 for each request
// beside LLM tokens per minute. Settle does not change it, except at 0, which is Cancel. If the caller's cost is 0,
// nothing is charged in any layer, and Remaining is that of the others.
func WithCost[R any](l Layer[R], cost func(R) int) Layer[R] {
	return wrapped(l, "WithCost", cost == nil, "cost function", func(y *layer[R]) { y.cost = cost })
}

// WithLimit returns the layer with a limit for each request, such as that of the user's plan. The zero Limit means
// the limiter's own; without [Options.LimitFor], so does a limit that equals it. One without a name takes the name of
// the limiter's. An invalid limit denies the request with [ErrInvalidLimit] and charges nothing in any layer. The
// function runs once for each decision, outside every lock.
//
// A key has one budget, whatever the limit: if the limit differs from that of the key's last decision, what was spent
// carries over as by [Keyed.SetLimit]; [Unlimited] and [Blocked] leave it as it is. Layers that meet at one key are
// decided under the limit of the first that is neither, [Shadow] layers last.
func WithLimit[R any](l Layer[R], limit func(R) Limit) Layer[R] {
	return wrapped(l, "WithLimit", limit == nil, "limit function", func(y *layer[R]) { y.limit = limit })
}

// Shadow returns the layer as one that never denies: to try a limit out on real requests. Give it a limiter of its
// own. The other layers decide first. If they allow the request, the shadow is charged if the cost fits; if they deny
// it, nothing is charged. A shadow adds nothing to the Decision, to Limits or to errors; [Options.OnDecision] of its
// limiter gets its answer. Settle and Cancel settle what was charged.
func Shadow[R any](l Layer[R]) Layer[R] {
	return wrapped(l, "Shadow", false, "", func(y *layer[R]) { y.shadow = true })
}

// Observe returns the layer with a function that gets each of its decisions, with the request as the Key and the
// layer's own answer. It runs on the caller's goroutine after the decision, not for Peek nor where the layer does not
// apply, and besides [Options.OnDecision].
func Observe[R any](l Layer[R], report func(Event[R])) Layer[R] {
	return wrapped(l, "Observe", report == nil, "function to report to", func(y *layer[R]) { y.tell = report })
}

// wrapped returns a layer with a change made to it.
func wrapped[R any](l Layer[R], wrapper string, missing bool, function string, change func(*layer[R])) Layer[R] {
	return layerFunc[R](func() (layer[R], error) {
		switch {
		case l == nil:
			return layer[R]{}, fmt.Errorf("%s was given no layer", wrapper)
		case missing:
			return layer[R]{}, fmt.Errorf("%s was given no %s", wrapper, function)
		}
		y, err := l.spec()
		change(&y)
		return y, err
	})
}
