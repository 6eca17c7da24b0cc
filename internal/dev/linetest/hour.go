package linetest

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
)

const (
	hourTokens  = 100_000 // a minute, and the burst
	hourLargest = 8000    // the largest estimate
	hourGrant   = 5000
	hourFleet   = 3
	hourCallers = 20 // of each process
)

// hour is calls of a language model: callers of several processes in line with estimates, of which they use a quarter in the mean.
type hour struct {
	*testing.T
	fleet []Process
	limit atomic.Pointer[ratelimit.Limit]

	mu   sync.Mutex
	used float64
}

func (h *hour) set(limit ratelimit.Limit) {
	h.limit.Store(&limit)
	for _, p := range h.fleet {
		require.NoError(h, p.SetLimit(limit))
	}
}

// calls makes one call after the other. A caller waits for 5 s to 2 minutes, and then comes again.
func (h *hour) calls(ctx context.Context, p Process, rng *rand.Rand) {
	for ctx.Err() == nil {
		estimate := 1000 + rng.IntN(hourLargest-999)
		share := rng.Float64()
		actual := int(float64(estimate) * share * share * share)
		if !h.call(ctx, p, estimate, actual, time.Duration(5+rng.IntN(120))*time.Second, time.Duration(rng.Int64N(int64(6*time.Second)))) {
			time.Sleep(time.Second)
		}
	}
}

// call makes one call, and reports whether it was served.
func (h *hour) call(ctx context.Context, p Process, estimate, actual int, patience, work time.Duration) bool {
	waiting, leave := context.WithTimeout(ctx, patience)
	defer leave()
	res, err := p.Reserve(waiting, "k", estimate, patience)
	if err != nil || res.Wait(waiting) != nil {
		return false
	}
	if h.limit.Load().Algorithm == ratelimit.AlgorithmTokenBucket {
		h.mu.Lock()
		h.used += float64(actual)
		h.mu.Unlock()
	}
	time.Sleep(work)
	assert.NoError(h, res.Settle(actual))
	return true
}

// operate raises, brakes, grants, blocks or lifts. It returns how much it grants.
func (h *hour) operate(rng *rand.Rand) (granted float64) {
	now := *h.limit.Load()
	bucket := func(tokens int) ratelimit.Limit {
		return ratelimit.TokenBucket(ratelimit.PerMinute(tokens), hourTokens)
	}
	switch do := rng.IntN(6); do {
	case 0:
		h.set(bucket(100_000 + rng.IntN(50_001)))
	case 1:
		h.set(bucket(50_000 + rng.IntN(50_001)))
	case 2:
		h.set(bucket(99_000 + rng.IntN(2001)))
	case 3:
		require.NoError(h, h.fleet[rng.IntN(hourFleet)].Adjust(h.Context(), "k", -hourGrant))
		return hourGrant
	default:
		h.set([]ratelimit.Limit{ratelimit.Blocked(), ratelimit.Unlimited()}[do-4])
		time.Sleep(time.Duration(1+rng.IntN(2000)) * time.Millisecond)
		h.set(now)
	}
	return 0
}

// Hour plays an hour of calls of three processes that reserve estimates, wait and settle, while an operator changes the limit each
// minute. The calls use at least 95 % of what the limits allow, and no more than the bound.
func (s Bubble) Hour(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		limit := ratelimit.TokenBucket(ratelimit.PerMinute(hourTokens), hourTokens)
		process, h := s.Open(t, time.Millisecond), &hour{T: t}
		h.limit.Store(&limit)
		ctx, end := context.WithCancel(t.Context())
		var wg sync.WaitGroup
		defer func() {
			end()
			wg.Wait()
			time.Sleep(time.Minute) // in which the last bookings are given back
		}()
		for i := range hourFleet {
			p := process(limit)
			h.fleet = append(h.fleet, p)
			for j := range hourCallers {
				wg.Go(func() { h.calls(ctx, p, rand.New(rand.NewPCG(uint64(i), uint64(j)))) })
			}
		}
		time.Sleep(time.Minute) // in which the burst is used up
		h.mu.Lock()
		h.used = 0
		h.mu.Unlock()
		rng, may := rand.New(rand.NewPCG(testsize.Seed(1), 68)), 0.0
		for range 60 {
			begin, rate := time.Now(), float64(h.limit.Load().Rate.Units)
			may += h.operate(rng)
			may -= rate * time.Since(begin).Minutes() // while another limit holds, nothing is counted
			time.Sleep(time.Until(begin.Add(time.Minute)))
			may += float64(h.limit.Load().Rate.Units)
		}
		h.mu.Lock()
		used := h.used
		h.mu.Unlock()
		t.Logf("%.1f %% used", 100*used/may)
		assert.GreaterOrEqual(t, used, .95*may)
		assert.LessOrEqual(t, used, may+hourTokens)
	})
}
