package overload

import (
	"flag"
	"fmt"
	"os"
	"testing"
	"testing/synctest"
	"text/tabwriter"
	"time"

	"github.com/platinummonkey/go-concurrency-limits/core"
	"github.com/platinummonkey/go-concurrency-limits/limit"
	"github.com/platinummonkey/go-concurrency-limits/limit/functions"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/weir-go/ratelimit/inflight"
	grid "github.com/weir-go/ratelimit/internal/dev/overload"
	"github.com/weir-go/ratelimit/internal/dev/testsize"
	"github.com/weir-go/ratelimit/internal/proofs/internal/peergate"
)

var (
	cells = flag.Uint64("cells", testsize.Of(uint64(2), 20), "how many cells of the grid to play; 100 take some minutes")
	first = flag.Uint64("first", 1, "seed of the first one")
	only  = flag.String("limit", "", "the only limit to play them with")
)

// limits are this library's limits and those of others, with their defaults. The highest limit is the cell's.
var limits = []struct {
	name string
	new  func(t *testing.T, c grid.Cell) grid.Gated
}{
	{"inflight: Learn", func(_ *testing.T, c grid.Cell) grid.Gated { return grid.NewLimiter(c.Bound, inflight.Learn(nil)) }},
	{"inflight: Learn, judged by a Timeout of 2.5 service times", func(_ *testing.T, c grid.Cell) grid.Gated {
		g := grid.NewLimiter(c.Bound, inflight.Learn(&inflight.LearnOptions{Timeout: 5 * c.Service / 2}))
		g.Timeout = 5 * c.Service / 2
		return g
	}},
	{"failsafe-go: adaptive limiter", func(_ *testing.T, c grid.Cell) grid.Gated { return peergate.NewFailsafe(c.Bound) }},
	{"go-concurrency-limits: Gradient2 (Netflix's)", func(t *testing.T, c grid.Cell) grid.Gated {
		l, err := limit.NewGradient2Limit("", min(20, c.Bound), c.Bound, 1, func(int) int { return 4 }, 0.2, 600, limit.NoopLimitLogger{}, core.EmptyMetricRegistryInstance)
		require.NoError(t, err)
		return newPlatinum(l)
	}},
	{"go-concurrency-limits: Vegas (Netflix's)", func(t *testing.T, c grid.Cell) grid.Gated {
		return newPlatinum(limit.NewVegasLimitWithRegistry("", min(20, c.Bound), nil, c.Bound, 1, functions.Log10RootFunction(0), nil, nil, nil, nil, 0,
			limit.NoopLimitLogger{}, core.EmptyMetricRegistryInstance))
	}},
}

// Every limit plays the same cells. The same rules count the cells that miss the goal.
func TestGrid(t *testing.T) {
	w := tabwriter.NewWriter(os.Stdout, 0, 0, 1, ' ', tabwriter.Debug)
	defer w.Flush()
	fmt.Fprintf(w, "| limit\t missed, of %d\t of these, latency too high\t goodput too low\t by far\t\n|---\t ---\t ---\t ---\t ---\t\n", *cells)
	for _, l := range limits {
		if *only != "" && *only != l.name {
			continue
		}
		var n grid.Count
		for seed := *first; seed < *first+*cells; seed++ {
			c := grid.Sample(seed)
			synctest.Test(t, func(t *testing.T) { n.Add(grid.Play(c, l.new(t, c))) })
		}
		assert.EqualValues(t, *cells, n.Cells)
		fmt.Fprintf(w, "| %s\t %.0f %%\t %.0f %%\t %.0f %%\t %.0f %%\t\n", l.name, n.Share(n.Missed), n.Share(n.Slow), n.Share(n.Little), n.Share(n.Far))
	}
}

// platinum is a gate with one of go-concurrency-limits' limits, in windows, as its documentation
// recommends. It uses the simulated time. If a client leaves, it counts as dropped.
type platinum struct {
	limit    core.Limit
	inFlight int
	windows  *int
}

func newPlatinum(l core.Limit) *platinum {
	n := new(int)
	// the default of 1e8 ns would ignore latencies below 100 ms
	w, err := limit.NewWindowedLimit("", 1e9, 1e9, 10, 1e5, counted{l, n}, core.EmptyMetricRegistryInstance)
	if err != nil {
		panic(err)
	}
	return &platinum{limit: w, windows: n}
}

// counted counts the windows.
type counted struct {
	core.Limit
	windows *int
}

func (c counted) OnSample(start, rtt int64, inFlight int, dropped bool) {
	*c.windows++
	c.Limit.OnSample(start, rtt, inFlight, dropped)
}

func (p *platinum) Enter(time.Duration, *grid.Request) bool {
	if p.inFlight >= p.limit.EstimatedLimit() {
		return false
	}
	p.inFlight++
	return true
}

func (p *platinum) Leave(now time.Duration, r *grid.Request, o inflight.Outcome) {
	p.limit.OnSample(int64(r.Sent), int64(now-r.Sent), p.inFlight, o == inflight.Dropped || o == inflight.Cancelled)
	p.inFlight--
}

func (p *platinum) State() (windows, limit int) { return *p.windows, p.limit.EstimatedLimit() }
