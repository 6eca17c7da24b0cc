package policy

import (
	"context"
	"encoding/json"
	"errors"

	"github.com/weir-go/ratelimit"
	"github.com/weir-go/ratelimit/policy/internal/shown"
)

// Explanation says which rules a request meets, and how they stand.
type Explanation struct {
	KillSwitch bool        // the kill switch is on: no rule is asked
	Exempt     string      // the rule that exempts the request from all others, "" if none does
	Rules      []Explained // the rules that match, in order
	Err        error       // why the request would be refused whatever is left, else nil
}

// Explained is one rule that matches a request.
type Explained struct {
	Rule   string
	Shadow bool
	// Skipped says why the rule cannot decide all the same: an attribute is missing or
	// malformed. If the rule is neither optional nor a shadow, that refuses the request.
	Skipped string
	// Key is the rule's key for the request. It may be a secret.
	Key string
	// Plan is the plan whose limit holds; Override reports that an override does.
	Plan     string
	Override bool
	// Limit is the limit that holds, and Cost what the rule charges.
	Limit ratelimit.Limit
	Cost  int
	// Decision is what the rule by itself would say now, nil if the engine cannot tell
	// without charging.
	Decision *ratelimit.Decision
}

// Explain returns which rules a request meets, with limit and key, and what each would answer now. It charges nothing. The error is
// that of an invalid cost or a nil request.
func (p *Policies) Explain(r Request, cost int) (Explanation, error) {
	g := p.now()
	if err := check(r, cost); err != nil {
		return Explanation{}, err
	}
	ex := Explanation{KillSwitch: g.set.KillSwitch}
	matching := g.index.Match(r)
	for _, i := range matching {
		if rule := g.rules[i]; rule.Allow && ex.Exempt == "" {
			ex.Exempt = rule.Name
		}
	}
	for _, i := range matching {
		if g.rules[i].Allow {
			continue
		}
		e, err := g.explain(i, r, cost)
		if err != nil && ex.Err == nil && !e.Shadow && !ex.KillSwitch && ex.Exempt == "" {
			ex.Err = err
		}
		ex.Rules = append(ex.Rules, e)
	}
	return ex, nil
}

func (g *generation) explain(i int, r Request, cost int) (Explained, error) {
	rule := g.rules[i]
	e := Explained{Rule: rule.Name, Shadow: rule.Shadow}
	var ch Charge
	applies, err := rule.charge(r, cost, &ch)
	if err != nil {
		e.Skipped = err.Error()
		return e, err
	}
	if !applies {
		e.Skipped = "an attribute is missing, and the rule is optional"
		return e, nil
	}
	e.Key, e.Plan, e.Limit, e.Cost = ch.Key, ch.Plan, *ch.Limit, ch.Cost
	_, e.Override = rule.overrides[ch.Key]
	ch.Rule = i
	d, err := ratelimit.Peek(context.Background(), ratelimit.Limiter[*Charges](g.decider), &Charges{List: []Charge{ch}, Bare: true}, ch.Cost)
	if errors.Is(err, errors.ErrUnsupported) && unable(g.decider) {
		return e, nil
	}
	e.Decision = &d
	return e, err
}

// unable reports whether a decider has no Peek.
func unable(d ratelimit.Reserver[*Charges]) bool {
	switch d.(type) {
	case ratelimit.Peeker[*Charges], interface {
		Peek(*Charges, int) (ratelimit.Decision, error)
	}:
		return false
	}
	return true
}

// MarshalJSON returns an object with kill_switch, exempt, error and rules. Times are in seconds. It holds the keys.
func (ex Explanation) MarshalJSON() ([]byte, error) { return json.Marshal(ex.plain()) }

func (ex Explanation) plain() shown.Explanation {
	out := shown.Explanation{KillSwitch: ex.KillSwitch, Exempt: ex.Exempt, Rules: []shown.Rule{}}
	if ex.Err != nil {
		out.Error = ex.Err.Error()
	}
	for _, r := range ex.Rules {
		out.Rules = append(out.Rules, r.plain())
	}
	return out
}

func (e Explained) plain() shown.Rule {
	r := shown.Rule{Rule: e.Rule, Shadow: e.Shadow, Skipped: e.Skipped, Key: e.Key, Cost: e.Cost}
	if e.Limit.Algorithm == 0 {
		return r
	}
	r.Limit, r.Capacity, r.From = e.Limit.String(), e.Limit.Capacity(), "the rule"
	switch {
	case e.Override:
		r.From = "an override"
	case e.Plan != "":
		r.From = "plan " + e.Plan
	}
	if d := e.Decision; d != nil {
		r.Now = &shown.Standing{Allowed: d.Allowed, Remaining: d.Remaining, RetryAfter: d.RetryAfter.Seconds(), ResetAfter: d.ResetAfter.Seconds()}
	}
	return r
}

// String returns the explanation as lines of text, one for each rule that matches. It holds the keys.
func (ex Explanation) String() string { return ex.plain().Text() }
