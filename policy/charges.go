package policy

import (
	"errors"
	"slices"

	"github.com/weir-go/ratelimit"
)

// Charge is what one rule asks of one request.
type Charge struct {
	Rule  int              // the index of its Budget
	Key   string           // of the budget; it may be a secret
	Plan  string           // the plan that the limit comes from, else ""
	Cost  int              // what to charge
	Limit *ratelimit.Limit // in force for the key; it must not be changed
}

// Charges is what a request asks for: one charge for each rule that applies, in the order
// of the rules. A Decider reads it, and may tell what each rule said.
type Charges struct {
	list []Charge
	told []RuleDecision // as many as list, if somebody wants to know; whoever is told may keep them
	bare bool
}

// Bare reports that the charges are about budgets as such, whatever their rules charge by themselves and whether
// they are shadows.
func (c *Charges) Bare() bool { return c.bare }

// clear forgets the request.
func (c *Charges) clear() {
	clear(c.list)
	c.list, c.told, c.bare = c.list[:0], nil, false
}

// add adds a charge for a rule, and returns it. What lies behind the list is zero.
func (c *Charges) add(rule int) *Charge {
	n := len(c.list)
	c.list = slices.Grow(c.list, 1)[:n+1]
	c.list[n].Rule = rule
	return &c.list[n]
}

// drop takes the last charge out.
func (c *Charges) drop() {
	n := len(c.list) - 1
	c.list[n] = Charge{}
	c.list = c.list[:n]
}

// Append appends the indices of the rules that apply.
func (c *Charges) Append(which []int) []int {
	for i := range c.list {
		which = append(which, c.list[i].Rule)
	}
	return which
}

// Of returns the charge of a rule that applies, nil for another.
func (c *Charges) Of(rule int) *Charge {
	if i, ok := c.position(rule); ok {
		return &c.list[i]
	}
	return nil
}

// Tell takes note of what a rule said. It does nothing if nobody wants to know.
func (c *Charges) Tell(rule int, d ratelimit.Decision, spent bool) { c.tell(rule, &d, spent) }

func (c *Charges) tell(rule int, d *ratelimit.Decision, spent bool) {
	if i, ok := c.position(rule); ok && i < len(c.told) {
		r := &c.told[i]
		r.Decision, r.Spent, r.Told = *d, spent, true
	}
}

// TellEvent is Tell with what a layer of a stack tells of a decision. An error is told to all layers: if a
// rule has not answered because of it, nothing is noted. A cost above the capacity of the rule's own
// limit is an answer.
func (c *Charges) TellEvent(rule int, e ratelimit.Event[*Charges]) { c.tellEvent(rule, &e) }

func (c *Charges) tellEvent(rule int, e *ratelimit.Event[*Charges]) {
	if e.Err == nil || e.Decision.Allowed || e.Decision.RetryAfter > 0 ||
		errors.Is(e.Err, ratelimit.ErrExceedsLimit) && e.Cost > e.Decision.Limit.Capacity() {
		c.tell(rule, &e.Decision, e.Spent)
	}
}

// position returns where the charge of a rule is.
func (c *Charges) position(rule int) (int, bool) {
	if len(c.list) > fewCharges {
		return slices.BinarySearchFunc(c.list, rule, func(ch Charge, rule int) int { return ch.Rule - rule })
	}
	for i := range c.list {
		if c.list[i].Rule == rule {
			return i, true
		}
	}
	return 0, false
}

// fewCharges is how many charges are looked at one by one, which is faster than a search.
const fewCharges = 8
