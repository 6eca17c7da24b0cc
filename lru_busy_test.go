package ratelimit_test

import (
	"bytes"
	"runtime"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/weir-go/ratelimit"
)

// soon fails the test if f has not returned after a time in which it could have done so
// ten thousand times.
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
				go l.Allow(0, 1) // looks the key up again, because its limit has changed
				go l.Reset(0)
				go func() { _ = l.Adjust(0, 1) }()
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

// If all keys that could make room are busy, a new key waits for one of them, and meanwhile
// keeps nobody else waiting.
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

// newKeyThatWaits returns a limiter with one key, which was busy until a new key waited for it, and what the new key is told.
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
