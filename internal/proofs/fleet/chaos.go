package main

import (
	"context"
	"fmt"
	"io"
	"math"
	"strings"
	"time"

	"github.com/weir-go/ratelimit"
	"github.com/weir-go/ratelimit/internal/dev/proc"
)

// weather has the fleet's parts that a fault can affect.
type weather struct {
	server *server
	proxy  *proxy
}

// fault is a failure of a store, or another strain on its fleet.
type fault struct {
	name  string
	short string // a short name for the picture
	lasts time.Duration
	lost  int // how often the store loses its data
	// strike begins the fault, and heal ends it.
	strike, heal func(ctx context.Context, w weather) error

	times  int            // how often the fault strikes; 0 means once
	change func(s *setup) // changes the fleet's setup during the fault; may be nil
	calm   bool           // whether the store stays healthy, so that the fallback should decide nothing
}

// faults returns failures of a store that a fleet must survive.
func faults() []fault {
	return []fault{
		{name: "kill -9, and a restart after 2 s", short: "kill -9", lasts: 2 * time.Second, lost: 1,
			strike: func(_ context.Context, w weather) error { return w.server.kill() },
			heal:   func(ctx context.Context, w weather) error { return w.server.start(ctx) }},
		{name: "SIGSTOP for 3 s, SIGCONT", short: "SIGSTOP", lasts: 3 * time.Second, strike: suspend, heal: resume},
		{name: "CLIENT KILL TYPE normal", short: "CLIENT KILL", strike: send("CLIENT", "KILL", "TYPE", "normal"), heal: nothing},
		{name: "SCRIPT FLUSH", short: "SCRIPT FLUSH", strike: send("SCRIPT", "FLUSH"), heal: nothing},
		{name: "maxmemory reached, noeviction, for 2 s", short: "maxmemory", lasts: 2 * time.Second,
			strike: send("CONFIG", "SET", "maxmemory", "1"), heal: send("CONFIG", "SET", "maxmemory", "0")},
		{name: "REPLICAOF, read-only for 2 s", short: "REPLICAOF", lasts: 2 * time.Second,
			strike: send("REPLICAOF", "127.0.0.1", "1"), heal: send("REPLICAOF", "NO", "ONE")},
		{name: "replies dropped after execution for 2 s", short: "no replies", lasts: 2 * time.Second,
			strike: func(_ context.Context, w weather) error { w.proxy.dropping.Store(true); return nil },
			heal:   func(_ context.Context, w weather) error { w.proxy.dropping.Store(false); return nil }},
	}
}

// strains returns other conditions that a fleet must withstand.
func strains() []fault {
	return []fault{
		{name: "none: bursts of 200 callers, 16 calls at once", calm: true, strike: nothing, heal: nothing, change: func(s *setup) {
			s.MaxCalls, s.Nodes, s.Goroutines, s.Demand = 16, 4, 200, 1000
		}},
		{name: "SIGSTOP for 2 s, callers with deadlines of 20 ms", lasts: 2 * time.Second, strike: suspend, heal: resume, change: func(s *setup) {
			s.Deadline = 20 * time.Millisecond
		}},
		{name: "SIGSTOP and SIGCONT in turn, 10 times 150 ms each", lasts: 150 * time.Millisecond, times: 10, strike: suspend, heal: resume},
	}
}

func suspend(_ context.Context, w weather) error { return proc.Suspend(w.server.cmd.Process) }

func resume(_ context.Context, w weather) error { return proc.Resume(w.server.cmd.Process) }

// named returns the faults whose names contain the text.
func named(text string) (some []fault) {
	for _, f := range append(faults(), strains()...) {
		if strings.Contains(f.name, text) {
			some = append(some, f)
		}
	}
	return some
}

func send(args ...any) func(context.Context, weather) error {
	return func(ctx context.Context, w weather) error { return w.server.do(ctx, args...) }
}

func nothing(context.Context, weather) error { return nil }

// chaosSetup returns the common setup of runs with faults.
func chaosSetup() setup {
	return setup{
		Engine: "failover", Rate: ratelimit.PerSecond(50), Burst: 100, Nodes: 8, Keys: 10, Skew: 1.1,
		Demand: 150, Goroutines: 8, Timeout: 50 * time.Millisecond,
	}
}

// phases has the lengths of a run before a fault and after it.
type phases struct{ calm, recovery time.Duration }

var full = phases{2 * time.Second, 4 * time.Second}

const (
	// closesWithin is how soon after a fault the breakers must close: OpenFor, a fifth of it, and the probe.
	closesWithin = 2 * time.Second
	// grace is how much a decision may exceed the timeout and the machine's own lateness.
	grace = 10 * time.Millisecond
)

// ordeal has a fleet's results during a fault.
type ordeal struct {
	fault
	engine   string
	result   *result
	healed   time.Duration // since the start
	closed   time.Duration // how long after healed each breaker had been closed
	worst    float64       // the worst key's admitted cost, as a share of the bound
	grown    int           // how many goroutines were left
	slowness time.Duration // p99.9 of a decision
	lateness time.Duration // p99.9 of a timer at the same time
}

