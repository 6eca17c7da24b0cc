package redislimit

import (
	"context"
	"fmt"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/weir-go/ratelimit"
	"github.com/weir-go/ratelimit/internal/dev/model"
	"github.com/weir-go/ratelimit/internal/dev/redistest"
	"github.com/weir-go/ratelimit/internal/dev/testsize"
)

// visit is a request of a tenant's user.
type visit struct {
	tenant, user string
	cost         int
}

func tenantOf(v visit) (string, error) { return v.tenant, nil }
func userOf(v visit) (string, error)   { return v.tenant + "/" + v.user, nil }

func newOn(t testing.TB, client redis.UniversalClient, limit ratelimit.Limit, name string, o Options) *Limiter {
	o.Name = name
	if o.Timeout == 0 {
		o.Timeout = 20 * time.Second
	}
	l, err := New(client, limit.Named(name), &o)
	require.NoError(t, err)
	return l
}

// leased makes a limiter lease, as Options.MaxBatch does from the beginning.
func leased(l *Limiter, maxBatch int) *Limiter {
	if l.leases == nil {
		l.leases = ratelimit.Must(newLeases(l, maxBatch))
	}
	return l
}

// tenantsInTotal makes a stack of 5 an hour for each tenant, and of a leased total of 100 an hour.
// left returns what is left of the total.
func tenantsInTotal(t *testing.T) (tenants, total *Limiter, stack *ratelimit.Layered[visit], left func() int) {
	client := startServer(t).client()
	tenants = newOn(t, client, ratelimit.FixedWindow(ratelimit.PerHour(5)), "tenant", Options{})
	total = newOn(t, client, ratelimit.FixedWindow(ratelimit.PerHour(100)), "total", Options{})
	stack, err := ratelimit.All(ratelimit.By(tenants, tenantOf), ratelimit.Global[visit](leased(total, 10)))
	require.NoError(t, err)
	return tenants, total, stack, func() int {
		require.NoError(t, total.Flush(t.Context()))
		return leftOf(t, total, "")
	}
}

func leftOf(t *testing.T, l *Limiter, key string) int {
	d, err := l.Peek(t.Context(), key, 0)
	require.NoError(t, err)
	return d.Remaining
}

func TestALeasedLayerIsNotChargedWhatAnotherOneDenies(t *testing.T) {
	_, _, stack, left := tenantsInTotal(t)
	for i := range 20 {
		d, err := stack.Take(t.Context(), visit{tenant: "a"}, 1)
		require.NoError(t, err)
		assert.Equal(t, i < 5, d.Allowed)
		assert.Equal(t, "tenant", d.Limit.Name)
	}
	assert.Equal(t, 95, left())
}

func TestALeasedLayerIsSettledWithTheOthers(t *testing.T) {
	for name, row := range map[string]struct {
		free             bool // the total's cost is always 0
		reserved, actual int
		tenant, total    int // what is left of each
	}{
		"less than reserved":                    {reserved: 5, actual: 2, tenant: 3, total: 98},
		"a reserved 0 is charged at the end":    {reserved: 0, actual: 4, tenant: 1, total: 96},
		"a layer's cost of 0 stays a cost of 0": {free: true, reserved: 1, actual: 3, tenant: 2, total: 100},
	} {
		t.Run(name, func(t *testing.T) {
			tenants, total, stack, left := tenantsInTotal(t)
			if row.free {
				stack = ratelimit.Must(ratelimit.All(ratelimit.By(tenants, tenantOf),
					model.WithCost(ratelimit.Global[visit](total), func(visit) int { return 0 })))
			}
			r, err := stack.Reserve(t.Context(), visit{tenant: "a"}, row.reserved, 0)
			require.NoError(t, err)
			require.True(t, r.Allowed)
			require.NoError(t, r.Settle(row.actual))
			assert.Equal(t, row.total, left())
			assert.Equal(t, row.tenant, leftOf(t, tenants, "a"))
		})
	}
}

