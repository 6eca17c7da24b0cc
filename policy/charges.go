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
	list    []Charge
	answers []Answer // as many as list, if somebody wants to know
	bare    bool
}

// Bare reports that the charges are about budgets as such, whatever their rules charge by themselves and whether
// they are shadows.
func (c *Charges) Bare() bool { return c.bare }

// Answer is what one rule said.
type Answer struct {
	Decision ratelimit.Decision // the rule's own: whether it allows the cost, and what is left
	Spent    bool               // whether the rule was charged
	Told     bool               // whether the engine has told its answer at all
}

// clear forgets the request.
func (c *Charges) clear() {
	clear(c.list)
	clear(c.answers)
	c.list, c.answers, c.bare = c.list[:0], c.answers[:0], false
}

// expect makes room for an answer to each charge.
func (c *Charges) expect() {
	c.answers = slices.Grow(c.answers[:0], len(c.list))[:len(c.list)]
	clear(c.answers)
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
	if len(c.list) > fewCharges {
		return c.search(rule)
	}
	for i := range c.list {
		if c.list[i].Rule == rule {
			return &c.list[i]
		}
	}
	return nil
}

// fewCharges is how many charges are looked at one by one, which is faster than a search.
const fewCharges = 8

func (c *Charges) search(rule int) *Charge {
	if i, ok := c.position(rule); ok {
		return &c.list[i]
	}
	return nil
}

// Tell takes note of what a rule said. It does nothing if nobody wants to know.
func (c *Charges) Tell(rule int, d ratelimit.Decision, spent bool) {
	if i, ok := c.position(rule); ok && i < len(c.answers) {
		c.answers[i] = Answer{Decision: d, Spent: spent, Told: true}
	}
}

// TellEvent is Tell with what a layer of a stack tells of a decision. An error is told to all layers: if a
// rule has not answered because of it, nothing is noted. A cost above the capacity of the rule's own
// limit is an answer.
func (c *Charges) TellEvent(rule int, e ratelimit.Event[*Charges]) {
	exceeds := errors.Is(e.Err, ratelimit.ErrExceedsLimit) && e.Cost > e.Decision.Limit.Capacity()
	if e.Err == nil || exceeds || e.Decision.Allowed || e.Decision.RetryAfter > 0 {
		c.Tell(rule, e.Decision, e.Spent)
	}
}

func (c *Charges) position(rule int) (int, bool) {
	return slices.BinarySearchFunc(c.list, rule, func(ch Charge, rule int) int { return ch.Rule - rule })
}