// brave runs a fleet through a fault.
func brave(ctx context.Context, engine string, f fault, p phases, change func(s *setup)) (*ordeal, error) {
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
	s.Engine, s.Addr, s.Name = engine, prx.addr(), "fleet"
	s.Lasts = p.calm + f.span() + p.recovery
	if engine != "failover" {
		s.MaxBatch = 10
	}
	if f.change != nil {
		f.change(&s)
	}
	change(&s)
	o := &ordeal{fault: f, engine: engine}
	o.result, err = runFleet(ctx, s, func(start time.Time) error {
		time.Sleep(time.Until(start.Add(p.calm)))
		err := f.bring(ctx, weather{srv, prx})
		o.healed = time.Since(start)
		return err
	})
	if err != nil {
		return nil, err
	}
	o.measure()
	return o, nil
}

// span returns the time from the first strike to the fault's end.
func (f fault) span() time.Duration { return f.lasts * time.Duration(max(1, 2*f.times-1)) }

// bring makes the fault strike and heal as often as it must.
func (f fault) bring(ctx context.Context, w weather) error {
	for i := range max(1, f.times) {
		if i > 0 {
			time.Sleep(f.lasts)
		}
		if err := f.strike(ctx, w); err != nil {
			return fmt.Errorf("%s: %w", f.name, err)
		}
		time.Sleep(f.lasts)
		if err := f.heal(ctx, w); err != nil {
			return fmt.Errorf("%s: %w", f.name, err)
		}
	}
	return nil
}

func (o *ordeal) measure() {
	bound := o.result.outageBound(o.lost)
	for _, n := range o.result.admitted {
		o.worst = max(o.worst, float64(n)/float64(bound))
	}
	o.closed = o.result.closedAfter(o.healed)
	o.grown = math.MinInt
	for _, r := range o.result.reports {
		o.grown = max(o.grown, r.After-r.Before)
	}
	o.slowness = o.result.latency.quantile(0.999)
	o.lateness = o.result.lateness.quantile(0.999)
}

// violations describes each violated bound. A slow machine may need other values of grace and closesWithin.
func (o *ordeal) violations(grace, closesWithin time.Duration) (all []string) {
	c := o.result.count()
	if c.Errors > 0 {
		all = append(all, fmt.Sprintf("callers have seen %d errors: %v", c.Errors, o.result.notices))
	}
	if o.worst > 1 {
		all = append(all, fmt.Sprintf("a key was admitted %.1f %% of its bound", 100*o.worst))
	}
	patience := o.result.setup.Timeout
	if d := o.result.setup.Deadline; d > 0 {
		patience = min(patience, d)
	}
	if most := patience + o.lateness + grace; o.slowness > most*104/100 { // the factor allows for a histogram's step
		all = append(all, fmt.Sprintf("p99.9 of a decision is %v, want at most %v", o.slowness, most))
	}
	if o.closed > closesWithin {
		all = append(all, fmt.Sprintf("a breaker was not closed %v after recovery", o.closed))
	}
	if share := float64(c.Degraded) / float64(max(1, c.Decisions)); o.calm && share > 0.01 {
		all = append(all, fmt.Sprintf("the fallback has decided %.1f %% while the store was in good health", 100*share))
	}
	if o.grown > 0 {
		all = append(all, fmt.Sprintf("%d goroutines were left", o.grown))
	}
	return all
}

// runChaos runs a fleet with each engine through each fault, and prints a table.
func runChaos(ctx context.Context, out, progress io.Writer, faults []fault, engines []string) (failed int, err error) {
	t := newTable("fault", "engine", "decisions", "degraded", "errors", "p99.9", "a timer's delay, p99.9", "closed after", "worst key, share of bound", "goroutines left", "verdict")
	for i, f := range faults {
		for _, engine := range engines {
			fmt.Fprintf(progress, "chaos %d of %d: %s, %s\n", i+1, len(faults), f.name, engine)
			o, bad, err := judged(ctx, engine, f, progress)
			if err != nil {
				return failed, err
			}
			for _, v := range bad {
				fmt.Fprintf(progress, "  VIOLATED: %s\n", v)
			}
			failed += len(bad)
			t.row(o.cells(len(bad) == 0)...)
		}
	}
	return failed, t.print(out)
}

// judged runs a fleet through a fault. A machine may be so late that calls time out
// although Redis has answered. Such a run proves nothing, so judged repeats it.
func judged(ctx context.Context, engine string, f fault, progress io.Writer) (o *ordeal, bad []string, err error) {
	for range 3 {
		if o, err = brave(ctx, engine, f, full, func(*setup) {}); err != nil {
			return nil, nil, err
		}
		bad = o.violations(grace, closesWithin)
		if len(bad) == 0 || o.lateness < o.result.setup.Timeout/2 {
			break
		}
		fmt.Fprintf(progress, "  again, since a timer beside it was %v late: %v\n", o.lateness, bad)
	}
	return o, bad, nil
}

func (o *ordeal) cells(good bool) []string {
	c := o.result.count()
	closed, verdict := "at once", "holds"
	if o.closed > sampleEvery {
		closed = short(o.closed)
	}
	if !good {
		verdict = "VIOLATED"
	}
	return []string{
		o.name, o.engine, thousands(c.Decisions), thousands(c.Degraded), thousands(c.Errors), short(o.slowness),
		short(o.lateness), closed, fmt.Sprintf("%.1f %%", 100*o.worst), fmt.Sprint(max(0, o.grown)), verdict,
	}
}
