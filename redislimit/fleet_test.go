package redislimit

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/weir-go/ratelimit"
	"github.com/weir-go/ratelimit/internal/dev/redistest"
	"github.com/weir-go/ratelimit/ratelimittest"
)

// TestMain runs the tests, or one process of the fleet if the environment requests it.
func TestMain(m *testing.M) {
	if addr := os.Getenv("REDISLIMIT_TEST_FLEET"); addr != "" {
		worker(addr)
		return
	}
	os.Exit(m.Run())
}

// fleetCapacity is the cost that all processes of a fleet may spend under each limit.
const fleetCapacity = 500

// fleetLimits returns limits too slow to regain anything during a test.
func fleetLimits() []ratelimit.Limit {
	r := ratelimit.Per(fleetCapacity, 24*time.Hour)
	return []ratelimit.Limit{ratelimit.TokenBucket(ratelimit.PerDay(20), fleetCapacity), ratelimit.LeakyBucket(ratelimit.PerDay(20), fleetCapacity),
		ratelimit.FixedWindow(r), ratelimit.SlidingLog(r), ratelimit.SlidingCounter(r)}
}

// worker takes from one key of each limit, in several goroutines, until it is denied.
// Then it prints the allowed cost. Before each limit it waits for the other processes.
func worker(addr string) {
	client := redis.NewClient(&redis.Options{Addr: addr})
	for _, limit := range fleetLimits() {
		name := limit.Algorithm.String()
		l, err := New(client, limit, &Options{Name: name, Timeout: 30 * time.Second})
		if err != nil {
			panic(err)
		}
		ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
		for n := client.Incr(ctx, "ready for "+name).Val(); n < processes; n, err = client.Get(ctx, "ready for "+name).Int64() {
			if err != nil {
				panic(err)
			}
		}
		cancel()
		allowed := make(chan int)
		const goroutines = 4
		for range goroutines {
			go func() { allowed <- takeAll(l) }()
		}
		sum := 0
		for range goroutines {
			sum += <-allowed
		}
		fmt.Println(sum)
	}
}

func takeAll(l *Limiter) (sum int) {
	for cost := 3; cost > 0; {
		d, err := l.Take(context.Background(), "one key", cost)
		switch {
		case err != nil:
			panic(err)
		case d.Allowed:
			sum += cost
		default:
			cost--
		}
	}
	return sum
}

// processes is how many processes share a fleet's budgets.
const processes = 8

func TestEightProcessesShareOneBudgetExactly(t *testing.T) {
	s := startServer(t)
	self, err := os.Executable()
	require.NoError(t, err)
	var outputs [processes]strings.Builder
	var all []*exec.Cmd
	for i := range processes {
		c := exec.CommandContext(t.Context(), self)
		c.Env = append(os.Environ(), "REDISLIMIT_TEST_FLEET="+s.addr)
		c.Stdout, c.Stderr = &outputs[i], os.Stderr
		require.NoError(t, c.Start())
		all = append(all, c)
	}
	sums := make([]int, len(fleetLimits()))
	for i, c := range all {
		require.NoError(t, c.Wait())
		counts := strings.Fields(outputs[i].String())
		require.Len(t, counts, len(sums))
		for j := range sums {
			n, err := strconv.Atoi(counts[j])
			require.NoError(t, err)
			sums[j] += n
		}
	}
	for j, limit := range fleetLimits() {
		assert.Equal(t, fleetCapacity, sums[j], limit)
	}
}

func TestAClockBehindMintsNothingAfterAFailover(t *testing.T) {
	f := newFixture(t)
	for _, limit := range fiveLimits() {
		t.Run(limit.Name, func(t *testing.T) {
			behind := new(ratelimittest.Clock)
			before, after := f.limiter(limit, limit.Name), onClock(f.limiter(limit, limit.Name), behind)
			f.clock.Set(time.Hour)
			behind.Set(time.Hour - 10*time.Minute)
			require.True(t, before.Allow("k", 10))
			d, err := after.Take(t.Context(), "k", 1)
			require.NoError(t, err)
			assert.False(t, d.Allowed)
			assert.Zero(t, d.Remaining)
			assert.Greater(t, d.RetryAfter, 10*time.Minute, "the key waits until the clock has caught up")
			behind.Advance(d.RetryAfter - time.Microsecond)
			assert.False(t, after.Allow("k", 1))
			behind.Advance(time.Microsecond)
			assert.True(t, after.Allow("k", 1))
			behind.Set(0)
			require.NoError(t, after.Reset(t.Context(), "k"))
			assert.True(t, after.Allow("k", 10), "Reset ends the wait")
		})
	}
}

