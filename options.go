package ratelimit

import (
	"fmt"
	"math"
	"time"

	"github.com/weir-go/ratelimit/internal/nilcheck"
)

// Overflow says what happens to a new key when [Options.MaxKeys] are tracked.
type Overflow uint8

const (
	// EvictLeastUsed drops another key, and forgets what it had spent. It looks at a few of the
	// keys that were inserted or used least recently, and takes, in this order: one that is fresh,
	// one that was not used lately, one in use, one that is throttled.
	EvictLeastUsed Overflow = iota
	// RefuseNew drops a key only if it is fresh, so that nothing is forgotten. If no key in
	// the whole table is fresh, the new key is denied with [ErrTableFull]. Keys that other
	// calls are using at this moment do not count. If a key's limit has changed since
	// its last decision, its old limit says whether it is fresh. A new key in a full table costs
	// O(log MaxKeys), averaged over all decisions.
	RefuseNew
)

// Options are the settings of [New] besides the limit. Nil and the zero Options are
// the defaults. Their functions are called concurrently, and no lock is held then.
type Options[K comparable] struct {
	// LimitFor returns the limit of a key. The zero Limit means New's limit, and a limit
	// without a name takes the name of New's. It is called when a key is first
	// seen, and again after the key was dropped, after SetLimit and after Refresh. Keys under
	// Unlimited or Blocked are not tracked, so it is called for each of their
	// decisions. It may be slow, and may call the limiter. If it returns an invalid
	// limit, the decision fails with ErrInvalidLimit. If LimitFor is nil, all keys
	// are under New's limit.
	LimitFor func(key K) Limit

	// MaxKeys is how many keys are tracked at most; exactly that many fit. If zero, 65536.
	// A key takes about 170 bytes besides its own text, and 75 more with RefuseNew. What
	// a sliding log remembers comes on top. Above 65536, New allocates the key map at once, for up
	// to 4 million keys: 32 to 64 of those bytes for each. With layers, leave room for all keys of
	// all requests that are decided at the same time.
	MaxKeys int

	// OnFull says what happens to a new key when MaxKeys are tracked. If zero,
	// EvictLeastUsed.
	OnFull Overflow

	// Remember is how many keys are remembered that were evicted while they were not fresh:
	// what they have spent, in 16 bytes each, which New allocates. If zero, none. At most 1<<30.
	//
	// As long as no more than Remember keys are remembered, no key passes more than its limit's
	// bound, however many keys come. What is a debt above the capacity, granted or booked ahead is
	// not remembered. A key that was fresh, or that has become so since, is not remembered either.
	// If there are more keys, those that are fresh soonest are forgotten first, and
	// [Stats.Overflowed] counts them.
	//
	// A key that comes back begins with no more than it had. RetryAfter and ResetAfter hold only
	// while the key stays in the table. Later, buckets are exact to 1 ms, the other
	// algorithms may take back more than the key has spent, up to all that is spent in a
	// window. Of new keys that have spent nothing, one in some thousands begins with less, because 16
	// bits of its hash are those of another key. What is remembered is read under the limit in
	// force: the instant at which the key is fresh stays, and at most the new limit's
	// [Limit.RefillTime] is left.
	//
	// Readings of the clock before that of New count as that. What is remembered of keys that
	// are fresh later than 17 years after New ends never. It is an error to set Remember with
	// RefuseNew, which forgets nothing.
	Remember int

	// IdleTTL is for how long idle keys are kept at least, while there is room. If
	// zero, until they are fresh. A key that is not fresh is never dropped for being
	// idle. Without Sweep, keys are dropped only as new ones come, and
	// not before they were idle for a minute.
	IdleTTL time.Duration

	// Clock tells the time. If nil, it is the system's monotonic clock.
	Clock Clock

	// OnDecision is called after each Allow, Take, Reserve and Wait with what was
	// decided. Peek does not call it. It runs in the caller's goroutine. If nil, nothing
	// is called.
	OnDecision func(Event[K])
}

const defaultMaxKeys = 65536

func (o *Options[K]) validate() error {
	switch {
	case o.MaxKeys < 0:
		return fmt.Errorf("ratelimit: Options.MaxKeys is %d, want 0 for the default or more", o.MaxKeys)
	case o.OnFull > RefuseNew:
		return fmt.Errorf("ratelimit: Options.OnFull is %d, want EvictLeastUsed or RefuseNew", o.OnFull)
	case o.Remember < 0 || o.Remember > maxRemember:
		return fmt.Errorf("ratelimit: Options.Remember is %d, want 0 for none, or up to 1<<30", o.Remember)
	case o.Remember > math.MaxInt/rememberedBytes:
		return fmt.Errorf("ratelimit: Options.Remember is %d, which takes more memory than can be addressed", o.Remember)
	case o.Remember > 0 && o.OnFull == RefuseNew:
		return fmt.Errorf("ratelimit: Options.Remember is %d with RefuseNew, which forgets no key that is not fresh; want 0", o.Remember)
	case o.IdleTTL < 0:
		return fmt.Errorf("ratelimit: Options.IdleTTL is %v, want 0 or more", o.IdleTTL)
	case o.Clock != nil && nilcheck.IsNil(o.Clock):
		return fmt.Errorf("ratelimit: Options.Clock is a nil %T, want a clock or none", o.Clock)
	}
	return nil
}
