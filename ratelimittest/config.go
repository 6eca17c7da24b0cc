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

// Config describes the engine under test. New is required, and so is one of Clock, Advance and TryAdvance.
type Config struct {
	// New returns a new limiter that holds each key to the limit. Spending through one
	// limiter must not count in another. Limiters may share a store, because the suite
	// derives keys from the seed and never uses a key twice in one Run or Check.
	New func(limit ratelimit.Limit) (ratelimit.Limiter[string], error)

	// Clock is read by New's limiters. With it the suite sets time back, uses negative readings and decades,
	// counts readings, and sets the wall time. If nil, Advance moves the time, and calendars are left out.
	Clock *Clock

	// Advance moves the time of New's limiters forward by d, a positive multiple of Resolution. It is
	// for an engine whose time comes from elsewhere, for example from a server. Then time does not
	// step back, and checks longer than ten days are left out. Advance is not used if Clock is set.
	Advance func(d time.Duration)

	// TryAdvance is Advance for an engine whose time may fail to move, for example because a call to a server
	// moves it. After an error wrapping [ratelimit.ErrUnavailable], time has not moved. The suite then tries
	// again, ten times at most. Any other error is a failure. If Advance is set too, TryAdvance is used.
	TryAdvance func(d time.Duration) error

	// Resolution is the engine's unit of time. It defaults to a nanosecond. With a microsecond,
	// the suite moves time by whole microseconds only, and expects spans in whole microseconds,
	// rounded up. It checks one microsecond before an instant where it would otherwise check one
	// nanosecond before. It leaves out limits whose Rate.Per is not a multiple of Resolution.
	Resolution time.Duration

	// Accepts reports whether the engine supports a limit: it may lack an algorithm, for
	// example, or have smaller counters. The suite leaves the others out. If nil, the engine
	// must support every valid limit, but its New may refuse calendars and units in use.
	Accepts func(limit ratelimit.Limit) bool

	// Limits lists all limits if the engine has a fixed set. The suite then uses no others, and does not
	// expect New to refuse invalid ones. If empty, the engine must support every limit accepted by Accepts.
	Limits []ratelimit.Limit

	// Skip names the limiters' methods for the suite to leave out, for example "Reserve" if the
	// engine behind a wrapper cannot reserve. The names are Peek, Reserve, Wait, Adjust, Reset,
	// SetLimit, Sweep, Len and Join. Calendar and Concurrent stand for these algorithms' limits.
	Skip []string

	// Want names the limiters' required methods. If the suite does not find one with a known signature, the
	// run fails. If a method outside Want has an unknown signature, it is not tested, and only [Run]'s log
	// reports it. With Calendar or Concurrent in Want, the run fails if the algorithm's limits are left out.
	Want []string

	// Close is called once for each limiter made by New, NewBounded and NewPair, after the
	// limiter's history has ended. An error is a failure. If nil, limiters need no closing.
	Close func(limiter ratelimit.Limiter[string]) error

	// NewPair returns two limiters with shared budgets, like two clients of one store.
	// Spending through one must count in the other. If nil, sharing is not tested.
	NewPair func(limit ratelimit.Limit) (a, b ratelimit.Limiter[string], err error)

	// Retries is for an engine whose calls sometimes fail. If it is above zero, the suite repeats a failed call. It calls
	// Take with a cost of 0 before each call that may charge a key and after a failed one, to determine whether the call
	// has charged its cost. This includes Allow, because it cannot return a denial's reason. If a history breaks a promise,
	// the suite also plays it again with other keys, up to Retries times, before the failure counts. The maximum is 9.
	//
	// If zero, every failure counts. A call returning [ratelimit.ErrUnavailable] ends the history, and
	// the suite plays it again. In any case an engine fails if it cannot answer a call 10 times in a row.
	Retries int

	// NewFloat is New for an engine with keys of any comparable type. The suite
	// tests it with NaN, a key unequal to itself. If nil, such keys are not tested.
	NewFloat func(limit ratelimit.Limit) (ratelimit.Limiter[float64], error)

	// NewBounded is New for an engine that tracks at most maxKeys keys and forgets old ones
	// to make room. The suite tests it with a flood of keys. If nil, floods are not tested.
	NewBounded func(limit ratelimit.Limit, maxKeys int) (ratelimit.Limiter[string], error)

	// Histories is how many random histories each check plays for each algorithm. It defaults
	// to 40. If it is below 10, the check with many keys uses an eighth of its keys.
	Histories int

	// Seed repeats a run. Every failure contains its seed. If zero, each run draws another.
	Seed uint64

	steps       []step // room for the steps of the next history
	noCalendars string // why calendars are left out
	noUnits     string // why limits of units in use are left out
}

// withDefaults returns the config with all defaults filled in.
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

// withoutCalendars returns why calendars are left out, or "" if they are not. An engine without them refuses them in New.
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

// checkNames returns an error if Skip or Want contains an unknown name.
func (c *Config) checkNames() error {
	for _, name := range slices.Concat(c.Skip, c.Want) {
		if name != calendars && name != concurrents && !slices.Contains(methodNames, name) {
			return fmt.Errorf("ratelimittest: Config.Skip or Want names %q, want one of %v, %s or %s", name, methodNames, calendars, concurrents)
		}
	}
	return nil
}

// checkLimits returns an error if Limits contains an invalid limit.
func (c *Config) checkLimits() error {
	for i, l := range c.Limits {
		if err := l.Validate(); err != nil {
			return fmt.Errorf("ratelimittest: Config.Limits[%d]: %w", i, err)
		}
	}
	return nil
}

// accepts reports whether the suite tests the engine with the limit.
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

// reach is a history's longest span if time cannot be set back.
const reach = 10 * 24 * time.Hour

// whole returns an upper bound for the time in which a key regains its
// whole capacity. If the bound is above 146 years, whole returns 146 years.
func whole(l ratelimit.Limit) time.Duration {
	if l.Rate.Units == 0 {
		return 0 // the limit is unlimited or blocked
	}
	per := float64(per(l))
	return time.Duration(min(2*per+per/float64(l.Rate.Units)*float64(l.Capacity()), float64(math.MaxInt64/2)))
}
