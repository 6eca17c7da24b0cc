package ratelimittest_test

import (
	"testing"
	"time"

	"github.com/weir-go/ratelimit"
	"github.com/weir-go/ratelimit/ratelimittest"
)

// forgetful returns the config of the module's limiter with room for one key. The limiter
// remembers evicted keys' spending. An eviction drops bookings, so they cannot be settled.
func forgetful() ratelimittest.Config {
	config := ours()
	config.New = func(limit ratelimit.Limit) (ratelimit.Limiter[string], error) {
		return ratelimit.New(limit, &ratelimit.Options[string]{Clock: config.Clock, MaxKeys: 1, Remember: 1 << 16})
	}
	config.NewBounded = func(limit ratelimit.Limit, maxKeys int) (ratelimit.Limiter[string], error) {
		return ratelimit.New(limit, &ratelimit.Options[string]{Clock: config.Clock, MaxKeys: maxKeys, Remember: 1 << 16})
	}
	return config
}

// A limiter that evicts keys all the time keeps the promises. For a bucket, a fixed
// window or a calendar, the remembered spending is the whole state, to the millisecond.
func TestALimiterThatRemembersKeepsThePromises(t *testing.T) {
	config := forgetful()
	config.Resolution = time.Millisecond
	config.Retries = 3 // of thousands of keys, two may have equal 16-bit hashes on one line
	config.Skip = []string{"Reserve", "Wait", "Adjust", "SetLimit", "Sweep", "Len"}
	config.Limits = []ratelimit.Limit{
		ratelimit.TokenBucket(ratelimit.PerSecond(10), 20),
		ratelimit.TokenBucket(ratelimit.PerMinute(1), 1),
		ratelimit.LeakyBucket(ratelimit.PerSecond(10), 20),
		ratelimit.LeakyBucket(ratelimit.PerDay(24), 7),
		ratelimit.FixedWindow(ratelimit.PerSecond(10)),
		ratelimit.FixedWindow(ratelimit.Per(100, 30*24*time.Hour)),
		ratelimit.Calendar(10, ratelimit.Day("Europe/Berlin")),
		ratelimit.Calendar(100, ratelimit.Month("America/Havana", 31)),
	}
	ratelimittest.Run(t, config)
}

// Under other algorithms, a key gets back more spending than it had. So a flood of keys gains no budget.
func TestAFloodGetsNothingOfALimiterThatRemembers(t *testing.T) {
	config := ours()
	config.Histories = 5
	config.NewBounded = forgetful().NewBounded
	ratelimittest.Run(t, config)
}
