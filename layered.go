package ratelimit

import (
	"context"
	"errors"
	"fmt"
	"reflect"
	"slices"
	"sync"
	"time"

	"github.com/weir-go/ratelimit/internal/meter"
	"github.com/weir-go/ratelimit/internal/optional"
	"github.com/weir-go/ratelimit/internal/turns"
	"github.com/weir-go/ratelimit/internal/wait"
)

// Layered is several limits on one request: all allow it, or none is charged. [All] and [AllOf] make
// one, for all requests. It decides under all keys' locks, at one reading of the clock. If several
// layers charge one key of one limiter, the charges add up. The zero Layered's methods panic.
//
// In the [Decision], Remaining is the largest cost allowed by all layers; RetryAfter, ResetAfter and
// Delay are the longest. Limit belongs to the binding layer: in a denial, the layer with the longest
// RetryAfter; else the layer with the least remaining. Among equals, the layer with the longer
// ResetAfter binds, then the first. If no layer applies, the request is allowed, by [Unlimited].
type Layered[R any] struct {
	layers    []layer[R]
	pick      func(R, []int) []int // selects the layers; nil for all
	enforcing []int                // indices of all layers except shadows
	joint     Joint                // of another store; nil for memory
	takes     bool                 // requests take the answers of a joint themselves: see answerTaker
	alone     bool                 // the joint calls one limiter, which has its own type of keys
	lines     turns.Lines[lineKey] // callers waiting for the joint
	every     []int                // all layers' indices
	stacks    sync.Pool            // holds *stack[R]: one decision's working memory, so that it allocates nothing
	joins     sync.Pool            // holds *joined[R]: the same for a joint
}

var _ Reserver[string] = (*Layered[string])(nil)

// All returns a limiter that holds requests to all layers. It fails without layers, with a zero layer, and if the limiters
// have different clocks. Incomparable clocks, such as functions, count as different unless they are one limiter's.
//
// All limiters are in memory, or in one store and decided together there: see [Joinable]. For other
// limiters use package chain: it calls them one after the other. A single layer may have any limiter.
func All[R any](layers ...Layer[R]) (*Layered[R], error) { return newLayered("All", nil, layers) }

// AllOf is [All] for many layers, if only some apply to each request. For each decision, pick
// appends the indexes of the request's layers to the slice which and returns it. No lock is held
// then. pick must not keep the slice. A repeated index counts once. If pick returns none, the
// request is allowed, under [Unlimited]. An index out of range is an error and denies the request.
func AllOf[R any](pick func(r R, which []int) []int, layers ...Layer[R]) (*Layered[R], error) {
	if pick == nil {
		return nil, optional.Nil("ratelimit: AllOf: pick")
	}
	return newLayered("AllOf", pick, layers)
}

func newLayered[R any](maker string, pick func(R, []int) []int, layers []Layer[R]) (*Layered[R], error) {
	if len(layers) == 0 {
		return nil, fmt.Errorf("ratelimit: %s needs at least one layer", maker)
	}
	l := &Layered[R]{layers: make([]layer[R], len(layers)), pick: pick}
	places := make([]int, len(layers))
	of := make(map[any]int, len(layers)) // the number of a limiter's layers, if it can have several
	for i, given := range layers {
		y, err := layerOf(given)
		switch {
		case err != nil:
			return nil, fmt.Errorf("ratelimit: layer %d: %w", i, err)
		case y.cannotJoin() && len(layers) > 1:
			return nil, fmt.Errorf("ratelimit: layer %d has a %T, which cannot be decided together with another layer: it has no Join%s", i, y.limiter, useChain)
		case i > 0 && (y.joins == nil) != (l.layers[0].joins == nil):
			return nil, fmt.Errorf("ratelimit: layer %d has a limiter of another store than layer 0, which cannot be decided together%s", i, useChain)
		case i > 0 && y.joins == nil && !sameClock(&l.layers[0], &y):
			return nil, fmt.Errorf("ratelimit: layer %d has another clock than layer 0", i)
		}
		l.layers[i], places[i], l.every = y, len(l.enforcing), append(l.every, i)
		if !y.shadow {
			l.enforcing = append(l.enforcing, i)
		}
		if !y.cannotJoin() {
			of[y.limiter]++
		}
	}
	if l.layers[0].alone != nil {
		_, l.takes = any(*new(R)).(answerTaker)
		if err := l.joinAll(); err != nil {
			return nil, err
		}
		return l, nil
	}
	for i := range l.layers {
		y := &l.layers[i]
		y.meets = of[y.limiter] > 1
		if y.limit != nil {
			y.ofRequests.Store(true)
		}
	}
	l.stacks.New = func() any { return newStack(l.layers, places, l.pick) }
	return l, nil
}

