package ratelimit_test

import (
	"bytes"
	"context"
	"fmt"
	"math"
	"math/rand/v2"
	"runtime"
	"strings"
	"sync"
	"testing"
	"time"
	"unsafe"
	"weak"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"github.com/weir-go/ratelimit"
	"github.com/weir-go/ratelimit/internal/dev/testsize"
)

var onceADay = ratelimit.TokenBucket(ratelimit.PerDay(1), 1)

func TestExactlyMaxKeysFit(t *testing.T) {
	for _, most := range []int{1, 2, 3, 100, 4095, 4096, 5000} {
		for _, full := range []ratelimit.Overflow{ratelimit.Overflow(0), ratelimit.RefuseNew} {
			t.Run(fmt.Sprintf("MaxKeys=%d/OnFull=%d", most, full), func(t *testing.T) {
				l := newWith(t, onceADay, ratelimit.Options[int]{Clock: new(testClock), MaxKeys: most, OnFull: full})
				for i := range most {
					require.True(t, l.Allow(i, 1))
				}
				assert.Equal(t, ratelimit.Stats{Keys: most}, l.Stats())
				for i := range most {
					require.False(t, l.Allow(i, 1), "every one of them is still known")
				}
			})
		}
	}
}

func TestAFullTableForgetsTheOldestKey(t *testing.T) {
	clock := new(testClock)
	l := newWith(t, onceADay, ratelimit.Options[string]{Clock: clock, MaxKeys: 2})
	require.True(t, l.Allow("a", 1))
	require.True(t, l.Allow("b", 1))
	require.True(t, l.Allow("c", 1))
	assert.Equal(t, ratelimit.Stats{Keys: 2, Evicted: 1}, l.Stats())
	assert.Equal(t, 1, remaining(t, l, "a"), "forgotten, and so forgiven")
	assert.Equal(t, 0, remaining(t, l, "b"))
	assert.Equal(t, 0, remaining(t, l, "c"))
}

func TestUseKeepsAKeyYoung(t *testing.T) {
	clock := new(testClock)
	l := newWith(t, ratelimit.TokenBucket(ratelimit.PerDay(9), 9), ratelimit.Options[string]{Clock: clock, MaxKeys: 2})
	require.True(t, l.Allow("a", 1))
	require.True(t, l.Allow("b", 1))
	clock.advance(3 * s)
	require.True(t, l.Allow("a", 1))
	require.True(t, l.Allow("c", 1))
	assert.Equal(t, 7, remaining(t, l, "a"))
	assert.Equal(t, 9, remaining(t, l, "b"))
}

func TestAFullTableForgetsForNothingFirst(t *testing.T) {
	for _, full := range []ratelimit.Overflow{ratelimit.Overflow(0), ratelimit.RefuseNew} {
		clock := new(testClock)
		l := newWith(t, onceADay, ratelimit.Options[string]{Clock: clock, MaxKeys: 1, OnFull: full})
		require.True(t, l.Allow("a", 1))
		clock.advance(24 * time.Hour)
		require.True(t, l.Allow("b", 1))
		assert.Equal(t, ratelimit.Stats{Keys: 1, Expired: 1}, l.Stats())
	}
}

func TestRefuseNewDeniesNewKeysAndForgetsNone(t *testing.T) {
	l := newWith(t, onceADay, ratelimit.Options[string]{Clock: new(testClock), MaxKeys: 2, OnFull: ratelimit.RefuseNew})
	require.True(t, l.Allow("a", 1))
	require.True(t, l.Allow("b", 1))
	d, err := l.Take(t.Context(), "c", 1)
	require.ErrorIs(t, err, ratelimit.ErrTableFull)
	require.EqualError(t, err, "ratelimit: key table full: 2 keys")
	assert.Equal(t, ratelimit.Decision{Limit: onceADay}, d)
	require.ErrorIs(t, l.Adjust(context.Background(), "c", 1), ratelimit.ErrTableFull)
	require.ErrorIs(t, l.Wait(t.Context(), "c", 1), ratelimit.ErrTableFull)
	_, err = l.Peek(context.Background(), "c", 1)
	require.NoError(t, err, "a Peek tracks nothing")
	assert.Equal(t, ratelimit.Stats{Keys: 2, Refused: 3}, l.Stats())
	l.Reset(context.Background(), "a")
	assert.True(t, l.Allow("c", 1))
	assert.False(t, l.Allow("b", 1))
}

