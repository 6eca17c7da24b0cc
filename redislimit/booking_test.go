package redislimit

import (
	"context"
	"errors"
	"fmt"
	"math"
	"math/rand/v2"
	"strconv"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/weir-go/ratelimit"
	"github.com/weir-go/ratelimit/internal/dev/testsize"
)

// bookable are limits with many bookings ahead for one key, each at another instant.
func bookable() []ratelimit.Limit {
	return []ratelimit.Limit{
		ratelimit.TokenBucket(ratelimit.PerSecond(200), 10).Named("bucket"),
		ratelimit.FixedWindow(ratelimit.PerSecond(1)).Named("window"),
		ratelimit.SlidingCounter(ratelimit.PerSecond(1)).Named("counter"),
		ratelimit.SlidingLog(ratelimit.PerSecond(1)).Named("log"),
	}
}

func TestHundredsOfBookingsCanBeGivenBack(t *testing.T) {
	verdicts(t)
	f := newFixture(t)
	for _, limit := range bookable() {
		t.Run(limit.Name, func(t *testing.T) {
			l := f.limiter(limit, limit.Name)
			for l.Allow("k", 1) {
			}
			var booked []*ratelimit.Reservation
			for range testsize.Of(300, 1000) {
				r, err := l.Reserve(t.Context(), "k", 1, math.MaxInt64)
				require.NoError(t, err)
				require.True(t, r.Allowed)
				booked = append(booked, r)
			}
			before, err := l.Peek(t.Context(), "k", 1)
			require.NoError(t, err)
			rand.Shuffle(len(booked), func(i, j int) { booked[i], booked[j] = booked[j], booked[i] })
			for _, r := range booked {
				require.NoError(t, r.Cancel())
			}
			d, err := l.Peek(t.Context(), "k", 1)
			require.NoError(t, err)
			assert.Less(t, d.RetryAfter, 3*time.Second, "it was %v", before.RetryAfter)
			f.clock.Advance(d.RetryAfter)
			assert.True(t, l.Allow("k", 1))
		})
	}
}

func TestCallersThatGiveUpLeaveNothingBooked(t *testing.T) {
	f := newFixture(t)
	limit := ratelimit.TokenBucket(ratelimit.PerHour(1), 10) // no booking of a caller comes due
	l := f.limiter(limit, "workers")
	ctx, cancel := contextWithCancel(t)
	var wg sync.WaitGroup
	var unanswered atomic.Int64 // how often a busy machine was too late to give the booking back
	const callers = 500
	for range callers + 10 {
		wg.Go(func() {
			if err := l.Wait(ctx, "k", 1); err != nil {
				assert.ErrorIs(t, err, context.Canceled)
				assert.NotErrorIs(t, err, ratelimit.ErrUnavailable)
				if errors.Is(err, ratelimit.ErrUnanswered) {
					unanswered.Add(1)
				}
			}
		})
	}
	for {
		d, err := l.Peek(t.Context(), "k", 1)
		require.NoError(t, err)
		if d.RetryAfter > callers*time.Hour {
			break
		}
	}
	cancel()
	wg.Wait()
	d, err := l.Peek(t.Context(), "k", 1)
	require.NoError(t, err)
	stay := time.Duration(unanswered.Load()) * time.Hour
	require.Less(t, stay, callers/2*time.Hour)
	assert.LessOrEqual(t, d.RetryAfter, time.Hour+stay)
	f.clock.Advance(10*time.Hour + stay)
	assert.Equal(t, 10, f.left(l, "k"))
}

// A caller leaves while its booking is under way, and the answer comes soon afterwards.
func TestABookingThatIsAnsweredSoonAfterItsCallerHasLeftIsGivenBack(t *testing.T) {
	t.Parallel()
	s := startServer(t)
	l, err := New(s.client(), ratelimit.TokenBucket(ratelimit.PerHour(1), 10), &Options{Name: "left", Timeout: 20 * time.Second})
	require.NoError(t, err)
	stack, err := ratelimit.All(ratelimit.By(l, identity))
	require.NoError(t, err)
	for i, wait := range []func(context.Context, string, int) error{l.Wait, stack.Wait} {
		key, givenBack := strconv.Itoa(i), 0
		require.NoError(t, wait(t.Context(), key, 1)) // after this the server knows the script
		require.NoError(t, l.Reset(t.Context(), key))
		for range 50 { // a busy machine is not always fast enough
			ctx, cancel := context.WithCancel(t.Context())
			s.pause(t)
			time.AfterFunc(10*time.Millisecond, cancel)
			resumed := make(chan struct{})
			time.AfterFunc(20*time.Millisecond, func() { s.resume(t); close(resumed) })
			err := wait(ctx, key, 1)
			<-resumed
			require.ErrorIs(t, err, context.Canceled)
			if errors.Is(err, ratelimit.ErrUnanswered) {
				require.NoError(t, l.Reset(t.Context(), key))
			} else if givenBack++; givenBack == 5 {
				break
			}
		}
		assert.Equal(t, 5, givenBack)
		d, err := l.Peek(t.Context(), key, 0)
		require.NoError(t, err)
		assert.Equal(t, 10, d.Remaining)
	}
}

func TestABookingThatCouldNotBeGivenBackIsRefused(t *testing.T) {
	verdicts(t)
	f := newFixture(t)
	for _, limit := range bookable() {
		t.Run(limit.Name, func(t *testing.T) {
			most := maxBooked
			if limit.Algorithm == ratelimit.AlgorithmSlidingLog {
				most = maxQueued
			}
			l := f.limiter(limit, limit.Name)
			for l.Allow("k", 1) {
			}
			var booked []*ratelimit.Reservation
			for {
				r, err := l.Reserve(t.Context(), "k", 1, math.MaxInt64)
				if err != nil {
					assert.ErrorIs(t, err, ratelimit.ErrLimited)
					assert.NotErrorIs(t, err, ratelimit.ErrUnavailable)
					assert.ErrorContains(t, err, fmt.Sprint(most))
					assert.ErrorContains(t, err, "give back")
					assert.False(t, r.Allowed)
					assert.Positive(t, r.RetryAfter)
					assert.LessOrEqual(t, r.RetryAfter, 2*time.Second)
					require.NoError(t, r.Cancel())
					break
				}
				booked = append(booked, r)
				require.LessOrEqual(t, len(booked), most)
			}
			require.Len(t, booked, most)

			ctx, cancel := context.WithTimeout(t.Context(), time.Hour)
			defer cancel()
			for _, ctx := range []context.Context{ctx, t.Context()} {
				assert.ErrorIs(t, l.Wait(ctx, "k", 1), ratelimit.ErrLimited)
			}
			d, err := l.Take(t.Context(), "k", 1)
			require.NoError(t, err, "who books nothing is denied as ever")
			assert.False(t, d.Allowed)

			require.NoError(t, booked[most/2].Cancel())
			_, err = l.Reserve(t.Context(), "k", 1, math.MaxInt64)
			require.NoError(t, err, "there is place for one more")
			for range 2 { // a bucket has two bookings at one instant after an earlier one was given back
				_, err = l.Reserve(t.Context(), "k", 1, math.MaxInt64)
			}
			require.ErrorIs(t, err, ratelimit.ErrLimited)

			f.clock.Advance(booked[0].Delay)
			_, err = l.Reserve(t.Context(), "k", 1, math.MaxInt64)
			require.NoError(t, err, "one has passed")
		})
	}
}
