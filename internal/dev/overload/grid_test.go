package overload

import (
	"flag"
	"fmt"
	"maps"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"

	"github.com/weir-go/ratelimit/inflight"
	"github.com/weir-go/ratelimit/internal/dev/testsize"
)

var (
	cells = flag.Uint64("cells", testsize.Of(uint64(4), 100), "how many cells of the grid to play; 100 take about a minute")
	first = flag.Uint64("first", 1, "seed of the first one")
	only  = flag.String("limit", "", "the only limit to play them with")
	bad   = flag.Bool("bad", false, "print the cells that miss the goal")
	each  = flag.Bool("windows", false, "print all windows")
)

// limits are tested on the grid. most is the maximum percentage of cells missing the goal.
var limits = []struct {
	name string
	most float64
	new  func(c Cell) func() inflight.Algorithm
}{
	{"Learn", 25, func(Cell) func() inflight.Algorithm { return inflight.Learn(nil) }},
}

// Adaptive limits reach the goal over a grid of backends. Sample draws the grid, and
// Verdict.Good has the goal. The documentation has the results of a large sample.
func TestAdaptiveLimitsHoldOnAGridOfBackends(t *testing.T) {
	testsize.Arithmetic(t)
	testsize.Extra(t)
	t.Parallel()
	for _, l := range limits {
		if *only != "" && *only != l.name {
			continue
		}
		verdicts := PlayAll(Sample, *first, *cells, func(c Cell) Gated {
			g := NewLimiter(c.Bound, l.new(c))
			if *each {
				g.Trace = func(now time.Duration, s inflight.Sample, limit int) {
					fmt.Printf("%12v rtt %7.2f peak %5d dropped %5v -> %d\n", now.Round(time.Millisecond), float64(s.RTT)/float64(c.Service), s.InFlight, s.Dropped, limit)
				}
			}
			return g
		})
		for _, v := range verdicts {
			if *bad && !v.Good() {
				fmt.Println(v)
			}
		}
		var n Count
		n.Add(verdicts)
		fmt.Printf("%s: %d of %d cells miss the goal (%.0f %%), %d by far\n", l.name, n.Missed, n.Cells, n.Share(n.Missed), n.Far)
		assert.LessOrEqual(t, n.Share(n.Missed), l.most, l.name)
	}
}

// One request in ten takes ten times as long as the others. So of eight windows with 20 requests each, one has no
// slow request. A baseline from such windows would be half the true one, and the limit would leave the backend idle.
func TestWindowsThatLackTheSlowRequestsDoNotEmptyTheBackend(t *testing.T) {
	t.Parallel()
	for name, adaptive := range map[string]func() inflight.Algorithm{"Learn": inflight.Learn(nil)} {
		sum, least := 0.0, 1.0
		const seeds = 12
		for seed := range uint64(seeds) {
			p := Phase{Servers: 50, Service: 200 * time.Millisecond, Spread: Bimodal, Load: 3}
			v := Play(Cell{Phase: p, Bound: 600, Event: "none", Seed: seed}, NewLimiter(600, adaptive))
			sum += min(1, v[0].Goodput) / seeds
			least = min(least, v[0].Goodput)
		}
		t.Log(name, sum, least)
		assert.Greater(t, sum, 0.95, name)
		assert.Greater(t, least, 0.85, name)
	}
}

// When a client leaves, its work no longer counts in the limit, but the backend continues it. If a limit
// rose so far, every other window, that queued clients left, half the work would be wasted. If the backend
// becomes smaller and the limit falls slowly, the backend fills with work for clients that have left.
func TestClientsThatLeaveDoNotEmptyTheBackendOfGoodWork(t *testing.T) {
	t.Parallel()
	for name, adaptive := range map[string]func() inflight.Algorithm{"Learn": inflight.Learn(nil)} {
		for _, p := range []Phase{
			{Servers: 1, Service: 40 * time.Millisecond, Spread: Constant, Load: 2.5, Queue: 20},
			{Servers: 2, Service: 100 * time.Millisecond, Spread: Exponential, Load: 3, Queue: 100},
			{Servers: 300, Service: 20 * time.Millisecond, Spread: Exponential, Load: 2}, // the backend shrinks to 10 servers
		} {
			seeds := uint64(8)
			if p.Servers > 100 {
				if !testsize.Long() {
					continue
				}
				seeds = 2
			}
			sum, least := 0.0, 1.0
			for seed := range seeds {
				all := Play(Cell{Phase: p, Bound: 20 * p.Servers, Event: "clients leave", Seed: seed}, NewLimiter(20*p.Servers, adaptive))
				last := all[len(all)-1].Goodput
				sum += min(1, last) / float64(seeds)
				least = min(least, last)
			}
			t.Log(name, p.Servers, sum, least)
			assert.Greater(t, sum, 0.94, "%s, %d servers", name, p.Servers)
			assert.Greater(t, least, 0.85, "%s, %d servers", name, p.Servers)
		}
	}
}

