package redislimit

import (
	"fmt"
	"io/fs"
	"regexp"
	"strconv"
	"strings"
	"testing"
	"testing/fstest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/weir-go/ratelimit"
)

var wholeReads = regexp.MustCompile(`cmdstat_get:calls=(\d+)`)

// A denial among bookings reads the whole state once. Later denials do not
// until something changes, neither after a raise nor under a lower limit.
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

// A denied Take reads a state's beginning, and a long state's end,
// too. It runs no other command, however many bookings there are.
func TestADeniedTakeRunsFewCommandsHoweverManyBookings(t *testing.T) {
	verdicts(t)
	f := newFixture(t)
	for i, limit := range []ratelimit.Limit{
		ratelimit.TokenBucket(ratelimit.PerMinute(4), 4),
		ratelimit.LeakyBucket(ratelimit.PerMinute(4), 2000),
		ratelimit.FixedWindow(ratelimit.PerMinute(4)),
		ratelimit.SlidingLog(ratelimit.PerMinute(4)),
		ratelimit.SlidingLog(ratelimit.PerMinute(40)),
		ratelimit.SlidingCounter(ratelimit.PerMinute(4)),
	} {
		for bookings, reads := range map[int]int{0: 1, 16: 1, 300: 2} {
			l := f.limiter(limit, fmt.Sprint("few", i, "-", bookings))
			require.NoError(t, l.Adjust(t.Context(), "k", limit.Capacity()))
			for range bookings {
				if limit.Algorithm == ratelimit.AlgorithmLeakyBucket {
					reads = 1 // a leaky bucket's bookings are units of its queue
					break
				}
				r, err := l.Reserve(t.Context(), "k", limit.Capacity(), 1<<62)
				require.NoError(t, err)
				require.True(t, r.Allowed)
			}
			f.deny(l, 1)
			f.resetStats()
			for range 10 {
				f.deny(l, 1)
			}
			require.Equal(t, map[string]int{"evalsha": 10, "getrange": 10 * reads}, f.stats(), "%v with %d bookings", limit, bookings)
		}
	}
}

// A calendar's denied Take reads the state once, too. Its window's spending may deny it,
// or bookings: all of these begin with the next window. The answer is the general case's.
func TestADeniedTakeOfACalendarReadsTheStateOnce(t *testing.T) {
	verdicts(t)
	f := newFixture(t)
	general := *current
	general.one = map[byte]*decider{kindCalendar: blocks{luaFiles}.decider(func(byte) string { return "" })}
	for i, limit := range []ratelimit.Limit{ratelimit.Calendar(40, ratelimit.Day("UTC")), ratelimit.Calendar(40, ratelimit.Month("Europe/Berlin", 31))} {
		l, other := f.limiter(limit, fmt.Sprint("calendar", i)), f.limiter(limit, fmt.Sprint("calendar", i))
		other.store.scripts = &general
		require.NoError(t, l.Adjust(t.Context(), "k", 40))
		f.deny(l, 1) // after this call the server knows the script
		for _, bookings := range []int{0, 16, 20} {
			for range bookings {
				r, err := l.Reserve(t.Context(), "k", 1, 1<<62)
				require.NoError(t, err)
				require.True(t, r.Allowed)
			}
			for _, cost := range []int{1, 30, 40} {
				f.clock.Advance(time.Second)
				f.deny(l, 1) // it may look for dead processes' bookings, as one denial does every quarter of a second
				f.resetStats()
				d, err := l.Take(t.Context(), "k", cost)
				require.NoError(t, err)
				require.Equal(t, map[string]int{"evalsha": 1, "getrange": 1}, f.stats(), "%v with %d bookings", limit, bookings)
				want, err := other.Take(t.Context(), "k", cost)
				require.NoError(t, err)
				require.Equal(t, want, d, "%d of %v with %d bookings", cost, limit, bookings)
			}
		}
	}
}

