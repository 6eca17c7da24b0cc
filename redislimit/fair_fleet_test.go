package redislimit

import (
	"context"
	"fmt"
	"math/rand/v2"
	"sort"
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

// virtual plays a scenario in virtual time on a real server. Each process has its
// own limiter. Time passes only while all goroutines wait, and not during a call.
func virtual(t *testing.T, limit ratelimit.Limit, processes int, weight func(string) int, play func(t *testing.T, fleet []*Fair, calls func() int64)) {
	server := startServer(t)
	synctest.Test(t, func(t *testing.T) {
		fleet := make([]*Fair, processes)
		for i := range fleet {
			client := server.client()
			defer client.Close()
			f, err := NewFair(client, limit, &FairOptions{Name: "shared", Weight: weight, Timeout: 10 * time.Second})
			require.NoError(t, err)
			f.store.clock = func() int64 { return time.Now().UnixMicro() }
			fleet[i] = f
		}
		play(t, fleet, func() int64 { return figureOf(t, server, "calls") })
		time.Sleep(time.Minute) // without callers the processes give back their units, and their goroutines end
		for _, f := range fleet {
			f.mu.Lock()
			assert.Zero(t, f.heldLocked(false))
			assert.Empty(t, f.tenants)
			assert.False(t, f.calling)
			f.mu.Unlock()
		}
		if _, err := server.Do("PING"); err == nil {
			client := server.client()
			defer client.Close()
			for _, state := range client.HVals(t.Context(), "ratelimit:{shared}!fair:processes").Val() {
				assert.Regexp(t, `^\d+ 0$`, state, "the time until which the process is alive, and what it holds")
			}
		}
	})
}

// figureOf returns a figure of the shared budget.
func figureOf(t *testing.T, server *server, name string) (figure int64) {
	text, err := server.Do("HGET", "ratelimit:{shared}!fair", name)
	require.NoError(t, err)
	_, err = fmt.Sscan(text, &figure)
	require.NoError(t, err)
	return figure
}

// Half of 50 tenants request more than their share, and call Wait in some
// of the processes. The others request a part of their share, with Allow.
func TestAFleetServesItsTenantsByTheirMaxMinShares(t *testing.T) {
	const processes, tenants, rate, seconds = 8, 50, 1000, 30
	weight := func(tenant string) int {
		n := 0
		_, _ = fmt.Sscan(tenant, &n)
		return 1 + n%3
	}
	virtual(t, ratelimit.TokenBucket(ratelimit.PerSecond(rate), 2000), processes, weight, func(t *testing.T, fleet []*Fair, calls func() int64) {
		ctx, stop := context.WithCancel(t.Context())
		var all sync.WaitGroup
		var used, attempts, denied [tenants]atomic.Int64
		var measured atomic.Bool
		for n := range tenants {
			key := fmt.Sprint(n)
			if n%2 == 0 {
				for p := range processes {
					if (n/2+p)%3 > 0 {
						continue
					}
					for range 3 {
						all.Go(func() {
							for ctx.Err() == nil {
								if fleet[p].Wait(ctx, key, 1+n%4) == nil && measured.Load() {
									used[n].Add(int64(1 + n%4))
								}
							}
						})
					}
				}
				continue
			}
			rng := rand.New(rand.NewPCG(1, uint64(n)))
			all.Go(func() { // all together request two thirds of a share
				for ctx.Err() == nil {
					time.Sleep(time.Duration(rng.ExpFloat64() * float64(time.Second) / (float64(rate) * float64(weight(key)) / 100 * 2 / 3)))
					ok := fleet[rng.IntN(processes)].Allow(key, 1)
					if measured.Load() {
						attempts[n].Add(1)
						if ok {
							used[n].Add(1)
						} else {
							denied[n].Add(1)
						}
					}
				}
			})
		}
		time.Sleep(5 * time.Second)
		measured.Store(true)
		began := calls()
		time.Sleep(seconds * time.Second)
		measured.Store(false)
		made := calls() - began
		stop()
		all.Wait()
		var modest, modestDenied, modestCalls, total, greedyWeights int64
		for n := range tenants {
			total += used[n].Load()
			if n%2 == 1 {
				modest, modestCalls, modestDenied = modest+used[n].Load(), modestCalls+attempts[n].Load(), modestDenied+denied[n].Load()
			} else {
				greedyWeights += int64(weight(fmt.Sprint(n)))
			}
		}
		least, most := 10.0, 0.0
		for n := 0; n < tenants; n += 2 {
			part := float64(used[n].Load()) / (float64(rate*seconds-modest) * float64(weight(fmt.Sprint(n))) / float64(greedyWeights))
			least, most = min(least, part), max(most, part)
		}
		t.Logf("%.4f of the rate is used; tenants in line get %.3f to %.3f of their shares; %.2f %% of the modest calls are denied; %d calls a second",
			float64(total)/rate/seconds, least, most, 100*float64(modestDenied)/float64(modestCalls), made/seconds)
		assert.GreaterOrEqual(t, float64(total), 0.99*rate*seconds)
		assert.LessOrEqual(t, total, int64(rate*seconds+2000))
		assert.Greater(t, least, 0.95)
		assert.Less(t, float64(modestDenied), 0.02*float64(modestCalls))
		assert.LessOrEqual(t, made, int64(250*seconds+processes*fairBurst))
	})
}

// gathering is a fleet whose tenants join and leave from phase to phase.
type gathering struct {
	burst, rate int
	refill      time.Duration
	weights     []int
	costs       []int
	settles     []bool // the tenant reserves twice its real cost
	there       [][]bool
	ends        []time.Duration

	mu    sync.Mutex
	start time.Time
	used  [][]usage
}

type usage struct {
	at    time.Duration
	units int
}

func newGathering(seed uint64) *gathering {
	r := rand.New(rand.NewPCG(seed, 7))
	g := &gathering{burst: 1000 + r.IntN(20_000)}
	g.rate = max(1, g.burst/(2+r.IntN(8)))
	g.refill = time.Duration(g.burst) * time.Second / time.Duration(g.rate)
	n := 2 + r.IntN(10)
	for range n {
		weight := 1 + r.IntN(4)
		g.weights = append(g.weights, weight)
		g.costs = append(g.costs, max(1, g.burst*weight/(4*n)/(20+r.IntN(80))))
		g.settles = append(g.settles, r.IntN(3) == 0)
	}
	g.used = make([][]usage, n)
	for phase := range 3 {
		there := make([]bool, n)
		for i := range there {
			there[i] = i == 0 || phase > 0 && r.IntN(4) > 0
		}
		g.there = append(g.there, there)
		g.ends = append(g.ends, time.Duration(phase+1)*5*g.refill)
	}
	return g
}

func (g *gathering) record(tenant, units int) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.used[tenant] = append(g.used[tenant], usage{time.Since(g.start), units})
}

