package redislimit

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"strconv"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/weir-go/ratelimit"
	"github.com/weir-go/ratelimit/internal/dev/redistest"
	"github.com/weir-go/ratelimit/internal/dev/testsize"
)

// spreadClients returns a Ring and a cluster's client, each for several servers.
func spreadClients(t *testing.T) map[string]redis.UniversalClient {
	ring := redis.NewRing(&redis.RingOptions{Addrs: map[string]string{"a": startServer(t).addr, "b": startServer(t).addr}})
	t.Cleanup(func() { assert.NoError(t, ring.Close()) })
	return map[string]redis.UniversalClient{"ring": ring, "cluster": startCluster(t)}
}

// hooked are clients that accept hooks.
type hooked interface{ AddHook(redis.Hook) }

func TestDecisionsShareRoundTripsByServer(t *testing.T) {
	t.Parallel()
	for kind, client := range spreadClients(t) {
		t.Run(kind, func(t *testing.T) {
			var seen counting
			client.(hooked).AddHook(&seen)
			for _, limit := range fiveLimits() {
				l, err := New(client, limit, &Options{Name: "shared-" + limit.Name, Timeout: 20 * time.Second})
				require.NoError(t, err)
				warm(t, l)
				seen.calls.Store(0)
				seen.pipelines.Store(0)
				const callers, each = 64, 20
				var allowed [10]atomic.Int64
				var wg sync.WaitGroup
				for g := range callers {
					wg.Go(func() {
						ctx, cancel := context.WithCancel(t.Context())
						defer cancel()
						for i := range each {
							k := (g*7 + i*3) % len(allowed)
							d, err := l.Take(ctx, fmt.Sprint("key", k), 1)
							assert.NoError(t, err)
							if d.Allowed {
								allowed[k].Add(1)
							}
						}
					})
				}
				wg.Wait()
				for k := range allowed {
					assert.EqualValues(t, limit.Capacity(), allowed[k].Load(), "%v, key %d", limit, k)
				}
				assert.Less(t, seen.calls.Load()+seen.pipelines.Load(), int64(callers*each/2), "%v", limit)
				assert.Positive(t, seen.calls.Load()+seen.pipelines.Load(), "the client's own hooks run for what is shared, too")
			}
		})
	}
}

func TestAServerThatHangsHoldsUpNoOther(t *testing.T) {
	a, b := startServer(t), startServer(t)
	ring := redis.NewRing(&redis.RingOptions{Addrs: map[string]string{"a": a.addr, "b": b.addr}, HeartbeatFrequency: time.Hour})
	defer ring.Close()
	l, err := New(ring, perMinute(1_000_000), &Options{Name: "hangs", Timeout: 100 * time.Millisecond})
	require.NoError(t, err)
	var hanging, other string
	for i := 0; hanging == "" || other == ""; i++ {
		key := strconv.Itoa(i)
		shard, err := ring.GetShardClientForKey(l.space.key(key))
		require.NoError(t, err)
		if shard.Options().Addr == a.addr {
			hanging = key
		} else {
			other = key
		}
	}
	require.Eventually(t, func() bool { return l.Allow(hanging, 1) && l.Allow(other, 1) }, 20*time.Second, 10*time.Millisecond)
	a.pause(t)
	var wg sync.WaitGroup
	stop := make(chan struct{})
	var failing atomic.Int64
	for range 200 {
		wg.Go(func() {
			for {
				_, err := l.Take(t.Context(), hanging, 1)
				assert.ErrorIs(t, err, ratelimit.ErrUnavailable)
				failing.Add(1)
				select {
				case <-stop:
					return
				default:
				}
			}
		})
	}
	require.Eventually(t, func() bool { return failing.Load() > 0 }, 20*time.Second, time.Millisecond)
	// A busy machine may be late sometimes. But if the hanging server delayed the calls, none would pass.
	passed := 0
	for range 200 {
		if l.Allow(other, 1) {
			passed++
		}
		if passed == 20 {
			break
		}
	}
	assert.Equal(t, 20, passed)
	close(stop)
	wg.Wait()
	for _, addr := range []string{a.addr, b.addr} {
		n, ok := l.store.nodes.lanes.Load(addr)
		require.True(t, ok)
		n.(*lane).mu.Lock()
		assert.LessOrEqual(t, n.(*lane).stuck, maxStuck)
		assert.True(t, n.(*lane).isEmpty(), "all have left")
		n.(*lane).mu.Unlock()
	}
	a.resume(t)
	require.Eventually(t, func() bool { return l.Allow(hanging, 1) }, 20*time.Second, 10*time.Millisecond)
}

