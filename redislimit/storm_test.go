package redislimit

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"math"
	"math/rand/v2"
	"runtime"
	"strconv"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/weir-go/ratelimit"
	"github.com/weir-go/ratelimit/internal/dev/crowd"
	"github.com/weir-go/ratelimit/internal/dev/redistest"
	"github.com/weir-go/ratelimit/internal/dev/testsize"
	"github.com/weir-go/ratelimit/internal/outcome"
)

// ledger bounds a key's spending by its callers' results: it lies between least and most. It is a multiple of unit,
// and each key has its own unit, so a charge for another key shows. Unanswered calls may still charge up to late.
type ledger struct {
	unit              int
	least, most, late int
}

// stormed calls all methods of limiters and stacks. The servers are paused,
// cut off, full or read-only, forget their scripts, or move a cluster's slots.
type stormed struct {
	t       *testing.T
	timeout time.Duration
	running *testsize.Running
	a, b    *Limiter
	stack   *ratelimit.Layered[string] // a stack of both limiters
	leased  *ratelimit.Layered[string] // a stack of a, and of c with leases
	c       *Limiter

	mu                          sync.Mutex
	books                       map[string]*ledger // both limiters' ledgers
	losing                      bool               // the servers are losing all their data right now
	lost                        time.Time          // when they last lost it
	longest                     time.Duration
	calls, unavailable, perhaps int
}

var stormCallers = flag.Int("callers", 64, "goroutines that call at once in a storm")

var stormLimit = ratelimit.FixedWindow(ratelimit.PerDay(math.MaxInt32)) // under this limit nothing comes back

func newStormed(t *testing.T, client redis.UniversalClient, name string, timeout time.Duration, batchSize int) *stormed {
	limiter := func(which string) *Limiter {
		l, err := New(client, stormLimit, &Options{Name: name + which, Timeout: timeout, Batch: batchSize})
		require.NoError(t, err)
		return l
	}
	s := &stormed{t: t, timeout: timeout, running: testsize.StartRunning(), a: limiter("a"), b: limiter("b"), c: limiter("c"), books: map[string]*ledger{}}
	var err error
	s.stack, err = ratelimit.All(ratelimit.By(s.a, identity), ratelimit.By(s.b, identity))
	require.NoError(t, err)
	s.leased, err = ratelimit.All(ratelimit.By(s.a, identity), ratelimit.By(leased(s.c, 20), identity))
	require.NoError(t, err)
	return s
}

var stormUnits = []int{3, 5, 7, 11, 13, 17, 19, 23}

// bookLocked records that a key has spent between least and most more, and may be charged late units later.
func (s *stormed) bookLocked(limiter, key string, unit, least, most, late int) {
	l := s.books[limiter+key]
	if l == nil {
		l = &ledger{unit: unit}
		s.books[limiter+key] = l
	}
	l.least += least
	l.most += most
	l.late += late
}

// outcome records a charge in each limiter. began is the time of the charging
// call. If servers have lost the charge since, there is nothing to settle.
func (s *stormed) outcome(limiters, key string, unit, delta int, began time.Time, done bool, err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if done && (s.losing || began.Before(s.lost)) {
		done, err = false, ratelimit.ErrUnanswered
	}
	least, most, late := 0, 0, 0
	switch {
	case done:
		least, most = delta, delta
	case errors.Is(err, ratelimit.ErrUnanswered):
		least, most = min(0, delta), max(0, delta)
		late = most
	}
	for _, l := range limiters {
		s.bookLocked(string(l), key, unit, least, most, late)
	}
}

// lose makes the servers lose all their data. A concurrent charge may be lost or
// not. A call may still be charged after the loss, although its caller has left.
func (s *stormed) lose(servers []*redistest.Server) {
	s.mu.Lock()
	s.losing = true
	for _, l := range s.books {
		l.least, l.most = 0, l.late
	}
	s.mu.Unlock()
	for _, server := range servers {
		assert.Eventually(s.t, func() bool { // the server may be read-only for now
			_, err := server.Do("FLUSHALL")
			return err == nil
		}, 20*time.Second, time.Millisecond)
	}
	s.mu.Lock()
	s.losing, s.lost = false, time.Now()
	s.mu.Unlock()
}

