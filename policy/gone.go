package policy

import (
	"time"

	"github.com/weir-go/ratelimit"
)

// comeback is how long the budgets of a removed rule are kept in memory. So a bad merge,
// or a DELETE before an INSERT, does not lose them. A store keeps its budgets anyway.
const comeback = 10 * time.Minute

// gone holds lately removed rules, by id, with their limiters. The limiters hold the budgets. Policies.updating guards it.
type gone map[string]former

// former is a removed rule, and its limiter.
type former struct {
	rule    *rule
	limiter ratelimit.Limiter[string]
	at      time.Duration // the removal's time, by its clock
	since   time.Time     // the same time, by the wall clock
}

// reading returns the time by the clock of the limiter's budgets.
func (f *former) reading() time.Duration {
	switch l := f.limiter.(type) {
	case *table:
		return readingOf(l.clock)
	case *memoryPool:
		return readingOf(l.clock)
	}
	return readingOf(nil)
}

// find returns the rule with an id and its limiter, or nil if no such rule was removed lately.
func (g gone) find(id string) (*rule, ratelimit.Limiter[string]) {
	f, ok := g[id]
	if !ok || f.reading()-f.at > comeback {
		return nil, nil
	}
	return f.rule, f.limiter
}

// comeBack makes returned rules' limiters drop the limits of earlier sets.
func (g gone) comeBack(next *generation) {
	for i, r := range next.rules {
		if f, ok := g[r.id]; ok && same(next.decider.limiters[i], f.limiter) && !f.rule.sameLimits(r) {
			if l, ok := f.limiter.(interface{ Refresh(keys ...string) }); ok {
				l.Refresh()
			}
		}
	}
}

// pass adds the rules of the last set alone, and removes the next set's rules.
func (g gone) pass(last, next *generation) {
	for _, r := range next.rules {
		delete(g, r.id)
	}
	for i, r := range last.rules {
		l := last.decider.limiters[i]
		if _, held := l.(flusher); held || next.position(r.id) >= 0 { // a flusher's budgets are in a store
			continue
		}
		f := former{rule: r, limiter: l, since: time.Now()}
		f.at = f.reading()
		for id := range g {
			if len(g) < maxRules {
				break
			}
			delete(g, id)
		}
		g[r.id] = f
	}
}

// expire drops the rules gone for too long. It returns the time until it must drop the next one, or 0 if there is none.
func (g gone) expire() (next time.Duration) {
	for id, f := range g {
		left := comeback - time.Since(f.since)
		if left <= 0 {
			delete(g, id)
		} else if next == 0 || left < next {
			next = left
		}
	}
	return next
}