func TestOthersAreNotChargedWhatALeasedLayerDenies(t *testing.T) {
	tenants, total, stack, _ := tenantsInTotal(t)
	require.NoError(t, total.Adjust(t.Context(), "", 100))
	d, err := stack.Take(t.Context(), visit{tenant: "a"}, 1)
	require.NoError(t, err)
	assert.False(t, d.Allowed)
	assert.Equal(t, "total", d.Limit.Name)
	assert.Positive(t, d.RetryAfter)
	assert.Equal(t, 5, leftOf(t, tenants, "a"))
	d, err = stack.Peek(t.Context(), visit{tenant: "a"}, 1)
	require.NoError(t, err)
	assert.False(t, d.Allowed)
	ctx, cancel := context.WithTimeout(t.Context(), time.Second)
	defer cancel()
	assert.ErrorIs(t, stack.Wait(ctx, visit{tenant: "a"}, 1), context.DeadlineExceeded)
}

func TestALeasedLayersObserverGetsDecisionsAndNotBatches(t *testing.T) {
	var events []ratelimit.Event[string]
	routes := newOn(t, startServer(t).client(), ratelimit.FixedWindow(ratelimit.PerHour(100)), "route", Options{OnDecision: func(e ratelimit.Event[string]) { events = append(events, e) }})
	stack, err := ratelimit.All(model.WithCost(ratelimit.By(leased(routes, 20), tenantOf), func(v visit) int { return v.cost }))
	require.NoError(t, err)
	for range 5 {
		d, err := stack.Take(t.Context(), visit{tenant: "a", cost: 7}, 1)
		require.NoError(t, err)
		assert.True(t, d.Allowed)
	}
	require.Len(t, events, 5)
	for _, e := range events {
		assert.Equal(t, 7, e.Cost)
		assert.True(t, e.Spent)
		assert.Equal(t, "a", e.Key)
	}
	d, err := stack.Take(t.Context(), visit{tenant: "a", cost: 70}, 1)
	require.NoError(t, err)
	assert.False(t, d.Allowed)
	require.NoError(t, flushAll(stack, t.Context()))
	assert.Equal(t, 65, leftOf(t, routes, "a"))
}

func TestALeasedShadowDeniesNothingAndIsNotChargedWhatDoesNotFit(t *testing.T) {
	client := startServer(t).client()
	routes := newOn(t, client, ratelimit.FixedWindow(ratelimit.PerHour(100)), "route", Options{})
	trial := newOn(t, client, ratelimit.FixedWindow(ratelimit.PerHour(3)), "trial", Options{})
	var seen []ratelimit.Event[visit]
	stack, err := ratelimit.All(
		model.WithCost(ratelimit.By(leased(routes, 20), tenantOf), func(v visit) int { return v.cost }),
		model.ObservedBy(model.AsShadow(ratelimit.Global[visit](leased(trial, 2))), func(e ratelimit.Event[visit]) { seen = append(seen, e) }))
	require.NoError(t, err)
	for range 5 {
		d, err := stack.Take(t.Context(), visit{tenant: "a", cost: 7}, 1)
		require.NoError(t, err)
		assert.True(t, d.Allowed)
	}
	require.Len(t, seen, 5)
	for i, e := range seen {
		assert.Equal(t, i < 3, e.Spent)
	}
	d, err := stack.Take(t.Context(), visit{tenant: "a", cost: 70}, 1)
	require.NoError(t, err)
	assert.False(t, d.Allowed)
	_, err = stack.Take(t.Context(), visit{tenant: "a"}, 0)
	require.NoError(t, err)
	assert.Len(t, seen, 5, "a shadow without a decision reports none")

	alone, err := ratelimit.All(ratelimit.Global[visit](trial))
	require.NoError(t, err)
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
	defer cancel()
	assert.ErrorIs(t, promptly(t, func() error { return alone.Wait(ctx, visit{}, 1) }), context.DeadlineExceeded, "it is denied for longer")
}