// A denied attacker must not regain a budget by inventing keys.
func TestAFloodOfInventedKeysDoesNotWipeAThrottledOne(t *testing.T) {
	testsize.Arithmetic(t)
	for _, most := range []int{2, 100, 5000} {
		l := newWith(t, onceADay, ratelimit.Options[int]{Clock: new(testClock), MaxKeys: most})
		require.True(t, l.Allow(0, 1))
		require.False(t, l.Allow(0, 1))
		for i := range 20 * most {
			require.True(t, l.Allow(i+1, 1))
		}
		assert.False(t, l.Allow(0, 1))
		assert.Zero(t, l.Stats().EvictedThrottled)
	}
}

func TestAThrottledKeyGoesWhenAllAreThrottled(t *testing.T) {
	l := newWith(t, onceADay, ratelimit.Options[int]{Clock: new(testClock), MaxKeys: 5})
	for i := range 5 {
		require.True(t, l.Allow(i, 1))
		require.False(t, l.Allow(i, 1))
	}
	require.True(t, l.Allow(5, 1))
	assert.Equal(t, ratelimit.Stats{Keys: 5, Evicted: 1, EvictedThrottled: 1}, l.Stats())
	assert.Equal(t, 1, remaining(t, l, 0), "the oldest")
}

// TestAThrottledKeyThatIsRememberedIsNotForgotten checks that
// EvictedThrottled and Overflowed together count just the forgotten keys.
func TestAThrottledKeyThatIsRememberedIsNotForgotten(t *testing.T) {
	// With fewer places, two of these keys would share a slot in a thousandth of the runs.
	l := newWith(t, onceADay, ratelimit.Options[int]{Clock: new(testClock), MaxKeys: 5, Remember: 1 << 18})
	for i := range 50 {
		require.True(t, l.Allow(i, 1))
		require.False(t, l.Allow(i, 1))
	}
	assert.Equal(t, ratelimit.Stats{Keys: 5, Evicted: 45}, l.Stats())
	for i := range 50 {
		require.False(t, l.Allow(i, 1), "%d", i)
	}
	s := l.Stats()
	assert.Zero(t, s.EvictedThrottled)
	assert.Zero(t, s.Overflowed)
}

func TestAKeyThatHasRecoveredIsThrottledNoMore(t *testing.T) {
	clock := new(testClock)
	l := newWith(t, ratelimit.TokenBucket(ratelimit.PerDay(1), 2), ratelimit.Options[string]{Clock: clock, MaxKeys: 1})
	require.True(t, l.Allow("a", 2))
	require.False(t, l.Allow("a", 1))
	clock.advance(24 * time.Hour)
	require.True(t, l.Allow("a", 1))
	require.True(t, l.Allow("b", 1))
	assert.Equal(t, ratelimit.Stats{Keys: 1, Evicted: 1}, l.Stats())
}

func TestSweepDropsFreshKeysOnly(t *testing.T) {
	for _, limit := range everyAlgorithm {
		t.Run(limit.Algorithm.String(), func(t *testing.T) {
			l, clock := newLimiter(t, limit)
			require.True(t, l.Allow("k", 3))
			d, err := l.Peek(context.Background(), "k", 0)
			require.NoError(t, err)
			clock.set(d.ResetAfter - 1)
			assert.Zero(t, l.Sweep())
			clock.set(d.ResetAfter)
			assert.Equal(t, 1, l.Sweep())
			assert.Equal(t, ratelimit.Stats{Expired: 1}, l.Stats())
		})
	}
}

