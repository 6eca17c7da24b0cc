package redislimit

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/weir-go/ratelimit"
	"github.com/weir-go/ratelimit/internal/wait"
)

// Layered is several limits on one request: all allow it, or none is charged. Its Decision is merged as in [ratelimit.Layered].
// Make one with [All] or [AllOf]. It is safe for concurrent use. The zero Layered cannot be used.
type Layered[R any] struct {
	layers []layer[R]
	store  *store
	pick   func(r R, which []int) []int
	stacks sync.Pool // of *stack[R]
}

var _ ratelimit.Reserver[string] = (*Layered[string])(nil)

// maxLayers is how many layers one decision may have, since a call counts them in a byte.
const maxLayers = 255

// All returns a limiter that decides on all layers in one script call, within the shortest of their Timeouts. The call goes to the
// first layer's client. All layers must reach the same server; in a cluster their keys must share a slot. On a Ring or a
// ClusterClient it refuses a [Global] layer whose key would be on another server.
func All[R any](layers ...ratelimit.Layer[R]) (*Layered[R], error) {
	return newLayered("All", nil, layers)
}

// AllOf is All over the layers whose indices pick appends to which, for each request. Only these cost time. A layer that is
// picked twice counts once.
func AllOf[R any](pick func(r R, which []int) []int, layers ...ratelimit.Layer[R]) (*Layered[R], error) {
	if pick == nil {
		return nil, errors.New("redislimit: AllOf was given no pick function")
	}
	return newLayered("AllOf", pick, layers)
}

func newLayered[R any](name string, pick func(R, []int) []int, layers []ratelimit.Layer[R]) (*Layered[R], error) {
	if len(layers) == 0 {
		return nil, fmt.Errorf("redislimit: %s needs at least one layer", name)
	}
	l := &Layered[R]{pick: pick, layers: make([]layer[R], len(layers))}
	for i, y := range layers {
		var err error
		if l.layers[i], err = layerOf(y); err != nil {
			return nil, fmt.Errorf("redislimit: layer %d: %w", i, err)
		}
	}
	if err := l.checkNames(); err != nil {
		return nil, err
	}
	if err := l.lease(); err != nil {
		return nil, err
	}
	if err := l.checkGlobals(); err != nil && pick == nil {
		return nil, err
	}
	l.store = l.shortest()
	l.stacks.New = func() any { return &stack[R]{of: l} }
	return l, nil
}

// checkNames returns an error if two limiters of the layers have one name and prefix. They would store equal keys in one
// place, and each would take the spending of the other for its own under a limit that has changed.
func (l *Layered[R]) checkNames() error {
	for i := range l.layers {
		a := &l.layers[i]
		for j := range i {
			b := &l.layers[j]
			there := !a.leased && !b.leased || a.l.store.user == b.l.store.user // all but leased ones are sent to one server
			if there && a.l != b.l && a.l.space.begin == b.l.space.begin {
				return fmt.Errorf("redislimit: layers %d and %d have different limiters of one Name and Prefix, which would share their keys: give each a Name of its own", j, i)
			}
		}
	}
	return nil
}

// lease makes the leases of the layers that are spent from some.
func (l *Layered[R]) lease() error {
	for i := range l.layers {
		y := &l.layers[i]
		if !y.leased {
			continue
		}
		for j := range i {
			if other := &l.layers[j]; other.leased && other.l == y.l {
				return fmt.Errorf("redislimit: layers %d and %d are leased from one limiter, whose budget could not be charged for both at once", j, i)
			}
		}
		var err error
		if y.leases, err = leasesFor(y); err != nil {
			return fmt.Errorf("redislimit: layer %d: %w", i, err)
		}
	}
	return nil
}

// checkGlobals returns an error that is certain on a client of several servers: a layer whose only key is on another server
// than the keys beside it.
func (l *Layered[R]) checkGlobals() error {
	for i := range l.layers {
		y := &l.layers[i]
		if !y.global || y.leased || y.l.space.slot != nil || !severalServers(y.l.store.user) {
			continue
		}
		for j := range l.layers {
			if other := &l.layers[j]; !other.global && !other.leased {
				return fmt.Errorf("redislimit: layer %d is Global, and its key would be on another server of the Ring or cluster than the keys of layer %d: "+
					"spend it from leases, with Leased, or give the limiters of both the same Options.Slot", i, j)
			}
		}
	}
	return nil
}

