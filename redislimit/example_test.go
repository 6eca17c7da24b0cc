package redislimit_test

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/weir-go/ratelimit"
	"github.com/weir-go/ratelimit/failover"
	"github.com/weir-go/ratelimit/httplimit"
	"github.com/weir-go/ratelimit/inflight"
	"github.com/weir-go/ratelimit/internal/dev/proc"
	"github.com/weir-go/ratelimit/redislimit"
)

// Examples run on a real server, and cannot skip themselves. In CI none may be missing.
func init() {
	if _, err := proc.RedisServer(); err != nil && os.Getenv("CI") != "true" {
		testing.Init() // else the flag is not defined yet
		if err := flag.Set("test.skip", "^Example"); err != nil {
			panic(err)
		}
	}
}

// onServer runs an example on a redis-server of its own.
func onServer(example func(context.Context, *redis.Client) error) {
	path, err := proc.RedisServer()
	if err != nil {
		panic(err)
	}
	dir, err := os.MkdirTemp("", "redis") // short, for the socket's path
	if err != nil {
		panic(err)
	}
	defer os.RemoveAll(dir)
	socket := filepath.Join(dir, "socket")
	cmd := exec.Command(path, "--port", "0", "--unixsocket", socket, "--save", "", "--appendonly", "no", "--dir", dir)
	if err := cmd.Start(); err != nil {
		panic(err)
	}
	defer func() {
		_ = cmd.Process.Kill()
		_ = cmd.Wait() // it was killed
	}()
	client := redis.NewClient(&redis.Options{Network: "unix", Addr: socket})
	defer client.Close()
	for try := 0; client.Ping(context.Background()).Err() != nil; try++ {
		if try == 500 {
			panic("redis-server does not answer")
		}
		time.Sleep(10 * time.Millisecond)
	}
	if err := example(context.Background(), client); err != nil {
		fmt.Println(err)
	}
}

func take(ctx context.Context, client *redis.Client) error {
	limit := ratelimit.TokenBucket(ratelimit.PerHour(50), 20).Named("api")
	limiter, err := redislimit.New(client, limit, &redislimit.Options{Timeout: time.Second}) // default: 50 ms
	if err != nil {
		return err
	}
	d, err := limiter.Take(ctx, "user:42", 1)
	if err != nil {
		return err
	}
	fmt.Println(d.Allowed, d.Remaining)
	return nil
}

func Example() {
	onServer(take)
	// Output: true 19
}

type request struct{ tenant, user string }

func takeBoth(ctx context.Context, client *redis.Client) error {
	oneSlot := &redislimit.Options{
		Slot:    func(string) string { return "api" }, // matters in a cluster only
		Timeout: time.Second,
	}
	users, err := redislimit.New(client, ratelimit.TokenBucket(ratelimit.PerHour(50), 20).Named("user"), oneSlot)
	if err != nil {
		return err
	}
	total, err := redislimit.New(client, ratelimit.FixedWindow(ratelimit.PerHour(2)).Named("total"), oneSlot)
	if err != nil {
		return err
	}
	both, err := ratelimit.All(
		ratelimit.By(users, func(r request) (string, error) { return r.user, nil }),
		ratelimit.Global[request](total),
	)
	if err != nil {
		return err
	}
	for range 3 {
		d, err := both.Take(ctx, request{user: "user:42"}, 1)
		if err != nil {
			return err
		}
		fmt.Println(d.Allowed, d.Remaining, d.Limit)
	}
	return nil
}

func ExampleAll() {
	onServer(takeBoth)
	// Output:
	// true 1 fixed-window 2/h
	// true 0 fixed-window 2/h
	// false 0 fixed-window 2/h
}

// The layers are written once: Local makes the same stack in memory, with an eighth of each limit, for package failover to use
// while Redis is down.
func ExampleLayered_Local() {
	client := redis.NewClient(&redis.Options{Addr: "localhost:6379"})
	defer client.Close()
	users, err := redislimit.New(client, ratelimit.TokenBucket(ratelimit.PerSecond(80), 40).Named("user"), nil)
	if err != nil {
		fmt.Println(err)
		return
	}
	everyone, err := redislimit.New(client, ratelimit.FixedWindow(ratelimit.PerHour(100_000)).Named("service"), nil)
	if err != nil {
		fmt.Println(err)
		return
	}
	shared, err := ratelimit.All(
		ratelimit.By(users, func(user string) (string, error) { return user, nil }),
		ratelimit.Global[string](everyone),
	)
	if err != nil {
		fmt.Println(err)
		return
	}

	const nodes = 8
	share := func(l ratelimit.Limit) ratelimit.Limit { return failover.Share(l, nodes) }
	local, err := shared.Local(share, 0) // 0 keys: the default of ratelimit.Options.MaxKeys
	if err != nil {
		fmt.Println(err)
		return
	}
	for _, l := range local.Describe().Limits {
		fmt.Println(l.Name, l)
	}
	// Output:
	// user token-bucket 80/8s burst 5
	// service fixed-window 12500/h
}