func TestSweepKeepsIdleKeysForTheirTTL(t *testing.T) {
	clock := new(testClock)
	l := newWith(t, ratelimit.FixedWindow(ratelimit.PerSecond(1)), ratelimit.Options[string]{Clock: clock, IdleTTL: time.Hour})
	require.True(t, l.Allow("k", 1))
	clock.set(time.Hour - 1)
	assert.Zero(t, l.Sweep())
	_, _ = l.Peek(context.Background(), "k", 1) // a Peek does not count as use
	clock.set(time.Hour)
	assert.Equal(t, 1, l.Sweep())
}

func TestSweepReachesEveryShard(t *testing.T) {
	clock := new(testClock)
	l := newWith(t, ratelimit.FixedWindow(ratelimit.PerSecond(1)), ratelimit.Options[int]{Clock: clock})
	for i := range 20_000 {
		require.True(t, l.Allow(i, 1))
	}
	assert.Zero(t, l.Sweep())
	clock.set(s)
	assert.Equal(t, 20_000, l.Sweep())
	assert.Zero(t, l.Stats().Keys)
}

func TestOldKeysLeaveAsNewOnesCome(t *testing.T) {
	testsize.Arithmetic(t)
	clock := new(testClock)
	l := newWith(t, ratelimit.FixedWindow(ratelimit.PerSecond(1)), ratelimit.Options[int]{Clock: clock, MaxKeys: 1000})
	for i := range 100_000 {
		clock.advance(s)
		require.True(t, l.Allow(i, 1))
		require.LessOrEqual(t, l.Stats().Keys, 61, "keys idle for a minute go")
	}
	assert.Zero(t, l.Stats().Evicted)
}

func TestResetForgetsTheKey(t *testing.T) {
	for _, limit := range everyAlgorithm {
		l, _ := newLimiter(t, limit)
		require.True(t, l.Allow("k", 5))
		r, err := l.Reserve(t.Context(), "j", 5, 0)
		require.NoError(t, err)
		l.Reset(context.Background(), "k")
		l.Reset(context.Background(), "j")
		l.Reset(context.Background(), "never seen")
		assert.Zero(t, l.Stats().Keys)
		require.True(t, l.Allow("j", 4))
		r.Cancel()
		assert.Equal(t, 1, remaining(t, l, "j"), "what was reserved from the key before is no concern of the new one")
		assert.Equal(t, 5, remaining(t, l, "k"))
	}
}

// Sweeps, resets and evictions run at random. A key has one budget at a time, and the table never exceeds its bound.
func TestNoChargeIsLostToSweepsAndEvictions(t *testing.T) {
	const keys, rounds = 8, 3000
	clock := new(testClock)
	l := newWith(t, ratelimit.TokenBucket(ratelimit.PerDay(1), rounds), ratelimit.Options[int]{Clock: clock, MaxKeys: keys + 1})
	allowed := make([]int, keys)
	var work, noise sync.WaitGroup
	stop := make(chan struct{})
	noise.Go(func() {
		for i := 0; ; i++ {
			select {
			case <-stop:
				return
			default:
			}
			l.Sweep()
			if i%64 == 0 {
				l.Allow(-1, 1) // takes the remaining room, and frees it again
				l.Reset(context.Background(), -1)
			}
		}
	})
	for k := range keys {
		work.Go(func() {
			for range 2 * rounds {
				if l.Allow(k, 1) {
					allowed[k]++
				}
			}
		})
	}
	work.Wait()
	close(stop)
	noise.Wait()
	for k, n := range allowed {
		assert.Equal(t, rounds, n, "key %d", k)
	}
	assert.Equal(t, keys, l.Stats().Keys)
}