func (g *gathering) between(tenant int, from, to time.Duration) (units float64) {
	for _, u := range g.used[tenant] {
		if from <= u.at && u.at < to {
			units += float64(u.units)
		}
	}
	return units
}

// Units used while nobody else wanted them do not count against a tenant later, in any
// process. From 1.2 refills after each change, all waiting tenants get their shares.
func TestAFleetsTenantsGetTheirSharesSoonAfterOthersJoinAndLeave(t *testing.T) {
	worst, least := 10.0, 10.0
	for i := range testsize.Of(3, 100) {
		seed := testsize.Seed(uint64(i))
		g := newGathering(seed)
		weigh := func(tenant string) int {
			n := 0
			_, _ = fmt.Sscan(tenant, &n)
			return g.weights[n]
		}
		virtual(t, ratelimit.TokenBucket(ratelimit.PerSecond(g.rate), g.burst), 4, weigh, func(t *testing.T, fleet []*Fair, _ func() int64) {
			g.start = time.Now()
			var all sync.WaitGroup
			for tenant := range g.weights {
				for caller := range 16 { // enough callers to use the share between two calls of a process
					f := fleet[(tenant+caller)%len(fleet)]
					r := rand.New(rand.NewPCG(seed, uint64(10*tenant+caller)))
					all.Go(func() {
						for phase, end := range g.ends {
							ctx, leave := context.WithDeadline(t.Context(), g.start.Add(end))
							for ctx.Err() == nil && g.there[phase][tenant] {
								g.call(ctx, &all, r, f, tenant)
							}
							<-ctx.Done()
							leave()
						}
					})
				}
			}
			all.Wait()
		})
		begin := time.Duration(0)
		for phase, end := range g.ends {
			weights, bound := 0, 0.85 // the bound for a single tenant whose callers call again and again
			for tenant, there := range g.there[phase] {
				if there {
					if weights > 0 {
						bound = 0.93
					}
					weights += g.weights[tenant]
				}
			}
			for tenant, there := range g.there[phase] {
				for from := begin + g.refill*6/5 + 2*time.Second; there && from+2*g.refill <= end; from += g.refill / 4 {
					share := 2 * float64(g.burst) * float64(g.weights[tenant]) / float64(weights)
					part := (g.between(tenant, from, from+2*g.refill) + float64(g.costs[tenant])) / share
					worst = min(worst, part)
					assert.GreaterOrEqual(t, part, bound, "seed %d, tenant %d from %v in phase %d", seed, tenant, from, phase)
				}
			}
			begin = end
		}
		total := 0.0
		for tenant := range g.weights {
			total += g.between(tenant, g.refill, begin)
		}
		part := total / float64(g.rate) / (begin - g.refill).Seconds()
		least = min(least, part)
		assert.GreaterOrEqual(t, part, 0.97, "seed %d", seed)
	}
	t.Logf("tenants get %.3f of their shares at least, and all %.3f of the rate", worst, least)
}

