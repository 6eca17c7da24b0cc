package ratelimit

import (
	"context"
	"time"
)

// Joinable is a [Limiter] whose store can charge several limiters' keys at once, all or none. [All] then puts it beside the
// store's other limiters. Packages redislimit and sqllimit make Joinable limiters. [New]'s limiters are decided together
// without it. Package ratelimittest contains a complete store as an example, and its test suite checks a Joinable.
type Joinable interface {
	Limiter[string]

	// Join returns the decider over these limiters, in the order of a stack's layers. One is the receiver. A
	// limiter appears once for each of its layers. If the limiters cannot decide together, for example because
	// one is on another server, the error gives the reason. If the store does not know a limiter's type, the
	// error wraps [errors.ErrUnsupported]. So a limiter around another one can have a Join, too, and still
	// decide alone. All calls Join once. It adds a hint to the error: package chain combines such limiters.
	Join(limiters []Joining) (Joint, error)
}

// Joining is one layer's limiter. Later versions may add fields.
type Joining struct {
	Limiter Limiter[string]
	Global  bool // the layer has one key, which is empty: Global made it, and AllOf does not pick it
}

// Joint decides on a stack's requests. Many goroutines may call its
// methods at the same time. An index refers to Join's limiters.
//
// The stack does the rest in the same way for all stores. It calls the layers' functions, refuses negative
// costs and costs above the capacity, adds up each key's costs, combines the decisions, and calls observers.
type Joint interface {
	// Limit returns a key's limit in one decision: the request's limit, or if that is zero, the
	// limiter's own. If the store cannot count the limit, the error wraps [ErrInvalidLimit]. If the
	// store cannot keep the key, the error wraps [ErrInvalidKey]. The plan is any value. The stack
	// passes it on in Charge.Plan, and Decide then counts by this limit, also after SetLimit.
	Limit(limiter int, key string, ofRequest Limit) (limit Limit, plan any, err error)

	// Decide charges all charges except shadows, or none, and fills in their results. Then it charges
	// each shadow if it fits. If a charge is denied, Decide may leave other charges undecided. Decide
	// must not use the charges after it has returned, unless the request is Settled.
	//
	// Each charge has a counting limit, and costs at most its capacity. Two charges have the same key
	// and limiter only if one is a shadow's. A charge under [Concurrent] comes only with Settled.
	//
	// If something may have been charged, the error wraps [ErrUnanswered] and
	// [ErrUnavailable], as for a Limiter. After any other error nothing was charged.
	//
	// If the request is Settled and allowed, settle replaces the costs. It is called at
	// most once, with a cost for each charge, in order. No cost is negative, and under
	// [Concurrent] it is 0. settle skips uncharged shadows, and handles the store's errors.
	Decide(ctx context.Context, charges []Charge, q JointRequest) (settle func(costs []int) error, err error)

	// Adjust charges the costs even if too little remains, and gives back costs below 0: see [Keyed.Adjust].
	Adjust(ctx context.Context, charges []Charge) error

	// Report passes a layer's decision to its limiter's observer, if there is one.
	Report(limiter int, e Event[string])
}

// JointRequest states how to make a joint decision. Later versions may add fields.
type JointRequest struct {
	Peek     bool          // nothing is charged; Decide fills in the results as if it were
	Settled  bool          // the charges may be corrected afterwards
	Undone   bool          // the caller waits: if its context ends before the answer, the charge is given back
	MaxDelay time.Duration // the longest delay in a leaky bucket's queue

	free bool // the cost is 0
}

// Charge is what a joint decision costs one key of one limiter. Later versions may add fields.
type Charge struct {
	Limiter int    // the limiter's index
	Key     string // it may be a secret, so no error may contain it
	Limit   Limit  // the key's limit, as Joint.Limit returned it
	Plan    any    // as Joint.Limit returned it with the limit
	Cost    int
	Shadow  bool // it denies nothing

	// Decide fills in the results.
	Decided  bool          // the store has decided on it
	Decision Decision      // this key's decision alone, after the whole decision
	Due      time.Duration // the time until the cost leaves a leaky bucket's queue, if later than RetryAfter
	Err      error         // of a shadow: why it was not decided

	// Extend restarts the units' hold under Concurrent, for [Reservation.Extend]. Decide sets it if the request is Settled
	// and the units are held. One function may do so for several charges, in one call to the store. Then only one charge
	// has it. Its error wraps [ErrLost] if an enforcing charge's units have lapsed. Several goroutines may call it.
	Extend func(ctx context.Context) error

	alone any           // the key, for a layer whose limiter is called alone
	hold  time.Duration // the hold of such a reservation's units
}
