package ratelimittest

import (
	"cmp"
	"errors"
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"time"

	"github.com/weir-go/ratelimit"
	"github.com/weir-go/ratelimit/internal/optional"
)

// Config describes the engine under test. New is required, and one of Clock, Advance and TryAdvance.
type Config struct {
	// New returns a new limiter that holds each key to the limit. Spending through one limiter must not be found in the next. The suite
	// never uses a key twice in one Run or Check, and derives keys from the seed, so limiters may share a store.
	New func(limit ratelimit.Limit) (ratelimit.Limiter[string], error)

	// Clock is the clock that New's limiters read. With it the suite sets time
	// back, goes through negative readings and decades, counts how often the
	// clock is read, and sets its wall time. If nil, Advance moves the time, and no
	// calendars are tried.
	Clock *Clock

	// Advance moves the time of New's limiters on by d, which is positive and a multiple of Resolution. It is for an engine whose time is
	// elsewhere, for example in a server. Time does not step back then, and checks that would take longer than ten days are left out. It is
	// not used if there is a Clock.
	Advance func(d time.Duration)

	// TryAdvance is Advance for an engine whose time may fail to move, because it is moved by a call of a server. After an error that wraps
	// [ratelimit.ErrUnavailable] time has not moved: the suite tries again, ten times at most. Any other error is a failure. It is used
	// instead of Advance if both are set.
	TryAdvance func(d time.Duration) error

	// Resolution is the unit in which the engine knows time: a nanosecond, if
	// zero. With a microsecond, the suite moves time by whole microseconds only,
	// expects spans in whole microseconds, rounded up, and probes one microsecond
	// before an instant where it would probe one nanosecond before. The engine
	// is not tried with a Rate.Per that is not a multiple of it.
	Resolution time.Duration

	// Accepts reports whether the engine knows limits like this one: it may lack an
	// algorithm, or count less far. The suite leaves the others out. If nil, it knows
	// every valid limit, except calendars and units in use if New refuses them.
	Accepts func(limit ratelimit.Limit) bool

	// Limits lists all limits of the engine if they are a fixed set. The suite uses no others, and does not expect New
	// to refuse invalid ones. If empty, the engine must know every limit that Accepts accepts.
	Limits []ratelimit.Limit

	// Skip names methods that the suite does not use although the limiters have them: "Reserve", for
	// example, for a wrapper of an engine that cannot reserve. The names are Peek, Reserve, Wait, Adjust,
	// Reset, SetLimit, Sweep, Len and Join, and Calendar and Concurrent for the limits of these algorithms.
	Skip []string

	// Want names methods that the limiters must have: if the suite does not find one, with a signature that it knows, the run fails.
	// Without it a method with an unknown signature is not tested, and only the log of [Run] reports that. With Calendar or Concurrent among the names,
	// the run fails if limits of that algorithm are left out.
	Want []string

	// Close is called once for each limiter that New, NewBounded and NewPair made, when
	// the history that used it has ended. An error is a failure. If nil, limiters
	// need no closing.
	Close func(limiter ratelimit.Limiter[string]) error

	// NewPair returns two limiters that share their budgets, as two clients of one store do: spending through one must count in the other.
	// If nil, that is not tried.
	NewPair func(limit ratelimit.Limit) (a, b ratelimit.Limiter[string], err error)

	// Retries is for an engine whose calls sometimes fail. If it is above zero, the suite repeats a failed call. It
	// calls Peek before each call that may charge a key and after a failed one, to determine whether the call has
	// charged its cost. That includes Allow, which cannot return the reason of a denial. If a history breaks a promise,
	// the suite also plays it again with other keys, up to Retries times, before the failure counts. The maximum is 9.
	//
	// If zero, every failure counts. A call that returns [ratelimit.ErrUnavailable] ends the history, and the suite
	// plays it again. In any case an engine fails if it cannot answer a call 10 times in a row.
	Retries int

	// NewFloat is New for an engine whose keys may be of any comparable type. NaN,
	// the key that does not equal itself, is tried on it. If nil, it is not.
	NewFloat func(limit ratelimit.Limit) (ratelimit.Limiter[float64], error)

	// NewBounded is New for an engine that tracks at most so many keys and makes
	// room by forgetting old ones. A flood of keys is tried on it. If nil, it is not.
	NewBounded func(limit ratelimit.Limit, maxKeys int) (ratelimit.Limiter[string], error)

	// Histories is the number of random histories played for each check and each
	// algorithm: 40, if zero. Below 10, the check of many keys has an eighth of them.
	Histories int

	// Seed repeats a run: every failure names the seed that led to it. If zero,
	// each run draws another.
	Seed uint64

	steps       []step // memory for the steps of the next history
	noCalendars string // why none are tried
	noUnits     string // why no limits of units in use are tried
}

