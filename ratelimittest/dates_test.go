package ratelimittest

import (
	"math/rand/v2"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"

	"github.com/weir-go/ratelimit"
)

// The suite's own windows equal a Period's, even if clocks are set, or a zone
// has skipped a date, as Pacific/Apia did in 2011 and Pacific/Kwajalein in 1993.
func TestDatesAreTheWindowsOfAPeriod(t *testing.T) {
	all := append(periods(), ratelimit.Day("Pacific/Apia").At(23*time.Hour+59*time.Minute), ratelimit.Week("Pacific/Apia", time.Friday).At(time.Hour),
		ratelimit.Month("Pacific/Apia", 30).At(time.Hour), ratelimit.Day("Pacific/Kwajalein").At(5*time.Hour), ratelimit.Day("America/Havana").At(30*time.Minute))
	for _, p := range all {
		r := rand.New(rand.NewPCG(4, 1))
		for _, span := range []struct {
			from time.Time
			days int64
		}{
			{time.Date(1992, 1, 1, 0, 0, 0, 0, time.UTC), 24 * 366},
			{time.Date(2011, 12, 28, 0, 0, 0, 0, time.UTC), 5},
			{time.Date(1993, 8, 19, 0, 0, 0, 0, time.UTC), 5},
		} {
			for range 200 {
				at := span.from.Add(time.Duration(r.Int64N(span.days * int64(24*time.Hour))))
				from, to := p.Window(at)
				got := datesOf(p).at(at)
				assert.True(t, from.Equal(got.from) && to.Equal(got.to), "%v at %v: %v to %v, not %v to %v", p, at, got.from, got.to, from, to)
			}
		}
	}
}
