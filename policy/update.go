package policy

import (
	"errors"
	"slices"
	"sync/atomic"
	"time"

	"github.com/weir-go/ratelimit"
	"github.com/weir-go/ratelimit/internal/owed"
	"github.com/weir-go/ratelimit/policy/internal/match"
	"github.com/weir-go/ratelimit/policy/internal/shares"
	"github.com/weir-go/ratelimit/policy/internal/sketch"
)

// New returns a set's policies. A nil set limits nothing. The error is
// an [*Error] about the set's first mistake, or the engine's error.
func New(set *Set, opts *Options) (*Policies, error) {
	p := &Policies{denials: sketch.New(), gone: gone{}}
	p.notifier.lasts, p.waits.stays = &p.lasts, p.stays
	if opts != nil {
		p.engine, p.onDecision, p.reuseRules, p.log = opts.Engine, opts.OnDecision, opts.ReuseRules, opts.Logger
		p.notifier.onThreshold = opts.OnThreshold
	}
	if p.engine == nil {
		p.engine = Memory(nil)
	}
	if set == nil {
		set = new(Set)
	}
	if err := p.leads(opts); err != nil {
		return nil, err
	}
	if err := p.Update(set); err != nil {
		p.leave()
		return nil, err
	}
	return p, nil
}

// leads makes new policies the leaders of their StandIn: they pass their sets on to it.
func (p *Policies) leads(opts *Options) error {
	if opts == nil || opts.StandIn == nil {
		return nil
	}
	s := opts.StandIn
	s.mustBeMade()
	s.updating.Lock()
	defer s.updating.Unlock()
	if s.lead != nil {
		return errors.New("policy: Options.StandIn stands in for other policies already")
	}
	p.standIn, s.lead = s, p
	s.debts.Store(&debts{to: p, rules: map[string]*owed.Ledger[debtor]{}})
	return nil
}

// leave undoes leads.
func (p *Policies) leave() {
	if p.standIn != nil {
		p.standIn.updating.Lock()
		p.standIn.lead = nil
		p.standIn.debts.Store(nil)
		p.standIn.updating.Unlock()
	}
}

// Update puts another set in force, from the next decision on. A rule keeps its spending under the same name, and so does
// a removed rule added again within ten minutes. An invalid set changes nothing, neither here nor in [Options.StandIn].
func (p *Policies) Update(set *Set) error {
	p.mustBeMade()
	return p.update(set, false)
}

// update is Update. If validated is true, it does not validate the set again.
func (p *Policies) update(set *Set, validated bool) error {
	together, lead := p.hold()
	if lead != nil {
		return lead.update(set, validated)
	}
	defer release(together)
	var err error
	if !validated {
		err = set.validate()
	}
	var next []*generation
	if err == nil {
		next, err = openAll(together, set)
	}
	for i, p := range together {
		if err == nil {
			p.use(next[i])
		}
		p.fault(err)
	}
	return err
}

// hold locks the policies and their stand-ins, because all get each set together. If the
// policies are themselves a stand-in, hold locks nothing, and returns the leading policies.
func (p *Policies) hold() (together []*Policies, lead *Policies) {
	p.updating.Lock()
	if p.lead != nil {
		defer p.updating.Unlock()
		return nil, p.lead
	}
	together = []*Policies{p}
	for s := p.standIn; s != nil; s = s.standIn {
		s.updating.Lock()
		together = append(together, s)
	}
	return together, nil
}

// release undoes hold. Waiting calls then follow the sets in force.
func release(together []*Policies) {
	for _, p := range together {
		p.updating.Unlock()
	}
	for _, p := range together {
		p.waits.Check()
	}
}

// openAll prepares a valid set for all policies or for none. All must be held for updating.
func openAll(all []*Policies, set *Set) ([]*generation, error) {
	next := make([]*generation, len(all))
	for i, p := range all {
		var err error
		if next[i], err = p.open(set); err != nil {
			return nil, err
		}
	}
	return next, nil
}

// open prepares a valid set, and changes nothing. The caller holds p.updating.
func (p *Policies) open(set *Set) (*generation, error) {
	last := p.current.Load()
	next := &generation{set: set, number: 1, loadedAt: time.Now()}
	before := map[string]int{}
	if last != nil {
		next.number = last.number + 1
		for i, r := range last.rules {
			before[r.id] = i
		}
	}
	var err error
	next.rules, next.decider, err = p.engine.open(set, func(id string) (ratelimit.Limiter[string], *shares.Pool) {
		if i, ok := before[id]; ok {
			return last.decider.limiters[i], last.rules[i].pool
		}
		if r, l := p.gone.find(id); r != nil {
			return l, r.pool
		}
		return nil, nil
	})
	if err != nil {
		return nil, err
	}
	var matches []*match.Rule
	for _, r := range next.rules {
		former, _ := p.gone.find(r.id)
		if i, ok := before[r.id]; ok {
			former = last.rules[i]
		}
		r.succeeds(former)
		r.badLimits, r.wall = &p.badLimits, next.decider.wall()
		if len(r.Plans)+len(r.Shares) > 0 {
			r.unknownPlans = p.unknownOf(r.id)
		}
		next.names = append(next.names, r.Name)
		next.notifies = next.notifies || len(r.thresholds) > 0
		next.settles = next.settles || r.Actual != ""
		next.graces = next.graces || r.grace > 0
		next.always = next.always || r.always()
		next.dated = next.dated || r.dated || slices.ContainsFunc(r.Overrides, func(o Override) bool { return !o.span().always() })
		matches = append(matches, &r.match)
	}
	next.replaces = replacementsOf(next.rules)
	for _, r := range next.replaces {
		matches = append(matches, &r.match)
	}
	next.index = match.New(matches)
	return next, nil
}

// unknownOf returns the counter of unknown plans for the rule with an id.
func (p *Policies) unknownOf(id string) *atomic.Uint64 {
	n := p.unknown[id]
	if n == nil {
		if p.unknown == nil || len(p.unknown) >= 2*maxRules { // they include the counters of removed rules
			p.unknown = map[string]*atomic.Uint64{}
		}
		n = new(atomic.Uint64)
		p.unknown[id] = n
	}
	return n
}

// use puts a set in force. The caller holds p.updating.
func (p *Policies) use(next *generation) {
	if last := p.current.Load(); last != nil {
		next.follows(last)
		p.gone.comeBack(next)
		if p.gone.pass(last, next); len(p.gone) > 0 && p.forget == nil {
			p.forget = time.AfterFunc(comeback, p.forgetGone)
		}
	}
	p.current.Store(next)
	for _, r := range next.rules {
		if r.pool != nil {
			r.pool.Adopt(r.terms)
		}
	}
}

// forgetGone drops the budgets of removed rules, unless the rules were added again.
func (p *Policies) forgetGone() {
	p.updating.Lock()
	defer p.updating.Unlock()
	p.forget = nil
	if next := p.gone.expire(); next > 0 {
		p.forget = time.AfterFunc(next, p.forgetGone)
	}
}
