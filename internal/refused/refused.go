// Package refused marks requests that a limiter of this library has refused, in their contexts. A limit
// around it that adapts must not take that for an overload of the backend.
package refused

import (
	"context"
	"sync/atomic"
)

type key struct{}

// mark is one limit that watches a request, and the one around it.
type mark struct {
	set   atomic.Bool
	outer *mark
}

func of(ctx context.Context) *mark {
	m, _ := ctx.Value(key{}).(*mark)
	return m
}

// Watch returns a context for what is inside a limit.
func Watch(ctx context.Context) context.Context {
	return context.WithValue(ctx, key{}, &mark{outer: of(ctx)})
}

// Mark notes that a limiter has refused a request with this context, or another one that was made
// for it.
func Mark(ctx context.Context) {
	for m := of(ctx); m != nil; m = m.outer {
		m.set.Store(true)
	}
}

// Is reports whether a limiter inside the one that watches has refused the request.
func Is(ctx context.Context) bool {
	m := of(ctx)
	return m != nil && m.set.Load()
}