// call plays a tenant's next call.
func (g *gathering) call(ctx context.Context, all *sync.WaitGroup, r *rand.Rand, f *Fair, tenant int) {
	key, cost := fmt.Sprint(tenant), g.costs[tenant]
	if !g.settles[tenant] {
		if f.Wait(ctx, key, cost) == nil {
			g.record(tenant, cost)
		}
		return
	}
	res, err := f.Reserve(ctx, key, 2*cost, time.Hour)
	if err != nil || !res.Allowed {
		return
	}
	actual := 1 + r.IntN(cost)
	g.record(tenant, actual)
	work := time.Duration(r.Int64N(int64(g.refill / 10)))
	all.Go(func() {
		time.Sleep(work)
		_ = res.Settle(actual)
	})
}

// The real costs of all processes together are within burst + rate·t over every interval, with any settlements.
func TestRealCostsOfAFleetsTenantsStayWithinTheSharedLimit(t *testing.T) {
	for i := range testsize.Of(15, 1000) {
		seed := testsize.Seed(uint64(i))
		rng := rand.New(rand.NewPCG(seed, 8))
		burst, rate := 5+rng.IntN(200), 1+rng.IntN(100)
		var mu sync.Mutex
		var start time.Time
		type real struct {
			at    time.Duration
			units int
		}
		var used []*real
		virtual(t, ratelimit.TokenBucket(ratelimit.PerSecond(rate), burst), 3, nil, func(t *testing.T, fleet []*Fair, _ func() int64) {
			start = time.Now()
			var all sync.WaitGroup
			for range 80 {
				time.Sleep(time.Duration(rng.ExpFloat64() * float64(burst) / float64(rate) * 1e8))
				f, key := fleet[rng.IntN(len(fleet))], fmt.Sprint(rng.IntN(4))
				cost, delay, work := 1+rng.IntN(burst/2), time.Duration(rng.IntN(2))*time.Second, time.Duration(rng.ExpFloat64()*2e9)
				actual := rng.IntN(cost + 1)
				all.Go(func() {
					res, err := f.Reserve(t.Context(), key, cost, delay)
					if err != nil || !res.Allowed {
						return
					}
					mine := &real{time.Since(start), cost}
					mu.Lock()
					used = append(used, mine)
					mu.Unlock()
					if work > 4*time.Second {
						return // this reservation is never settled
					}
					time.Sleep(work)
					mu.Lock()
					mine.units = actual
					mu.Unlock()
					_ = res.Settle(actual)
				})
			}
			all.Wait()
		})
		sort.SliceStable(used, func(i, j int) bool { return used[i].at < used[j].at })
		for first := range used {
			sum := 0
			for _, u := range used[first:] {
				sum += u.units
				require.LessOrEqual(t, float64(sum), float64(burst)+float64(rate)*(u.at-used[first].at).Seconds()+1e-6,
					"seed %d: burst %d, %d a second, from %v to %v", seed, burst, rate, used[first].at, u.at)
			}
		}
	}
}

