package ratelimit_test

import (
	"context"
	"math"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/weir-go/ratelimit"
)

// A fresh leaky bucket takes a cost in, however far ahead may be booked. (Wait asks for
// the whole of MaxInt64 if its context has no deadline.)
func TestLeakyBucketBooksAheadOnAClockThatReadsBelowZero(t *testing.T) {
	r := newRig(t, ratelimit.LeakyBucket(ratelimit.PerSecond(4), 4))
	r.clock.now.Store(-33)
	res, err := r.limiter.Reserve(context.Background(), "k", 1, time.Duration(math.MaxInt64))
	require.NoError(t, err)
	require.True(t, res.Allowed)
	require.NoError(t, r.limiter.Wait(context.Background(), "other", 1))
}

// What a debt comes to is counted in 64 bits: 100 years at 3 units/ns are above MaxInt64.
func TestDebtIsKeptAtRatesAroundThreeUnitsANanosecond(t *testing.T) {
	r := newRig(t, ratelimit.TokenBucket(ratelimit.Per(3, 1), 19))
	require.NoError(t, r.limiter.Adjust("k", 60))
	d, err := r.limiter.Peek("k", 1)
	require.NoError(t, err)
	require.Equal(t, 20*time.Nanosecond, d.ResetAfter)
}

// Instants are whole nanoseconds, positions in the queue are not. What is spent anew
// after a cancel must not end up later than it stood.
func TestCancellingInALeakyBucketDelaysNobody(t *testing.T) {
	r := newRig(t, ratelimit.LeakyBucket(ratelimit.Per(6, 38), 3))
	ctx := context.Background()
	first, err := r.limiter.Reserve(ctx, "k", 2, 0)
	require.NoError(t, err)
	second, err := r.limiter.Reserve(ctx, "k", 1, time.Minute) // leaves at 12⅔, its cost is regained at 19
	require.NoError(t, err)
	require.True(t, second.Allowed)
	before, err := r.limiter.Take(ctx, "k", 3)
	require.NoError(t, err)
	require.Equal(t, 19*time.Nanosecond, before.RetryAfter)

	r.clock.now.Store(4)
	first.Cancel()
	r.clock.now.Store(19)
	require.True(t, r.limiter.Allow("k", 3), "denied when it was told to retry, though nothing was spent since")
}

// A refund after the departure is for the queue's end only, and that is told to the
// fraction of a nanosecond.
func TestRefundInALeakyBucketLeavesWhatEnteredLaterItsSpace(t *testing.T) {
	r := newRig(t, ratelimit.LeakyBucket(ratelimit.Per(6, 1), 12))
	ctx := context.Background()
	require.True(t, r.limiter.Allow("k", 9)) // drains until 1½
	early, err := r.limiter.Reserve(ctx, "k", 2, time.Minute)
	require.NoError(t, err)
	require.Equal(t, 2*time.Nanosecond, early.Delay) // drains until 1⅚

	r.clock.now.Store(2)
	d, err := r.limiter.Take(ctx, "k", 1) // drains from 2 until 2⅙
	require.NoError(t, err)
	require.True(t, d.Allowed)
	early.Cancel()
	d, err = r.limiter.Peek("k", 1)
	require.NoError(t, err)
	require.Equal(t, time.Nanosecond, d.Delay, "leaves together with what it has to queue behind")
}

// A reading that has stepped back is told how far away the booked instant is from it, and
// that is more than was asked for.
func TestNothingIsBookedFurtherAheadThanAskedByAClockThatSteppedBack(t *testing.T) {
	r := newRig(t, ratelimit.TokenBucket(ratelimit.PerSecond(1), 1))
	ctx := context.Background()
	r.clock.now.Store(int64(10 * time.Second))
	require.True(t, r.limiter.Allow("k", 1)) // the next fits at 11 s
	r.clock.now.Store(0)
	res, err := r.limiter.Reserve(ctx, "k", 1, 2*time.Second)
	require.NoError(t, err)
	require.False(t, res.Allowed && res.Delay > 2*time.Second, "allowed with %v", res.Delay)
}

// How much of an old debt has been regained meanwhile may be above MaxInt64.
func TestNewDebtInASlidingLogIsChargedHoweverMuchOfAnOldOneIsOver(t *testing.T) {
	r := newRig(t, ratelimit.SlidingLog(ratelimit.Per(whole(1<<53), 1)))
	require.NoError(t, r.limiter.Adjust("k", math.MaxInt))
	r.clock.now.Store(2000)
	require.NoError(t, r.limiter.Adjust("k", math.MaxInt))
	d, err := r.limiter.Peek("k", 1)
	require.NoError(t, err)
	require.Zero(t, d.Remaining)
}

// What is booked counts as spent: a debt behind it is capped all the same.
func TestDebtBehindBookingsIsCapped(t *testing.T) {
	for _, limit := range []ratelimit.Limit{
		ratelimit.TokenBucket(ratelimit.PerDay(1), 1), ratelimit.LeakyBucket(ratelimit.PerDay(1), 1),
		ratelimit.FixedWindow(ratelimit.PerDay(1)), ratelimit.SlidingLog(ratelimit.PerDay(1)), ratelimit.SlidingCounter(ratelimit.PerDay(1)),
	} {
		for _, at := range []int64{0, 1 << 61, 1<<62 - 1} {
			r := newRig(t, limit)
			r.clock.now.Store(at)
			for range 3000 {
				_, err := r.limiter.Reserve(t.Context(), "k", 1, math.MaxInt64)
				require.NoError(t, err)
			}
			require.NoError(t, r.limiter.Adjust("k", math.MaxInt))
			d, err := r.limiter.Take(t.Context(), "k", 1)
			require.NoError(t, err)
			require.False(t, d.Allowed)
			require.InDelta(t, 100, d.ResetAfter.Hours()/8766, 0.01, "%v at %d: years", limit, at)
		}
	}
}
