package policy

import (
	"fmt"
	"slices"
	"time"

	"github.com/weir-go/ratelimit"
	"github.com/weir-go/ratelimit/internal/optional"
	"github.com/weir-go/ratelimit/policy/internal/match"
	"github.com/weir-go/ratelimit/policy/internal/sketch"
	"github.com/weir-go/ratelimit/stats"
)

// query is one request, and its charges.
type query struct {
	in      *generation // its deciding set
	request Request
	cost    int
	charges charges

	replaces []int     // the matching replacements
	at       time.Time // a reading of the clock, if a rule is dated
	kill     bool
	exemptBy *rule              // the rule exempting the request from all others; nil if none does
	decision ratelimit.Decision // the decision if no rule applies
	err      error
	memory   match.Memory

	// Memory for reports:
	spare []stats.RuleDecision // memory for hooks that may keep it: a part in use is never used again
	lent  []stats.RuleDecision // memory for hooks that must not keep it; the next request uses it again
}

// clear forgets the request.
func (q *query) clear() {
	q.charges.clear()
	q.in, q.request, q.err, q.kill, q.exemptBy, q.at = nil, nil, nil, false, nil, time.Time{}
	q.replaces = q.replaces[:0]
	clear(q.lent)
	q.lent = q.lent[:0]
	if q.decision.Allowed {
		q.decision = ratelimit.Decision{}
	}
}

// answered reports whether the query has an answer without a rule.
func (q *query) answered() bool { return q.err != nil || q.decision.Allowed }

// pass allows a request without a limiting rule, or with an exempting one.
func (q *query) pass() {
	q.decision = ratelimit.Decision{Allowed: true, Limit: ratelimit.Unlimited(), Remaining: ratelimit.Unlimited().Capacity()}
	if q.exemptBy != nil {
		q.decision.Limit = q.exemptBy.limit
	}
}

// check returns an error if a call is invalid under any rules.
func check(r Request, cost int) error {
	switch {
	case r == nil:
		return optional.Nil("policy: the Request")
	case cost < 0:
		return fmt.Errorf("policy: %w: %d", ratelimit.ErrNegativeCost, cost)
	}
	return nil
}

// load computes each applying rule's charge. If none applies, it sets the decision. If a
// rule cannot decide, it sets the rule's error, unless another rule exempts the request.
func (q *query) load() {
	if q.err = unreadable(q.request); q.err != nil {
		return
	}
	candidates := q.in.index.Candidates(q.request, &q.memory)
	if len(q.in.replaces) > 0 {
		q.replaces = q.replaced(candidates, q.replaces[:0])
	}
	for _, i := range candidates {
		if i >= len(q.in.rules) {
			break // the others are replacements
		}
		r := q.in.rules[i]
		if !r.match.Holds(q.request) || !q.inForce(r) || len(q.replaces) > 0 && slices.Contains(q.replaces, i) {
			continue
		}
		if r.Allow {
			q.charges.clear()
			q.exemptBy, q.err = r, nil
			break
		}
		if q.err != nil {
			continue
		}
		ch := q.charges.add(i)
		applies, err := r.charge(q.request, q.cost, ch)
		if err != nil && !r.Shadow { // a shadow denies nothing, even if an attribute is missing
			q.err = err
		}
		if !applies {
			q.charges.drop()
		} else if r.Shadow {
			q.charges.shadows = true
		}
	}
	switch {
	case q.err != nil:
		q.charges.clear()
	case len(q.charges.List) == 0:
		q.pass()
	}
}

// waited returns a Wait's decision after it has ended with err. It is the enforcing rules'
// decision with the longest RetryAfter or, if all allow, with the smallest remaining budget.
func (q *query) waited(err error) (d ratelimit.Decision) {
	d.Allowed = err == nil
	known := false
	for i := range q.charges.results {
		a := &q.charges.results[i]
		if !a.Answered || q.in.rules[q.charges.List[i].Rule].Shadow {
			continue
		}
		switch more := a.Decision; {
		case !known,
			d.Allowed && !more.Allowed,
			!d.Allowed && !more.Allowed && more.RetryAfter > d.RetryAfter,
			d.Allowed && more.Allowed && more.Remaining < d.Remaining:
			d, known = more, true
		}
	}
	return d
}

// inForce reports whether a rule is in force for a query. All rules of a query are checked at one reading of the clock.
func (q *query) inForce(r *rule) bool {
	if !r.dated {
		return true
	}
	if q.at.IsZero() {
		q.at = r.wall()
	}
	return r.span().holds(q.at)
}

// replaced appends the rules that do not apply to a request because
// other rules replace them. candidates are the matching replacements.
func (q *query) replaced(candidates []int, by []int) []int {
	g := q.in
	for _, c := range slices.Backward(candidates) {
		n := c - len(g.rules)
		if n < 0 {
			break
		}
		x := &g.replaces[n]
		if !x.match.Holds(q.request) || !q.inForce(g.rules[x.rule]) {
			continue
		}
		if g.rules[x.rule].Optional {
			var ch charge
			if applies, err := g.rules[x.rule].charge(q.request, q.cost, &ch); err == nil && !applies {
				continue
			}
		}
		by = append(by, x.of...)
	}
	return by
}

// replacedBy returns another rule's replacement for a request.
func (q *query) replacedBy(rule int, candidates []int) (by *rule) {
	g := q.in
	for _, c := range candidates {
		if n := c - len(g.rules); n >= 0 && slices.Contains(q.replaced([]int{c}, nil), rule) {
			return g.rules[g.replaces[n].rule]
		}
	}
	return nil
}

// countDenied counts a decision's denied keys.
func (q *query) countDenied(in *sketch.Sketch, allowed bool) {
	for _, i := range q.charges.denied {
		ch := &q.charges.List[i]
		if r := q.in.rules[ch.Rule]; r.Shadow || !allowed {
			in.Add(sketch.ID{Rule: r.id, Key: ch.Key, Shadow: r.Shadow})
		}
	}
}
