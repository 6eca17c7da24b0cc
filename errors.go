package ratelimit

import "errors"

// The errors of this package. Each is returned wrapped, with the figures that
// caused it; test for them with [errors.Is].
var (
	// ErrInvalidLimit says that a [Limit] cannot be enforced exactly. The text
	// names the field and the figure.
	ErrInvalidLimit = errors.New("ratelimit: invalid limit")

	// ErrExceedsLimit says that a cost is above the limit's [Limit.Capacity], so
	// that it can never pass: do not retry.
	ErrExceedsLimit = errors.New("ratelimit: cost exceeds the limit")

	// ErrNegativeCost says that a cost was below zero. To give budget back, use
	// [Reservation.Settle] or [Keyed.Adjust].
	ErrNegativeCost = errors.New("ratelimit: negative cost")

	// ErrInvalidKey says that a key does not equal itself (a NaN, or a struct
	// that holds one) or cannot be compared at all (a slice in an interface), so
	// that it could never be found again.
	ErrInvalidKey = errors.New("ratelimit: invalid key")

	// ErrTableFull says that a new key was refused because [Options.MaxKeys]
	// others are tracked and none of them may be forgotten.
	ErrTableFull = errors.New("ratelimit: key table full")

	// ErrLimited says that [Keyed.Wait] gave up because the limit leaves no
	// place to wait for: a leaky bucket's queue is full.
	ErrLimited = errors.New("ratelimit: limited")
)
