package policy

import (
	"context"
	"slices"
	"time"

	"github.com/weir-go/ratelimit"
	"github.com/weir-go/ratelimit/internal/optional"
	"github.com/weir-go/ratelimit/internal/outcome"
	"github.com/weir-go/ratelimit/internal/reports"
	"github.com/weir-go/ratelimit/internal/wait"
	"github.com/weir-go/ratelimit/stats"
)

// Allow is like Take, but only reports whether the cost was charged.
func (p *Policies) Allow(r Request, cost int) bool {
	// an engine may allow a cost of 0 without a look at the budget
	if g := p.now(); !g.inMemory() || p.onDecision != nil || p.notifier.notifies(g) || g.always || cost == 0 {
		d, err := p.Take(context.Background(), r, cost)
		return d.Allowed && err == nil
	}
	q := p.newQuery(r, cost)
	allowed := q.answered() && q.err == nil
	if !q.answered() {
		if q.in.decider.shares(&q.charges) {
			d, err := q.in.decider.takeShared(context.Background(), &q.charges, cost)
			allowed = d.Allowed && err == nil
		} else {
			allowed = q.in.decider.stack.Allow(&q.charges, cost)
		}
		q.countDenied(p.denials, allowed)
	}
	p.free(q)
	return allowed
}

// Take charges the cost to all matching rules, or to none: see [ratelimit.Layered.Take]. Rules with Share decide last, one
// after the other. If one denies, the charges of the others are given back. If no rule matches, the request is allowed.
//
// After an error nothing is charged. The errors are the engine's and these: [keyfunc.ErrNoKey] for a
// missing attribute, [keyfunc.ErrMalformedKey] for an attribute above 1 KiB or an invalid IP address, and
// [keyfunc.ErrMisconfigured] for a cost that is not a whole number, unless it comes from a header field.
func (p *Policies) Take(ctx context.Context, r Request, cost int) (d ratelimit.Decision, err error) {
	q := p.newQuery(r, cost)
	if q.answered() {
		d, err = q.decision, q.err
	} else {
		d, err = q.take(ctx, &p.notifier)
	}
	if b := p.debts.Load(); b != nil {
		record(b.of(ctx, q, &d, err))
	}
	p.report(ctx, q, &d, err)
	p.free(q)
	return d, err
}

// Reserve is Take with a charge that can be settled: see [ratelimit.Layered.Reserve]. It waits for at most maxDelay
// in the line of a rule with Share. If a rule has a Cost, only Cancel refunds its charge. A rule with Actual
// settles at the request's attribute of this name, and Settle reads it from r. For example, r is a map, completed
// by the program by then. If the attribute is missing, the rule settles as one without Actual: at Settle's
// argument, or at its Cost if it has one. Settle then returns [keyfunc.ErrNoKey], unless the rule is Optional. If
// the attribute is not a whole number, the charge stays, and Settle returns [keyfunc.ErrMisconfigured]. In both
// cases it settles the other rules. Settle(0), and so Cancel, does not read the attribute, and neither do Take and
// Wait. The reservation holds its charges' keys, and the request only if a rule in the set has Actual.
func (p *Policies) Reserve(ctx context.Context, r Request, cost int, maxDelay time.Duration) (*ratelimit.Reservation, error) {
	q := p.newQuery(r, cost)
	if q.answered() {
		defer p.free(q)
		p.report(ctx, q, &q.decision, q.err)
		return ratelimit.NewReservation(q.decision, nil), q.err
	}
	if q.in.settles {
		q.charges.request = r
	}
	q.charges.estimates = !optional.IsPassing(ctx)
	res, err := q.reserve(ctx, &p.notifier, maxDelay)
	res = owing(p.debts.Load().of(ctx, q, &res.Decision, err), res)
	p.report(ctx, q, &res.Decision, err)
	q.request = nil // the reservation keeps the charges, and so also q
	if p.notifier.notifies(q.in) {
		res = p.notifier.settling(q.in, &q.charges, res)
	}
	return res, err
}

// Wait is like Take, but waits until the rules allow the cost: see [ratelimit.Wait]. A new set applies
// to waiting calls, too. So does a rule or an override that begins or ends, within a second. The calls
// keep their places, for example in line for a raised limit. In the line of a rule with Share a call
// holds its charges under the other rules. While another rule denies, the call tries again each second.
// Calls are then not served first come, first served. A call may read its request until it returns.
func (p *Policies) Wait(ctx context.Context, r Request, cost int) error {
	w := p.waits.newCall(ctx)
	local := false
	defer func() { w.over(local) }()
	for {
		q := p.newQuery(r, cost)
		inMemory := q.answered() || q.in.inMemory()
		if anew, err := p.wait(w, q); !anew {
			local = inMemory
			return err
		}
	}
}

// wait waits by the rules of a query, and reports the decision. If other rules have come into force before the
// query's rules allow the cost, it reports nothing and returns true.
func (p *Policies) wait(w *waitingCall, q *query) (anew bool, err error) {
	ctx := w.Context
	defer p.free(q)
	if q.answered() {
		p.report(ctx, q, &q.decision, q.err)
		return false, q.err
	}
	if q.charges.results == nil {
		q.charges.results = p.room(q, len(q.charges.List)) // otherwise the rules' decisions would be unknown afterwards
	}
	if anew, err = w.attempt(q); anew {
		return true, nil
	}
	d := q.waited(err)
	if err == nil && q.in.always {
		_, err = q.chargeRest(ctx, &p.notifier, d, nil) // the error is about shadows
	}
	p.report(ctx, q, &d, err)
	return false, err
}