func TestALeasedLayersLimitMayBeTheRequests(t *testing.T) {
	routes := newOn(t, startServer(t).client(), ratelimit.FixedWindow(ratelimit.PerHour(100)), "route", Options{})
	stack, err := ratelimit.All(model.WithLimit(ratelimit.By(leased(routes, 20), tenantOf), func(v visit) ratelimit.Limit {
		return map[string]ratelimit.Limit{"vip": ratelimit.FixedWindow(ratelimit.PerHour(200))}[v.user]
	}))
	require.NoError(t, err)
	require.NoError(t, routes.Adjust(t.Context(), "a", 35))
	for _, row := range []struct {
		user    string
		cost    int
		allowed bool
		err     error
	}{
		{user: "vip", cost: 100, allowed: true},
		{user: "vip", cost: 201, err: ratelimit.ErrExceedsLimit},
		{cost: 100},
		{cost: 101, err: ratelimit.ErrExceedsLimit},
	} {
		r, err := stack.Reserve(t.Context(), visit{tenant: "a", user: row.user}, row.cost, 0)
		require.ErrorIs(t, err, row.err)
		assert.Equal(t, row.allowed, r.Allowed, "%s %d", row.user, row.cost)
		require.NoError(t, r.Cancel())
	}
}

func TestLeasedNamesTheFault(t *testing.T) {
	client := redis.NewClient(&redis.Options{Addr: "127.0.0.1:1"})
	defer client.Close()
	leaky := ratelimit.LeakyBucket(ratelimit.PerMinute(10), 10).Named("b")
	for _, c := range []struct {
		limit    ratelimit.Limit
		maxBatch int
		want     string
	}{
		{perMinute(10).Named("a"), -1, "Options.MaxBatch is -1"},
		{leaky, 1, "leaky"},
	} {
		_, err := New(client, c.limit, &Options{MaxBatch: c.maxBatch})
		assert.ErrorContains(t, err, c.want)
	}
	l := newOn(t, client, perMinute(10), "a", Options{MaxBatch: 1})
	require.ErrorIs(t, l.SetLimit(leaky), ratelimit.ErrInvalidLimit)
	require.NoError(t, l.SetLimit(perMinute(11)))
	varied := newOn(t, client, perMinute(10), "c", Options{MaxBatch: 1, LimitFor: func(string) ratelimit.Limit { return leaky }})
	_, err := varied.Take(t.Context(), "k", 1)
	require.ErrorIs(t, err, ratelimit.ErrInvalidLimit)
	_, err = ratelimit.All(ratelimit.By(l, identity), ratelimit.Global[string](l))
	assert.ErrorContains(t, err, "one limiter")
}

// A Ring uses the server of the first key for all keys. Without a check, each server would have its own budget.
func TestARingRefusesKeysOfSeveralServers(t *testing.T) {
	ring := redis.NewRing(&redis.RingOptions{Addrs: map[string]string{"a": startServer(t).addr, "b": startServer(t).addr, "c": startServer(t).addr}})
	defer ring.Close()
	total := newOn(t, ring, ratelimit.FixedWindow(ratelimit.PerHour(50)), "total", Options{})
	users := newOn(t, ring, perMinute(1000), "user", Options{})
	_, err := ratelimit.All(ratelimit.By(users, identity), ratelimit.Global[string](total))
	require.Error(t, err)
	for _, what := range []string{"Slot", "MaxBatch", "layer 1", "layer 0"} {
		assert.ErrorContains(t, err, what)
	}
	_, err = ratelimit.All(ratelimit.Global[string](total))
	require.NoError(t, err, "alone it is right")

	hidden, err := ratelimit.All(ratelimit.By(users, identity), ratelimit.By(total, func(string) (string, error) { return "", nil }))
	require.NoError(t, err, "that the key is always the same is not known")
	allowed, refused := 0, 0
	for i := range 100 {
		d, err := hidden.Take(t.Context(), fmt.Sprint(i), 1)
		if err != nil {
			assert.ErrorContains(t, err, "Slot")
			assert.ErrorContains(t, err, "MaxBatch")
			assert.NotErrorIs(t, err, ratelimit.ErrUnavailable)
			refused++
		} else if d.Allowed {
			allowed++
		}
	}
	assert.LessOrEqual(t, allowed, 50)
	assert.Positive(t, refused)

	stack, err := ratelimit.All(ratelimit.By(users, identity), ratelimit.Global[string](leased(total, 10)))
	require.NoError(t, err)
	d, err := total.Peek(t.Context(), "", 0)
	require.NoError(t, err)
	budget := d.Remaining
	allowed = 0
	for i := range 100 {
		d, err := stack.Take(t.Context(), fmt.Sprint(i), 1)
		require.NoError(t, err)
		if d.Allowed {
			allowed++
		}
	}
	assert.Equal(t, budget, allowed)

	oneSlot := Options{Slot: func(string) string { return "one" }}
	slotted, err := ratelimit.All(ratelimit.By(newOn(t, ring, perMinute(1000), "user2", oneSlot), identity), ratelimit.Global[string](newOn(t, ring, perMinute(1000), "total2", oneSlot)))
	require.NoError(t, err)
	for i := range 20 {
		_, err := slotted.Take(t.Context(), fmt.Sprint(i), 1)
		require.NoError(t, err)
	}
}

