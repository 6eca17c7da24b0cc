package ratelimit_test

import (
	"context"
	"fmt"
	"maps"
	"math"
	"math/rand/v2"
	"net/netip"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"github.com/weir-go/ratelimit"
	"github.com/weir-go/ratelimit/internal/dev/testsize"
)

// Benchmark names carry their dimensions as key=value, so that benchstat can pivot:
//
//	go test -run '^$' -bench Allow -count 10 . | benchstat -row /keys,/mix -col /algorithm -
//
// mix names the load: in allow all calls are allowed, on equally frequent keys; in deny
// all calls are denied; in zipf all calls are allowed, on keys by Zipf's law with s = 1.1.

const fullKeys = 1 << 16 // the size of a full map

// most is the largest number of keys or entries to measure: a million. In short
// mode it is less, because short mode only checks that each benchmark runs.
func most() int {
	if testing.Short() {
		return 100_000
	}
	return 1_000_000
}

// openLimits returns a limit for each algorithm, too high for any loop to
// reach. The log keeps some tens of entries for a hot key, as in production.
func openLimits() []ratelimit.Limit {
	const n = 1_000_000_000
	return []ratelimit.Limit{
		ratelimit.TokenBucket(ratelimit.PerSecond(n), n),
		ratelimit.LeakyBucket(ratelimit.PerSecond(n), n),
		ratelimit.FixedWindow(ratelimit.PerSecond(n)),
		ratelimit.SlidingLog(ratelimit.Per(1000, 2*time.Microsecond)),
		ratelimit.SlidingCounter(ratelimit.PerSecond(n)),
		ratelimit.Calendar(min(math.MaxInt, 1<<53), ratelimit.Month("UTC", 1)),
	}
}

// shutLimits returns limits exhausted by a key's first decision.
func shutLimits() []ratelimit.Limit {
	return []ratelimit.Limit{
		ratelimit.TokenBucket(ratelimit.PerHour(1), 1),
		ratelimit.LeakyBucket(ratelimit.PerHour(1), 1),
		ratelimit.FixedWindow(ratelimit.PerHour(1)),
		ratelimit.SlidingLog(ratelimit.PerHour(1)),
		ratelimit.SlidingCounter(ratelimit.PerHour(1)),
		ratelimit.Calendar(1, ratelimit.Month("UTC", 1)),
	}
}

// load is the called keys and their limits.
type load struct {
	keys   int
	mix    string
	limits []ratelimit.Limit
}

func loads() []load {
	return []load{
		{1, "allow", openLimits()},
		{1, "deny", shutLimits()},
		{10_000, "allow", openLimits()},
		{most(), "zipf", openLimits()},
	}
}

// picks returns a list of keys in the calls' order. Its length is a power of two.
func picks[K any](w load, keys []K) []K {
	r := rand.New(rand.NewPCG(1, 2))
	next := func() int { return r.IntN(len(keys)) }
	if w.mix == "zipf" {
		z := rand.NewZipf(r, 1.1, 1, uint64(len(keys)-1))
		next = func() int { return int(z.Uint64()) }
	}
	picks := make([]K, 1<<17)
	if len(keys) > 1<<16 {
		picks = make([]K, 1<<20)
	}
	for i := range picks {
		picks[i] = keys[next()]
	}
	return picks
}

// manyKeys returns key(0) to key(n-1).
func manyKeys[K any](n int, key func(i int) K) []K {
	keys := make([]K, n)
	for i := range keys {
		keys[i] = key(i)
	}
	return keys
}

// route is a key of several fields.
type route struct {
	tenant uint32
	method uint8
	path   uint16
}

func stringKey(i int) string { return fmt.Sprintf("user:%06d", i) }
func intKey(i int) int       { return i }
func routeKey(i int) route   { return route{uint32(i / 100), uint8(i % 5), uint16(i % 100)} }

func addrKey(i int) netip.Addr {
	return netip.AddrFrom4([4]byte{10, byte(i >> 16), byte(i >> 8), byte(i)})
}

var stringKeys = sync.OnceValue(func() []string { return manyKeys(most(), stringKey) })

