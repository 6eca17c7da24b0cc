package ratelimit

import (
	"sync"
	"sync/atomic"
)

// era is the time between two calls of SetLimit or of Refresh for all keys. A
// key whose plan is of another era asks for its limit again. Plans know only the
// era's number, so that idle keys do not keep old eras in memory.
type era struct {
	seq   uint64
	def   *plan    // New's or SetLimit's limit
	plans sync.Map // Limit → *plan, for those that LimitFor returned
	made  atomic.Int64
}

// maxPlans bounds the plans that an era remembers, so that a LimitFor that
// returns ever new limits costs time and not memory.
const maxPlans = 4096

// newEra returns the era that follows prev, which may be nil.
func newEra(limit Limit, prev *era) (*era, error) {
	e := new(era)
	if prev != nil {
		e.seq = prev.seq + 1
	}
	var err error
	e.def, err = newPlan(limit, e.seq)
	return e, err
}

// plan returns the one plan of this era for a limit. The zero Limit is the default,
// and a limit without a name takes the default's.
func (e *era) plan(limit Limit) (*plan, error) {
	if limit == (Limit{}) || limit == e.def.limit {
		return e.def, nil
	}
	if limit.Name == "" {
		limit.Name = e.def.limit.Name
	}
	if p, ok := e.plans.Load(limit); ok {
		return p.(*plan), nil
	}
	p, err := newPlan(limit, e.seq)
	if err != nil || e.made.Add(1) > maxPlans {
		return p, err
	}
	known, _ := e.plans.LoadOrStore(limit, p)
	return known.(*plan), nil
}
