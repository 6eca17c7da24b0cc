package policy

import (
	"context"
	"fmt"
	"time"

	"github.com/weir-go/ratelimit"
)

// nothing decides where there is no rule: it is never asked, since a request that no rule
// matches is answered before.
type nothing struct{}

func (nothing) Allow(*Charges, int) bool { return false }

func (nothing) Take(context.Context, *Charges, int) (ratelimit.Decision, error) {
	return ratelimit.Decision{}, fmt.Errorf("policy: %w: there is no rule", ratelimit.ErrUnavailable)
}

func (n nothing) Reserve(ctx context.Context, c *Charges, cost int, _ time.Duration) (*ratelimit.Reservation, error) {
	d, err := n.Take(ctx, c, cost)
	return ratelimit.NewReservation(d, nil), err
}
