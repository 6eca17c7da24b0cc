package ratelimit_test

import (
	"maps"
	"slices"
	"strconv"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/weir-go/ratelimit"
)

// spentKeys is a limiter with many keys that are not fresh.
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

// A million keys listed, saved and restored: nanoseconds and bytes for each.
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
	file := maps.Collect(l.Saved())
	b.Run("Restore", func(b *testing.B) {
		for b.Loop() {
			b.StopTimer()
			next := newWith(b, l.Limits()[0], ratelimit.Options[string]{MaxKeys: n})
			b.StartTimer()
			require.NoError(b, next.Restore(maps.All(file), 0))
			require.Equal(b, n, next.Len())
		}
		perKey(b)
	})
}

// What Allow takes while another goroutine saves all keys, over and over: the median and the slowest hundredth.
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
