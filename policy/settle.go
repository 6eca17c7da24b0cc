package policy

import (
	"context"
	"fmt"

	"github.com/weir-go/ratelimit"
	"github.com/weir-go/ratelimit/internal/follow"
	"github.com/weir-go/ratelimit/internal/held"
)

// settles reports whether a settlement of the rule's charge needs more than Settle's argument or the rule's cost.
func (c *rule) settles() bool { return c.Actual != "" || c.pricing.prices != nil }

// settledAs returns a reservation with the charges of inner. Its Settle calls settle.
func settledAs(inner *ratelimit.Reservation, settle func(actual int) error) *ratelimit.Reservation {
	res := ratelimit.NewReservation(inner.Decision, settle)
	held.Follow(res, func(ctx context.Context, r *ratelimit.Reservation) error { return r.Extend(ctx) }, inner)
	if inner.Delay > 0 {
		follow.Wait(res, inner.Wait)
	}
	return res
}

// real returns the real cost of a rule's charge when its reservation is settled.
func (c *charges) real(r *rule, ch *charge) int {
	ch.Real = c.given
	if ch.Fixed {
		ch.Real = ch.Cost
	}
	if r.Actual == "" {
		return ch.Real
	}
	n, err := r.actual.number(c.request)
	switch {
	case err == nil:
		ch.Real = n
	case missing(err) && (r.Optional || !ch.Fixed):
	default:
		ch.Real = ch.Cost
		c.failed = append(c.failed, fmt.Errorf("policy: rule %q: actual: %w", r.Name, err))
	}
	return ch.Real
}
