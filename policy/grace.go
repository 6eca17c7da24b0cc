package policy

import (
	"context"
	"math"

	"github.com/weir-go/ratelimit"
	"github.com/weir-go/ratelimit/internal/merge"
	"github.com/weir-go/ratelimit/policy/internal/limits"
)

// A rule with [Rule.Grace] counts and denies under a larger limit, the enforced one. Its decisions report the
// file's limit. Their Remaining is lower by the difference. If it would be negative, it is 0, and Debt is positive.

// show returns the decision on all charges as the caller sees it. If the decision allows the
// request, the results are known. A store may leave some unknown if it denies the request.
func (q *query) show(d ratelimit.Decision, err error) ratelimit.Decision {
	if !q.in.graces || q.answered() {
		return d
	}
	graced, known := false, err == nil
	for i := range q.charges.List {
		if r := q.in.rules[q.charges.List[i].Rule]; !r.Shadow {
			graced = graced || r.grace > 0
			known = known && i < len(q.charges.results) && q.charges.results[i].Answered
		}
	}
	if !graced {
		return d
	}
	if !known {
		return q.showBinding(d)
	}
	shown := d
	sum := merge.Of((*merge.Decision[ratelimit.Limit])(&shown), ratelimit.Unlimited())
	for i := range q.charges.results {
		a, ch := &q.charges.results[i], &q.charges.List[i]
		if a.Answered && !q.in.rules[ch.Rule].Shadow {
			sum.Add((*merge.Decision[ratelimit.Limit])(&a.Decision), limits.Room(&a.Decision, ch.Fixed, ch.Cost))
		}
	}
	if sum.Empty() {
		return d
	}
	if shown.Remaining == math.MaxInt {
		shown.Remaining = d.Remaining
	}
	shown.Delay, shown.Degraded = d.Delay, d.Degraded
	return shown
}

// showBinding returns a denial as the caller sees it, given the stack's decision alone.
func (q *query) showBinding(d ratelimit.Decision) ratelimit.Decision {
	if d.Allowed {
		return d
	}
	for i := range q.charges.List {
		ch := &q.charges.List[i]
		if r := q.in.rules[ch.Rule]; r.grace > 0 && !r.Shadow && d.Limit == *ch.Limit {
			return r.grace.Show(d)
		}
	}
	return d
}

// peekShown peeks at each charge by itself.
func (q *query) peekShown(ctx context.Context) (d ratelimit.Decision, err error) {
	sum := merge.Of((*merge.Decision[ratelimit.Limit])(&d), ratelimit.Unlimited())
	for i := range q.charges.List {
		ch := &q.charges.List[i]
		r := q.in.rules[ch.Rule]
		if r.Shadow && !q.charges.Bare {
			continue
		}
		cost := ch.Cost
		if q.charges.Bare {
			cost = q.cost
		}
		each, failed := q.in.decider.peek(ctx, &charges{List: []charge{*ch}, Bare: true}, cost)
		each = r.grace.Show(each)
		if failed != nil {
			return each, failed
		}
		sum.Add((*merge.Decision[ratelimit.Limit])(&each), limits.Room(&each, ch.Fixed && !q.charges.Bare, ch.Cost))
	}
	if d.Remaining == math.MaxInt {
		d.Remaining = d.Limit.Capacity()
	}
	return d, nil
}
