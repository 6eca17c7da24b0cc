// Package failures remembers, for the length of one decision, which limiters have failed to
// make it. A decision may take several calls, and waits for none of them twice: package lease
// brings the memory along, and package failover uses it.
package failures

import (
	"context"
	"slices"
	"sync"
)

// Set is the limiters that have failed. The zero Set is empty. It is safe for concurrent use.
type Set struct {
	mu  sync.Mutex
	who []any
}

type key struct{}

// With returns a context in which failures are remembered in the set.
func With(ctx context.Context, s *Set) context.Context { return context.WithValue(ctx, key{}, s) }

// Note remembers that a limiter has failed, if the context has a set.
func Note(ctx context.Context, who any) {
	if s, ok := ctx.Value(key{}).(*Set); ok {
		s.mu.Lock()
		defer s.mu.Unlock()
		s.who = append(s.who, who)
	}
}

// Noted reports whether a limiter has failed before in the same decision.
func Noted(ctx context.Context, who any) bool {
	s, ok := ctx.Value(key{}).(*Set)
	if !ok {
		return false
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.Contains(s.who, who)
}
