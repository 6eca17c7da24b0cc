// Package follow supports limiters that decide by another limiter: their reservations wait as the other limiter's do.
package follow

import "context"

// Wait makes a *ratelimit.Reservation wait by calling wait, instead of sleeping for its
// delay. Call it before the reservation is returned to the user. Package ratelimit sets it.
var Wait func(reservation any, wait func(context.Context) error)

// Moves reports whether a *ratelimit.Reservation's delay may change while it waits. The delay
// may change in memory, and if the reservation waits by a function. Package ratelimit sets it.
var Moves func(reservation any) bool

// Inner makes a *ratelimit.Reservation wait as its inner reservation does, if the inner delay may change.
func Inner[R interface {
	Wait(ctx context.Context) error
}](reservation, inner R) {
	if Moves(inner) {
		Wait(reservation, inner.Wait)
	}
}
