package ratelimit

import (
	"errors"
	"fmt"
)

// Layer is one of several limits on a request of type R: a limiter, and how to find in a request the key that it counts. Make
// one with [By] or [Global]. [WithCost], [WithLimit], [Shadow] and [Observe] change it, in any order. Of two wrappers of one
// kind the outer one counts.
type Layer[R any] interface {
	spec() (layer[R], error)
}

// layer is what By and its wrappers say of a layer.
type layer[R any] struct {
	limiter any              // a *Keyed of any type: to know a limiter that is held twice
	clock   Clock            // the limiter's
	own     func() Limit     // the limiter's limit; the zero Limit if each key has its own
	newKey  func() anyKey[R] // for the keys of a stack's requests
	heard   bool             // the limiter has an OnDecision

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
			limiter: l, clock: l.clock, heard: l.onDecision != nil,
			own:    func() Limit { return l.Limits()[0] },
			newKey: func() anyKey[R] { return &layerKey[R, K]{l: l, keyOf: key} },
		}, nil
	})
}

// Global returns the layer that charges l's one budget for every request: the limit
// of a whole service. [NewSingle] makes such a limiter, and [Single.Keyed] is what to give here.
func Global[R any](l *Keyed[struct{}]) Layer[R] {
	return By(l, func(R) (struct{}, error) { return struct{}{}, nil })
}

// WithCost returns the layer with a cost of its own for each request, whatever the caller's: 1
// for each request beside LLM tokens per minute. Cancel refunds this layer; Settle does not,
// except at 0, which is to cancel. If the caller's cost is 0, nothing is charged in any layer.
func WithCost[R any](l Layer[R], cost func(R) int) Layer[R] {
	return wrapped(l, "WithCost", cost == nil, "cost function", func(y *layer[R]) { y.cost = cost })
}

// WithLimit returns the layer with a limit for each request, such as that of the user's
// plan. The zero Limit means the limiter's own; then, and only then, the limiter's
// [Options.LimitFor] is asked. A limit without a name takes the name of the limiter's. An
// invalid limit denies the request, charges nothing in any layer, and is an error that
// wraps [ErrInvalidLimit]. [Unlimited] and [Blocked] do not count, and leave what the key
// has spent as it is. The function runs once for each decision, outside every lock.
//
// A key has one budget, whatever the limit: if a limit differs from the one that the key
// was last decided under, what was spent carries over, as [Keyed.SetLimit] describes. A
// call that goes to the limiter without WithLimit is decided under the limiter's own
// limit. Layers that meet at one key of one limiter are decided under the limit of the
// first of them that is neither Unlimited nor Blocked; those of [Shadow] come last. To try
// another limit out beside the one in force, give the shadow a limiter of its own.
func WithLimit[R any](l Layer[R], limit func(R) Limit) Layer[R] {
	return wrapped(l, "WithLimit", limit == nil, "limit function", func(y *layer[R]) { y.limit = limit })
}

// Shadow returns the layer as one that never denies: to try a limit out on real
// requests. It is charged if the other layers allow the request and it does too.
//
// The layers that are not shadows decide first. If they deny, nothing is charged
// anywhere. Else each shadow layer, in order, is charged if the cost fits into what is
// left: if two layers charge the same key of the same limiter, the one that is not a
// shadow counts first. A shadow layer adds nothing to the Decision or to Limits, and none of its
// errors is returned. Settle and Cancel settle what was charged.
//
// The [Options.OnDecision] of the shadow layer's limiter tells what the layer says: the
// Event's Decision is the layer's own answer, and its Err the layer's own error. If its
// key function fails, the Event has that error and the zero Key.
func Shadow[R any](l Layer[R]) Layer[R] {
	return wrapped(l, "Shadow", false, "", func(y *layer[R]) { y.shadow = true })
}

// Observe returns the layer with a function that is told of each of its decisions, with the
// request in place of the key. The Event's Decision is the layer's own answer, and Spent
// says whether the layer was charged, as with the [Options.OnDecision] of its limiter, which
// is told as well. So one can tell what each layer has said of one request. The function
// runs in the caller's goroutine, after the decision, outside every lock. It is not called
// by Peek, nor for a layer that does not apply.
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
