package outcome

import (
	"context"
	"sync/atomic"
)

type refusalKey struct{}

// refusalMark is the context of the requests inside an adaptive limit. A limiter of this library sets the mark
// when it refuses such a request, because the adaptive limit must not count the refusal as the backend's overload.
type refusalMark struct {
	context.Context
	set   atomic.Bool
	outer *refusalMark // the mark of the limit around this one
}

// Value returns the mark itself for the key refusalKey.
func (m *refusalMark) Value(k any) any {
	if _, ok := k.(refusalKey); ok {
		return m
	}
	return m.Context.Value(k)
}

func refusalMarkOf(ctx context.Context) *refusalMark {
	m, _ := ctx.Value(refusalKey{}).(*refusalMark)
	return m
}

// WatchRefusals returns a context for the requests inside an adaptive limit. Given
// this context, [WasRefused] reports whether a limiter has refused the request.
func WatchRefusals(ctx context.Context) context.Context {
	return &refusalMark{Context: ctx, outer: refusalMarkOf(ctx)}
}

// MarkRefused marks a request as refused by a limiter, for all limits watching its context.
func MarkRefused(ctx context.Context) {
	for m := refusalMarkOf(ctx); m != nil; m = m.outer {
		m.set.Store(true)
	}
}

// WasRefused reports whether a limiter has refused the request inside the innermost limit watching its context.
func WasRefused(ctx context.Context) bool {
	m := refusalMarkOf(ctx)
	return m != nil && m.set.Load()
}