func (s *stormed) class(ctx context.Context, err error, took time.Duration, calls int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.calls++
	if over := took - time.Duration(calls)*s.timeout; over > s.longest {
		s.longest = over
	}
	if err == nil {
		return
	}
	if errors.Is(err, ratelimit.ErrUnanswered) {
		s.perhaps++
	}
	if errors.Is(err, ratelimit.ErrUnavailable) {
		s.unavailable++
		return
	}
	if cause := outcome.EndOf(ctx); cause == nil || !errors.Is(err, cause) {
		_, file, line, _ := runtime.Caller(1)
		_, own := ctx.Deadline()
		s.t.Errorf("%s:%d an error that is neither the caller's end nor ErrUnavailable: %v (the context: %v, deadline %v)", file, line, err, ctx.Err(), own)
	}
}

func (s *stormed) one(rng *rand.Rand) {
	ctx, cancel := context.Background(), context.CancelFunc(func() {})
	switch rng.IntN(4) {
	case 0:
		ctx, cancel = context.WithTimeout(ctx, time.Duration(rng.IntN(8000))*time.Microsecond)
	case 1:
		ctx, cancel = context.WithCancel(ctx)
		time.AfterFunc(time.Duration(rng.IntN(8000))*time.Microsecond, cancel)
	}
	defer cancel()
	i := rng.IntN(len(stormUnits))
	unit, key := stormUnits[i], strconv.Itoa(i)
	cost := unit * (1 + rng.IntN(3))
	began, ran := time.Now(), s.running.Now()
	switch rng.IntN(9) {
	case 0, 1:
		d, err := s.a.Take(ctx, key, cost)
		s.class(ctx, err, s.running.Now()-ran, 1)
		s.outcome("a", key, unit, cost, began, d.Allowed, err)
	case 2:
		d, err := s.stack.Take(ctx, key, cost)
		s.class(ctx, err, s.running.Now()-ran, 1)
		s.outcome("ab", key, unit, cost, began, d.Allowed, err)
	case 3:
		r, err := s.b.Reserve(ctx, key, cost, time.Hour)
		s.class(ctx, err, s.running.Now()-ran, 1)
		s.outcome("b", key, unit, cost, began, r.Allowed, err)
		s.settle(rng, r, began, "b", key, unit, cost)
	case 4:
		r, err := s.stack.Reserve(ctx, key, cost, 0)
		s.class(ctx, err, s.running.Now()-ran, 1)
		s.outcome("ab", key, unit, cost, began, r.Allowed, err)
		s.settle(rng, r, began, "ab", key, unit, cost)
	case 5:
		limiters, wait := "a", s.a.Wait
		if rng.IntN(2) == 0 {
			limiters, wait = "ab", s.stack.Wait
		}
		err := wait(ctx, key, cost)
		s.class(ctx, err, s.running.Now()-ran, 2)
		s.outcome(limiters, key, unit, cost, began, err == nil, unsure(err))
	case 6:
		err := s.b.Adjust(ctx, key, unit)
		s.class(ctx, err, s.running.Now()-ran, 1)
		s.outcome("b", key, unit, unit, began, err == nil, err)
	case 7:
		_, err := s.a.Peek(ctx, key, cost)
		s.class(ctx, err, s.running.Now()-ran, 1)
	case 8:
		if rng.IntN(2) == 0 {
			d, err := s.leased.Take(ctx, key, cost)
			s.class(ctx, err, s.running.Now()-ran, 3)
			s.outcome("ac", key, unit, cost, began, d.Allowed, err)
			return
		}
		r, err := s.leased.Reserve(ctx, key, cost, 0)
		s.class(ctx, err, s.running.Now()-ran, 3)
		s.outcome("ac", key, unit, cost, began, r.Allowed, err)
		s.settle(rng, r, began, "ac", key, unit, cost)
	}
}

// unsure turns a Wait's error into ErrUnanswered if the Wait has failed to give its booking back.
func unsure(err error) error {
	if errors.Is(err, ratelimit.ErrUnavailable) && (errors.Is(err, context.Canceled) || errors.Is(err, context.DeadlineExceeded)) {
		return ratelimit.ErrUnanswered
	}
	return err
}

func (s *stormed) settle(rng *rand.Rand, r *ratelimit.Reservation, reserved time.Time, limiters, key string, unit, cost int) {
	if !r.Allowed || rng.IntN(6) == 0 {
		return
	}
	if rng.IntN(3) == 0 {
		time.Sleep(time.Duration(rng.IntN(3000)) * time.Microsecond)
	}
	actual := unit * rng.IntN(5)
	ran := s.running.Now()
	err := r.Settle(actual)
	s.class(context.Background(), err, s.running.Now()-ran, 4)
	if err != nil && limiters == "ac" { // the call concerns a limiter and leases, and either may have failed
		err = ratelimit.ErrUnanswered
	}
	s.outcome(limiters, key, unit, actual-cost, reserved, err == nil, err)
}

