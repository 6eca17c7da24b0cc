package redislimit

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/weir-go/ratelimit"
	"github.com/weir-go/ratelimit/internal/dev/testsize"
)

// visited returns the decisions of Each, and checks that it visits each key once.
func visited(t *testing.T, l *Limiter) map[string]ratelimit.Decision {
	t.Helper()
	all := make(map[string]ratelimit.Decision)
	require.NoError(t, l.Each(t.Context(), func(key string, d ratelimit.Decision) bool {
		assert.NotContains(t, all, key)
		all[key] = d
		return true
	}))
	return all
}

func TestEachVisitsEveryKeyOnceWithTheResultOfPeek(t *testing.T) {
	testsize.Sequential(t)
	t.Parallel()
	clients := spreadClients(t)
	clients["plain"] = startServer(t).client()
	for kind, client := range clients {
		t.Run(kind, func(t *testing.T) {
			l := newOn(t, client, ratelimit.FixedWindow(ratelimit.PerDay(3)), "each", Options{})
			var similar []*Limiter
			for _, name := range []string{"eac", "each1", "each:", "each#", "eac?", "*", "[e]ach"} {
				other, err := New(client, ratelimit.FixedWindow(ratelimit.PerDay(3)), &Options{Name: name, Timeout: 20 * time.Second})
				require.NoError(t, err)
				similar = append(similar, other)
			}
			require.Eventually(t, func() bool { _, err := l.Peek(t.Context(), "k", 1); return err == nil }, 30*time.Second, 10*time.Millisecond)
			n := testsize.Of(1500, 5000) // a SCAN examines a thousand keys
			var wg sync.WaitGroup
			for first := range 50 { // these concurrent callers share round trips
				wg.Go(func() {
					for i := first; i < n; i += 50 {
						assert.True(t, l.Allow(fmt.Sprint(i), 1+i%3))
					}
				})
			}
			wg.Wait()
			for i := range 20 {
				for _, other := range similar {
					require.True(t, other.Allow("other", 0) && other.Allow(fmt.Sprint("other", i), 1))
				}
			}
			all := visited(t, l)
			require.Equal(t, n, len(all))
			for i := range n {
				d := all[fmt.Sprint(i)]
				assert.Equal(t, i%3 != 2, d.Allowed)
				assert.Equal(t, 2-i%3, d.Remaining)
				assert.Equal(t, "each", d.Limit.Name)
				if !d.Allowed {
					assert.Positive(t, d.RetryAfter)
				}
			}
			for _, other := range similar {
				assert.Len(t, visited(t, other), 20)
			}
			count := 0
			require.NoError(t, l.Each(t.Context(), func(string, ratelimit.Decision) bool { count++; return count < 7 }))
			assert.Equal(t, 7, count)
		})
	}
}

