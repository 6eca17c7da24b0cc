package policy

import (
	"context"
	"errors"
	"slices"

	"github.com/weir-go/ratelimit"
	"github.com/weir-go/ratelimit/policy/internal/limits"
	"github.com/weir-go/ratelimit/policy/internal/notices"
)

// Threshold reports a charge that has crossed a share of a key's limit: see [Rule.Notify].
type Threshold struct {
	Rule    string
	Key     string // it may be a secret; several values are one text: see [ValuesOf]
	Plan    string // the limit's plan, if a plan determines it
	Percent int    // share of the limit's capacity, in per cent
	Shadow  bool
	// Decision is the rule's decision, with its Limit. Its Remaining and Debt are the
	// figures after the charge. They count open reservations' estimates as spent.
	Decision ratelimit.Decision
}

// notifier calls [Options.OnThreshold]. It is safe for concurrent use.
type notifier struct {
	onThreshold func(Threshold) // nil if there is none
	notices     notices.Notices
	opens       notices.Opens
	lasts       *lastLimits // the limits of the last decisions, for lookAfter to peek under
}

// notifies reports whether a rule of the set notifies the program.
func (n *notifier) notifies(g *generation) bool { return n.onThreshold != nil && g.notifies }

// notify calls OnThreshold for a change of a key under a rule of the set.
func (n *notifier) notify(g *generation, r *rule, ch *charge, x *notices.Change) {
	if x.Decision.Limit.Algorithm == 0 || !limits.Counts(x.Decision.Limit) {
		return
	}
	for _, percent := range n.notices.Due(notices.Key{Rule: r.id, Key: ch.Key}, r.thresholds, x, readingOf(g.decider.clock)) {
		n.onThreshold(Threshold{Rule: r.Name, Key: ch.Key, Plan: ch.Plan, Percent: percent, Shadow: r.Shadow, Decision: x.Decision})
	}
}

// decided sends the notices of thresholds crossed by a decision. A
// reservation charges an estimate, so its settlement sends them.
func (n *notifier) decided(q *query) {
	for i := range q.charges.results {
		rd, ch := &q.charges.results[i], &q.charges.List[i]
		r := q.in.rules[ch.Rule]
		// a charge made beside the stack has sent its notices already
		if len(r.thresholds) == 0 || !rd.Answered || i >= len(q.charges.changes) || slices.Contains(q.charges.beside, i) {
			continue
		}
		change := &q.charges.changes[i]
		spent := limits.SpentOf(&rd.Decision)
		x := notices.Change{Decision: rd.Decision}
		switch {
		case rd.Decision.Allowed && rd.Spent && change.known && !q.charges.isEstimate(ch):
			x.Before, x.After = notices.Settled(change.before, change.openBefore), notices.Settled(spent, change.openAfter)
		case rd.Decision.Allowed || rd.Decision.RetryAfter <= 0 || !limits.Counts(rd.Decision.Limit):
			continue
		default: // the rule denies a cost that it would allow later
			open := change.openAfter
			if !change.known {
				open = n.opens.Of(notices.Key{Rule: r.id, Key: ch.Key}, spent)
			}
			x.Before = notices.Settled(spent, open)
			x.After = x.Before
			// The charge of the last unit sent the notice, in some process, unless it was under a larger limit.
			x.Lacks = r.varies || r.moved || x.After != int64(rd.Decision.Limit.Capacity())
		}
		n.notify(q.in, r, ch, &x)
	}
}

// corrected sends the notices of thresholds crossed by settlements or adjustments.
func (n *notifier) corrected(g *generation, c *charges) {
	for i := range c.corrected {
		x := &c.corrected[i]
		n.notify(g, g.rules[x.charge.Rule], &x.charge, &x.Change)
	}
	c.corrected = c.corrected[:0]
}

// settling returns a reservation that sends the notices of the thresholds crossed by its settlement.
func (n *notifier) settling(g *generation, c *charges, inner *ratelimit.Reservation) *ratelimit.Reservation {
	if !inner.Allowed || !slices.ContainsFunc(c.List, func(ch charge) bool { return len(g.rules[ch.Rule].thresholds) > 0 }) {
		return inner
	}
	return settledAs(inner, func(actual int) error {
		err := inner.Settle(actual)
		n.lookAfter(context.Background(), g, c, func(ch *charge) int64 {
			r := g.rules[ch.Rule]
			switch {
			case actual == 0:
				return 0
			case r.settles():
				return int64(ch.Real)
			case ch.Fixed:
				return int64(ch.Cost)
			}
			return int64(actual)
		})
		n.corrected(g, c)
		return err
	})
}

// lookAfter completes corrections if the engine has not returned the keys' spending.
// It peeks at the present spending. units returns the amount by which a settlement or
// an adjustment has changed the spending. That change stands even if the peek fails.
func (n *notifier) lookAfter(ctx context.Context, g *generation, c *charges, units func(*charge) int64) {
	if g.inMemory() {
		return
	}
	for i := range c.changes {
		ch, change := &c.List[i], &c.changes[i]
		r := g.rules[ch.Rule]
		if len(r.thresholds) == 0 || change.corrected || c.estimates && !change.known && (ch.Cost > 0 || r.Shadow || r.ownCost && !r.settles()) {
			continue
		}
		open := n.opens.Settle(change.open, notices.Key{Rule: r.id, Key: ch.Key}, int64(ch.Cost))
		change.open = nil
		cost := units(ch)
		if cost <= 0 {
			continue
		}
		looked := *ch
		if last, ok := n.lasts.of(g, ch.Rule, ch.Key); ok {
			looked.Limit = &last
		}
		d, err := g.decider.peek(ctx, &charges{List: []charge{looked}, Bare: true}, 1)
		if err != nil && !errors.Is(err, ratelimit.ErrExceedsLimit) {
			continue
		}
		d = r.grace.Show(d)
		after := notices.Settled(limits.SpentOf(&d), open)
		c.corrected = append(c.corrected, corrected{*ch, notices.Change{Before: max(0, after-cost), After: after, Decision: d}})
	}
}

// adjust adjusts budgets, and sends the notices of crossed thresholds.
func (n *notifier) adjust(ctx context.Context, g *generation, c *charges, delta int) error {
	if !n.notifies(g) && c.adjusted == nil {
		return g.decider.adjust(ctx, c, delta)
	}
	c.follow(&n.opens, g.rules)
	err := g.decider.adjust(ctx, c, delta)
	if err == nil {
		n.lookAfter(ctx, g, c, func(ch *charge) int64 {
			if r := g.rules[ch.Rule]; !c.Bare && (r.Shadow || r.ownCost) {
				return 0
			}
			return int64(delta)
		})
	}
	if n.notifies(g) {
		n.corrected(g, c)
	}
	return err
}
