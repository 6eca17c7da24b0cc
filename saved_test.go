package ratelimit_test

import (
	"bytes"
	"context"
	"flag"
	"fmt"
	"iter"
	"maps"
	"math"
	"math/rand/v2"
	"net/netip"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/weir-go/ratelimit"
	"github.com/weir-go/ratelimit/internal/dev/model"
	"github.com/weir-go/ratelimit/internal/dev/testsize"
	"github.com/weir-go/ratelimit/ratelimittest"
)

var twoAMinute = ratelimit.FixedWindow(ratelimit.PerMinute(2)).Named("requests")

func savedOf(l *ratelimit.Keyed[string]) map[string]ratelimit.Saved { return maps.Collect(l.Saved()) }

// sameAnswers compares two limiters' decisions on several costs.
func sameAnswers(t testing.TB, want, got *ratelimit.Keyed[string], key string, note ...any) {
	t.Helper()
	for _, cost := range []int{0, 1, 2, 5, want.Describe().Limits[0].Capacity()} {
		w, wantErr := want.Peek(context.Background(), key, cost)
		g, err := got.Peek(context.Background(), key, cost)
		require.Equal(t, wantErr, err, note...)
		require.Equal(t, w, g, note...)
	}
}

func savedLimits() []ratelimit.Limit {
	return []ratelimit.Limit{
		ratelimit.TokenBucket(ratelimit.Per(3, 7*s), 10),
		ratelimit.LeakyBucket(ratelimit.Per(3, 7*s), 10),
		ratelimit.FixedWindow(ratelimit.Per(10, 7*s)),
		ratelimit.SlidingLog(ratelimit.Per(10, 7*s)),
		ratelimit.SlidingCounter(ratelimit.Per(10, 7*s)),
		ratelimit.TokenBucket(ratelimit.Per(math.MaxInt32, time.Nanosecond), math.MaxInt32),
		ratelimit.TokenBucket(ratelimit.PerHour(1), 876_600),
		ratelimit.FixedWindow(ratelimit.Per(2, 876_600*time.Hour)),
	}
}

func TestARestoredKeyAnswersAsIfTheProgramHadGoneOn(t *testing.T) {
	for _, limit := range savedLimits() {
		for _, elapsed := range []time.Duration{0, 1, 3 * s, 9 * s, time.Minute, 10 * time.Hour, math.MaxInt64} {
			for _, origin := range []time.Duration{-10 * time.Hour, 0, 60 * 24 * time.Hour} {
				clock := new(testClock)
				clock.set(11*s + 13)
				old := onClock(t, clock, limit)
				require.True(t, old.Allow("spent", 1))
				require.NoError(t, old.Adjust(context.Background(), "debt", 17))
				require.NoError(t, old.Adjust(context.Background(), "deep", 1000))
				for range 3 {
					_, err := old.Reserve(t.Context(), "booked", 2, time.Hour)
					require.NoError(t, err)
					_, err = old.Reserve(t.Context(), "booked", 1, time.Hour)
					require.NoError(t, err)
					clock.advance(900 * ms)
				}
				saved := savedOf(old)

				then := new(testClock)
				then.set(origin)
				l := onClock(t, then, limit)
				require.NoError(t, l.Restore(maps.All(saved), elapsed))
				clock.advance(min(elapsed, 1<<61))
				if elapsed == math.MaxInt64 {
					require.Zero(t, l.Stats().Keys)
					continue
				}
				for range 5 {
					for _, key := range []string{"spent", "debt", "deep", "booked", "never"} {
						sameAnswers(t, old, l, key, limit.String()+" "+key+" after "+elapsed.String())
						w, err := old.Take(t.Context(), key, 1)
						require.NoError(t, err)
						g, err := l.Take(t.Context(), key, 1)
						require.NoError(t, err)
						require.Equal(t, w, g)
					}
					clock.advance(2*s + 1)
					then.advance(2*s + 1)
				}
			}
		}
	}
}

func TestAllAgreesWithPeek(t *testing.T) {
	clock := new(testClock)
	// IdleTTL is longer than the test, so a new key drops no other key of its shard.
	l := newWith(t, twoAMinute, ratelimit.Options[string]{Clock: clock, IdleTTL: 2 * time.Hour, LimitFor: func(key string) ratelimit.Limit {
		if key == "other" {
			return ratelimit.TokenBucket(ratelimit.PerSecond(1), 7)
		}
		return ratelimit.Limit{}
	}})
	require.Empty(t, maps.Collect(l.All()))
	for i := range 3 {
		l.Allow("a", i)
		l.Allow("other", 2)
	}
	all := maps.Collect(l.All())
	require.Len(t, all, 2)
	for key, d := range all {
		want, err := l.Peek(context.Background(), key, 1)
		require.NoError(t, err)
		require.Equal(t, want, d)
	}
	clock.advance(time.Hour)
	for _, d := range l.All() {
		require.True(t, d.Allowed, "tracked, and fresh")
	}
	require.Empty(t, savedOf(l), "what is fresh need not be saved")

	// The loop's body may call the limiter, and may break.
	for key := range l.All() {
		l.Reset(context.Background(), key)
		l.Allow(key+"'", 1)
		require.NoError(t, l.SetLimit(ratelimit.Blocked()))
		break
	}
	require.Equal(t, 2, l.Stats().Keys)
	for _, d := range l.All() {
		_ = d
	}
	addrs := ratelimit.Must(ratelimit.New[netip.Addr](twoAMinute, nil))
	want := []netip.Addr{{}, netip.MustParseAddr("10.0.0.1"), netip.MustParseAddr("::ffff:10.0.0.1"), netip.MustParseAddr("fe80::1%eth0")}
	for _, a := range want {
		require.True(t, addrs.Allow(a, 1))
	}
	var got []netip.Addr
	for a := range addrs.All() {
		got = append(got, a)
	}
	require.ElementsMatch(t, want, got)
}