// Several processes have tenants in slots of their own, and lease from a total and a limit for
// each route. They run on a real cluster of six servers, while slots move and a master dies.
func TestLayersAcrossAClusterHoldTheirBounds(t *testing.T) {
	t.Parallel()
	cluster := redistest.StartCluster(t, 3, true)
	const processes, tenants, batch = 4, 60, 50
	size := testsize.Of(1, 2)
	totalLimit, routeLimit, tenantLimit := 6000*size, 4000*size, 200*size
	slot := Options{Slot: func(key string) string { return key[:3] }}
	var stacks []*ratelimit.Layered[visit]
	for range processes {
		client := clusterClient(t, cluster)
		ten := newOn(t, client, ratelimit.FixedWindow(ratelimit.PerDay(tenantLimit)), "tenant", slot)
		user := newOn(t, client, ratelimit.FixedWindow(ratelimit.PerDay(tenantLimit)), "user", slot)
		total := newOn(t, client, ratelimit.FixedWindow(ratelimit.PerDay(totalLimit)), "total", Options{})
		route := newOn(t, client, ratelimit.FixedWindow(ratelimit.PerDay(routeLimit)), "route", Options{})
		stack, err := ratelimit.All(ratelimit.By(ten, tenantOf), ratelimit.By(user, userOf),
			ratelimit.Global[visit](leased(total, batch)), ratelimit.By(leased(route, batch), func(v visit) (string, error) { return fmt.Sprint(v.cost), nil }))
		require.NoError(t, err)
		require.Eventually(t, func() bool {
			_, err := stack.Peek(t.Context(), visit{tenant: "t00", user: "u"}, 1)
			return err == nil
		}, 30*time.Second, 20*time.Millisecond)
		stacks = append(stacks, stack)
	}
	var allowed, calls, failed atomic.Int64
	var byTenant [tenants]atomic.Int64
	var byRoute [2]atomic.Int64
	var stop atomic.Bool
	var calling sync.RWMutex // calls hold it for reading; locking it for writing waits for them and delays later ones
	take := func(rng *rand.Rand, stack *ratelimit.Layered[visit]) (admitted bool, err error) {
		calling.RLock()
		defer calling.RUnlock()
		n, route := rng.IntN(tenants), rng.IntN(2)
		v := visit{tenant: fmt.Sprintf("t%02d", n), user: fmt.Sprint(rng.IntN(3)), cost: route}
		calls.Add(1)
		d, err := stack.Take(t.Context(), v, 1)
		if d.Allowed {
			allowed.Add(1)
			byTenant[n].Add(1)
			byRoute[route].Add(1)
		}
		return d.Allowed, err
	}
	run := func(each int) *sync.WaitGroup {
		var wg sync.WaitGroup
		for p, stack := range stacks {
			for g := range 4 {
				rng := rand.New(rand.NewPCG(uint64(p), uint64(g)))
				wg.Go(func() {
					for i := 0; i < each && !stop.Load(); i++ {
						admitted, err := take(rng, stack)
						if err != nil {
							assert.ErrorIs(t, err, ratelimit.ErrUnavailable)
							failed.Add(1)
						}
						if !admitted {
							// at the end only denials are left, and the wait for a new master
							time.Sleep(testsize.Of[time.Duration](5, 1) * time.Millisecond)
						}
					}
				})
			}
		}
		return &wg
	}

	before, start := serverCalls(t, cluster), time.Now()
	run(125 * size).Wait()
	// A batch lasts for 50 ms, so a slow machine fetches more batches for each
	// decision. Each process fetches batches for the total and two routes.
	fetches := max(0.1*float64(calls.Load()), 3*processes*time.Since(start).Seconds()/0.05)
	after := serverCalls(t, cluster)
	require.Zero(t, failed.Load())
	var sum, most int
	for i := range after[:3] {
		sum, most = sum+after[i]-before[i], max(most, after[i]-before[i])
	}
	assert.LessOrEqual(t, float64(sum), float64(calls.Load())+fetches+60, "calls of Redis for a decision; 60 to teach scripts and find the size of batches")
	assert.LessOrEqual(t, float64(most), 1.2*float64(calls.Load())/3+fetches+60, "the load is spread; all fetches may ask one server")

	wg := run(1 << 30)
	for i := range 3 {
		s, err := cluster.Slot(fmt.Sprintf("x{t%02d}", i))
		require.NoError(t, err)
		from := s * 3 / redistest.Slots
		require.NoError(t, cluster.Move(s, from, (from+1)%3, nil))
	}
	assert.Zero(t, failed.Load(), "nobody sees that slots move")
	require.Eventually(t, func() bool { return int(allowed.Load()) >= totalLimit*9/10 }, 2*time.Minute, 10*time.Millisecond, "the budget is used")
	calling.Lock()
	require.NoError(t, cluster.Replicated(0)) // otherwise lost charges would be admitted again
	cluster.Kill(t, 0)
	calling.Unlock()
	time.Sleep(3 * time.Second)
	stop.Store(true)
	wg.Wait()
	held := func(what string, limit int, n int64) {
		assert.LessOrEqual(t, n, int64(limit), what)
	}
	held("total", totalLimit+processes*batch, allowed.Load())
	for i := range byRoute {
		held("route", routeLimit+processes*batch, byRoute[i].Load())
	}
	for i := range byTenant {
		held("tenant", tenantLimit, byTenant[i].Load())
	}
	t.Logf("%d calls, %d allowed, %d failed; calls of the masters before %v, after %v", calls.Load(), allowed.Load(), failed.Load(), before, after)
}

