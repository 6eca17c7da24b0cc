package ratelimit

import (
	"errors"
	"fmt"
	"reflect"
	"sync/atomic"
	"unsafe"

	"github.com/weir-go/ratelimit/internal/merge"
	"github.com/weir-go/ratelimit/internal/optional"
)

// Layer is one of several limits on a request: a limiter, and a function that takes the
// key from a request. Make one with [By] or [Global], set its fields as needed, and pass
// it to [All] or [AllOf]. A Layer is a value: a copy can be changed without the original.
//
// The functions run on the caller's goroutine, outside every lock, and once for each decision.
type Layer[R any] struct {
	// Cost returns what a request costs in this layer, instead of the caller's cost. For example, each
	// request costs 1 beside a limit on LLM tokens per minute. If nil, the layer charges the caller's
	// cost. Settle leaves such a cost as it is; only Settle(0) and Cancel give it back. If the caller's
	// cost is 0, no layer is charged, Cost is not called, and the other layers determine Remaining.
	Cost func(R) int

	// Actual returns what a request really cost in this layer when a [Reservation] is settled, instead of Settle's argument.
	// So one reservation can settle tokens, dollars and requests each at their own figure. R may be a pointer: the handler
	// has filled in its fields by then. Settle(0), and so Cancel, does not call Actual and gives everything back. If Actual
	// returns a negative cost, Settle returns an [ErrNegativeCost], and all charges stay. If nil, a layer without a Cost
	// settles at Settle's argument, and one with a Cost at that Cost. Settle calls it once, in its own goroutine.
	Actual func(R) int

	// Limit returns a request's limit, for example by the user's plan. If nil, or if it returns
	// the zero Limit, the limiter's own limit applies. A limit without a name takes the limiter's.
	// An invalid limit denies the request with [ErrInvalidLimit] and charges nothing in any layer.
	//
	// A key has one budget, even if its requests have different limits. If the limit differs from the key's last one,
	// the spending carries over as by [Keyed.SetLimit]; [Unlimited] and [Blocked] leave it as it is. If several layers
	// of one request count the same key, the first limit applies, except Unlimited and Blocked; Shadow layers come last.
	Limit func(R) Limit

	// Shadow keeps the layer from denying: to try a limit out on real requests. Give it its own limiter. The
	// other layers decide first. If they allow the request, the shadow is charged if the cost fits; if they
	// deny it, nothing is charged. A shadow adds nothing to the Decision, to Limits or to errors. Observe
	// and its limiter's [Options.OnDecision] receive its decisions. Settle and Cancel settle its charge.
	Shadow bool

	// Observe receives each decision of the layer, with the request as the Key and the layer's own Decision,
	// cost and error. It is called after the decision, besides the limiter's [Options.OnDecision]. It is not
	// called for Peek, nor if the layer does not apply to the request. If nil, only OnDecision is called.
	Observe func(Event[R])

	//lint:ignore U1000 Package merge uses its promoted method.
	source
}

// source is the limiter and the key function of a layer: a made[R] in this package. The unexported name keeps the field
// out of the API, and the type from package merge lets package redislimit put its own source into the same Layer.
//
//lint:ignore U1000 It is the name of the embedded field.
type source = merge.Source

// made is the source of By's layer. If By was given invalid arguments, it holds the error for All to return.
type made[R any] struct {
	limiter     any              // a *Keyed of any type: to detect a limiter held twice
	clock       Clock            // the limiter's clock
	own         func() Limit     // returns the limiter's limit, or the zero Limit if each key has its own
	newKey      func() anyKey[R] // makes the place for the key of a stack's request
	hasObserver bool             // the limiter has an OnDecision
	shared      bool             // the limiter has one key, common to all requests
	ofRequests  *atomic.Bool     // the limiter's, to be set if the layer has a Limit function

	// Set if the limiter belongs to another store:
	joins  Joinable                // if its store decides on several limiters at once
	key    func(R) (string, error) // the limiter's key function
	global bool                    // Global made the layer

	// Set if the limiter belongs to another store, and decides alone:
	alone Joint
	boxed func(R) (any, error) // the limiter's key function

	err error
}

// layer is a layer of a stack.
type layer[R any] struct {
	made[R]
	meets bool // another layer of the stack has the same limiter

	cost    func(R) int    // returns the layer's own cost instead of the caller's; or nil
	actual  func(R) int    // returns the layer's own real cost at a settlement; or nil
	limit   func(R) Limit  // returns each request's limit; nil if the limiter's own applies
	observe func(Event[R]) // receives each decision; or nil
	shadow  bool           // it never denies
}