// Keys come, go and spend while the loops run. A key tracked all the time is listed once.
func TestKeysThatAreThereAllTheTimeAreListedOnce(t *testing.T) {
	const keep = 500
	l := newWith(t, ratelimit.FixedWindow(ratelimit.PerHour(1<<30)), ratelimit.Options[int]{MaxKeys: 1 << 14})
	for key := range keep {
		require.True(t, l.Allow(key, 1))
	}
	stop, done := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(done)
		for i := keep; ; i++ {
			select {
			case <-stop:
				return
			default:
				l.Allow(i%8000+keep, 1)
				l.Allow(i%keep, 1)
				l.Reset(context.Background(), (i+4000)%8000+keep)
			}
		}
	}()
	rounds := 20
	if testsize.Race {
		rounds = 4
	}
	for range rounds {
		for name, seq := range map[string]iter.Seq[int]{"All": firsts(l.All()), "Saved": firsts(l.Saved())} {
			seen := map[int]int{}
			for key := range seq {
				seen[key]++
				require.LessOrEqual(t, seen[key], 1, name)
			}
			for key := range keep {
				require.Equal(t, 1, seen[key], name)
			}
		}
	}
	close(stop)
	<-done
}

// Keys are restored while they spend. The restored spending and the granted costs together never exceed the limit.
func TestKeysThatSpendDuringTheSaveAreRestored(t *testing.T) {
	const keys, units = 50, 100
	clock := new(testClock)
	limit := ratelimit.FixedWindow(ratelimit.PerHour(units))
	old := onClock(t, clock, limit)
	for i := range keys {
		require.True(t, old.Allow(fmt.Sprint(i), 60))
	}
	saved := savedOf(old)
	l := newWith(t, limit, ratelimit.Options[string]{Clock: clock, MaxKeys: 2 * keys})
	var granted [keys]atomic.Int64
	var wg sync.WaitGroup
	for range 3 {
		wg.Go(func() {
			for range 20 {
				for i := range keys {
					if l.Allow(fmt.Sprint(i), 1) {
						granted[i].Add(1)
					}
				}
			}
		})
	}
	wg.Go(func() { assert.NoError(t, l.Restore(maps.All(saved), 0)) })
	wg.Wait()
	for i := range keys {
		left := remaining(t, l, fmt.Sprint(i))
		if n := int(granted[i].Load()); n <= units-60 {
			require.Equal(t, units-60-n, left)
		} else {
			require.Zero(t, left, "it spent before it was restored, and owes that")
		}
	}
}

func firsts[K, V any](seq iter.Seq2[K, V]) iter.Seq[K] {
	return func(yield func(K) bool) {
		for k := range seq {
			if !yield(k) {
				return
			}
		}
	}
}

func TestRestoreSkipsEntriesThatItCannotReadAndReportsThem(t *testing.T) {
	for _, limit := range savedLimits() {
		clock := new(testClock)
		old := onClock(t, clock, limit)
		for range 3 {
			_, err := old.Reserve(t.Context(), "k", 1, time.Hour)
			require.NoError(t, err)
			clock.advance(ms)
		}
		require.NoError(t, old.Adjust(context.Background(), "k", max(limit.Capacity(), limit.Capacity()+1)))
		saved := savedOf(old)["k"]
		require.NotEmpty(t, saved)
		l := onClock(t, clock, limit)
		pairs := func(yield func(string, ratelimit.Saved) bool) {
			for n := range saved {
				if !yield(fmt.Sprint("secret", n), saved[:n]) {
					return
				}
			}
			for _, bad := range []ratelimit.Saved{append(slices.Clone(saved), 0), []byte("garbage"), {0}, {2, 1}, {255}, {1, 9, 9, 9, 9, 9, 9}, {1, 6, 0, 0, 0}} {
				if !yield("bad", bad) {
					return
				}
			}
			yield("k", saved)
		}
		err := l.Restore(pairs, 0)
		require.Error(t, err)
		require.Equal(t, 1, l.Stats().Keys, "%v: %v", limit, err)
		sameAnswers(t, old, l, "k", limit)
		joined := err.(interface{ Unwrap() []error }).Unwrap()
		require.Len(t, joined, len(saved)+7)
		for i, err := range joined {
			require.ErrorContains(t, err, fmt.Sprintf("ratelimit: saved key %d: ", i))
			require.NotContains(t, err.Error(), "secret")
		}
		require.ErrorContains(t, joined[0], "it is cut short")
		require.ErrorContains(t, joined[len(saved)+3], "its version is 2, and this program knows version 1")
	}
}

func TestRestoreChargesATrackedKeyOnTop(t *testing.T) {
	for _, limit := range savedLimits()[:5] {
		clock := new(testClock)
		old, l := onClock(t, clock, limit), onClock(t, clock, limit)
		require.True(t, old.Allow("k", 3))
		require.True(t, l.Allow("k", 4))
		require.NoError(t, l.Restore(old.Saved(), -time.Hour))
		require.Equal(t, 3, remaining(t, l, "k"), "%v", limit)
		require.NoError(t, l.Restore(old.Saved(), math.MinInt64))
		require.Equal(t, 0, remaining(t, l, "k"), "%v", limit)
		require.NoError(t, l.Restore(old.Saved(), time.Hour))
		require.Equal(t, 0, remaining(t, l, "k"), "%v", limit)
	}
}