// serverCalls counts each node's script calls.
func serverCalls(t *testing.T, cluster *redistest.Cluster) (calls []int) {
	for _, s := range cluster.Nodes {
		info, err := s.Do("INFO", "commandstats")
		require.NoError(t, err)
		n := 0
		if m := perCall.FindStringSubmatch(info); m != nil {
			_, err := fmt.Sscan(m[1], &n)
			require.NoError(t, err)
		}
		calls = append(calls, n)
	}
	return calls
}

// A random history of a stack with leased layers is checked against plain sums. Each
// reported charge counts alike in all layers, even if a layer settles, cancels or denies.
func TestRandomHistoriesOfLeasedLayersAddUp(t *testing.T) {
	client := startServer(t).client()
	begin := time.Now()
	for seed := uint64(0); seed < 10 || time.Since(begin) < randomDuration(); seed++ {
		rng := rand.New(rand.NewPCG(testsize.Seed(seed), 7))
		day := func() ratelimit.Limit { return ratelimit.FixedWindow(ratelimit.PerDay(60 + rng.IntN(200))) }
		totalLimit, tenantLimit, routeLimit := day(), day(), day()
		name := fmt.Sprint("history", seed)
		total, tenant, route := newOn(t, client, totalLimit, name+"total", Options{}), newOn(t, client, tenantLimit, name+"tenant", Options{}), newOn(t, client, routeLimit, name+"route", Options{})
		stack, err := ratelimit.All(ratelimit.Global[visit](leased(total, 1+rng.IntN(30))), ratelimit.By(tenant, tenantOf),
			model.WithCost(ratelimit.By(leased(route, 1+rng.IntN(30)), userOf), func(v visit) int { return v.cost }))
		require.NoError(t, err)
		spent := map[string]int{}
		type open struct {
			r    *ratelimit.Reservation
			v    visit
			cost int
		}
		var all []open
		charge := func(v visit, cost, own int) {
			spent["total"] += cost
			spent[v.tenant] += cost
			spent[v.tenant+"/"+v.user] += own
		}
		for range 150 {
			v := visit{tenant: fmt.Sprint("t", rng.IntN(2)), user: fmt.Sprint(rng.IntN(2)), cost: 1 + rng.IntN(4)}
			cost := 1 + rng.IntN(6)
			switch n := rng.IntN(10); {
			case n < 5:
				d, err := stack.Take(t.Context(), v, cost)
				require.NoError(t, err)
				if d.Allowed {
					charge(v, cost, v.cost)
				}
			case n < 8:
				r, err := stack.Reserve(t.Context(), v, cost, 0)
				require.NoError(t, err)
				if r.Allowed {
					charge(v, cost, v.cost)
					all = append(all, open{r, v, cost})
				}
			case len(all) > 0:
				o := all[0]
				all = all[1:]
				actual := rng.IntN(o.cost + 1)
				require.NoError(t, o.r.Settle(actual))
				own := 0
				if actual == 0 {
					own = -o.v.cost
				}
				charge(o.v, actual-o.cost, own)
			}
			require.LessOrEqual(t, spent["total"], totalLimit.Capacity(), "seed %d", seed)
			require.LessOrEqual(t, spent[v.tenant], tenantLimit.Capacity(), "seed %d", seed)
			require.LessOrEqual(t, spent[v.tenant+"/"+v.user], routeLimit.Capacity(), "seed %d", seed)
		}
		for _, o := range all {
			require.NoError(t, o.r.Settle(o.cost))
		}
		require.NoError(t, flushAll(stack, t.Context()))
		for key, is := range spent {
			l, k := route, key
			switch {
			case key == "total":
				l, k = total, ""
			case len(key) == 2:
				l = tenant
			}
			d, err := l.Peek(t.Context(), k, 0)
			require.NoError(t, err)
			require.Equal(t, is, l.Describe().Limits[0].Capacity()-d.Remaining, "seed %d, %s", seed, key)
		}
	}
}