func TestTheTableStaysWithinItsBoundUnderAFlood(t *testing.T) {
	for _, most := range []int{1, 7, 4096} {
		l := newWith(t, onceADay, ratelimit.Options[int]{Clock: new(testClock), MaxKeys: most})
		var wg sync.WaitGroup
		for seed := range uint64(8) {
			wg.Go(func() {
				r := rand.New(rand.NewPCG(testsize.Seed(seed), 1))
				for i := range 5000 {
					l.Allow(r.IntN(3*most), 1)
					if n := l.Stats().Keys; n > most {
						t.Errorf("%d keys of %d after %d", n, most, i)
						return
					}
				}
			})
		}
		wg.Wait()
		assert.LessOrEqual(t, l.Stats().Keys, most)
	}
}

// A key in debt does not keep idle keys behind it in memory.
func TestAKeyInDebtKeepsNoOthersInTheTable(t *testing.T) {
	clock := new(testClock)
	l := newWith(t, ratelimit.TokenBucket(ratelimit.PerSecond(10), 10), ratelimit.Options[int]{Clock: clock, MaxKeys: 4000})
	require.NoError(t, l.Adjust(context.Background(), -1, 10*24*3600)) // the debt of ten days
	for i := range 1000 {
		require.True(t, l.Allow(i, 1))
	}
	clock.set(time.Hour)
	for i := range 1000 {
		require.True(t, l.Allow(1000+i, 1))
	}
	assert.Less(t, l.Stats().Keys, 1500)
	assert.Equal(t, uint64(1000), l.Stats().Expired)
	assert.False(t, l.Allow(-1, 1))
}

func TestRefuseNewFindsKeysThatItMayForget(t *testing.T) {
	clock := new(testClock)
	l := newWith(t, ratelimit.TokenBucket(ratelimit.PerSecond(1), 1),
		ratelimit.Options[int]{Clock: clock, MaxKeys: 8, OnFull: ratelimit.RefuseNew})
	for i := range 4 {
		require.NoError(t, l.Adjust(context.Background(), i, 1000))
	}
	for i := range 4 {
		require.True(t, l.Allow(10+i, 1))
	}
	clock.set(2 * s)
	assert.True(t, l.Allow(20, 1), "four keys are fresh, behind four that are not")
}

// heavy is a limiter whose one key has spent n times, at different instants, within a sliding log's window or booked ahead.
type heavy struct {
	l     *ratelimit.Keyed[string]
	clock *testClock
	all   []*ratelimit.Reservation
}

func spentHeavily(t testing.TB, n int) *heavy {
	h := newHeavy(t, ratelimit.SlidingLog(ratelimit.PerDay(n)))
	for range n {
		h.clock.now.Add(int64(time.Microsecond))
		require.True(t, h.l.Allow("k", 1))
	}
	return h
}

func bookedHeavily(t testing.TB, limit ratelimit.Limit, n int) *heavy {
	h := newHeavy(t, limit)
	for range n {
		h.all = append(h.all, h.book(t))
	}
	return h
}

func newHeavy(t testing.TB, limit ratelimit.Limit) *heavy {
	clock := &testClock{}
	l, err := ratelimit.New(limit, &ratelimit.Options[string]{Clock: clock})
	require.NoError(t, err)
	return &heavy{l: l, clock: clock}
}

// book books one cost behind the others.
func (h *heavy) book(t testing.TB) *ratelimit.Reservation {
	r, err := h.l.Reserve(t.Context(), "k", 1, math.MaxInt64)
	require.NoError(t, err)
	require.True(t, r.Allowed)
	return r
}

// manyBooked returns limits that book one cost after the other, each at its own instant.
func manyBooked() []ratelimit.Limit {
	return []ratelimit.Limit{
		ratelimit.TokenBucket(ratelimit.PerSecond(1), 3),
		ratelimit.LeakyBucket(ratelimit.PerSecond(1), 1_000_000_000),
		ratelimit.FixedWindow(ratelimit.PerSecond(1)),
		ratelimit.SlidingLog(ratelimit.PerSecond(1)),
		ratelimit.SlidingCounter(ratelimit.PerSecond(1)),
	}
}

