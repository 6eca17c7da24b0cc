package edge

import (
	"context"
	"errors"
	"sync/atomic"
	"time"

	"github.com/weir-go/ratelimit"
	"github.com/weir-go/ratelimit/internal/outcome"
)

// A middleware may have another one inside, of the same protocol or of another. A request that the inner
// one refuses is not served. So the outer one gives its charge back: one stack of both limits would not
// have charged it either. Over HTTP and Connect the inner one finds the outer one in the context. A gRPC
// interceptor, whose calls allocate nothing, recognizes the inner one's error instead.
//
// To reserve each request only because one may be refused inside would cost all servers that have one middleware. So a Core begins with
// Take, and gives the first refused charges back by Adjust. From the first one on it reserves, which is exact at any later time.

// Nest is the context of the requests inside a middleware.
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

// Value finds the Nest itself.
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

// MarkRefused reports to all outer middlewares that this one refuses a request for the
// given cause. A refusal that clients can provoke stays charged. Otherwise a client could
// omit its key to be refused by a limit by key, and escape an outer limit by address.
func MarkRefused(ctx context.Context, why outcome.Cause) {
	if why.ByClient() {
		return
	}
	for n := nestOf(ctx); n != nil; n = n.outer {
		n.refused.Store(true)
	}
}

// MarkServed records that a middleware has served a request, for all around it. A handler may pass several requests on: then one
// refusal is no reason to give back the charge of all.
func MarkServed(ctx context.Context) {
	for n := nestOf(ctx); n != nil; n = n.outer {
		n.served.Store(true)
	}
}

// WasRefused reports whether a middleware inside the innermost one of the context has refused the request, and none has served it.
func WasRefused(ctx context.Context) bool {
	n := nestOf(ctx)
	return n != nil && n.refused.Load() && !n.served.Load()
}

// Returns reports whether charges can be given back.
func (c *Core[R]) Returns() bool { return c.returns || c.adjusts }

// Refused gives back the charge of a request that an inner limiter
// has refused. A reservation is left to its owner, who settles it.
func (c *Core[R]) Refused(e *Event[R], res *ratelimit.Reservation) {
	if !c.nests.Load() {
		c.nests.Store(true)
	}
	switch {
	case res != nil, !c.adjusts, e.Err != nil, !e.Decision.Allowed, e.Cost <= 0:
	case time.Since(e.at) >= e.Decision.ResetAfter: // all of it may be regained, and a grant would be for the spending of others
	default:
		err := ratelimit.Adjust(context.WithoutCancel(e.Request.Context()), c.limiter, e.Request, -e.Cost)
		if err != nil && !errors.Is(err, errors.ErrUnsupported) {
			c.notSettled(e.Request, err)
		}
	}
}