// warm returns a limiter whose table is full of the keys.
func warm[K comparable](limit ratelimit.Limit, keys []K) *ratelimit.Keyed[K] {
	l := ratelimit.Must(ratelimit.New(limit, &ratelimit.Options[K]{MaxKeys: len(keys)}))
	for _, key := range keys {
		l.Allow(key, 1)
	}
	runtime.GC()
	return l
}

// serial measures one decision after the other.
func serial[K any](b *testing.B, picks []K, decide func(K)) {
	b.ReportAllocs()
	for i := 0; b.Loop(); i++ {
		decide(picks[i&(len(picks)-1)])
	}
}

// parallel measures decisions on all processors. Each processor begins at another place in the list.
func parallel[K any](b *testing.B, picks []K, decide func(K)) {
	b.ReportAllocs()
	var start atomic.Int64
	b.ResetTimer()
	b.RunParallel(func(pb *testing.PB) {
		for i := int(start.Add(1)) << 15; pb.Next(); i++ {
			decide(picks[i&(len(picks)-1)])
		}
	})
}

// ways are the two ways to call a limiter: from one goroutine, and from all processors.
var ways = []struct {
	name string
	run  func(*testing.B, []string, func(string))
}{{"serial", serial[string]}, {"parallel", parallel[string]}}

// decisions runs all loads against all algorithms, in both ways.
func decisions(b *testing.B, method func(*ratelimit.Keyed[string]) func(string)) {
	for _, w := range loads() {
		keys := stringKeys()[:w.keys]
		order := sync.OnceValue(func() []string { return picks(w, keys) })
		for _, limit := range w.limits {
			l := sync.OnceValue(func() *ratelimit.Keyed[string] { return warm(limit, keys) })
			for _, way := range ways {
				name := fmt.Sprintf("keys=%d/mix=%s/algorithm=%v/run=%s", w.keys, w.mix, limit.Algorithm, way.name)
				b.Run(name, func(b *testing.B) { way.run(b, order(), method(l())) })
			}
		}
	}
}

func BenchmarkAllow(b *testing.B) {
	decisions(b, func(l *ratelimit.Keyed[string]) func(string) {
		return func(key string) { l.Allow(key, 1) }
	})
}

func BenchmarkTake(b *testing.B) {
	ctx := context.Background()
	decisions(b, func(l *ratelimit.Keyed[string]) func(string) {
		return func(key string) { _, _ = l.Take(ctx, key, 1) }
	})
}

// BenchmarkReservation measures reservations and other calls on one key, while the key's earlier reservations are open.
func BenchmarkReservation(b *testing.B) {
	ctx := context.Background()
	for _, open := range []int{0, 1, 32} {
		clock := new(testClock)
		limit := ratelimit.TokenBucket(ratelimit.PerSecond(1e9), math.MaxInt32)
		l, err := ratelimit.New(limit, &ratelimit.Options[string]{Clock: clock})
		require.NoError(b, err)
		require.True(b, l.Allow("k", math.MaxInt32/2))
		for range open {
			_, err := l.Reserve(ctx, "k", 1, 0)
			require.NoError(b, err)
			clock.advance(1)
			require.True(b, l.Allow("k", 1000))
		}
		b.Run(fmt.Sprintf("call=allow/open=%d", open), func(b *testing.B) {
			for b.Loop() {
				l.Allow("k", 1)
				clock.advance(1)
			}
		})
		b.Run(fmt.Sprintf("call=take/open=%d", open), func(b *testing.B) {
			for b.Loop() {
				_, _ = l.Take(ctx, "k", 1)
				clock.advance(1)
			}
		})
		b.Run(fmt.Sprintf("call=settle/open=%d", open), func(b *testing.B) {
			b.ReportAllocs()
			for b.Loop() {
				r, _ := l.Reserve(ctx, "k", 2, 0)
				clock.advance(1)
				_ = r.Settle(1)
			}
		})
	}
}

func BenchmarkKeyType(b *testing.B) {
	keyType(b, "string", stringKey)
	keyType(b, "int", intKey)
	keyType(b, "netip.Addr", addrKey)
	keyType(b, "struct", routeKey)
}