func acrossNodes(client *redis.ClusterClient) (*ratelimit.Layered[request], error) {
	byTenant := &redislimit.Options{Slot: func(key string) string { // user keys begin with the tenant
		tenant, _, _ := strings.Cut(key, "/")
		return tenant
	}}
	users, err := redislimit.New(client, ratelimit.TokenBucket(ratelimit.PerSecond(10), 20).Named("user"), byTenant)
	if err != nil {
		return nil, err
	}
	tenants, err := redislimit.New(client, ratelimit.TokenBucket(ratelimit.PerSecond(500), 500).Named("tenant"), byTenant)
	if err != nil {
		return nil, err
	}
	total, err := redislimit.New(client, ratelimit.TokenBucket(ratelimit.PerSecond(20_000), 20_000).Named("total"), &redislimit.Options{MaxBatch: 200})
	if err != nil {
		return nil, err
	}
	return ratelimit.All(
		ratelimit.By(users, func(r request) (string, error) { return r.tenant + "/" + r.user, nil }),
		ratelimit.By(tenants, func(r request) (string, error) { return r.tenant, nil }),
		ratelimit.Global[request](total),
	)
}

func ExampleOptions_maxBatch() {
	client := redis.NewClusterClient(&redis.ClusterOptions{Addrs: []string{"localhost:7000", "localhost:7001", "localhost:7002"}})
	defer client.Close()
	limiter, err := acrossNodes(client)
	if err != nil {
		fmt.Println(err)
		return
	}
	fmt.Println(len(limiter.Describe().Limits), "limits")
	// Output: 3 limits
}

func limited(ctx context.Context, client *redis.Client) error {
	limit := ratelimit.FixedWindow(ratelimit.PerHour(2)).Named("api")
	limiter, err := redislimit.New(client, limit, &redislimit.Options{Timeout: time.Second})
	if err != nil {
		return err
	}
	limiter.Allow("alice", 2)
	limiter.Allow("bob", 1)
	return limiter.Each(ctx, func(user string, d ratelimit.Decision) bool {
		if !d.Allowed {
			fmt.Println(user, "has to wait for", d.RetryAfter.Round(time.Hour))
		}
		return true
	})
}

// Each lists the keys that are limited now. All processes count together.
func ExampleLimiter_Each() {
	onServer(limited)
	// Output: alice has to wait for 1h0m0s
}

func acquire(ctx context.Context, client *redis.Client) error {
	slots, err := redislimit.NewSemaphore(client, 20, &redislimit.SemaphoreOptions{Name: "partner", Hold: 30 * time.Second, Timeout: time.Second})
	if err != nil {
		return err
	}
	permit, err := slots.Acquire(ctx, "tenant-42", 1) // in line, if all 20 are taken
	if err != nil {
		return err
	}
	defer permit.Release(ctx)
	all, err := slots.Snapshot(ctx, "tenant-42")
	fmt.Println(all.InFlight, "in flight")
	return err
}

// A partner allows 20 calls at once, from all processes together.
func ExampleSemaphore() {
	onServer(acquire)
	// Output: 1 in flight
}

func extend(ctx context.Context, client *redis.Client) error {
	slots, err := redislimit.NewSemaphore(client, 1, &redislimit.SemaphoreOptions{Name: "jobs", Hold: time.Minute, Timeout: time.Second})
	if err != nil {
		return err
	}
	permit, err := slots.TryAcquire(ctx, "reindex", 1)
	if err != nil {
		return err
	}
	defer permit.Release(ctx)
	_, err = slots.TryAcquire(ctx, "reindex", 1)
	fmt.Println(errors.Is(err, ratelimit.ErrLimited))
	for part := range 3 { // each takes less than a minute
		err := permit.Extend(ctx)
		if errors.Is(err, redislimit.ErrLost) { // another worker may have begun
			return err
		}
		if err != nil { // Redis did not answer: the slot is held until Hold is over
			fmt.Println(err)
		}
		fmt.Println("part", part)
	}
	return nil
}

// A job that runs on one worker of the fleet, and takes longer than Hold.
func ExamplePermit_Extend() {
	onServer(extend)
	// Output:
	// true
	// part 0
	// part 1
	// part 2
}

