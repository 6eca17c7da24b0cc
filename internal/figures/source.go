package figures

import (
	"fmt"

	"github.com/weir-go/ratelimit"
	"github.com/weir-go/ratelimit/failover"
	"github.com/weir-go/ratelimit/httplimit"
	"github.com/weir-go/ratelimit/inflight"
	"github.com/weir-go/ratelimit/internal/optional"
	"github.com/weir-go/ratelimit/lease"
	"github.com/weir-go/ratelimit/stats"
)

// Register calls export for each group of a source's figures. The source is a limiter with a name, or policies
// without one. After policies are registered, counts discards the counts of rules no longer in force.
func Register(name string, source any, counts *RuleCounts, export func(limiter string, g Group) error) error {
	if optional.IsNil(source) {
		return optional.Nil("Register: source")
	}
	switch s := source.(type) {
	case interface{ Stats() stats.Policies }:
		if name != "" {
			return fmt.Errorf("policies have no limiter's name, but are registered as %q", name)
		}
		if err := export("", ofPolicies(s.Stats)); err != nil {
			return err
		}
		counts.keep(func() []string { return s.Stats().Names })
		return export("", ofRuleTables(func() map[string]ratelimit.Stats { return s.Stats().Tables }))
	case *httplimit.Middleware:
		return export(name, ofHTTP(s.Stats))
	case interface {
		Stats() httplimit.InflightStats
	}:
		return export(name, ofHTTPPermits(s.Stats))
	case interface{ Stats() httplimit.Stats }:
		return export(name, ofRPC(s.Stats))
	case interface{ Stats() ratelimit.Stats }:
		return export(name, ofTable(s.Stats))
	case interface{ Stats() failover.Stats }:
		return export(name, ofFailover(s.Stats))
	case interface{ Stats() lease.Stats }:
		return export(name, ofLease(s.Stats))
	case interface{ Totals() inflight.Totals }:
		return export(name, ofInflight(s.Totals))
	case interface{ Stats() semaphore }:
		return export(name, ofSemaphore(s.Stats))
	}
	return fmt.Errorf("the source of limiter %q has no figures: %T is neither a limiter with a table of keys, nor of package failover, inflight or lease, nor a Semaphore, nor policies, nor middleware", name, source)
}
