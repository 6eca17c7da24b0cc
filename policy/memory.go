package policy

import (
	"time"

	"github.com/weir-go/ratelimit"
	"github.com/weir-go/ratelimit/fair"
	"github.com/weir-go/ratelimit/internal/optional"
	"github.com/weir-go/ratelimit/policy/internal/limits"
)

// MemoryOptions are each rule's [ratelimit.Options]. A rule with
// Share uses only MaxKeys and Clock, and has a line of package fair.
type MemoryOptions struct {
	MaxKeys  int
	OnFull   ratelimit.Overflow
	Remember int
	Clock    ratelimit.Clock
	// Processes is how many processes use such an engine as the stand-in for a shared store: see package failover. The engine
	// divides every limit by it, also those from plans, overrides and attributes, as [failover.Share] does, and rounds up. So
	// all processes together admit about the whole limit. Zero and one divide nothing. If negative, [New] returns an error.
	Processes int
}

// Memory returns an engine in this process's memory. Rules with the same name in two Policies have their own budgets.
func Memory(opts *MemoryOptions) Engine {
	var o MemoryOptions
	if opts != nil {
		o = *opts
	}
	return func(b Budget, before ratelimit.Limiter[string]) (ratelimit.Limiter[string], error) {
		if err := optional.NotNegative("MemoryOptions.Processes", o.Processes, "one"); err != nil {
			return nil, err
		}
		if b.Share > 0 {
			return newMemoryPool(&o, b, before)
		}
		if before, ok := before.(*table); ok && before.counts(b.Limit) {
			return before, nil
		}
		t := &table{processes: o.Processes, clock: o.Clock}
		var err error
		t.Keyed, err = ratelimit.New(limits.ShareOf(b.Limit, t.processes), &ratelimit.Options[string]{MaxKeys: o.MaxKeys, OnFull: o.OnFull, Remember: o.Remember, Clock: o.Clock})
		if before != nil && err == nil {
			return before, nil
		}
		return t, err
	}
}

// table is the limiter of [Memory]. Sets in use at the same time share their rules' tables, and so the spending, but not
// the limits. Each set decides under its own limits, so a decision by an earlier set does not use the limits of the next.
type table struct {
	*ratelimit.Keyed[string]
	processes int // the number of processes with a part of each limit
	clock     ratelimit.Clock
}

// counts reports whether the engine certainly accepts a limit. A calendar needs
// a clock with dates. An engine in front of this one may refuse Concurrent.
func (t *table) counts(limit ratelimit.Limit) bool {
	return limit.Algorithm != ratelimit.AlgorithmCalendar && limit.Algorithm != ratelimit.AlgorithmConcurrent
}

// memoryPool is the limiter of [Memory] for a rule with Share.
type memoryPool struct {
	*fair.Limiter[string]
	processes int // the number of processes with a part of the limit
	clock     ratelimit.Clock
}

// newMemoryPool returns before, or a new limiter if before is nil.
func newMemoryPool(o *MemoryOptions, b Budget, before ratelimit.Limiter[string]) (ratelimit.Limiter[string], error) {
	p := &memoryPool{processes: o.Processes, clock: o.Clock}
	var err error
	p.Limiter, err = fair.New(limits.ShareOf(b.Limit, o.Processes), &fair.Options[string]{MaxKeys: o.MaxKeys, Clock: o.Clock, Weight: b.Weight})
	if before, ok := before.(*memoryPool); ok && err == nil {
		return before, nil
	}
	return p, err
}

// SetLimit changes the limit to this process's share of it.
func (p *memoryPool) SetLimit(limit ratelimit.Limit) error {
	return p.Limiter.SetLimit(limits.ShareOf(limit, p.processes))
}

var started = time.Now()

// readingOf returns the time by the clock of budgets in memory, or without a clock the time since the program's start.
func readingOf(clock ratelimit.Clock) time.Duration {
	if clock != nil {
		return clock.Now()
	}
	return time.Since(started)
}