// stays reports whether the set in force charges a query's request as the query's own set does, to the same limiters. If
// the request panics, stays reports false: the call reads the request again, in the goroutine of its caller.
func (p *Policies) stays(q *query) (same bool) {
	if q.in == p.now() && !q.in.dated {
		return true
	}
	defer func() {
		if recover() != nil {
			same = false
		}
	}()
	now := p.query(q.request, q.cost)
	defer p.free(now)
	if now.in.set.KillSwitch {
		return false
	}
	now.load()
	return !now.answered() && sameCharges(q, now)
}

// Repay charges the store with a stand-in's spending during an outage. Call it on the [Options.StandIn]; on other policies
// it does nothing. Package failover calls it when the store is back. Each key is charged with the spending that still
// counts under the stand-in's limits: for example at most a minute's spending under a limit per minute, and all spending
// under a monthly quota. Spending above a budget's rest becomes Debt. A reservation is charged with its real cost, once it
// is settled. Each charge is made once. Rules with Share, and keys beyond a rule's last 65,536, are left out. After an
// error wrapping [ratelimit.ErrUnavailable], the rest is left for the next call. Repay is safe for concurrent use.
func (p *Policies) Repay(ctx context.Context) error {
	if b := p.debts.Load(); b != nil {
		return b.repay(wait.OrBackground(ctx))
	}
	return nil
}

// query returns a request's query, before its rules are looked up.
// If the call is invalid under any rules, the query has an error.
func (p *Policies) query(r Request, cost int) *query {
	q, _ := p.queries.Get().(*query)
	if q == nil {
		q = new(query)
	}
	q.in, q.request, q.cost, q.err = p.now(), r, cost, check(r, cost)
	return q
}

// newQuery returns a decision's query, with each applying rule's charge.
func (p *Policies) newQuery(r Request, cost int) *query {
	q := p.query(r, cost)
	switch {
	case q.err != nil:
		return q
	case q.in.set.KillSwitch:
		p.killed.Add(1)
		q.kill = true
		q.pass()
	default:
		if q.load(); q.exemptBy != nil {
			p.exempt.Add(1)
		}
		for i := range q.charges.List {
			if ch := &q.charges.List[i]; ch.Plan == "" {
				if rule := q.in.rules[ch.Rule]; rule.unknownPlans != nil {
					rule.countPlan(r)
				}
			}
		}
	}
	if q.in.graces {
		q.charges.rules = q.in.rules
	}
	if p.notifier.notifies(q.in) {
		q.charges.follow(&p.notifier.opens, q.in.rules)
	}
	if p.onDecision != nil || p.notifier.notifies(q.in) || q.in.graces || q.in.always {
		q.charges.results = p.room(q, len(q.charges.List))
	}
	return q
}

// free clears a query, and keeps its memory for the next one. Stores have received copies of its charges.
func (p *Policies) free(q *query) {
	q.clear()
	p.queries.Put(q)
}

// report counts a decision's denied keys, and calls the observers.
func (p *Policies) report(ctx context.Context, q *query, d *ratelimit.Decision, err error) {
	if !q.answered() {
		if !q.in.inMemory() {
			p.lasts.note(q.in.rules, &q.charges)
		}
		if d.Allowed && err == nil {
			q.countDenied(p.denials, true)
		} else if outcome.Of(*d, err).Denies() {
			q.countDenied(p.denials, false)
		}
	}
	if p.notifier.notifies(q.in) {
		p.notifier.decided(q)
	}
	if p.onDecision == nil {
		return
	}
	rules := q.charges.results
	for i := range rules {
		ch, rd := &q.charges.List[i], &rules[i]
		r := q.in.rules[ch.Rule]
		rd.Rule, rd.Key, rd.Plan, rd.Shadow, rd.Cost = r.Name, ch.Key, ch.Plan, r.Shadow, ch.Cost
		if !rd.Answered {
			rd.Decision.Limit = r.grace.Shown(*ch.Limit)
		}
	}
	if q.exemptBy != nil {
		rules = p.room(q, 1)
		rules[0] = stats.RuleDecision{Rule: q.exemptBy.Name, Cost: q.cost, Decision: *d, Answered: true}
	}
	if reports.Of(ctx) != nil {
		rules = slices.Clone(rules) // their memory may be reused before the report
	}
	reports.Send(ctx, p.onDecision, Decision{
		Request: q.request, Cost: q.cost, Decision: *d, Err: err,
		Version: q.in.set.Version, Generation: q.in.number, KillSwitch: q.kill, Rules: rules,
	})
}

// manyRules is the maximum number of rules for which memory is allocated at once. 69 rules fill 12 KiB.
const manyRules = 69

// room returns zeroed memory for the results of n rules. A hook may
// keep it, so no other request gets it unless rules are reused.
func (p *Policies) room(q *query, n int) []stats.RuleDecision {
	switch {
	case n == 0:
		return nil
	case p.reuseRules:
		q.lent = slices.Grow(q.lent[:0], n)[:n]
		return q.lent
	}
	if len(q.spare) < n {
		q.spare = make([]stats.RuleDecision, max(n, manyRules))
	}
	rules := q.spare[:n:n]
	q.spare = q.spare[n:]
	return rules
}

// adjust adjusts budgets, and sends the notices of crossed thresholds.
func (p *Policies) adjust(ctx context.Context, g *generation, c *charges, delta int) error {
	return p.notifier.adjust(ctx, g, c, delta)
}
