package overload

import (
	"flag"
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"

	"github.com/weir-go/ratelimit/inflight"
)

var (
	cells = flag.Uint64("cells", 12, "how many cells of the grid to play; 100 take about a minute")
	first = flag.Uint64("first", 1, "seed of the first one")
	only  = flag.String("limit", "", "the only limit to play them with")
	bad   = flag.Bool("bad", false, "print the cells that miss the goal")
	trace = flag.Bool("trace", false, "print all windows")
)

// limits are what the grid is played with, and which part of the cells, in per cent, may miss the goal.
var limits = []struct {
	name string
	most float64
	new  func(c Cell) inflight.Adaptive
}{
	{"Gradient", 34, func(Cell) inflight.Adaptive { return inflight.Gradient() }},
	{"Vegas", 34, func(Cell) inflight.Adaptive { return inflight.Vegas() }},
	{"AIMD", 34, func(c Cell) inflight.Adaptive { return inflight.AIMD(inflight.Timeout(5 * c.Service / 2)) }},
}

// The goal of the adaptive limits over a grid of backends: see Sample and Verdict.Good. The
// documentation says what a large sample of the grid gives.
func TestAdaptiveLimitsHoldOnAGridOfBackends(t *testing.T) {
	t.Parallel()
	play := *cells
	if testing.Short() {
		play = min(play, 6)
	}
	for _, l := range limits {
		if *only != "" && *only != l.name {
			continue
		}
		verdicts := PlayAll(*first, play, func(c Cell) Gated {
			g := NewLimiter(c.Bound, l.new(c))
			if *trace {
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

// Where one request in ten takes ten times as long as the others, one window of 20 in eight lacks the slow ones. A baseline
// that is taken from these is half of the true one, and the limit then leaves the backend idle.
func TestWindowsThatLackTheSlowRequestsDoNotEmptyTheBackend(t *testing.T) {
	t.Parallel()
	for name, adaptive := range map[string]inflight.Adaptive{"Gradient": inflight.Gradient(), "Vegas": inflight.Vegas()} {
		sum, least := 0.0, 1.0
		const seeds = 12
		for seed := range uint64(seeds) {
			p := Phase{Servers: 50, Service: 200 * time.Millisecond, Spread: Bimodal, Load: 3}
			v := Play(Cell{Phase: p, Bound: 600, Event: "none", Seed: seed}, NewLimiter(600, adaptive))
			sum += min(1, v[0].Goodput) / seeds
			least = min(least, v[0].Goodput)
		}
		t.Log(name, sum, least)
		assert.Greater(t, sum, 0.97, name)
		assert.Greater(t, least, 0.9, name)
	}
}