// The limits change at the restart. The spending carries over as with SetLimit.
func TestSavedSpendingMigratesToTheLimitOfTheNewProgram(t *testing.T) {
	for _, limit := range savedLimits()[:5] {
		for _, next := range savedLimits()[:7] {
			for _, byKey := range []bool{false, true} {
				clock := new(testClock)
				old := onClock(t, clock, limit)
				require.True(t, old.Allow("k", 5))
				clock.advance(s)
				require.NoError(t, old.Adjust(context.Background(), "k", 9))
				_, err := old.Reserve(t.Context(), "k", 1, time.Hour)
				require.NoError(t, err)
				saved := savedOf(old)
				opts := ratelimit.Options[string]{Clock: clock}
				first := next
				if byKey {
					first, opts.LimitFor = twoAMinute, func(string) ratelimit.Limit { return next }
				}
				l := newWith(t, first, opts)
				require.NoError(t, l.Restore(maps.All(saved), 0))
				require.NoError(t, old.SetLimit(next))
				for range 4 {
					for _, cost := range []int{1, 2, 0} {
						w, err := old.Take(t.Context(), "k", cost)
						require.NoError(t, err)
						g, err := l.Take(t.Context(), "k", cost)
						require.NoError(t, err)
						w.Limit, g.Limit = ratelimit.Limit{}, ratelimit.Limit{}
						require.Equal(t, w, g, "%v to %v", limit, next)
					}
					clock.advance(1700 * ms)
				}
			}
		}
	}
}

// After a restart with another limit, a correction puts a key under the new limit, as it does after SetLimit. So a charge
// does not lapse at the old rate. Only if requests have their own limits is the key under its last request's limit.
func TestACorrectionOfARestoredKeyCountsUnderTheNewLimit(t *testing.T) {
	ctx := context.Background()
	fast, slow := ratelimit.TokenBucket(ratelimit.PerSecond(1000), 1000), ratelimit.TokenBucket(ratelimit.PerHour(10), 10)
	type limiter interface {
		Take(ctx context.Context, r planned, cost int) (ratelimit.Decision, error)
		Adjust(ctx context.Context, r planned, delta int) error
	}
	byUser := func(l *ratelimit.Keyed[string]) ratelimit.Layer[planned] { return ratelimit.By(l, ofUser) }
	for name, row := range map[string]struct {
		layer      func(l *ratelimit.Keyed[string]) ratelimit.Layer[planned]
		one, byKey bool // the limits are the limiter's, or come from LimitFor
		left       int
	}{
		"one limit":        {byUser, true, false, 2},
		"keys' limits":     {byUser, false, true, 2},
		"requests' limits": {byPlan, false, false, 8},
	} {
		for _, restart := range []bool{false, true} {
			t.Run(fmt.Sprintf("%s, restart=%v", name, restart), func(t *testing.T) {
				clock, limit := new(testClock), fast
				program := func() (*ratelimit.Keyed[string], limiter) {
					opts, own := ratelimit.Options[string]{Clock: clock}, twoAMinute
					if row.byKey {
						opts.LimitFor = func(string) ratelimit.Limit { return limit }
					}
					if row.one {
						own = limit
					}
					l := newWith(t, own, opts)
					return l, ratelimit.Must(ratelimit.All(row.layer(l)))
				}
				l, stack := program()
				_, err := stack.Take(ctx, planned{"ann", limit}, 1)
				require.NoError(t, err)
				saved := savedOf(l)
				switch limit = slow; {
				case restart:
					l, stack = program()
					require.NoError(t, l.Restore(maps.All(saved), 0))
				case row.byKey:
					l.Refresh()
				case row.one:
					require.NoError(t, l.SetLimit(limit))
				}
				require.NoError(t, stack.Adjust(ctx, planned{"ann", limit}, 5))
				clock.advance(time.Minute)
				for key, listed := range l.All() {
					d, err := l.Peek(ctx, key, 1)
					require.NoError(t, err)
					assert.Equal(t, row.one || row.byKey, listed == d)
				}
				d, err := stack.Take(ctx, planned{"ann", limit}, 2)
				require.NoError(t, err)
				assert.Equal(t, row.left, d.Remaining)
			})
		}
	}
}

// An hour of spending and corrections, in which the limit changes some ten times. A program that restarts for each change
// decides and lists as one that runs on. Windows would differ: a fresh key is not saved, so its windows begin with its next cost.
func TestAnHourOfRestartsWithOtherLimitsIsAnHourOfSetLimit(t *testing.T) {
	ctx := context.Background()
	for name, limitOf := range map[string]func(ratelimit.Rate, int) ratelimit.Limit{
		"token bucket": ratelimit.TokenBucket,
		"leaky bucket": ratelimit.LeakyBucket,
		"sliding log":  func(r ratelimit.Rate, _ int) ratelimit.Limit { return ratelimit.SlidingLog(r) },
	} {
		t.Run(name, func(t *testing.T) {
			for seed := range uint64(10) {
				r := rand.New(rand.NewPCG(seed, 0))
				clock := new(testClock)
				draw := func() ratelimit.Limit {
					n := 1 + r.IntN(30)
					return limitOf(ratelimit.Per(n, []time.Duration{s, time.Minute, 10 * time.Minute, time.Hour}[r.IntN(4)]), n)
				}
				limit := draw()
				runsOn, restarts := onClock(t, clock, limit), onClock(t, clock, limit)
				for range 400 {
					clock.advance(time.Duration(r.Int64N(int64(18 * s))))
					key, n := strconv.Itoa(r.IntN(4)), r.IntN(6)
					switch r.IntN(40) {
					case 0:
						limit = draw()
						require.NoError(t, runsOn.SetLimit(limit))
						saved := savedOf(restarts)
						restarts = onClock(t, clock, limit)
						require.NoError(t, restarts.Restore(maps.All(saved), 0))
					case 1, 2, 3, 4, 5, 6, 7, 8:
						require.NoError(t, runsOn.Adjust(ctx, key, 2*n-4))
						require.NoError(t, restarts.Adjust(ctx, key, 2*n-4))
					default:
						want, wantErr := runsOn.Take(ctx, key, n)
						got, err := restarts.Take(ctx, key, n)
						require.Equal(t, wantErr, err)
						require.Equal(t, want, got, "seed %d", seed)
					}
					listed := maps.Collect(runsOn.All())
					for key, got := range restarts.All() {
						if want, ok := listed[key]; ok { // a fresh key may be gone
							require.Equal(t, want, got, "seed %d", seed)
						}
					}
				}
			}
		})
	}
}

