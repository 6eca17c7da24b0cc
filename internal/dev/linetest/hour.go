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
	hourTokens  = 100_000 // the units of a minute, and of the burst
	hourLargest = 8000    // the largest estimate
	hourGrant   = 5000
	hourFleet   = 3
	hourCallers = 20 // callers in each process
)

// hour is an hour of calls to a language model. Callers in several processes
// reserve estimates, wait in line, and use a quarter of the estimate on average.
type hour struct {
	*testing.T
	fleet []Process
	limit atomic.Pointer[ratelimit.Limit]

	mu    sync.Mutex // guards the fields below
	used  float64
	gives float64            // how many units the calls under way will give back
	open  [hourFleet]float64 // for each process, the units charged and not used by its open reservations
	dead  [hourFleet]bool
}

func (h *hour) set(limit ratelimit.Limit) {
	h.limit.Store(&limit)
	for _, p := range h.fleet {
		require.NoError(h, p.SetLimit(limit))
	}
}

// calls makes calls one after the other. Each waits for at most 5 s to 2 minutes.
func (h *hour) calls(ctx context.Context, p int, rng *rand.Rand) {
	for ctx.Err() == nil {
		estimate := 1000 + rng.IntN(hourLargest-999)
		share := rng.Float64()
		actual := int(float64(estimate) * share * share * share)
		if !h.call(ctx, p, estimate, actual, time.Duration(5+rng.IntN(120))*time.Second, time.Duration(rng.Int64N(int64(6*time.Second)))) {
			time.Sleep(time.Second)
		}
	}
}

// charged adds units to a process's open reservations, unless the process is dead. It reports whether the process is alive.
func (h *hour) charged(p, units int) bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.dead[p] {
		return false
	}
	h.open[p] += float64(units)
	return true
}

// kill kills a process with its callers. It returns the units
// charged by their reservations: they are never given back.
func (h *hour) kill(p int, kill func(Process)) float64 {
	h.mu.Lock()
	defer h.mu.Unlock()
	kill(h.fleet[p])
	h.dead[p] = true
	return h.open[p]
}

// call makes one call, and reports whether it was served.
func (h *hour) call(ctx context.Context, p, estimate, actual int, patience, work time.Duration) bool {
	waiting, leave := context.WithTimeout(ctx, patience)
	defer leave()
	res, err := h.fleet[p].Reserve(waiting, "k", estimate, patience)
	if err != nil || !res.Allowed {
		return false
	}
	h.charged(p, estimate)
	if res.Wait(waiting) != nil {
		h.charged(p, -estimate)
		return false
	}
	if !h.charged(p, -actual) {
		return false
	}
	if h.limit.Load().Algorithm == ratelimit.AlgorithmTokenBucket {
		h.add(actual, estimate-actual)
		defer h.add(0, actual-estimate)
	}
	time.Sleep(work)
	if h.charged(p, actual-estimate) {
		assert.NoError(h, res.Settle(actual))
	}
	return true
}

func (h *hour) add(used, gives int) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.used += float64(used)
	h.gives += float64(gives)
}

// reset resets the key. It returns the freed units, except those that calls under way would have given back anyway.
func (h *hour) reset(p Process) float64 {
	d, err := p.Peek(h.Context(), "k", 1)
	require.NoError(h, err)
	h.mu.Lock()
	free := max(0, float64(hourTokens-d.Remaining)-h.gives)
	h.mu.Unlock()
	require.NoError(h, p.Reset(h.Context(), "k"))
	return free
}

// alive returns a random living process.
func (h *hour) alive(rng *rand.Rand) Process {
	i := rng.IntN(hourFleet)
	for !h.charged(i, 0) {
		i = (i + 1) % hourFleet
	}
	return h.fleet[i]
}

// operate raises or lowers the limit, grants, resets, blocks or unblocks. It returns how many units this frees.
func (h *hour) operate(rng *rand.Rand) (free float64) {
	now := *h.limit.Load()
	bucket := func(tokens int) ratelimit.Limit {
		return ratelimit.TokenBucket(ratelimit.PerMinute(tokens), hourTokens)
	}
	switch do := rng.IntN(7); do {
	case 0:
		h.set(bucket(100_000 + rng.IntN(50_001)))
	case 1:
		h.set(bucket(50_000 + rng.IntN(50_001)))
	case 2:
		h.set(bucket(99_000 + rng.IntN(2001)))
	case 3:
		require.NoError(h, h.alive(rng).Adjust(h.Context(), "k", -hourGrant))
		return hourGrant
	case 4:
		return h.reset(h.alive(rng))
	default:
		h.set([]ratelimit.Limit{ratelimit.Blocked(), ratelimit.Unlimited()}[do-5])
		time.Sleep(time.Duration(1+rng.IntN(2000)) * time.Millisecond)
		h.set(now)
	}
	return 0
}

// Hour plays an hour, or some minutes. Calls of three processes reserve estimates, wait and settle. Each minute an operator
// changes the limit or the budget. The calls must use at least a given part of the limits' units, and no more than the bound.
func (s Bubble) Hour(t *testing.T, minutes int, least float64) { s.hour(t, minutes, least, nil) }

// Killed is Hour with one process killed after a third of the time. From then on its
// calls to the store fail. The units charged by its open reservations count as used.
func (s Bubble) Killed(t *testing.T, minutes int, least float64, kill func(Process)) {
	s.hour(t, minutes, least, kill)
}

func (s Bubble) hour(t *testing.T, minutes int, least float64, kill func(Process)) {
	synctest.Test(t, func(t *testing.T) {
		limit := ratelimit.TokenBucket(ratelimit.PerMinute(hourTokens), hourTokens)
		process, h := s.Open(t, time.Millisecond), &hour{T: t}
		h.limit.Store(&limit)
		ctx, end := context.WithCancel(t.Context())
		var wg sync.WaitGroup
		defer func() {
			end()
			wg.Wait()
			time.Sleep(time.Minute) // until the last bookings were given back
		}()
		lives, dies := context.WithCancel(ctx) // the context of the first process
		defer dies()
		for range hourFleet {
			h.fleet = append(h.fleet, process(limit))
		}
		for i := range hourFleet {
			ctx := ctx
			if i == 0 {
				ctx = lives
			}
			for j := range hourCallers {
				wg.Go(func() { h.calls(ctx, i, rand.New(rand.NewPCG(uint64(i), uint64(j)))) })
			}
		}
		time.Sleep(time.Minute) // until the burst was used up
		h.mu.Lock()
		h.used = 0
		h.mu.Unlock()
		rng, may := rand.New(rand.NewPCG(testsize.Seed(1), 68)), 0.0
		for minute := range minutes {
			if kill != nil && minute == minutes/3 {
				may -= h.kill(0, kill)
				dies()
			}
			begin, rate := time.Now(), float64(h.limit.Load().Rate.Units)
			may += h.operate(rng)
			may -= rate * time.Since(begin).Minutes() // nothing counts while another limit holds
			time.Sleep(time.Until(begin.Add(time.Minute)))
			may += float64(h.limit.Load().Rate.Units)
		}
		h.mu.Lock()
		used := h.used
		h.mu.Unlock()
		t.Logf("%.1f %% used", 100*used/may)
		assert.GreaterOrEqual(t, used, least*may)
		assert.LessOrEqual(t, used, may+hourTokens)
	})
}
