package lease_test

import (
	"context"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/weir-go/ratelimit"
	"github.com/weir-go/ratelimit/lease"
)

// A direct call sets a batch's units aside. The batch becomes due long before the call ends.
func TestADirectCallThatFailsHasSpentNothingWhateverBecomesOfItsBatch(t *testing.T) {
	calls := map[string]func(ctx context.Context, l *lease.Limiter[string]) error{
		"Wait": func(ctx context.Context, l *lease.Limiter[string]) error { return l.Wait(ctx, "k", 100) },
		"Take": func(ctx context.Context, l *lease.Limiter[string]) error {
			_, err := l.Take(ctx, "k", 100)
			return err
		},
		"Reserve": func(ctx context.Context, l *lease.Limiter[string]) error {
			_, err := l.Reserve(ctx, "k", 100, time.Hour)
			return err
		},
	}
	meanwhile := map[string]func(t *testing.T, l *lease.Limiter[string]){
		"ten times HoldFor pass": func(*testing.T, *lease.Limiter[string]) {},
		"Flush":                  func(t *testing.T, l *lease.Limiter[string]) { require.NoError(t, l.Flush(context.Background())) },
		"Flush, twice": func(t *testing.T, l *lease.Limiter[string]) {
			require.NoError(t, l.Flush(context.Background()))
			require.NoError(t, l.Flush(context.Background()))
		},
	}
	for name, call := range calls {
		for what, do := range meanwhile {
			for _, fails := range []bool{true, false} {
				t.Run(name+", "+what+map[bool]string{true: ", fails", false: ", succeeds"}[fails], func(t *testing.T) {
					bubble(t, func(t *testing.T) {
						s := newServer(t, plenty)
						l := leased(t, s, lease.Options[string]{MaxBatch: 40, Timeout: time.Minute})
						holds(t, l, 20)
						admitted := int(l.Stats().Decisions)
						s.fail(func(ctx context.Context) error {
							if _, ok := ctx.Deadline(); !ok {
								return nil // a settlement
							}
							time.Sleep(20 * time.Second)
							if fails {
								return errDown
							}
							return nil
						})
						ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
						defer cancel()
						var wg sync.WaitGroup
						wg.Go(func() { assert.Equal(t, fails, call(ctx, l) != nil) })
						time.Sleep(time.Second / 2)
						synctest.Wait()
						do(t, l)
						wg.Wait()
						if !fails {
							admitted += 100
						}
						require.Zero(t, l.Stats().UnitsLost)
						require.NoError(t, l.Flush(context.Background()))
						require.Equal(t, admitted, s.total())
						require.Zero(t, l.Stats().Held)
					})
				})
			}
		}
	}
}

// A direct call keeps a batch that reservations share. When the call
// ends, the reservations are given up, as they would be without the call.
func TestABatchThatADirectCallHasKeptIsForfeitedWhenItEnds(t *testing.T) {
	bubble(t, func(t *testing.T) {
		s := newServer(t, plenty)
		l := leased(t, s, lease.Options[string]{MaxBatch: 40, Timeout: time.Minute})
		holds(t, l, 20)
		admitted := int(l.Stats().Decisions)
		open := reserve(t, l, 3)
		s.fail(func(ctx context.Context) error {
			if _, ok := ctx.Deadline(); ok {
				time.Sleep(20 * time.Second)
				return errDown
			}
			return nil
		})
		var wg sync.WaitGroup
		wg.Go(func() {
			_, err := l.Take(context.Background(), "k", 100)
			assert.ErrorIs(t, err, ratelimit.ErrUnavailable)
		})
		time.Sleep(15 * time.Second)
		require.Zero(t, l.Stats().BatchesForfeited)
		wg.Wait()
		synctest.Wait()
		require.EqualValues(t, 1, l.Stats().BatchesForfeited)
		require.Equal(t, admitted+3, s.total())
		require.Zero(t, l.Stats().Held)
		require.NoError(t, open.Cancel())
		require.EqualValues(t, 3, l.Stats().UnitsLost)
	})
}