func TestRestoreIntoAFullTable(t *testing.T) {
	clock := new(testClock)
	old := onClock(t, clock, twoAMinute)
	for _, key := range []string{"a", "b", "c"} {
		require.True(t, old.Allow(key, 1))
	}
	l := newWith(t, twoAMinute, ratelimit.Options[string]{Clock: clock, MaxKeys: 2, OnFull: ratelimit.RefuseNew})
	err := l.Restore(old.Saved(), 0)
	require.ErrorIs(t, err, ratelimit.ErrTableFull)
	require.Equal(t, 2, l.Stats().Keys)
	require.Equal(t, 1, strings.Count(err.Error(), "saved key"))
	clock.advance(time.Minute)
	require.True(t, l.Allow("d", 2), "restored keys make room when they are fresh")

	l = newWith(t, twoAMinute, ratelimit.Options[string]{Clock: clock, MaxKeys: 2})
	require.NoError(t, l.Restore(old.Saved(), 0))
	require.NoError(t, l.Restore(func(func(string, ratelimit.Saved) bool) {}, 0))
	require.EqualError(t, l.Restore(nil, 0), "ratelimit: Restore: seq is nil")
	nan := ratelimit.Must(ratelimit.New[float64](twoAMinute, nil))
	require.ErrorIs(t, nan.Restore(func(yield func(float64, ratelimit.Saved) bool) { yield(math.NaN(), nil) }, 0), ratelimit.ErrInvalidKey)
	var zero ratelimit.Keyed[string]
	for name, call := range map[string]func(){
		"All": func() { zero.All() }, "Saved": func() { zero.Saved() }, "Restore": func() { _ = zero.Restore(nil, 0) },
	} {
		require.PanicsWithError(t, "ratelimit: this Keyed is nil or zero: make one with New", call, name)
	}
}

// A calendar's window follows the wall clock, so elapsed makes no difference.
func TestASavedCalendarKeepsItsWindow(t *testing.T) {
	limit := ratelimit.Calendar(10, ratelimit.Month("Europe/Berlin", 15))
	for _, test := range []struct {
		elapsed, announced time.Duration
		left               int
	}{{0, 0, 3}, {time.Hour, time.Hour, 3}, {time.Hour, 0, 3}, {72 * time.Hour, 72 * time.Hour, 10}, {72 * time.Hour, 0, 10}} {
		clock := new(ratelimittest.Clock)
		clock.SetWall(time.Date(2027, 3, 12, 12, 0, 0, 0, time.UTC))
		old := newWith(t, limit, ratelimit.Options[string]{Clock: clock})
		require.True(t, old.Allow("k", 7))
		require.NoError(t, old.Adjust(context.Background(), "debt", 25))
		saved := savedOf(old)
		clock.Advance(test.elapsed)
		then := new(ratelimittest.Clock)
		then.Set(-5 * time.Hour)
		then.SetWall(clock.Wall())
		l := newWith(t, limit, ratelimit.Options[string]{Clock: then})
		require.NoError(t, l.Restore(maps.All(saved), test.announced))
		require.Equal(t, test.left, remaining(t, l, "k"))
		for range 80 {
			sameAnswers(t, old, l, "k", test)
			sameAnswers(t, old, l, "debt", test)
			clock.Advance(25 * time.Hour)
			then.Advance(25 * time.Hour)
		}
		// Restore adds the saved spending to a key's spending since.
		l.Reset(context.Background(), "k")
		l = newWith(t, limit, ratelimit.Options[string]{Clock: then})
		then.SetWall(time.Date(2027, 3, 12, 12, 0, 0, 0, time.UTC))
		require.True(t, l.Allow("k", 2))
		require.NoError(t, l.Restore(maps.All(saved), test.announced))
		require.Equal(t, 1, remaining(t, l, "k"))
		for n := range saved["k"] {
			require.Error(t, l.Restore(func(yield func(string, ratelimit.Saved) bool) { yield("x", saved["k"][:n]) }, 0))
		}
	}
	bare := onClock(t, struct{ ratelimit.Clock }{new(testClock)}, twoAMinute)
	clock := new(ratelimittest.Clock)
	old := newWith(t, limit, ratelimit.Options[string]{Clock: clock})
	require.True(t, old.Allow("k", 7))
	require.ErrorIs(t, bare.Restore(old.Saved(), 0), ratelimit.ErrInvalidLimit, "its clock tells no wall time")
}

// If the clock had stepped back before the save, time stands still
// for the restored keys as long as it would have without a restart.
func TestAClockThatSteppedBackIsSavedToo(t *testing.T) {
	for _, limit := range savedLimits()[:5] {
		for _, elapsed := range []time.Duration{0, 30 * s, time.Minute, 61 * s, 62 * s, 300 * s} {
			clock := new(testClock)
			clock.set(time.Minute)
			old := onClock(t, clock, limit)
			require.True(t, old.Allow("k", 9))
			clock.set(0)
			saved := savedOf(old)
			then := new(testClock)
			then.set(time.Hour)
			l := onClock(t, then, limit)
			require.NoError(t, l.Restore(maps.All(saved), elapsed))
			clock.advance(elapsed)
			for range 20 {
				sameAnswers(t, old, l, "k", limit.String()+elapsed.String())
				clock.advance(5 * s)
				then.advance(5 * s)
			}
		}
	}
}

