// Package held supports units that reservations hold until their calls end, for example those of
// ratelimit.Concurrent. It has the error of a call without an end, and the hold of a reservation.
package held

import (
	"context"
	"errors"
	"time"
)

// ErrNoEnd is every [NoEnd]: [errors.Is] finds it without an allocation.
var ErrNoEnd = errors.New("a call without an end")

// NoEnd is the error of a call that charges units and has no end at
// which to give them back, for example Take. [errors.As] finds it.
type NoEnd struct {
	Name string // of the limit; it may be empty
	Text string // the limit; empty if only the reservation is known
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

// Extend makes a *ratelimit.Reservation hold units for a time, which the function begins anew. Package ratelimit sets it; it is called
// before the reservation is returned to its caller.
var Extend func(reservation any, hold time.Duration, extend func(context.Context) error)

// Follow registers the inner reservations of a *ratelimit.Reservation that stands for them. To
// extend it then calls extend for each inner one that holds units, and extend calls its Extend.
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

// Hold returns the shortest time for which a *ratelimit.Reservation holds units unless it is extended, 0 if it holds none. Package
// ratelimit sets it.
var Hold func(reservation any) time.Duration
