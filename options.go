package ratelimit

import (
	"cmp"
	"fmt"
	"math"
	"time"

	"github.com/weir-go/ratelimit/internal/optional"
)

// Overflow selects how a new key is handled while [Options.MaxKeys] are tracked. The zero Overflow drops
// a key without recent use, and forgets its spending. A key whose last decision was a denial leaves last.
type Overflow uint8

const (
	evictLeastUsed Overflow = iota

	// RefuseNew drops only a fresh key, so nothing is forgotten. If no key is fresh, the new one is denied with
	// [ErrTableFull]. A new key in a full table costs O(log MaxKeys) on average. Each call examines at most 512
	// keys and continues where the previous call stopped. While a fresh key hides among thousands of keys in use, a few new
	// keys may therefore be denied before it is found.
	RefuseNew
)

// Options configure [New] besides the limit. Nil and the zero Options are the
// defaults. Their functions are called concurrently, while no lock is held.
type Options[K comparable] struct {
	// LimitFor returns a key's limit. The zero Limit stands for New's, and a limit without a name takes the name of
	// New's. It is called for each new key, and for every key once after SetLimit or Refresh. It may be slow: other calls
	// for the key, even Peek, wait for its result and share it. It may call the limiter for other keys. The limiter keeps
	// the results for up to MaxKeys untracked keys, such as keys under Unlimited and Blocked, and drops further ones in
	// no order. An invalid limit fails the decision with ErrInvalidLimit, and the next decision calls LimitFor again. If
	// LimitFor panics, so does its caller, and the next call calls it again. If nil, all keys are under New's limit.
	LimitFor func(key K) Limit

	// MaxKeys is the maximum number of tracked keys. It defaults to 65,536. A key with up to 40 bytes of text takes about
	// 155 bytes. RefuseNew adds 75, and a sliding log stores its spendings besides. The table grows in small parts: with
	// up to a million keys, an insertion may take a few milliseconds, and longer during a garbage collection.
	//
	// If a client invents more keys, the limiter forgets its denials.
	// To prevent it, set Remember or RefuseNew, or a second limit.
	MaxKeys int

	// OnFull selects how a new key is handled while MaxKeys are tracked. Zero drops another key.
	OnFull Overflow

	// Remember is how many evicted keys have their spending kept, at 16 bytes per key and at
	// most 1<<30. Zero keeps none. Fresh keys are not kept. It cannot be set with RefuseNew.
	//
	// A returning key begins with no more than it had; debts above the capacity, grants and bookings
	// are not remembered. While there is room, no key passes more than its limit's bound. Without room,
	// the keys that are fresh soonest are forgotten. For an evicted key, buckets are exact to 1 ms.
	// Under the other algorithms the key may wait longer than its last RetryAfter, but no longer than
	// the limit's RefillTime. One in some thousands of new keys begins with less. See docs/promises.md.
	Remember int

	// IdleTTL is the minimum time for which an idle key is kept, while there is room. With
	// zero, it is kept until it is fresh. Only fresh keys are dropped for being idle.
	IdleTTL time.Duration

	// MaxWaiting is how many calls may wait at one time, for all keys together, each
	// in a goroutine. If a further [Keyed.Wait], [Layered.Wait] or [Reservation.Wait]
	// would have to wait, it fails at once with ErrLimited. Zero means no maximum.
	MaxWaiting int

	// Clock measures time. It defaults to the system's monotonic clock.
	Clock Clock

	// OnDecision is called after each Allow, Take, Reserve and Wait, on the caller's goroutine. If nil, nothing is called.
	OnDecision func(Event[K])
}

const defaultMaxKeys = 65536

func (o *Options[K]) validate() error {
	if err := cmp.Or(
		optional.NotNegative("ratelimit: Options.MaxKeys", o.MaxKeys, "the default"),
		optional.NotNegative("ratelimit: Options.IdleTTL", o.IdleTTL, "none"),
		optional.NotNegative("ratelimit: Options.MaxWaiting", o.MaxWaiting, "no maximum"),
		optional.Within("ratelimit: Options.Remember", o.Remember, maxRemember, "none"),
		optional.NilInside("ratelimit: Options.Clock", o.Clock),
		optional.Constant("ratelimit: Options.OnFull", o.OnFull, RefuseNew, "0 or RefuseNew"),
	); err != nil {
		return err
	}
	switch {
	case o.Remember > math.MaxInt/rememberedBytes:
		return fmt.Errorf("ratelimit: Options.Remember is %d, which takes more memory than can be addressed", o.Remember)
	case o.Remember > 0 && o.OnFull == RefuseNew:
		return fmt.Errorf("ratelimit: Options.Remember is %d with RefuseNew, which forgets no key that is not fresh; want 0", o.Remember)
	}
	return nil
}

// Stats counts the tracked, expired, evicted and refused keys since the limiter was made.
type Stats struct {
	// Keys counts the keys tracked now.
	Keys int
	// Expired counts the keys dropped when fresh.
	Expired uint64
	// Evicted counts the keys dropped before they were fresh. If it grows, MaxKeys is too small.
	Evicted uint64
	// EvictedThrottled counts the evicted keys forgotten after a denial. With [Options.Remember] it is 0.
	EvictedThrottled uint64
	// Refused counts the failures with ErrTableFull.
	Refused uint64
	// Recalled counts the new keys with less than the full budget, because of [Options.Remember].
	Recalled uint64
	// Overflowed counts the keys forgotten by [Options.Remember] before they were fresh. If it grows, Remember is too small.
	Overflowed uint64
	// Waiting counts the calls in line now: see [Options.MaxWaiting].
	Waiting int
}
