package main

import (
	"context"
	"fmt"
	"io"
	"math"
	"os"
	"slices"
	"time"

	"github.com/weir-go/ratelimit"
	"github.com/weir-go/ratelimit/internal/dev/chart"
)

// The picture's lengths, in pixels and time.
const (
	pictureWidth = 920
	pictureLeft  = 64.0
	pictureRight = pictureWidth - 28.0
	upperTop     = 92.0
	upperBottom  = 222.0
	lowerTop     = 284.0
	lowerBottom  = 434.0
	bin          = 200 * time.Millisecond
	between      = 4 * time.Second // the pause between faults
)

// storm is one run through all faults, with one key.
type storm struct {
	result *result
	faults []struck
	bound  []int64 // the maximum admitted cost by the end of each bin
	bins   []sample
}

// struck is a fault, and when it began and ended.
type struck struct {
	fault
	from, to time.Duration
}

// runStorm makes all faults strike, one after the other.
func runStorm(ctx context.Context, progress io.Writer) (*storm, error) {
	srv, err := startServer(ctx)
	if err != nil {
		return nil, err
	}
	defer srv.close()
	prx, err := startProxy(srv.addr)
	if err != nil {
		return nil, err
	}
	defer prx.close()
	s := chaosSetup()
	s.Addr, s.Name, s.Keys, s.Skew = prx.addr(), "fleet", 2, 50 // with so much skew, nearly all decisions are on one key
	s.Rate, s.Burst = ratelimit.PerSecond(800), 800
	for _, f := range faults() {
		s.Lasts += f.lasts + between
	}
	st := &storm{}
	st.result, err = runFleet(ctx, s, func(start time.Time) error {
		return st.strike(ctx, weather{srv, prx}, start, progress)
	})
	if err != nil {
		return nil, err
	}
	st.collect()
	return st, nil
}

func (st *storm) strike(ctx context.Context, w weather, start time.Time, progress io.Writer) error {
	next := between / 2
	for _, f := range faults() {
		time.Sleep(time.Until(start.Add(next)))
		fmt.Fprintf(progress, "picture: %s\n", f.name)
		from := time.Since(start)
		if err := f.bring(ctx, w); err != nil {
			return err
		}
		st.faults = append(st.faults, struck{f, from, time.Since(start)})
		next += f.lasts + between
	}
	return nil
}

// collect adds up the samples in bins, and computes the bound at each bin's end.
func (st *storm) collect() {
	s := st.result.setup
	st.bins = make([]sample, int(s.Lasts/bin))
	st.bound = make([]int64, len(st.bins))
	for _, sm := range st.result.samples {
		b := &st.bins[min(max(0, int((sm.At-1)/bin)), len(st.bins)-1)]
		b.Decisions += sm.Decisions
		b.Allowed += sm.Allowed
		b.Degraded += sm.Degraded
	}
	outages, lost := int64(0), int64(0)
	next := 0
	for i := range st.bins {
		end := time.Duration(i+1) * bin
		for ; next < len(st.faults) && st.faults[next].from < end; next++ {
			outages++
			lost += int64(st.faults[next].lost)
		}
		// Each outage adds the bursts that the processes admit alone.
		// Afterwards, their rates together equal the shared limit's.
		alone := outages * int64(s.Nodes) * int64(s.share().Burst)
		st.bound[i] = int64(s.Burst)*(1+lost) + s.regained(end) + alone + s.regained(st.degradedBy(end))
	}
}

// degradedBy returns how long decisions had been degraded by an instant.
func (st *storm) degradedBy(end time.Duration) (d time.Duration) {
	for i, b := range st.bins {
		if b.Degraded > 0 && time.Duration(i)*bin < end {
			d += bin
		}
	}
	return d
}

