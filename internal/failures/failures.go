// Package failures remembers, for the length of one decision, which limiters have failed to
// make it. A decision may take several calls, and waits for none of them twice: package lease
// brings the memory along, and package failover uses it. It also holds what both need to tell how a
// call has failed.
package failures

import (
	"context"
	"slices"
	"sync"
)

// List is the limiters that have failed so far. It is never changed. Nil means none.
type List []any

// And returns the list with another one behind it.
func (l List) And(more List) List { return append(slices.Clip(l), more...) }

// Set takes note of limiters that fail. The zero Set is empty. It is safe for concurrent use.
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

// With returns a context for a call of a decision: what failed before, and who takes note of
// what fails now, or nil.
func With(ctx context.Context, before List, now *Set) context.Context {
	return context.WithValue(ctx, key{}, memory{before, now})
}

// Note takes note that a limiter has failed, if the context has a memory.
func Note(ctx context.Context, who any) {
	if m, _ := ctx.Value(key{}).(memory); m.now != nil {
		m.now.mu.Lock()
		defer m.now.mu.Unlock()
		m.now.list = append(m.now.list, who)
	}
}

// Noted reports whether a limiter has failed before in the same decision.
func Noted(ctx context.Context, who any) bool {
	m, ok := ctx.Value(key{}).(memory)
	return ok && (slices.Contains(m.before, who) || m.now != nil && slices.Contains(m.now.List(), who))
}