// runJob runs a tenant's job: ten run in the fleet at once, and three of each tenant. The token keeps a worker that has lost its slot without
// noticing from writing over the results of another one.
func runJob(ctx context.Context, client *redis.Client) error {
	slots, err := redislimit.NewSemaphore(client, 3, &redislimit.SemaphoreOptions{
		Name: "workers", Total: 10, Owner: "worker 7", Timeout: time.Second,
		Priority: func(tenant string) int { return map[string]int{"gold": 1}[tenant] },
	})
	if err != nil {
		return err
	}
	permit, err := slots.Acquire(ctx, "gold", 1)
	if err != nil {
		return err
	}
	results := permit.Token() // of the table's row: UPDATE … WHERE token < $1
	all, err := slots.Holders(ctx, "gold")
	if err != nil {
		return err
	}
	for _, h := range all {
		fmt.Println(h.Owner, "has", h.Units, "since its token:", h.Since.UnixMicro() == results)
		err = errors.Join(err, slots.Revoke(ctx, "gold", h.ID)) // an operator ends it
	}
	fmt.Println(errors.Is(permit.Release(ctx), redislimit.ErrLost), slots.Stats().Lost)
	return err
}

// A fleet that runs ten jobs in all, and three of each tenant.
func ExampleSemaphore_Holders() {
	onServer(runJob)
	// Output:
	// worker 7 has 1 since its token: true
	// true 1
}

// partner limits calls to a partner: to 20 in the fleet, or, while Redis is down, to this process's share of these.
type partner struct {
	slots    *redislimit.Semaphore
	inMemory *inflight.Limiter[string]
}

func newPartner(client *redis.Client, limit, processes int) (*partner, error) {
	slots, err := redislimit.NewSemaphore(client, limit, &redislimit.SemaphoreOptions{Name: "partner"})
	if err != nil {
		return nil, err
	}
	whole := ratelimit.TokenBucket(ratelimit.PerSecond(limit), limit)
	share := failover.Share(whole, processes).Burst // rounded down, but at least 1
	inMemory, err := inflight.New[string](share, nil)
	return &partner{slots, inMemory}, err
}

// acquire takes a slot. Slots taken before Redis went down stay in use beside the slots in memory.
func (p *partner) acquire(ctx context.Context) (release func(), err error) {
	permit, err := p.slots.Acquire(ctx, "partner", 1)
	if errors.Is(err, ratelimit.ErrUnavailable) {
		local, err := p.inMemory.Acquire(ctx, "partner", 1)
		return local.Release, err
	}
	return func() { _ = permit.Release(ctx) }, err // which is repeated if it fails
}

// A process goes on with its share of the slots while Redis is down.
func ExampleSemaphore_Acquire_whileRedisIsDown() {
	client := redis.NewClient(&redis.Options{Addr: "127.0.0.1:1", DialerRetries: 1, MaxRetries: -1}) // nothing listens there
	defer client.Close()
	p, err := newPartner(client, 20, 8)
	if err != nil {
		panic(err)
	}
	var release []func()
	for range 2 {
		r, err := p.acquire(context.Background())
		fmt.Println(err)
		release = append(release, r)
	}
	ctx, cancel := context.WithTimeout(context.Background(), 20*time.Millisecond)
	defer cancel()
	_, err = p.acquire(ctx)
	fmt.Println(err != nil)
	for _, r := range release {
		r()
	}
	// Output:
	// <nil>
	// <nil>
	// true
}

func twoKeys(ctx context.Context, client *redis.Client) error {
	options := func(name string) *redislimit.SemaphoreOptions {
		return &redislimit.SemaphoreOptions{Name: name, Timeout: time.Second}
	}
	apiKeys, err := redislimit.NewSemaphore(client, 2, options("api-key"))
	if err != nil {
		return err
	}
	users, err := redislimit.NewSemaphore(client, 10, options("user"))
	if err != nil {
		return err
	}
	narrow, err := apiKeys.Acquire(ctx, "key-7", 1)
	if err != nil {
		return err
	}
	defer narrow.Release(ctx)
	wide, err := users.Acquire(ctx, "alice", 1)
	if err != nil {
		return err
	}
	defer wide.Release(ctx)
	fmt.Println("in flight for the key and for the user")
	return nil
}

// Two limits on one call: 2 in flight for an API key, 10 for the user that has it. The narrow one comes first: a call that waits
// for it does not hold a slot of the wide one, which other API keys can use. All callers take them in this order, so none waits for another one in
// a circle.
func ExampleSemaphore_Acquire_twoKeys() {
	onServer(twoKeys)
	// Output: in flight for the key and for the user
}