func TestEachGivesBackTheKeysAsTheyWere(t *testing.T) {
	f := newFixture(t)
	keys := []string{"", "k", "{", "}", "}{", "{a}b", ":{x}:y", "a}:b", "é\x00\xff", "k*?[]", strings.Repeat("l", maxKey)}
	for name, o := range map[string]Options{
		"plain": {}, "slot": {Slot: func(key string) string { return "t" + key[:min(1, len(key))] }}, "one": {Slot: func(string) string { return "" }},
		"prefix": {Prefix: `*?[a]\`},
	} {
		l := newOn(t, f.client, ratelimit.TokenBucket(ratelimit.PerHour(1), 5), name, o)
		for i, key := range keys {
			require.True(t, l.Allow(key, 1+i%5), key)
		}
		require.True(t, l.Allow(strings.Repeat("l", maxKey+1), 1), "of which Redis has only a hash")
		all := visited(t, l)
		require.Len(t, all, len(keys))
		for i, key := range keys {
			assert.Equal(t, 4-i%5, all[key].Remaining, "%s: %q", name, key)
			require.NoError(t, l.Reset(t.Context(), key))
		}
		assert.Empty(t, visited(t, l))
	}
}

func TestEachWritesNothing(t *testing.T) {
	f := newFixture(t)
	for _, limit := range fiveLimits() {
		l := f.real(limit)
		require.True(t, l.Allow("a", 1) && l.Allow("b", limit.Capacity()))
	}
	before := f.dump()
	for _, limit := range fiveLimits() {
		assert.Len(t, visited(t, f.real(limit)), 2)
	}
	assert.Equal(t, before, f.dump())
}

func TestEachGoesOnBehindAKeyThatHasAnError(t *testing.T) {
	f := newFixture(t)
	limitFor := func(key string) ratelimit.Limit {
		switch key {
		case "invalid":
			return ratelimit.TokenBucket(ratelimit.PerSecond(-1), 1)
		case "blocked":
			return ratelimit.Blocked()
		case "free":
			return ratelimit.Unlimited()
		}
		return ratelimit.Limit{}
	}
	const name = "errors"
	plain := newOn(t, f.client, ratelimit.FixedWindow(ratelimit.PerHour(5)), name, Options{})
	l := newOn(t, f.client, ratelimit.FixedWindow(ratelimit.PerHour(5)), name, Options{LimitFor: limitFor})
	for _, key := range []string{"a", "b", "c", "blocked", "free"} {
		require.True(t, plain.Allow(key, 1))
	}
	for key, want := range map[string]error{"foreign": errForeignState, "invalid": ratelimit.ErrInvalidLimit} {
		require.NoError(t, f.client.Set(t.Context(), l.space.key(key), "something else", 0).Err())
		all := map[string]ratelimit.Decision{}
		err := l.Each(t.Context(), func(key string, d ratelimit.Decision) bool { all[key] = d; return true })
		assert.ErrorIs(t, err, want)
		assert.Len(t, all, 5)
		assert.False(t, all["blocked"].Allowed)
		assert.True(t, all["free"].Allowed)
		require.NoError(t, f.client.Del(t.Context(), l.space.key(key)).Err())
	}
	require.NoError(t, f.client.LPush(t.Context(), l.space.key("list"), "x").Err())
	assert.ErrorIs(t, l.Each(t.Context(), func(string, ratelimit.Decision) bool { return true }), errForeignState)
}

func TestEachEndsWithItsContextAndWithItsServer(t *testing.T) {
	t.Parallel()
	s := startServer(t)
	l := newOn(t, s.client(), ratelimit.FixedWindow(ratelimit.PerHour(5)), "ends", Options{Timeout: 50 * time.Millisecond})
	for i := range 100 {
		require.Eventually(t, func() bool { _, err := l.Take(t.Context(), fmt.Sprint(i), 1); return err == nil }, 10*time.Second, time.Millisecond)
	}
	none := func(string, ratelimit.Decision) bool { t.Error("visited"); return true }
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	assert.ErrorIs(t, l.Each(ctx, none), context.Canceled)
	assert.Error(t, l.Each(t.Context(), nil))
	ctx, cancel = context.WithCancel(t.Context())
	visits := 0
	err := l.Each(ctx, func(string, ratelimit.Decision) bool { visits++; cancel(); return true })
	assert.True(t, err == nil || errors.Is(err, context.Canceled), err)
	assert.Positive(t, visits)
	hurried := newOn(t, s.client(), ratelimit.FixedWindow(ratelimit.PerHour(5)), "ends", Options{Timeout: time.Nanosecond})
	require.Eventually(t, func() bool {
		visits = 0
		return hurried.Each(t.Context(), func(string, ratelimit.Decision) bool { visits++; return true }) == nil
	}, 20*time.Second, time.Millisecond, "a call of Each has a second")
	assert.Equal(t, 100, visits)
	s.pause(t)
	ctx, cancel = context.WithTimeout(t.Context(), 20*time.Millisecond)
	defer cancel()
	assert.ErrorIs(t, promptly(t, func() error { return l.Each(ctx, none) }), context.DeadlineExceeded)
	err = l.Each(t.Context(), none)
	assert.ErrorIs(t, err, ratelimit.ErrUnavailable)
	assert.NotErrorIs(t, err, ratelimit.ErrUnanswered, "nothing can have been charged")
	s.resume(t)
	s.kill()
	assert.ErrorIs(t, l.Each(t.Context(), none), ratelimit.ErrUnavailable)
}
