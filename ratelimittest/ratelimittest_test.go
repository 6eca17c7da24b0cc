package ratelimittest_test

import (
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/weir-go/ratelimit"
	"github.com/weir-go/ratelimit/ratelimittest"
)

// ours returns the config for the module's limiter.
func ours() ratelimittest.Config {
	clock := new(ratelimittest.Clock)
	return ratelimittest.Config{
		Clock: clock,
		New: func(limit ratelimit.Limit) (ratelimit.Limiter[string], error) {
			return ratelimit.New(limit, &ratelimit.Options[string]{Clock: clock})
		},
		NewFloat: func(limit ratelimit.Limit) (ratelimit.Limiter[float64], error) {
			return ratelimit.New(limit, &ratelimit.Options[float64]{Clock: clock})
		},
		NewBounded: func(limit ratelimit.Limit, maxKeys int) (ratelimit.Limiter[string], error) {
			return ratelimit.New(limit, &ratelimit.Options[string]{Clock: clock, MaxKeys: maxKeys})
		},
	}
}

func TestOurLimiterKeepsThePromises(t *testing.T) {
	config := ours()
	config.Want = []string{"Peek", "Reserve", "Wait", "Adjust", "Reset", "SetLimit", "Sweep", "Len", "Calendar"}
	ratelimittest.Run(t, config)
}

func TestEachLimiterIsClosed(t *testing.T) {
	config := ours()
	config.Histories = 2
	made, bounded := 0, config.NewBounded
	config.NewBounded = func(limit ratelimit.Limit, maxKeys int) (ratelimit.Limiter[string], error) {
		made++
		return bounded(limit, maxKeys)
	}
	one := config.New
	config.New = func(limit ratelimit.Limit) (ratelimit.Limiter[string], error) {
		l, err := one(limit)
		if err == nil {
			made++
		}
		return l, err
	}
	config.Close = func(ratelimit.Limiter[string]) error { made--; return nil }
	assert.NoError(t, ratelimittest.Check(config))
	assert.Zero(t, made, "limiters that were not closed")
}

// A bubble cannot end while it has a goroutine.
func TestOurLimiterLeavesNoGoroutine(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		config := ours()
		config.Histories = 3
		assert.NoError(t, ratelimittest.Check(config))
	})
}

// engine returns a wordBucket's config. Its time only moves forward.
func engine(unit, resolution time.Duration) ratelimittest.Config {
	now := new(atomic.Int64)
	return ratelimittest.Config{
		Resolution: resolution,
		Advance:    func(d time.Duration) { now.Add(int64(d)) },
		Accepts:    fitsWords,
		New: func(limit ratelimit.Limit) (ratelimit.Limiter[string], error) {
			if err := limit.Validate(); err != nil {
				return nil, err
			}
			return newWordBucket(limit, unit, func() time.Duration { return time.Duration(now.Load()) }), nil
		},
	}
}

func TestAnEngineWithCoarserTimePasses(t *testing.T) {
	ratelimittest.Run(t, engine(time.Microsecond, time.Microsecond))
}

func TestTimeCoarserThanResolutionIsFoundOut(t *testing.T) {
	err := ratelimittest.Check(engine(time.Microsecond, time.Nanosecond))
	assert.ErrorContains(t, err, "promise 1 (RetryAfter is true) is broken by token-bucket")
}

func TestSeedRepeatsARun(t *testing.T) {
	config := engine(time.Microsecond, time.Nanosecond)
	config.Seed = 7
	first := ratelimittest.Check(config)
	require.ErrorContains(t, first, "Config.Seed 7 repeats it")
	config = engine(time.Microsecond, time.Nanosecond)
	config.Seed = 7
	assert.EqualError(t, ratelimittest.Check(config), first.Error())
	config.Seed = 8
	assert.NotEqual(t, first.Error(), ratelimittest.Check(config).Error())
}

func TestConfigIsChecked(t *testing.T) {
	for name, test := range map[string]struct {
		spoil func(*ratelimittest.Config)
		text  string
	}{
		"there is no New":                   {func(c *ratelimittest.Config) { c.New = nil }, "Config.New is nil"},
		"time cannot be moved":              {func(c *ratelimittest.Config) { c.Clock = nil }, "Config.Clock and Config.Advance are both nil"},
		"the resolution is negative":        {func(c *ratelimittest.Config) { c.Resolution = -1 }, "Config.Resolution is -1ns"},
		"there are fewer than no histories": {func(c *ratelimittest.Config) { c.Histories = -1 }, "Config.Histories is -1"},
		"no limit is accepted": {func(c *ratelimittest.Config) { c.Accepts = func(ratelimit.Limit) bool { return false } },
			"Config.Accepts takes none of the limits"},
	} {
		t.Run(name, func(t *testing.T) {
			config := ours()
			test.spoil(&config)
			assert.ErrorContains(t, ratelimittest.Check(config), test.text)
		})
	}
}

func TestClockIsMovedByHand(t *testing.T) {
	clock := new(ratelimittest.Clock)
	assert.Equal(t, time.Duration(0), clock.Now())
	clock.Advance(3 * time.Second)
	assert.Equal(t, 3*time.Second, clock.Now())
	clock.Advance(-time.Second)
	assert.Equal(t, 2*time.Second, clock.Now())
	clock.Set(-time.Hour)
	assert.Equal(t, -time.Hour, clock.Now())
}

// uncomparable is a limiter of a type that Go cannot compare.
type uncomparable struct {
	*ratelimit.Keyed[string]
	names []string
}

func TestLimitersNeedNotBeComparable(t *testing.T) {
	clock := new(ratelimittest.Clock)
	assert.NoError(t, ratelimittest.Check(ratelimittest.Config{
		Clock: clock, Histories: 8,
		New: func(l ratelimit.Limit) (ratelimit.Limiter[string], error) {
			made, err := ratelimit.New(l, &ratelimit.Options[string]{Clock: clock})
			return uncomparable{made, nil}, err
		},
		NewPair: func(l ratelimit.Limit) (a, b ratelimit.Limiter[string], err error) {
			made, err := ratelimit.New(l, &ratelimit.Options[string]{Clock: clock})
			return uncomparable{made, nil}, uncomparable{made, []string{"b"}}, err
		},
		NewBounded: func(l ratelimit.Limit, keys int) (ratelimit.Limiter[string], error) {
			made, err := ratelimit.New(l, &ratelimit.Options[string]{Clock: clock, MaxKeys: keys})
			return uncomparable{made, nil}, err
		},
	}))
}