// BenchmarkGrowth measures calls under a key's lock while the number of the key's spendings
// grows. SetLimit's time is linear, and a cancellation's is linear in the bookings behind
// it. The other calls' times stay the same. Compare with benchstat -row /entries -col /call.
func BenchmarkGrowth(b *testing.B) {
	for n := 100; n <= most(); n *= 10 {
		growLog(b, n)
		for _, limit := range manyBooked() {
			growBookings(b, limit, n)
		}
	}
}

func growLog(b *testing.B, n int) {
	h := spentHeavily(b, n)
	run := func(call string, f func()) {
		b.Run(fmt.Sprintf("call=%s/entries=%d", call, n), func(b *testing.B) {
			for b.Loop() {
				f()
			}
		})
	}
	run("deny", func() { _, _ = h.l.Take(b.Context(), "k", n) })
	run("allow", func() {
		h.clock.now.Add(int64(24 * time.Hour / time.Duration(n)))
		h.l.Allow("k", 1)
	})
	h = spentHeavily(b, n)
	h.clock.now.Add(int64(24*time.Hour) - int64(n/2)*int64(time.Microsecond))
	run("peekHalfExpired", func() { _, _ = h.l.Peek(context.Background(), "k", n) })
	h.clock.now.Add(int64(48 * time.Hour))
	run("peekExpired", func() { _, _ = h.l.Peek(context.Background(), "k", n) })
}

func growBookings(b *testing.B, limit ratelimit.Limit, n int) {
	h := bookedHeavily(b, limit, n)
	name := func(call string) string {
		return fmt.Sprintf("call=%s/algorithm=%v/entries=%d", call, limit.Algorithm, n)
	}
	cancel := func(call string, pick func(i int) int) {
		b.Run(name(call), func(b *testing.B) {
			for i := 0; b.Loop(); i++ {
				r := &h.all[pick(i)]
				_ = (*r).Cancel()
				*r = h.book(b)
			}
		})
	}
	cancel("cancelFirst", func(i int) int { return i % n })
	cancel("cancelMiddle", func(i int) int { return (n/2 + i) % n })
	cancel("cancelLast", func(int) int { return n - 1 })
	h = bookedHeavily(b, limit, n)
	b.Run(name("setLimit"), func(b *testing.B) {
		for i := 0; b.Loop(); i++ {
			limit.Rate.Units = 2 + i%2
			_ = h.l.SetLimit(limit)
			h.l.Allow("k", 1)
		}
	})
}

// soon fails the test if f takes ten thousand times as long as it should.
func soon(t *testing.T, what string, f func()) {
	t.Helper()
	done := make(chan struct{})
	go func() { defer close(done); f() }()
	select {
	case <-done:
	case <-time.After(20 * time.Second):
		require.FailNow(t, "waits for the busy key", what)
	}
}

