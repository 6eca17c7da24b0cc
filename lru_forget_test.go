package ratelimit_test

import (
	"runtime"
	"strings"
	"testing"
	"time"
	"unsafe"
	"weak"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/weir-go/ratelimit"
)

// A clock that swings must not let a key spend its budget twice because the table has
// dropped the key in between, at the far end of the swing.
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
		forget  func(l *ratelimit.Keyed[int], i int) // at the far end
	}{
		{"Sweep", ratelimit.Options[int]{}, ms, func(l *ratelimit.Keyed[int], _ int) { l.Sweep() }},
		{"expiry", ratelimit.Options[int]{MaxKeys: 5000}, time.Hour, func(l *ratelimit.Keyed[int], i int) {
			for key := range 200 {
				l.Allow(1+1000*i+key, 1)
			}
		}},
		{"eviction", ratelimit.Options[int]{MaxKeys: 2}, ms, func(l *ratelimit.Keyed[int], i int) {
			_ = l.Adjust(-1-i, 1)
			_ = l.Adjust(-1-i, -1) // a fresh key
			l.Allow(1, 1)
			l.Reset(1)
		}},
		{"refusal", ratelimit.Options[int]{MaxKeys: 1, OnFull: ratelimit.RefuseNew}, ms, func(l *ratelimit.Keyed[int], i int) {
			l.Allow(1, 1)
			l.Reset(1)
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
	d, err := l.Peek(0, 0)
	require.NoError(t, err)
	assert.Equal(t, ratelimit.Decision{Allowed: true, Limit: limit, Remaining: 3, ResetAfter: s}, d, "fresh as of 1 s")
	inStack, err := stack.Peek(0, 0)
	require.NoError(t, err)
	assert.Equal(t, d, inStack)
	d, err = l.Take(t.Context(), 0, 3)
	require.NoError(t, err)
	assert.Equal(t, ratelimit.Decision{Allowed: true, Limit: limit, ResetAfter: 2 * s}, d)
}

// One reading far in the future locks the keys that were decided at it, and no other: not
// even keys that were dropped at it.
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
		require.Equal(t, 1, l.Len())
		clock.set(2 * s)
		for range 3 {
			for key := range 3 {
				require.True(t, l.Allow(key, 1))
			}
			clock.advance(s)
		}
		require.False(t, l.Allow(4, 1))
		l.Reset(4)
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

// keepsWhole reports whether a limiter that knows the key keeps all of the string
// that the key's text was cut from.
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

// heapGrowth returns by how many bytes f makes the heap grow.
func heapGrowth(f func()) int64 {
	used := func() int64 {
		runtime.GC()
		var m runtime.MemStats
		runtime.ReadMemStats(&m)
		return int64(m.HeapAlloc)
	}
	before := used()
	f()
	return used() - before
}

func TestDroppedKeysLeaveNothingBehind(t *testing.T) {
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
				l.Reset(key)
				r, err := l.Reserve(t.Context(), -key, 1, 0)
				require.NoError(t, err)
				require.NoError(t, r.Cancel())
				require.Equal(t, 1, l.Sweep())
				require.False(t, stack.Allow(key, 1))
			}
		})
		require.Zero(t, l.Len())
		assert.Less(t, grown, int64(1<<20), "OnFull=%d", full)
		runtime.KeepAlive(l)
	}
}

// A key that is evicted takes what it has spent with it. The readings that it has seen
// count for the keys that follow, as far as the clock still shows them.
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
	d, err := l.Peek(1, 0)
	require.NoError(t, err)
	require.Equal(t, 6*s, d.ResetAfter)
}
