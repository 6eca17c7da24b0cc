package ratelimit_test

import (
	"context"
	"math/rand/v2"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/weir-go/ratelimit"
	"github.com/weir-go/ratelimit/internal/dev/testsize"
)

// An hour of calls of a language model: callers in line with estimates of 1,000 to 8,000 tokens, of which they use a quarter in the
// mean, and an operator who grants or charges tokens, or looks up limits again, each minute. Some callers leave.
func TestAnHourOfCallsInLineUsesTheLimitWhileTokensAreGrantedAndCharged(t *testing.T) {
	testsize.Extra(t)
	minutes, crowds := 60, []int{60, 200}
	if testsize.Race { // which looks for data races in the same steps
		minutes, crowds = 5, crowds[:1]
	}
	for _, callers := range crowds {
		synctest.Test(t, func(t *testing.T) {
			rnd := rand.New(rand.NewPCG(68, uint64(callers)))
			l := ratelimit.Must(ratelimit.New[string](ratelimit.TokenBucket(ratelimit.PerMinute(100_000), 100_000), nil))
			ctx, end := context.WithCancel(t.Context())
			var (
				mu      sync.Mutex
				used    float64
				allowed float64 // tokens that the limit has regained
				wg      sync.WaitGroup
			)
			for i := range callers {
				random := rand.New(rand.NewPCG(68, uint64(i)))
				wg.Go(func() {
					for ctx.Err() == nil {
						estimate := 1000 + random.IntN(7001)
						patience, leave := context.WithTimeout(ctx, time.Duration(5+random.IntN(120))*time.Second)
						r, err := l.Reserve(patience, "k", estimate, 10*time.Minute)
						if err == nil && r.Allowed {
							err = r.Wait(patience)
						}
						leave()
						if err != nil || !r.Allowed {
							time.Sleep(time.Second)
							continue
						}
						share := random.Float64()
						actual := int(float64(estimate) * share * share * share)
						mu.Lock()
						used += float64(actual)
						mu.Unlock()
						time.Sleep(time.Duration(random.Int64N(int64(6 * time.Second))))
						_ = r.Settle(actual)
					}
				})
			}
			const rate = 100_000
			for minute := range minutes {
				time.Sleep(time.Minute)
				if minute == 0 { // in which the burst is used up
					mu.Lock()
					used = 0
					mu.Unlock()
				} else {
					allowed += rate
				}
				switch rnd.IntN(3) {
				case 1:
					require.NoError(t, l.Adjust(ctx, "k", -5000))
					allowed += 5000
				case 2:
					require.NoError(t, l.Adjust(ctx, "k", 5000))
					allowed -= 5000
				default:
					l.Refresh("k")
				}
			}
			end()
			wg.Wait()
			t.Logf("%d callers: %.1f %% used", callers, 100*used/allowed)
			require.GreaterOrEqual(t, used, .95*allowed)
			require.LessOrEqual(t, used, allowed+100_000)
		})
	}
}