func TestNothingElseWaitsForABusyKey(t *testing.T) {
	for _, test := range []struct {
		name    string
		options ratelimit.Options[int]
		call    func(t *testing.T, l *ratelimit.Keyed[int], clock *testClock)
	}{
		{"a new key where there is room", ratelimit.Options[int]{MaxKeys: 100}, func(t *testing.T, l *ratelimit.Keyed[int], _ *testClock) {
			assert.True(t, l.Allow(10, 1))
		}},
		{"a new key when the busy one might have expired", ratelimit.Options[int]{MaxKeys: 100}, func(t *testing.T, l *ratelimit.Keyed[int], clock *testClock) {
			clock.advance(time.Hour)
			assert.True(t, l.Allow(10, 1))
			assert.True(t, l.Allow(11, 1))
		}},
		{"a new key for which another one is evicted", ratelimit.Options[int]{MaxKeys: 2}, func(t *testing.T, l *ratelimit.Keyed[int], _ *testClock) {
			assert.True(t, l.Allow(10, 1))
			assert.Equal(t, 0, remaining(t, l, 10))
			assert.Equal(t, 1, remaining(t, l, 1), "evicted")
		}},
		{"a new key that is refused", ratelimit.Options[int]{MaxKeys: 2, OnFull: ratelimit.RefuseNew}, func(t *testing.T, l *ratelimit.Keyed[int], clock *testClock) {
			assert.False(t, l.Allow(10, 1))
			clock.advance(24 * time.Hour)
			assert.True(t, l.Allow(11, 1), "the other one is fresh")
			assert.False(t, l.Allow(12, 1))
		}},
		{"Sweep", ratelimit.Options[int]{}, func(t *testing.T, l *ratelimit.Keyed[int], clock *testClock) {
			clock.advance(24 * time.Hour)
			assert.Equal(t, 1, l.Sweep(), "all but the busy one")
		}},
		{"a new key while others wait for the busy one", ratelimit.Options[int]{}, func(t *testing.T, l *ratelimit.Keyed[int], clock *testClock) {
			require.NoError(t, l.SetLimit(ratelimit.TokenBucket(ratelimit.PerDay(2), 2)))
			for range 4 {
				go l.Allow(0, 1) // Allow looks the key up again, because its limit has changed
				go l.Reset(context.Background(), 0)
				go func() { _ = l.Adjust(context.Background(), 0, 1) }()
			}
			for key := range 1000 {
				assert.True(t, l.Allow(10+key, 1))
			}
		}},
	} {
		t.Run(test.name, func(t *testing.T) {
			clock := new(testClock)
			test.options.Clock = clock
			l := newWith(t, onceADay, test.options)
			require.True(t, l.Allow(0, 1))
			require.True(t, l.Allow(1, 1))
			done := ratelimit.LockKey(l, 0)
			defer done()
			soon(t, test.name, func() { test.call(t, l, clock) })
		})
	}
}

// If all keys that could make room are busy, a new key waits for one, and delays no other call meanwhile.
func TestANewKeyWaitsIfAllOthersAreBusy(t *testing.T) {
	l, allowed := newKeyThatWaits(t, false)
	assert.True(t, <-allowed)
	assert.Equal(t, ratelimit.Stats{Keys: 1, Evicted: 1, EvictedThrottled: 1}, l.Stats())
}

func TestANewKeyThatHasWaitedForAPinnedOneIsRefused(t *testing.T) {
	l, allowed := newKeyThatWaits(t, true)
	assert.False(t, <-allowed)
	assert.Equal(t, ratelimit.Stats{Keys: 1, Refused: 1}, l.Stats())
}

// newKeyThatWaits returns a limiter with one key, and the result of a
// call on a new key. The old key is busy until the new one waits for it.
func newKeyThatWaits(t *testing.T, pinned bool) (*ratelimit.Keyed[int], <-chan bool) {
	clock := new(testClock)
	l := newWith(t, onceADay, ratelimit.Options[int]{Clock: clock, MaxKeys: 1})
	require.True(t, l.Allow(0, 1))
	require.False(t, l.Allow(0, 1), "throttled")
	if pinned {
		ratelimit.PinKey(l, 0)
	}
	done := ratelimit.LockKey(l, 0)
	defer done()
	allowed := make(chan bool, 1)
	go func() { allowed <- l.Allow(1, 1) }()
	stacks := make([]byte, 1<<20)
	require.Eventually(t, func() bool { return bytes.Contains(stacks[:runtime.Stack(stacks, true)], []byte(".evictBusy(")) }, 20*time.Second, time.Millisecond)
	soon(t, "Peek", func() { assert.Equal(t, 1, remaining(t, l, 2)) })
	return l, allowed
}