// sky is a set of servers, with their clients and their faults.
type sky struct {
	servers []*redistest.Server
	client  func() redis.UniversalClient
	trouble func(rng *rand.Rand, stop *atomic.Bool)
	end     func() // ends connections; may be nil
	loses   bool   // the servers lose all their data again and again
}

// moves moves slots with keys from node to node.
func moves(t *testing.T, c *redistest.Cluster, rng *rand.Rand, stop *atomic.Bool) {
	for !stop.Load() {
		from := rng.IntN(len(c.Nodes))
		if rng.IntN(4) == 0 {
			_, _ = c.Nodes[from].Do("SCRIPT", "FLUSH")
		}
		key, err := c.Nodes[from].Do("RANDOMKEY")
		if err == nil && key != "" {
			slot, err := c.Slot(key)
			assert.NoError(t, err)
			assert.NoError(t, c.Move(slot, from, (from+1)%len(c.Nodes), func() { time.Sleep(time.Millisecond) }))
		}
	}
}

// trouble causes one fault after the other, while all servers run.
func trouble(rng *rand.Rand, servers []*redistest.Server, stop *atomic.Bool) {
	for !stop.Load() {
		s := servers[rng.IntN(len(servers))]
		switch rng.IntN(9) {
		case 0:
			_, _ = s.Do("CLIENT", "PAUSE", strconv.Itoa(1+rng.IntN(40)), "ALL")
		case 1:
			_, _ = s.Do("SCRIPT", "FLUSH")
		case 2:
			_, _ = s.Do("CLIENT", "KILL", "TYPE", "normal", "SKIPME", "yes")
		case 3:
			_ = s.Pause()
			time.Sleep(time.Duration(rng.IntN(40)) * time.Millisecond)
			_ = s.Resume()
		case 4:
			_, _ = s.Do("CONFIG", "SET", "maxmemory", "1")
			time.Sleep(time.Duration(rng.IntN(5)) * time.Millisecond)
			_, _ = s.Do("CONFIG", "SET", "maxmemory", "0")
		case 5: // read-only, but with its data: this does not happen to a real master, and a cluster refuses it
			_, _ = s.Do("REPLICAOF", "127.0.0.1", "1")
			time.Sleep(time.Duration(rng.IntN(5)) * time.Millisecond)
			_, _ = s.Do("REPLICAOF", "NO", "ONE")
		case 6: // another caller's script takes long: after a millisecond the server replies BUSY, or it never does
			_, _ = s.Do("CONFIG", "SET", "lua-time-limit", strconv.Itoa(rng.IntN(2)))
			_, _ = s.Do("EVAL", "for i = 1, tonumber(ARGV[1]) do local _ = math.sqrt(i) end", "0", strconv.Itoa(rng.IntN(1_000_000)))
		}
		time.Sleep(time.Duration(rng.IntN(15)) * time.Millisecond)
	}
	for _, s := range servers {
		_, _ = s.Do("CONFIG", "SET", "maxmemory", "0")
	}
}

// TestInAStormCallersKnowTheirCharges makes all calls at the same time on servers in trouble. No caller is charged twice or
// for another one. A call has charged nothing unless its error wraps ratelimit.ErrUnanswered. No caller waits much longer
// than the timeout, and no goroutine is left behind. The test counts goroutines, so no other test may run at the same time.
func TestInAStormCallersKnowTheirCharges(t *testing.T) {
	testsize.Client(t)
	for _, kind := range []string{"plain", "cut", "ring", "losing", "cluster", "moving"} {
		t.Run(kind, func(t *testing.T) {
			where := stormServers(t, kind)
			for _, timeout := range []time.Duration{4 * time.Millisecond, 60 * time.Millisecond} {
				for _, batchSize := range []int{1, 5, 64} {
					if !testsize.Long() && *randomFor == 0 && (batchSize == 1 || (batchSize == 64) == (timeout > 10*time.Millisecond)) {
						continue // a short run plays only two of these combinations
					}
					t.Run(fmt.Sprint(timeout, batchSize), func(t *testing.T) { playStorm(t, where, fmt.Sprint("storm", timeout, batchSize), timeout, batchSize) })
				}
			}
		})
	}
}

