package policy

import (
	"slices"

	"github.com/weir-go/ratelimit"
	"github.com/weir-go/ratelimit/stats"
)

// Charge is what one rule asks of one request.
type Charge struct {
	Rule  int              // the index of its Budget
	Key   string           // of the budget; it may be a secret
	Plan  string           // the plan that the limit comes from, else ""
	Cost  int              // what to charge
	Limit *ratelimit.Limit // in force for the key; it must not be changed
}

// Charges is what a request asks for: one charge for each rule that applies, in the order of the rules. A [Decider] reads it,
// and notes in it what each rule said.
type Charges struct {
	list []Charge
	bare bool

	// What the rules have said.
	told    []stats.RuleDecision // one for each charge, if there is a hook; it may keep them
	denied  []int                // the charges that a rule, maybe a shadow, has denied
	shadows bool                 // one of the rules is a shadow
}

// Bare reports that the charges are about budgets, whatever their rules charge and whether they are shadows.
func (c *Charges) Bare() bool { return c.bare }

// clear forgets the request.
func (c *Charges) clear() {
	clear(c.list)
	c.list, c.told, c.denied, c.shadows, c.bare = c.list[:0], nil, c.denied[:0], false, false
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

// tell takes note of what a rule said.
func (c *Charges) tell(rule int, d *ratelimit.Decision, spent bool) {
	i, ok := c.position(rule)
	if !ok {
		return
	}
	if i < len(c.told) {
		r := &c.told[i]
		r.Decision, r.Spent, r.Told = *d, spent, true
	}
	if !d.Allowed && !slices.Contains(c.denied, i) {
		c.denied = append(c.denied, i)
	}
}

// TellEvent takes note of what a rule said: an engine calls it with what a layer of a stack tells of a decision.
func (c *Charges) TellEvent(rule int, e ratelimit.Event[*Charges]) {
	c.TakeAnswer(rule, &e.Decision, e.Spent, e.Err)
}

// WantsAnswers is for [ratelimit.Layered], which tells what each rule has said only if it is asked to.
func (c *Charges) WantsAnswers(allowed bool) bool { return c.told != nil || c.shadows || !allowed }

// TakeAnswer is for [ratelimit.Layered]. An error is told of all rules: if a rule has not answered because of it,
// nothing is noted. That the cost is above the capacity of the rule's own limit is an answer.
func (c *Charges) TakeAnswer(rule int, d *ratelimit.Decision, spent bool, err error) {
	if err == nil || d.Allowed || d.RetryAfter > 0 || c.exceeds(rule, d.Limit) {
		c.tell(rule, d, spent)
	}
}

func (c *Charges) exceeds(rule int, limit ratelimit.Limit) bool {
	ch := c.Of(rule)
	return ch != nil && ch.Cost > limit.Capacity()
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