// Work may fail in the backend, or after the backend's work. That is not overload, because its clients have not left early.
func TestFailedWorkDoesNotShrinkTheLimit(t *testing.T) {
	t.Parallel()
	for _, l := range limits {
		sum, cells, least := 0.0, 0, 1.0
		for _, servers := range []int{1, 10, 50} {
			for _, spread := range []Spread{Constant, Exponential, Bimodal} {
				for _, fails := range []Phase{{FailLate: 0.15}, {FailLate: 0.6}, {FailPart: 0.3}} {
					p := Phase{Servers: servers, Service: 40 * time.Millisecond, Spread: spread, Load: 1.1, FailLate: fails.FailLate, FailPart: fails.FailPart}
					c := Cell{Phase: p, Bound: 20 * servers, Event: "none"}
					v := Play(c, NewLimiter(c.Bound, l.new(c)))
					sum += min(1, v[0].Goodput)
					least = min(least, v[0].Goodput)
					cells++
				}
			}
		}
		t.Log(l.name, sum/float64(cells), least)
		assert.Greater(t, sum/float64(cells), 0.96, l.name)
		assert.Greater(t, least, 0.8, l.name)
	}
}

// If a deadline has passed, a client has left, whatever outcome is
// reported. The backend continues its work, though no client waits for it.
func TestDeadlinesShrinkTheQueueUntilFewEnd(t *testing.T) {
	t.Parallel()
	for name, adaptive := range map[string]func() inflight.Algorithm{"Learn": inflight.Learn(nil)} {
		sum, cells := 0.0, 0
		for _, p := range []Phase{
			{Servers: 8, Service: 143 * time.Millisecond, Leave: 300 * time.Millisecond, Load: 3, Deadline: true},
			{Servers: 4, Service: 40 * time.Millisecond, Spread: Exponential, Leave: 160 * time.Millisecond, Load: 1.5, Deadline: true},
			// the first window has a queue, so its latency becomes the baseline
			{Servers: 2, Service: 40 * time.Millisecond, Leave: 400 * time.Millisecond, Load: 3},
		} {
			for seed := range uint64(4) {
				v := Play(Cell{Phase: p, Bound: 40 * p.Servers, Event: "none", Seed: seed}, NewLimiter(40*p.Servers, adaptive))
				sum += min(1, v[0].Goodput)
				cells++
			}
		}
		t.Log(name, sum/float64(cells))
		assert.Greater(t, sum/float64(cells), 0.9, name)
	}
}

// The backend has many more servers than the limit has permits. If bursts reach
// the limit, it must grow, although few requests are in flight on average.
func TestLimitGrowsThoughRequestsComeInBursts(t *testing.T) {
	t.Parallel()
	for name, adaptive := range map[string]func() inflight.Algorithm{"Learn": inflight.Learn(nil)} {
		p := Phase{Servers: 100, Service: 1200 * time.Millisecond, Spread: Exponential, Load: 12, Each: 5 * time.Second, Burst: 500 * time.Millisecond}
		g := NewLimiter(1000, adaptive)
		w := NewWorld(g, 1)
		w.Begin(p)
		w.Play(40 * time.Second)
		t.Log(name, g.Limit)
		assert.GreaterOrEqual(t, g.Limit, 60, name)
	}
}

// Calls fail, and clients leave, in the ways of Failing. With -cells 1900,
// each way has a hundred backends. The documentation has the results.
func TestCallsThatFailAndClientsThatLeave(t *testing.T) {
	t.Parallel()
	for _, l := range limits {
		if *only != "" && *only != l.name {
			continue
		}
		verdicts := PlayAll(SampleFailing, *first, *cells, func(c Cell) Gated { return NewLimiter(c.Bound, l.new(c)) })
		goodput, n, all := map[string]float64{}, map[string]float64{}, 0.0
		for _, v := range verdicts {
			if *bad && !v.Good() {
				fmt.Println(v)
			}
			goodput[v.Cell.Event] += min(1, v.Goodput)
			n[v.Cell.Event]++
			all += min(1, v.Goodput) / float64(len(verdicts))
		}
		for _, way := range slices.Sorted(maps.Keys(n)) {
			fmt.Printf("%s, %s: mean goodput %.3f of the best fixed limit's in %.0f cells\n", l.name, way, goodput[way]/n[way], n[way])
		}
		assert.Greater(t, all, 0.8, l.name)
	}
}
