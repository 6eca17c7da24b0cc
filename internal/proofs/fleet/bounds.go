package main

import (
	"context"
	"fmt"
	"io"
	"time"

	"github.com/weir-go/ratelimit"
)

// trial is one row in the table of bounds.
type trial struct {
	name   string
	what   string // describes the demand
	change func(s *setup)
	bound  func(r *result) int64
	least  float64 // the minimum admitted cost of the hottest key, as a part of the bound
	most   float64 // the maximum number of round trips per decision; 0 is not checked
	exact  bool    // whether the hottest key must be admitted exactly the bound
}

// boundsSetup returns the trials' common setup.
func boundsSetup(lasts time.Duration) setup {
	return setup{
		Rate: ratelimit.PerSecond(100), Burst: 100, Nodes: 8, MaxBatch: 10, Keys: 1000, Skew: 1.1,
		Demand: 1500, Goroutines: 2, Lasts: lasts, Timeout: time.Second,
	}
}

// trials returns a trial for each way to hold a fleet to a limit.
func trials() []trial {
	const lots = 100_000 // decisions a second per process, for trials in which most need no round trip
	central := func(r *result) int64 { return r.centralBound() }
	leased := func(r *result) int64 { return r.leasedBound() }
	return []trial{
		{"central", "8 hot keys, nothing regained", func(s *setup) {
			s.Engine, s.Keys, s.Rate, s.Burst = "central", 8, ratelimit.PerHour(1), 500
		}, func(r *result) int64 { return int64(r.setup.Burst) }, 1, 0, true},
		{"central", "1 000 keys by Zipf's law", func(s *setup) { s.Engine = "central" }, central, 0.99, 0, false},
		{"leased", "4 hot keys, far above the limit", func(s *setup) {
			s.Engine, s.Keys, s.Demand = "leased", 4, lots
		}, leased, 0.95, 0.01, false},
		{"leased", "8 hot keys, below the limit, MaxBatch 1 000", func(s *setup) {
			s.Engine, s.Keys, s.Demand, s.MaxBatch = "leased", 8, lots, 1000
			s.Rate, s.Burst = ratelimit.PerSecond(10_000_000), 10_000_000
		}, leased, 0, 0.01, false},
		{"leased", "8 hot keys, a fifth above a high limit, MaxBatch 100", func(s *setup) {
			s.Engine, s.Keys, s.Skew, s.Demand, s.MaxBatch = "leased", 8, 1.0001, 3000, 100
			s.Rate, s.Burst = ratelimit.PerSecond(2500), 2500
		}, leased, 0, 0, false},
		{"leased", "1 000 keys by Zipf's law", func(s *setup) { s.Engine = "leased" }, leased, 0.95, 0, false},
		{"static", "8 hot keys, spread evenly", func(s *setup) { s.Engine, s.Keys = "static", 8 }, central, 0.9, 0, false},
		{"static", "8 hot keys, all of it at one process", func(s *setup) {
			s.Engine, s.Keys, s.Demand, s.Alone = "static", 8, 8*s.Demand, true
		}, central, 0, 0, false},
	}
}

// outcome has a trial's results.
type outcome struct {
	trial
	result   *result
	admitted int64   // the hottest key's admitted cost
	limit    int64   // the hottest key's bound
	over     int     // how many keys exceed their bound
	trips    float64 // scripts per decision
	scripts  int64
}

// runTrial runs a fleet on an empty server.
func runTrial(ctx context.Context, s *server, t trial, lasts time.Duration) (*outcome, error) {
	set := boundsSetup(lasts)
	t.change(&set)
	set.Addr, set.Name = s.addr, "fleet"
	if err := s.do(ctx, "FLUSHALL"); err != nil {
		return nil, err
	}
	before, err := s.scripts(ctx)
	if err != nil {
		return nil, err
	}
	r, err := runFleet(ctx, set, nil)
	if err != nil {
		return nil, err
	}
	after, err := s.scripts(ctx)
	return t.judge(r, after-before), err
}

func (t trial) judge(r *result, scripts int64) *outcome {
	o := &outcome{trial: t, result: r, limit: t.bound(r), scripts: scripts}
	decisions := int64(0)
	for key, n := range r.admitted {
		o.admitted = max(o.admitted, n)
		decisions += r.decided[key]
		if n > o.limit {
			o.over++
		}
	}
	o.trips = float64(scripts) / float64(max(1, decisions))
	return o
}

// violations describes each violated bound.
func (o *outcome) violations() (all []string) {
	if o.over > 0 {
		all = append(all, fmt.Sprintf("%d keys were admitted more than %d", o.over, o.limit))
	}
	if o.exact && o.admitted != o.limit {
		all = append(all, fmt.Sprintf("%d admitted, want exactly %d", o.admitted, o.limit))
	}
	if share := float64(o.admitted) / float64(o.limit); share < o.least {
		all = append(all, fmt.Sprintf("%.1f %% of the bound was admitted, want %.1f %%", 100*share, 100*o.least))
	}
	if o.most > 0 && o.trips > o.most {
		all = append(all, fmt.Sprintf("one round trip for %.0f decisions, want %.0f", 1/o.trips, 1/o.most))
	}
	return append(all, o.result.notices...)
}

// runBounds runs all trials, and prints a table.
func runBounds(ctx context.Context, out, progress io.Writer, lasts time.Duration) (failed int, err error) {
	s, err := startServer(ctx)
	if err != nil {
		return 0, err
	}
	defer s.close()
	t := newTable("engine", "demand", "decisions/s", "decisions for a round trip", "hottest key admitted", "bound", "share", "p50", "p99")
	for i, tr := range trials() {
		fmt.Fprintf(progress, "bounds %d of %d: %s, %s\n", i+1, len(trials()), tr.name, tr.what)
		o, err := runTrial(ctx, s, tr, lasts)
		if err != nil {
			return failed, err
		}
		for _, v := range o.violations() {
			failed++
			fmt.Fprintf(progress, "  VIOLATED: %s\n", v)
		}
		t.row(o.cells()...)
	}
	return failed, t.print(out)
}

func (o *outcome) cells() []string {
	decisions := o.result.count().Decisions
	trips := "no round trips"
	if o.scripts > 0 {
		trips = fmt.Sprintf("%.1f", 1/o.trips)
	}
	return []string{
		o.name, o.what, thousands(int64(float64(decisions) / o.result.took.Seconds())), trips,
		thousands(o.admitted), thousands(o.limit), fmt.Sprintf("%.1f %%", 100*float64(o.admitted)/float64(o.limit)),
		short(o.result.latency.quantile(0.5)), short(o.result.latency.quantile(0.99)),
	}
}
