package lease_test

import (
	"context"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/weir-go/ratelimit"
	"github.com/weir-go/ratelimit/internal/dev/testsize"
	"github.com/weir-go/ratelimit/lease"
)

// The remote limiter takes many times HoldFor to answer, and then may fail. Meanwhile
// batches are flushed, forfeited and reset. The charges equal the admissions plus the
// units counted as lost. Only reservations lose units, and failed calls lose none.
func TestWithARemoteLimiterThatIsSlowerThanHoldForAllIsAccountedFor(t *testing.T) {
	var failed, waited, lost uint64
	for seed := range uint64(runs()) {
		bubble(t, func(t *testing.T) {
			r := rand.New(rand.NewPCG(testsize.Seed(seed), 43))
			var mu sync.Mutex
			draw := func(n int) int {
				mu.Lock()
				defer mu.Unlock()
				return r.IntN(n)
			}
			limit := plenty
			if r.IntN(2) == 0 {
				limit = ratelimit.TokenBucket(ratelimit.PerDay(1), 100+r.IntN(3000))
			}
			s := newServer(t, limit)
			holdFor := time.Duration(1+r.IntN(50)) * time.Millisecond
			l := leased(t, s, lease.Options[string]{MaxBatch: 1 + r.IntN(60), HoldFor: holdFor, Timeout: time.Duration(20+r.IntN(2000)) * time.Millisecond})
			reserves := r.IntN(2) == 0
			slow, bad := r.IntN(100), r.IntN(50)
			s.fail(func(ctx context.Context) error {
				if ctx == context.Background() {
					return nil // a settlement
				}
				if draw(100) < slow {
					time.Sleep(time.Duration(draw(int(30 * holdFor))))
				}
				if draw(100) < bad {
					return errDown
				}
				return ctx.Err()
			})
			var admitted, failures atomic.Int64
			reported := func(cost int, allowed bool, err error) {
				if err != nil {
					failures.Add(1)
				}
				if allowed && err == nil {
					admitted.Add(int64(cost))
				}
			}
			var callers sync.WaitGroup
			for range 1 + r.IntN(8) {
				callers.Go(func() {
					for range 40 {
						ctx, cancel := context.Background(), context.CancelFunc(func() {})
						if draw(2) == 0 {
							ctx, cancel = context.WithTimeout(ctx, time.Duration(draw(int(20*holdFor))))
						}
						cost := 1 + draw(1+draw(80))
						switch draw(6) {
						case 0:
							reported(cost, l.Allow("k", cost), nil)
						case 1:
							d, err := l.Take(ctx, "k", cost)
							reported(cost, d.Allowed, err)
						case 2, 3:
							if !reserves {
								break
							}
							res, err := l.Reserve(ctx, "k", cost, time.Duration(draw(2))*time.Second)
							if err != nil || !res.Allowed {
								reported(cost, false, err)
								break
							}
							time.Sleep(time.Duration(draw(int(20 * holdFor))))
							actual := draw(cost + 1)
							assert.NoError(t, res.Settle(actual))
							reported(actual, true, nil)
						case 4:
							bounded, end := context.WithTimeout(ctx, time.Duration(draw(int(40*holdFor))))
							err := l.Wait(bounded, "k", cost)
							end()
							reported(cost, err == nil, err)
						case 5:
							if draw(4) == 0 {
								_ = l.Flush(ctx)
							}
						}
						cancel()
						time.Sleep(time.Duration(draw(int(2 * holdFor))))
					}
				})
			}
			callers.Wait()
			time.Sleep(time.Minute)
			synctest.Wait()
			require.NoError(t, l.Flush(context.Background()))
			st := l.Stats()
			require.Equal(t, int(admitted.Load())+int(st.UnitsLost), s.total(), "seed %d", seed)
			if !reserves {
				require.Zero(t, st.UnitsLost, "seed %d", seed)
			}
			require.Zero(t, st.Held, "seed %d", seed)
			failed += uint64(failures.Load())
			lost += st.UnitsLost
			waited += st.BatchesForfeited
		})
	}
	require.NotZero(t, failed)
	require.NotZero(t, lost)
	require.NotZero(t, waited)
}
