package ratelimittest

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"time"

	"github.com/weir-go/ratelimit"
)

// Config tells the suite about the engine that it is to test. New and one of
// Clock and Advance are required.
type Config struct {
	// New returns a new limiter that holds each key to the limit. What the suite
	// has spent through one limiter must not be found in the next. The suite never
	// uses a key twice in one Run or Check, and derives keys from the seed, so
	// limiters may share a store.
	New func(limit ratelimit.Limit) (ratelimit.Limiter[string], error)

	// Clock is the clock that New's limiters read. With it the suite sets time
	// back, goes through negative readings and decades, and counts how often the
	// clock is read. If nil, Advance moves the time.
	Clock *Clock

	// Advance moves the time of New's limiters on by d, which is positive and a
	// multiple of Resolution. It is for an engine whose time is elsewhere, say in a
	// server. Time does not step back then, and what would take longer than ten
	// days is left out. It is not used if there is a Clock.
	Advance func(d time.Duration)

	// Resolution is the unit in which the engine knows time: a nanosecond, if
	// zero. With a microsecond, the suite moves time by whole microseconds only,
	// expects spans in whole microseconds, rounded up, and probes one microsecond
	// before an instant where it would probe one nanosecond before. The engine
	// is not tried with a Rate.Per that is not a multiple of it.
	Resolution time.Duration

	// Accepts reports whether the engine knows limits like this one: it may lack an
	// algorithm, or count less far. The suite leaves the others out. If nil, it knows
	// every valid limit.
	Accepts func(limit ratelimit.Limit) bool

	// NewFloat is New for an engine whose keys may be of any comparable type. NaN,
	// the key that does not equal itself, is tried on it. If nil, it is not.
	NewFloat func(limit ratelimit.Limit) (ratelimit.Limiter[float64], error)

	// NewBounded is New for an engine that tracks at most so many keys and makes
	// room by forgetting old ones. A flood of keys is tried on it. If nil, it is not.
	NewBounded func(limit ratelimit.Limit, maxKeys int) (ratelimit.Limiter[string], error)

	// Histories is how many random histories are played for each check and each
	// algorithm: 40, if zero.
	Histories int

	// Seed repeats a run: every failure names the seed that led to it. If zero,
	// each run draws another.
	Seed uint64
}

// withDefaults returns the config with nothing left to be guessed.
func (c Config) withDefaults() (Config, error) {
	switch {
	case c.New == nil:
		return c, errors.New("ratelimittest: Config.New is nil")
	case c.Clock == nil && c.Advance == nil:
		return c, errors.New("ratelimittest: Config.Clock and Config.Advance are both nil")
	case c.Resolution < 0:
		return c, fmt.Errorf("ratelimittest: Config.Resolution is %v, want zero or more", c.Resolution)
	case c.Histories < 0:
		return c, fmt.Errorf("ratelimittest: Config.Histories is %d, want zero or more", c.Histories)
	}
	if c.Resolution == 0 {
		c.Resolution = 1
	}
	if c.Histories == 0 {
		c.Histories = 40
	}
	if c.Seed == 0 {
		c.Seed = rand.Uint64()
	}
	return c, nil
}

// accepts reports whether the engine is to be tried with the limit.
func (c *Config) accepts(l ratelimit.Limit) bool {
	if l.Validate() != nil || l.Rate.Per%c.Resolution != 0 {
		return false
	}
	if c.Clock == nil && whole(l) > reach {
		return false
	}
	return c.Accepts == nil || c.Accepts(l)
}

// reach is the longest span that is tried where time cannot be set back again.
const reach = 10 * 24 * time.Hour

// whole is an upper bound of the time after which a key is as good as new, if its
// whole capacity was spent.
func whole(l ratelimit.Limit) time.Duration {
	perUnit := float64(l.Rate.Per) / float64(l.Rate.Units)
	return 2*l.Rate.Per + time.Duration(perUnit*float64(l.Capacity()))
}