func keyType[K comparable](b *testing.B, name string, key func(int) K) {
	limit := openLimits()[0]
	for _, n := range []int{1, 10_000} {
		keys := manyKeys(n, key)
		b.Run(fmt.Sprintf("type=%s/keys=%d", name, n), func(b *testing.B) {
			l := warm(limit, keys)
			serial(b, picks(load{}, keys), func(k K) { l.Allow(k, 1) })
		})
	}
}

// BenchmarkSparse has 10,000 keys in limiters with room for just these, for 65,536 (the default) and for 4 million.
// With text=built each call builds its key's text, as a server does; with text=kept the texts exist already.
func BenchmarkSparse(b *testing.B) {
	keys := stringKeys()[:10_000]
	order := picks(load{}, manyKeys(len(keys), intKey))
	for _, room := range []int{len(keys), 1 << 16, 4_000_000} {
		l := ratelimit.Must(ratelimit.New(openLimits()[0], &ratelimit.Options[string]{MaxKeys: room}))
		for _, key := range keys {
			l.Allow(key, 1)
		}
		runtime.GC()
		kept := func(i int) { l.Allow(keys[i], 1) }
		built := func(i int) {
			var text [16]byte
			l.Allow(string(append(text[:0], keys[i]...)), 1)
		}
		b.Run(fmt.Sprintf("room=%d/text=kept/run=serial", room), func(b *testing.B) { serial(b, order, kept) })
		b.Run(fmt.Sprintf("room=%d/text=kept/run=parallel", room), func(b *testing.B) { parallel(b, order, kept) })
		b.Run(fmt.Sprintf("room=%d/text=built/run=serial", room), func(b *testing.B) { serial(b, order, built) })
		b.Run(fmt.Sprintf("room=%d/text=built/run=parallel", room), func(b *testing.B) { parallel(b, order, built) })
	}
}

// BenchmarkNewKey has only keys never seen before. With mix=growing each operation inserts one of a million
// keys into a new limiter. With mix=full the limiter has no room, and forgets a key for each new one.
func BenchmarkNewKey(b *testing.B) {
	keys := stringKeys()
	for _, limit := range openLimits() {
		b.Run(fmt.Sprintf("keys=%d/mix=growing/algorithm=%v", len(keys), limit.Algorithm), func(b *testing.B) {
			for b.Loop() {
				grow(limit, keys)
			}
			b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(b.N*len(keys)), "ns/op")
		})
	}
	for _, limit := range shutLimits() {
		b.Run(fmt.Sprintf("keys=%d/mix=full/algorithm=%v", fullKeys, limit.Algorithm), func(b *testing.B) {
			l := warm(limit, keys[:fullKeys])
			b.ReportAllocs()
			for i := fullKeys; b.Loop(); i++ {
				l.Allow(keys[i%len(keys)], 1)
			}
		})
	}
}

// BenchmarkThrottledTable sends new keys to a full table of throttled keys. Each new key evicts one, spends
// its budget and is denied once. With remember=65536 the limiter remembers the evicted keys' spending.
func BenchmarkThrottledTable(b *testing.B) {
	for _, limit := range shutLimits() {
		for _, remember := range []int{0, fullKeys} {
			b.Run(fmt.Sprintf("keys=%d/remember=%d/algorithm=%v", fullKeys, remember, limit.Algorithm), func(b *testing.B) {
				l := ratelimit.Must(ratelimit.New(limit, &ratelimit.Options[int]{MaxKeys: fullKeys, Remember: remember}))
				key := 0
				next := func() {
					l.Allow(key, 1)
					l.Allow(key, 1)
					key++
				}
				for range 3 * fullKeys {
					next()
				}
				b.ReportAllocs()
				for b.Loop() {
					next()
				}
			})
		}
	}
}

func grow[K comparable](limit ratelimit.Limit, keys []K) *ratelimit.Keyed[K] {
	l := ratelimit.Must(ratelimit.New(limit, &ratelimit.Options[K]{MaxKeys: len(keys)}))
	for _, key := range keys {
		l.Allow(key, 1)
	}
	return l
}

// request contains the keys of all layers.
type request struct {
	user, tenant, route string
}

