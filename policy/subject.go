package policy

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/weir-go/ratelimit"
	"github.com/weir-go/ratelimit/internal/optional"
	"github.com/weir-go/ratelimit/internal/wait"
	"github.com/weir-go/ratelimit/policy/internal/byhand"
	"github.com/weir-go/ratelimit/policy/internal/joined"
	"github.com/weir-go/ratelimit/policy/internal/notices"
)

// Subject names one key of a rule, as a request to [Policies.Peek], [Policies.Adjust] and [Policies.Reset].
type Subject struct {
	Rule string   // the rule's name, in any case
	Key  []string // a value for each attribute of the rule's Key; for "ip/24" an address or its network, for "query:", "cookie:" and header fields with credentials the value or its hash
	Plan string   // the key's plan, if it has one
}

// Attribute returns the key's plan as the attribute "plan". A Subject has no other attribute.
func (s Subject) Attribute(name string) (string, bool) {
	return plan(s.Plan).Attribute(name)
}

// Peek returns Take's decision, and charges nothing. For a [Subject], it returns the decision by the Subject's
// rule alone, even if the rule is a shadow or the kill switch is on. The errors are Take's, and
// [errors.ErrUnsupported] if the engine cannot peek. For a Subject it is an error if no such rule or key exists.
func (p *Policies) Peek(ctx context.Context, r Request, cost int) (ratelimit.Decision, error) {
	q := p.about(r, cost, true)
	defer p.free(q)
	if q.answered() {
		return q.decision, q.err
	}
	var d ratelimit.Decision
	var err error
	if q.in.graces {
		d, err = q.peekShown(ctx)
	} else {
		d, err = q.in.decider.peek(ctx, &q.charges, cost)
	}
	d, err = q.peekAlways(ctx, d, err)
	if errors.Is(err, errors.ErrUnsupported) {
		err = fmt.Errorf("policy: the engine cannot look: %w", err)
	}
	return d, err
}

// Adjust charges delta to a [Subject]'s budget. If delta is negative, it refunds, even above the limit. For any other
// request it adjusts the budgets under all matching rules, except shadows and rules with a Cost. Under the kill switch
// it only refunds. A refund above the spending restores the full budget, and no more. For a Subject, Adjust then returns
// an error with both figures, wrapping [ratelimit.ErrExceedsLimit]. Ignore the error if the refund should only undo
// spending. To raise the limit until some time, write an entry with until in overrides instead. The engine's answer
// contains the spending, so no other call can come between. Engines without it in their answer, for example a lease, and
// a rule with Share return no such error. Package admin's page refuses such a refund. The other errors are Peek's.
func (p *Policies) Adjust(ctx context.Context, r Request, delta int) error {
	return p.keep(r, delta > 0, func(g *generation, c *charges) error {
		if delta >= 0 || !c.Bare {
			return p.adjust(ctx, g, c, delta)
		}
		c.adjusted = new(adjusted)
		if err := p.adjust(ctx, g, c, delta); err != nil || !c.adjusted.known || int64(delta) >= -c.adjusted.spent {
			return err
		}
		rule, limit := g.rules[c.List[0].Rule], *c.List[0].Limit
		if after := c.adjusted.after; after != nil {
			limit = after.Limit
		}
		return fmt.Errorf("policy: rule %q: %w: delta is %d, and the key had spent %d units, which it has back: nothing raises it above its limit of %d; "+
			"for a higher limit until some time, write an entry in overrides with until", rule.Name, ratelimit.ErrExceedsLimit, delta, c.adjusted.spent, rule.grace.Shown(limit).Capacity())
	})
}

// Reset restores the full budget of a [Subject]'s key. For any other request, it
// does so for the request's key in each matching rule. The errors are Peek's.
func (p *Policies) Reset(ctx context.Context, r Request) error {
	return p.keep(r, false, func(g *generation, c *charges) error {
		err := g.decider.reset(ctx, c)
		for i := range c.List {
			id := notices.Key{Rule: g.rules[c.List[i].Rule].id, Key: c.List[i].Key}
			p.notifier.notices.Forget(id)
			p.notifier.opens.Forget(id)
		}
		return err
	})
}

// Describe reports whether a rule in force has its own cost, and whether one
// has a [ratelimit.Concurrent] limit. Limits is nil, and BooksAhead false.
func (p *Policies) Describe() ratelimit.Description {
	rules := p.now().rules
	return ratelimit.Description{
		ReplacesCost: slices.ContainsFunc(rules, func(r *rule) bool { return r.ownCost && !r.Disabled }),
		Holds:        slices.ContainsFunc(rules, func(r *rule) bool { return !r.Shadow && !r.Disabled && r.Rule.holds() }),
	}
}

// keep changes the spending of r's budgets.
func (p *Policies) keep(r Request, charges bool, do func(*generation, *charges) error) error {
	q := p.about(r, 1, charges)
	defer p.free(q)
	if q.answered() {
		return q.err
	}
	err := do(q.in, &q.charges)
	if errors.Is(err, errors.ErrUnsupported) {
		err = fmt.Errorf("policy: the engine cannot change spending: %w", err)
	}
	return err
}

