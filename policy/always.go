package policy

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/weir-go/ratelimit"
	"github.com/weir-go/ratelimit/internal/wait"
	"github.com/weir-go/ratelimit/policy/internal/limits"
)

// A rule with [Rule.Charge] is charged for every decision, even for a denial. The stack charges either
// all rules or none. So uncharged rules are charged afterwards, if necessary into debt. Decisions in
// between see the budgets as before the denial. The sum of the charges is the same in any order.

// take decides on a query's charges.
func (q *query) take(ctx context.Context, n *notifier) (ratelimit.Decision, error) {
	if q.in.always {
		return q.decideAlways(ctx, n, func() (ratelimit.Decision, error) { return q.takeStack(ctx) })
	}
	return q.takeStack(ctx)
}

func (q *query) takeStack(ctx context.Context) (ratelimit.Decision, error) {
	d, err := q.in.decider.take(ctx, &q.charges, q.cost)
	return q.show(d, err), err
}

// reserve reserves a query's charges. The reservation is never nil.
func (q *query) reserve(ctx context.Context, n *notifier, maxDelay time.Duration) (*ratelimit.Reservation, error) {
	if !q.in.always {
		return q.reserveStack(ctx, maxDelay)
	}
	var res *ratelimit.Reservation
	d, err := q.decideAlways(ctx, n, func() (ratelimit.Decision, error) {
		var err error
		res, err = q.reserveStack(ctx, maxDelay)
		return res.Decision, err
	})
	if res == nil || res.Allowed && !d.Allowed { // its cost is 0, so it holds no units
		res = ratelimit.NewReservation(d, nil)
	}
	res.Decision = d
	return n.settlingRest(q.in, &q.charges, res), err
}

func (q *query) reserveStack(ctx context.Context, maxDelay time.Duration) (*ratelimit.Reservation, error) {
	res, err := q.in.decider.reserve(ctx, &q.charges, q.cost, maxDelay)
	if res == nil {
		res = ratelimit.NewReservation(ratelimit.Decision{}, nil)
	}
	res.Decision = q.show(res.Decision, err)
	return res, err
}

// decideAlways calls decide, which decides on a query's charges with the stack.
// It then charges the always charged rules, unless decide has charged them.
func (q *query) decideAlways(ctx context.Context, n *notifier, decide func() (ratelimit.Decision, error)) (ratelimit.Decision, error) {
	if !q.in.always || !slices.ContainsFunc(q.charges.List, func(ch charge) bool { return q.in.rules[ch.Rule].always() }) {
		return decide()
	}
	var d ratelimit.Decision
	var err error
	if q.looksAndCharges() { // the stack would charge the other rules before the remaining budget is known
		denied := false
		if d, err, denied = q.lookAtEmpty(ctx); !denied && err == nil {
			d, err = decide()
		}
	} else if d, err = decide(); err == nil && d.Allowed {
		d = q.emptyIn(d)
	}
	if err != nil && !errors.Is(err, ratelimit.ErrExceedsLimit) {
		return d, err
	}
	return q.chargeRest(ctx, n, d, err)
}

// looksAndCharges reports whether a query charges 0 to one of the always charged rules, and more to another.
func (q *query) looksAndCharges() bool {
	looks, charges := false, false
	for i := range q.charges.List {
		ch := &q.charges.List[i]
		looks = looks || ch.Cost == 0 && q.in.rules[ch.Rule].always()
		charges = charges || ch.Cost > 0
	}
	return looks && charges
}

// lookAtEmpty peeks at the budgets of always charged rules with a cost of 0. If one is used up, it returns the rule's denial.
func (q *query) lookAtEmpty(ctx context.Context) (denial ratelimit.Decision, err error, denied bool) {
	for i := range q.charges.List {
		ch := &q.charges.List[i]
		r := q.in.rules[ch.Rule]
		if ch.Cost > 0 || !r.always() {
			continue
		}
		d, err := q.in.decider.standing(ctx, ch)
		if err != nil {
			return ratelimit.Decision{}, err, false
		}
		if ch.Empty = limits.Empty(&d); !ch.Empty {
			continue
		}
		d = r.grace.Show(limits.DenyEmpty(d))
		q.note(i, d, false)
		if !r.Shadow && (!denied || limits.Longer(&d, &denial)) {
			denial, denied = d, true
		}
	}
	return denial, nil, denied
}