// playRestart plays a random history on two limiters. One is saved and restored at
// random moments, the other runs on. Both make the same decisions. A third limiter,
// restored with less elapsed time or after spending of its own, never has more budget.
func playRestart(t testing.TB, rng *rand.Rand) {
	per := []time.Duration{7, 1000, s, 7 * s, time.Hour, 24 * 365 * time.Hour}[rng.IntN(6)]
	units := 1 + rng.IntN(20)
	limits := []ratelimit.Limit{
		ratelimit.TokenBucket(ratelimit.Per(units, per), 1+rng.IntN(30)), ratelimit.LeakyBucket(ratelimit.Per(units, per), 1+rng.IntN(30)),
		ratelimit.FixedWindow(ratelimit.Per(units, per)), ratelimit.SlidingLog(ratelimit.Per(units, per)), ratelimit.SlidingCounter(ratelimit.Per(units, per)),
	}
	limit := limits[rng.IntN(5)]
	clock, then := new(testClock), new(testClock)
	clock.set(time.Duration(rng.Int64N(int64(time.Hour))))
	on, l := onClock(t, clock, limit), onClock(t, then, limit)
	keys := []string{"a", "b"}
	for range 60 {
		key := keys[rng.IntN(2)]
		cost := 1 + rng.IntN(limit.Capacity())
		switch rng.IntN(9) {
		case 0:
			delta := rng.IntN(3 * limit.Capacity())
			require.NoError(t, on.Adjust(context.Background(), key, delta))
			require.NoError(t, l.Adjust(context.Background(), key, delta))
		case 1:
			ahead := time.Duration(rng.Int64N(int64(3 * per)))
			w, err := on.Reserve(t.Context(), key, cost, ahead)
			require.NoError(t, err)
			g, err := l.Reserve(t.Context(), key, cost, ahead)
			require.NoError(t, err)
			require.Equal(t, w.Decision, g.Decision)
			if rng.IntN(3) == 0 {
				require.NoError(t, w.Settle(cost/2))
				require.NoError(t, g.Settle(cost/2))
			}
		case 2:
			gap := time.Duration(rng.Int64N(int64(per)/2 + 1))
			saved := savedOf(l)
			clock.advance(gap)
			then = new(testClock)
			then.set(time.Duration(rng.Int64N(int64(time.Hour))) - 30*time.Minute)
			l = onClock(t, then, limit)
			require.NoError(t, l.Restore(maps.All(saved), gap))
			less := onClock(t, then, limit)
			less.Allow("a", rng.IntN(limit.Capacity()+1))
			require.NoError(t, less.Restore(maps.All(saved), time.Duration(rng.Int64N(int64(gap)+1))-time.Duration(rng.IntN(2))))
			now := then.Now()
			for range 5 {
				for _, key := range keys {
					require.LessOrEqual(t, remaining(t, less, key), remaining(t, l, key), "%v", limit)
				}
				then.advance(time.Duration(rng.Int64N(int64(per))))
			}
			then.set(now)
		case 3, 4:
			step := time.Duration(rng.Int64N(int64(per)/int64(1+rng.IntN(8)) + 1))
			clock.advance(step)
			then.advance(step)
		default:
			w, err := on.Take(t.Context(), key, cost)
			require.NoError(t, err)
			g, err := l.Take(t.Context(), key, cost)
			require.NoError(t, err)
			require.Equal(t, w, g, "%v", limit)
		}
		for _, key := range keys {
			require.Equal(t, remaining(t, on, key), remaining(t, l, key), "%v", limit)
		}
	}
}

var restarts = flag.Uint64("restarts", testsize.Of(uint64(150), 5000), "histories of TestARestoredKeyNeverHasMoreThanOneThatWentOn")

func TestARestoredKeyNeverHasMoreThanOneThatWentOn(t *testing.T) {
	for seed := range *restarts {
		ok := t.Run("", func(t *testing.T) { playRestart(t, rand.New(rand.NewPCG(testsize.Seed(seed), 1))) })
		require.True(t, ok, "seed %d", seed)
	}
}

