package ratelimit

import (
	"strings"
	"sync"
	"sync/atomic"

	"github.com/puzpuzpuz/xsync/v4"
)

// era is the time between two calls of SetLimit, or of Refresh for all keys. A key whose
// plan is of another era asks for its limit again. Plans know only the number of their
// era, so that idle keys do not keep old eras in memory.
type era struct {
	seq   uint64
	early *early                     // for the plans; nil if nobody needs it
	def   *plan                      // of New's or SetLimit's limit
	first sync.Once                  // makes the next
	plans *xsync.Map[planKey, *plan] // for limits that LimitFor or WithLimit returned; most limiters have none
	made  atomic.Int64
}

// maxPlans bounds how many plans an era remembers, so that a LimitFor that returns
// new limits all the time costs time and not memory.
const maxPlans = 16384

// firstEra returns a limiter's first era.
func firstEra(limit Limit, early *early) (*era, error) { return newEra(limit, 0, early) }

// next returns the era that follows e, under a limit.
func (e *era) next(limit Limit) (*era, error) { return newEra(limit, e.seq+1, e.early) }

func newEra(limit Limit, seq uint64, early *early) (_ *era, err error) {
	e := &era{seq: seq, early: early}
	e.def, err = e.make(planKey{limit, seq})
	return e, err
}

// make returns a new plan.
func (e *era) make(k planKey) (*plan, error) {
	p, err := newPlan(k.limit, k.seq)
	if err == nil {
		p.early = e.early
	}
	return p, err
}

// plan returns the one plan of this era for a key's limit. The zero Limit is the default.
func (e *era) plan(limit Limit) (*plan, error) {
	if limit == (Limit{}) {
		return e.def, nil
	}
	if limit = e.named(limit); limit == e.def.limit {
		return e.def, nil
	}
	return e.shared(planKey{limit, e.seq})
}

// given returns the one plan of this era for a limit that a request brings along. It
// has a number of its own, so that a call without a limit does not go by it.
func (e *era) given(limit Limit) (*plan, error) {
	return e.shared(planKey{limit, e.seq | givenBit})
}

// named returns a limit with the default's name, if it has none.
func (e *era) named(limit Limit) Limit {
	if limit.Name == "" {
		limit.Name = e.def.limit.Name
	}
	return limit
}

// planKey tells plans of one era apart.
type planKey struct {
	limit Limit
	seq   uint64
}

func (e *era) shared(k planKey) (*plan, error) {
	e.first.Do(func() { e.plans = xsync.NewMap[planKey, *plan]() })
	if p, ok := e.plans.Load(k); ok {
		return p, nil
	}
	k.limit.Name = strings.Clone(k.limit.Name) // it may be a part of a longer string
	p, err := e.make(k)
	if err != nil || e.made.Add(1) > maxPlans {
		return p, err
	}
	p, _ = e.plans.LoadOrStore(k, p)
	return p, nil
}
