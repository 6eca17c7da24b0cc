// Package follow lets the reservation of a limiter that decides by another one wait as the other's reservation does.
package follow

import "context"

// Wait makes a *ratelimit.Reservation wait by a function, instead of sleeping out its delay. Package ratelimit sets it; it is called
// before the reservation is returned to its caller.
var Wait func(reservation any, wait func(context.Context) error)

// Moves reports whether a *ratelimit.Reservation has a delay, and may wait for less or more: it is one in memory, or waits by a function.
// Package ratelimit sets it.
var Moves func(reservation any) bool

// Inner makes a *ratelimit.Reservation wait as the reservation that it stands for, if that one can move.
func Inner[R interface {
	Wait(ctx context.Context) error
}](reservation, inner R) {
	if Moves(inner) {
		Wait(reservation, inner.Wait)
	}
}
