package policy

import (
	"context"
	"encoding/json"
	"errors"
	"slices"

	"github.com/weir-go/ratelimit"
	"github.com/weir-go/ratelimit/policy/internal/byhand"
	"github.com/weir-go/ratelimit/policy/internal/limits"
	"github.com/weir-go/ratelimit/policy/internal/shown"
)

// Explanation lists a request's matching rules, with their decisions.
type Explanation struct {
	KillSwitch bool
	Exempt     string      // the exempting rule's name
	Rules      []Explained // the matching rules, in order
	Err        error       // why the request is refused even with a full budget; otherwise nil
}

// Explained is a matching rule.
type Explained struct {
	Rule     string
	Shadow   bool
	Dated    bool            // whether now is outside the rule's From and Until: see Skipped
	Skipped  string          // why the rule does not decide, for example a missing attribute
	Instead  string          // the replacing rule's name
	Key      string          // it may contain a secret
	Plan     string          // the plan whose limit holds, or ""
	Override bool            // whether an override determines the limit
	Given    string          // LimitFrom's attribute, if it determines the limit
	Limit    ratelimit.Limit // the applying limit
	Share    int             // the key's weight in Limit, shared with others; 0 if it has its own budget
	Cost     int
	Grace    string              // the share of the limit that is allowed above it, or ""
	Charge   string              // "always" if the rule is charged whatever the decision, or ""
	Actual   string              // the attribute at which a reservation settles the cost, or ""
	Decision *ratelimit.Decision // the rule's own decision; nil if the engine cannot peek
}

// Explain returns a request's matching rules, and how each would decide
// now. It charges nothing. A negative cost and a nil request are errors.
func (p *Policies) Explain(r Request, cost int) (Explanation, error) {
	g := p.now()
	if err := check(r, cost); err != nil {
		return Explanation{}, err
	}
	ex := Explanation{KillSwitch: g.set.KillSwitch}
	if err := unreadable(r); err != nil && !ex.KillSwitch {
		ex.Err = err
		return ex, nil
	}
	all := g.index.Match(r)
	matching := all
	if n := slices.IndexFunc(all, func(i int) bool { return i >= len(g.rules) }); n >= 0 {
		matching = all[:n] // the others are replacements
	}
	q := &query{in: g, request: r, cost: cost}
	for _, i := range matching {
		if rule := g.rules[i]; rule.Allow && ex.Exempt == "" && q.inForce(rule) {
			ex.Exempt = rule.Name
		}
	}
	for _, i := range matching {
		if g.rules[i].Allow {
			continue
		}
		if rule := g.rules[i]; !q.inForce(rule) {
			ex.Rules = append(ex.Rules, Explained{Rule: rule.Name, Shadow: rule.Shadow, Dated: true, Skipped: "it is in force " + rule.span().String()})
			continue
		}
		if by := q.replacedBy(i, all); by != nil {
			ex.Rules = append(ex.Rules, Explained{Rule: g.rules[i].Name, Shadow: g.rules[i].Shadow, Instead: by.Name, Skipped: "rule " + by.Name + " takes its place"})
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
	var ch charge
	applies, err := rule.charge(r, cost, &ch)
	if err != nil {
		e.Skipped = err.Error()
		return e, err
	}
	if !applies {
		e.Skipped = "an attribute is missing, and the rule is optional"
		return e, nil
	}
	e.Key, e.Plan, e.Limit, e.Cost, e.Share = ch.Key, ch.Plan, rule.grace.Shown(*ch.Limit), ch.Cost, ch.Weight
	if e.Override = rule.overrideOf(ch.Key) != nil; ch.Weight > 0 {
		_, e.Override = rule.terms.Keys[ch.Key]
	}
	if v, ok := r.Attribute(rule.LimitFrom); rule.given != nil && ok && v != "" && !e.Override && ch.Limit != &rule.limit {
		e.Given = rule.LimitFrom
	}
	e.Grace, e.Actual, e.Charge = rule.Grace, rule.Actual, rule.Charge
	ch.Rule = i
	d, err := g.decider.peek(context.Background(), &charges{List: []charge{ch}, Bare: true}, ch.Cost)
	if ch.Cost == 0 && rule.always() && err == nil && limits.Empty(&d) {
		d = limits.DenyEmpty(d)
	}
	d = rule.grace.Show(d)
	switch {
	case err == nil || errors.Is(err, ratelimit.ErrExceedsLimit):
		e.Decision = &d
	case errors.Is(err, errors.ErrUnsupported):
		return e, nil
	default:
		e.Skipped = "the engine has no answer" // the engine's error may contain a key
	}
	return e, err
}

// MarshalJSON returns kill_switch, exempt, error and rules, with keys, and times in seconds.
func (ex Explanation) MarshalJSON() ([]byte, error) { return json.Marshal(ex.plain()) }

func init() {
	byhand.Shown = func(explanation any) shown.Explanation { return explanation.(Explanation).plain() }
}

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
	r := shown.Rule{Rule: e.Rule, Shadow: e.Shadow, Skipped: e.Skipped, Instead: e.Instead, Key: e.Key, Cost: e.Cost, Actual: e.Actual, Charge: e.Charge, Dated: e.Dated, Grace: e.Grace}
	if e.Limit.Algorithm == 0 {
		return r
	}
	r.Limit, r.Capacity, r.Share, r.From = e.Limit.String(), e.Limit.Capacity(), e.Share, "the rule"
	switch {
	case e.Override:
		r.From = "an override"
	case e.Given != "":
		r.From = "the attribute " + e.Given
	case e.Plan != "":
		r.From = "plan " + e.Plan
	}
	if d := e.Decision; d != nil {
		r.Now = shown.StandingOf(d, d.Allowed)
	}
	return r
}

// String returns a line for each rule, with keys.
func (ex Explanation) String() string { return ex.plain().Text() }
