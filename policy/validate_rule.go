package policy

import (
	"errors"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"

	"github.com/weir-go/ratelimit"
	"github.com/weir-go/ratelimit/policy/internal/joined"
	"github.com/weir-go/ratelimit/policy/internal/limits"
	"github.com/weir-go/ratelimit/policy/internal/match"
)

// wrong returns an error about a field of the i-th rule.
func (r *Rule) wrong(i int, field string, err error) *Error {
	name := r.Name
	if checkName(name) != nil {
		name = ""
	}
	return &Error{Rule: name, Field: ruleField(i, field), Err: err}
}

func ruleField(i int, field string) string { return "rules[" + strconv.Itoa(i) + "]." + field }

func (r *Rule) validate(named lists, tree *match.Tree, report reporter) {
	if r.Allow {
		r.checkAllow(report)
	}
	for _, check := range []struct {
		field string
		err   error
	}{
		{"name", checkName(r.Name)},
		{"description", checkText(r.Description)},
		{"changed_by", checkText(r.ChangedBy)},
		{"cost", r.checkCost()},
		{"limit", r.checkLimit()},
		{"limit_from", r.checkLimitFrom()},
		{"actual", r.checkActual()},
		{"until", r.span().check()},
		{"grace", r.checkGrace()},
		{"charge", r.checkCharge()},
	} {
		if check.err != nil {
			report(check.field, check.err)
		}
	}
	r.Match.check("match", named, tree, report)
	r.checkKey(report)
	r.checkPlans(report)
	r.checkShare(report)
	r.checkNotify(report)
	r.checkOverrides(report)
	r.checkCosts(named, report)
	r.checkWildcards(named, report)
}

// checkAllow checks that an exempting rule has no other effect.
func (r *Rule) checkAllow(report reporter) {
	for _, f := range []struct {
		name  string
		given bool
	}{
		{"limit", r.Limit != ratelimit.Limit{}}, {"key", len(r.Key) > 0}, {"plans", r.Plans != nil}, {"overrides", r.Overrides != nil},
		{"cost", r.Cost != Cost{}}, {"optional", r.Optional}, {"shadow", r.Shadow}, {"instead", len(r.Instead) > 0},
		{"limit_from", r.LimitFrom != ""}, {"notify", len(r.Notify) > 0}, {"share", r.Share != 0}, {"shares", r.Shares != nil},
		{"costs", r.Costs != nil}, {"actual", r.Actual != ""}, {"budget", r.Budget != ""}, {"grace", r.Grace != ""}, {"charge", r.Charge != ""},
	} {
		if f.given {
			report(f.name, errors.New("the rule allows the requests that it matches, whatever the limits: it has a match only"))
		}
	}
}

func (r *Rule) checkLimit() error {
	l := r.Limit
	if r.Allow {
		return nil
	}
	if l == (ratelimit.Limit{}) {
		return fmt.Errorf("%w: the limit is missing", ratelimit.ErrInvalidLimit)
	}
	return l.Named("").Validate()
}

func (r *Rule) checkCost() error {
	switch {
	case r.Cost == (Cost{}):
		return nil
	case r.Cost.Match != nil:
		return errors.New("a Match, which only a cost in Costs has")
	}
	return r.Cost.check()
}

// checkLimitFrom refuses attributes of a client's choice.
func (r *Rule) checkLimitFrom() error {
	switch name := r.LimitFrom; {
	case name == "":
		return nil
	case sentByClient(name):
		return fmt.Errorf("%q is sent by the client, which would choose its limit: want an attribute that the program supplies", name)
	default:
		return checkAttribute(name)
	}
}

// checkNotify checks the percentages in Notify.
func (r *Rule) checkNotify(report reporter) {
	seen := map[int]int{}
	for j, text := range r.Notify {
		percent, err := percentOf(text)
		if first, twice := seen[percent]; err == nil && twice {
			err = fmt.Errorf("notify[%d] is the same", first)
		}
		if err != nil {
			report(fmt.Sprintf("notify[%d]", j), err)
			continue
		}
		seen[percent] = j
	}
}