// completion is a request to a language model.
type completion struct {
	user, plan string
	tokens     int
}

func completions(ctx context.Context, client *redis.Client) error {
	options := &redislimit.Options{Timeout: time.Second, Slot: func(user string) string { return user }}
	calls, err := redislimit.New(client, ratelimit.TokenBucket(ratelimit.PerHour(10), 2).Named("calls"), options)
	if err != nil {
		return err
	}
	tokens, err := redislimit.New(client, ratelimit.FixedWindow(ratelimit.PerHour(1_000)).Named("tokens"), options)
	if err != nil {
		return err
	}
	stricter, err := redislimit.New(client, ratelimit.FixedWindow(ratelimit.PerHour(500)).Named("stricter"), options)
	if err != nil {
		return err
	}
	user := func(c completion) (string, error) { return c.user, nil }
	used := func(c completion) int { return c.tokens }
	byPlan := func(c completion) ratelimit.Limit {
		if c.plan == "team" {
			return ratelimit.TokenBucket(ratelimit.PerHour(100), 20)
		}
		return ratelimit.Limit{} // the limit of calls
	}
	tried := func(e ratelimit.Event[completion]) {
		fmt.Println("half of the tokens would do for", e.Key.user+":", e.Decision.Allowed)
	}
	byCalls, byTokens := ratelimit.By(calls, user), ratelimit.By(tokens, user)
	byCalls.Limit, byTokens.Cost = byPlan, used
	half := ratelimit.By(stricter, user)
	half.Cost, half.Shadow, half.Observe = used, true, tried
	limiter, err := ratelimit.AllOf(
		func(c completion, which []int) []int {
			if c.tokens == 0 { // such as a list of models
				return append(which, 0)
			}
			return append(which, 0, 1, 2)
		},
		byCalls, byTokens, half,
	)
	if err != nil {
		return err
	}
	for _, c := range []completion{{"ann", "", 400}, {"ann", "", 300}, {"ann", "", 0}, {"bob", "team", 900}} {
		d, err := limiter.Take(ctx, c, 1)
		if err != nil {
			return err
		}
		fmt.Println(c.user, d.Allowed, d.Limit.Name)
	}
	return nil
}

// Calls and tokens of each user, in one round trip, and a stricter limit that is tried out beside them.
func ExampleAllOf() {
	onServer(completions)
	// Output:
	// half of the tokens would do for ann: true
	// ann true calls
	// half of the tokens would do for ann: false
	// ann true calls
	// ann false calls
	// half of the tokens would do for bob: false
	// bob true tokens
}

func byAddress(shared *redislimit.Limiter) (*httplimit.Middleware, error) {
	return httplimit.New(ratelimit.Map(shared, func(r *http.Request) (string, error) {
		addr, err := httplimit.RemoteIP(r) // a netip.Addr
		return addr.String(), err
	}), nil)
}

// httplimit's key functions for addresses return a netip.Addr, and the keys of a shared budget are strings.
func ExampleNew_http() {
	onServer(func(ctx context.Context, client *redis.Client) error {
		shared, err := redislimit.New(client, ratelimit.FixedWindow(ratelimit.PerHour(1)).Named("http"), &redislimit.Options{Timeout: time.Second})
		if err != nil {
			return err
		}
		limit, err := byAddress(shared)
		if err != nil {
			return err
		}
		h := limit.Wrap(http.HandlerFunc(func(http.ResponseWriter, *http.Request) {}))
		for range 2 {
			w := httptest.NewRecorder()
			h.ServeHTTP(w, httptest.NewRequest("GET", "/", nil))
			fmt.Println(w.Code)
		}
		return nil
	})
	// Output:
	// 200
	// 429
}

// The tenants of all processes share one rate upstream, by their plans.
func ExampleNewFair() {
	onServer(shareUpstream)
	// Output: true
}

func shareUpstream(ctx context.Context, client *redis.Client) error {
	weights := map[string]int{"free": 1, "pro": 4}
	limit := ratelimit.TokenBucket(ratelimit.PerMinute(60_000), 20_000).Named("upstream")
	shared, err := redislimit.NewFair(client, limit, &redislimit.FairOptions{
		Weight: func(tenant string) int { plan, _, _ := strings.Cut(tenant, ":"); return weights[plan] },
	})
	if err != nil {
		return err
	}
	res, err := shared.Reserve(ctx, "pro:42", 4000, 20*time.Second) // in line, for an estimate of the tokens
	if err != nil {
		return err
	}
	fmt.Println(res.Allowed)
	if err := res.Settle(1200); err != nil { // the real cost
		return err
	}
	return shared.Flush(ctx) // before the process ends: gives back what it holds
}
