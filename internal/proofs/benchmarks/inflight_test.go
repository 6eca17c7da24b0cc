package benchmarks

import (
	"context"
	"fmt"
	"sync"
	"testing"

	"github.com/failsafe-go/failsafe-go/adaptivelimiter"
	"github.com/failsafe-go/failsafe-go/bulkhead"
	"github.com/platinummonkey/go-concurrency-limits/core"
	"github.com/platinummonkey/go-concurrency-limits/limit"
	"github.com/platinummonkey/go-concurrency-limits/limiter"
	"github.com/platinummonkey/go-concurrency-limits/strategy"
	"github.com/stretchr/testify/assert"
	"golang.org/x/sync/semaphore"

	"github.com/weir-go/ratelimit/inflight"
)

// manyUnits is a limit never reached.
const manyUnits = 1000

// inflightSubject is a limiter under measurement. Once takes a permit and
// gives it back, and hold keeps it. Both report whether they got one.
type inflightSubject struct{ once, hold func(key string) bool }

// inflightPeer is a concurrency limiter in its usual form, with one limit per key.
type inflightPeer struct {
	name string
	new  func(units int) inflightSubject
}

// inflightPeers do the same work. Only inflight has keys, a bound on their number,
// and a queue for each. The others stand in a map under a Mutex, as in most programs.
var inflightPeers = []inflightPeer{
	{"inflight", func(units int) inflightSubject { return newInflight(units, nil) }},
	{"inflight-Learn", func(units int) inflightSubject {
		return newInflight(units, inflight.Learn(&inflight.LearnOptions{Start: units}))
	}},
	{"semaphore-map+Mutex", func(units int) inflightSubject {
		return subjectOf(func() *semaphore.Weighted { return semaphore.NewWeighted(int64(units)) },
			func(s *semaphore.Weighted) (*semaphore.Weighted, bool) { return s, s.TryAcquire(1) },
			func(s *semaphore.Weighted) { s.Release(1) })
	}},
	{"failsafe-bulkhead", func(units int) inflightSubject {
		return subjectOf(func() bulkhead.Bulkhead[any] { return bulkhead.New[any](uint(units)) },
			func(b bulkhead.Bulkhead[any]) (bulkhead.Bulkhead[any], bool) { return b, b.TryAcquirePermit() },
			func(b bulkhead.Bulkhead[any]) { b.ReleasePermit() })
	}},
	{"failsafe-adaptive", func(units int) inflightSubject {
		return subjectOf(func() adaptivelimiter.AdaptiveLimiter[any] {
			return adaptivelimiter.NewBuilder[any]().WithLimits(uint(units), uint(units), uint(units)).Build()
		}, adaptivelimiter.AdaptiveLimiter[any].TryAcquirePermit, adaptivelimiter.Permit.Record)
	}},
	{"platinummonkey-Gradient2", func(units int) inflightSubject {
		return subjectOf(func() *limiter.DefaultLimiter { return newPlatinum(units) },
			func(l *limiter.DefaultLimiter) (core.Listener, bool) { return l.Acquire(context.Background()) },
			core.Listener.OnSuccess)
	}},
}

// subjectOf keeps a limiter for each key in a map.
func subjectOf[L, P any](newLimiter func() L, take func(L) (P, bool), give func(P)) inflightSubject {
	get := inMap(newLimiter)
	return inflightSubject{
		once: func(key string) bool {
			p, ok := take(get(key))
			if ok {
				give(p)
			}
			return ok
		},
		hold: func(key string) bool {
			_, ok := take(get(key))
			return ok
		},
	}
}

func newInflight(units int, a func() inflight.Algorithm) inflightSubject {
	l := must(inflight.New(units, &inflight.Options[string]{Adaptive: a}))
	return inflightSubject{
		once: func(key string) bool {
			p, err := l.TryAcquire(key, 1)
			p.Done(inflight.Success)
			return err == nil
		},
		hold: func(key string) bool {
			_, err := l.TryAcquire(key, 1)
			return err == nil
		},
	}
}

func newPlatinum(units int) *limiter.DefaultLimiter {
	g := must(limit.NewGradient2Limit("", units, units, units, func(int) int { return 4 }, 0.2, 600, limit.NoopLimitLogger{}, core.EmptyMetricRegistryInstance))
	return must(limiter.NewDefaultLimiter(g, int64(1e9), int64(1e9), int64(1e5), 10,
		strategy.NewSimpleStrategy(units), limit.NoopLimitLogger{}, core.EmptyMetricRegistryInstance))
}

// inMap returns a function that keeps one T for each key in a map under a Mutex.
func inMap[T any](newOne func() T) func(key string) T {
	var mu sync.Mutex
	all := make(map[string]T)
	return func(key string) T {
		mu.Lock()
		defer mu.Unlock()
		v, ok := all[key]
		if !ok {
			v = newOne()
			all[key] = v
		}
		return v
	}
}

// BenchmarkInflight measures TryAcquire and Release with known keys.
func BenchmarkInflight(b *testing.B) {
	for _, keys := range []int{1, 10_000} {
		for _, par := range []bool{false, true} {
			w := workload{keys: keys, parallel: par}
			picks := w.picks()
			for _, p := range inflightPeers {
				b.Run(fmt.Sprintf("keys=%d/parallel=%v/peer=%s", keys, par, p.name), func(b *testing.B) {
					work := p.new(manyUnits).once
					for _, key := range allKeys(keys) {
						work(key)
					}
					b.ReportAllocs()
					if b.ResetTimer(); par {
						parallel(b, work, picks)
					} else {
						serial(b, work, picks)
					}
				})
			}
		}
	}
}

// Every peer does the work that the benchmark lists for it.
func TestInflightPeersLimitEachKey(t *testing.T) {
	for _, p := range inflightPeers {
		t.Run(p.name, func(t *testing.T) {
			s := p.new(2)
			assert.True(t, s.hold("a"))
			for range 100 {
				assert.True(t, s.once("a"), "a permit comes back")
			}
			assert.True(t, s.hold("a"))
			assert.False(t, s.once("a"), "two are in flight")
			assert.True(t, s.hold("b"), "each key has a limit of its own")
		})
	}
}
