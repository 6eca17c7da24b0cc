package main

import (
	"context"
	"fmt"
	"io"
	"log/slog"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/weir-go/ratelimit"
	"github.com/weir-go/ratelimit/failover"
	"github.com/weir-go/ratelimit/lease"
	"github.com/weir-go/ratelimit/redislimit"
)

const (
	// apart is how long a round trip between the regions takes.
	apart = 80 * time.Millisecond
	// inRegion is how many processes each of the two regions has. The store is in the first one.
	inRegion = 4
)

// region is one way to hold two regions to one budget, under some traffic.
type region struct {
	engine string
	name   string
	load   float64       // the traffic, as a multiple of the budget
	far    float64       // the part of the traffic arriving in the region without the store
	cut    time.Duration // how long the link is cut
	least  float64       // the minimum part of the budget that this traffic must use
}

func regions() []region {
	return []region{
		{"regions", "leases over failover", 0.8, 0.5, 0, 0.9},
		{"regions", "leases over failover", 0.8, 0.9, 0, 0.9},
		{"regions", "leases over failover", 2, 0.5, 0, 0.9},
		{"regions", "leases over failover", 2, 0.9, 0, 0.9},
		{"regions", "leases over failover", 2, 1, 0, 0.9},
		{"regions", "leases over failover", 0.8, 0.9, 10 * time.Second, 0},
		{"static", "a share for each process", 0.8, 0.9, 0, 0},
		{"far", "one region decides", 0.8, 0.9, 0, 0},
	}
}

// acrossRegions holds several regions to one limit. Its budget is in a distant Redis. This is the recipe in docs/fleet.md.
func acrossRegions(far *redis.Client, limit, share ratelimit.Limit, maxBatch int) (*lease.Limiter[string], *failover.Limiter[string], error) {
	guarded, err := farGuarded(far, limit, share)
	if err != nil {
		return nil, nil, err
	}
	leased, err := lease.New(guarded, &lease.Options[string]{
		MaxBatch: maxBatch,
		BatchFor: 500 * time.Millisecond, // several round trips, so that the next batch arrives before the last one is used up
		HoldFor:  2 * time.Second,
	})
	return leased, guarded, err
}

// farGuarded uses the distant Redis for each decision. If it does not answer, farGuarded uses the process's own share.
func farGuarded(far *redis.Client, limit, share ratelimit.Limit) (*failover.Limiter[string], error) {
	shared, err := redislimit.New(far, limit, &redislimit.Options{Timeout: 500 * time.Millisecond})
	if err != nil {
		return nil, err
	}
	for range 5 { // the first call takes several round trips: it connects and loads the script
		if _, err := shared.Peek(context.Background(), "warm", 0); err == nil {
			break
		}
	}
	local, err := ratelimit.New[string](share, nil)
	if err != nil {
		return nil, err
	}
	return failover.New(shared, local, &failover.Options{Timeout: 600 * time.Millisecond, Logger: slog.New(slog.DiscardHandler)})
}

// leasedAcross is the recipe as an engine.
func leasedAcross(s setup, client *redis.Client) (engine, error) {
	leased, guarded, err := acrossRegions(client, s.limit().Named(s.Name), s.share(), s.MaxBatch)
	if err != nil {
		return engine{}, err
	}
	return engine{Reserver: leased, flush: leased.Flush, lease: leased.Stats, state: func() failover.State { return guarded.Stats().State }}, nil
}

// far is an engine that decides in one region.
func far(s setup, client *redis.Client) (engine, error) {
	guarded, err := farGuarded(client, s.limit().Named(s.Name), s.share())
	if err != nil {
		return engine{}, err
	}
	return engine{Reserver: guarded, state: func() failover.State { return guarded.Stats().State }}, nil
}

// regionsSetup returns the runs' common setup.
func regionsSetup(r region, lasts time.Duration) setup {
	s := setup{
		Engine: r.engine, Name: "regions", Rate: ratelimit.PerSecond(1000), Burst: 1000, Nodes: 2 * inRegion, Keys: 1, Skew: 1.1,
		Goroutines: 16, Lasts: lasts + r.cut, MaxBatch: 100,
	}
	total := r.load * 1000
	s.Demand = int(total) / s.Nodes
	for node := range s.Nodes {
		part := 1 - r.far
		if node >= inRegion {
			part = r.far
		}
		s.Demands = append(s.Demands, int(total*part/inRegion))
	}
	return s
}

// runRegion runs two regions. The store is in one of them.
func runRegion(ctx context.Context, r region, lasts time.Duration, change func(*setup)) (*result, error) {
	srv, err := startServer(ctx)
	if err != nil {
		return nil, err
	}
	defer srv.close()
	k, err := startLink(srv.addr, apart/2)
	if err != nil {
		return nil, err
	}
	defer k.close()
	s := regionsSetup(r, lasts)
	for node := range s.Nodes {
		addr := srv.addr
		if node >= inRegion {
			addr = k.addr()
		}
		s.Addrs = append(s.Addrs, addr)
	}
	if change != nil {
		change(&s)
	}
	return runFleet(ctx, s, func(start time.Time) error {
		if r.cut > 0 {
			time.Sleep(time.Until(start.Add(lasts / 2)))
			k.cut.Store(true)
			time.Sleep(r.cut)
			k.mend()
		}
		return nil
	})
}

// used returns the admitted cost as a share of the maximum under the budget and the traffic.
func (r *result) used() float64 {
	could := min(float64(r.setup.regained(r.setup.Lasts)+int64(r.setup.Burst)), float64(r.setup.Demand*r.setup.Nodes)*r.setup.Lasts.Seconds())
	return float64(r.admitted[0]) / could
}

// runRegions runs all regions, and prints a table.
func runRegions(ctx context.Context, out, progress io.Writer, lasts time.Duration) (failed int, err error) {
	t := newTable("way", "traffic, of the budget", "of that in the far region", "link cut for", "admitted", "bound", "budget used", "far p50", "far p99", "near p99", "errors", "degraded")
	for i, r := range regions() {
		fmt.Fprintf(progress, "regions %d of %d: %s, traffic of %.0f %%, %.0f %% of it far, cut for %v\n", i+1, len(regions()), r.name, 100*r.load, 100*r.far, r.cut)
		res, err := runRegion(ctx, r, lasts, nil)
		if err != nil {
			return failed, err
		}
		bound := res.outageBound(0)
		for _, v := range r.violations(res, bound) {
			failed++
			fmt.Fprintf(progress, "  VIOLATED: %s\n", v)
		}
		var near, far histogram
		for node, p := range res.reports {
			if node < inRegion {
				near.merge(&p.Latency)
			} else {
				far.merge(&p.Latency)
			}
		}
		c := res.count()
		t.row(r.name, fmt.Sprintf("%.0f %%", 100*r.load), fmt.Sprintf("%.0f %%", 100*r.far), r.cut.String(), thousands(res.admitted[0]), thousands(bound), fmt.Sprintf("%.0f %%", 100*res.used()),
			short(far.quantile(0.5)), short(far.quantile(0.99)), short(near.quantile(0.99)), thousands(c.Errors), thousands(c.Degraded))
	}
	return failed, t.print(out)
}

func (r region) violations(res *result, bound int64) (all []string) {
	if res.admitted[0] > bound {
		all = append(all, fmt.Sprintf("%d admitted, beyond the bound %d", res.admitted[0], bound))
	}
	if used := res.used(); used < r.least {
		all = append(all, fmt.Sprintf("%.1f %% of the budget was used, want %.0f %%", 100*used, 100*r.least))
	}
	return append(all, res.notices...)
}
