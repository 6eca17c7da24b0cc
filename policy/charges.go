package policy

import (
	"slices"

	"github.com/weir-go/ratelimit"
	"github.com/weir-go/ratelimit/policy/internal/limits"
	"github.com/weir-go/ratelimit/policy/internal/notices"
	"github.com/weir-go/ratelimit/stats"
)

// charges are a request's charges, one for each applying rule.
type charges struct {
	List []charge // in the rules' order; it must not be changed
	Bare bool     // whether to ignore the rules' own costs and shadows

	rules []*rule // the rules with a grace, to show results under; nil if no rule has one

	// For a settlement, if a rule settles:
	request Request // has the attributes to settle it at
	given   int     // the caller's real cost
	failed  []error

	// The rules' results:
	results []stats.RuleDecision // one for each charge, if there is a hook; it may keep them
	beside  []int                // charges of always charged rules, in addition to the stack's
	rest    []int                // charges of shadows for a reservation to settle
	denied  []int                // the charges denied by a rule, even a shadow
	shadows bool                 // whether one of the rules is a shadow

	// The keys' spending, if a rule sends notices of it:
	opens     *notices.Opens // nil if none does
	followed  []*rule        // the set's rules
	estimates bool           // whether the charges are estimates, to be settled later
	changes   []change
	corrected []corrected
	adjusted  *adjusted // an adjustment's answer, if the caller wants it
}

// clear forgets the request.
func (c *charges) clear() {
	clear(c.List)
	c.List, c.results, c.denied, c.shadows, c.Bare = c.List[:0], nil, c.denied[:0], false, false
	c.beside, c.rest = c.beside[:0], c.rest[:0]
	c.request, c.given, c.failed, c.rules = nil, 0, nil, nil
	c.opens, c.followed, c.estimates, c.adjusted = nil, nil, false, nil
	clear(c.changes)
	clear(c.corrected)
	c.changes, c.corrected = c.changes[:0], c.corrected[:0]
}

// append appends the rules that apply, without shared limits. A [ratelimit.Layered] calls it.
func (c *charges) append(which []int) []int {
	for i := range c.List {
		if c.List[i].Weight == 0 {
			which = append(which, c.List[i].Rule)
		}
	}
	return which
}

// WantsAnswers and TakeAnswer receive the results of a [ratelimit.Layered]: see answerTaker in its stack.go.
func (c *charges) WantsAnswers(allowed bool) bool { return c.results != nil || c.shadows || !allowed }

func (c *charges) TakeAnswer(rule int, d *ratelimit.Decision, spent bool, err error) {
	c.answer(rule, d, spent, err)
}

// add adds a charge for a rule, and returns it. The memory behind the list is zero.
func (c *charges) add(rule int) *charge {
	n := len(c.List)
	c.List = slices.Grow(c.List, 1)[:n+1]
	c.List[n].Rule = rule
	return &c.List[n]
}

// drop removes the last charge.
func (c *charges) drop() {
	n := len(c.List) - 1
	c.List[n] = charge{}
	c.List = c.List[:n]
}

// of returns a rule's charge, or nil if the rule does not apply.
func (c *charges) of(rule int) *charge {
	if i, ok := c.position(rule); ok {
		return &c.List[i]
	}
	return nil
}

// record records a rule's decision.
func (c *charges) record(rule int, d *ratelimit.Decision, spent bool) {
	i, ok := c.position(rule)
	if !ok {
		return
	}
	c.List[i].Empty = limits.Empty(d)
	if i < len(c.results) {
		r := &c.results[i]
		r.Decision, r.Spent, r.Answered = *d, spent, true
		if c.rules != nil {
			of := c.rules[rule]
			if r.Decision = of.grace.Show(*d); c.List[i].Empty && c.List[i].Cost == 0 && of.always() {
				r.Decision.NextAfter = d.NextAfter // the time after which the cost of 0 passes: see emptyIn
			}
		}
	}
	if !d.Allowed && !slices.Contains(c.denied, i) {
		c.denied = append(c.denied, i)
	}
}

// answer records a layer's decision. An error is recorded for all rules. If a rule has not answered because of the
// error, nothing else is recorded for it. An error for a cost above the capacity of the rule's own limit is an answer.
func (c *charges) answer(rule int, d *ratelimit.Decision, spent bool, err error) {
	if err == nil || d.Allowed || d.RetryAfter > 0 || c.exceeds(rule, d.Limit) {
		c.record(rule, d, spent)
	}
}

func (c *charges) exceeds(rule int, limit ratelimit.Limit) bool {
	ch := c.of(rule)
	return ch != nil && ch.Cost > limit.Capacity()
}

// position returns the index of a rule's charge.
func (c *charges) position(rule int) (int, bool) {
	if len(c.List) > fewCharges {
		return slices.BinarySearchFunc(c.List, rule, func(ch charge, rule int) int { return ch.Rule - rule })
	}
	for i := range c.List {
		if c.List[i].Rule == rule {
			return i, true
		}
	}
	return 0, false
}

// fewCharges is the maximum number of charges with a linear search faster than a map.
const fewCharges = 8

// change is the change of a key's spending by a call.
type change struct {
	known                 bool // whether the charge was made
	corrected             bool // whether the engine has answered its settlement or adjustment
	before                int64
	openBefore, openAfter int64
	open                  *notices.Open // the estimate until it is settled
}

// corrected is a settlement or an adjustment of a charge's key.
type corrected struct {
	charge charge
	notices.Change
}

// adjusted is the engine's answer to an adjustment of one key.
type adjusted struct {
	known bool                // whether the engine has answered
	spent int64               // the spending before the adjustment
	after *ratelimit.Decision // the key's state under the denying limit; nil if it has no spending
}

func (a *adjusted) answer(before int64, d *ratelimit.Decision) {
	if a.known = true; d != nil {
		after := *d
		a.spent, a.after = before, &after
	}
}
