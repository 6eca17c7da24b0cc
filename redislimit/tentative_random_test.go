package redislimit

import (
	"cmp"
	"context"
	"fmt"
	"math/rand/v2"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/weir-go/ratelimit"
	"github.com/weir-go/ratelimit/internal/dev/testsize"
)

// Processes stand still for up to five seconds and return, and callers hang
// up. No more is served than the limit allows, and no booking is left behind.
func TestNoMoreIsServedThoughProcessesStandStillAndReturn(t *testing.T) {
	s := startServer(t)
	for seed := range testsize.Of[uint64](6, 300) {
		rng := rand.New(rand.NewPCG(testsize.Seed(seed), 68))
		limit := []ratelimit.Limit{
			ratelimit.TokenBucket(unitInTenSeconds, 1),
			ratelimit.TokenBucket(ratelimit.Rate{Units: 1, Per: 3 * time.Second}, 3),
			ratelimit.SlidingLog(ratelimit.Rate{Units: 3, Per: 20 * time.Second}),
			ratelimit.FixedWindow(ratelimit.Rate{Units: 3, Per: 20 * time.Second}),
			ratelimit.SlidingCounter(ratelimit.Rate{Units: 3, Per: 20 * time.Second}),
			ratelimit.LeakyBucket(ratelimit.Rate{Units: 1, Per: 3 * time.Second}, 10),
		}[rng.IntN(6)]
		synctest.Test(t, func(t *testing.T) {
			open, key, begin := onBubble(t, s.addr, limit), fmt.Sprint("random", seed), time.Now()
			var fleet []*Limiter
			var stands []standing
			for range 3 {
				h := standing{new(atomic.Pointer[time.Time])}
				stands = append(stands, h)
				fleet = append(fleet, open(h))
			}
			check := open(slowly(0))
			var mu sync.Mutex
			var served []time.Duration
			type call struct {
				at   time.Duration
				cost int
			}
			var calls []call
			serve := func(cost int) {
				mu.Lock()
				defer mu.Unlock()
				calls = append(calls, call{time.Since(begin), cost})
				for range cost {
					served = append(served, time.Since(begin))
				}
			}
			var all sync.WaitGroup
			ctx, end := context.WithCancel(t.Context())
			defer end()
			for range 40 {
				i := rng.IntN(3)
				cost := 1 + rng.IntN(min(2, limit.Capacity()))
				switch rng.IntN(10) {
				case 0, 1, 2, 3:
					patience := time.Duration(rng.IntN(60_000)) * time.Millisecond
					all.Go(func() {
						ctx, leave := context.WithCancel(ctx)
						defer leave()
						defer time.AfterFunc(patience, leave).Stop()
						if fleet[i].Wait(ctx, key, cost) == nil {
							serve(cost)
						}
					})
				case 4, 5, 6:
					if d, err := fleet[i].Take(ctx, key, 1); err == nil && d.Allowed {
						all.Go(func() {
							time.Sleep(d.Delay) // in a queue
							serve(1)
						})
					}
				default:
					until := time.Now().Add(time.Duration(rng.IntN(5000)) * time.Millisecond)
					stands[i].until.Store(&until)
				}
				time.Sleep(time.Duration(rng.IntN(4000)) * time.Millisecond)
			}
			all.Wait()
			time.Sleep(10 * time.Second)
			n, err := check.store.user.Exists(t.Context(), recordsKey(check.space.key(key)), check.space.begin+"%{beats}").Result()
			require.NoError(t, err)
			require.Zero(t, n, "seed %d", seed)
			mu.Lock()
			defer mu.Unlock()
			per, burst := limit.Rate.Per/time.Duration(limit.Rate.Units), limit.Capacity()
			if limit.Algorithm == ratelimit.AlgorithmTokenBucket {
				for i := range served {
					require.LessOrEqual(t, i+1, burst+int((served[i]+10*time.Millisecond)/per), "seed %d: %v", seed, served)
					for j := i; j < len(served); j++ {
						span := served[j] - served[i] + 5100*time.Millisecond // processes that stood still record their calls late
						require.LessOrEqual(t, j-i+1, burst+int(span/per)+1, "seed %d: %v", seed, served)
					}
				}
				return
			}
			if limit.Algorithm == ratelimit.AlgorithmLeakyBucket {
				slices.SortFunc(calls, func(a, b call) int { return cmp.Compare(a.at, b.at) })
				for i := range calls { // a call that took a leaver's units may have had one of its two units before
					sum := -1
					for j := i + 1; j < len(calls); j++ {
						sum += calls[j-1].cost
						require.GreaterOrEqual(t, calls[j].at-calls[i].at+10*time.Millisecond, time.Duration(sum)*per, "seed %d: %v", seed, calls)
					}
				}
				return
			}
			windows := int((time.Since(begin))/limit.Rate.Per) + 1
			require.LessOrEqual(t, len(served), (windows+1)*limit.Capacity(), "seed %d", seed)
		})
	}
}
