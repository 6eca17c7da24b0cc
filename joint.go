package ratelimit

import (
	"context"
	"time"
)

// Joinable is a [Limiter] whose store can charge keys of several of its limiters at once: all or none. [All] puts it beside others
// of that store. Limiters of packages redislimit and sqllimit are Joinable.
type Joinable interface {
	Limiter[string]

	// Join returns what decides for these limiters at once, or why they cannot be decided together. One of them is the limiter
	// that it is called on; one limiter may come several times.
	Join(limiters []Joining) (Joint, error)
}

// Joining is a limiter in a stack, of one layer.
type Joining struct {
	Limiter Limiter[string]
	Global  bool // all requests have one key
}

// Joint decides for several limiters of one store. Its methods get the index that a limiter had in Join.
type Joint interface {
	// Limit returns the limit of a key: the limit of the request, or the limiter's if that is zero. It is an error if it is
	// invalid, or if the store cannot count it.
	Limit(limiter int, key string, ofRequest Limit) (Limit, error)

	// Decide charges all charges that are no shadows, or none, and fills in their results. After that it charges the shadows that
	// fit. The limits of all charges count something. Two charges have one key only if one of them is a shadow's. An error means that nothing
	// is charged, or that it is not known.
	//
	// With JointRequest.Settled, settle replaces the costs that were charged: it gets one for each charge, in order. It is not called after a denial.
	Decide(ctx context.Context, charges []Charge, q JointRequest) (settle func(costs []int) error, err error)

	// Adjust charges the costs whatever remains, or gives back those below 0: see [Keyed.Adjust].
	Adjust(ctx context.Context, charges []Charge) error

	// Report passes a decision to the limiter's observer, if it has one.
	Report(limiter int, e Event[string])
}

// JointRequest is how a joint decision is to be made. Later versions may add fields.
type JointRequest struct {
	Peek     bool          // nothing is to be charged
	Settled  bool          // the charge may be corrected afterwards
	Undone   bool          // if the caller leaves before the answer, the charge is given back
	MaxDelay time.Duration // of a leaky bucket's queue
}

// Charge is what a joint decision charges to one key of one limiter.
type Charge struct {
	Limiter int    // its index
	Key     string // it may be a secret
	Limit   Limit  // of the key; it counts something
	Cost    int
	Shadow  bool // it denies nothing

	// The results, which Decide fills in.
	Decided  bool          // the store has decided on it; not if another charge was denied before
	Decision Decision      // of this key alone, as it stands after the whole decision
	Due      time.Duration // until when the cost could be let out of a queue, if that is later than RetryAfter
	Err      error         // of a shadow: why it could not be decided
}
