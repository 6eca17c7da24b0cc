package redislimit

import (
	"context"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/weir-go/ratelimit"
)

// LimitFor may be slow, for example a query of a database. Callers that come while it runs do not call it again.
func TestConcurrentCallersOfAKeyShareOneCallOfLimitFor(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var calls atomic.Int64
		client := redis.NewClient(&redis.Options{Addr: "127.0.0.1:1"})
		defer client.Close()
		l, err := New(client, perMinute(5).Named("n"), &Options{LimitFor: func(key string) ratelimit.Limit {
			time.Sleep(time.Second)
			if calls.Add(1); key == "panics" {
				panic("the database is gone")
			}
			return ratelimit.Blocked() // this limit needs no Redis
		}})
		require.NoError(t, err)
		stack, err := ratelimit.All(ratelimit.By(l, func(key string) (string, error) { return key, nil }))
		require.NoError(t, err)
		call := func(key string) (errs, panics int64) {
			var failed, panicked atomic.Int64
			var wg sync.WaitGroup
			for i := range 200 {
				wg.Go(func() {
					defer func() {
						if recover() != nil {
							panicked.Add(1)
						}
					}()
					var err error
					if i%2 == 0 {
						_, err = l.Take(t.Context(), key, 1)
					} else {
						_, err = stack.Take(t.Context(), key, 1)
					}
					if err != nil {
						failed.Add(1)
					}
				})
			}
			wg.Wait()
			return failed.Load(), panicked.Load()
		}
		failed, panicked := call("k")
		assert.Equal(t, []int64{200, 0, 1}, []int64{failed, panicked, calls.Load()}, "each cost is above the capacity of Blocked")
		_, panicked = call("panics")
		assert.Equal(t, int64(200), panicked, "each of them has called it itself")
	})
}

// The beats of a line run on a timer's goroutine. No caller could recover a panic on it, so the panic would end the program.
func TestAPanicOfLimitForIsTheErrorOfTheCallersThatWaitForSlots(t *testing.T) {
	t.Parallel()
	f := startServer(t)
	var panics atomic.Bool
	s, err := NewSemaphore(f.client(), 1, &SemaphoreOptions{Name: "slots", Timeout: 10 * time.Second, LimitFor: func(string) int {
		if panics.Load() {
			panic("the database is gone")
		}
		return 0
	}})
	require.NoError(t, err)
	permit, err := s.Acquire(t.Context(), "k", 1)
	require.NoError(t, err)
	errs := make(chan error, 3)
	for range cap(errs) {
		go func() {
			_, err := s.Acquire(context.Background(), "k", 1)
			errs <- err
		}()
	}
	require.Eventually(t, func() bool {
		stats, err := s.Snapshot(t.Context(), "k")
		return err == nil && stats.Waiting == cap(errs)
	}, time.Minute, time.Millisecond)
	panics.Store(true)
	for range cap(errs) {
		assert.EqualError(t, <-errs, "redislimit: SemaphoreOptions.LimitFor panicked with a string")
	}
	panics.Store(false)
	require.NoError(t, permit.Release(t.Context()))
	_, err = s.Acquire(t.Context(), "k", 1)
	assert.NoError(t, err, "no place is left in line")
}