// Each calls visit with each key of a rule and the decision for a cost of 1, until visit returns false. If rule is "", it
// visits all rules' keys, except those of disabled rules and rules with Share. The decisions' Limits then contain the
// rules' names, and keys on Redis are scanned once for all rules. In memory, a decision uses the limit for the key's plan
// at its last decision. A store's keys come from all processes. For these it uses the limit at the last decision in this
// process, or otherwise the rule's limit without plans. Each returns the engine's error. If the engine cannot list keys,
// or if the rule has a Share, the error wraps [errors.ErrUnsupported]. It is also an error if no such rule is in force.
func (p *Policies) Each(ctx context.Context, rule string, visit func(key []string, d ratelimit.Decision) bool) error {
	g := p.now()
	if visit == nil {
		return optional.Nil("policy: Each: visit")
	}
	rules := g.listed(rule)
	if len(rules) == 0 && rule != "" {
		return fmt.Errorf("policy: no rule %q with a limit is in force", rule)
	}
	limitFor := func(rule int, key string, last ratelimit.Limit) ratelimit.Limit {
		if g.inMemory() {
			limit, _ := g.rules[rule].limitAfter(key, last)
			return limit
		}
		if last, ok := p.lasts.of(g, rule, key); ok {
			limit, _ := g.rules[rule].limitAfter(key, last)
			return limit
		}
		limit, _ := g.rules[rule].limitOf(Subject{}, key)
		return *limit
	}
	more := true
	show := func(rule int, key string, d ratelimit.Decision) bool {
		r := g.rules[rule]
		d = r.grace.Show(d)
		d.Limit = d.Limit.Named(r.Name)
		more = visit(joined.Values(key, len(r.parts)), d)
		return more
	}
	if done, err := g.decider.eachTogether(wait.OrBackground(ctx), rules, limitFor, show); done {
		return err
	}
	for _, i := range rules {
		if err := g.decider.each(ctx, i, limitFor, show); err != nil || !more {
			return err
		}
	}
	return nil
}

// listed returns the rules with a name. If the name is "", it returns
// all enabled rules with limits, except rules whose keys share one.
func (g *generation) listed(name string) (rules []int) {
	if name != "" {
		if i := g.find(name); i >= 0 {
			rules = append(rules, i)
		}
		return rules
	}
	for i, r := range g.rules {
		if !r.Allow && !r.Disabled && r.pool == nil {
			rules = append(rules, i)
		}
	}
	return rules
}

// find returns the index of a rule with a limit, or -1 if none has the name.
func (g *generation) find(name string) int {
	return slices.IndexFunc(g.rules, func(r *rule) bool { return !r.Allow && strings.EqualFold(r.Name, name) })
}

// about returns the query of a call other than a decision. It is not counted as one. If asDecided is true,
// the kill switch lets all requests pass, as for a decision. The kill switch has no effect for a subject.
func (p *Policies) about(r Request, cost int, asDecided bool) *query {
	q := p.query(r, cost)
	if q.err != nil {
		return q
	}
	switch s := r.(type) {
	case Subject:
		q.about(p, s, false)
	case *Subject:
		if s == nil {
			q.err = optional.Nil("policy: the Subject")
			return q
		}
		q.about(p, *s, false)
	case byhand.Own:
		q.about(p, Subject{Rule: s.Rule, Key: s.Key}, true)
	default:
		if asDecided && q.in.set.KillSwitch {
			q.pass()
		} else {
			q.load()
		}
	}
	return q
}

// about fills the query with a subject's budget: see charge.
func (q *query) about(p *Policies, s Subject, own bool) {
	q.charges.Bare = true
	q.err = p.charge(q.in, s, own, &q.charges)
}

// charge adds a subject's charge to c. If own is true, it uses the limit of the key's last decision, if known.
func (p *Policies) charge(g *generation, s Subject, own bool, c *charges) error {
	i := g.find(s.Rule)
	if i < 0 {
		return fmt.Errorf("policy: no rule %q with a limit is in force", s.Rule)
	}
	key, err := g.rules[i].keyOf(s.Key)
	if err != nil {
		return err
	}
	ch := c.add(i)
	ch.Key = key
	r := g.rules[i]
	ch.Limit, ch.Plan = r.limitOf(s, key)
	if own && r.varies {
		if last, ok := p.lasts.of(g, i, key); ok {
			limit, plan := r.limitAfter(key, last)
			ch.Limit, ch.Plan = &limit, plan
		}
	}
	r.share(s, ch)
	return nil
}

// keyOf returns the key for some values, one for each attribute.
func (c *rule) keyOf(values []string) (string, error) {
	if len(values) != len(c.parts) {
		return "", fmt.Errorf("policy: rule %q: a key of %d values, want %d: %s", c.Name, len(values), len(c.parts), strings.Join(c.Key, ", "))
	}
	values = slices.Clone(values)
	for i, part := range c.parts {
		if values[i] == "" || len(values[i]) > maxText && !part.hash {
			return "", fmt.Errorf("policy: rule %q: %q has %d bytes, want 1 to %d", c.Name, part.attribute, len(values[i]), maxText)
		}
		text := part.textOf(values[i])
		if _, isAddress := part.cut.of(text); part.cut != (cut{}) && !isAddress {
			if err := part.cut.check(text); err != nil {
				return "", fmt.Errorf("policy: rule %q: %q is %w", c.Name, part.attribute, err)
			}
		}
		values[i] = text
	}
	return joined.Key(values), nil
}