func stormServers(t *testing.T, kind string) (where sky) {
	where.trouble = func(rng *rand.Rand, stop *atomic.Bool) { trouble(rng, where.servers, stop) }
	switch kind {
	case "plain", "cut":
		s := startServer(t)
		addr := s.addr
		if kind == "cut" { // cut connections, too, in the middle of a call or an answer
			proxy := newMoodyProxy(t, addr, 2*time.Millisecond)
			addr, where.end = proxy.Addr().String(), proxy.hangUp
		}
		where.servers = []*redistest.Server{s.Server}
		where.client = func() redis.UniversalClient { return redis.NewClient(&redis.Options{Addr: addr, PoolSize: 7}) }
	case "ring", "losing":
		where.loses = kind == "losing"
		addrs := map[string]string{}
		for _, name := range []string{"x", "y", "z"} {
			s := startServer(t)
			where.servers, addrs[name] = append(where.servers, s.Server), s.addr
		}
		where.client = func() redis.UniversalClient {
			return redis.NewRing(&redis.RingOptions{Addrs: addrs, PoolSize: 7, HeartbeatFrequency: time.Hour})
		}
	default:
		c := redistest.StartCluster(t, 3, false)
		where.servers = c.Nodes
		where.client = func() redis.UniversalClient {
			return redis.NewClusterClient(&redis.ClusterOptions{Addrs: c.Addrs(), PoolSize: 7})
		}
		if kind == "moving" {
			where.trouble = func(rng *rand.Rand, stop *atomic.Bool) { moves(t, c, rng, stop) }
		}
	}
	return where
}

func playStorm(t *testing.T, where sky, name string, timeout time.Duration, batchSize int) {
	seed := rand.Uint64()
	rng := rand.New(rand.NewPCG(seed, 1))
	before := runtime.NumGoroutine()
	c := where.client()
	s := newStormed(t, c, name, timeout, batchSize)
	warmAll(t, s)
	var stop atomic.Bool
	var callers, troubles sync.WaitGroup
	troubles.Go(func() { where.trouble(rand.New(rand.NewPCG(seed, 2)), &stop) })
	if where.loses {
		troubles.Go(func() {
			for rng := rand.New(rand.NewPCG(seed, 4)); !stop.Load(); s.lose(where.servers) {
				time.Sleep(time.Duration(rng.IntN(100)) * time.Millisecond)
			}
		})
	}
	end := time.Now().Add(randomDuration())
	for range *stormCallers {
		mine := rand.New(rand.NewPCG(rng.Uint64(), 3))
		callers.Go(func() {
			for time.Now().Before(end) {
				s.one(mine)
			}
		})
	}
	callers.Wait()
	s.running.Stop()
	stop.Store(true)
	troubles.Wait()
	assert.Eventually(t, func() bool { return flushAll(s.leased, t.Context()) == nil }, 20*time.Second, 20*time.Millisecond)
	time.Sleep(50 * time.Millisecond)
	t.Logf("seed %d: %d calls, %d unavailable, %d perhaps charged, longest %v over its time", seed, s.calls, s.unavailable, s.perhaps, s.longest)
	assert.Less(t, s.longest, soon*time.Duration(1+*stormCallers/500), "a crowd waits for processors too")
	patient := where.client()
	for _, limiter := range []string{"a", "b", "c"} {
		l, err := New(patient, stormLimit, &Options{Name: name + limiter, Timeout: 20 * time.Second})
		require.NoError(t, err)
		for i, unit := range stormUnits {
			key := strconv.Itoa(i)
			d, err := l.Peek(t.Context(), key, 0)
			for range 100 { // a connection may still be cut
				if err == nil {
					break
				}
				d, err = l.Peek(t.Context(), key, 0)
			}
			require.NoError(t, err)
			spent, book := math.MaxInt32-d.Remaining, s.books[limiter+key]
			if book == nil {
				continue
			}
			if limiter == "c" { // this limiter is charged in batches, and some of them are lost
				if where.loses { // a batch from before the loss may be spent after it
					continue
				}
				assert.GreaterOrEqual(t, spent, book.least, "%s%s: more was admitted than charged", limiter, key)
				continue
			}
			assert.Zero(t, spent%unit, "%s%s of unit %d has spent %d", limiter, key, unit, spent)
			assert.GreaterOrEqual(t, spent, book.least, "%s%s", limiter, key)
			assert.LessOrEqual(t, spent, book.most, "%s%s", limiter, key)
		}
	}
	require.NoError(t, patient.Close())
	require.NoError(t, c.Close())
	if where.end != nil {
		where.end()
	}
	crowd.Gone(t, before+2)
}

// warmAll opens connections and loads the scripts into the servers.
func warmAll(t *testing.T, s *stormed) {
	for i := range stormUnits {
		key := strconv.Itoa(i)
		require.Eventually(t, func() bool {
			_, err := s.stack.Peek(t.Context(), key, 1)
			return err == nil
		}, 30*time.Second, 10*time.Millisecond)
	}
}