// heldUnits returns the cost charged to a key beyond the admitted cost, under a limit without regain.
func heldUnits(t *testing.T, l *Limiter, key string, admitted int) int {
	d, err := l.Peek(t.Context(), key, 0)
	require.NoError(t, err)
	return d.Limit.Capacity() - d.Remaining - admitted
}

func TestStacksOfOneProcessShareTheirLeases(t *testing.T) {
	client := startServer(t).client()
	total := newOn(t, client, ratelimit.FixedWindow(ratelimit.PerDay(1_000_000)), "total", Options{})
	const batch = 100
	admitted := 0
	for range 8 {
		stack, err := ratelimit.All(ratelimit.By(leased(total, batch), identity))
		require.NoError(t, err)
		for range 300 {
			d, err := stack.Take(t.Context(), "k", 1)
			require.NoError(t, err)
			require.True(t, d.Allowed)
			admitted++
		}
		assert.LessOrEqual(t, heldUnits(t, total, "k", admitted), batch)
	}
}

func TestAKeyUnderSeveralLimitsHoldsOneBatch(t *testing.T) {
	client := startServer(t).client()
	l := newOn(t, client, ratelimit.FixedWindow(ratelimit.PerDay(1_000_000)), "plans", Options{})
	const batch = 100
	stack, err := ratelimit.All(model.WithLimit(ratelimit.By(leased(l, batch), userOf), func(v visit) ratelimit.Limit {
		return ratelimit.FixedWindow(ratelimit.PerDay(v.cost))
	}))
	require.NoError(t, err)
	admitted := 0
	for range 300 {
		for plan := range 8 {
			d, err := stack.Take(t.Context(), visit{user: "u", cost: 1_000_000 - plan}, 1)
			require.NoError(t, err)
			require.True(t, d.Allowed)
			assert.Equal(t, 1_000_000-plan, d.Limit.Capacity())
			admitted++
		}
	}
	assert.LessOrEqual(t, heldUnits(t, l, "/u", admitted), batch)
	d, err := stack.Take(t.Context(), visit{user: "u", cost: 10}, 1)
	require.NoError(t, err)
	assert.False(t, d.Allowed, "what was spent under the others is spent")
	d, err = stack.Peek(t.Context(), visit{user: "u", cost: 10}, 1)
	require.NoError(t, err)
	assert.False(t, d.Allowed)
	assert.Equal(t, 10, d.Limit.Capacity())
	d, err = stack.Take(t.Context(), visit{user: "u", cost: 1_000_000}, 1)
	require.NoError(t, err)
	assert.True(t, d.Allowed, "no limit's denial is that of another one")
}

