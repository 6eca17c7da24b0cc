package redislimit

import (
	"fmt"
	"regexp"
	"strconv"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/weir-go/ratelimit"
)

var wholeReads = regexp.MustCompile(`cmdstat_get:calls=(\d+)`)

// A denial among bookings reads the whole state once, and no more until something changes: neither after a raise nor under a lower limit.
func TestADenialAmongFarBookingsReadsThemOnce(t *testing.T) {
	verdicts(t)
	f := newFixture(t)
	for i, limit := range []func(n int) ratelimit.Limit{
		func(n int) ratelimit.Limit { return ratelimit.TokenBucket(ratelimit.PerMinute(n), n) },
		func(n int) ratelimit.Limit { return ratelimit.FixedWindow(ratelimit.PerMinute(n)) },
		func(n int) ratelimit.Limit { return ratelimit.SlidingLog(ratelimit.PerMinute(n)) },
		func(n int) ratelimit.Limit { return ratelimit.SlidingCounter(ratelimit.PerMinute(n)) },
	} {
		for _, changed := range []int{20, 5, 10} {
			name := fmt.Sprint("cost", i, "-", changed)
			l := f.limiter(limit(10), name)
			for range 600 {
				r, err := l.Reserve(t.Context(), "k", 1, 24*time.Hour)
				require.NoError(t, err)
				require.True(t, r.Allowed)
			}
			f.clock.Advance(time.Second)
			require.NoError(t, l.SetLimit(limit(changed)))
			denied := func() ratelimit.Decision {
				for {
					d, err := l.Take(t.Context(), "k", 1)
					require.NoError(t, err)
					if !d.Allowed {
						return d
					}
				}
			}
			for range 5 {
				d := denied()
				before := f.wholeReads(t)
				for range 50 {
					f.clock.Advance(time.Millisecond)
					next := denied()
					require.Equal(t, d.RetryAfter-time.Millisecond, next.RetryAfter, "%v", l)
					d = next
				}
				require.LessOrEqual(t, f.wholeReads(t)-before, 2, "%v", l)
				peeked, err := l.Peek(t.Context(), "k", 1)
				require.NoError(t, err)
				require.Equal(t, d, peeked)
				f.clock.Advance(time.Second)
			}
		}
	}
}

// book books ahead on a key of the limiter "noted".
func (f *fixture) book(t *testing.T, limit ratelimit.Limit, n int) {
	l, err := New(f.client, limit, &Options{Name: "noted", Timeout: 10 * time.Second})
	require.NoError(t, err)
	for range n {
		r, err := l.Reserve(t.Context(), "k", 1, 1<<62)
		require.NoError(t, err)
		require.True(t, r.Allowed)
	}
}

// wholeReads returns how many whole states the server has read.
func (f *fixture) wholeReads(t *testing.T) int {
	info, err := f.client.Info(t.Context(), "commandstats").Result()
	require.NoError(t, err)
	m := wholeReads.FindStringSubmatch(info)
	if m == nil {
		return 0
	}
	n, err := strconv.Atoi(m[1])
	require.NoError(t, err)
	return n
}

// Without the right to change a part of a state, a denial is decided as ever.
func TestADenialAmongBookingsNeedsNoRightToNoteIt(t *testing.T) {
	f := newFixture(t)
	limit := ratelimit.FixedWindow(ratelimit.PerHour(2))
	f.book(t, limit, 20)
	for _, missing := range []string{"", "append"} {
		l, err := New(f.restricted(commands, missing), ratelimit.FixedWindow(ratelimit.PerHour(4)), &Options{Name: "noted", Timeout: 10 * time.Second})
		require.NoError(t, err)
		for l.Allow("k", 1) {
		}
		for cost := range 6 {
			d, err := l.Take(t.Context(), "k", 1+cost%2)
			require.NoError(t, err)
			require.False(t, d.Allowed)
			require.InDelta(t, time.Hour, d.RetryAfter, float64(10*time.Minute))
		}
	}
}