// If a token bucket has no room once all its bookings are due, a
// limiter's first call, too, is denied without the whole state.
func TestADenialBehindDueBookingsReadsNoWholeState(t *testing.T) {
	verdicts(t)
	f := newFixture(t)
	for _, bookings := range []int{16, 17, 40, 100} {
		limiter := func() *Limiter {
			return f.limiter(ratelimit.TokenBucket(ratelimit.PerMinute(10), 10), fmt.Sprint("due", bookings))
		}
		l := limiter()
		require.True(t, l.Allow("k", 10))
		for range bookings {
			r, err := l.Reserve(t.Context(), "k", 10, 1<<62)
			require.NoError(t, err)
			require.True(t, r.Allowed)
		}
		f.clock.Advance(time.Duration(bookings)*time.Minute + time.Second)
		before := f.wholeReads(t)
		for range 5 {
			require.Equal(t, 5*time.Second, f.deny(limiter(), 1))
		}
		require.Equal(t, before, f.wholeReads(t), "%d bookings", bookings)
	}
}

// book makes n bookings ahead for a key of the limiter "noted".
func (f *fixture) book(t *testing.T, limit ratelimit.Limit, n int) {
	l, err := New(f.client, limit, &Options{Name: "noted", Timeout: 10 * time.Second})
	require.NoError(t, err)
	for range n {
		r, err := l.Reserve(t.Context(), "k", 1, 1<<62)
		require.NoError(t, err)
		require.True(t, r.Allowed)
	}
}

// wholeReads counts how often the server has read a whole state.
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

// Without the right to change a part of a state, denials are decided as usual.
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

// stepping returns scripts with a count of their steps. In the key
// "steps" they count how often they look for an instant or spend a cost.
func stepping(t *testing.T) *scripts {
	files := fstest.MapFS{}
	require.NoError(t, fs.WalkDir(luaFiles, "lua", func(path string, d fs.DirEntry, err error) error {
		if err == nil && !d.IsDir() {
			var data []byte
			data, err = luaFiles.ReadFile(path)
			files[path] = &fstest.MapFile{Data: data}
		}
		return err
	}))
	files["lua/counter.lua"].Data = append(files["lua/counter.lua"].Data, `
local steps = 0
for _, a in ipairs({ token, fixed, counter }) do
  for _, name in ipairs({ 'earliest', 'spend' }) do
    local inner = a[name]
    a[name] = function(...)
      steps = steps + 1
      return inner(...)
    end
  end
end
`...)
	run := strings.TrimSpace(string(files["lua/run.lua"].Data))
	files["lua/run.lua"].Data = []byte(strings.Replace(run, "return ", "local reply = ", 1) + "\nredis.call('SET', 'steps', steps)\nreturn reply\n")
	return newScripts(files)
}

// The first call after a change books each booking again once. At the
// same time it determines whether the booking still fits at its instant.
func TestTheFirstCallAfterAChangeWeighsEachBookingOnce(t *testing.T) {
	f := newFixture(t)
	scripts := stepping(t)
	for i, limit := range []func(n int) ratelimit.Limit{
		func(n int) ratelimit.Limit { return ratelimit.TokenBucket(ratelimit.PerMinute(n), n) },
		func(n int) ratelimit.Limit { return ratelimit.FixedWindow(ratelimit.PerMinute(n)) },
		func(n int) ratelimit.Limit { return ratelimit.SlidingCounter(ratelimit.PerMinute(n)) },
	} {
		l := f.limiter(limit(2), fmt.Sprint("steps", i))
		l.store.scripts = scripts
		for range 600 {
			r, err := l.Reserve(t.Context(), "k", 2, 24*time.Hour)
			require.NoError(t, err)
			require.True(t, r.Allowed)
		}
		for _, n := range []int{1, 8, 20} {
			require.NoError(t, l.SetLimit(limit(n)))
			require.Equal(t, n > 2, l.Allow("k", 1), "%v", limit(n))
			steps, err := f.client.Get(t.Context(), "steps").Int()
			require.NoError(t, err)
			require.LessOrEqual(t, steps, 2*600+200, "%v", limit(n))
		}
	}
}