// The clock swings, and the table drops a key at the later end of the swing. The key must not spend its budget twice.
func TestAClockThatSwingsMintsNothingByWayOfForgetting(t *testing.T) {
	allow := func(l *ratelimit.Keyed[int], key int) int {
		if l.Allow(key, 1) {
			return 1
		}
		return 0
	}
	for _, test := range []struct {
		name    string
		options ratelimit.Options[int]
		far     time.Duration
		forget  func(l *ratelimit.Keyed[int], i int) // at the swing's later end
	}{
		{"Sweep", ratelimit.Options[int]{}, ms, func(l *ratelimit.Keyed[int], _ int) { l.Sweep() }},
		{"expiry", ratelimit.Options[int]{MaxKeys: 5000}, time.Hour, func(l *ratelimit.Keyed[int], i int) {
			for key := range 200 {
				l.Allow(1+1000*i+key, 1)
			}
		}},
		{"eviction", ratelimit.Options[int]{MaxKeys: 2}, ms, func(l *ratelimit.Keyed[int], i int) {
			_ = l.Adjust(context.Background(), -1-i, 1)
			_ = l.Adjust(context.Background(), -1-i, -1) // a fresh key
			l.Allow(1, 1)
			l.Reset(context.Background(), 1)
		}},
		{"refusal", ratelimit.Options[int]{MaxKeys: 1, OnFull: ratelimit.RefuseNew}, ms, func(l *ratelimit.Keyed[int], i int) {
			l.Allow(1, 1)
			l.Reset(context.Background(), 1)
		}},
	} {
		t.Run(test.name, func(t *testing.T) {
			clock := new(testClock)
			test.options.Clock = clock
			l := newWith(t, ratelimit.TokenBucket(ratelimit.Per(1, test.far), 1), test.options)
			admitted := 0
			for i := range 100 {
				clock.set(0)
				admitted += allow(l, 0)
				clock.set(test.far)
				test.forget(l, i)
			}
			assert.Equal(t, 2, admitted, "one at once, and one that is regained by the far end")
			assert.NotZero(t, l.Stats().Expired)
		})
	}
}

func TestPeekAndTakeAgreeOnAKeyThatWasDropped(t *testing.T) {
	clock := new(testClock)
	limit := ratelimit.FixedWindow(ratelimit.PerSecond(3))
	l := newWith(t, limit, ratelimit.Options[int]{Clock: clock})
	stack, err := ratelimit.All(byKey(l))
	require.NoError(t, err)
	require.True(t, l.Allow(0, 3))
	clock.set(5 * s)
	require.Equal(t, 1, l.Sweep())
	clock.set(0)
	d, err := l.Peek(context.Background(), 0, 0)
	require.NoError(t, err)
	assert.Equal(t, ratelimit.Decision{Allowed: true, Limit: limit, Remaining: 3, ResetAfter: s}, d, "fresh as of 1 s")
	inStack, err := stack.Peek(context.Background(), 0, 0)
	require.NoError(t, err)
	assert.Equal(t, d, inStack)
	d, err = l.Take(t.Context(), 0, 3)
	require.NoError(t, err)
	assert.Equal(t, ratelimit.Decision{Allowed: true, Limit: limit, ResetAfter: 2 * s, NextAfter: 2 * s}, d)
}

// A reading far in the future locks the keys decided at it, and no others: not even keys dropped at it.
func TestOneReadingFarInTheFutureLocksNoOtherKey(t *testing.T) {
	for _, full := range []ratelimit.Overflow{ratelimit.Overflow(0), ratelimit.RefuseNew} {
		clock := new(testClock)
		l := newWith(t, ratelimit.FixedWindow(ratelimit.PerSecond(1)), ratelimit.Options[int]{Clock: clock, MaxKeys: 4, OnFull: full})
		for key := range 4 {
			require.True(t, l.Allow(key, 1))
		}
		clock.set(100 * 365 * 24 * time.Hour)
		require.True(t, l.Allow(4, 1))
		l.Sweep()
		require.Equal(t, 1, l.Stats().Keys)
		clock.set(2 * s)
		for range 3 {
			for key := range 3 {
				require.True(t, l.Allow(key, 1))
			}
			clock.advance(s)
		}
		require.False(t, l.Allow(4, 1))
		l.Reset(context.Background(), 4)
		require.True(t, l.Allow(4, 1))
		clock.advance(s)
		require.True(t, l.Allow(4, 1))
	}
}