// books holds the callers' results by key.
type books struct {
	mu   sync.Mutex
	keys map[string]*received
}

func (b *books) note(key string, cost int, d ratelimit.Decision, err error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	k := b.keys[key]
	if k == nil {
		k = &received{cost: cost}
		b.keys[key] = k
	}
	k.calls++
	switch {
	case d.Allowed:
		k.allowed++
	case errors.Is(err, ratelimit.ErrUnanswered):
		k.perhaps++
	}
}

// Slots move while callers decide, and then a master dies. No decision is charged
// twice. Decisions are lost only if the dead master's replica had not received them.
func TestAClusterOfSixWhileSlotsMoveAndAMasterDies(t *testing.T) {
	t.Parallel()
	cluster := redistest.StartCluster(t, 3, true)
	client := clusterClient(t, cluster)
	limit := ratelimit.FixedWindow(ratelimit.PerDay(1 << 30))
	const tenants, keys = 12, 4
	tenantOf := func(key string) string { return key[:2] }
	options := &Options{Name: "six", Timeout: 10 * time.Second, Slot: tenantOf}
	l, err := New(client, limit, options)
	require.NoError(t, err)
	other, err := New(client, limit, &Options{Name: "two", Timeout: 10 * time.Second, Slot: tenantOf})
	require.NoError(t, err)
	stack, err := ratelimit.All(ratelimit.By(l, identity), ratelimit.By(other, identity))
	require.NoError(t, err)
	warm := &Options{Name: "warm", Timeout: 10 * time.Second}
	w, err := New(client, limit, warm)
	require.NoError(t, err)
	require.Eventually(t, func() bool { return w.Allow("k", 1) }, 30*time.Second, 20*time.Millisecond)

	b := books{keys: map[string]*received{}}
	var stop atomic.Bool
	var failed atomic.Int64
	run := func(strict bool) *sync.WaitGroup {
		stop.Store(false)
		var wg sync.WaitGroup
		for g := range 24 {
			rng := rand.New(rand.NewPCG(uint64(g), 1))
			wg.Go(func() {
				for !stop.Load() {
					tenant, k := rng.IntN(tenants), rng.IntN(keys)
					key, cost := fmt.Sprintf("%02d-%d", tenant, k), 3+2*k
					ctx, cancel := context.WithCancel(t.Context())
					var d ratelimit.Decision
					var err error
					if rng.IntN(2) == 0 {
						d, err = l.Take(ctx, key, cost)
					} else {
						d, err = stack.Take(ctx, key, cost)
					}
					cancel()
					b.note(key, cost, d, err)
					if strict {
						assert.NoError(t, err)
					} else if err != nil {
						failed.Add(1)
						assert.ErrorIs(t, err, ratelimit.ErrUnavailable)
					}
				}
			})
		}
		return &wg
	}
	spent := func(key string) int {
		var d ratelimit.Decision
		require.Eventually(t, func() (ok bool) {
			d, err = l.Peek(t.Context(), key, 0)
			return err == nil
		}, 20*time.Second, 20*time.Millisecond)
		return 1<<30 - d.Remaining
	}

	wg := run(true)
	moves := testsize.Of(4, 9)
	for i := range moves {
		slot, err := cluster.Slot("x{" + fmt.Sprintf("%02d", i%tenants) + "}")
		require.NoError(t, err)
		from := slot * 3 / redistest.Slots
		to := (from + 1) % 3
		require.NoError(t, cluster.Move(slot, from, to, func() { time.Sleep(time.Millisecond) }))
		if i%2 == 0 {
			require.NoError(t, cluster.Move(slot, to, from, nil))
		}
	}
	stop.Store(true)
	wg.Wait()
	for key, k := range b.keys {
		assert.Zero(t, k.perhaps)
		assert.Equal(t, k.allowed*k.cost, spent(key), "key %s: what was allowed is charged, once", key)
	}

	wg = run(false)
	time.Sleep(100 * time.Millisecond)
	cluster.Kill(t, 0)
	time.Sleep(100 * time.Millisecond)
	require.Eventually(t, func() bool { // by then each tenant is served again
		for tenant := range tenants {
			key := fmt.Sprintf("%02d-0", tenant)
			d, err := l.Take(t.Context(), key, 3)
			if b.note(key, 3, d, err); err != nil {
				return false
			}
		}
		return true
	}, 60*time.Second, 20*time.Millisecond)
	stop.Store(true)
	wg.Wait()
	exact := 0
	for key, k := range b.keys {
		is := spent(key)
		assert.LessOrEqual(t, is, (k.allowed+k.perhaps)*k.cost, "key %s: no call is charged twice", key)
		if is >= k.allowed*k.cost {
			exact++
		}
	}
	assert.GreaterOrEqual(t, exact, len(b.keys)/2, "what is at the other masters is not touched")
	t.Logf("%d calls failed while a master was gone; %d of %d keys have lost nothing", failed.Load(), exact, len(b.keys))
}