// LLM calls with estimates eight times too high use the whole rate: after its refund, each call has charged its real cost.
func TestAFleetsSettledReservationsUseTheRate(t *testing.T) {
	const perMinute, estimate, actual = 100_000, 4000, 500
	virtual(t, ratelimit.TokenBucket(ratelimit.PerMinute(perMinute), perMinute), 4, nil, func(t *testing.T, fleet []*Fair, _ func() int64) {
		ctx, stop := context.WithCancel(t.Context())
		var all sync.WaitGroup
		var used atomic.Int64
		for n := range 80 {
			all.Go(func() {
				for ctx.Err() == nil {
					res, err := fleet[n%4].Reserve(ctx, fmt.Sprint(n%20), estimate, time.Minute)
					if err == nil && res.Allowed {
						used.Add(actual)
						time.Sleep(3 * time.Second)
						_ = res.Settle(actual)
					}
				}
			})
		}
		time.Sleep(time.Minute)
		before := used.Load()
		time.Sleep(5 * time.Minute)
		per := float64(used.Load()-before) / 5
		stop()
		all.Wait()
		t.Logf("%.0f of %d a minute are used", per, perMinute)
		assert.GreaterOrEqual(t, per, 0.95*perMinute)
	})
}

// When a process dies, the units it held and its callers' places are lost. A second later the others have the whole rate.
func TestAFleetLosesLittleWithAProcess(t *testing.T) {
	const rate = 1000
	virtual(t, ratelimit.TokenBucket(ratelimit.PerSecond(rate), 500), 3, nil, func(t *testing.T, fleet []*Fair, _ func() int64) {
		ctx, stop := context.WithCancel(t.Context())
		var all sync.WaitGroup
		var used [3]atomic.Int64
		for p := range fleet {
			for tenant := range 10 {
				all.Go(func() {
					for ctx.Err() == nil {
						if fleet[p].Wait(ctx, fmt.Sprint(tenant), 5) == nil {
							used[p].Add(5)
						} else if p == 0 {
							return // this process's client is closed
						}
					}
				})
				all.Go(func() {
					for ctx.Err() == nil {
						if fleet[p].Allow(fmt.Sprint("modest", tenant), 1) {
							used[p].Add(1)
						}
						time.Sleep(200 * time.Millisecond)
					}
				})
			}
		}
		time.Sleep(5 * time.Second)
		require.NoError(t, fleet[0].store.user.Close())
		last := used[0].Load()
		time.Sleep(1500 * time.Millisecond)
		fleet[0].mu.Lock()
		lost := fleet[0].heldLocked(false)
		fleet[0].mu.Unlock()
		assert.Zero(t, lost, "what Redis counts as used is not used any more")
		assert.LessOrEqual(t, used[0].Load()-last, int64(2*rate/10))
		before := used[1].Load() + used[2].Load()
		time.Sleep(5 * time.Second)
		assert.GreaterOrEqual(t, used[1].Load()+used[2].Load()-before, int64(0.98*5*rate))
		stop()
		all.Wait()
	})
}

// Ten thousand tenants take little of Redis's memory, and no more calls than a few tenants.
func TestAFleetHasRoomForTenThousandTenants(t *testing.T) {
	tenants := testsize.Of(2000, 10_000)
	virtual(t, ratelimit.TokenBucket(ratelimit.PerSecond(tenants/2), 2*tenants), 2, nil, func(t *testing.T, fleet []*Fair, calls func() int64) {
		ctx, stop := context.WithCancel(t.Context())
		var all sync.WaitGroup
		used, before := make([]atomic.Int64, tenants), make([]int64, tenants)
		for n := range tenants {
			rng := rand.New(rand.NewPCG(1, uint64(n)))
			all.Go(func() {
				for time.Sleep(time.Duration(rng.Int64N(1e9))); ctx.Err() == nil; time.Sleep(time.Second) {
					if fleet[n%2].Allow(fmt.Sprint(n), 1) {
						used[n].Add(1)
					}
				}
			})
		}
		time.Sleep(10 * time.Second)
		began := calls()
		for n := range used {
			before[n] = used[n].Load()
		}
		time.Sleep(20 * time.Second)
		made, total, least := (calls()-began)/20, int64(0), int64(1000)
		for n := range used {
			total += used[n].Load() - before[n]
			least = min(least, used[n].Load()-before[n])
		}
		stop()
		all.Wait()
		t.Logf("%d calls a second, %d of %d units used, at least %d by a tenant", made, total, 10*tenants, least)
		assert.LessOrEqual(t, made, int64(250))
		assert.GreaterOrEqual(t, total, int64(0.95*10*float64(tenants)))
		assert.Positive(t, least)
	})
}
