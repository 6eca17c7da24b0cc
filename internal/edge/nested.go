package edge

import (
	"context"
	"errors"
	"sync/atomic"
	"time"

	"github.com/weir-go/ratelimit"
	"github.com/weir-go/ratelimit/internal/outcome"
)

// A middleware may contain another one, of the same protocol or of another. If the inner one refuses a request,
// the request is not served. Then the outer one gives its charge back, as a stack of both limits would not have
// charged the outer limit either. Over HTTP and Connect, the inner one finds the outer one in the context. The
// calls of a gRPC interceptor allocate nothing, so it recognizes the inner one's error instead.
//
// A reservation for each request would cost servers with a single middleware too much. So a
// Core begins with Take, and uses Adjust to give the first refused charges back. After the
// first refusal it uses Reserve, whose charge can be given back exactly at any later time.

// Nest is the context of a request inside a middleware.
type Nest struct {
	context.Context
	outer           *Nest
	refused, served atomic.Bool
}

type nestKey struct{}

// Inside returns the context of a request inside a middleware.
func Inside(ctx context.Context) *Nest {
	return &Nest{Context: ctx, outer: nestOf(ctx)}
}

// Value returns the Nest for the key nestKey.
func (n *Nest) Value(k any) any {
	if _, ok := k.(nestKey); ok {
		return n
	}
	return n.Context.Value(k)
}

func nestOf(ctx context.Context) *Nest {
	n, _ := ctx.Value(nestKey{}).(*Nest)
	return n
}

// MarkRefused reports this middleware's refusal of a request to all outer ones, unless clients
// can provoke it: then the charge stays. Otherwise a client could avoid an outer limit by
// address: it would omit its key, and an inner limit by key would refuse the request.
func MarkRefused(ctx context.Context, why outcome.Cause) {
	if why.ByClient() {
		return
	}
	for n := nestOf(ctx); n != nil; n = n.outer {
		n.refused.Store(true)
	}
}

// MarkServed reports a served request to all outer middlewares. A handler may pass
// on several requests. Then one refusal is no reason to give back the whole charge.
func MarkServed(ctx context.Context) {
	for n := nestOf(ctx); n != nil; n = n.outer {
		n.served.Store(true)
	}
}

// WasRefused reports whether an inner middleware has refused the request and none
// has served it. The inner middlewares are inside the context's innermost Nest.
func WasRefused(ctx context.Context) bool {
	n := nestOf(ctx)
	return n != nil && n.refused.Load() && !n.served.Load()
}

// Returns reports whether charges can be given back.
func (c *Core[R]) Returns() bool { return c.returns || c.adjusts }

// Refused gives back a request's charge after an inner limiter has refused it. A reservation is left to its owner to settle.
func (c *Core[R]) Refused(e *Event[R], res *ratelimit.Reservation) {
	if !c.nests.Load() {
		c.nests.Store(true)
	}
	switch {
	case res != nil, !c.adjusts, e.Err != nil, !e.Decision.Allowed, e.Cost <= 0:
	case time.Since(e.at) >= e.Decision.ResetAfter: // all may be regained: then a grant would give back spending of others
	default:
		err := ratelimit.Adjust(context.WithoutCancel(e.Request.Context()), c.limiter, e.Request, -e.Cost)
		if err != nil && !errors.Is(err, errors.ErrUnsupported) {
			c.notSettled(e.Request, err)
		}
	}
}