func (r *Rule) checkKey(report reporter) {
	for j, name := range r.Key {
		attribute, _ := ipBits(name)
		err := checkAttribute(attribute)
		if strings.HasPrefix(attribute, attrIP+"/") {
			err = fmt.Errorf("%q, want ip/1 to ip/32, or with the bits of IPv6 such as ip/24/56", name)
		}
		same := func(other string) bool { return sameAttribute(other, name) }
		if err == nil && slices.IndexFunc(r.Key, same) < j {
			err = fmt.Errorf("the attribute %q is there twice", name)
		}
		if err != nil {
			report(fmt.Sprintf("key[%d]", j), err)
		}
	}
}

func (r *Rule) checkPlans(report reporter) {
	for _, plan := range slices.Sorted(maps.Keys(r.Plans)) {
		if plan == "" || len(plan) > maxName {
			report("plans", fmt.Errorf("a plan's name of %d bytes, want 1 to %d", len(plan), maxName))
		} else if err := r.Plans[plan].Named("").Validate(); err != nil {
			report("plans."+plan, err)
		}
	}
}

// checkShare checks the weights. It also checks that a rule with Share has no fields for single keys' budgets.
func (r *Rule) checkShare(report reporter) {
	for _, plan := range slices.Sorted(maps.Keys(r.Shares)) {
		if plan == "" || len(plan) > maxName {
			report("shares", fmt.Errorf("a plan's name of %d bytes, want 1 to %d", len(plan), maxName))
		} else if err := checkWeight(r.Shares[plan]); err != nil {
			report("shares."+plan, err)
		} else if limit, ok := r.Plans[plan]; ok {
			report("shares."+plan, fmt.Errorf("the plan has the limit %v in plans, want one of the two", limit.Named("")))
		}
	}
	if r.Allow {
		return
	}
	if r.Share == 0 {
		if r.Shares != nil {
			report("shares", errors.New("weights of plans, and the rule has no share: want share, the weight of keys without such a plan"))
		}
		return
	}
	if err := checkWeight(r.Share); err != nil {
		report("share", err)
		return
	}
	if len(r.Key) == 0 {
		report("share", fmt.Errorf("%d, and the rule has no key: nobody shares its limit", r.Share))
	}
	if r.Limit.Algorithm != ratelimit.AlgorithmTokenBucket && r.checkLimit() == nil {
		report("limit", fmt.Errorf("%w: %v, and the rule has share %d: want a token bucket, whose rate keys can share", ratelimit.ErrInvalidLimit, r.Limit.Named(""), r.Share))
	}
	if r.LimitFrom != "" {
		report("limit_from", fmt.Errorf("%q, and the rule has share %d: its keys have no limits of their own; want shares for weights by plan", r.LimitFrom, r.Share))
	}
	if len(r.Notify) > 0 {
		report("notify", fmt.Errorf("%s, and the rule has share %d: its keys have no limits of their own, of which to notify", r.Notify[0], r.Share))
	}
	for _, plan := range slices.Sorted(maps.Keys(r.Plans)) {
		if limit := r.Plans[plan]; limits.Counts(limit) {
			report("plans."+plan, fmt.Errorf("%v, and the rule has share %d: want a weight in shares, or unlimited or blocked", limit.Named(""), r.Share))
		}
	}
}

func (r *Rule) checkOverrides(report reporter) {
	if n := len(r.Overrides); n > maxList {
		report("overrides", fmt.Errorf("%d overrides, want at most %d", n, maxList))
		return
	}
	if len(r.Overrides) > 0 && len(r.Key) == 0 {
		report("overrides", errors.New("the rule has no key, so no key has a limit of its own"))
		return
	}
	seen := map[string][]int{}
	for j := range r.Overrides {
		o := &r.Overrides[j]
		err := r.checkOverride(*o)
		if err == nil {
			key := joined.Key(o.Key)
			for _, first := range seen[key] {
				other := &r.Overrides[first]
				if o.span().always() == other.span().always() && o.span().meets(other.span()) {
					err = fmt.Errorf("overrides[%d] has the same key", first)
					if !o.span().always() {
						err = fmt.Errorf("overrides[%d] has the same key, %v", first, other.span())
					}
				}
			}
			seen[key] = append(seen[key], j)
		}
		if err != nil {
			report(fmt.Sprintf("overrides[%d]", j), err)
		}
	}
}

