package failover_test

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/weir-go/ratelimit"
	"github.com/weir-go/ratelimit/chain"
	"github.com/weir-go/ratelimit/failover"
	"github.com/weir-go/ratelimit/internal/dev/testsize"
	"github.com/weir-go/ratelimit/lease"
)

var fleets = flag.Int("fleets", testsize.Of(15, 600), "random fleets with leases over failovers")

// fleet is several processes on one shared store, each with a lease over a failover. It records the callers' answers.
type fleet struct {
	t         *testing.T
	at        string
	s         *store
	locals    []*ratelimit.Keyed[string]
	failovers []*failover.Limiter[string]
	leases    []*lease.Limiter[string]
	nodes     []ratelimit.Reserver[string] // the leases, or chains of a lease and a stricter limiter
	exact     bool                         // whether each failing call fails at once and charges nothing
	shares    bool                         // whether a local limiter stands in
	failing   atomic.Int64                 // of 1000 calls, how many fail

	mu       sync.Mutex
	admitted map[string]int
	perhaps  map[string]int // units charged perhaps, because their settlement failed
}

const (
	fleetShared = 4000
	fleetLocal  = 50
	fleetCost   = 12
)

func newFleet(t *testing.T, seed uint64) (*fleet, *rand.Rand) {
	rng := rand.New(rand.NewPCG(testsize.Seed(seed), 61))
	f := &fleet{t: t, at: fmt.Sprintf("seed %d", seed), s: newStore(t, ratelimit.TokenBucket(ratelimit.PerDay(1), fleetShared)),
		exact: rng.IntN(2) == 0, shares: rng.IntN(3) > 0, admitted: map[string]int{}, perhaps: map[string]int{}}
	f.s.fail(f.weather)
	chained := rng.IntN(2) == 0
	for range 1 + rng.IntN(3) {
		local := newLocal(t, ratelimit.TokenBucket(ratelimit.PerDay(1), fleetLocal))
		f.locals = append(f.locals, local)
		var instead ratelimit.Reserver[string] = local
		if !f.shares {
			instead = failover.AllowAll[string]()
		}
		l := over(t, f.s, instead, failover.Options{
			Timeout:  []time.Duration{5, 50, 300}[rng.IntN(3)] * time.Millisecond,
			MaxCalls: 1 + rng.IntN(8),
			Failures: 1 + rng.IntN(20),
			OpenFor:  []time.Duration{30, 1000}[rng.IntN(2)] * time.Millisecond,
		})
		f.failovers = append(f.failovers, l)
		leased, err := lease.New(l, &lease.Options[string]{
			MaxBatch: 1 + rng.IntN(20),
			HoldFor:  []time.Duration{3, 40, 1000}[rng.IntN(3)] * time.Millisecond,
			Timeout:  []time.Duration{4, 45, 55, 60, 1000}[rng.IntN(5)] * time.Millisecond,
			DenyFor:  time.Duration(rng.IntN(3)-1) * 20 * time.Millisecond,
			MaxKeys:  []int{0, 1}[rng.IntN(2)],
		})
		require.NoError(t, err)
		f.leases = append(f.leases, leased)
		var node ratelimit.Reserver[string] = leased
		if chained {
			second := newLocal(t, ratelimit.TokenBucket(ratelimit.PerSecond(20), 30))
			node, err = chain.New[string](leased, second)
			require.NoError(t, err)
		}
		f.nodes = append(f.nodes, node)
	}
	return f, rng
}

// weather decides how a call to the store ends.
func (f *fleet) weather(ctx context.Context) error {
	if rand.Int64N(1000) >= f.failing.Load() {
		if !f.exact && rand.IntN(4) == 0 {
			time.Sleep(time.Duration(rand.Int64N(int64(20 * time.Millisecond))))
		}
		return nil
	}
	if f.exact {
		if rand.IntN(6) == 0 {
			panic("a store")
		}
		return errDown
	}
	switch rand.IntN(5) {
	case 0:
		if ctx.Done() == nil { // a settlement's context never ends
			time.Sleep(2 * time.Second)
			return errDown
		}
		<-ctx.Done()
		return ctx.Err()
	case 1:
		time.Sleep(time.Second) // ignores its context, and succeeds
		return nil
	case 2:
		panic("a store")
	}
	return errDown
}

func (f *fleet) count(of map[string]int, key string, n int) {
	f.mu.Lock()
	defer f.mu.Unlock()
	of[key] += n
}

