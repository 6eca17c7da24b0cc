package policy

import (
	"fmt"
	"maps"
	"slices"

	"github.com/weir-go/ratelimit"
)

// Warnings returns what is valid in a file and surely a mistake: a fixed cost above the capacity of a limit, so that no request can
// pass. It returns nothing for an invalid file.
func Warnings(data []byte) (all []*Error) {
	set, p, errs := parse(data, false)
	if len(errs) > 0 {
		return nil
	}
	rules := set.Complete()
	for i := range rules {
		r := &rules[i]
		r.neverPasses(func(field string, err error) {
			if len(all) < maxProblems {
				all = append(all, p.located(r.wrong(i, field, err)))
			}
		})
	}
	sortErrors(all)
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