// emptyIn returns a stack's decision after it has allowed a query. If a rule
// with a cost of 0 has no budget left, emptyIn returns its denial instead.
func (q *query) emptyIn(allowed ratelimit.Decision) ratelimit.Decision {
	d := allowed
	for i := range q.charges.List {
		ch := &q.charges.List[i]
		r := q.in.rules[ch.Rule]
		if !r.always() || ch.Cost > 0 || !ch.Empty || i >= len(q.charges.results) {
			continue
		}
		denial := limits.DenyEmpty(q.charges.results[i].Decision)
		q.note(i, denial, false)
		if !r.Shadow && (d.Allowed || limits.Longer(&denial, &d)) {
			d = denial
		}
	}
	return d
}

// standing returns a key's state under a rule, before show.
func (d *decider) standing(ctx context.Context, ch *charge) (ratelimit.Decision, error) {
	one := *ch
	one.Cost = 1
	standing, err := d.peek(ctx, &charges{List: []charge{one}, Bare: true}, 1)
	if errors.Is(err, ratelimit.ErrExceedsLimit) {
		err = nil
	}
	return standing, err
}

// note records a rule's decision in place of the stack's decision on it.
func (q *query) note(i int, d ratelimit.Decision, spent bool) {
	if i < len(q.charges.results) {
		r := &q.charges.results[i]
		r.Decision, r.Spent, r.Answered = d, spent, true
	}
	if !d.Allowed && !slices.Contains(q.charges.denied, i) {
		q.charges.denied = append(q.charges.denied, i)
	}
}

// chargeRest charges the always charged rules, unless the stack has charged them. It returns the decision with their
// figures. It charges even after the end of the caller's context, because the use counts even if the client has left.
func (q *query) chargeRest(ctx context.Context, n *notifier, d ratelimit.Decision, exceeds error) (ratelimit.Decision, error) {
	allowed := d.Allowed && exceeds == nil
	ctx = context.WithoutCancel(wait.OrBackground(ctx))
	for i := range q.charges.List {
		ch := &q.charges.List[i]
		r := q.in.rules[ch.Rule]
		if r.always() && allowed && r.Shadow && ch.Cost == 0 { // the stack does not settle such a charge
			q.charges.rest = append(q.charges.rest, i)
		}
		if !r.always() || ch.Cost == 0 || allowed && (!r.Shadow || !slices.Contains(q.charges.denied, i)) {
			continue
		}
		one := &charges{List: []charge{*ch}, Bare: true}
		if !q.in.inMemory() { // with other engines this would be another call to the store
			one.adjusted = new(adjusted)
			one.follow(&n.opens, q.in.rules)
		}
		var err error
		if allowed && q.charges.estimates { // the settlement sends their notices
			err = q.in.decider.adjust(ctx, one, ch.Cost)
		} else {
			err = n.adjust(ctx, q.in, one, ch.Cost)
		}
		q.charges.beside = append(q.charges.beside, i)
		var now ratelimit.Decision
		if err == nil {
			now, err = q.in.decider.decisionAfter(ctx, one, ch.Cost)
		}
		if err != nil && !errors.Is(err, ratelimit.ErrExceedsLimit) {
			return d, fmt.Errorf("policy: rule %q: the cost was denied, and could not be charged: %w", r.Name, err)
		}
		if allowed {
			q.charges.rest = append(q.charges.rest, i)
		}
		never := err != nil
		now = r.grace.Show(now)
		if slices.Contains(q.charges.denied, i) || never {
			now.Allowed = false
			q.note(i, now, true)
		} else {
			own := now // now is the rule's own decision if the rule has allowed the cost or did not decide
			own.Allowed, own.RetryAfter = true, 0
			q.note(i, own, true)
		}
		switch {
		case r.Shadow || allowed:
		// with a store, time has passed since d was made
		case never && d.Limit == now.Limit, exceeds == nil && !never && !now.Allowed && d.RetryAfter > 0 && (d.Limit == now.Limit || now.RetryAfter >= d.RetryAfter):
			d = now
		}
	}
	return d, exceeds
}

