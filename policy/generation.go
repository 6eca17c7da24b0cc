package policy

import (
	"context"
	"errors"
	"reflect"
	"slices"
	"time"

	"github.com/weir-go/ratelimit"
	"github.com/weir-go/ratelimit/policy/internal/match"
)

// generation is a set in force. It does not change.
type generation struct {
	set      *Set
	number   uint64
	loadedAt time.Time
	rules    []*rule
	names    []string
	index    *match.Index  // finds the rules by their numbers, and the replacements by the numbers after those
	replaces []replacement // in the rules' order
	decider  *decider      // nil if there are no rules
	notifies bool          // whether a rule has thresholds
	settles  bool          // whether a rule has Actual
	graces   bool          // whether a rule has Grace
	always   bool          // whether a rule has Charge
	dated    bool          // whether a rule or an override has From or Until
	left     []left        // the limiters of earlier sets
}

// follows takes over the limiters of the previous set.
func (g *generation) follows(last *generation) {
	now := make(map[string]int, len(g.rules))
	for i, r := range g.rules {
		now[r.id] = i
	}
	for i, r := range last.rules {
		l := last.decider.limiters[i]
		k, stays := now[r.id]
		if stays && same(g.decider.limiters[k], l) {
			if f, ok := l.(interface{ Refresh(keys ...string) }); ok && !r.sameLimits(g.rules[k]) {
				f.Refresh() // the limiter still has the limits of earlier sets' charges
			}
		} else if f, ok := l.(flusher); ok {
			g.left = append(g.left, left{f, g.loadedAt})
		}
	}
	for _, l := range last.left {
		if g.loadedAt.Sub(l.at) < remembered {
			g.left = append(g.left, l)
		}
	}
}

// same reports whether two limiters are the same. It returns false if they cannot be compared.
func same(a, b ratelimit.Limiter[string]) bool {
	return reflect.ValueOf(a).Comparable() && reflect.ValueOf(b).Comparable() && a == b
}

// sameLimits reports whether two rules have the same limits, without attributes of LimitFrom.
func (c *rule) sameLimits(other *rule) bool {
	return c.limit == other.limit && slices.Equal(c.others(), other.others())
}

// inMemory reports whether the budgets are in [Memory].
func (g *generation) inMemory() bool { return g.decider != nil && g.decider.memory }

// flusher is a limiter with units for this process.
type flusher interface {
	Flush(ctx context.Context) error
}

// left is a limiter of an earlier set, and the time when it was replaced.
type left struct {
	flusher
	at time.Time
}

// remembered is how long limiters of earlier sets are still flushed.
// After some seconds, leases have given their units back by themselves.
const remembered = time.Minute

// position returns the rule's index with an id, or -1 if there is none.
func (g *generation) position(id string) int {
	return slices.IndexFunc(g.rules, func(r *rule) bool { return r.id == id })
}

// flush makes the limiters give back this process's units, and waits until they are back.
func (g *generation) flush(ctx context.Context) error {
	var errs []error
	if g.decider != nil {
		for _, l := range g.decider.limiters {
			if f, ok := l.(flusher); ok {
				errs = append(errs, f.Flush(ctx))
			}
		}
	}
	for _, l := range g.left {
		errs = append(errs, l.Flush(ctx))
	}
	return errors.Join(errs...)
}
