package overload

import (
	"runtime"
	"slices"
	"sync"
)

// PlayAll simulates cells drawn by sample, with seeds from first on. Each cell gets its own gate.
func PlayAll(sample func(seed uint64) Cell, first, cells uint64, gate func(Cell) Gated) (all []Verdict) {
	var mu sync.Mutex // guards all
	var wg sync.WaitGroup
	seeds := make(chan uint64)
	for range runtime.GOMAXPROCS(0) {
		wg.Go(func() {
			for seed := range seeds {
				c := sample(seed)
				v := Play(c, gate(c))
				mu.Lock()
				all = append(all, v...)
				mu.Unlock()
			}
		})
	}
	for i := range cells {
		seeds <- first + i
	}
	close(seeds)
	wg.Wait()
	slices.SortStableFunc(all, func(a, b Verdict) int { return int(a.Cell.Seed) - int(b.Cell.Seed) })
	return all
}

// Count counts the simulated cells, and by reason how many missed the goal.
type Count struct {
	Cells, Missed int
	Slow          int // latency above the goal
	Little        int // goodput below the minimum
	Far           int // more than twice the goal's latency, or less than half the minimum goodput
}

// Add counts one limit's verdicts.
func (c *Count) Add(all []Verdict) {
	seen, missed, slow, little, far := map[uint64]bool{}, map[uint64]bool{}, map[uint64]bool{}, map[uint64]bool{}, map[uint64]bool{}
	for _, v := range all {
		s := v.Cell.Seed
		seen[s] = true
		if !v.Good() {
			missed[s] = true
		}
		if v.Latency > Goal(v.Cell.Servers) {
			slow[s] = true
		}
		if v.Goodput < enough {
			little[s] = true
		}
		if v.Latency > 2*Goal(v.Cell.Servers) || v.Goodput < enough/2 {
			far[s] = true
		}
	}
	c.Cells += len(seen)
	c.Missed += len(missed)
	c.Slow += len(slow)
	c.Little += len(little)
	c.Far += len(far)
}

// Share returns n as a percentage of the cells.
func (c *Count) Share(n int) float64 { return 100 * float64(n) / float64(c.Cells) }
