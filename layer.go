package ratelimit

import "errors"

// Layer is one of several limits on a request of type R: a limiter, and how to find in
// a request the key that it counts. Make one with [By] or [Global], and change it with
// [WithCost], [WithLimit], [Shadow] and [Observe], in any order. Of two wrappers of the same kind the
// outer one counts.
type Layer[R any] interface {
	// limiter returns what must be known to build a stack, and what is missing.
	limiter() (clock Clock, limit Limit, err error)
	// join fills in what the layer adds to a stack's member, unless an outer layer has.
	join(m *member[R])
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
// of a whole service. [NewSingle] makes such a limiter, and [Single.Keyed] is what to give here.
func Global[R any](l *Keyed[struct{}]) Layer[R] {
	return By(l, func(R) (struct{}, error) { return struct{}{}, nil })
}

// WithCost returns the layer with a cost of its own for each request, whatever the caller's: 1
// for each request beside LLM tokens per minute. Cancel refunds this layer; Settle does not,
// except at 0, which is to cancel. If the caller's cost is 0, nothing is charged in any layer.
func WithCost[R any](l Layer[R], cost func(R) int) Layer[R] {
	return &costLayer[R]{Layer: l, cost: cost}
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
	return &limitLayer[R]{Layer: l, limit: limit}
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
func Shadow[R any](l Layer[R]) Layer[R] { return &shadowLayer[R]{Layer: l} }

// Observe returns the layer with a function that is told of each of its decisions, with the
// request in place of the key. The Event's Decision is the layer's own answer, and Spent
// says whether the layer was charged, as with the [Options.OnDecision] of its limiter, which
// is told as well. So one can tell what each layer has said of one request. The function
// runs in the caller's goroutine, after the decision, outside every lock. It is not called
// by Peek, nor for a layer that does not apply.
func Observe[R any](l Layer[R], report func(Event[R])) Layer[R] {
	return &observedLayer[R]{Layer: l, report: report}
}

type keyedLayer[R any, K comparable] struct {
	l   *Keyed[K]
	key func(R) (K, error)
}

func (y *keyedLayer[R, K]) limiter() (Clock, Limit, error) {
	switch {
	case y.l == nil:
		return nil, Limit{}, errors.New("By was given no limiter")
	case y.l.keys == nil:
		return nil, Limit{}, errors.New("By was given a zero Keyed; use New")
	case y.key == nil:
		return nil, Limit{}, errors.New("By was given no key function")
	}
	return y.l.clock, y.l.Limits()[0], nil
}

func (y *keyedLayer[R, K]) join(m *member[R]) {
	m.key = &layerKey[R, K]{l: y.l, keyOf: y.key}
	m.watched = y.l.onDecision != nil || m.tell != nil
}

type costLayer[R any] struct {
	Layer[R]
	cost func(R) int
}

func (c *costLayer[R]) limiter() (Clock, Limit, error) {
	switch {
	case c.Layer == nil:
		return nil, Limit{}, errors.New("WithCost was given no layer")
	case c.cost == nil:
		return nil, Limit{}, errors.New("WithCost was given no cost function")
	}
	return c.Layer.limiter()
}

func (c *costLayer[R]) join(m *member[R]) {
	if m.cost == nil {
		m.cost = c.cost
	}
	c.Layer.join(m)
}

type limitLayer[R any] struct {
	Layer[R]
	limit func(R) Limit
}

func (y *limitLayer[R]) limiter() (Clock, Limit, error) {
	switch {
	case y.Layer == nil:
		return nil, Limit{}, errors.New("WithLimit was given no layer")
	case y.limit == nil:
		return nil, Limit{}, errors.New("WithLimit was given no limit function")
	}
	clock, _, err := y.Layer.limiter()
	return clock, Limit{}, err
}

func (y *limitLayer[R]) join(m *member[R]) {
	if m.limit == nil {
		m.limit = y.limit
	}
	y.Layer.join(m)
}

type shadowLayer[R any] struct{ Layer[R] }

func (y *shadowLayer[R]) limiter() (Clock, Limit, error) {
	if y.Layer == nil {
		return nil, Limit{}, errors.New("Shadow was given no layer")
	}
	return y.Layer.limiter()
}

func (y *shadowLayer[R]) join(m *member[R]) {
	m.shadow = true
	y.Layer.join(m)
}

type observedLayer[R any] struct {
	Layer[R]
	report func(Event[R])
}

func (y *observedLayer[R]) limiter() (Clock, Limit, error) {
	switch {
	case y.Layer == nil:
		return nil, Limit{}, errors.New("Observe was given no layer")
	case y.report == nil:
		return nil, Limit{}, errors.New("Observe was given no function to report to")
	}
	return y.Layer.limiter()
}

func (y *observedLayer[R]) join(m *member[R]) {
	if m.tell == nil {
		m.tell = y.report
	}
	y.Layer.join(m)
}