// checkOverride returns errors without the key: it may be a secret.
func (r *Rule) checkOverride(o Override) error {
	if len(o.Key) != len(r.Key) {
		return fmt.Errorf("a key of %d values, want %d: %s", len(o.Key), len(r.Key), strings.Join(r.Key, ", "))
	}
	for j, v := range o.Key {
		if v == "" || len(v) > maxText {
			return fmt.Errorf("key[%d] has %d bytes, want 1 to %d", j, len(v), maxText)
		}
		if _, c := ipBits(r.Key[j]); c != (cut{}) {
			if err := c.check(v); err != nil {
				return fmt.Errorf("key[%d] is %w", j, err)
			}
		}
	}
	if err := o.span().check(); err != nil {
		return fmt.Errorf("until is %w", err)
	}
	switch {
	case o.Share != 0 && !o.span().always():
		return fmt.Errorf("share is %d, with a time: a weight holds at all times", o.Share)
	case o.Share != 0 && r.Share == 0:
		return fmt.Errorf("share is %d, and the rule has no share", o.Share)
	case o.Share != 0 && o.Limit != ratelimit.Limit{}:
		return fmt.Errorf("both limit %v and share %d", o.Limit.Named(""), o.Share)
	case o.Share != 0:
		if err := checkWeight(o.Share); err != nil {
			return fmt.Errorf("share is %w", err)
		}
		return nil
	case r.Share != 0 && o.Limit == ratelimit.Limit{}:
		return errors.New("neither share nor limit")
	}
	if err := o.Limit.Named("").Validate(); err != nil || r.Share == 0 || !limits.Counts(o.Limit) {
		return err
	}
	return fmt.Errorf("limit is %v, and the rule has share %d: want share, or the limit unlimited or blocked", o.Limit.Named(""), r.Share)
}

// checkCosts checks the number of costs, and each cost's match and cost.
func (r *Rule) checkCosts(named lists, report reporter) {
	if n := len(r.Costs); r.Costs != nil && n == 0 {
		report("costs", errors.New("an empty list, which has no effect"))
	} else if n > maxList {
		report("costs", fmt.Errorf("%d costs, want at most %d", n, maxList))
		return
	}
	var tree match.Tree
	for j, c := range r.Costs {
		field := fmt.Sprintf("costs[%d]", j)
		m := c.Match
		if m == nil {
			m = new(Match)
		}
		m.check(field+".match", named, &tree, report)
		if m.all() && m.Route == nil && m.Absent == nil {
			report(field+".match", errors.New("it matches every request: want a condition, or cost for the cost of all other requests"))
		}
		if c = c.alone(); c == (Cost{}) {
			report(field+".cost", errors.New("the cost is missing"))
		} else if err := c.check(); err != nil {
			report(field+".cost", err)
		}
	}
	if n := tree.Worst(); n > maxPlaces {
		report("costs", crossing(n))
	}
}

func (r *Rule) checkActual() error {
	if r.Actual == "" {
		return nil
	}
	if sentByClient(r.Actual) {
		return fmt.Errorf("%q is sent by the client, before the real cost is known: want an attribute that the program supplies", r.Actual)
	}
	return checkAttribute(r.Actual)
}

// checkCharge checks the field charge.
func (r *Rule) checkCharge() error {
	switch {
	case r.Charge == "":
		return nil
	case !r.always():
		return fmt.Errorf("%q, want always, or nothing for a rule that is charged with what it allows", r.Charge)
	case r.Share > 0:
		return fmt.Errorf("%s, and the rule has share %d: its keys have no budgets of their own, of which to owe", r.Charge, r.Share)
	case r.holds():
		return fmt.Errorf("%s, and the rule has a limit of units in use: a call that is denied uses none", r.Charge)
	}
	return nil
}

// checkGrace checks the grace.
func (r *Rule) checkGrace() error {
	if r.Grace == "" {
		return nil
	}
	if _, err := percentOf(r.Grace); err != nil {
		return err
	}
	if r.Share > 0 {
		return fmt.Errorf("%s, and the rule has share %d: its keys have no limits of their own, of which to give a grace", r.Grace, r.Share)
	}
	if !r.Allow && r.checkLimit() == nil && len(r.Plans)+len(r.Overrides) == 0 && r.LimitFrom == "" && !limits.Counts(r.Limit) {
		return errors.New("the rule's limit has no units, of which to give a grace")
	}
	return nil
}
