// Package crowd plays crowds of callers. They wait for a limiter in real time, and some leave before their turn.
package crowd

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"

	"github.com/weir-go/ratelimit"
	"github.com/weir-go/ratelimit/internal/dev/testsize"
)

// Crowd is a crowd of callers, arriving at random instants (Poisson). Each uses one of several processes.
type Crowd struct {
	PerSecond float64       // how many callers arrive per second
	Patience  time.Duration // how long a caller waits before it cancels its context
	Warm      time.Duration // the time before callers count in Result.PerSecond
	For       time.Duration // how long callers count; then all waiting callers leave at once
	Seed      uint64
}

// Result contains a crowd's counts.
type Result struct {
	PerSecond float64       // how many callers were served per second after the warm-up
	Callers   int           // all callers
	Served    int           // served callers
	Unsure    int           // callers with an error after which a booking may have stayed
	Took      time.Duration // the time until the last caller returned
	Steady    bool          // whether this process ran nearly all the time after the warm-up, so that PerSecond is meaningful
	Errors    []error       // errors, except that of a caller's own context
}

// Play plays the crowd, and returns 100 ms after the last caller has left. Each element of processes is one process's Wait.
func (c Crowd) Play(processes ...func(context.Context) error) Result {
	rng := rand.New(rand.NewPCG(c.Seed, 1))
	start := time.Now()
	begin := start.Add(c.Warm)
	end := begin.Add(c.For)
	all, leave := context.WithCancel(context.Background())
	defer leave()
	var counted, served atomic.Int64
	var r Result
	var mu sync.Mutex // guards r.Unsure and r.Errors
	var wg sync.WaitGroup
	one := func(wait func(context.Context) error) {
		ctx, cancel := context.WithCancel(all)
		defer cancel()
		defer time.AfterFunc(c.Patience, cancel).Stop()
		switch err := wait(ctx); {
		case err == nil:
			served.Add(1)
			if now := time.Now(); !now.Before(begin) && now.Before(end) {
				counted.Add(1)
			}
		case isOwnEnd(err):
		default:
			mu.Lock()
			defer mu.Unlock()
			r.Unsure++
			if !errors.Is(err, context.Canceled) {
				r.Errors = append(r.Errors, err)
			}
		}
	}
	var running *testsize.Running
	for at := start; at.Before(end); at = at.Add(time.Duration(rng.ExpFloat64() / c.PerSecond * float64(time.Second))) {
		time.Sleep(time.Until(at))
		if running == nil && !at.Before(begin) {
			running = testsize.StartRunning()
			defer running.Stop()
		}
		wait := processes[rng.IntN(len(processes))]
		wg.Go(func() { one(wait) })
		r.Callers++
	}
	time.Sleep(time.Until(end))
	r.Steady = running != nil && running.Now() > c.For*95/100 && time.Since(end) < c.For/50
	leave()
	wg.Wait()
	r.Took = time.Since(start)
	time.Sleep(100 * time.Millisecond) // callers return before their vacant slots are given back
	r.PerSecond = float64(counted.Load()) / c.For.Seconds()
	r.Served = int(served.Load())
	return r
}

// Twice returns a crowd that arrives at twice the given rate. It
// lasts a few seconds of real time. At full size its patience is 2 s.
func Twice(rate int) Crowd {
	c := Crowd{PerSecond: 2 * float64(rate), Patience: 500 * time.Millisecond, Warm: 1500 * time.Millisecond, For: 2500 * time.Millisecond, Seed: testsize.Seed(1)}
	if testsize.Long() {
		c.Patience, c.Warm, c.For = 2*time.Second, 5*time.Second, 10*time.Second
	}
	return c
}

// Check fails the test if a crowd of Twice was not served as under a token
// bucket. RetryAfter is the time until one unit is free after the crowd has left.
func (r Result) Check(t testing.TB, name string, limit ratelimit.Limit, retryAfter time.Duration, processes int) {
	t.Helper()
	assert.Empty(t, r.Errors, name)
	rate := float64(limit.Rate.Units) / limit.Rate.Per.Seconds()
	assert.LessOrEqual(t, float64(r.Served), 1.02*rate*r.Took.Seconds()+float64(limit.Capacity()), "%s: the limit holds", name)
	if r.Unsure == 0 { // otherwise some callers' bookings may stay
		// The last callers would have waited for about the whole
		// patience. Only the spending of just served callers may remain.
		assert.Less(t, retryAfter, 50*time.Millisecond, "%s: nothing stays booked", name)
	}
	least := 0.85
	if processes > 1 {
		least = 0.8
	}
	if r.Steady {
		assert.GreaterOrEqual(t, r.PerSecond, least*rate, name)
	}
}

func (r Result) String() string {
	return fmt.Sprintf("%.1f per second, %d of %d callers served, %d unsure, steady %v", r.PerSecond, r.Served, r.Callers, r.Unsure, r.Steady)
}

// isOwnEnd reports whether an error is a context's cancellation alone, not joined with other errors.
func isOwnEnd(err error) bool {
	for err != nil && err != context.Canceled {
		err = errors.Unwrap(err) // nil for joined errors
	}
	return err != nil
}
