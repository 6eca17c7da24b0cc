// Package estimates lets a stack obtain two figures about its keys from its store: their spending before and
// after a call, and the estimates of their open reservations. A store without this support returns nothing.
package estimates

import "context"

// Watch requests the spending of a call's keys. It also covers the later settlement.
type Watch struct {
	Keys []Key // one for each charge, in the charges' order
}

// Key is one charge's key, with the figures that the store returns.
type Key struct {
	Wanted bool

	// Open is the sum of the estimates of the key's open reservations
	// before the decision, or -1 if the store does not record it.
	Open int64

	// These fields belong to the settlement or adjustment. They are valid if Answered is set.
	// After is the key's ratelimit.Decision after it, or nil if the key has no spending left.
	Answered              bool
	Before                int64
	OpenBefore, OpenAfter int64
	After                 any
}

// key is the context key of a Watch.
type key struct{}

// With returns a call's context. The store writes the spending to w.
func With(ctx context.Context, w *Watch) context.Context { return context.WithValue(ctx, key{}, w) }

// Of returns a call's Watch, or nil if it has none.
func Of(ctx context.Context) *Watch {
	w, _ := ctx.Value(key{}).(*Watch)
	return w
}
