// Package held supports units that reservations hold until their calls end, as under
// ratelimit.Concurrent. It defines the error of a call without an end, and extends reservations' holds.
package held

import (
	"context"
	"errors"
	"time"
)

// ErrNoEnd matches every [NoEnd], so that [errors.Is] finds one without an allocation.
var ErrNoEnd = errors.New("a call without an end")

// NoEnd is the error of a call, for example Take, if it charges units
// and cannot give them back when the work ends. [errors.As] finds it.
type NoEnd struct {
	Name string // the limit's name; may be empty
	Text string // the limit as text; empty if only the reservation is known
}

// Is reports whether the error is [ErrNoEnd].
func (e *NoEnd) Is(target error) bool { return target == ErrNoEnd }

func (e *NoEnd) Error() string {
	if e.Text == "" {
		return "ratelimit: a limit holds units until the work has ended, and this call has no end at which they are given back: use Reserve"
	}
	name := ""
	if e.Name != "" {
		name = ` "` + e.Name + `"`
	}
	return "ratelimit: the limit" + name + " is " + e.Text + ", and this call has no end at which its units are given back: use Reserve"
}

// Extend makes a *ratelimit.Reservation hold units for the time hold. extend restarts that
// time. Call Extend before the reservation is returned to the user. Package ratelimit sets it.
var Extend func(reservation any, hold time.Duration, extend func(context.Context) error)

// Follow registers the inner reservations of a *ratelimit.Reservation. When the outer one is extended,
// it calls extend for each inner reservation with units, and extend calls the inner one's Extend.
func Follow[R any](reservation R, extend func(ctx context.Context, inner R) error, inner ...R) {
	shortest := time.Duration(0)
	var holding []R
	for _, x := range inner {
		if hold := Hold(x); hold > 0 {
			if holding = append(holding, x); shortest == 0 || hold < shortest {
				shortest = hold
			}
		}
	}
	if shortest == 0 {
		return
	}
	Extend(reservation, shortest, func(ctx context.Context) error {
		errs := make([]error, len(holding))
		for i, x := range holding {
			errs[i] = extend(ctx, x)
		}
		return errors.Join(errs...)
	})
}

// Hold returns the shortest time for which a *ratelimit.Reservation holds units
// unless it is extended, or 0 if it holds none. Package ratelimit sets it.
var Hold func(reservation any) time.Duration
