package policy

import (
	"slices"

	"github.com/weir-go/ratelimit"
	"github.com/weir-go/ratelimit/stats"
)

// Charge is one rule's charge for a request.
type Charge struct {
	Rule  int              // the index of its Budget
	Key   string           // the budget's key; it may be a secret
	Plan  string           // the plan of the limit, or ""
	Cost  int              // the units to charge
	Limit *ratelimit.Limit // the key's limit; it must not be changed
}

// Charges are the charges of a request, one for each rule that applies.
type Charges struct {
	List []Charge // in the order of the rules; it must not be changed
	Bare bool     // the rules' own costs and shadows play no part

	// The results of the rules.
	results []stats.RuleDecision // one for each charge, if there is a hook; it may keep them
	denied  []int                // the charges that a rule, maybe a shadow, has denied
	shadows bool                 // one of the rules is a shadow
}

// clear forgets the request.
func (c *Charges) clear() {
	clear(c.List)
	c.List, c.results, c.denied, c.shadows, c.Bare = c.List[:0], nil, c.denied[:0], false, false
}

// add adds a charge for a rule, and returns it. The memory behind the list is zero.
func (c *Charges) add(rule int) *Charge {
	n := len(c.List)
	c.List = slices.Grow(c.List, 1)[:n+1]
	c.List[n].Rule = rule
	return &c.List[n]
}

// drop takes the last charge out.
func (c *Charges) drop() {
	n := len(c.List) - 1
	c.List[n] = Charge{}
	c.List = c.List[:n]
}

// of returns the charge of a rule that applies, nil for another.
func (c *Charges) of(rule int) *Charge {
	if i, ok := c.position(rule); ok {
		return &c.List[i]
	}
	return nil
}

// record records the decision of a rule.
func (c *Charges) record(rule int, d *ratelimit.Decision, spent bool) {
	i, ok := c.position(rule)
	if !ok {
		return
	}
	if i < len(c.results) {
		r := &c.results[i]
		r.Decision, r.Spent, r.Told = *d, spent, true
	}
	if !d.Allowed && !slices.Contains(c.denied, i) {
		c.denied = append(c.denied, i)
	}
}

// answer records the decision of a layer. An error is recorded for all rules: if a rule has not answered because of it,
// nothing is noted. That the cost is above the capacity of the rule's own limit is an answer.
func (c *Charges) answer(rule int, d *ratelimit.Decision, spent bool, err error) {
	if err == nil || d.Allowed || d.RetryAfter > 0 || c.exceeds(rule, d.Limit) {
		c.record(rule, d, spent)
	}
}

func (c *Charges) exceeds(rule int, limit ratelimit.Limit) bool {
	ch := c.of(rule)
	return ch != nil && ch.Cost > limit.Capacity()
}

// position returns where the charge of a rule is.
func (c *Charges) position(rule int) (int, bool) {
	if len(c.List) > fewCharges {
		return slices.BinarySearchFunc(c.List, rule, func(ch Charge, rule int) int { return ch.Rule - rule })
	}
	for i := range c.List {
		if c.List[i].Rule == rule {
			return i, true
		}
	}
	return 0, false
}

// fewCharges is the maximum number of charges that are searched one by one, which is faster than a map.
const fewCharges = 8
