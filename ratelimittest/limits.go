package ratelimittest

import (
	"math"
	"math/rand/v2"
	"sync"
	"time"

	"github.com/weir-go/ratelimit"
)

// algorithms are the tested algorithms, without limits of units in use. The
// calendar is last: the method other leaves it out if the engine has no calendars.
var algorithms = []ratelimit.Algorithm{
	ratelimit.AlgorithmTokenBucket,
	ratelimit.AlgorithmLeakyBucket,
	ratelimit.AlgorithmFixedWindow,
	ratelimit.AlgorithmSlidingLog,
	ratelimit.AlgorithmSlidingCounter,
	ratelimit.AlgorithmCalendar,
}

// figure returns n, or the largest int if n is larger.
func figure(n int64) int { return int(min(n, math.MaxInt)) }

// large returns n, but at most an eighth of the largest int, so that sums do not overflow.
func large(n int64) int { return min(figure(n), math.MaxInt/8) }

// edgesOf returns each algorithm's edges.
var edgesOf = sync.OnceValue(func() map[ratelimit.Algorithm][]ratelimit.Limit {
	all := make(map[ratelimit.Algorithm][]ratelimit.Limit)
	for _, a := range algorithms {
		all[a] = edges(a)
	}
	return all
})

// calendarEdges returns calendars of all tested periods, each with 1 unit, a few and 2^53.
func calendarEdges() (all []ratelimit.Limit) {
	for _, p := range periods() {
		for _, units := range []int{1, 3, 999_983, large(1 << 53)} {
			all = append(all, ratelimit.Calendar(units, p))
		}
	}
	return all
}

// edges returns limits under which limiters have failed: rates above one unit a nanosecond,
// fractions of a nanosecond, products beyond 64 bits and figures beyond 53 bits.
func edges(a ratelimit.Algorithm) []ratelimit.Limit {
	if a == ratelimit.AlgorithmCalendar {
		return calendarEdges()
	}
	rates := []ratelimit.Rate{
		ratelimit.PerSecond(3),
		ratelimit.Per(7, 11*time.Second),
		ratelimit.PerDay(999_983),
		ratelimit.PerSecond(large(3_000_000_019)),
		ratelimit.PerSecond(large(1_000_000_000_000)),
		ratelimit.PerSecond(large(1 << 53)),
		ratelimit.PerDay(1),
		ratelimit.PerDay(123_457),
		ratelimit.Per(1, 49*year),
		ratelimit.Per(large(1<<53), 49*year),
		ratelimit.Per(large(1<<53), time.Nanosecond),
	}
	var all []ratelimit.Limit
	for _, r := range rates {
		for _, burst := range []int{r.Units, 1, 2, 36_000, large(1<<53 + 2)} {
			all = append(all, newLimit(a, r, burst))
			if a != ratelimit.AlgorithmTokenBucket && a != ratelimit.AlgorithmLeakyBucket {
				break
			}
		}
	}
	return all
}

// anyPeriod returns one of the tested periods.
func (h *history) anyPeriod() ratelimit.Period { return periods()[h.rng.IntN(len(periods()))] }

// overAnother returns a calendar with another period.
func (h *history) overAnother(l ratelimit.Limit) ratelimit.Limit {
	for was := l.Period; l.Period == was; {
		l.Period = h.anyPeriod()
	}
	return l
}

// newLimit returns a limit with the given algorithm. A calendar ignores the Per and
// the burst. It has the history's period, or any period if the history has none.
func (h *history) newLimit(a ratelimit.Algorithm, r ratelimit.Rate, burst int) ratelimit.Limit {
	if a == ratelimit.AlgorithmCalendar {
		p := h.limit.Period
		if !isCalendar(h.limit) {
			p = h.anyPeriod()
		}
		return ratelimit.Calendar(r.Units, p)
	}
	return newLimit(a, r, burst)
}

// newLimit returns a limit of any algorithm but the calendar.
func newLimit(a ratelimit.Algorithm, r ratelimit.Rate, burst int) ratelimit.Limit {
	l := ratelimit.Limit{Algorithm: a, Rate: r}
	if a == ratelimit.AlgorithmTokenBucket || a == ratelimit.AlgorithmLeakyBucket {
		l.Burst = burst
	}
	return l
}

// randomLimit returns a limit with common figures.
func (c *Config) randomLimit(a ratelimit.Algorithm, rng *rand.Rand) ratelimit.Limit {
	units := []int{1, 2, 3, 5, 7, 10, 50, 100, 1 + rng.IntN(1000), 1 + rng.IntN(1_000_000)}
	pers := []time.Duration{time.Second, time.Minute, time.Hour, 11 * time.Second, 250 * time.Millisecond,
		7 * time.Millisecond, time.Duration(1 + rng.Int64N(int64(time.Minute)))}
	r := ratelimit.Per(units[rng.IntN(len(units))], pers[rng.IntN(len(pers))])
	r.Per = max(r.Per-r.Per%c.Resolution, c.Resolution)
	bursts := []int{1, 2, 5, r.Units, 1 + rng.IntN(times(2, r.Units)), 1 + rng.IntN(20)}
	if a == ratelimit.AlgorithmCalendar {
		return ratelimit.Calendar(r.Units, periods()[rng.IntN(len(periods()))])
	}
	return newLimit(a, r, bursts[rng.IntN(len(bursts))])
}

// limitFor returns the limit for history n of an algorithm: an edge or a random limit
// in turn, or one of Config.Limits. It returns false if the engine supports none.
func (c *Config) limitFor(a ratelimit.Algorithm, n int, rng *rand.Rand) (ratelimit.Limit, bool) {
	if a == ratelimit.AlgorithmConcurrent {
		return c.unitsLimit(n, rng)
	}
	if len(c.Limits) > 0 {
		return c.fixedLimit(a, n)
	}
	all := edgesOf()[a]
	for i := range 100 {
		l := c.randomLimit(a, rng)
		if n%2 == 0 && i < 20 {
			l = all[rng.IntN(len(all))]
		}
		if c.accepts(l) {
			return l, true
		}
	}
	return ratelimit.Limit{}, false
}

// fixedLimit returns a limit of Config.Limits for history n. The histories use the algorithm's limits in turn.
func (c *Config) fixedLimit(a ratelimit.Algorithm, n int) (ratelimit.Limit, bool) {
	var all []ratelimit.Limit
	for _, l := range c.Limits {
		if l.Algorithm == a && c.accepts(l) {
			all = append(all, l)
		}
	}
	if len(all) == 0 {
		return ratelimit.Limit{}, false
	}
	return all[n%len(all)], true
}

func (h *history) isBucket() bool {
	return h.limit.Algorithm == ratelimit.AlgorithmTokenBucket || h.limit.Algorithm == ratelimit.AlgorithmLeakyBucket
}
