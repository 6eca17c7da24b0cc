package redislimit

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/weir-go/ratelimit"
)

// semaphoreOf returns a semaphore on the server's own clock.
func (f *fixture) semaphoreOf(limit int, hold time.Duration) *Semaphore {
	return ratelimit.Must(NewSemaphore(f.client, limit, &SemaphoreOptions{Name: "slots", Hold: hold, Timeout: 10 * time.Second}))
}

func TestDoHoldsItsSlotsForAsLongAsTheWorkTakes(t *testing.T) {
	f := newFixture(t)
	const hold = 2 * time.Second
	s, other := f.semaphoreOf(1, hold), f.semaphoreOf(1, hold)
	require.NoError(t, s.Do(t.Context(), "k", 1, func(ctx context.Context) error {
		for f.snapshot(s).Oldest <= hold+hold/10 {
			select {
			case <-ctx.Done():
				return context.Cause(ctx)
			case <-time.After(10 * time.Millisecond):
			}
		}
		_, err := other.TryAcquire(ctx, "k", 1)
		assert.ErrorIs(t, err, ratelimit.ErrLimited)
		return nil
	}))
	assert.Zero(t, f.snapshot(s))
}

func TestDoEndsTheWorkWhoseSlotsAreLost(t *testing.T) {
	f := newFixture(t)
	s := f.semaphoreOf(2, 1500*time.Millisecond)
	own := errors.New("own")
	for _, result := range []error{nil, own} {
		err := s.Do(t.Context(), "k", 2, func(ctx context.Context) error {
			require.NoError(t, s.Reset(t.Context(), "k"))
			<-ctx.Done()
			assert.ErrorIs(t, context.Cause(ctx), ratelimit.ErrLost)
			return result
		})
		assert.ErrorIs(t, err, ErrLost)
		if result != nil {
			assert.ErrorIs(t, err, result)
		}
	}
	err := s.Do(t.Context(), "k", 1, func(context.Context) error { return s.Reset(t.Context(), "k") })
	assert.ErrorIs(t, err, ErrLost, "before they were extended")
}

func TestDoReleasesAfterAPanicAndWhenTheContextEnds(t *testing.T) {
	f := newFixture(t)
	s := f.semaphoreOf(1, time.Minute)
	assert.PanicsWithValue(t, "odd", func() {
		_ = s.Do(t.Context(), "k", 1, func(context.Context) error { panic("odd") })
	})
	assert.Zero(t, f.snapshot(s).InFlight)
	ctx, cancel := context.WithCancel(t.Context())
	assert.ErrorIs(t, s.Do(ctx, "k", 1, func(ctx context.Context) error {
		cancel()
		<-ctx.Done()
		return ctx.Err()
	}), context.Canceled)
	assert.Zero(t, f.snapshot(s).InFlight)
	assert.ErrorIs(t, s.Do(ctx, "k", 1, func(context.Context) error { panic("it is not called") }), context.Canceled)
	assert.ErrorIs(t, s.Do(t.Context(), "k", 2, func(context.Context) error { panic("it is not called") }), ratelimit.ErrExceedsLimit)
}

func TestReleaseReportsSlotsThatHadEnded(t *testing.T) {
	f := newFixture(t)
	s := f.semaphoreOf(1, time.Minute)
	p := f.held(s, 1)
	require.NoError(t, s.Reset(t.Context(), "k"))
	next := f.held(s, 1)
	require.ErrorIs(t, p.Release(t.Context()), ErrLost)
	require.NoError(t, p.Release(t.Context()), "it is reported once")
	assert.Equal(t, 1, f.snapshot(s).InFlight, "the slots of another are not given back")
	require.NoError(t, next.Release(t.Context()))
	require.NoError(t, next.Release(t.Context()))
	repeated := f.held(s, 1)
	_, err := repeated.release(t.Context()) // the answer to this release is lost
	require.NoError(t, err)
	repeated.released.Store(false)
	assert.NoError(t, repeated.Release(t.Context()))
	assert.NoError(t, (*Permit)(nil).Release(t.Context()))
}
