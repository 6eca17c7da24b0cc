package inflight

import (
	"cmp"
	"errors"
	"time"

	"github.com/weir-go/ratelimit"
	"github.com/weir-go/ratelimit/internal/optional"
)

// Options configure [New] besides the limit. Nil and the zero Options mean the
// defaults. Functions may be called concurrently, and may call the limiter. LimitFor,
// Weight and Priority are called when a key is first seen, and by [Limiter.Refresh].
type Options[K comparable] struct {
	// LimitFor returns a key's limit. 0 means New's limit. A negative limit blocks the
	// key: its calls fail with [ratelimit.ErrBlocked]. If nil, all keys have New's limit.
	LimitFor func(key K) int

	// Total bounds the units in flight over all keys. Waiting keys share it by Weight. If zero, there is no such bound.
	Total int

	// Shared makes the limit over all keys adapt. For example, set it to [Learn]. Total is
	// its upper bound and must be set; Adaptive must not be set. If nil, Total is fixed.
	Shared func() Algorithm

	// Weight returns a key's share of Total while several keys wait for it, from 1 to 2^20. If nil, each key's weight is 1.
	Weight func(key K) int

	// Priority returns a key's level. Freed units of Total go to the highest level with waiters, so lower levels
	// can starve. If work must go on, use Weight. Under a Shared limit, lower levels have less work in flight while
	// higher levels' calls are late. TryAcquire gets a unit only if no waiter at its level or a higher one waits
	// for it, so high levels should call Acquire with a short deadline. If nil, all keys have the same level.
	Priority func(key K) int

	// MaxWaiting is how many calls to Acquire may wait, over all keys. At the maximum, a caller replaces the newest
	// waiter at the lowest level, or is refused if no level with waiters is below its own. If zero, there is no maximum.
	MaxWaiting int

	// OnLimit is called after an algorithm has changed a limit. The calls for one limit are
	// in order. For Shared's limit, key is the zero value. If nil, changes are not reported.
	OnLimit func(key K, old, new int)

	// Shadow makes a dry run. If a call would be refused or would wait, it passes at once, and counts in Stats.Shed.
	Shadow bool

	// MaxQueue is how many calls to Acquire may wait for each key. Further
	// calls fail with [ratelimit.ErrLimited]. If zero, no call waits.
	MaxQueue int

	// Adaptive makes each key's limit follow its work's latency. Set it to [Learn], or to a function returning
	// your own algorithm. The limit given by New or LimitFor is then the upper bound. If nil, limits are fixed.
	Adaptive func() Algorithm

	// MaxKeys is the maximum number of tracked keys. It defaults to 65,536. A full table forgets the
	// longest idle key, with its learnt limit. If no key is idle, a new key gets [ratelimit.ErrTableFull].
	MaxKeys int

	// Clock times adaptive limits, shares, waits and Stats. It defaults to the system's monotonic clock.
	Clock ratelimit.Clock
}

const defaultMaxKeys = 65536

func (o *Options[K]) validate() error {
	if err := cmp.Or(
		optional.NotNegative("inflight: Options.Total", o.Total, "none"),
		optional.NotNegative("inflight: Options.MaxQueue", o.MaxQueue, "none"),
		optional.NotNegative("inflight: Options.MaxWaiting", o.MaxWaiting, "none"),
		optional.NotNegative("inflight: Options.MaxKeys", o.MaxKeys, "the default"),
		optional.NilInside("inflight: Options.Clock", o.Clock),
	); err != nil {
		return err
	}
	switch {
	case o.Shared != nil && o.Total == 0:
		return errors.New("inflight: Options.Shared needs Options.Total, its upper bound")
	case o.Shared != nil && o.Adaptive != nil:
		return errors.New("inflight: Options.Shared and Options.Adaptive do not go together")
	}
	return cmp.Or(checkAlgorithm("Adaptive", o.Adaptive), checkAlgorithm("Shared", o.Shared))
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
			_, c.pool.learner.system = o.Clock.(systemClock)
			c.pool.setLocked(c.pool.learner.limit(bound), bound)
			if o.OnLimit != nil {
				var none K
				c.pool.learner.report = func(old, new int) { o.OnLimit(none, old, new) }
			}
		}
	}
	return c
}

// config calls the functions in Options for a key.
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
