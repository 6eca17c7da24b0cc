package overload

import (
	"flag"
	"fmt"
	"runtime"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"

	"github.com/weir-go/ratelimit/inflight"
)

var (
	cells = flag.Int("cells", 12, "how many cells of the grid to play; 100 take about a minute")
	first = flag.Uint64("first", 1, "seed of the first one")
	only  = flag.String("limit", "", "the only limit to play them with")
	bad   = flag.Bool("bad", false, "print the cells that miss the goal")
	trace = flag.Bool("trace", false, "print all windows")
)

// limits are what the grid is played with, and which part of the cells may miss the goal.
var limits = []struct {
	name string
	most float64
	new  func(c Cell) inflight.Adaptive
}{
	{"Gradient", 0.25, func(Cell) inflight.Adaptive { return inflight.Gradient() }},
	{"Vegas", 0.25, func(Cell) inflight.Adaptive { return inflight.Vegas() }},
	{"AIMD", 0.4, func(c Cell) inflight.Adaptive { return inflight.AIMD(inflight.Timeout(5 * c.Service / 2)) }},
}

// The goal of the adaptive limits over a grid of backends: see Sample and Verdict.Good. The
// documentation says what a large sample of the grid gives.
func TestAdaptiveLimitsHoldOnAGridOfBackends(t *testing.T) {
	t.Parallel()
	for _, l := range limits {
		if *only != "" && *only != l.name {
			continue
		}
		verdicts := playAll(func(c Cell) Gated {
			g := NewLimiter(c.Bound, l.new(c))
			if *trace {
				g.Trace = func(now time.Duration, s inflight.Sample, limit int) {
					fmt.Printf("%12v rtt %7.2f peak %5d dropped %5v -> %d\n", now.Round(time.Millisecond), float64(s.RTT)/float64(c.Service), s.InFlight, s.Dropped, limit)
				}
			}
			return g
		})
		missed := map[uint64]bool{}
		for _, v := range verdicts {
			if !v.Good() {
				missed[v.Cell.Seed] = true
				if *bad {
					fmt.Println(v)
				}
			}
		}
		share := float64(len(missed)) / float64(*cells)
		fmt.Printf("%s: %d of %d cells miss the goal (%.0f %%)\n", l.name, len(missed), *cells, 100*share)
		assert.LessOrEqual(t, share, l.most, l.name)
	}
}

// playAll plays the cells that the flags say.
func playAll(gate func(Cell) Gated) (all []Verdict) {
	var mu sync.Mutex // guards all
	var wg sync.WaitGroup
	seeds := make(chan uint64)
	for range runtime.GOMAXPROCS(0) {
		wg.Go(func() {
			for seed := range seeds {
				c := Sample(seed)
				v := Play(c, gate(c))
				mu.Lock()
				all = append(all, v...)
				mu.Unlock()
			}
		})
	}
	for i := range uint64(*cells) {
		seeds <- *first + i
	}
	close(seeds)
	wg.Wait()
	slices.SortStableFunc(all, func(a, b Verdict) int { return int(a.Cell.Seed) - int(b.Cell.Seed) })
	return all
}