// useChain ends the error for limiters without a common decision.
const useChain = "; package chain asks such limiters one after the other"

// joinAll makes the joint of the layers' store. A single layer need not join: its limiter may wrap a joinable one.
func (l *Layered[R]) joinAll() error {
	first := &l.layers[0]
	err := errors.New("it has no Join")
	if !first.cannotJoin() {
		all := make([]Joining, len(l.layers))
		for i := range l.layers {
			all[i] = Joining{Limiter: l.layers[i].joins, Global: l.layers[i].global && l.pick == nil}
		}
		if l.joint, err = first.joins.Join(all); err == nil && optional.IsNil(l.joint) {
			err = fmt.Errorf("the Join of %T returned nothing", first.limiter)
		}
	}
	switch {
	case err == nil:
		return nil
	case len(l.layers) > 1:
		return fmt.Errorf("ratelimit: %w%s", err, useChain)
	case !first.cannotJoin() && !errors.Is(err, errors.ErrUnsupported):
		return fmt.Errorf("ratelimit: %w", err)
	case first.limit != nil:
		return fmt.Errorf("ratelimit: layer 0 has a Limit, which a %T cannot count: %w", first.limiter, err)
	}
	l.joint, l.alone = first.alone, true
	return nil
}

// sameClock reports whether two layers have one clock. Incomparable clocks,
// such as functions, count as one only if both layers have the same limiter.
func sameClock[R any](a, b *layer[R]) bool {
	return a.limiter == b.limiter ||
		reflect.ValueOf(a.clock).Comparable() && reflect.ValueOf(b.clock).Comparable() && a.clock == b.clock
}

func (l *Layered[R]) limits() []Limit {
	l.check()
	limits := make([]Limit, len(l.enforcing))
	for i, layer := range l.enforcing {
		limits[i] = l.layers[layer].limits()
	}
	return limits
}

// Allow charges the cost to all layers and reports true, or charges none and reports false.
func (l *Layered[R]) Allow(r R, cost int) bool {
	if l != nil && l.joint != nil {
		return l.allowJoined(r, cost)
	}
	s := l.stack()
	s.brief = true
	err := s.take(r, cost, takeRequest)
	s.report(context.Background(), r, err)
	ok := s.d.Allowed
	l.done(s)
	return ok
}

// Take charges the cost to all layers, or none. It returns [Keyed.Take]'s errors
// and those of the layers' key functions, wrapped. The context is not used.
func (l *Layered[R]) Take(ctx context.Context, r R, cost int) (d Decision, err error) {
	if l != nil && l.joint != nil {
		return l.takeJoined(ctx, r, cost)
	}
	s := l.stack()
	err = s.take(r, cost, takeRequest)
	s.report(ctx, r, err)
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
	if l == nil || l.stacks.New == nil && l.joint == nil {
		panic(optional.Zero("ratelimit", "Layered", "All or AllOf"))
	}
}

func (l *Layered[R]) done(s *stack[R]) {
	s.clear()
	l.stacks.Put(s)
}

// Peek returns Take's decision, and changes nothing.
func (l *Layered[R]) Peek(ctx context.Context, r R, cost int) (d Decision, err error) {
	if l != nil && l.joint != nil {
		return l.peekJoined(ctx, r, cost)
	}
	s := l.stack()
	if err = s.load(r, cost); err == nil {
		err = s.preview(peekRequest)
	}
	d = s.d
	l.done(s)
	return d, err
}

