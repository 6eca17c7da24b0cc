package redislimit

import (
	"bufio"
	"context"
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/weir-go/ratelimit"
	"github.com/weir-go/ratelimit/internal/dev/testsize"
)

const (
	killedProcesses = 4
	killedCallers   = 20 // callers in each process
)

// killedLimit is the fleet's limit: about 60 calls a second, at a cost of up to 8 each.
var killedLimit = ratelimit.TokenBucket(ratelimit.PerSecond(200), 20)

// turnOf is a served call of a process in the fleet.
type turnOf struct{ process, caller, cost int }

// Processes of a fleet are killed while their callers wait. Other processes' callers are
// not blocked, and all are served again and again. The real costs stay within the bound.
func TestAFleetServesItsWaitersThoughProcessesAreKilled(t *testing.T) {
	if addr := os.Getenv("REDISLIMIT_KILLED"); addr != "" {
		waitInFleet(addr)
		return
	}
	if testing.Short() {
		t.Skip("it starts processes")
	}
	testsize.Alone(t)
	s := startServer(t)
	probe := newOn(t, s.client(), killedLimit, "killed", Options{})
	warm(t, probe)
	begin := time.Now()
	events := make(chan turnOf, 1<<12)
	var all []*exec.Cmd
	for i := range killedProcesses {
		c := exec.CommandContext(t.Context(), os.Args[0], "-test.run=^TestAFleetServesItsWaitersThoughProcessesAreKilled$")
		c.Env = append(os.Environ(), "REDISLIMIT_KILLED="+s.addr)
		out, err := c.StdoutPipe()
		require.NoError(t, err)
		require.NoError(t, c.Start())
		go func() {
			for lines := bufio.NewScanner(out); lines.Scan(); {
				e := turnOf{process: i}
				if n, _ := fmt.Sscanf(lines.Text(), "served %d %d", &e.caller, &e.cost); n == 2 {
					events <- e
				}
			}
		}()
		all = append(all, c)
	}
	used := 0
	// everyone waits until each caller has been served the given number of times, in the processes from the given number on.
	everyone := func(from, times int) {
		t.Helper()
		counts, missing := map[turnOf]int{}, (killedProcesses-from)*killedCallers
		for late := time.After(time.Minute); missing > 0; {
			select {
			case e := <-events:
				used += e.cost
				e.cost = 0
				if counts[e]++; e.process >= from && counts[e] == times {
					missing--
				}
			case <-late:
				require.Failf(t, "callers starve", "%d of those behind process %d", missing, from)
			}
		}
	}
	everyone(0, 1)
	for killed := range killedProcesses - 1 {
		require.NoError(t, all[killed].Process.Kill()) // as kill -9 does
		_ = all[killed].Wait()
		d, err := probe.Peek(t.Context(), "k", 1)
		require.NoError(t, err)
		assert.LessOrEqual(t, d.RetryAfter, time.Second+50*time.Millisecond, "%d processes are dead", killed+1)
		everyone(killed+1, 2)
	}
	took := time.Since(begin)
	require.NoError(t, all[killedProcesses-1].Process.Kill())
	most := float64(killedLimit.Burst) + took.Seconds()*float64(killedLimit.Rate.Units)
	t.Logf("%d units, %.1f %% of the bound, in %v", used, 100*float64(used)/most, took)
	assert.LessOrEqual(t, float64(used), most)
}

// waitInFleet is one process of the fleet. Each caller waits with an estimate, gives back the unused part, and comes again.
func waitInFleet(addr string) {
	l, err := New(redis.NewClient(&redis.Options{Addr: addr}), killedLimit.Named("killed"), &Options{Name: "killed", Timeout: 20 * time.Second})
	if err != nil {
		panic(err)
	}
	ctx := context.Background()
	for caller := range killedCallers {
		go func() {
			for {
				estimate := 1 + rand.IntN(8)
				if err := l.Wait(ctx, "k", estimate); err != nil {
					panic(err)
				}
				cost := 1 + rand.IntN(estimate)
				if err := l.Adjust(ctx, "k", cost-estimate); err != nil {
					panic(err)
				}
				fmt.Printf("served %d %d\n", caller, cost)
			}
		}()
	}
	select {}
}