// BenchmarkLayers measures stacks of one to four limiters on 10,000 users'
// requests: by user, by tenant, by route, and for the whole service.
func BenchmarkLayers(b *testing.B) {
	requests := manyKeys(10_000, func(i int) request {
		return request{stringKey(i), fmt.Sprintf("tenant:%d", i%100), fmt.Sprintf("/v1/route/%d", i%10)}
	})
	order := picks(load{}, requests)
	for n := 1; n <= 4; n++ {
		stack := layers(b, n)
		for _, r := range requests {
			stack.Allow(r, 1)
		}
		b.Run(fmt.Sprintf("layers=%d/run=serial", n), func(b *testing.B) {
			serial(b, order, func(r request) { stack.Allow(r, 1) })
		})
		b.Run(fmt.Sprintf("layers=%d/run=parallel", n), func(b *testing.B) {
			parallel(b, order, func(r request) { stack.Allow(r, 1) })
		})
	}
}

// BenchmarkGlobal measures a stack in which one layer has a single
// budget for all requests. All processors need this budget's lock.
func BenchmarkGlobal(b *testing.B) {
	requests := manyKeys(10_000, func(i int) request {
		return request{user: stringKey(i), tenant: fmt.Sprintf("tenant:%d", i%100)}
	})
	order := picks(load{}, requests)
	all := ratelimit.Must(ratelimit.New[struct{}](openLimits()[0], nil))
	users, tenants := ratelimit.Must(ratelimit.New[string](openLimits()[0], nil)), ratelimit.Must(ratelimit.New[string](openLimits()[0], nil))
	user := ratelimit.By(users, func(r request) (string, error) { return r.user, nil })
	tenant := ratelimit.By(tenants, func(r request) (string, error) { return r.tenant, nil })
	for _, stack := range []*ratelimit.Layered[request]{
		ratelimit.Must(ratelimit.All(ratelimit.Global[request](all), user)),
		ratelimit.Must(ratelimit.All(ratelimit.Global[request](all), tenant, user)),
	} {
		for _, r := range requests {
			stack.Allow(r, 1)
		}
		b.Run(fmt.Sprintf("layers=%d/run=parallel", len(stack.Describe().Limits)), func(b *testing.B) {
			parallel(b, order, func(r request) { stack.Allow(r, 1) })
		})
	}
}

// BenchmarkStack compares a stack of two layers with a single limiter, for the same
// users. The stack's decision should take at most 2.2 times as long as one Take.
func BenchmarkStack(b *testing.B) {
	requests := manyKeys(10_000, func(i int) request {
		return request{user: stringKey(i), tenant: fmt.Sprintf("tenant:%d", i%100)}
	})
	order := picks(load{}, requests)
	single, stack := ratelimit.Must(ratelimit.New[string](openLimits()[0], nil)), layers(b, 2)
	for _, r := range requests {
		single.Allow(r.user, 1)
		stack.Allow(r, 1)
	}
	b.Run("layers=0/call=Take", func(b *testing.B) {
		serial(b, order, func(r request) { _, _ = single.Take(context.Background(), r.user, 1) })
	})
	b.Run("layers=2/call=Allow", func(b *testing.B) {
		serial(b, order, func(r request) { stack.Allow(r, 1) })
	})
	b.Run("layers=2/call=Take", func(b *testing.B) {
		serial(b, order, func(r request) { _, _ = stack.Take(context.Background(), r, 1) })
	})
}

// layers returns a stack of the first n layers.
func layers(b *testing.B, n int) *ratelimit.Layered[request] {
	layer := func(key func(request) string) ratelimit.Layer[request] {
		l := ratelimit.Must(ratelimit.New[string](openLimits()[0], nil))
		return ratelimit.By(l, func(r request) (string, error) { return key(r), nil })
	}
	stack, err := ratelimit.All([]ratelimit.Layer[request]{
		layer(func(r request) string { return r.user }),
		layer(func(r request) string { return r.tenant }),
		layer(func(r request) string { return r.route }),
		layer(func(request) string { return "service" }),
	}[:n]...)
	if err != nil {
		b.Fatal(err)
	}
	return stack
}

