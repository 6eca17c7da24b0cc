// Package refused marks requests that a limiter of this library has refused, in their contexts. A limit
// around it that adapts must not take that for an overload of the backend.
package refused

import (
	"context"
	"sync/atomic"
)

type key struct{}

// mark is the context of what is inside a limit that watches.
type mark struct {
	context.Context
	set   atomic.Bool
	outer *mark // of the limit around that one
}

// Value finds the mark itself.
func (m *mark) Value(k any) any {
	if _, ok := k.(key); ok {
		return m
	}
	return m.Context.Value(k)
}

func of(ctx context.Context) *mark {
	m, _ := ctx.Value(key{}).(*mark)
	return m
}

// Watch returns a context for what is inside a limit.
func Watch(ctx context.Context) context.Context { return &mark{Context: ctx, outer: of(ctx)} }

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