// severalServers reports whether a client has several.
func severalServers(client redis.UniversalClient) bool {
	switch client.(type) {
	case *redis.Ring, *redis.ClusterClient:
		return true
	}
	return false
}

// shortest returns the first layer's store with the shortest timeout of all.
func (l *Layered[R]) shortest() *store {
	s := l.layers[0].l.store
	timeout := s.timeout
	for i := range l.layers {
		if t := l.layers[i].l.store.timeout; t >= 0 && (timeout < 0 || t < timeout) {
			timeout = t
		}
	}
	return s.within(timeout)
}

// Limits returns the limit of each layer that is no shadow, in order; the zero Limit where LimitFor or the layer's Limit gives
// each key or request its own.
func (l *Layered[R]) Limits() []ratelimit.Limit {
	limits := make([]ratelimit.Limit, 0, len(l.layers))
	for i := range l.layers {
		y := &l.layers[i]
		if y.shadow {
			continue
		}
		var limit ratelimit.Limit
		if y.limit == nil && y.l.limitFor == nil {
			limit = y.l.plan.Load().limit
		}
		limits = append(limits, limit)
	}
	return limits
}

// Allow is Take without details. An error counts as false. A cost of 0 is allowed without a call to Redis.
func (l *Layered[R]) Allow(r R, cost int) bool {
	if cost == 0 {
		s := l.stack()
		defer l.done(s)
		err := s.load(r, 0)
		s.report(r, err)
		return err == nil
	}
	d, _ := l.Take(context.Background(), r, cost)
	return d.Allowed
}

// Take charges the cost to all layers, or to none. Errors are as for [Limiter.Take], and of the layers' key functions.
func (l *Layered[R]) Take(ctx context.Context, r R, cost int) (ratelimit.Decision, error) {
	s := l.stack()
	defer l.done(s)
	err := s.take(ctx, r, cost, wait.Forever, opTake)
	s.report(r, err)
	return s.d, err
}

// Peek returns the decision that Take would make. It writes nothing.
func (l *Layered[R]) Peek(ctx context.Context, r R, cost int) (ratelimit.Decision, error) {
	s := l.stack()
	defer l.done(s)
	err := s.take(ctx, r, cost, wait.Forever, opPeek)
	return s.d, err
}

// Reserve is Take with a charge that can be settled, in all layers with one round trip. It books nothing ahead; only leaky
// buckets may delay, by up to maxDelay.
func (l *Layered[R]) Reserve(ctx context.Context, r R, cost int, maxDelay time.Duration) (*ratelimit.Reservation, error) {
	s := l.stack()
	defer l.done(s)
	err := s.take(ctx, r, cost, max(0, maxDelay), reserveOp(ctx))
	s.report(r, err)
	return ratelimit.NewReservation(s.d, s.settler(cost)), err
}

// Describe returns the limits, and whether a layer has a Cost of its own. BooksAhead is false.
func (l *Layered[R]) Describe() ratelimit.Description {
	return ratelimit.Description{Limits: l.Limits(), ReplacesCost: slices.ContainsFunc(l.layers, func(y layer[R]) bool { return y.cost != nil })}
}

// Wait charges the cost to all layers and returns nil when they allow it, after the delay of leaky buckets. Until then it sleeps
// RetryAfter and tries again. It fails as [ratelimit.Layered.Wait] does, or with the errors of Take.
func (l *Layered[R]) Wait(ctx context.Context, r R, cost int) error {
	if ctx == nil {
		ctx = context.Background()
	}
	s := l.stack()
	defer l.done(s)
	err := s.wait(ctx, r, cost)
	s.failedWait = err != nil
	s.report(r, err)
	return err
}

func (l *Layered[R]) stack() *stack[R] {
	if l == nil || len(l.layers) == 0 {
		panic("redislimit: a Layered that was not made by All or AllOf")
	}
	s := l.stacks.Get().(*stack[R])
	s.request = new(request)
	return s
}

func (l *Layered[R]) done(s *stack[R]) {
	s.clear()
	l.stacks.Put(s)
}