// picture draws the run.
func (st *storm) picture() string {
	last := st.result.setup.Lasts
	at := chart.Linear(0, last.Seconds(), pictureLeft, pictureRight)
	c := chart.New(pictureWidth, 490, "A fleet of eight processes while its Redis suffers seven faults",
		"Decisions per second over time, the degraded ones among them, and the admitted cost against the bound.")
	c.Text("heading", "start", pictureLeft, 34, "Eight processes, one limit, seven faults")
	c.Text("muted", "start", pictureLeft, 55, fmt.Sprintf("failover(redislimit, local). Callers saw %d errors; p99.9 of a decision is %s.",
		st.result.count().Errors, short(st.result.latency.quantile(0.999))))
	st.mark(c, at)
	st.drawDecisions(c, at)
	st.drawAdmitted(c, at)
	for t := time.Duration(0); t <= last; t += 5 * time.Second {
		c.Text("small", "middle", at(t.Seconds()), lowerBottom+20, fmt.Sprintf("%d s", int(t.Seconds())))
	}
	return c.String()
}

// mark marks the faults.
func (st *storm) mark(c *chart.Canvas, at chart.Scale) {
	for _, f := range st.faults {
		from, to := at(f.from.Seconds()), at(f.to.Seconds())
		c.Rect("denied", from, upperTop-6, max(2, to-from), lowerBottom-upperTop+6)
		c.Text("small", "middle", (from+to)/2, upperTop-12, f.short)
	}
}

func (st *storm) drawDecisions(c *chart.Canvas, at chart.Scale) {
	most := int64(1)
	for _, b := range st.bins {
		most = max(most, b.Decisions)
	}
	top := ceilTo(float64(most)/bin.Seconds(), 1000)
	y := chart.Linear(0, top, upperBottom, upperTop)
	axis(c, y, top, "decisions/s")
	for i, b := range st.bins {
		x, w := at((time.Duration(i) * bin).Seconds()), at(bin.Seconds())-at(0)-0.6
		shared := y(float64(b.Decisions) / bin.Seconds())
		degraded := y(float64(b.Degraded) / bin.Seconds())
		c.Rect("admitted", x, shared, w, upperBottom-shared)
		c.Rect("b", x, degraded, w, upperBottom-degraded)
	}
	legend(c, upperBottom+20, []string{"admitted", "b"}, []string{"decided by the shared store", "degraded: decided by a process alone"})
}

func (st *storm) drawAdmitted(c *chart.Canvas, at chart.Scale) {
	top := ceilTo(float64(slices.Max(st.bound)), 10_000)
	y := chart.Linear(0, top, lowerBottom, lowerTop)
	axis(c, y, top, "admitted, in all")
	total := int64(0)
	x, before := at(0), y(0)
	for i, b := range st.bins {
		total += b.Allowed
		next := at((time.Duration(i+1) * bin).Seconds())
		c.Rect("admitted", x, y(float64(total)), next-x-0.6, lowerBottom-y(float64(total)))
		bound := y(float64(st.bound[i]))
		c.Line("window", x, bound, next, bound)
		if i > 0 {
			c.Line("window", x, before, x, bound)
		}
		x, before = next, bound
	}
	legend(c, lowerBottom+42, []string{"admitted", "b"}, []string{"admitted", "the stated bound"})
}

func axis(c *chart.Canvas, y chart.Scale, top float64, name string) {
	for _, v := range []float64{0, top / 2, top} {
		c.Line("grid", pictureLeft, y(v), pictureRight, y(v))
		c.Text("small", "end", pictureLeft-8, y(v)+4, thousands(int64(v)))
	}
	c.Upright("small", 16, (y(0)+y(top))/2, name)
}

func legend(c *chart.Canvas, y float64, classes, texts []string) {
	x := pictureLeft
	for i, class := range classes {
		c.Rect(class, x, y-9.5, 10, 10)
		c.Text("small", "start", x+15, y, texts[i])
		x += 15 + 7*float64(len(texts[i])) + 20
	}
}

func ceilTo(v, step float64) float64 { return math.Ceil(v/step) * step }

// drawStorm runs a storm and draws it into a file.
func drawStorm(ctx context.Context, progress io.Writer, file string) error {
	st, err := runStorm(ctx, progress)
	if err != nil {
		return err
	}
	total := int64(0)
	for i, b := range st.bins {
		if total += b.Allowed; total > st.bound[i] {
			return fmt.Errorf("%v after the start %d were admitted, more than %d", time.Duration(i+1)*bin, total, st.bound[i])
		}
	}
	if n := st.result.count().Errors; n > 0 {
		return fmt.Errorf("callers have seen %d errors: %v", n, st.result.notices)
	}
	return os.WriteFile(file, []byte(st.picture()), 0o644)
}