// BenchmarkMemory reports the heap's growth per key for a million keys, without the callers' own memory for the keys.
func BenchmarkMemory(b *testing.B) {
	for _, limit := range openLimits() {
		memory(b, "string", limit, stringKeys)
	}
	limit := openLimits()[0]
	memory(b, "int", limit, func() []int { return manyKeys(most(), intKey) })
	memory(b, "netip.Addr", limit, func() []netip.Addr { return manyKeys(most(), addrKey) })
	memory(b, "struct", limit, func() []route { return manyKeys(most(), routeKey) })
}

func memory[K comparable](b *testing.B, name string, limit ratelimit.Limit, make func() []K) {
	b.Run(fmt.Sprintf("type=%s/keys=%d/algorithm=%v", name, most(), limit.Algorithm), func(b *testing.B) {
		keys := make()
		var grown int64
		for b.Loop() {
			before := testsize.Heap()
			l := grow(limit, keys)
			grown = testsize.Heap() - before
			runtime.KeepAlive(l)
		}
		runtime.KeepAlive(keys)
		b.ReportMetric(float64(grown)/float64(len(keys)), "B/key")
		b.ReportMetric(0, "ns/op")
	})
}

// spentKeys returns a limiter with many keys that are not fresh, and their number.
func spentKeys(b *testing.B) (*ratelimit.Keyed[string], int) {
	n := 1_000_000
	if testing.Short() {
		n = 10_000
	}
	l := newWith(b, ratelimit.TokenBucket(ratelimit.PerHour(100), 100), ratelimit.Options[string]{MaxKeys: n})
	for i := range n {
		require.True(b, l.Allow("client:"+strconv.Itoa(i), 1+i%50))
	}
	return l, n
}

// BenchmarkSaved lists, saves and restores a million keys, and reports nanoseconds and bytes per key.
func BenchmarkSaved(b *testing.B) {
	l, n := spentKeys(b)
	perKey := func(b *testing.B) { b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(b.N*n), "ns/key") }
	b.Run("All", func(b *testing.B) {
		for b.Loop() {
			for range l.All() {
			}
		}
		perKey(b)
	})
	b.Run("Saved", func(b *testing.B) {
		bytes := 0
		for b.Loop() {
			bytes = 0
			for _, saved := range l.Saved() {
				bytes += len(saved)
			}
		}
		perKey(b)
		b.ReportMetric(float64(bytes)/float64(n), "B/key")
	})
	file := map[string]ratelimit.Saved{} // with its own strings, as if read from a file
	for key, saved := range l.Saved() {
		file[strings.Clone(key)] = slices.Clone(saved)
	}
	b.Run("Restore", func(b *testing.B) {
		for b.Loop() {
			b.StopTimer()
			next := newWith(b, l.Describe().Limits[0], ratelimit.Options[string]{MaxKeys: n})
			b.StartTimer()
			require.NoError(b, next.Restore(maps.All(file), 0))
			require.Equal(b, n, next.Stats().Keys)
		}
		perKey(b)
	})
}

// BenchmarkAllowWhileSaving measures Allow while another goroutine
// saves all keys again and again: the median and the 99th percentile.
func BenchmarkAllowWhileSaving(b *testing.B) {
	for _, saving := range []string{"nothing", "All", "Saved", "nothing again"} {
		b.Run(saving, func(b *testing.B) {
			l, n := spentKeys(b)
			keys := make([]string, 1000)
			for i := range keys {
				keys[i] = "client:" + strconv.Itoa(i*(n/1000))
			}
			stop, done := make(chan struct{}), make(chan struct{})
			go func() {
				defer close(done)
				for saving == "All" || saving == "Saved" {
					if saving == "All" {
						for range l.All() {
							select {
							case <-stop:
								return
							default:
							}
						}
						continue
					}
					for range l.Saved() {
						select {
						case <-stop:
							return
						default:
						}
					}
				}
				<-stop
			}()
			took := make([]time.Duration, 0, b.N)
			for i := range b.N {
				start := time.Now()
				l.Allow(keys[i%len(keys)], 1)
				took = append(took, time.Since(start))
			}
			close(stop)
			<-done
			slices.Sort(took)
			b.ReportMetric(float64(took[len(took)/2]), "p50-ns")
			b.ReportMetric(float64(took[len(took)*99/100]), "p99-ns")
		})
	}
}
