package ratelimit

import (
	"fmt"
	"strings"
	"sync"
	"sync/atomic"

	"github.com/weir-go/ratelimit/internal/keys"
)

// generation is the set of limits in force between two calls to SetLimit, or to Refresh for all
// keys. If a key's plan belongs to another generation, the key's next decision looks up its limit
// again. So a change of limits touches no key: it takes constant time, however many keys there are.
//
// A plan knows only the number of its generation. If it referred to the generation itself, one idle key would keep all plans of
// an old generation in memory.
type generation struct {
	seq   uint64
	dirty *dirtyList                // the dirty list for the plans; nil if the table has none
	dates *calendars                // the calendars for the plans
	def   *plan                     // the plan of New's or SetLimit's limit
	first sync.Once                 // guards the creation of the next generation
	plans *keys.Map[planKey, *plan] // plans for limits of LimitFor or Layer.Limit; most limiters have none
	made  atomic.Int64              // plans made for such limits

	changed chan struct{} // closed when another generation replaces this one; the first calls of lines wait for that
}

// maxPlans is the maximum number of plans in a generation's memory. So
// if LimitFor always returns new limits, it costs time, but no memory.
const maxPlans = 16384

// firstGeneration returns a limiter's first generation.
func firstGeneration(limit Limit, dirty *dirtyList, dates *calendars) (*generation, error) {
	return newGeneration(limit, 0, dirty, dates)
}

// next returns g's successor, under a limit.
func (g *generation) next(limit Limit) (*generation, error) {
	return newGeneration(limit, g.seq+1, g.dirty, g.dates)
}

func newGeneration(limit Limit, seq uint64, dirty *dirtyList, dates *calendars) (_ *generation, err error) {
	g := &generation{seq: seq, dirty: dirty, dates: dates, changed: make(chan struct{})}
	g.def, err = g.newPlan(planKey{limit, seq})
	return g, err
}

// newPlan returns a plan of this generation, for its cache.
func (g *generation) newPlan(k planKey) (*plan, error) {
	p, err := newPlan(k.limit, k.seq, g.dates)
	if err == nil {
		p.dirty = g.dirty
	}
	return p, err
}

// forKey returns this generation's plan for a key's limit. The zero Limit means the default.
func (g *generation) forKey(limit Limit) (*plan, error) {
	if limit == (Limit{}) {
		return g.def, nil
	}
	if limit = g.withName(limit); limit == g.def.limit {
		return g.def, nil
	}
	return g.cachedPlan(planKey{limit, g.seq})
}

// forRequest returns this generation's plan for a request's own limit. The plan's number differs from
// the generation's, so a later call without a limit does not take it for the limiter's own plan.
func (g *generation) forRequest(limit Limit) (*plan, error) {
	return g.cachedPlan(planKey{limit, g.seq | requestBit})
}

// withName returns a limit with the default's name, if it has none.
func (g *generation) withName(limit Limit) Limit {
	if limit.Name == "" {
		limit.Name = g.def.limit.Name
	}
	return limit
}

// planKey identifies a plan within one generation.
type planKey struct {
	limit Limit
	seq   uint64
}

// cachedPlan returns the plan for a limit, and makes it if there is none. Keys under one limit
// share one plan, so a plan costs a key 8 bytes, and two plans are compared by address.
func (g *generation) cachedPlan(k planKey) (*plan, error) {
	g.first.Do(func() { g.plans = keys.NewMap[planKey, *plan](maxPlans) })
	if p := g.plans.Find(k); p != nil {
		return p, nil
	}
	k.limit.Name = strings.Clone(k.limit.Name) // it may be a part of a longer string
	p, err := g.newPlan(k)
	if err != nil || g.made.Add(1) > maxPlans {
		return p, err
	}
	e, _ := g.plans.Add(k, p)
	return e.Value, nil
}

// SetLimit replaces [New]'s limit. The keys' spending stays: after 40 spent of 50, a limit
// of 500 leaves 460; after 100 spent of 500, a limit of 50 leaves nothing until enough is
// regained. An invalid limit changes nothing, and the error wraps [ErrInvalidLimit].
//
// Each key is under the new limit from its next decision on. Its spending keeps its age, and bookings keep their
// instants. If the algorithm changes, the spending is rounded up. A key's first decision after a change takes time
// linear in its bookings. A change also calls [Options.LimitFor] again for every key, each at its next decision.
func (l *Keyed[K]) SetLimit(limit Limit) error {
	l.requireInit()
	for {
		old := l.generation.Load()
		if limit == old.def.limit {
			return nil
		}
		next, err := old.next(limit)
		if err != nil {
			return err
		}
		if l.generation.CompareAndSwap(old, next) {
			l.keys.limitChanged()
			close(old.changed)
			return nil
		}
	}
}