// A plan rarely changes. Requests are leased again once the earlier plan's batches are gone.
func TestAKeyIsLeasedUnderItsNewLimitAfterAWhile(t *testing.T) {
	l := newOn(t, redis.NewClient(&redis.Options{Addr: "127.0.0.1:1"}), ratelimit.FixedWindow(ratelimit.PerDay(1_000_000)), "plans", Options{Timeout: time.Millisecond})
	s, err := newLeases(l, 100)
	require.NoError(t, err)
	old, fresh := leaseKey{key: "k"}, leaseKey{key: "k", limit: ratelimit.FixedWindow(ratelimit.PerDay(5))}
	assert.True(t, s.under(old))
	assert.False(t, s.under(fresh))
	assert.True(t, s.under(old))
	s.limits["k"].last = s.limits["k"].last.Add(-s.idle - time.Second)
	assert.True(t, s.under(fresh))
	assert.False(t, s.under(old))
	for i := range minSweep {
		s.under(leaseKey{key: fmt.Sprint(i)})
	}
	for _, at := range s.limits {
		at.last = at.last.Add(-s.idle - time.Second)
	}
	for i := range minSweep {
		s.under(leaseKey{key: fmt.Sprint("later", i)})
	}
	assert.LessOrEqual(t, len(s.limits), minSweep+1, "idle keys are forgotten")
}

// TestALeasedLimiterByItself checks that a leased limiter decides most
// calls of each method without a round trip, and reports each decision.
func TestALeasedLimiterByItself(t *testing.T) {
	client := startServer(t).client()
	var events []ratelimit.Event[string]
	l := newOn(t, client, ratelimit.FixedWindow(ratelimit.PerDay(1000)), "alone", Options{MaxBatch: 100, OnDecision: func(e ratelimit.Event[string]) { events = append(events, e) }})
	other := newOn(t, client, ratelimit.FixedWindow(ratelimit.PerDay(1000)), "alone", Options{})
	assert.False(t, l.Describe().BooksAhead)
	for range 100 {
		require.True(t, l.Allow("k", 1))
	}
	d, err := l.Take(t.Context(), "k", 2)
	require.NoError(t, err)
	require.True(t, d.Allowed)
	require.NoError(t, l.Wait(t.Context(), "k", 3))
	res, err := l.Reserve(t.Context(), "k", 50, 0)
	require.NoError(t, err)
	require.NoError(t, res.Settle(5))
	require.Len(t, events, 103)
	for _, e := range events {
		assert.True(t, e.Decision.Allowed)
		assert.Equal(t, "alone", e.Decision.Limit.Name)
	}
	at, err := other.Peek(t.Context(), "k", 1)
	require.NoError(t, err)
	assert.LessOrEqual(t, 1000-at.Remaining, 110+150, "a process holds a batch at most, beside what its reservation took")
	require.NoError(t, l.Flush(t.Context()))
	at, err = l.Peek(t.Context(), "k", 1)
	require.NoError(t, err)
	assert.Equal(t, 1000-110, at.Remaining)
	require.NoError(t, l.Adjust(t.Context(), "k", 890))
	require.Eventually(t, func() bool { return !l.Allow("k", 1) }, time.Minute, time.Millisecond)
	require.NoError(t, l.Reset(t.Context(), "k"))
	require.Eventually(t, func() bool { return l.Allow("k", 1) }, time.Minute, 10*time.Millisecond)
	require.NoError(t, other.Flush(t.Context()), "nothing is leased")
	require.NoError(t, l.Flush(t.Context()))
}