// one makes one decision.
func (f *fleet) one(rng *rand.Rand, settling *sync.WaitGroup) {
	node, key, cost := f.nodes[rng.IntN(len(f.nodes))], []string{"a", "b"}[rng.IntN(2)], 1
	if rng.IntN(3) == 0 {
		cost = 1 + rng.IntN(fleetCost)
	}
	ctx, cancel, cancelled := context.Background(), context.CancelFunc(func() {}), false
	switch rng.IntN(4) {
	case 0:
		ctx, cancel = context.WithTimeout(ctx, time.Duration(rng.IntN(100_000))*time.Microsecond)
	case 1:
		ctx, cancel = context.WithCancel(ctx)
		timer := time.AfterFunc(time.Duration(rng.IntN(100_000))*time.Microsecond, cancel)
		defer timer.Stop()
		cancelled = true
	}
	defer cancel()
	began := time.Now()
	in := func(what string, err error) bool {
		deadline, bounded := ctx.Deadline()
		_, plain := node.(*lease.Limiter[string]) // a chain gives units back before it answers
		if bounded && plain && time.Now().After(deadline) && deadline.After(began) {
			f.t.Errorf("%s: %s took %v beyond its caller's deadline", f.at, what, time.Since(deadline))
		}
		if err == nil {
			return true
		}
		if !(cancelled && errors.Is(err, context.Canceled)) {
			f.t.Errorf("%s: a caller of %s sees %v", f.at, what, err)
		}
		return false
	}
	switch rng.IntN(8) {
	case 0, 1, 2:
		d, err := node.Take(ctx, key, cost)
		if in("Take", err) && d.Allowed {
			f.count(f.admitted, key, cost)
		}
	case 3:
		if node.Allow(key, cost) {
			f.count(f.admitted, key, cost)
		}
	case 4:
		granted, _, err := ratelimit.TakeUpTo[string](ctx, stripped{node}, key, cost)
		if in("TakeUpTo", err) {
			f.count(f.admitted, key, granted)
		}
	default:
		res, err := node.Reserve(ctx, key, cost, time.Duration(rng.IntN(2))*time.Millisecond)
		if !in("Reserve", err) || !res.Allowed {
			return
		}
		actual, after := cost, time.Duration(rng.IntN(int(40*time.Millisecond)))
		if rng.IntN(3) > 0 {
			actual = rng.IntN(cost + 1)
		}
		if rng.IntN(10) == 0 {
			after *= 300
		}
		settling.Go(func() {
			time.Sleep(after)
			if err := res.Settle(actual); err != nil {
				f.count(f.perhaps, key, cost-actual)
			}
			f.count(f.admitted, key, actual)
		})
	}
}

// stripped hides a limiter's Peek, as if its store had none.
type stripped struct{ ratelimit.Limiter[string] }

// Leases stand over failovers. Either timeout may be the longer one, deadlines are short or long, few calls may be under way,
// and an operator intervenes. No caller gets an error, and no more is admitted than the store and the stand-in have charged.
func TestInAnyWeatherALeaseOverAFailoverKeepsItsPromises(t *testing.T) {
	n := *fleets
	degraded := uint64(0)
	for seed := range uint64(n) {
		synctest.Test(t, func(t *testing.T) {
			f, rng := newFleet(t, *firstStorm+seed)
			var callers, settling, sky sync.WaitGroup
			for range 1 + rng.IntN(16) {
				mine := rand.New(rand.NewPCG(rng.Uint64(), 62))
				callers.Go(func() {
					for range 80 {
						f.one(mine, &settling)
						time.Sleep(time.Duration(mine.IntN(int(20 * time.Millisecond))))
						if mine.IntN(40) == 0 {
							time.Sleep(2 * time.Second)
						}
					}
				})
			}
			done := make(chan struct{})
			forces := rng.IntN(3) == 0
			sky.Go(func() {
				for {
					f.failing.Store([]int64{0, 0, 20, 500, 1000}[rng.IntN(5)])
					if forces {
						f.failovers[rng.IntN(len(f.failovers))].Force([]failover.State{failover.StateOpen, failover.StateClosed, failover.StateHalfOpen}[rng.IntN(3)])
					}
					select {
					case <-done:
						return
					case <-time.After(time.Duration(rng.Int64N(int64(time.Second)))):
					}
				}
			})
			callers.Wait()
			settling.Wait()
			close(done)
			sky.Wait()
			f.failing.Store(0)
			for _, l := range f.failovers {
				l.Force(failover.StateClosed)
			}
			time.Sleep(time.Minute)
			for _, l := range f.leases {
				require.NoError(t, l.Flush(context.Background()))
			}
			synctest.Wait()
			for _, l := range f.failovers {
				degraded += l.Stats().Instead
			}
			f.check()
		})
	}
	require.NotZero(t, degraded)
}

func (f *fleet) check() {
	t, lost := f.t, 0
	for i, l := range f.leases {
		st := l.Stats()
		require.Zero(t, st.Held, "%s: process %d sits on units", f.at, i)
		lost += int(st.UnitsLost)
		if c, ok := f.nodes[i].(*chain.Limiter[string]); ok {
			lost += fleetCost * int(c.Stats().FailedGiveBacks)
		}
	}
	if !f.shares {
		return // AllowAll charges no admissions
	}
	surplus := 0
	for _, key := range []string{"a", "b"} {
		charged := 0
		for _, l := range append([]*ratelimit.Keyed[string]{f.s.Keyed}, f.locals...) {
			d, err := l.Peek(context.Background(), key, 0)
			require.NoError(t, err)
			charged += l.Describe().Limits[0].Burst - d.Remaining
		}
		require.GreaterOrEqual(t, charged, f.admitted[key], "%s: more of %s is admitted than was charged", f.at, key)
		surplus += charged - f.admitted[key] - f.perhaps[key]
	}
	if f.exact {
		surplus -= int(f.s.repaid.Load()) // the stand-ins have charged these, too
		require.LessOrEqual(t, surplus, lost, "%s: units are missing that nobody has counted", f.at)
	}
}
