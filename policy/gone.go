package policy

import (
	"time"

	"github.com/weir-go/ratelimit"
)

// comeback is the time within which a rule that has gone, by a bad merge or a DELETE and an INSERT, finds its budgets again. A store keeps
// those of a rule by itself.
const comeback = 10 * time.Minute

// gone are the rules that have gone lately, by their ids, with the limiters that hold their budgets. Policies.updating guards them.
type gone map[string]former

// former is a rule that has gone, and its limiter.
type former struct {
	rule    *rule
	limiter ratelimit.Limiter[string]
	at      time.Duration // when, by its clock
	since   time.Time     // when, by the wall clock
}

// reading returns the time by the clock of the limiter's budgets.
func (f *former) reading() time.Duration {
	switch l := f.limiter.(type) {
	case *table:
		if l.clock != nil {
			return l.clock.Now()
		}
	case *memoryPool:
		if l.clock != nil {
			return l.clock.Now()
		}
	}
	return time.Since(started)
}

// find returns the rule with an id and its limiter, nil if it has not gone lately.
func (g gone) find(id string) (*rule, ratelimit.Limiter[string]) {
	f, ok := g[id]
	if !ok || f.reading()-f.at > comeback {
		return nil, nil
	}
	return f.rule, f.limiter
}

// comeBack makes the limiters of rules that have come back forget the limits of earlier sets.
func (p *Policies) comeBack(next *generation) {
	for i, r := range next.rules {
		if f, ok := p.gone[r.id]; ok && same(next.decider.limiters[i], f.limiter) && !f.rule.sameLimits(r) {
			if l, ok := f.limiter.(interface{ Refresh(keys ...string) }); ok {
				l.Refresh()
			}
		}
	}
}

// pass notes which rules go with the set last, and forgets those that next has.
func (p *Policies) pass(last, next *generation) {
	for _, r := range next.rules {
		delete(p.gone, r.id)
	}
	for i, r := range last.rules {
		l := last.decider.limiters[i]
		if _, held := l.(flusher); held || next.position(r.id) >= 0 { // a store has what a flusher holds
			continue
		}
		f := former{rule: r, limiter: l, since: time.Now()}
		f.at = f.reading()
		if p.gone == nil {
			p.gone = gone{}
		}
		for id := range p.gone {
			if len(p.gone) < maxRules {
				break
			}
			delete(p.gone, id)
		}
		p.gone[r.id] = f
	}
	if len(p.gone) > 0 && p.forget == nil {
		p.forget = time.AfterFunc(comeback, p.forgetGone)
	}
}

// forgetGone frees the budgets of rules that have not come back.
func (p *Policies) forgetGone() {
	p.updating.Lock()
	defer p.updating.Unlock()
	var next time.Duration
	for id, f := range p.gone {
		left := comeback - time.Since(f.since)
		if left <= 0 {
			delete(p.gone, id)
		} else if next == 0 || left < next {
			next = left
		}
	}
	p.forget = nil
	if next > 0 {
		p.forget = time.AfterFunc(next, p.forgetGone)
	}
}
