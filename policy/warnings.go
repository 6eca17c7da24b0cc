package policy

import (
	"fmt"
	"maps"
	"slices"

	"github.com/weir-go/ratelimit"
)

// warnings returns what is valid in a set and surely a mistake.
func (p *parser) warnings(set *Set) (all []*Error) {
	rules := set.Complete()
	for i := range rules {
		r := &rules[i]
		r.neverPasses(func(field string, err error) {
			if len(all) < maxProblems {
				all = append(all, p.located(r.wrong(i, field, err)))
			}
		})
	}
	return all
}

// neverPasses reports the limits under which a rule's fixed cost can never pass.
func (r *Rule) neverPasses(report reporter) {
	if r.Disabled || r.Allow || r.Cost.Number == 0 {
		return
	}
	check := func(field string, l ratelimit.Limit) {
		if l.Algorithm != ratelimit.AlgorithmBlocked && r.Cost.Number > l.Capacity() {
			report(field, fmt.Errorf("the rule's cost of %d is above %d, the capacity of %v: no request can ever pass", r.Cost.Number, l.Capacity(), l))
		}
	}
	check("cost", r.Limit)
	for _, plan := range slices.Sorted(maps.Keys(r.Plans)) {
		check("plans."+plan, r.Plans[plan])
	}
	for j, o := range r.Overrides {
		check(fmt.Sprintf("overrides[%d]", j), o.Limit)
	}
}
