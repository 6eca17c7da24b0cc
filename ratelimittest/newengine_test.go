package ratelimittest_test

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/weir-go/ratelimit"
	"github.com/weir-go/ratelimit/chain"
	"github.com/weir-go/ratelimit/httplimit"
	"github.com/weir-go/ratelimit/ratelimittest"
)

// The engine in example_engine_test.go uses only exported names. These tests put it in the place of the module's limiters.

// broken is a store that fails while down is set.
type broken struct{ down atomic.Bool }

func (b *broken) call() error {
	if b.down.Load() {
		return errors.New("connection refused")
	}
	return nil
}

// sinceNow is a clock that reads the time since a moment. In a bubble, this is virtual time.
type sinceNow time.Time

func (s sinceNow) Now() time.Duration { return time.Since(time.Time(s)) }

func newLogEngine(t *testing.T, limit ratelimit.Limit, clock ratelimit.Clock) (*LogEngine, *broken) {
	t.Helper()
	store := new(broken)
	e, err := NewLogEngine(limit, clock, store.call)
	require.NoError(t, err)
	return e, store
}

func TestANewEngineKeepsThePromises(t *testing.T) {
	clock := new(ratelimittest.Clock)
	ratelimittest.Run(t, ratelimittest.Config{
		Clock:   clock,
		Accepts: only(log),
		New: func(limit ratelimit.Limit) (limiter, error) {
			return NewLogEngine(limit, clock, new(broken).call)
		},
		NewPair: func(limit ratelimit.Limit) (a, b limiter, err error) {
			e, err := NewLogEngine(limit, clock, new(broken).call)
			return e, e, err
		},
		Want: []string{"Reserve"},
	})
}

func TestANewEngineWhoseStoreFailsNowAndThenKeepsThePromises(t *testing.T) {
	clock, calls := new(ratelimittest.Clock), 0
	config := ratelimittest.Config{
		Clock: clock, Accepts: only(log), Histories: 10, Retries: 5, Seed: 1,
		New: func(limit ratelimit.Limit) (limiter, error) {
			return NewLogEngine(limit, clock, func() error {
				if calls++; calls%2500 == 0 {
					return errors.New("connection reset by peer")
				}
				return nil
			})
		},
	}
	require.NoError(t, ratelimittest.Check(config))
	assert.Greater(t, calls, 10_000, "calls, of which one in 2500 has failed")
}

func TestMapOfANewEngineReservesAndDescribesItsLimit(t *testing.T) {
	limit := ratelimit.SlidingLog(ratelimit.PerMinute(3)).Named("engine")
	e, store := newLogEngine(t, limit, new(ratelimittest.Clock))
	mapped := ratelimit.Map(e, func(n int) (string, error) { return fmt.Sprint(n), nil })
	require.Implements(t, (*ratelimit.Reserver[int])(nil), ratelimit.Map(e, func(n int) (string, error) { return "", nil }))

	res, err := mapped.Reserve(t.Context(), 7, 3, 0)
	require.NoError(t, err)
	require.True(t, res.Allowed)
	require.False(t, e.Allow("7", 1))
	store.down.Store(true)
	require.ErrorIs(t, res.Settle(1), ratelimit.ErrUnavailable)
	store.down.Store(false)
	require.NoError(t, res.Settle(1), "only the first call counts")
	require.False(t, mapped.Allow(7, 1), "what could not be settled stays charged")

	chain, err := chain.New(mapped, mapped)
	require.NoError(t, err)
	require.True(t, chain.Allow(8, 1))
	require.False(t, chain.Allow(8, 1), "it would be charged twice, and one is left")
	require.True(t, mapped.Allow(8, 1), "the first charge was given back")
	require.Equal(t, []ratelimit.Limit{limit}, ratelimit.Describe(mapped).Limits)
}

func TestWaitOnANewEngineBooksItsPlace(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		e, _ := newLogEngine(t, ratelimit.SlidingLog(ratelimit.PerMinute(2)), sinceNow(time.Now()))
		mapped := ratelimit.Map(e, func(n int) (string, error) { return fmt.Sprint(n), nil })
		began := time.Now()
		for range 5 { // two are allowed now, two after a minute, and one after two
			require.NoError(t, ratelimit.Wait(t.Context(), mapped, 1, 1))
		}
		assert.Equal(t, 2*time.Minute, time.Since(began))
	})
}