// withDefaults returns the config with nothing left to be guessed.
func (c Config) withDefaults() (Config, error) {
	switch {
	case c.New == nil:
		return c, optional.Nil("ratelimittest: Config.New")
	case c.Clock == nil && c.Advance == nil && c.TryAdvance == nil:
		return c, errors.New("ratelimittest: Config.Clock and Config.Advance are both nil, and so is TryAdvance: time cannot be moved")
	case c.Retries < 0 || c.Retries >= maxUnavailable:
		return c, fmt.Errorf("ratelimittest: Config.Retries is %d, want 0 to %d", c.Retries, maxUnavailable-1)
	}
	err := cmp.Or(
		optional.NotNegative("ratelimittest: Config.Resolution", c.Resolution, "the default"),
		optional.NotNegative("ratelimittest: Config.Histories", c.Histories, "the default"),
		c.checkNames(),
	)
	if err != nil {
		return c, err
	}
	if err := c.checkLimits(); err != nil {
		return c, err
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
	c.noCalendars, c.noUnits = c.withoutCalendars(), c.withoutUnits()
	return c, nil
}

// withoutCalendars returns the reason for which no calendars are tried, or "" if they are. An engine need not count by
// them: its New refuses them then.
func (c *Config) withoutCalendars() string {
	switch {
	case slices.Contains(c.Skip, calendars):
		return "Config.Skip names Calendar"
	case c.Clock == nil:
		return "Config.Clock is nil, and nothing else tells the wall time"
	case time.Second%c.Resolution != 0:
		return fmt.Sprintf("Config.Resolution, %v, is not a part of a second", c.Resolution)
	}
	l, ok := c.limitFor(ratelimit.AlgorithmCalendar, 1, rand.New(rand.NewPCG(c.Seed, 0)))
	if !ok {
		return "Config.Accepts takes no calendar limit"
	}
	made, err := c.New(l)
	switch {
	case errors.Is(err, ratelimit.ErrInvalidLimit) && len(c.Limits) == 0:
		return fmt.Sprintf("Config.New(%v): %v", l, err)
	case err == nil && c.Close != nil:
		c.Close(made)
	}
	return ""
}

// checkNames finds names of methods that do not exist.
func (c *Config) checkNames() error {
	for _, name := range slices.Concat(c.Skip, c.Want) {
		if name != calendars && name != concurrents && !slices.Contains(methodNames, name) {
			return fmt.Errorf("ratelimittest: Config.Skip or Want names %q, want one of %v, %s or %s", name, methodNames, calendars, concurrents)
		}
	}
	return nil
}

// checkLimits finds limits of a fixed set that no engine could enforce.
func (c *Config) checkLimits() error {
	for i, l := range c.Limits {
		if err := l.Validate(); err != nil {
			return fmt.Errorf("ratelimittest: Config.Limits[%d]: %w", i, err)
		}
	}
	return nil
}

// accepts reports whether the engine is to be tried with the limit.
func (c *Config) accepts(l ratelimit.Limit) bool {
	if len(c.Limits) > 0 && !slices.Contains(c.Limits, l) {
		return false
	}
	if l.Validate() != nil || l.Rate.Per%c.Resolution != 0 || isCalendar(l) && c.noCalendars != "" {
		return false
	}
	if c.Clock == nil && whole(l) > reach {
		return false
	}
	return c.Accepts == nil || c.Accepts(l)
}

// reach is the longest span that is tried where time cannot be set back again.
const reach = 10 * 24 * time.Hour

// whole returns an upper bound of the time until a key is fresh after its whole capacity was spent. If that time is
// above 146 years, the result is a lower bound.
func whole(l ratelimit.Limit) time.Duration {
	if l.Rate.Units == 0 {
		return 0 // unlimited, or blocked
	}
	per := float64(per(l))
	return time.Duration(min(2*per+per/float64(l.Rate.Units)*float64(l.Capacity()), float64(math.MaxInt64/2)))
}
