package ratelimittest

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"

	"github.com/weir-go/ratelimit"
)

// check is one behaviour, tested in many histories.
type check struct {
	name  string
	play  func(h *history)
	needs func(h *history) bool // nil if only Allow and Take are needed
	few   bool                  // the check is slow or uses no random limits: play a tenth of the histories, at least three
	once  bool                  // the check is slow and all histories are equivalent: play one
	slow  bool                  // a failing history may take a second: stop after one failure
}

// Run plays the suite, in one subtest for each algorithm and check, and fails with
// [Check]'s result. It logs which methods besides Allow and Take it has found and tested.
// If the engine does not support an algorithm, its subtest is skipped, with the reason.
func Run(t *testing.T, config Config) {
	t.Helper()
	c, err := config.withDefaults()
	if err != nil {
		t.Fatal(err)
	}
	if !c.acceptsAny() {
		t.Fatal(errNoLimit)
	}
	for _, a := range algorithms {
		t.Run(a.String(), func(t *testing.T) { c.runAlgorithm(t, a) })
	}
	t.Run(concurrents, c.runUnits)
}

// runUnits plays the checks for limits of units in use.
func (c *Config) runUnits(t *testing.T) {
	if c.noUnits != "" {
		if slices.Contains(c.Want, concurrents) {
			t.Fatal(c.lacksUnits())
		}
		t.Skip(c.noUnits)
	}
	for _, k := range unitChecks {
		t.Run(strings.ReplaceAll(k.name, " ", "_"), func(t *testing.T) {
			for _, v := range c.playAll(ratelimit.AlgorithmConcurrent, k) {
				t.Error(v)
			}
		})
	}
}

// lacksUnits returns the error for an engine without the required limits of units in use.
func (c *Config) lacksUnits() error {
	return fmt.Errorf("ratelimittest: Config.Want has %s, and none are tried: %s", concurrents, c.noUnits)
}

// errNoLimit prevents an engine from passing without a test.
var errNoLimit = errors.New("ratelimittest: Config.Accepts takes none of the limits that were tried")

func (c *Config) acceptsAny() bool {
	for _, a := range algorithms {
		if _, ok := c.limitFor(a, 1, rand.New(rand.NewPCG(c.Seed, 0))); ok {
			return true
		}
	}
	return c.noUnits == ""
}

func (c *Config) runAlgorithm(t *testing.T, a ratelimit.Algorithm) {
	limit, ok := c.limitFor(a, 1, rand.New(rand.NewPCG(c.Seed, 0)))
	switch {
	case ok:
	case a != ratelimit.AlgorithmCalendar:
		t.Skipf("Config.Accepts takes no %v limit", a)
	case slices.Contains(c.Want, calendars):
		t.Fatal(c.lacksCalendars())
	default:
		t.Skip(c.noCalendars)
	}
	found, err := c.found(limit)
	if err != nil {
		t.Error(err)
	}
	t.Logf("seed %d; tested beyond Allow and Take: %s", c.Seed, found)
	for _, k := range checks {
		t.Run(strings.ReplaceAll(k.name, " ", "_"), func(t *testing.T) {
			for _, v := range c.playAll(a, k) {
				t.Error(v)
			}
		})
	}
}

// Check plays the suite outside of a test. It returns nil, or one error for each broken promise, joined.
// Each contains the promise, the limit, the calls and results in sequence, and the seed to repeat them.
func Check(config Config) error {
	c, err := config.withDefaults()
	if err != nil {
		return err
	}
	if !c.acceptsAny() {
		return errNoLimit
	}
	var all []error
	for _, a := range algorithms {
		all = append(all, c.checkAlgorithm(a)...)
	}
	return errors.Join(append(all, c.checkUnits()...)...)
}

// lacksCalendars returns the error for an engine without the required calendars.
func (c *Config) lacksCalendars() error {
	return fmt.Errorf("ratelimittest: Config.Want has %s, and none are tried: %s", calendars, c.noCalendars)
}