// FuzzRestore restores garbage. If Restore accepts a state, all promises hold for it.
func FuzzRestore(f *testing.F) {
	clock := new(testClock)
	for _, limit := range savedLimits() {
		l := onClock(f, clock, limit)
		require.NoError(f, l.Adjust(context.Background(), "k", 12))
		_, err := l.Reserve(f.Context(), "k", 1, time.Hour)
		require.NoError(f, err)
		for _, saved := range l.Saved() {
			f.Add([]byte(saved), int64(s), int64(0))
		}
	}
	lowered := onClock(f, clock, ratelimit.TokenBucket(ratelimit.PerSecond(3), 100))
	require.True(f, lowered.Allow("k", 100))
	require.NoError(f, lowered.SetLimit(ratelimit.TokenBucket(ratelimit.PerSecond(3), 10)))
	require.NoError(f, lowered.Adjust(context.Background(), "k", -1)) // puts the key under the limit, and sets units aside
	for _, saved := range lowered.Saved() {
		f.Add([]byte(saved), int64(s), int64(0))
	}
	calendar := newWith(f, ratelimit.Calendar(10, ratelimit.Week("UTC", time.Monday)), ratelimit.Options[string]{Clock: new(ratelimittest.Clock)})
	require.NoError(f, calendar.Adjust(context.Background(), "k", 12))
	for _, saved := range calendar.Saved() {
		f.Add([]byte(saved), int64(s), int64(0))
	}
	f.Fuzz(func(t *testing.T, saved []byte, elapsed, now int64) {
		clock := new(ratelimittest.Clock)
		clock.Set(time.Duration(now))
		limit := ratelimit.TokenBucket(ratelimit.PerSecond(3), 10)
		l := onClock(t, clock, limit)
		kept := bytes.Clone(saved)
		err := l.Restore(func(yield func(string, ratelimit.Saved) bool) { yield("k", saved) }, time.Duration(elapsed))
		require.Equal(t, kept, saved)
		if err != nil {
			require.Zero(t, l.Stats().Keys)
			return
		}
		for _, again := range l.Saved() { // restored keys can be saved and restored
			require.NoError(t, onClock(t, clock, limit).Restore(func(yield func(string, ratelimit.Saved) bool) { yield("k", again) }, 0))
		}
		for range 3 {
			d, err := l.Take(t.Context(), "k", 3)
			require.NoError(t, err)
			assert.GreaterOrEqual(t, d.Remaining, 0)
			assert.LessOrEqual(t, d.Remaining, 10)
			assert.GreaterOrEqual(t, d.ResetAfter, time.Duration(0))
			assert.Equal(t, d.Allowed, d.RetryAfter == 0)
			if !d.Allowed && d.RetryAfter < 1<<61 && clock.Now() < 1<<60 {
				clock.Advance(d.RetryAfter - 1)
				require.False(t, l.Allow("k", 3))
				clock.Advance(1)
				require.True(t, l.Allow("k", 3))
			}
		}
	})
}

// Restore adds a sliding log's booking to the key's spending since. The
// booking goes where there is room, and is not lost in a full window.
func TestABookingRestoredOnTopOfAFullLogIsNotLost(t *testing.T) {
	clock := new(testClock)
	limit := ratelimit.SlidingLog(ratelimit.Per(1, 100*time.Second))
	old := onClock(t, clock, limit)
	require.True(t, old.Allow("k", 1))
	clock.advance(10 * time.Second)
	r, err := old.Reserve(t.Context(), "k", 1, time.Hour)
	require.NoError(t, err)
	require.Equal(t, 90*time.Second, r.Delay)
	saved := savedOf(old)
	clock.advance(20 * time.Second)
	l := onClock(t, clock, limit)
	require.True(t, l.Allow("k", 1))
	require.NoError(t, l.Restore(maps.All(saved), 20*time.Second))
	d, err := l.Peek(context.Background(), "k", 1)
	require.NoError(t, err)
	require.GreaterOrEqual(t, d.RetryAfter, 270*time.Second, "three units are spent or owed beside this one")
}

// Restore adds spending to keys with bookings almost a century ahead. It goes behind the bookings, and can be saved again.
func TestSpendingRestoredOnTopOfItselfIsSavedAgain(t *testing.T) {
	for seed := range model.Rounds(1000) {
		r := rand.New(rand.NewPCG(testsize.Seed(seed), 84))
		per := time.Duration(model.Century) / time.Duration(1+r.IntN(40))
		if r.IntN(4) == 0 {
			per = time.Duration(1 + r.Int64N(model.Century))
		}
		limits := append(model.Five(ratelimit.Per(1+r.IntN(5), per)), ratelimit.Calendar(1+r.IntN(5), ratelimit.Month("UTC", 1)))
		limit := limits[r.IntN(len(limits))]
		if limit.Validate() != nil {
			continue
		}
		clock := new(testClock)
		l := onClock(t, clock, limit)
		for range 1 + r.IntN(30) {
			if r.IntN(8) == 0 {
				clock.advance(time.Duration(r.Int64N(int64(model.Span(limit))/20 + 1)))
			}
			_, err := l.Reserve(t.Context(), "k", 1+r.IntN(limit.Capacity()), time.Duration(r.Int64N(model.Century)))
			require.NoError(t, err)
		}
		for range 5 {
			if r.IntN(2) == 0 {
				require.NoError(t, l.Restore(l.Saved(), 0))
			}
			next := onClock(t, clock, limit)
			require.NoError(t, next.Restore(l.Saved(), 0), "seed %d: %v", seed, limit)
			answer, err := l.Peek(context.Background(), "k", 1)
			require.NoError(t, err)
			got, err := next.Peek(context.Background(), "k", 1)
			require.NoError(t, err)
			require.LessOrEqual(t, got.Remaining, answer.Remaining)
			require.GreaterOrEqual(t, got.ResetAfter, answer.ResetAfter, "seed %d: %v", seed, limit)
			if r.IntN(2) == 0 {
				l = next
			}
		}
	}
}

func TestALargeBookingIsRestored(t *testing.T) {
	clock, limit := new(testClock), ratelimit.LeakyBucket(ratelimit.Per(math.MaxInt>>10, time.Hour), math.MaxInt)
	l := onClock(t, clock, limit)
	require.True(t, l.Allow("k", math.MaxInt>>2))
	r, err := l.Reserve(t.Context(), "k", math.MaxInt/2+2, math.MaxInt64)
	require.NoError(t, err)
	require.True(t, r.Allowed)
	next := onClock(t, clock, limit)
	require.NoError(t, next.Restore(l.Saved(), 0))
	sameAnswers(t, l, next, "k", "after a restart")
}

