package sketch

import (
	"flag"
	"fmt"
	"math/rand/v2"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/weir-go/ratelimit/internal/dev/testsize"
)

var rounds = flag.Int("rounds", testsize.Of(4, 100), "how many random floods are compared with an exact count")

// TestAgreesWithAnExactCount draws floods of keys with any skew and with
// pauses, and compares the sketch with exact counts for each window.
func TestAgreesWithAnExactCount(t *testing.T) {
	for seed := range *rounds {
		synctest.Test(t, func(t *testing.T) {
			r := rand.New(rand.NewPCG(uint64(seed), 25))
			s := New()
			start := time.Now()
			exact := map[int64]map[ID]int64{}
			keys := 1 + r.IntN([]int{10, 1000, 100_000}[r.IntN(3)])
			skew := 1 + 4*r.Float64()
			for range 3 + r.IntN(4) {
				for range r.IntN(6_000) {
					u := r.Float64()
					for range int(skew) {
						u *= r.Float64()
					}
					id := ID{Rule: fmt.Sprint("r", r.IntN(2)), Key: fmt.Sprint(int(u * float64(keys))), Shadow: r.IntN(9) == 0}
					s.Add(id)
					w := int64(time.Since(start) / Window)
					if exact[w] == nil {
						exact[w] = map[ID]int64{}
					}
					exact[w][id]++
				}
				time.Sleep(time.Duration(r.Int64N(int64(2 * Window))))
				check(t, s, exact, int64(time.Since(start)/Window))
			}
		})
	}
}

func check(t *testing.T, s *Sketch, exact map[int64]map[ID]int64, w int64) {
	t.Helper()
	want, total := map[ID]int64{}, int64(0)
	for _, window := range []int64{w - 1, w} {
		for id, n := range exact[window] {
			want[id] += n
			total += n
		}
	}
	got := s.All()
	require.LessOrEqual(t, len(got), 2*shards*Counters)
	listed := map[ID]bool{}
	for i, c := range got {
		require.False(t, listed[c.ID], "twice")
		listed[c.ID] = true
		require.GreaterOrEqual(t, c.Count, want[c.ID])
		require.LessOrEqual(t, c.Count-c.Error, want[c.ID])
		require.LessOrEqual(t, c.Error, total/Counters)
		if i > 0 {
			require.LessOrEqual(t, c.Count, got[i-1].Count)
		}
	}
	for id, n := range want {
		if n > total/Counters {
			require.True(t, listed[id], "%v was met %d times of %d", id, n, total)
		}
	}
	if len(want) <= Counters { // then no two keys share a counter
		require.Len(t, got, len(want))
		for _, c := range got {
			require.Zero(t, c.Error)
		}
	}
}

func TestAFloodOfRotatingKeysHidesNoHeavyOne(t *testing.T) {
	s := New()
	for i := range 100_000 {
		s.Add(ID{Rule: "api", Key: fmt.Sprint("flood", i)})
		if i%50 == 0 {
			s.Add(ID{Rule: "api", Key: "heavy"})
		}
	}
	top := s.All()[0]
	assert.Equal(t, "heavy", top.Key)
	assert.GreaterOrEqual(t, top.Count, int64(2000))
	assert.LessOrEqual(t, top.Count-top.Error, int64(2000))
	assert.Zero(t, testing.AllocsPerRun(1000, func() { s.Add(ID{Rule: "api", Key: "heavy"}) }))
}

func TestManyCountAtOnce(t *testing.T) {
	s := New()
	var group sync.WaitGroup
	for g := range 8 {
		group.Go(func() {
			for i := range 2000 {
				s.Add(ID{Rule: "api", Key: fmt.Sprint((g + i) % 20)})
				if i%100 == 0 {
					s.All()
				}
			}
		})
	}
	group.Wait()
	sum := int64(0)
	for _, c := range s.All() {
		sum += c.Count
	}
	assert.Equal(t, int64(16_000), sum)
}

func BenchmarkAdd(b *testing.B) {
	for _, keys := range []int{1, 100_000} {
		b.Run(fmt.Sprintf("keys=%d", keys), func(b *testing.B) {
			s := New()
			ids := make([]ID, keys)
			for i := range ids {
				ids[i] = ID{Rule: "api", Key: fmt.Sprint(i)}
			}
			b.ReportAllocs()
			for i := 0; b.Loop(); i++ {
				s.Add(ids[i%keys])
			}
		})
	}
}
