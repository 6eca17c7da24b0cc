package ratelimit

import (
	"errors"
	"fmt"
	"time"
)

// Limiters return these errors. Each is wrapped, with the figures behind it: test with [errors.Is].
var (
	// ErrInvalidLimit is returned for a [Limit] that cannot be enforced exactly. The text names the field and the figure.
	ErrInvalidLimit = errors.New("ratelimit: invalid limit")

	// ErrExceedsLimit is returned for a cost above [Limit.Capacity], which can never pass.
	ErrExceedsLimit = errors.New("ratelimit: cost exceeds the limit")

	// ErrNegativeCost is returned for a cost below zero. To give budget back, use [Reservation.Settle] or [Keyed.Adjust].
	ErrNegativeCost = errors.New("ratelimit: negative cost")

	// ErrInvalidKey is returned for a key that does not equal itself, for example a
	// NaN, or cannot be compared, for example a slice in an interface.
	ErrInvalidKey = errors.New("ratelimit: invalid key")

	// ErrTableFull is returned for a new key in a full table without a fresh key: see [RefuseNew].
	ErrTableFull = errors.New("ratelimit: key table full")

	// ErrLimited is returned if a Wait fails, but not because of its deadline: a leaky bucket's
	// queue is full, too many calls wait, or it is unknown when the cost would be allowed.
	ErrLimited = errors.New("ratelimit: limited")

	// ErrBlocked is returned for a cost above 0 under [Blocked]. It is an [ErrExceedsLimit] too.
	ErrBlocked error = blockedError{}

	// ErrLost is returned if a call no longer holds its units under a [Concurrent] limit,
	// or its slots in a semaphore. Their hold has passed, or they were given back.
	ErrLost = errors.New("ratelimit: units are no longer held")

	// ErrUnavailable is returned if an engine could not decide, because its store is down, slow or full. It never comes from memory.
	ErrUnavailable = errors.New("ratelimit: unavailable")

	// ErrUnanswered is returned if a store did not answer an engine's call. It may have charged the cost, or may charge
	// it yet. A call whose error does not wrap ErrUnanswered has charged nothing. It never comes from memory.
	ErrUnanswered = errors.New("ratelimit: sent and not answered, so it may have been charged")
)

// blockedError is the type of [ErrBlocked], which makes it an [ErrExceedsLimit].
type blockedError struct{}

func (blockedError) Error() string { return "ratelimit: blocked" }

func (blockedError) Is(target error) bool { return target == ErrExceedsLimit }

// These types format their messages only when a caller reads them. So a banned
// client, or one with too large a request, costs no more than a denied one.

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

// LateError is returned if a call would have to wait too long: a Wait beyond its deadline, or
// a client's request beyond a MaxWait or a deadline. It wraps [context.DeadlineExceeded] or
// [ErrLimited]. Its text is the same for all such calls under a limit. [errors.As] finds it.
type LateError struct {
	Package string        // the text begins with it; empty if the text names no package
	Limit   Limit         // the limit under which the call waits; zero if a server demands the wait
	After   time.Duration // see RetryAfter
	Reason  error         // context.DeadlineExceeded or ErrLimited
}

// RetryAfter returns how long after the error the same call could succeed.
func (e *LateError) RetryAfter() time.Duration { return e.After }

// Unwrap returns the reason.
func (e *LateError) Unwrap() error { return e.Reason }

func (e *LateError) Error() string {
	text := e.Reason.Error() + ": the call would have to wait for longer than it may"
	if e.Package != "" {
		text = e.Package + ": " + text
	}
	if e.Limit != (Limit{}) {
		text += ", under " + e.Limit.String()
	}
	return text
}

// layerError is one stack layer's error.
type layerError struct {
	layer int
	err   error
	over  overrun   // if the request can never be allowed: the layer's excessive cost
	more  []overrun // other layers with an excessive cost
}

// overrun is a cost above a layer's maximum.
type overrun struct {
	limit int // the layer's place in Limits
	cost  int
}

// EachOverrun calls f for each layer whose capacity the request's cost exceeds, with the layer's place in Limits and the cost
// charged to it. Package failover calls it on a secondary's error, to find out whether the primary could allow the request.
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

// errDiscarded replaces an error if the caller needs only the yes or no and
// no observer is called: making the error would take longer than the refusal.
var errDiscarded = errors.New("ratelimit: an error that is not reported")