// Refresh calls [Options.LimitFor] again for the keys, each at its next decision; without keys, for all keys. Their spending
// stays.
func (l *Keyed[K]) Refresh(keys ...K) {
	if len(keys) == 0 {
		l.refreshAll()
	}
	for _, key := range keys {
		if l.check(key, 0) == nil {
			l.refresh(key)
		}
	}
}

func (l *Keyed[K]) refreshAll() {
	l.requireInit()
	for {
		old := l.generation.Load()
		next, _ := old.next(old.def.limit) // it was valid before
		if l.generation.CompareAndSwap(old, next) {
			close(old.changed)
			return
		}
	}
}

// refresh first increments the counter, then drops LimitFor's result and marks the account. A concurrent
// decision may have called LimitFor before: it sees the new count, or refresh finds its account and marks it.
func (l *Keyed[K]) refresh(key K) {
	l.refreshed.Add(1)
	if l.lookups != nil {
		l.lookups.Drop(key)
	}
	l.markStale(key)
}

// kindShift is the position of the lowest bit in account.changes that counts changes to and from Concurrent.
const kindShift = 24

// changed counts a change of the limit's figures. A reservation made before a change to or from Concurrent has nothing to settle. The caller
// holds the lock.
func (a *account) changed(kind bool) {
	if kind {
		a.changes += 1 << kindShift
	}
	const low = 1<<kindShift - 1
	a.changes = a.changes&^low | (a.changes+1)&low
}

// markStale makes the key's next decision look up its limit again.
func (l *Keyed[K]) markStale(key K) {
	if a := l.keys.lockFound(key); a != nil {
		defer a.mu.Unlock()
		a.markStale()
		a.rouseFirst()
	}
}

// This part determines a decision's plan. If the request has a limit, the decision uses the plan of that
// limit (forRequest). Otherwise it uses the plan of LimitFor's limit for the key (forKey), and without
// LimitFor the limiter's plan (def). An account keeps the plan of its last decision. So LimitFor is
// called again only if the generation has changed or the account is stale. When the decision has locked
// the account, adopt puts it under the new plan, unless another decision has put it under a newer one.
//
// Until then the limiter keeps the plan in the field asked. The plan stays there if the decision
// does not put the key under it: a Peek, a cost above the capacity, a stack's denial, or a
// decision under Unlimited or Blocked. Concurrent decisions on a key share one call to LimitFor.

// onePlan returns the plan for all keys, or nil if keys have limits of their own.
func (l *Keyed[K]) onePlan() *plan {
	if l.limitFor != nil {
		return nil
	}
	return l.generation.Load().def
}

// planOfKey returns the plan of the key's limit. It may call LimitFor.
func (l *Keyed[K]) planOfKey(key K) (*plan, error) {
	if p := l.onePlan(); p != nil {
		return p, nil
	}
	g := l.generation.Load()
	if p := l.keys.planOf(key, g); p != nil {
		return p, nil
	}
	return l.lookUpPlan(key, g)
}

// planOfAccount is planOfKey for a key of a stack. a is the key's account, or nil.
func (l *Keyed[K]) planOfAccount(key K, a *account) (*plan, error) {
	if p := l.onePlan(); p != nil {
		return p, nil
	}
	g := l.generation.Load()
	if p := a.planOf(g); p != nil {
		return p, nil
	}
	return l.lookUpPlan(key, g)
}

// lookUpPlan returns a key's plan by an earlier call to LimitFor, or by a call now.
func (l *Keyed[K]) lookUpPlan(key K, g *generation) (*plan, error) {
	if p, ok := l.lookups.Find(key, g.seq); ok {
		return p, nil
	}
	return l.lookups.Get(key, g.seq, func() (*plan, bool) {
		// A decision that has just ended has put the account under its plan, and removed the plan from asked.
		p := l.keys.planOf(key, g)
		return p, p != nil
	}, func(key K) (*plan, error) {
		p, err := g.forKey(l.limitFor(key))
		if err != nil {
			return nil, fmt.Errorf("ratelimit: Options.LimitFor: %w", err)
		}
		return p, nil
	})
}