// layerOf returns a layer for a stack, or the error of By or Global.
func layerOf[R any](y Layer[R]) (layer[R], error) {
	m, ok := merge.SourceOf[made[R]](&y)
	if !ok {
		return layer[R]{}, optional.Zero("", "Layer", "By or Global")
	}
	return layer[R]{made: m, cost: y.Cost, actual: y.Actual, limit: y.Limit, observe: y.Observe, shadow: y.Shadow}, m.err
}

// cannotJoin reports whether the limiter can only decide alone.
func (y *layer[R]) cannotJoin() bool { return y.alone != nil && y.joins == nil }

// limits returns the layer's limit, or the zero Limit if each request or key has its own.
func (y *layer[R]) limits() Limit {
	if y.limit != nil {
		return Limit{}
	}
	if y.alone != nil {
		if limits := Describe(y.limiter).Limits; len(limits) == 1 {
			return limits[0]
		}
		return Limit{}
	}
	return y.own()
}

// SkipLayer is returned by a key function if its layer does not apply to the request. It may be wrapped.
//
//lint:ignore ST1012 It is a signal rather than a failure, and named like fs.SkipDir.
var SkipLayer = errors.New("ratelimit: layer does not apply")

// By returns a layer that charges l for the key of each request. If the function returns an error, the
// request is denied, no layer is charged, and the error is returned wrapped. The error [SkipLayer]
// only leaves this layer out. A nil limiter or key function is an error of [All] and [AllOf].
//
// The limiter may use any store. Limiters in memory can be layers of one stack, even with different types of keys. So can
// limiters of another store if they are [Joinable]. Any other limiter must be the only layer, without a Limit function.
func By[R any, K comparable](l Limiter[K], key func(R) (K, error)) (y Layer[R]) {
	merge.SetSource(&y, sourceOf("By", l, key))
	return y
}

func sourceOf[R any, K comparable](maker string, l Limiter[K], key func(R) (K, error)) made[R] {
	if l, ok := l.(*Keyed[K]); ok {
		return makeSource(maker, l, key)
	}
	switch {
	case optional.IsNil(l):
		return made[R]{err: optional.Nil(maker + ": l")}
	case key == nil:
		return made[R]{err: optional.Nil(maker + ": key")}
	}
	m := made[R]{limiter: l, alone: alone[K]{l}, boxed: func(r R) (any, error) { return key(r) }}
	if joins, ok := l.(Joinable); ok && reflect.ValueOf(l).Comparable() {
		if keyOf, ok := any(key).(func(R) (string, error)); ok {
			m.joins, m.key = joins, keyOf
		}
	}
	return m
}

func makeSource[R any, K comparable](maker string, l *Keyed[K], key func(R) (K, error)) made[R] {
	switch {
	case l == nil:
		return made[R]{err: optional.Nil(maker + ": l")}
	case l.keys == nil:
		return made[R]{err: optional.Zero(maker, "Keyed", "New")}
	case key == nil:
		return made[R]{err: optional.Nil(maker + ": key")}
	}
	l.keys.keep()
	return made[R]{
		limiter: l, clock: l.clock, hasObserver: l.onDecision != nil, shared: unsafe.Sizeof(*new(K)) == 0, ofRequests: &l.ofRequests,
		own:    func() Limit { return l.limits()[0] },
		newKey: func() anyKey[R] { return &layerKey[R, K]{l: l, keyOf: key} },
	}
}

// Global returns a layer that charges one budget for every request, for example to limit a whole
// service. In memory, make its limiter with New[struct{}]; direct calls pass the key struct{}{}. In
// a store, its key is the empty string. [All] and [AllOf] return an error if the limiter's keys have
// another type, unless it is [Joinable]. For such a limiter use [By], with one key for all requests.
func Global[R any, K comparable](l Limiter[K]) (y Layer[R]) {
	m := sourceOf("Global", l, func(R) (k K, err error) { return k, nil })
	if m.global = true; m.err == nil && m.joins == nil && unsafe.Sizeof(*new(K)) > 0 {
		m.err = fmt.Errorf("Global was given a %T, which has a budget for each key; make its limiter with New[struct{}], or let By count one key", l)
	}
	merge.SetSource(&y, m)
	return y
}