func (c *Config) checkAlgorithm(a ratelimit.Algorithm) (all []error) {
	limit, ok := c.limitFor(a, 1, rand.New(rand.NewPCG(c.Seed, 0)))
	if !ok {
		if a == ratelimit.AlgorithmCalendar && slices.Contains(c.Want, calendars) {
			all = append(all, c.lacksCalendars())
		}
		return all
	}
	if _, err := c.found(limit); err != nil {
		all = append(all, err)
	}
	return append(all, c.checkEach(a, checks)...)
}

// checkUnits plays the checks for limits of units in use.
func (c *Config) checkUnits() []error {
	switch {
	case c.noUnits == "":
		return c.checkEach(ratelimit.AlgorithmConcurrent, unitChecks)
	case slices.Contains(c.Want, concurrents):
		return []error{c.lacksUnits()}
	}
	return nil
}

// checkEach plays checks, and returns each promise's first violation.
func (c *Config) checkEach(a ratelimit.Algorithm, checks []check) (all []error) {
	seen := make(map[promise]bool)
	for _, k := range checks {
		for _, v := range c.playAll(a, k) {
			if !seen[v.promise] {
				seen[v.promise] = true
				all = append(all, v)
			}
		}
	}
	return all
}

// playAll plays a check's histories, and returns each promise's first violation.
func (c *Config) playAll(a ratelimit.Algorithm, k check) (all []*violation) {
	seen := make(map[promise]bool)
	rounds := c.Histories
	if k.few {
		rounds = min(rounds, max(3, rounds/10))
	}
	if k.once {
		rounds = 1
	}
	for n := range rounds {
		v, played := c.playOne(a, k, n)
		if !played {
			break // the limiters lack a method that the check needs
		}
		if v == nil || seen[v.promise] {
			continue
		}
		seen[v.promise] = true
		if all = append(all, v); k.slow || v.promise == canDecide {
			break // each of the others may take as long to fail
		}
	}
	return all
}

const (
	maxUnavailable = 10 // a call's maximum number of tries while the engine cannot decide
	maxPlays       = 50 // a history's maximum number of tries while the engine cannot decide
)

// playOne plays one history. It plays the history again with other keys if the engine could not decide, and up to
// Config.Retries times after a broken promise. It reports whether the limiters have the check's required methods.
func (c *Config) playOne(a ratelimit.Algorithm, k check, n int) (v *violation, played bool) {
	failed := 0
	for try := range maxPlays {
		switch v, played = c.playTry(a, k, n, try); {
		case v == nil:
			return nil, played
		case v.promise == canDecide:
		case failed == c.Retries:
			return v, true
		default:
			failed++
		}
	}
	return v, true
}

// playTry plays one history. Its random figures depend only on the seed, the
// algorithm, the check and the history's number. Each try uses other keys.
func (c *Config) playTry(a ratelimit.Algorithm, k check, n, try int) (v *violation, played bool) {
	id := int64(a)<<40 | int64(indexOf(k.name))<<32 | int64(n)
	h := &history{cfg: c, rng: rand.New(rand.NewPCG(c.Seed, uint64(id))), id: keyPrefix(c.Seed, id, try), steps: c.steps[:0]}
	if h.limit, played = c.limitFor(a, n, h.rng); !played {
		return nil, true
	}
	defer func() {
		c.steps = h.steps
		v = h.caught(k.name, recover())
		if err := h.close(); err != nil && v == nil {
			v = h.violation(closes, err.Error())
			v.check = k.name
		}
	}()
	h.begin()
	for range try {
		h.newKey().left() // so an engine failing at regular intervals does not fail at the same step again
	}
	if played = k.needs == nil || k.needs(h); played {
		k.play(h)
	}
	return nil, played
}

// close closes the history's limiters.
func (h *history) close() (err error) {
	if h.cfg.Close == nil {
		return nil
	}
	for _, l := range h.made {
		err = errors.Join(err, h.cfg.Close(l))
	}
	return err
}

func indexOf(name string) int {
	for i := range checks {
		if checks[i].name == name {
			return i
		}
	}
	for i := range unitChecks {
		if unitChecks[i].name == name {
			return len(checks) + i
		}
	}
	panic("ratelimittest: no check " + name)
}
