package redislimit

import (
	"context"
	"fmt"
	"math"
	"os"
	"os/exec"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/weir-go/ratelimit"
	"github.com/weir-go/ratelimit/internal/dev/testsize"
)

// A denied call reads neither the bookings of a key nor its open reservations or waiting callers.
func TestADeniedTakeOfAKeyWithBookingsDoesNotReadThem(t *testing.T) {
	verdicts(t)
	f := newFixture(t)
	for _, limit := range bookable() {
		if limit.Algorithm == ratelimit.AlgorithmLeakyBucket {
			continue
		}
		l := f.limiter(limit, limit.Name)
		for l.Allow("k", 1) {
		}
		for n := range 200 {
			r, err := l.Reserve(t.Context(), "k", 1, math.MaxInt64)
			require.NoError(t, err)
			require.True(t, r.Allowed)
			d, err := l.Take(t.Context(), "k", 1)
			require.NoError(t, err)
			p, err := l.Peek(t.Context(), "k", 1)
			require.NoError(t, err)
			require.False(t, d.Allowed, "%s: %d bookings", limit.Name, n)
			require.Equal(t, d, p)
			if n%20 == 0 {
				f.clock.Advance(d.RetryAfter / 3)
			}
		}
	}
}

// A process is killed while its callers wait. Its bookings delay the callers of others for a second at most.
func TestAKilledProcessBarsNobody(t *testing.T) {
	if addr := os.Getenv("REDISLIMIT_WAITERS"); addr != "" {
		waitUntilKilled(t, addr)
		return
	}
	if testing.Short() {
		t.Skip("it starts a process")
	}
	testsize.Alone(t)
	s := startServer(t)
	limit := ratelimit.TokenBucket(ratelimit.PerSecond(20), 1)
	l := newOn(t, s.client(), limit, "killed", Options{})
	warm(t, l)
	child := exec.Command(os.Args[0], "-test.run=^TestAKilledProcessBarsNobody$")
	child.Env = append(os.Environ(), "REDISLIMIT_WAITERS="+s.addr)
	require.NoError(t, child.Start())
	for deadline := time.Now().Add(30 * time.Second); ; time.Sleep(10 * time.Millisecond) {
		d, err := l.Peek(t.Context(), "k", 1)
		require.NoError(t, err)
		if d.RetryAfter > 60*time.Millisecond { // the killed process has bookings
			break
		}
		require.True(t, time.Now().Before(deadline), "the other process does not wait")
	}
	require.NoError(t, child.Process.Kill())
	_ = child.Wait()
	d, err := l.Peek(t.Context(), "k", 1)
	require.NoError(t, err)
	assert.LessOrEqual(t, d.RetryAfter, time.Second+50*time.Millisecond)
}

// waitUntilKilled makes 600 callers wait.
func waitUntilKilled(t *testing.T, addr string) {
	s := &server{t: t, addr: addr}
	l := newOn(t, s.client(), ratelimit.TokenBucket(ratelimit.PerSecond(20), 1), "killed", Options{})
	var wg sync.WaitGroup
	for range 600 {
		wg.Go(func() { _ = l.Wait(context.Background(), "k", 1) })
	}
	wg.Wait()
}

// Callers of a stack wait in the line of the key that delays them. Each served caller
// takes a few calls, all are served, and an exhausted user delays nobody else.
func TestWaitingCallersOfAStackAreNoHerd(t *testing.T) {
	if testing.Short() {
		t.Skip("it takes seconds of real time")
	}
	testsize.Alone(t)
	s := startServer(t)
	const callers, rate = 600, 300
	var sent counting
	o := Options{}
	o.Hooks = append(o.Hooks, &sent)
	total := newOn(t, s.client(), ratelimit.TokenBucket(ratelimit.PerSecond(rate), 20), "total", o)
	user := newOn(t, s.client(), ratelimit.TokenBucket(ratelimit.PerHour(1000), 1000), "user", o)
	warm(t, total)
	stack, err := ratelimit.All(ratelimit.By(user, identity), ratelimit.Global[string](total))
	require.NoError(t, err)
	require.True(t, user.Allow("exhausted", 1000))
	ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
	defer cancel()
	exhausted, leave := context.WithCancel(t.Context())
	defer leave()
	var wg, barred sync.WaitGroup
	for range 50 {
		barred.Go(func() { assert.ErrorIs(t, stack.Wait(exhausted, "exhausted", 1), context.Canceled) })
	}
	var big atomic.Bool
	running := testsize.StartRunning()
	defer running.Stop()
	before := sent.calls.Load() + sent.pipelines.Load()
	begin := time.Now()
	for i := range callers {
		wg.Go(func() { assert.NoError(t, stack.Wait(ctx, fmt.Sprint("user", i%7), 1)) })
	}
	wg.Go(func() { big.Store(assert.NoError(t, stack.Wait(ctx, "large", 15))) })
	wg.Wait()
	took := time.Since(begin)
	calls := float64(sent.calls.Load()+sent.pipelines.Load()-before) / callers
	leave()
	barred.Wait()
	t.Logf("%.1f calls for each caller, %v, of which this process ran %v", calls, took, running.Now())
	assert.True(t, big.Load())
	assert.Less(t, calls, 6.0)
}
