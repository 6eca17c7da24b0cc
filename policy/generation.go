package policy

import (
	"context"
	"errors"
	"reflect"
	"slices"
	"sync/atomic"
	"time"

	"github.com/weir-go/ratelimit"
	"github.com/weir-go/ratelimit/policy/internal/match"
	"github.com/weir-go/ratelimit/policy/internal/shares"
)

// generation is a set in force. It does not change.
type generation struct {
	set      *Set
	number   uint64
	loadedAt time.Time
	rules    []*rule
	names    []string
	index    *match.Index  // finds the rules by their numbers, and behind them the replacements
	replaces []replacement // in the order of the rules
	decider  *decider      // nil if there are no rules
	notifies bool          // a rule has thresholds
	settles  bool          // a rule has Actual
	graces   bool          // a rule has Grace
	always   bool          // a rule has Charge
	left     []left        // limiters of earlier sets
}

// open makes a valid set ready, and changes nothing. p.updating is held.
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
		matches = append(matches, &r.match)
	}
	next.replaces = replacementsOf(next.rules)
	for _, r := range next.replaces {
		matches = append(matches, &r.match)
	}
	next.index = match.New(matches)
	return next, nil
}

// unknownOf returns the counter of unknown plans of the rule with an id.
func (p *Policies) unknownOf(id string) *atomic.Uint64 {
	n := p.unknown[id]
	if n == nil {
		if p.unknown == nil || len(p.unknown) >= 2*maxRules { // of rules that have gone
			p.unknown = map[string]*atomic.Uint64{}
		}
		n = new(atomic.Uint64)
		p.unknown[id] = n
	}
	return n
}

// use puts a set in force. p.updating is held.
func (p *Policies) use(next *generation) {
	if last := p.current.Load(); last != nil {
		next.follows(last)
		p.comeBack(next)
		p.pass(last, next)
	}
	p.current.Store(next)
	for _, r := range next.rules {
		if r.pool != nil {
			r.pool.Adopt(r.terms)
		}
	}
}

// follows takes over the limiters of the set before.
func (g *generation) follows(last *generation) {
	now := make(map[string]int, len(g.rules))
	for i, r := range g.rules {
		now[r.id] = i
	}
	for i, r := range last.rules {
		l := last.decider.limiters[i]
		k, stays := now[r.id]
		if stays && same(g.decider.limiters[k], l) {
			if f, ok := l.(interface{ Refresh(keys ...string) }); ok && !r.sameLimits(g.rules[k]) {
				f.Refresh() // it remembers the limits that charges of earlier sets have brought
			}
		} else if f, ok := l.(flusher); ok {
			g.left = append(g.left, left{f, g.loadedAt})
		}
	}
	for _, l := range last.left {
		if g.loadedAt.Sub(l.at) < remembered {
			g.left = append(g.left, l)
		}
	}
}

// same reports whether two limiters are one. Limiters that cannot be compared are none.
func same(a, b ratelimit.Limiter[string]) bool {
	return reflect.ValueOf(a).Comparable() && reflect.ValueOf(b).Comparable() && a == b
}

// sameLimits reports whether two rules have the same limits, without attributes of LimitFrom.
func (c *rule) sameLimits(other *rule) bool {
	return c.limit == other.limit && slices.Equal(c.others(), other.others())
}

// inMemory reports whether the budgets are those of [Memory].
func (g *generation) inMemory() bool { return g.decider != nil && g.decider.memory }

// flusher is a limiter that holds units for this process.
type flusher interface {
	Flush(ctx context.Context) error
}

// left is a limiter that an earlier set had, and the time at which it was replaced.
type left struct {
	flusher
	at time.Time
}

// remembered is the time for which limiters of earlier sets are flushed. Leases give units back by themselves within a few seconds.
const remembered = time.Minute

// Flush gives back the units that the rules' limiters hold for this process, such as leases, and waits until that is done. Call it on
// shutdown, after the last decision. Limiters that hold none, such as those of [Memory], have nothing to give back. It returns the errors of
// all limiters.
func (p *Policies) Flush(ctx context.Context) error {
	var errs []error
	g := p.now()
	if g.decider != nil {
		for _, l := range g.decider.limiters {
			if f, ok := l.(flusher); ok {
				errs = append(errs, f.Flush(ctx))
			}
		}
	}
	for _, l := range g.left {
		errs = append(errs, l.Flush(ctx))
	}
	return errors.Join(errs...)
}

// position returns the index of the rule with an id, -1 if there is none.
func (g *generation) position(id string) int {
	return slices.IndexFunc(g.rules, func(r *rule) bool { return r.id == id })
}