// decisionAfter returns the decision on the cost of an adjusted charge. It
// calls the store only if the answer to the adjustment does not contain it.
func (d *decider) decisionAfter(ctx context.Context, one *charges, cost int) (ratelimit.Decision, error) {
	if one.adjusted != nil && one.adjusted.after != nil {
		now := *one.adjusted.after
		never := cost > now.Limit.Capacity()
		retry, known := time.Duration(0), true
		if now.Allowed = cost <= now.Remaining && now.Debt == 0; !now.Allowed && !never {
			retry, known = limits.RoomAfter(&now, cost)
		}
		if now.RetryAfter = retry; known && now.Remaining == 0 {
			now.NextAfter, known = limits.RoomAfter(&now, 1)
		}
		if known && never {
			return now, ratelimit.ErrExceedsLimit
		} else if known {
			return now, nil
		}
	}
	return d.peekStack(ctx, one, cost)
}

// settlingRest returns a reservation that also settles denying shadows' charges, because the stack has not charged them.
func (n *notifier) settlingRest(g *generation, c *charges, inner *ratelimit.Reservation) *ratelimit.Reservation {
	if len(c.rest) == 0 || !inner.Allowed {
		return inner
	}
	return settledAs(inner, func(actual int) error {
		errs := []error{inner.Settle(actual)}
		for _, i := range c.rest {
			ch := &c.List[i]
			real := actual
			switch r := g.rules[ch.Rule]; {
			case actual == 0:
			case r.settles():
				real = c.real(r, ch)
			case ch.Fixed:
				real = ch.Cost
			}
			if real != ch.Cost {
				errs = append(errs, n.adjust(context.Background(), g, &charges{List: []charge{*ch}, Bare: true}, real-ch.Cost))
			}
		}
		return errors.Join(errs...)
	})
}

// waitEmpty waits until no always charged rule denies a cost of 0 for lack of budget.
func (q *query) waitEmpty(ctx context.Context) error {
	if !q.in.always {
		return nil
	}
	ctx = wait.OrBackground(ctx)
	for {
		left, err := wait.Left(ctx)
		if err != nil {
			return err
		}
		denial, err, denied := q.lookAtEmpty(ctx)
		switch {
		case err != nil || !denied:
			return err
		case denial.RetryAfter <= 0:
			return fmt.Errorf("policy: %w: a cost of 0 is denied under %v, without a time to wait for", ratelimit.ErrLimited, denial.Limit)
		case denial.RetryAfter > left:
			return &ratelimit.LateError{Package: "policy", Limit: denial.Limit, After: denial.RetryAfter, Reason: context.DeadlineExceeded}
		}
		q.charges.denied = q.charges.denied[:0]
		if err := wait.Sleep(ctx, min(denial.RetryAfter, peekAgain)); err != nil {
			return err
		}
	}
}

// peekAlways returns the decision on a query as if nothing were charged to the always charged rules.
func (q *query) peekAlways(ctx context.Context, d ratelimit.Decision, err error) (ratelimit.Decision, error) {
	if !q.in.always || err != nil || !d.Allowed {
		return d, err
	}
	if q.charges.Bare { // a subject has the caller's cost
		if q.cost > 0 {
			return d, nil
		}
		for i := range q.charges.List {
			q.charges.List[i].Cost = 0
		}
	}
	denial, err, denied := q.lookAtEmpty(ctx)
	if err != nil || denied {
		return denial, err
	}
	return d, nil
}