// PeekEach returns each layer's own decision, in order, as if it were the only layer in a Take. It
// changes nothing. For example, it shows the month's and the minute's remaining budgets side by side.
// Shadow layers are included. If a layer does not apply to the request, it has the zero Decision, whose
// Limit has no Algorithm. Layers with a common key have the same Decision, for the sum of their costs.
//
// The errors are the same as Peek's. Most errors come without decisions. With [ErrExceedsLimit]
// there are decisions, and the layer in the error has a denial with its present figures. If a
// store has no answer for a shadow layer, its error comes with the decisions, too.
func (l *Layered[R]) PeekEach(ctx context.Context, r R, cost int) ([]Decision, error) {
	if l != nil && l.joint != nil {
		return l.peekEachJoined(ctx, r, cost)
	}
	s := l.stack()
	defer l.done(s)
	return s.peekEach(r, cost)
}

// Reserve is like Take, but its charge can be settled, in all layers. It books nothing ahead: maxDelay is the maximum delay of
// the work in leaky buckets; with 0 there is none. With a cost of 0 nothing is charged; Settle then charges the cost as
// [Layered.Adjust] does.
func (l *Layered[R]) Reserve(ctx context.Context, r R, cost int, maxDelay time.Duration) (*Reservation, error) {
	if l != nil && l.joint != nil {
		return l.reserveJoined(ctx, r, cost, maxDelay)
	}
	s := l.stack()
	q := queueRequest(maxDelay, keepFor(ctx))
	q.ends = true
	err := s.take(r, cost, q)
	res := s.reservation(r, cost)
	s.report(ctx, r, err)
	l.done(s)
	return res, err
}

// Adjust calls [Keyed.Adjust] in all layers with the caller's cost, but not in shadows.
func (l *Layered[R]) Adjust(ctx context.Context, r R, delta int) error {
	if l != nil && l.joint != nil {
		return l.adjustJoined(ctx, r, delta)
	}
	s := l.stack()
	defer l.done(s)
	if err := s.load(r, 0); err != nil {
		return err
	}
	return s.debit(nil)(delta)
}

// Describe returns each layer's limit in order, without Shadow layers. The limit is the
// zero Limit where each request or key has its own. Describe also returns whether a
// layer has a Cost of its own, and whether a limit is [Concurrent]. BooksAhead is false.
func (l *Layered[R]) Describe() Description {
	limits := l.limits()
	return Description{
		Limits:       limits,
		ReplacesCost: slices.ContainsFunc(l.layers, func(y layer[R]) bool { return y.cost != nil }),
		Holds:        slices.ContainsFunc(limits, func(y Limit) bool { return y.Algorithm == AlgorithmConcurrent }),
	}
}

// Wait charges the cost to all layers and returns nil when they allow it, after the delay of leaky buckets. While they deny
// it, the call waits in the line of the key with the longest denial. It waits there with the calls of [Keyed.Wait], in the
// order of arrival, and books nothing. When it is the first and its time has come, it tries all layers. Then it may move to
// another key's line, again in the order of arrival. If a layer has a Limit, the line notices changed limits within a second.
//
// So calls for the same keys are served first come, first served. If a call's own key is exhausted, it delays no
// others at a shared key. If a leaky bucket's queue is full, the call waits until earlier work has left the queue.
//
// Wait fails at once with [context.DeadlineExceeded] if the layers cannot allow the cost before the deadline. It fails with
// the context's error when the context ends, and with [ErrLimited] if [Options.MaxWaiting] calls already wait for its first
// line's limiter. It also has Take's errors, for example if a limit becomes too low for the cost. A failed Wait has charged
// nothing, with one exception: a cost in the middle of a leaky bucket's queue may stay charged, as with [Reservation.Cancel].
func (l *Layered[R]) Wait(ctx context.Context, r R, cost int) error {
	if l != nil && l.joint != nil {
		return l.waitJoined(ctx, r, cost)
	}
	ctx = wait.OrBackground(ctx)
	s := l.stack()
	defer l.done(s)
	err := l.wait(ctx, s, r, cost)
	if wait.Renewed(ctx, err) == nil {
		s.report(ctx, r, err)
	}
	return err
}

