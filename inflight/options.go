package inflight

import (
	"cmp"
	"errors"
	"fmt"
	"time"

	"github.com/weir-go/ratelimit"
)

// Options are what [New] can be told beyond the limit. Nil and the zero Options mean
// the defaults. Functions in it are called concurrently, under no lock, and may call
// the limiter.
type Options[K comparable] struct {
	// LimitFor returns the limit of a key, in units; 0 means New's limit, and less
	// than 0 that the key is blocked ([ratelimit.ErrBlocked]). It is asked when a key
	// is first seen, again after the key was forgotten, and by [Limiter.Refresh]. If
	// nil, all keys have New's limit.
	LimitFor func(key K) int

	// Total is how many units are in flight at most, over all keys together. Keys
	// that wait for it share its slot-time fairly, by Weight. All keys share one lock then. If
	// zero, there is no such limit.
	Total int

	// Shared makes the limit over all keys adapt: one limit for one backend that many tenants
	// use. Total, which it needs, is its upper bound. What is above it for now, but not above
	// Total, waits. It does not go together with Adaptive. If nil, Total is fixed.
	Shared Adaptive

	// Weight is a key's share of Total while several keys wait for it: a key of
	// weight 3 gets three times as much slot-time as one of weight 1. Below 1 counts as
	// 1, and above 2^20 as 2^20. It is asked when LimitFor is. If nil, all keys
	// weigh 1.
	Weight func(key K) int

	// Priority is a key's level when Total is contended: all that becomes free goes to the highest
	// level with waiters, so a low one can starve; within a level keys share by Weight. What becomes
	// free goes to a waiter, of whatever level, before a TryAcquire sees it. So a high level whose callers
	// do not wait gets nothing while a low one waits: let them Acquire with a short deadline. It is asked
	// when LimitFor is. If nil, all keys are alike.
	Priority func(key K) int

	// MaxWaiting is how many calls of Acquire may wait over all keys, beside MaxQueue. When
	// it is reached, the newest waiter of the lowest level makes room for a caller of a
	// higher one, and gets [ErrShed]; other callers are refused. All keys share one lock then.
	// If zero, there is no such bound.
	MaxWaiting int

	// OnLimit is called when an adaptive limit has changed. The key is the zero value for the limit
	// that is Shared. Calls for one limit come one after the other.
	OnLimit func(key K, old, new int)

	// Shadow makes a dry run: all is counted, and what would be refused or would wait counts
	// in Stats.Shed, but passes at once.
	Shadow bool

	// MaxQueue is how many calls of Acquire may wait for each key. Further ones fail
	// with [ratelimit.ErrLimited], so a key that floods only fills its own queue. If
	// zero, none waits: Acquire fails at once, as TryAcquire does.
	MaxQueue int

	// Adaptive makes each key's limit follow the latency of its work: [AIMD],
	// [Vegas], [Gradient] or one of your own. The limit given by New or LimitFor is
	// then the upper bound. If nil, limits are fixed.
	Adaptive Adaptive

	// MaxKeys is how many keys are tracked at most. Only a full table forgets a key:
	// the one that has been idle (nothing in flight, nobody waiting) for longest. An
	// adaptive key then loses what it has learnt. If all are busy, a new key gets
	// [ratelimit.ErrTableFull]. In a table of more than 1024 keys, the order of idle
	// keys is kept once it is half full; keys that were not used since then count as
	// idle for longest, oldest first. If zero, 65536.
	MaxKeys int

	// Clock tells the time, for adaptive limits, waits and Stats. If nil, the
	// system's monotonic clock.
	Clock ratelimit.Clock
}

const defaultMaxKeys = 65536

func (o *Options[K]) validate() error {
	switch {
	case o.Total < 0:
		return fmt.Errorf("inflight: Options.Total is %d, want 0 for none or more", o.Total)
	case o.MaxQueue < 0:
		return fmt.Errorf("inflight: Options.MaxQueue is %d, want 0 for none or more", o.MaxQueue)
	case o.MaxWaiting < 0:
		return fmt.Errorf("inflight: Options.MaxWaiting is %d, want 0 for none or more", o.MaxWaiting)
	case o.Shared != nil && o.Total == 0:
		return errors.New("inflight: Options.Shared needs Options.Total, its upper bound")
	case o.Shared != nil && o.Adaptive != nil:
		return errors.New("inflight: Options.Shared and Options.Adaptive do not go together")
	case o.MaxKeys < 0:
		return fmt.Errorf("inflight: Options.MaxKeys is %d, want 0 for the default or more", o.MaxKeys)
	}
	if err := o.Adaptive.validate("Adaptive"); err != nil {
		return err
	}
	return o.Shared.validate("Shared")
}

func (o *Options[K]) defaults() {
	if o.MaxKeys == 0 {
		o.MaxKeys = defaultMaxKeys
	}
	if o.Clock == nil {
		o.Clock = systemClock{}
	}
}

func (o *Options[K]) common() *common {
	c := &common{last: -maxReading, clock: o.Clock, maxQueue: o.MaxQueue, maxWaiting: o.MaxWaiting, adaptive: o.Adaptive, shadow: o.Shadow}
	c.timed = o.Adaptive != nil || o.Total > 0 || o.MaxWaiting > 0
	if o.Total > 0 || o.MaxWaiting > 0 {
		bound := cmp.Or(o.Total, noTotal)
		c.pool = new(pool)
		c.pool.setLocked(bound, bound)
		if o.Shared != nil {
			c.pool.learner = newLearner(o.Shared())
			c.pool.learner.each = c.pool.learner.eachOfBusy
			c.pool.setLocked(c.pool.learner.limit(bound), bound)
			if o.OnLimit != nil {
				var none K
				c.pool.learner.report = func(old, new int) { o.OnLimit(none, old, new) }
			}
		}
	}
	return c
}

// config asks what holds for a key.
func (o *Options[K]) config(key K) (c config) {
	c.weight = 1
	if o.LimitFor != nil {
		c.limit = o.LimitFor(key)
	}
	if o.Weight != nil {
		c.weight = o.Weight(key)
	}
	if o.Priority != nil {
		c.priority = o.Priority(key)
	}
	return c
}

// systemClock reads the monotonic clock.
type systemClock struct{}

var origin = time.Now()

// Now returns the time since the program's start.
func (systemClock) Now() time.Duration { return time.Since(origin) }
