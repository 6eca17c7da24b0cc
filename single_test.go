package ratelimit_test

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/weir-go/ratelimit"
	"github.com/weir-go/ratelimit/ratelimittest"
)

func ExampleSingle() {
	pace, err := ratelimit.NewSingle(ratelimit.TokenBucket(ratelimit.PerSecond(100), 1), nil)
	if err != nil {
		panic(err)
	}
	start := time.Now()
	for range 4 { // a job's steps
		if err := pace.Wait(context.Background(), 1); err != nil {
			panic(err)
		}
	}
	fmt.Println("four steps took at least 30ms:", time.Since(start) >= 30*time.Millisecond)
	// Output: four steps took at least 30ms: true
}

// TestASingleDecidesAsAKeyedDoes makes the same calls, at the same times, on a Single and on a
// Keyed limiter of one key.
func TestASingleDecidesAsAKeyedDoes(t *testing.T) {
	for _, limit := range append(openLimits(), shutLimits()...) {
		clock := new(ratelimittest.Clock)
		opts := &ratelimit.Options[struct{}]{Clock: clock}
		single, err := ratelimit.NewSingle(limit, opts)
		require.NoError(t, err)
		keyed, err := ratelimit.New(limit, opts)
		require.NoError(t, err)

		same := func(what string) {
			got, gotErr := single.Peek(context.Background(), 1)
			want, wantErr := keyed.Peek(context.Background(), struct{}{}, 1)
			assert.Equal(t, want, got, "%v after %s", limit, what)
			assert.Equal(t, wantErr, gotErr, "%v after %s", limit, what)
			assert.Equal(t, keyed.Describe().Limits, single.Describe().Limits, "%v after %s", limit, what)
		}
		assert.Equal(t, keyed.Allow(struct{}{}, 1), single.Allow(1))
		same("Allow")
		want, wantErr := keyed.Take(t.Context(), struct{}{}, 1)
		got, gotErr := single.Take(t.Context(), 1)
		assert.Equal(t, want, got)
		assert.Equal(t, wantErr, gotErr)
		same("Take")
		wantRes, wantErr := keyed.Reserve(t.Context(), struct{}{}, 1, 24*time.Hour)
		gotRes, gotErr := single.Reserve(t.Context(), 1, 24*time.Hour)
		assert.Equal(t, wantRes.Decision, gotRes.Decision)
		assert.Equal(t, wantErr, gotErr)
		require.NoError(t, wantRes.Settle(0))
		require.NoError(t, gotRes.Settle(0))
		same("Settle")
		require.NoError(t, keyed.Adjust(context.Background(), struct{}{}, 5))
		require.NoError(t, single.Adjust(context.Background(), 5))
		same("Adjust")
		clock.Advance(time.Minute)
		same("a minute")
		next := ratelimit.SlidingLog(ratelimit.PerMinute(7)).Named("next")
		require.NoError(t, keyed.SetLimit(next))
		require.NoError(t, single.SetLimit(next))
		same("SetLimit")
		keyed.Reset(context.Background(), struct{}{})
		single.Reset(context.Background())
		same("Reset")
		ctx, cancel := context.WithTimeout(t.Context(), time.Hour)
		assert.Equal(t, keyed.Wait(ctx, struct{}{}, 8), single.Wait(ctx, 8))
		require.NoError(t, keyed.Wait(ctx, struct{}{}, 7))
		require.NoError(t, single.Wait(ctx, 7))
		cancel()
		same("Wait")
	}
}

func TestASingleWaitsInOrder(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		pace, err := ratelimit.NewSingle(ratelimit.TokenBucket(ratelimit.PerSecond(10), 1), nil)
		require.NoError(t, err)
		start := time.Now()
		for range 101 {
			require.NoError(t, pace.Wait(t.Context(), 1))
		}
		assert.Equal(t, 10*time.Second, time.Since(start))
	})
}

// TestASingleIsNeverFull resets and decides in many goroutines. A
// key being dropped must not make the table refuse the next one.
func TestASingleIsNeverFull(t *testing.T) {
	single, err := ratelimit.NewSingle(ratelimit.FixedWindow(ratelimit.PerHour(1)),
		&ratelimit.Options[struct{}]{MaxKeys: 1, OnFull: ratelimit.RefuseNew})
	require.NoError(t, err)
	var refused atomic.Int64
	var group sync.WaitGroup
	for range 8 {
		group.Go(func() {
			for range 2000 {
				if _, err := single.Take(t.Context(), 1); err != nil {
					refused.Add(1)
				}
				single.Reset(context.Background())
			}
		})
	}
	group.Wait()
	assert.Zero(t, refused.Load())
}

func TestASingleChecksItsOptions(t *testing.T) {
	_, err := ratelimit.NewSingle(ratelimit.Limit{}, nil)
	require.ErrorIs(t, err, ratelimit.ErrInvalidLimit)
	_, err = ratelimit.NewSingle(onceADay, &ratelimit.Options[struct{}]{MaxKeys: -1})
	require.ErrorContains(t, err, "MaxKeys is -1")

	var events []ratelimit.Event[struct{}]
	single, err := ratelimit.NewSingle(onceADay, &ratelimit.Options[struct{}]{
		OnDecision: func(e ratelimit.Event[struct{}]) { events = append(events, e) },
	})
	require.NoError(t, err)
	single.Allow(1)
	_, err = single.Take(t.Context(), 2)
	require.ErrorIs(t, err, ratelimit.ErrExceedsLimit)
	require.Len(t, events, 2)
	assert.True(t, events[0].Spent)
	assert.True(t, errors.Is(events[1].Err, ratelimit.ErrExceedsLimit))
	assert.PanicsWithError(t, "ratelimit: this Single is nil or zero: make one with NewSingle", func() { new(ratelimit.Single).Allow(1) })
}
