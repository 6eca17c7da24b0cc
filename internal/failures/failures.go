// Package failures records the limiters that have failed during one decision. A decision may take
// several calls, and must not wait twice for a failed limiter. Package lease adds the record to
// the context, and package failover reads it. Both also use this package to describe panics.
package failures

import (
	"context"
	"slices"
	"sync"
)

// List holds the limiters that have failed so far. It is immutable. A nil List is empty.
type List []any

// And returns the list with more appended.
func (l List) And(more List) List { return append(slices.Clip(l), more...) }

// Set collects the limiters that fail. The zero Set is empty. It is safe for concurrent use.
type Set struct {
	mu   sync.Mutex
	list List
}

// List returns the limiters that have failed.
func (s *Set) List() List {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.Clip(s.list)
}

type key struct{}

type memory struct {
	before List
	now    *Set
}

// With returns a context for one call of a decision. The context holds the earlier
// failed limiters, and the set to add later failures to. The set may be nil.
func With(ctx context.Context, before List, now *Set) context.Context {
	return context.WithValue(ctx, key{}, memory{before, now})
}

// Note adds a failed limiter to the context's set, if there is one.
func Note(ctx context.Context, who any) {
	if m, _ := ctx.Value(key{}).(memory); m.now != nil {
		m.now.mu.Lock()
		defer m.now.mu.Unlock()
		m.now.list = append(m.now.list, who)
	}
}

// Noted reports whether a limiter failed earlier in the same decision.
func Noted(ctx context.Context, who any) bool {
	m, ok := ctx.Value(key{}).(memory)
	return ok && (slices.Contains(m.before, who) || m.now != nil && slices.Contains(m.now.List(), who))
}
