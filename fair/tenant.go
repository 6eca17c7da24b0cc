package fair

import "github.com/weir-go/ratelimit/internal/meter"

// tenant is one tenant's account.
type tenant[K comparable] struct {
	key    K
	weight uint64
	counts bool
	finish uint64 // the virtual time when the debt is paid; meaningful while the tenant counts
	rest   uint64 // a charged amount below weight, too small to move finish
	due    uint64 // the key among the debtors: finish, or less if the tenant has spent since

	barred   bool
	barredTo uint64 // the virtual time when an overrun's bar on the tenant ends

	tag  uint64 // in line: the virtual time when the debt will be paid, with the cost at the line's head
	line line   // its callers in Wait
	spot spot   // its place after a denial

	tracked    bool       // whether the tenant is in the table
	index      [kinds]int // its index in each heap, or −1
	known      bool       // whether the tenant was granted a cost, or came back after a denial
	next, prev *tenant[K]
	idleSince  int64
}

// spot is a tenant's place in line after a denial. Until the place lapses, the tenant keeps its turn, like a caller
// in Wait. When the turn comes, room of the burst is kept for the tenant. The kept room grows by the tenant's share
// until the tenant collects it, because a client coming back after whole seconds needs more than one cost at a time.
type spot struct {
	cost     int64  // the denied cost, or 0 for none
	kept     bool   // whether its turn has come and room is kept
	room     uint64 // the room kept for it, as of the virtual time since, in fractions of a unit
	since    uint64
	stranger bool // whether the tenant was not known before

	// A tenant with a deadline counts until then: it has a place, or it has savings and may call again.
	expires int64
	look    int64 // the tenant's rank in deadlines: expires, or less if the deadline has moved
}

// line is the queue of a tenant's callers in Wait, first come, first served.
type line struct {
	first, last *waiter
	costs       int64 // the sum of the costs behind the first
	waiting     int   // callers
}

// waiter is a caller in Wait.
type waiter struct {
	cost       int64
	next, prev *waiter
	keep       meter.Keep
	served     bool
	charge     *charge       // filled in unless nil
	err        error         // why the waiter will never be served
	wake       chan struct{} // receives a value when the waiter is served, fails, or comes first of all
}

func newTenant[K comparable](key K, weight uint64) *tenant[K] {
	return &tenant[K]{key: key, weight: weight, index: [kinds]int{-1, -1, -1}}
}

// inLine reports whether a tenant counts for a reason other than a debt.
func (t *tenant[K]) inLine() bool { return t.line.first != nil || t.index[byExpires] >= 0 }

// cost returns a tenant's cost in line.
func (t *tenant[K]) cost() int64 {
	if t.line.first != nil {
		return t.line.first.cost
	}
	return t.spot.cost
}

// charge is a tenant's spent cost, for its settlement.
type charge struct {
	meter.Spending
	changes uint32 // the budget's count of changes when the cost was spent
}
