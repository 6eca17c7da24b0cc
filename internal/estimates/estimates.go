// Package estimates lets a stack request from its store the spending of keys before and after a call,
// and the estimates of their open reservations. A store that does not implement it returns none.
package estimates

import "context"

// Watch requests the spending of a call's keys, and of the settlement after it.
type Watch struct {
	Keys []Key // one for each charge, in order
}

// Key is one charge's key, with the answer of the store.
type Key struct {
	Wanted bool

	// Open is the sum of the estimates of the key's open reservations before the decision, and -1 if the store does not keep it.
	Open int64

	// The settlement or the adjustment, once it is Answered. After is the ratelimit.Decision that the key stands at, nil if the key has no
	// spending any more.
	Answered              bool
	Before                int64
	OpenBefore, OpenAfter int64
	After                 any
}

// key is the key of a context's Watch.
type key struct{}

// With returns the context of a call that is to be answered with the spending.
func With(ctx context.Context, w *Watch) context.Context { return context.WithValue(ctx, key{}, w) }

// Of returns the Watch of a call, nil if it has none.
func Of(ctx context.Context) *Watch {
	w, _ := ctx.Value(key{}).(*Watch)
	return w
}
