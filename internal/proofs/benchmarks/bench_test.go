package benchmarks

import (
	"fmt"
	"math/bits"
	"math/rand/v2"
	"runtime"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/stretchr/testify/assert"
)

const (
	million = 1_000_000
	// fullKeys is how many keys a full limiter holds.
	fullKeys = 1 << 16
)

// workload is an order of keys. shut means that requests are denied.
type workload struct {
	name     string
	keys     int
	zipf     bool
	parallel bool
	shut     bool
}

var workloads = []workload{
	{name: "hot", keys: 1},
	{name: "hot-parallel", keys: 1, parallel: true},
	{name: "denied", keys: 1, shut: true},
	{name: "10k", keys: 10_000},
	{name: "10k-parallel", keys: 10_000, parallel: true},
	{name: "zipf-1M-parallel", keys: million, zipf: true, parallel: true},
}

// allKeys returns the first n keys of a list made once.
func allKeys(n int) []string {
	if n <= most() {
		return firstMillion()[:n]
	}
	return makeKeys(n)
}

// most is a million, the number of keys in most measurements of many
// keys. Short mode only checks that each benchmark runs, and needs fewer.
func most() int {
	if testing.Short() {
		return 100_000
	}
	return million
}

var firstMillion = sync.OnceValue(func() []string { return makeKeys(most()) })

func makeKeys(n int) []string {
	keys := make([]string, n)
	for i := range keys {
		keys[i] = fmt.Sprintf("user:%06d", i)
	}
	return keys
}

// picks returns the keys in the order of requests, the same for every peer. Its length is a power of two.
func (w workload) picks() []string {
	keys := allKeys(w.keys)
	r := rand.New(rand.NewPCG(1, 2))
	next := func() int { return r.IntN(len(keys)) }
	if w.zipf {
		z := rand.NewZipf(r, 1.1, 1, uint64(len(keys)-1))
		next = func() int { return int(z.Uint64()) }
	}
	picks := make([]string, 1<<min(22, max(10, bits.Len(uint(w.keys))+1)))
	for i := range picks {
		picks[i] = keys[next()]
	}
	return picks
}

// warm returns the peer's limiter, filled with the workload's keys.
func (w workload) warm(p peer) subject {
	s := p.new(setup{shut: w.shut, keys: w.keys})
	for _, key := range allKeys(w.keys) {
		s.allow(key)
	}
	runtime.GC()
	return s
}

// run measures one peer. To find b.N, package testing runs the benchmark
// several times. The limiter is made once for all runs, and dropped afterwards.
func (w workload) run(b *testing.B, p peer, picks []string) {
	var s *subject
	b.Run("peer="+p.name, func(b *testing.B) {
		if s == nil {
			made := w.warm(p)
			s = &made
		}
		b.ReportAllocs()
		if w.parallel {
			parallel(b, s.allow, picks)
		} else {
			serial(b, s.allow, picks)
		}
	})
	if s != nil && s.close != nil {
		s.close()
	}
}

func serial(b *testing.B, allow func(string) bool, picks []string) {
	i := 0
	for b.Loop() {
		allow(picks[i&(len(picks)-1)])
		i++
	}
}

// parallel starts each goroutine at a different place in the list.
func parallel(b *testing.B, allow func(string) bool, picks []string) {
	var start atomic.Int64
	b.ResetTimer()
	b.RunParallel(func(pb *testing.PB) {
		i := int(start.Add(1)) * 715_827_883
		for pb.Next() {
			allow(picks[i&(len(picks)-1)])
			i++
		}
	})
}

// BenchmarkPeers uses known keys, a limiter's usual case.
func BenchmarkPeers(b *testing.B) {
	for _, w := range workloads {
		w.keys = min(w.keys, most())
		picks := sync.OnceValue(w.picks)
		b.Run("work="+w.name, func(b *testing.B) {
			for _, p := range peers {
				w.run(b, p, picks())
			}
		})
	}
}

// BenchmarkScale measures how a decision's time grows with the number of keys. The keys are picked uniformly, one at a time.
func BenchmarkScale(b *testing.B) {
	for keys := 10; keys <= 10*most(); keys *= 10 {
		w := workload{keys: keys}
		picks := sync.OnceValue(w.picks)
		b.Run(fmt.Sprintf("keys=%d", keys), func(b *testing.B) {
			for _, p := range peers {
				switch p.name {
				case "ratelimit", "xtime-map+Mutex", "sethvargo", "throttled-LRU":
					w.run(b, p, picks())
				}
			}
		})
	}
}

// BenchmarkNewKey uses new keys. With work=growing, an operation is one of a million keys of a new
// limiter. With work=full, the limiter holds 65536 keys, and must forget one for each operation.
func BenchmarkNewKey(b *testing.B) {
	keys := firstMillion()
	for _, p := range peers {
		b.Run("work=growing/peer="+p.name, func(b *testing.B) {
			for b.Loop() {
				feed(p, keys)
			}
			b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(b.N*len(keys)), "ns/op")
		})
		if p.bounded {
			b.Run("work=full/peer="+p.name, func(b *testing.B) { full(b, p, keys) })
		}
	}
}

func feed(p peer, keys []string) {
	s := p.new(setup{keys: len(keys)})
	for _, key := range keys {
		s.allow(key)
	}
	if s.close != nil {
		s.close()
	}
}

func full(b *testing.B, p peer, keys []string) {
	s := p.new(setup{shut: true, keys: fullKeys})
	for _, key := range keys[:fullKeys] {
		s.allow(key)
	}
	b.ReportAllocs()
	for i := fullKeys; b.Loop(); i++ {
		s.allow(keys[i%len(keys)])
	}
}

// BenchmarkMemory reports how much a limiter's heap grows per key, for a million keys. It excludes the keys themselves.
func BenchmarkMemory(b *testing.B) {
	keys := firstMillion()
	for _, p := range peers {
		b.Run("peer="+p.name, func(b *testing.B) {
			var grown uint64
			for b.Loop() {
				before := heap()
				s := p.new(setup{keys: len(keys)})
				for _, key := range keys {
					s.allow(key)
				}
				grown = heap() - before
				runtime.KeepAlive(s)
				if s.close != nil {
					s.close()
				}
			}
			b.ReportMetric(float64(grown)/float64(len(keys)), "B/key")
			b.ReportMetric(0, "ns/op")
		})
	}
}

func heap() uint64 {
	runtime.GC()
	runtime.GC() // finalizers release memory only in the second collection
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return m.HeapAlloc
}

// Every peer does the work that the table lists for it.
func TestPeersDecideAsTheWorkloadsRequire(t *testing.T) {
	for _, p := range peers {
		t.Run(p.name, func(t *testing.T) {
			open, shut := p.new(setup{keys: 10}), p.new(setup{keys: 10, shut: true})
			for range 100 {
				assert.True(t, open.allow("a"), "a limit that nobody reaches allows")
			}
			assert.True(t, shut.allow("a"), "the first of one an hour is allowed")
			assert.False(t, shut.allow("a"), "the second is denied")
			assert.True(t, shut.allow("b"), "each key has a budget of its own")
			for _, s := range []subject{open, shut} {
				if s.close != nil {
					s.close()
				}
			}
		})
	}
}