type tenant string

type nested struct {
	n     int
	names [2]struct{ first, last tenant }
	ok    bool
}

// keepsWhole reports whether a tracked key keeps the whole string in memory from which its text was cut.
func keepsWhole[K comparable](t *testing.T, cut func(text string) K) bool {
	t.Helper()
	whole := []byte(strings.Repeat("x", 1<<20))
	key := cut(unsafe.String(&whole[100], 9))
	w := weak.Make(&whole[0])
	l := ratelimit.Must(ratelimit.New[K](onceADay, nil))
	require.True(t, l.Allow(key, 1))
	require.False(t, l.Allow(key, 1), "the clone is the same key")
	key, whole = *new(K), nil
	runtime.GC()
	kept := w.Value() != nil
	runtime.KeepAlive(l)
	return kept
}

func TestAKeyDoesNotKeepTheStringItWasCutFrom(t *testing.T) {
	assert.False(t, keepsWhole(t, func(text string) string { return text }))
	assert.False(t, keepsWhole(t, func(text string) tenant { return tenant(text) }))
	assert.False(t, keepsWhole(t, func(text string) nested {
		k := nested{n: 7, ok: true}
		k.names[1].last = tenant(text)
		return k
	}))
	assert.True(t, keepsWhole(t, func(text string) any { return text }), "as the documentation says")
}

// heapGrowth returns the number of bytes by which f makes the heap grow.
func heapGrowth(f func()) int64 {
	before := testsize.Heap()
	f()
	return testsize.Heap() - before
}

func TestDroppedKeysLeaveNothingBehind(t *testing.T) {
	testsize.Arithmetic(t)
	testsize.Extra(t)
	for _, full := range []ratelimit.Overflow{ratelimit.Overflow(0), ratelimit.RefuseNew} {
		clock := new(testClock)
		l := newWith(t, onceADay, ratelimit.Options[int]{Clock: clock, MaxKeys: 10, OnFull: full})
		other := newWith(t, onceADay, ratelimit.Options[int]{Clock: clock})
		stack, err := ratelimit.All(byKey(l), ratelimit.By(other, func(int) (int, error) { return 0, nil }))
		require.NoError(t, err)
		require.True(t, other.Allow(0, 1))
		grown := heapGrowth(func() {
			for key := range 50_000 {
				require.True(t, l.Allow(key, 1))
				l.Reset(context.Background(), key)
				r, err := l.Reserve(t.Context(), -key, 1, 0)
				require.NoError(t, err)
				require.NoError(t, r.Cancel())
				require.Equal(t, 1, l.Sweep())
				require.False(t, stack.Allow(key, 1))
			}
		})
		require.Zero(t, l.Stats().Keys)
		assert.Less(t, grown, int64(1<<20), "OnFull=%d", full)
		runtime.KeepAlive(l)
	}
}

// An evicted key loses its spending. Later keys start from its last reading, unless this is still in the future.
func TestEvictionKeepsTheTimeButNotAReadingFromTheFuture(t *testing.T) {
	clock := new(testClock)
	l := newWith(t, ratelimit.FixedWindow(ratelimit.PerSecond(1)), ratelimit.Options[int]{Clock: clock, MaxKeys: 1})
	clock.set(100 * 365 * 24 * time.Hour)
	require.True(t, l.Allow(0, 1))
	clock.set(5 * s)
	require.True(t, l.Allow(1, 1), "key 0 is evicted")
	clock.advance(s)
	require.True(t, l.Allow(1, 1), "its time does not stand still")
	require.True(t, l.Allow(2, 1), "key 1 is evicted")
	require.Equal(t, ratelimit.Stats{Keys: 1, Evicted: 2}, l.Stats())
	clock.set(0)
	d, err := l.Peek(context.Background(), 1, 0)
	require.NoError(t, err)
	require.Equal(t, 6*s, d.ResetAfter)
}
