package policy

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/weir-go/ratelimit"
)

// Subject names one budget: that of one key of a rule. It stands for a request in [Policies.Peek],
// [Policies.Adjust] and [Policies.Reset].
type Subject struct {
	// Rule is the rule's name, whatever the case.
	Rule string
	// Key holds one value for each attribute of the rule's Key. For "ip/24" that is an address or
	// its network.
	Key []string
	// Plan is the plan that the key is on. It says which limit holds, as the attribute "plan" of a
	// request does. If empty, the rule's, unless the key has an override.
	Plan string
}

// Attribute returns the plan, and nothing else.
func (s Subject) Attribute(name string) (string, bool) {
	return s.Plan, name == AttrPlan && s.Plan != ""
}

// Keeper is what a [Decider] may have besides: it changes what has been spent, whatever the limits
// allow.
type Keeper interface {
	// Adjust charges delta to the budgets of some charges, or forgives it if it is negative:
	// see [ratelimit.Layered.Adjust]. If the charges are bare, no rule is left out.
	Adjust(ctx context.Context, c *Charges, delta int) error
	// Reset forgets what the budgets of some charges have spent: see [ratelimit.Keyed.Reset].
	Reset(ctx context.Context, c *Charges) error
}

// Peek says what Take would answer, and charges nothing; of a [Subject], what its rule by itself would
// answer to a cost, whatever the rule charges and whether it is a shadow. The errors are those of Take,
// [errors.ErrUnsupported] if the engine cannot look, and that a subject's rule is not in force or its key
// is wrong.
func (p *Policies) Peek(_ context.Context, r Request, cost int) (ratelimit.Decision, error) {
	q, err := p.about(r, cost)
	defer p.free(q)
	if err != nil || q.decision.Allowed {
		return q.decision, err
	}
	if e, ok := q.state.decider.(Peeker); ok {
		return e.Peek(&q.charges, cost)
	}
	return ratelimit.Decision{}, fmt.Errorf("policy: the engine cannot look: %w", errors.ErrUnsupported)
}

// Adjust charges delta to the budgets of a [Subject], or gives it back if it is negative, whatever the limits
// allow: a charge may leave a debt. With any other request, it does so in all rules that match, but for
// shadows and those with a cost of their own. It is not told to [Options.OnDecision]. The errors are
// those of Peek.
func (p *Policies) Adjust(ctx context.Context, r Request, delta int) error {
	return p.keep(r, func(k Keeper, c *Charges) error { return k.Adjust(ctx, c, delta) })
}

// Reset gives the key of a [Subject] its full budget: what it has spent is forgotten. With any other request,
// it does so in all rules that match. The errors are those of Peek.
func (p *Policies) Reset(ctx context.Context, r Request) error {
	return p.keep(r, func(k Keeper, c *Charges) error { return k.Reset(ctx, c) })
}

// ReplacesCost reports whether a rule in force has a cost of its own: see [ratelimit.CostReplacer].
func (p *Policies) ReplacesCost() bool {
	return slices.ContainsFunc(p.now().rules, func(r *rule) bool { return r.charging && !r.Disabled })
}

func (p *Policies) keep(r Request, do func(Keeper, *Charges) error) error {
	q, err := p.about(r, 1)
	defer p.free(q)
	if err != nil || q.decision.Allowed {
		return err
	}
	if k, ok := q.state.decider.(Keeper); ok {
		return do(k, &q.charges)
	}
	return fmt.Errorf("policy: the engine cannot change what was spent: %w", errors.ErrUnsupported)
}

// about returns the query of a question that is no decision: it is not counted as one. The kill switch plays
// no part.
func (p *Policies) about(r Request, cost int) (*query, error) {
	q, _ := p.queries.Get().(*query)
	if q == nil {
		q = new(query)
	}
	q.state, q.request, q.cost = p.now(), r, cost
	err := check(r, cost)
	if s, ok := r.(Subject); ok && err == nil {
		q.charges.bare = true
		return q, q.state.budget(s, &q.charges)
	}
	if err == nil {
		err = q.load()
	}
	if err == nil && len(q.charges.list) == 0 {
		q.decision = passed(q.exemptBy)
	}
	return q, err
}

// budget adds the charge of a subject.
func (st *state) budget(s Subject, c *Charges) error {
	i := slices.IndexFunc(st.rules, func(r *rule) bool { return strings.EqualFold(r.Name, s.Rule) })
	if i < 0 || st.rules[i].Allow {
		return fmt.Errorf("policy: no rule %q with a limit is in force", s.Rule)
	}
	r := st.rules[i]
	if len(s.Key) != len(r.parts) {
		return fmt.Errorf("policy: rule %q: a key of %d values, want %d: %s", r.Name, len(s.Key), len(r.parts), strings.Join(r.Key, ", "))
	}
	values := slices.Clone(s.Key)
	for j, part := range r.parts {
		if values[j] == "" || len(values[j]) > maxText {
			return fmt.Errorf("policy: rule %q: %q has %d bytes, want 1 to %d", r.Name, part.attribute, len(values[j]), maxText)
		}
		if part.bits > 0 {
			if network, ok := cutIP(values[j], part.bits); ok {
				values[j] = network
			}
		}
	}
	ch := c.add(i)
	ch.Key, ch.Limit = joined(values), &r.limit
	if o, ok := r.overrides[ch.Key]; ok {
		ch.Limit = o
	} else if l, ok := r.plans[s.Plan]; ok {
		ch.Limit, ch.Plan = l, s.Plan
	}
	return nil
}