func TestWaitOnANewEngineThatIsCancelledSpendsNothing(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		e, store := newLogEngine(t, ratelimit.SlidingLog(ratelimit.PerMinute(2)), sinceNow(time.Now()))
		require.True(t, e.Allow("k", 2))
		ctx, stop := context.WithCancel(t.Context())
		go func() { time.Sleep(time.Second); stop() }()
		require.ErrorIs(t, ratelimit.Wait(ctx, e, "k", 2), context.Canceled)
		time.Sleep(time.Minute)
		require.True(t, e.Allow("k", 2))

		ctx, stop = context.WithCancel(t.Context())
		go func() { time.Sleep(time.Second); store.down.Store(true); stop() }()
		err := ratelimit.Wait(ctx, e, "k", 1)
		require.ErrorIs(t, err, context.Canceled)
		require.ErrorIs(t, err, ratelimit.ErrUnavailable, "it is still charged, and the caller is told")
	})
}

func TestWaitFailsAtOnceIfAnEngineThatBooksIsTooLate(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		e, _ := newLogEngine(t, ratelimit.SlidingLog(ratelimit.PerMinute(1)), sinceNow(time.Now()))
		require.True(t, e.Allow("k", 1))
		began := time.Now()
		ctx, stop := context.WithTimeout(t.Context(), 59*time.Second)
		defer stop()
		require.ErrorIs(t, ratelimit.Wait(ctx, e, "k", 1), context.DeadlineExceeded)
		assert.Zero(t, time.Since(began))
		d, err := e.Take(t.Context(), "k", 1)
		require.NoError(t, err)
		assert.Equal(t, time.Minute, d.RetryAfter, "nothing is booked")
	})
}

// serveOnce sends one request through the middleware. The handler answers with the status.
func serveOnce(h http.Handler, status int) *httptest.ResponseRecorder {
	w := httptest.NewRecorder()
	r := httptest.NewRequest("GET", "/", nil)
	r.Header.Set("Status", fmt.Sprint(status))
	h.ServeHTTP(w, r)
	return w
}

func TestHTTPLimitSettlesAndShowsANewEngine(t *testing.T) {
	limit := ratelimit.SlidingLog(ratelimit.PerMinute(2)).Named("engine")
	e, store := newLogEngine(t, limit, new(ratelimittest.Clock))
	key := func(*http.Request) (string, error) { return "client", nil }
	m, err := httplimit.New(ratelimit.Map(e, key), &httplimit.Options{
		Settle: httplimit.RefundServerErrors, Logger: slog.New(slog.DiscardHandler)})
	require.NoError(t, err)
	h := m.Wrap(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		status := 0
		fmt.Sscan(r.Header.Get("Status"), &status)
		if status == http.StatusBadGateway {
			store.down.Store(true) // the charge cannot be given back
		}
		w.WriteHeader(status)
	}))

	w := serveOnce(h, http.StatusOK)
	assert.Equal(t, `"engine";q=2;w=60;weir-refill`, w.Header().Get("RateLimit-Policy"))
	assert.Equal(t, `"engine";r=1;t=60`, w.Header().Get("RateLimit"))
	assert.Equal(t, http.StatusInternalServerError, serveOnce(h, http.StatusInternalServerError).Code)
	assert.Equal(t, `"engine";r=0;t=60`, serveOnce(h, http.StatusBadGateway).Header().Get("RateLimit"), "the 500 was given back")
	assert.EqualValues(t, 1, m.Stats().Unsettled)
	assert.Equal(t, http.StatusServiceUnavailable, serveOnce(h, http.StatusOK).Code, "the store is down")

	store.down.Store(false)
	w = serveOnce(h, http.StatusOK)
	assert.Equal(t, http.StatusTooManyRequests, w.Code)
	assert.Equal(t, "60", w.Header().Get("Retry-After"))
}

// The suite tests keys of 65 536 bytes. A failure must not print them.
func TestAFailureWithLongKeysIsShort(t *testing.T) {
	config := ours()
	config.Histories, config.NewBounded = 1, nil
	config.New = func(limit ratelimit.Limit) (limiter, error) {
		cut := func(key string) string { return key[:min(len(key), 4000)] }
		return &faulty{keyed: good(limit, config.Clock), key: cut}, nil
	}
	err := ratelimittest.Check(config)
	require.ErrorContains(t, err, "the promise that each key has a budget of its own")
	assert.Less(t, len(err.Error()), 100_000)
}