// The wall clock was ahead when the program ended, and is right when it starts again.
// No key gets a spent window again, even if the key had left the table before the end.
func TestACalendarsWindowIsGrantedOnceOverARestart(t *testing.T) {
	march, april := date(t, "UTC", "2026-03-10 12:00"), date(t, "UTC", "2026-04-02 12:00")
	limit := ratelimit.Calendar(5, ratelimit.Month("UTC", 1))
	for name, then := range map[string]func(l *ratelimit.Keyed[string], clock *wallClock){
		"idle":  func(*ratelimit.Keyed[string], *wallClock) {},
		"asked": func(l *ratelimit.Keyed[string], _ *wallClock) { _, _ = l.Take(t.Context(), "k", 9); l.Allow("k", 0) },
		"reached": func(l *ratelimit.Keyed[string], _ *wallClock) {
			l.Allow("k", 1)
			_ = l.Adjust(context.Background(), "k", -1)
		},
		"swept":           func(l *ratelimit.Keyed[string], _ *wallClock) { l.Sweep() },
		"swept by others": func(l *ratelimit.Keyed[string], c *wallClock) { c.advance(time.Hour); l.Allow("x", 1); l.Allow("y", 1) },
		"swept, another stays": func(l *ratelimit.Keyed[string], _ *wallClock) {
			l.Sweep()
			l.Allow("x", 1)
		},
	} {
		restart := func(t *testing.T, again, ahead bool) {
			clock := new(wallClock)
			clock.setWall(march)
			o := ratelimit.Options[string]{Clock: clock}
			l := newWith(t, limit, o)
			require.True(t, l.Allow("k", 5))
			clock.setWall(april)
			clock.advance(time.Minute)
			then(l, clock)
			saved := maps.Collect(l.Saved())
			n := 0
			for range l.Saved() {
				n++
			}
			require.Len(t, saved, n, "each key once")
			if !ahead {
				clock.setWall(march)
			}
			clock.advance(time.Minute)
			next := newWith(t, limit, o)
			require.NoError(t, next.Restore(maps.All(saved), time.Minute))
			if again {
				before := next
				next = newWith(t, limit, o)
				require.NoError(t, next.Restore(before.Saved(), 0))
			}
			if ahead { // corrects the wall clock only now
				clock.setWall(march)
				clock.advance(time.Minute)
			}
			d, err := next.Take(t.Context(), "k", 5)
			require.NoError(t, err)
			if !l.Allow("k", 5) {
				require.False(t, d.Allowed, "it has no more than if the program had gone on")
			}
			if d.Allowed { // the wall clock shows a date in April
				require.Equal(t, date(t, "UTC", "2026-05-01 00:00").Sub(clock.Wall()), d.ResetAfter)
			}
			clock.setWall(april)
			clock.advance(time.Minute)
			require.Equal(t, !d.Allowed, next.Allow("k", 5), "in April it has what it has not spent of that")
		}
		t.Run(name, func(t *testing.T) { restart(t, false, false) })
		t.Run(name+", and started twice", func(t *testing.T) { restart(t, true, false) })
		t.Run(name+", and ahead at the restart too", func(t *testing.T) { restart(t, false, true) })
		t.Run(name+", and ahead and started twice", func(t *testing.T) { restart(t, true, true) })
	}
}

// Whatever the wall clock's errors at the save, at the restore and after
// both, a restored key never has more budget than if the program had gone on.
func TestARestoredCalendarHasNoMoreThanOneThatWentOn(t *testing.T) {
	restarts, denied := 0, 0
	for seed := range model.Rounds(1500) {
		r := rand.New(rand.NewPCG(testsize.Seed(seed), 51))
		limit := ratelimit.Calendar(1+r.IntN(5), model.Periods[r.IntN(len(model.Periods))].Period)
		span := int64(model.Span(limit))
		clock := new(wallClock)
		clock.setWall(time.Date(2026, 3, 1+r.IntN(60), r.IntN(24), 0, 0, 0, time.UTC))
		o := ratelimit.Options[int]{Clock: clock, IdleTTL: 1 << 62}
		wentOn, l := newWith(t, limit, o), newWith(t, limit, o)
		setWall := func() {
			if r.IntN(2) == 0 {
				clock.setWall(clock.Wall().Add(time.Duration(r.Int64N(4*span) - 2*span)))
				clock.advance(time.Minute + time.Nanosecond)
			}
		}
		for step := range 40 {
			if setWall(); r.IntN(5) == 0 {
				saved := maps.Collect(l.Saved())
				setWall()
				l = newWith(t, limit, o)
				require.NoError(t, l.Restore(maps.All(saved), 0))
				setWall()
				restarts++
			}
			// Each call spends a whole window, so no key has a part of a window left that another key lacks.
			key, cost := r.IntN(3), limit.Rate.Units
			if !wentOn.Allow(key, cost) {
				require.False(t, l.Allow(key, cost), "seed %d, step %d, %v: key %d", seed, step, limit, key)
				denied++
			} else {
				l.Allow(key, cost)
			}
		}
	}
	require.NotZero(t, restarts)
	require.NotZero(t, denied)
}

// Whatever the wall clock's errors, a limiter restored many times grants each window at most once.
func TestRestoredCalendarsGrantEachWindowOnce(t *testing.T) {
	for seed := range model.Rounds(1500) {
		r := rand.New(rand.NewPCG(testsize.Seed(seed), 85))
		limit := ratelimit.Calendar(1+r.IntN(5), model.Periods[r.IntN(len(model.Periods))].Period)
		period, span := model.PeriodOf(limit.Period), int64(model.Span(limit))
		clock := new(wallClock)
		clock.setWall(time.Date(2026, 3, 1+r.IntN(60), r.IntN(24), 0, 0, 0, time.UTC))
		o := ratelimit.Options[int]{Clock: clock}
		l := newWith(t, limit, o)
		windows := map[time.Time]bool{} // the windows shown by the wall clock
		var granted [3]int
		for step := range 60 {
			switch r.IntN(8) {
			case 0:
				clock.setWall(clock.Wall().Add(time.Duration(r.Int64N(4*span) - 2*span)))
				clock.advance(time.Minute + time.Nanosecond)
			case 1:
				l.Sweep()
			case 2:
				for range 1 + r.IntN(2) {
					next := newWith(t, limit, o)
					require.NoError(t, next.Restore(l.Saved(), 0))
					l = next
				}
			}
			windows[period.Begins(clock.Wall().In(period.Location))] = true
			key := r.IntN(len(granted))
			if cost := 1 + r.IntN(limit.Rate.Units); l.Allow(key, cost) {
				granted[key] += cost
			}
			require.LessOrEqual(t, granted[key], len(windows)*limit.Rate.Units, "seed %d, step %d, key %d", seed, step, key)
		}
	}
}

