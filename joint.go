package ratelimit

import (
	"context"
	"time"
)

// Joinable is a [Limiter] whose store can charge keys of several of its limiters at once, all or none. [All] then puts it beside
// other limiters of that store. Limiters of packages redislimit and sqllimit are Joinable. The limiters of [New] are decided together
// without it. The example of package ratelimittest is a complete store, whose test suite checks a Joinable.
type Joinable interface {
	Limiter[string]

	// Join returns the decider over these limiters, in the order of a stack's layers. One of them is the limiter
	// whose Join is called. A limiter appears once for each of its layers. If they cannot decide together, for
	// example because one is on another server, the error gives the reason. If the store does not know the type of
	// one, the error wraps [errors.ErrUnsupported]. So a limiter that wraps another one can have a Join, too, and
	// still decide alone. All calls Join once, and adds to its error that package chain combines such limiters.
	Join(limiters []Joining) (Joint, error)
}

// Joining is the limiter of one layer. Later versions may add fields.
type Joining struct {
	Limiter Limiter[string]
	Global  bool // made by Global and not picked by AllOf: the layer has one key, which is empty
}

// Joint decides on the requests of a stack. Many goroutines may call its methods at the same time. An index in the
// argument of Join identifies a limiter.
//
// The stack does the rest in the same way for all stores. It calls the layers' functions, refuses costs that are
// negative or above the capacity, adds up the costs of each key, combines the decisions, and calls observers.
type Joint interface {
	// Limit returns the limit of a key in one decision: the limit of the request, or if that is zero, the limiter's own. It is an
	// error, which wraps [ErrInvalidLimit], if the store cannot count it, and one that wraps [ErrInvalidKey] if it cannot keep the key.
	// The plan is any value with which Decide counts by this limit, also after SetLimit; it is passed on in Charge.Plan.
	Limit(limiter int, key string, ofRequest Limit) (limit Limit, plan any, err error)

	// Decide charges all charges except shadows, or none, and fills in their results. Then it charges each shadow that
	// fits. If one denies, Decide may leave other charges undecided. Decide must not use the charges after it has
	// returned, unless the request is Settled.
	//
	// Each charge has a limit that counts, and a cost of at most its capacity. Two charges have the same key of the
	// same limiter only if one of them is a shadow's. A charge of units under [Concurrent] comes only with Settled.
	//
	// An error means that nothing was charged. If that is not known, it wraps [ErrUnanswered] and [ErrUnavailable], as for a Limiter.
	//
	// If the request is Settled and allowed, settle replaces the costs: it is called at most once, with a cost for each charge, in
	// order, which is not negative, and 0 for one whose limit is [Concurrent]. Shadows that were not charged, and errors of the store,
	// are its own matter.
	Decide(ctx context.Context, charges []Charge, q JointRequest) (settle func(costs []int) error, err error)

	// Adjust charges the costs even if too little remains, and gives back costs below 0: see [Keyed.Adjust].
	Adjust(ctx context.Context, charges []Charge) error

	// Report passes the decision of a layer to the observer of its limiter, if it has one.
	Report(limiter int, e Event[string])
}

// JointRequest is the manner of a joint decision. Later versions may add fields.
type JointRequest struct {
	Peek     bool          // nothing is charged; Decide fills in the results that it would have
	Settled  bool          // the charges may be corrected afterwards
	Undone   bool          // the caller waits: if its context ends before the answer, the charge is given back
	MaxDelay time.Duration // the longest delay in the queue of a leaky bucket

	free bool // the cost is 0
}

// Charge is the cost of a joint decision to one key of one limiter. Later versions may add fields.
type Charge struct {
	Limiter int    // its index
	Key     string // it may be a secret, so no error may contain it
	Limit   Limit  // of the key, as Joint.Limit returned it
	Plan    any    // as Joint.Limit returned it with the limit
	Cost    int
	Shadow  bool // it denies nothing

	// Decide fills in the results.
	Decided  bool          // the store has decided on it
	Decision Decision      // of this key alone, as it stands after the whole decision
	Due      time.Duration // until the cost has left the queue of a leaky bucket, if that is later than RetryAfter
	Err      error         // of a shadow: why it was not decided

	// Extend begins the hold of units under Concurrent anew, for [Reservation.Extend]. Decide sets it if the request is Settled and
	// the units are held. If one function does so for several charges, one of them has it, so that a store needs a single call. Its
	// error wraps [ErrLost] if units have lapsed of a charge that is no shadow. Later calls may come from several goroutines.
	Extend func(ctx context.Context) error

	alone any           // the key, for a layer whose limiter is asked alone
	hold  time.Duration // of the units that such a limiter's reservation holds
}
