package policy

import (
	"errors"
	"fmt"
	"iter"
	"slices"
	"strings"
	"time"

	"github.com/weir-go/ratelimit"
	"github.com/weir-go/ratelimit/internal/optional"
	"github.com/weir-go/ratelimit/policy/internal/joined"
)

// Saved returns an iterator over all keys, except fresh ones, under the rules in force, with their spending.
// Store them for [Policies.Restore] when the program starts again. For example, a monthly quota in memory then
// survives a deploy. The notes on [ratelimit.Keyed.Saved] apply. A Subject's Plan is empty. With another
// engine than [Memory], the iterator skips the budgets: they outlive the program in their store. It also skips
// the keys if a rule has Share. They have no budgets of their own, and their parts depend on waiting calls:
// these end with the program. Their one limit, a token bucket, is full after a restart, so all together are
// served at most one Burst more. If the Burst is a quota of days, keep such a rule's budgets on Redis.
func (p *Policies) Saved() iter.Seq2[Subject, ratelimit.Saved] {
	g := p.now()
	return func(yield func(Subject, ratelimit.Saved) bool) {
		for i, r := range g.rules {
			t, ok := g.decider.limiters[i].(*table)
			if !ok {
				continue
			}
			for key, saved := range t.Keyed.Saved() {
				values := joined.Values(key, len(r.parts))
				if joined.Key(values) != key || len(values) != len(r.parts) {
					continue // the key belongs to the rule's former Key
				}
				if !yield(Subject{Rule: r.Name, Key: values}, saved) {
					return
				}
			}
		}
	}
}

// Restore charges keys for the spending from [Policies.Saved], elapsed after it was saved. The notes on
// [ratelimit.Keyed.Restore] apply. Call it before the traffic begins. A renamed rule is found by its Budget.
//
// Restore skips a pair if its rule is not in force, if the rule has no such key, or if it is damaged. It joins
// their errors. Each error names a rule and the pair's position among that rule's pairs, from 0, but no key.
// With an engine other than [Memory], and for a rule with Share, the error wraps [errors.ErrUnsupported].
func (p *Policies) Restore(seq iter.Seq2[Subject, ratelimit.Saved], elapsed time.Duration) error {
	if seq == nil {
		return optional.Nil("policy: Restore: seq")
	}
	g := p.now()
	type pair struct {
		key   string
		saved ratelimit.Saved
	}
	of, unknown := make([][]pair, len(g.rules)), 0
	wrong := make([]int, len(g.rules))
	for s, saved := range seq {
		i := g.restored(s.Rule)
		switch {
		case i < 0:
			unknown++
		case len(s.Key) != len(g.rules[i].parts):
			wrong[i]++
		default:
			of[i] = append(of[i], pair{joined.Key(s.Key), saved})
		}
	}
	var errs []error
	if unknown > 0 {
		errs = append(errs, fmt.Errorf("policy: %d saved keys are of rules that are not in force", unknown))
	}
	for i, r := range g.rules {
		if wrong[i] > 0 {
			errs = append(errs, fmt.Errorf("policy: rule %q: %d saved keys have another number of values, want %d: %s", r.Name, wrong[i], len(r.parts), strings.Join(r.Key, ", ")))
		}
		if len(of[i]) == 0 {
			continue
		}
		t, ok := g.decider.limiters[i].(*table)
		if !ok {
			errs = append(errs, fmt.Errorf("policy: rule %q: its budgets cannot be restored: %w", r.Name, errors.ErrUnsupported))
			continue
		}
		err := t.Keyed.Restore(func(yield func(string, ratelimit.Saved) bool) {
			for _, each := range of[i] {
				if !yield(each.key, each.saved) {
					return
				}
			}
		}, elapsed)
		if err != nil {
			errs = append(errs, fmt.Errorf("policy: rule %q: %w", r.Name, err))
		}
	}
	return errors.Join(errs...)
}

// restored returns the index of the rule with saved budgets under a name, or -1 if there is none.
func (g *generation) restored(name string) int {
	if i := g.find(name); i >= 0 {
		return i
	}
	return slices.IndexFunc(g.rules, func(r *rule) bool { return !r.Allow && strings.EqualFold(r.id, name) })
}