// planOf returns the account's plan if it is still the limiter's plan for
// the key in generation g, and nil otherwise. The account may be nil.
func (a *account) planOf(g *generation) *plan {
	if a == nil {
		return nil
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.planIn(g)
}

// planOf is [account.planOf] for the account of a key.
func (t *table[K]) planOf(key K, g *generation) *plan {
	a := t.lockFound(key)
	if a == nil {
		return nil
	}
	defer a.mu.Unlock()
	return a.planIn(g)
}

// planIn is planOf for a locked account.
func (a *account) planIn(g *generation) *plan {
	if a.plan == nil || a.plan.seq != g.seq {
		return nil
	}
	return a.plan
}

// adopted removes a result of LimitFor from asked, because the key's account now holds it. The caller holds no lock.
func (l *Keyed[K]) adopted(key K, p *plan) {
	if l.lookups != nil {
		l.lookups.Take(key, p)
	}
}

// planOfRequest returns the plan for a request's own limit. a is the key's account, or nil. planOfRequest
// tries the plan of the key's last decision first, so its time does not depend on the number of plans.
func (l *Keyed[K]) planOfRequest(key K, a *account, limit Limit) (*plan, error) {
	refreshed, g := l.refreshed.Load(), l.generation.Load()
	limit = g.withName(limit)
	if l.limitFor == nil && limit == g.def.limit {
		return g.def, nil // a later call without a limit would be decided under this plan, too
	}
	if a != nil {
		a.mu.Lock()
		p := a.plan
		a.mu.Unlock()
		switch {
		case p == nil:
		case p.seq == g.seq|requestBit && p.limit == limit:
			return p, nil
		case p.seq == g.seq && l.lookups != nil: // a later request without a limit needs the key's own limit
			l.lookups.Put(key, g.seq, p, func() bool { return l.refreshed.Load() == refreshed })
		}
	}
	if m := l.keys.memory; m != nil {
		m.mixed.Store(true)
	}
	return g.forRequest(limit)
}

// savedPlan returns the plan of the limit under which a key was saved. If it is the limit for all keys, the key stays under
// it. Otherwise it counts as the limit of the key's last request, and the next decision puts the key under its own limit.
func (l *Keyed[K]) savedPlan(limit Limit) (*plan, error) {
	g := l.generation.Load()
	if l.limitFor == nil && limit == g.def.limit.Named("") {
		return g.def, nil
	}
	l.keys.limitChanged()
	return g.forRequest(limit)
}

// isOfRequest reports whether a key's plan came with a request. savedPlan gives a restored key such
// a plan, too; but if no layer has a Limit function, the plan is the limiter's former one.
func (l *Keyed[K]) isOfRequest(p *plan) bool { return p.ofRequest() && l.ofRequests.Load() }

// The two highest bits of plan.seq are not a part of the generation's number. A plan with
// one of these bits differs from its generation in seq, so the next decision looks up the
// key's limit again. The shortest path of a decision makes only this one comparison.
const (
	staleBit   = 1 << 63 // Refresh was called for the key
	requestBit = 1 << 62 // the limit came with a request
)

// stale reports whether a key under the plan must look up its limit again.
func (p *plan) stale() bool { return p.seq&staleBit != 0 }

// ofRequest reports whether the limit came with a request, and is not the limiter's for the key.
func (p *plan) ofRequest() bool { return p.seq&requestBit != 0 }

// generation counts the plan's generation.
func (p *plan) generation() uint64 { return p.seq &^ (staleBit | requestBit) }

// supersedes reports whether a decision under p moves a key from the old plan. Of two plans of the limiter, the one of
// the later generation wins: a slow decision must not restore an old limit. A request's plan gives way to any other.
func (p *plan) supersedes(old *plan) bool {
	switch {
	case p == old:
		return false
	case p.ofRequest() || old.ofRequest():
		return true
	}
	return p.generation() > old.generation() || p.generation() == old.generation() && old.stale()
}

// adopt puts the key under the plan, unless it has a newer one. The key's spending stays. If the new plan
// expresses it in other figures, these are computed for now, so adopt records the time. The caller holds the lock.
func (a *account) adopt(p *plan, reading int64) {
	old := a.plan
	if !p.supersedes(old) {
		return
	}
	if !old.equals(p) {
		a.last = max(reading, a.last)
		if a.waitedFor() {
			old.Advance(&a.State, a.last) // turns that are due are served under the old limit
		}
		old.Refresh(&a.State)
		line := a.State.Line()
		a.State = p.Migrate(&old.Meter, a.State, a.last)
		switch {
		case line == nil:
		case p.holds():
			line.ReleaseAll(true) // their calls have no end
		default:
			p.Attach(&a.State, a.last, line)
		}
		a.changed(p.holds() != old.holds())
	}
	a.plan = p
	a.mayBeFresher()
}

// markStale makes the key's next decision look up its limit again. The caller holds the lock.
func (a *account) markStale() {
	p := *a.plan
	p.seq |= staleBit
	a.plan = &p
}

// rouseFirst wakes the first call in the account's line, to look up the limit. The caller holds the lock.
func (a *account) rouseFirst() {
	if line := a.State.Line(); line != nil {
		line.Rouse()
	}
}
