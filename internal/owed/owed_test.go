package owed_test

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/weir-go/ratelimit"
	"github.com/weir-go/ratelimit/internal/owed"
	"github.com/weir-go/ratelimit/ratelimittest"
)

// After twenty minutes of spending, a key owes one minute's units under a limit
// per minute, and all units under a limit per day. They are charged once.
func TestAKeyOwesWhatStillCounts(t *testing.T) {
	for limit, want := range map[ratelimit.Limit]int{
		ratelimit.FixedWindow(ratelimit.PerMinute(10)):   10,
		ratelimit.SlidingLog(ratelimit.PerMinute(10)):    10,
		ratelimit.TokenBucket(ratelimit.PerMinute(5), 5): 5,
		ratelimit.FixedWindow(ratelimit.PerDay(1000)):    180,
		ratelimit.Concurrent(10, time.Minute):            0,
		ratelimit.Unlimited():                            0,
	} {
		t.Run(limit.String(), func(t *testing.T) {
			clock := new(ratelimittest.Clock)
			clock.Advance(59 * time.Second)
			l := owed.New[string](clock)
			standIn := ratelimit.Must(ratelimit.New(limit, &ratelimit.Options[string]{Clock: clock}))
			for range 180 {
				clock.Advance(20 * time.Second / 3)
				if limit.Algorithm == ratelimit.AlgorithmConcurrent || standIn.Allow("ann", 1) {
					l.Charge("ann", 1, limit)
				}
			}
			got := map[string]int{}
			pay := func(_ context.Context, key string, units int) error { got[key] += units; return nil }
			require.NoError(t, l.Repay(t.Context(), pay))
			require.NoError(t, l.Repay(t.Context(), pay))
			assert.InDelta(t, want, got["ann"], 1)
			assert.False(t, l.Owing())
			if want == 0 {
				return
			}
			l.Charge("ann", 2, limit)
			require.NoError(t, l.Repay(t.Context(), pay))
			assert.InDelta(t, want+2, got["ann"], 1, "a second outage owes its own spending")
		})
	}
}

func TestWhatCannotBeChargedStaysOwed(t *testing.T) {
	l := owed.New[int](nil)
	for key := range 100 {
		l.Charge(key, 1+key, ratelimit.FixedWindow(ratelimit.PerDay(1000)))
	}
	down := fmt.Errorf("no connection: %w", ratelimit.ErrUnavailable)
	calls, odd := 0, errors.New("odd")
	err := l.Repay(t.Context(), func(context.Context, int, int) error {
		if calls++; calls > 10 {
			return down
		}
		return nil
	})
	require.ErrorIs(t, err, down)
	assert.Equal(t, 11, calls, "an outage ends it")
	assert.True(t, l.Owing())
	paid := 0
	err = l.Repay(t.Context(), func(_ context.Context, key, units int) error {
		calls++
		assert.Equal(t, 1+key, units)
		if paid++; paid == 7 {
			return odd
		}
		return nil
	})
	require.ErrorIs(t, err, odd)
	assert.Equal(t, 101, calls, "each key is charged once; the one that failed is given up")
	assert.False(t, l.Owing())
}
