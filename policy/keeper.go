package policy

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/weir-go/ratelimit"
)

// Subject names one budget: that of one key of a rule.
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

// Keeper is what a [Decider] may have besides: it changes what has been spent, whatever the limits
// allow.
type Keeper interface {
	// Adjust charges delta to the budgets of some charges, or forgives it if it is negative:
	// see [ratelimit.Keyed.Adjust].
	Adjust(ctx context.Context, c *Charges, delta int) error
	// Reset forgets what the budgets of some charges have spent: see [ratelimit.Keyed.Reset].
	Reset(ctx context.Context, c *Charges) error
}

// Peek says what the subject's rule by itself would answer to a cost, and how the budget stands. It charges
// nothing. The error is the engine's, [errors.ErrUnsupported] if the engine cannot look, or says that
// there is no such rule or what is wrong with the key.
func (p *Policies) Peek(s Subject, cost int) (ratelimit.Decision, error) {
	if cost < 0 {
		return ratelimit.Decision{}, fmt.Errorf("policy: %w: %d", ratelimit.ErrNegativeCost, cost)
	}
	st := p.now()
	c, err := st.budget(s)
	if err != nil {
		return ratelimit.Decision{}, err
	}
	if e, ok := st.decider.(Peeker); ok {
		return e.Peek(c, cost)
	}
	return ratelimit.Decision{}, fmt.Errorf("policy: the engine cannot look: %w", errors.ErrUnsupported)
}

// Adjust charges delta to the subject's budget, or gives it back if it is negative, whatever the limit
// allows: a charge may leave a debt. It is not told to [Options.OnDecision]. The errors are those of
// Peek.
func (p *Policies) Adjust(ctx context.Context, s Subject, delta int) error {
	return p.keep(s, func(k Keeper, c *Charges) error { return k.Adjust(ctx, c, delta) })
}

// Reset gives the subject its full budget: what it has spent is forgotten. The errors are those of Peek.
func (p *Policies) Reset(ctx context.Context, s Subject) error {
	return p.keep(s, func(k Keeper, c *Charges) error { return k.Reset(ctx, c) })
}

func (p *Policies) keep(s Subject, do func(Keeper, *Charges) error) error {
	st := p.now()
	c, err := st.budget(s)
	if err != nil {
		return err
	}
	if k, ok := st.decider.(Keeper); ok {
		return do(k, c)
	}
	return fmt.Errorf("policy: the engine cannot change what was spent: %w", errors.ErrUnsupported)
}

// budget returns the charge of a subject.
func (st *state) budget(s Subject) (*Charges, error) {
	i := slices.IndexFunc(st.rules, func(r *rule) bool { return strings.EqualFold(r.Name, s.Rule) })
	if i < 0 || st.rules[i].Allow {
		return nil, fmt.Errorf("policy: no rule %q with a limit is in force", s.Rule)
	}
	r := st.rules[i]
	if len(s.Key) != len(r.parts) {
		return nil, fmt.Errorf("policy: rule %q: a key of %d values, want %d: %s", r.Name, len(s.Key), len(r.parts), strings.Join(r.Key, ", "))
	}
	values := slices.Clone(s.Key)
	for j, part := range r.parts {
		if values[j] == "" || len(values[j]) > maxText {
			return nil, fmt.Errorf("policy: rule %q: %q has %d bytes, want 1 to %d", r.Name, part.attribute, len(values[j]), maxText)
		}
		if part.bits > 0 {
			if network, ok := cutIP(values[j], part.bits); ok {
				values[j] = network
			}
		}
	}
	ch := Charge{Rule: i, Key: joined(values), Limit: &r.limit}
	if o, ok := r.overrides[ch.Key]; ok {
		ch.Limit = o
	} else if l, ok := r.plans[s.Plan]; ok {
		ch.Limit, ch.Plan = l, s.Plan
	}
	return &Charges{list: []Charge{ch}}, nil
}