// wait takes the cost as soon as possible, and sleeps until the delay has passed. If the
// call then starts again under other rules, its next attempt takes over the place in line.
func (l *Layered[R]) wait(ctx context.Context, s *stack[R], r R, cost int) (err error) {
	x := attemptsOf(ctx)
	defer func() {
		if c := wait.Renewed(ctx, err); c != nil {
			c.Place = &leftPlace{x, l.clock()}
			return
		}
		x.end(l.clock())
	}()
	for {
		left, err := wait.Left(ctx)
		if err != nil {
			return err
		}
		s.clear()
		q := queueRequest(left, meter.Open)
		q.delay = true // without a delay nothing is left to settle
		q.first, q.number = x.turn, x.number
		if err := s.take(r, cost, q); err != nil {
			return err
		}
		if s.d.Allowed {
			x.end(s.clock)
			return l.sleepOut(wait.Charged(ctx), s, cost)
		}
		// a call that is not the first is denied until the whole line is served, even the calls behind it
		if wait := s.wait(); wait > left && !x.behind() {
			return tooLate(wait, s.d.Limit)
		}
		c := s.slowest()
		key := s.members[c.first].key
		inLine, err := x.stand(s.clock, c, key.home, key.waiting())
		switch {
		case err != nil:
			return err
		case inLine:
			x.early, err = x.turn.comesFirst(ctx, s.clock, l.limitsRequests() && wait.RenewableOf(ctx) == nil)
		default:
			err = wait.Sleep(ctx, s.d.RetryAfter)
		}
		if err != nil {
			return err
		}
	}
}

// limitsRequests reports whether requests have limits of their own.
func (l *Layered[R]) limitsRequests() bool {
	return slices.ContainsFunc(l.layers, func(y layer[R]) bool { return y.limit != nil })
}

// clock returns the layers' clock.
func (l *Layered[R]) clock() Clock { return l.layers[0].clock }

// attempts is a waiting call for several keys. It stands in the line of one at a time.
type attempts struct {
	turn   *turn  // nil if it is in no line
	number uint64 // the number of its arrival, 0 before the first line
	early  bool   // it tries before it is due, since its request's limits may have changed
}

// leftPlace is a call's place from before it started again.
type leftPlace struct {
	attempts
	clock Clock
}

// Abandon takes the call out of its line, if it no longer waits for anything.
func (p *leftPlace) Abandon() { p.end(p.clock) }

// attemptsOf returns the attempts of a call. If the call has started again, they have its place in line.
func attemptsOf(ctx context.Context) (x attempts) {
	if c := wait.RenewableOf(ctx); c != nil {
		if p, ok := c.Place.(*leftPlace); ok {
			x, c.Place = p.attempts, nil
		}
	}
	return x
}

// behind reports whether the call stands in a line behind others.
func (x *attempts) behind() bool {
	if x.turn == nil {
		return false
	}
	owner := lockOwner(x.turn.Line)
	defer owner.mu.Unlock()
	return !x.turn.Over && x.turn.Line.First() != &x.turn.Turn
}

// stand puts the call into the line of a denied charge, and reports true. If the key is not in the table,
// it reports false. Only the first line must have room in its limiter: a waiting call is not refused.
func (x *attempts) stand(clock Clock, c *charge, homeOf func() home, room *waitingRoom) (inLine bool, err error) {
	if t := x.turn; t != nil {
		if c.a != nil && t.stays(c.a, c.cost) {
			return true, nil
		}
		x.end(clock)
	}
	if c.a == nil {
		return false, nil
	}
	if x.number == 0 {
		if !room.enter() {
			return false, room.full(int(c.cost))
		}
		x.number = meter.Arrival()
	} else {
		room.n.Add(1)
	}
	t := &turn{home: homeOf(), room: room}
	if t.Number = x.number; !c.a.tries(clock, c.cost, t) {
		room.leave()
		return false, nil
	}
	x.turn = t
	return true, nil
}

// end takes the call out of its line.
func (x *attempts) end(clock Clock) {
	if t := x.turn; t != nil {
		if x.early { // what ends its wait may end the next call's
			t.urgeNext()
		}
		t.leave(clock)
		t.room.leave()
		x.turn = nil
	}
}

// sleepOut waits until the request may leave its leaky buckets, and cancels the charges if the context ends first.
func (l *Layered[R]) sleepOut(ctx context.Context, s *stack[R], cost int) error {
	if s.d.Delay == 0 {
		return nil
	}
	x := s.charged()
	res := &x.Reservation
	err := res.Wait(ctx)
	_ = res.Settle(cost) // a cancelled reservation ignores it; in memory it cannot fail
	return err
}
