package figures

import (
	"fmt"

	"github.com/weir-go/ratelimit"
	"github.com/weir-go/ratelimit/failover"
	"github.com/weir-go/ratelimit/inflight"
	"github.com/weir-go/ratelimit/internal/optional"
	"github.com/weir-go/ratelimit/lease"
	"github.com/weir-go/ratelimit/stats"
)

// Source is a limiter, or policies, whose figures are exported.
type Source struct {
	Groups []Group
	// Rules returns the names of the rules in force. It is nil for a limiter.
	Rules func() []string
}

// Of returns the source of a value with a method that returns figures. The name is that of a limiter: policies have none.
func Of(name string, source any) (Source, error) {
	if optional.IsNil(source) {
		return Source{}, optional.Nil("Register: source")
	}
	switch s := source.(type) {
	case interface {
		Stats() stats.Policies
		Tables() map[string]ratelimit.Stats
	}:
		if name != "" {
			return Source{}, fmt.Errorf("policies have no limiter's name, but are registered as %q", name)
		}
		return Source{
			Groups: []Group{ofPolicies(s.Stats), ofRuleTables(s.Tables)},
			Rules:  func() []string { return s.Stats().Names },
		}, nil
	case interface{ Stats() ratelimit.Stats }:
		return Source{Groups: []Group{ofTable(s.Stats)}}, nil
	case interface{ Stats() failover.Stats }:
		return Source{Groups: []Group{ofFailover(s.Stats)}}, nil
	case interface{ Stats() lease.Stats }:
		return Source{Groups: []Group{ofLease(s.Stats)}}, nil
	case interface{ Totals() inflight.Totals }:
		return Source{Groups: []Group{ofInflight(s.Totals)}}, nil
	case interface{ Stats() semaphore }:
		return Source{Groups: []Group{ofSemaphore(s.Stats)}}, nil
	}
	return Source{}, fmt.Errorf("the source of limiter %q has no figures: %T is neither a limiter with a table of keys, nor of package failover, inflight or lease, nor a Semaphore, nor policies", name, source)
}