// If a process is killed while its caller waits for an instant far ahead, it bars
// the others for at most a second, whether they wait behind it or do not wait.
func TestAKilledProcessBarsNobodyLongerThanASecond(t *testing.T) {
	limit := ratelimit.TokenBucket(ratelimit.PerHour(3600), 1000).Named("slow")
	if addr := os.Getenv("REDISLIMIT_KILLED_FAR"); addr != "" {
		l, err := New(redis.NewClient(&redis.Options{Addr: addr}), limit, &Options{Timeout: 20 * time.Second})
		if err != nil {
			panic(err)
		}
		panic(l.Wait(context.Background(), "k", 100))
	}
	if testing.Short() {
		t.Skip("it starts processes")
	}
	testsize.Alone(t)
	s := startServer(t)
	l := newOn(t, s.client(), limit, "slow", Options{})
	ok, err := l.Take(t.Context(), "k", 1000)
	require.NoError(t, err)
	require.True(t, ok.Allowed)
	begin := time.Now()
	c := exec.CommandContext(t.Context(), os.Args[0], "-test.run=^TestAKilledProcessBarsNobodyLongerThanASecond$")
	c.Env = append(os.Environ(), "REDISLIMIT_KILLED_FAR="+s.addr)
	require.NoError(t, c.Start())
	retry := func() time.Duration {
		d, err := l.Peek(t.Context(), "k", 1)
		require.NoError(t, err)
		return d.RetryAfter
	}
	require.Eventually(t, func() bool { return retry() > time.Minute }, 20*time.Second, 5*time.Millisecond, "it has booked")
	served := make(chan error, 1)
	go func() { served <- l.Wait(t.Context(), "k", 8) }() // behind the other one
	require.Eventually(t, func() bool { return retry() > 104*time.Second }, 20*time.Second, 5*time.Millisecond, "so has this one")
	time.Sleep(2 * time.Second) // both stay
	require.Greater(t, retry(), 100*time.Second)
	killed := time.Now()
	require.NoError(t, c.Process.Kill()) // as kill -9 does
	_ = c.Wait()
	require.NoError(t, <-served)
	t.Logf("served %v after the bucket was empty, %v after the other process was killed", time.Since(begin), time.Since(killed))
	assert.Less(t, time.Since(killed), max(8*time.Second-killed.Sub(begin), 0)+1500*time.Millisecond)
	d, err := l.Take(t.Context(), "k", 1)
	require.NoError(t, err)
	assert.LessOrEqual(t, d.RetryAfter, 1100*time.Millisecond)
}

// In a leaky bucket, killed processes' places bar nobody longer than a second either: the callers behind them move up.
func TestKilledProcessesLeaveNoPlacesInAQueue(t *testing.T) {
	limit := ratelimit.LeakyBucket(ratelimit.PerSecond(1), 1000).Named("queue")
	if addr := os.Getenv("REDISLIMIT_KILLED_QUEUE"); addr != "" {
		l, err := New(redis.NewClient(&redis.Options{Addr: addr}), limit, &Options{Timeout: 20 * time.Second})
		if err != nil {
			panic(err)
		}
		for range 16 {
			go func() { panic(l.Wait(context.Background(), "k", 50)) }()
		}
		select {}
	}
	if testing.Short() {
		t.Skip("it starts processes")
	}
	testsize.Alone(t)
	s := startServer(t)
	l := newOn(t, s.client(), limit, "queue", Options{})
	ok, err := l.Take(t.Context(), "k", 8)
	require.NoError(t, err)
	require.True(t, ok.Allowed)
	begin := time.Now()
	next := func() time.Duration {
		d, err := l.Peek(t.Context(), "k", 1)
		require.NoError(t, err)
		return d.Delay
	}
	var killed []*exec.Cmd
	for range 2 {
		c := exec.CommandContext(t.Context(), os.Args[0], "-test.run=^TestKilledProcessesLeaveNoPlacesInAQueue$")
		c.Env = append(os.Environ(), "REDISLIMIT_KILLED_QUEUE="+s.addr)
		require.NoError(t, c.Start())
		killed = append(killed, c)
	}
	require.Eventually(t, func() bool { return next() > 100*time.Second }, 5*time.Second, 5*time.Millisecond, "both have places")
	served := make(chan error, 1)
	go func() { served <- l.Wait(t.Context(), "k", 4) }() // behind them
	require.Eventually(t, func() bool { return next() > 104*time.Second }, 5*time.Second, 5*time.Millisecond, "so has this one")
	for _, c := range killed {
		require.NoError(t, c.Process.Kill()) // as kill -9 does
		_ = c.Wait()
	}
	at := time.Now()
	require.Eventually(t, func() bool { return begin.Add(13 * time.Second).After(time.Now().Add(next())) }, 2*time.Second, 5*time.Millisecond)
	t.Logf("the place behind them is back %v after they were killed", time.Since(at))
	require.NoError(t, <-served)
	assert.WithinDuration(t, begin.Add(8*time.Second), time.Now(), time.Second)
}