func TestAllJudgesAKeyByTheLimitThatItsLastDecisionBrought(t *testing.T) {
	l := ratelimit.Must(ratelimit.New[string](ratelimit.FixedWindow(ratelimit.PerHour(10)), nil))
	limit := ratelimit.FixedWindow(ratelimit.PerHour(100))
	s := ratelimit.Must(ratelimit.All(model.WithLimit(ratelimit.By(l, func(k string) (string, error) { return k, nil }), func(string) ratelimit.Limit { return limit })))
	_, err := s.Take(t.Context(), "ann", 40)
	require.NoError(t, err)
	only := func() (only ratelimit.Decision) {
		for _, d := range l.All() {
			only = d
		}
		return only
	}
	assert.Equal(t, []any{true, 60, limit}, []any{only().Allowed, only().Remaining, only().Limit})
	l.Refresh()
	assert.Equal(t, []any{true, 60, limit}, []any{only().Allowed, only().Remaining, only().Limit})
	l.Allow("ann", 1)
	assert.Equal(t, []any{false, 0, 10}, []any{only().Allowed, only().Remaining, only().Limit.Rate.Units}, "the limiter's own limit again")
}

// In random histories, a key has open reservations while it is swept, its limit is set, and saved
// spending is added. Its debt is never below that of a key charged the real costs from the beginning.
func TestSettlementsAroundARestoreGiveBackNoMoreThanTheRealCosts(t *testing.T) {
	testsize.Sequential(t)
	type event struct {
		at   time.Duration
		cost int // the real cost
		do   func(l *ratelimit.Keyed[string], cost int)
	}
	type open struct {
		*ratelimit.Reservation
		event *event
		cost  int
	}
	charge := func(l *ratelimit.Keyed[string], cost int) {
		require.NoError(t, l.Adjust(context.Background(), "k", cost))
	}
	sweep := func(l *ratelimit.Keyed[string], _ int) { l.Sweep() }
	restored := 0
	for seed := range uint64(testsize.Of(4000, 40_000)) {
		rnd := rand.New(rand.NewPCG(seed, 54))
		limit := ratelimit.TokenBucket(ratelimit.Per(1+rnd.IntN(3), time.Duration(1+rnd.IntN(20))), 1+rnd.IntN(20))
		clock := new(testClock)
		l := newWith(t, limit, ratelimit.Options[string]{Clock: clock})
		var events []*event
		var opens []open
		for range 25 {
			clock.advance(time.Duration(rnd.IntN(2) * rnd.IntN(15)))
			now, cost := clock.Now(), 1+rnd.IntN(limit.Burst)
			switch rnd.IntN(9) {
			case 0, 1:
				if l.Allow("k", cost) {
					events = append(events, &event{now, cost, charge})
				}
			case 2, 3, 4:
				r, err := l.Reserve(t.Context(), "k", cost, 0)
				require.NoError(t, err)
				if r.Allowed {
					e := &event{now, cost, charge}
					events, opens = append(events, e), append(opens, open{r, e, cost})
				}
			case 5, 6:
				if n := len(opens); n > 0 {
					i := rnd.IntN(n)
					o := opens[i]
					opens = slices.Delete(opens, i, i+1)
					o.event.cost = rnd.IntN(o.cost + 1)
					require.NoError(t, o.Settle(o.event.cost))
				}
			case 7:
				cost -= rnd.IntN(2 * limit.Burst)
				events = append(events, &event{now, cost, charge})
				charge(l, cost)
			default:
				l.Sweep()
				events = append(events, &event{now, 0, sweep})
				if rnd.IntN(2) == 0 {
					require.NoError(t, l.SetLimit(limit))
					break
				}
				other := newWith(t, limit, ratelimit.Options[string]{Clock: clock})
				require.True(t, other.Allow("k", cost))
				saved, elapsed := maps.Collect(other.Saved()), time.Duration(rnd.IntN(10))
				restore := func(l *ratelimit.Keyed[string], _ int) { require.NoError(t, l.Restore(maps.All(saved), elapsed)) }
				events = append(events, &event{now, 0, restore})
				restore(l, 0)
				restored++
			}
		}
		then := new(testClock)
		replayed := newWith(t, limit, ratelimit.Options[string]{Clock: then})
		for _, e := range events {
			then.advance(e.at - then.Now())
			e.do(replayed, e.cost)
		}
		then.advance(clock.Now() - then.Now())
		got, err := l.Peek(context.Background(), "k", 0)
		require.NoError(t, err)
		want, err := replayed.Peek(context.Background(), "k", 0)
		require.NoError(t, err)
		require.GreaterOrEqual(t, got.ResetAfter, want.ResetAfter, "%v, seed %d", limit, seed)
		require.LessOrEqual(t, got.Remaining, want.Remaining, "%v, seed %d", limit, seed)
	}
	require.Greater(t, restored, 1000)
}
