// Package follow lets the reservation of a limiter that decides by another one wait as the other's reservation does.
package follow

import "context"

// Wait makes a *ratelimit.Reservation wait by a function, instead of sleeping out its delay. Package ratelimit sets it; it is called
// before the reservation is returned to its caller.
var Wait func(reservation any, wait func(context.Context) error)
