package policy

import (
	"context"
	"math"
	"math/bits"

	"github.com/weir-go/ratelimit"
	"github.com/weir-go/ratelimit/internal/merge"
)

// A rule with [Rule.Grace] has its budgets under a larger limit, and denies by that: the rule's enforced limit. Its decisions are shown under the
// limit of the file, which has that much less remaining, and Debt in place of less than nothing.

// ofGrace returns the units that a grace adds to a number of units.
func ofGrace(units, percent int) int {
	high, low := bits.Mul64(uint64(max(0, units)), uint64(percent))
	extra, _ := bits.Div64(high, low, 100) // high is below 100, as percent is at most that
	return int(min(extra, uint64(math.MaxInt-max(0, units))))
}

// enforced returns the limit by which the rule denies in place of a limit.
func (c *rule) enforced(l ratelimit.Limit) ratelimit.Limit {
	if c.grace == 0 || !counts(l) {
		return l
	}
	if l.Burst > 0 {
		l.Burst += ofGrace(l.Burst, c.grace)
	} else {
		l.Rate.Units += ofGrace(l.Rate.Units, c.grace)
	}
	return l
}

// shown is the inverse of enforced.
func (c *rule) shown(l ratelimit.Limit) ratelimit.Limit {
	if c.grace == 0 || !counts(l) {
		return l
	}
	less := func(units int) int { // the only number that the grace makes of units, as more give more
		low, high := 0, units
		for low < high {
			if middle := low + (high-low)/2; middle+ofGrace(middle, c.grace) < units {
				low = middle + 1
			} else {
				high = middle
			}
		}
		return low
	}
	if l.Burst > 0 {
		l.Burst = less(l.Burst)
	} else {
		l.Rate.Units = less(l.Rate.Units)
	}
	return l
}

// show returns how a decision of the rule alone is shown.
func (c *rule) show(d ratelimit.Decision) ratelimit.Decision {
	if c.grace == 0 || !counts(d.Limit) || d.Limit.Algorithm == 0 {
		return d
	}
	limit := c.shown(d.Limit)
	extra := d.Limit.Capacity() - limit.Capacity()
	d.Limit = limit
	if left := d.Remaining - extra; left >= 0 {
		d.Remaining = left
		return d
	} else if d.Debt == 0 {
		d.Remaining, d.Debt = 0, -left
		return d
	}
	d.Remaining, d.Debt = 0, d.Debt+min(extra, math.MaxInt-d.Debt)
	return d
}

// show returns how a decision on all charges is shown. If it allows the request, their results are known.
func (q *query) show(d ratelimit.Decision, err error) ratelimit.Decision {
	if !q.in.graces || q.answered() {
		return d
	}
	graced := false
	for i := range q.charges.List {
		ch := &q.charges.List[i]
		if r := q.in.rules[ch.Rule]; r.grace > 0 && !r.Shadow {
			if graced = true; d.Limit == *ch.Limit && (err != nil || !d.Allowed) {
				return r.show(d)
			}
		}
	}
	if !graced || err != nil || !d.Allowed {
		return d
	}
	shown := d
	sum := merge.Of((*merge.Decision[ratelimit.Limit])(&shown), ratelimit.Unlimited())
	for i := range q.charges.results {
		a, ch := &q.charges.results[i], &q.charges.List[i]
		if a.Told && !q.in.rules[ch.Rule].Shadow {
			sum.Add((*merge.Decision[ratelimit.Limit])(&a.Decision), roomOf(&a.Decision, &pooled{charge: *ch, own: ch.Fixed}))
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

// peekShown is a peek of the charges of a query, each by itself.
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
		each = r.show(each)
		if failed != nil {
			return each, failed
		}
		sum.Add((*merge.Decision[ratelimit.Limit])(&each), roomOf(&each, &pooled{charge: *ch, own: ch.Fixed && !q.charges.Bare}))
	}
	if d.Remaining == math.MaxInt {
		d.Remaining = d.Limit.Capacity()
	}
	return d, nil
}
