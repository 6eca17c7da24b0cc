package ratelimit

import (
	"fmt"
	"time"
)

// Overflow says what happens to a new key when [Options.MaxKeys] are tracked. Keys
// that are as good as new make room in either case: to forget them loses nothing.
type Overflow uint8

const (
	// EvictOldest forgets one of the least recently used keys, and what it has
	// spent. Keys that were denied and are still throttled get a second chance.
	EvictOldest Overflow = iota
	// RefuseNew denies the new key, with [ErrTableFull].
	RefuseNew
)

// Options are what [New] can be told beyond the limit. Nil and the zero Options
// mean the defaults. Functions in it are called concurrently, outside every lock.
type Options[K comparable] struct {
	// LimitFor returns the limit of a key; the zero Limit means New's, and a limit
	// without a name takes the name of New's. It is asked
	// when a key is first seen, and again after it was forgotten, after SetLimit
	// and after Refresh. Keys that it puts under Unlimited or Blocked are not
	// tracked, and so it is asked for each of their decisions. It may be slow, and
	// may call the limiter. If it returns an invalid limit, the key is denied with
	// ErrInvalidLimit. If nil, all keys have New's limit.
	LimitFor func(key K) Limit

	// MaxKeys is how many keys are tracked at most; exactly so many fit. If zero,
	// 65536. It bounds the keys, of some 250 bytes each and their own text, but not
	// what each sliding log remembers. With layers, leave room for all keys of all
	// requests under way.
	MaxKeys int

	// OnFull says what happens to a new key when MaxKeys are tracked. If zero,
	// EvictOldest.
	OnFull Overflow

	// IdleTTL is how long idle keys are kept at least, as long as there is room.
	// If zero, until they are as good as new. A key that is not as good as new
	// is never dropped for being idle. Without Sweep, keys leave as others come,
	// and no sooner than after a minute.
	IdleTTL time.Duration

	// Clock tells the time. If nil, the system's monotonic clock.
	Clock Clock

	// OnDecision is called after each Allow, Take, Reserve and Wait, with what
	// was decided. It is not called by Peek. It runs in the caller's goroutine,
	// outside every lock. If nil, nothing is.
	OnDecision func(Event[K])
}

const defaultMaxKeys = 65536

func (o *Options[K]) validate() error {
	switch {
	case o.MaxKeys < 0:
		return fmt.Errorf("ratelimit: Options.MaxKeys is %d, want 0 for the default or more", o.MaxKeys)
	case o.OnFull > RefuseNew:
		return fmt.Errorf("ratelimit: Options.OnFull is %d, want EvictOldest or RefuseNew", o.OnFull)
	case o.IdleTTL < 0:
		return fmt.Errorf("ratelimit: Options.IdleTTL is %v, want 0 or more", o.IdleTTL)
	}
	return nil
}
