package ratelimit

import (
	"errors"
	"fmt"
)

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

	// ErrLimited says that a Wait gave up although no deadline was in the way: a
	// leaky bucket's queue is full, or a limiter denies without a time to wait for.
	ErrLimited = errors.New("ratelimit: limited")

	// ErrBlocked says that the key's limit is [Blocked], so that no cost above 0 can
	// pass. It is an [ErrExceedsLimit] too: errors.Is is true for both.
	ErrBlocked error = blockedError{}

	// ErrUnavailable says that an engine could not decide: its store is down,
	// slow, full or loading. Nothing is known about the key. The limiters of this
	// package, which are in memory, never return it.
	ErrUnavailable = errors.New("ratelimit: unavailable")

	// ErrUnanswered says that a call was sent to an engine's store and not answered: it may
	// have charged its cost, once, or not, or may do so yet. An error of an engine that does
	// not wrap it has charged nothing, and never will. The limiters of this package, which are
	// in memory, never return it.
	ErrUnanswered = errors.New("ratelimit: sent and not answered, so it may have been charged")
)

// blockedError is the type of [ErrBlocked], which makes it an [ErrExceedsLimit].
type blockedError struct{}

func (blockedError) Error() string { return "ratelimit: blocked" }

func (blockedError) Is(target error) bool { return target == ErrExceedsLimit }

// The types below make their texts only when these are read. A client who is banned, or asks for
// too much, may do so at any rate, and must not cost more than one who is denied.

// exceedsError is the error for a cost above the capacity: [ErrExceedsLimit], or [ErrBlocked]. It names
// the limit and the figures, and never the key, which may be a secret.
type exceedsError struct {
	limit Limit
	cost  int64
}

func (e *exceedsError) Unwrap() error {
	if e.limit.Algorithm == AlgorithmBlocked {
		return ErrBlocked
	}
	return ErrExceedsLimit
}

func (e *exceedsError) Error() string {
	name := ""
	if e.limit.Name != "" {
		name = fmt.Sprintf(" %q", e.limit.Name)
	}
	if e.limit.Algorithm == AlgorithmBlocked { // for which "cost 1 is above 0" would explain nothing
		return fmt.Sprintf("%v: the limit%s allows no cost above 0", ErrBlocked, name)
	}
	return fmt.Sprintf("%v%s: cost %d is above %d, the capacity of %v",
		ErrExceedsLimit, name, e.cost, e.limit.Capacity(), e.limit)
}

// negativeCostError is [ErrNegativeCost] with the cost.
type negativeCostError int

func (e negativeCostError) Unwrap() error { return ErrNegativeCost }

func (e negativeCostError) Error() string { return fmt.Sprintf("%v: %d", ErrNegativeCost, int(e)) }

// layerError is the error of one layer of a stack.
type layerError struct {
	layer int
	err   error
	over  overrun   // if the request can never be allowed: why the layer cannot allow it
	more  []overrun // of other layers that cannot either
}

// overrun is a cost above what a layer can ever allow.
type overrun struct {
	limit int // the layer's place in Limits
	cost  int
}

// EachOverrun tells each layer that can never allow the request, by its place in Limits, and the cost
// that it was asked for. Package failover asks for it, of what stands in, to tell whether the primary could allow it.
func (e *layerError) EachOverrun(f func(limit, cost int)) {
	if e.over.cost == 0 {
		return
	}
	f(e.over.limit, e.over.cost)
	for _, o := range e.more {
		f(o.limit, o.cost)
	}
}

func (e *layerError) Unwrap() error { return e.err }

func (e *layerError) Error() string { return fmt.Sprintf("layer %d: %v", e.layer, e.err) }

// keyError is the error of a layer's key function.
type keyError struct{ err error }

func (e *keyError) Unwrap() error { return e.err }

func (e *keyError) Error() string { return fmt.Sprintf("key: %v", e.err) }

// errUntold stands for an error where the caller needs only the yes or no, and nobody is told: to
// make the error would take longer than to refuse.
var errUntold = errors.New("ratelimit: an error that nobody is told of")