func TestASpentKeyIsSpentOnThePromotedReplica(t *testing.T) {
	t.Parallel()
	master, replica := startServer(t, "--repl-diskless-sync-delay", "0"), startServer(t)
	host, port, err := net.SplitHostPort(master.addr)
	require.NoError(t, err)
	require.NoError(t, replica.client().ReplicaOf(t.Context(), host, port).Err())
	before, after := defaultsFor(t, master), defaultsFor(t, replica)
	for _, limit := range fiveLimits() {
		require.NoError(t, before.SetLimit(limit))
		require.True(t, before.Allow(limit.Name, 10))
	}
	require.Eventually(t, func() bool {
		n, _ := replica.client().DBSize(t.Context()).Result()
		return n == 5
	}, 20*time.Second, 10*time.Millisecond)
	master.kill()
	require.NoError(t, replica.client().ReplicaOf(t.Context(), "NO", "ONE").Err())
	for _, limit := range fiveLimits() {
		require.NoError(t, after.SetLimit(limit))
		assert.False(t, after.Allow(limit.Name, 10), "%v", limit)
		ttl := replica.client().PTTL(t.Context(), after.space.key(limit.Name)).Val()
		assert.Positive(t, ttl)
	}
}

func defaultsFor(t *testing.T, s *server) *Limiter {
	l, err := New(s.client(), perMinute(10), &Options{Name: "same", Timeout: 20 * time.Second})
	require.NoError(t, err)
	return l
}

// startCluster starts a cluster of three masters and returns a client.
func startCluster(t *testing.T) *redis.ClusterClient {
	return clusterClient(t, redistest.StartCluster(t, 3, false))
}

// clusterClient returns a client of a cluster, closed with the test.
func clusterClient(t testing.TB, cluster *redistest.Cluster) *redis.ClusterClient {
	c := redis.NewClusterClient(&redis.ClusterOptions{Addrs: cluster.Addrs()})
	t.Cleanup(func() { c.Close() })
	return c
}

func TestCluster(t *testing.T) {
	t.Parallel()
	c := clusterFixture{startCluster(t)}
	t.Run("keys are spread, and each has its budget", c.testSpread)
	t.Run("limiters with equal keys share a slot", c.testEqualKeys)
	t.Run("keys in different slots are an error that says what to do", c.testDifferentSlots)
	t.Run("Slot puts keys together", c.testSlot)
}

type clusterFixture struct{ *redis.ClusterClient }

// layer makes a limiter a layer. Its key is always key, or the request if key is empty.
func (c clusterFixture) layer(t *testing.T, limit ratelimit.Limit, o Options, key string) ratelimit.Layer[string] {
	o.Timeout = 20 * time.Second
	l, err := New(c, limit, &o)
	require.NoError(t, err)
	if key == "" {
		return ratelimit.By(l, identity)
	}
	return ratelimit.By(l, func(string) (string, error) { return key, nil })
}

func (c clusterFixture) testSpread(t *testing.T) {
	l, err := New(c, perMinute(10), &Options{Name: "spread", Timeout: 20 * time.Second})
	require.NoError(t, err)
	for i := range 30 {
		key := fmt.Sprintf("user:{%d", i)
		assert.True(t, l.Allow(key, 10))
		assert.False(t, l.Allow(key, 5))
	}
	var used atomic.Int32 // the masters run at the same time
	require.NoError(t, c.ForEachMaster(t.Context(), func(ctx context.Context, n *redis.Client) error {
		if n.DBSize(ctx).Val() > 0 {
			used.Add(1)
		}
		return nil
	}))
	assert.EqualValues(t, 3, used.Load())
}

func (c clusterFixture) testEqualKeys(t *testing.T) {
	stack, err := ratelimit.All(c.layer(t, perMinute(10), Options{Name: "a"}, ""), c.layer(t, ratelimit.SlidingLog(ratelimit.PerMinute(5)), Options{Name: "b"}, ""))
	require.NoError(t, err)
	for _, key := range []string{"x", "", "}", "{", "{}", "a{b}c", "}{", "\x00", strings.Repeat("long", 100)} {
		r, err := stack.Reserve(t.Context(), key, 4, 0)
		require.NoError(t, err, "%q", key)
		assert.True(t, r.Allowed)
		require.NoError(t, r.Settle(1))
		d, err := stack.Take(t.Context(), key, 4)
		require.NoError(t, err)
		assert.True(t, d.Allowed, "%q", key)
	}
}

func (c clusterFixture) testDifferentSlots(t *testing.T) {
	stack, err := ratelimit.All(c.layer(t, perMinute(10), Options{Name: "c"}, ""), c.layer(t, perMinute(10), Options{Name: "d"}, "other"))
	require.NoError(t, err)
	_, err = stack.Take(t.Context(), "x", 1)
	assert.ErrorContains(t, err, "Slot")
	assert.ErrorContains(t, err, "package chain")
	assert.False(t, errors.Is(err, ratelimit.ErrUnavailable))
}

func (c clusterFixture) testSlot(t *testing.T) {
	tenant := func(string) string { return "tenant" }
	stack, err := ratelimit.All(c.layer(t, perMinute(10), Options{Name: "e", Slot: tenant}, ""), c.layer(t, perMinute(10), Options{Name: "f", Slot: tenant}, "other"))
	require.NoError(t, err)
	d, err := stack.Take(t.Context(), "x", 1)
	require.NoError(t, err)
	assert.True(t, d.Allowed)
	assert.Equal(t, 9, d.Remaining)
}