// closingHash finds a Ring's shards. At the first call after armed is set it closes the Ring, as early as the Ring permits.
type closingHash struct {
	shards []string
	armed  *atomic.Bool
	close  func()
}

func (h *closingHash) Get(string) string {
	if h.armed.CompareAndSwap(true, false) {
		go h.close()
		time.Sleep(20 * time.Millisecond) // by then Close waits for the lock held here
	}
	return h.shards[0]
}

// armingHook sets armed when several decisions come to the Ring in one batch.
type armingHook struct{ armed *atomic.Bool }

func (h armingHook) DialHook(next redis.DialHook) redis.DialHook { return next }

func (h armingHook) ProcessHook(next redis.ProcessHook) redis.ProcessHook {
	return func(ctx context.Context, cmd redis.Cmder) error {
		if cmd.Args()[2] != 1 { // the number of keys
			h.armed.Store(true)
		}
		return next(ctx, cmd)
	}
}

func (h armingHook) ProcessPipelineHook(next redis.ProcessPipelineHook) redis.ProcessPipelineHook {
	return func(ctx context.Context, cmds []redis.Cmder) error {
		h.armed.Store(true)
		return next(ctx, cmds)
	}
}

// A panic in a goroutine of the client would end the process.
func TestARingThatIsClosedDuringACallIsAnError(t *testing.T) {
	var armed atomic.Bool
	hash := &closingHash{armed: &armed}
	ring := redis.NewRing(&redis.RingOptions{Addrs: map[string]string{"a": startServer(t).addr}, HeartbeatFrequency: time.Hour,
		NewConsistentHash: func(shards []string) redis.ConsistentHash { hash.shards = shards; return hash }})
	closed := make(chan error, 1)
	hash.close = func() { closed <- ring.Close() }
	l, err := New(ring, perMinute(1_000_000), &Options{Name: "closed", Timeout: 20 * time.Second})
	require.NoError(t, err)
	warm(t, l)
	ring.AddHook(armingHook{&armed})
	var wg sync.WaitGroup
	for g := range 16 {
		wg.Go(func() {
			var err error
			for err == nil {
				if g%2 == 0 { // these use another script
					_, err = l.Peek(t.Context(), strconv.Itoa(g), 1)
				} else {
					_, err = l.Take(t.Context(), strconv.Itoa(g), 1)
				}
			}
			assert.ErrorIs(t, err, ratelimit.ErrUnavailable)
		})
	}
	wg.Wait()
	require.NoError(t, <-closed)
}
