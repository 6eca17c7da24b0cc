package ratelimit

import (
	"context"
	"errors"
	"fmt"
	"math"
	"time"

	"github.com/weir-go/ratelimit/internal/merge"
	"github.com/weir-go/ratelimit/internal/meter"
)

// charge is one decision's cost to one account, and the account's offer.
//
// It is the sum over the account's enforcing layers. For example, if 5 units are left, two layers with 3 each are denied,
// although each alone would pass. A shadow layer has its own charge, because its cost must not make an enforcing layer fail.
//
// A charge begins without a lock. Its account is locked before check or preview, and stays locked until the charge is
// committed or refused and its decision is filled in. So the offer still holds when it is accepted, and the decision
// describes the state after it.
type charge struct {
	a *account // nil if the key is not tracked
	p *plan

	// The cost is own + shares × the caller's cost. The parts serve to compute the largest
	// fitting cost of the caller, and to settle the charge when the caller's real cost is known.
	cost       int64   // to be spent
	overflowed bool    // the cost is too large to count
	own        int64   // the costs of layers with their own cost
	shares     int64   // layers with the caller's cost
	first      int     // the index of this charge's first member
	unseen     *unseen // if a is nil: the key's record
	shared     bool    // all requests share the account

	m       meter.Moment // the decision's instant
	o       meter.Offer  // the account's offer
	never   bool         // the cost can never be spent
	checked bool         // the account made the offer and recorded m; otherwise the offer is a preview
	spent   bool         // the account has spent it
	passes  bool         // the call arrived before the line's first, so the offer comes before the line
	keep    meter.Keep   // the part of the spending that may still change
	viewed  meter.State  // the state used by preview
}

// begin makes c the charge of a member's account. It sets each field by itself: an assignment of the whole struct takes
// more time than the rest of sum.
func (c *charge) begin(a *account, p *plan, u *unseen, first int) {
	c.a, c.p, c.unseen, c.first = a, p, u, first
	c.cost, c.own, c.shares = 0, 0, 0
	c.overflowed, c.checked, c.spent, c.never, c.passes = false, false, false, false, false
}

// add adds the cost of one more layer: its own, or the caller's. A sum stops at the largest number instead of overflowing,
// and sets overflowed. Such a cost is above every capacity, even if the capacity is the largest number itself.
func (c *charge) add(amount int64, own bool) {
	if own {
		c.own = meter.Add(c.own, amount)
	} else {
		c.shares++
	}
	c.overflowed = c.overflowed || c.cost > math.MaxInt64-amount
	c.cost = meter.Add(c.cost, amount)
}

// check gets an offer from the account and records the reading, so the key's time never goes
// back behind it. If the limit has changed, check puts the key under the newer limit. The
// account may have a newer one already, from a quicker decision. The caller holds the lock.
func (c *charge) check(reading int64, q *request) {
	if c.a == nil {
		c.preview(reading, q)
		return
	}
	c.a.adopt(c.p, reading)
	c.p, c.checked = c.a.plan, true
	if c.m = c.a.arrive(reading); !c.trivial() {
		switch t, l := q.first, c.a.State.Line(); {
		case l == nil || q.number == 0:
		case t != nil && l == t.Line && l.First() == &t.Turn && t.Cost == c.cost:
			c.o = c.p.OfferFirst(c.a.State, c.m)
			c.o.Changes = c.a.changes
			return
		case l.First().Number > q.number:
			// The call is the oldest here, too, so it comes first. A place at this line's end would
			// deny the call now, and would later put it at the head. Then the line left behind would
			// deny it for the same reason, and the call would move back and forth without end.
			c.o, c.passes = c.p.OfferBefore(c.a.State, c.m, c.cost), true
			c.o.Changes = c.a.changes
			return
		}
		c.o = c.a.offer(c.m, c.cost, q.ahead(c.p))
	}
}

// skip excludes the account from a decision after another account's denial.
func (c *charge) skip(reading int64) {
	c.m = meter.Moment{Reading: reading, Now: reading}
	c.o, c.never, c.checked = c.m.Free(), false, false
}

// preview computes the account's offer for an answer without a charge. It works on a copy of the state, and
// records nothing in the account. An untracked key begins in the state of unseen.begin. The caller holds the lock.
func (c *charge) preview(reading int64, q *request) {
	c.checked = false
	if c.a != nil {
		c.viewed, c.m = c.a.view(c.p, reading, q.peek)
	} else {
		c.m.Reading = reading
		c.m.Now, c.viewed = c.unseen.begin(c.p, reading, q.peek)
	}
	if !c.trivial() {
		c.o = c.p.Offer(c.viewed, c.m, c.cost, q.ahead(c.p))
	}
}

// state returns the key's state. If the charge was checked, it is the account's
// present state, including later spending. Otherwise it is preview's state.
func (c *charge) state() meter.State {
	if c.checked {
		return c.a.State
	}
	return c.viewed
}

// trivial decides a cost if it needs no state, and reports whether it did. A cost of 0 is free. A plan
// without tracking allows every cost within its capacity. A cost above the capacity never passes.
func (c *charge) trivial() bool {
	if c.never = c.exceeds(); !c.never && c.cost > 0 && c.p.tracks() {
		return false
	}
	c.o = c.m.Free()
	return true
}

// exceeds reports whether the cost is more than the account can ever
// allow. A plan that counts nothing allows even an overflowed sum.
func (c *charge) exceeds() bool { return c.cost > c.p.capacity || c.overflowed && c.p.tracks() }

// err returns an error if the cost can never be spent.
func (c *charge) err() error {
	if !c.never {
		return nil
	}
	return c.p.exceeds(c.cost)
}

// fits reports whether the account allows the cost.
func (c *charge) fits() bool { return !c.never && !c.o.Denied(c.m.Reading) }

// commit spends the account's offer. The caller holds the lock, and has held it since the offer.
func (c *charge) commit(keep meter.Keep) {
	if c.a == nil || c.cost == 0 {
		return
	}
	if c.a.plan.Accept(&c.a.State, c.m.Now, c.o, c.cost, keep); c.passes {
		c.a.plan.Passed(&c.a.State)
	}
	c.a.use.allowed()
	c.spent, c.keep = true, keep
}

// refuse marks the account as throttled if it denied the charge. Another account's
// denial is no reason to keep this one longer. The caller holds the lock.
func (c *charge) refuse() {
	if c.a != nil && !c.fits() {
		c.a.use.denied()
	}
}

// try spends the cost if the account allows it. If the account can never allow the cost, nothing changes. The caller
// holds the lock.
func (c *charge) try(reading int64, q *request) {
	if c.exceeds() {
		c.preview(reading, &peekRequest)
		return
	}
	if c.check(reading, q); c.fits() {
		c.commit(q.keep)
	} else {
		c.refuse()
	}
}

// decision fills in the decision for this account alone. The caller holds the lock.
func (c *charge) decision(d *Decision) {
	if d.verdict(c.m, c.o); c.never {
		d.Allowed = false
	}
	if c.p.tracks() {
		c.p.standing(c.state(), c.m, d)
	} else {
		d.Limit, d.Remaining = c.p.limit, c.p.limit.Capacity()
	}
}

// room returns the largest cost of the caller within the remaining budget: the largest x
// with own + shares·x ≤ remaining. If no layer charges the caller's cost, every cost fits.
func (c *charge) room(remaining int) int {
	return merge.Room(int64(remaining), c.own, c.shares)
}

// next returns the time until a cost of 1 of the caller fits, or 0 if it never does. The caller holds the lock.
func (c *charge) next() time.Duration {
	cost := meter.Add(c.own, c.shares)
	if cost > c.p.capacity || !c.p.tracks() {
		return 0
	}
	return between(c.m.Reading, c.p.Earliest(c.state(), c.m.Now, cost))
}

// clear drops the references to users' data.
func (c *charge) clear() { c.a, c.p, c.viewed = nil, nil, meter.State{} }

// wait returns the time until the account allows the cost, or until the work leaves the queue of a leaky bucket.
func (c *charge) wait() time.Duration { return between(c.m.Reading, max(c.o.At, c.o.Retry)) }

// settlement returns the charge's settlement. The settlement calls debit to charge the key later.
func (c *charge) settlement(debit func(int64, *followed) error) settlement {
	sp := spendingOf(c.o, c.cost, c.keep)
	if c.o.At > c.m.Now {
		sp.number = meter.Arrival()
	}
	return settlement{a: c.a, sp: sp, shares: c.shares, own: c.own, debit: debit, holds: c.p.holds()}
}

// settlement is the part of a charge that is kept until the charge is settled: the spending, and how much of it depends on
// the caller's cost. It outlives the decision. The account may be dropped before the settlement; settleAt checks for that.
type settlement struct {
	a           *account
	sp          spending
	shares, own int64
	debit       func(int64, *followed) error
	follow      *followed // set if the request follows the key, else nil
	holds       bool      // under Concurrent: the settlement ends it, whatever the real cost
	home        home      // the key and its limiter, if the charge is booked for later
	// the room for waiting calls, if the layer is enforcing; nil for a shadow layer, because the work does not wait for it
	room *waitingRoom
}

// cost returns the charge for the caller's real cost. A layer's own cost is given back only if the real cost is zero.
// Otherwise the request was made and has used it up, even if the work cost little.
func (x *settlement) cost(actual int64) int64 {
	cost, over := meter.Mul(x.shares, actual)
	if over {
		cost = math.MaxInt64
	}
	if actual > 0 {
		cost = meter.Add(cost, x.own)
	}
	return cost
}

// settle replaces the charge by another cost.
func (x *settlement) settle(clock Clock, cost int64) error {
	if x.holds {
		cost = 0
	}
	if late := x.a.settleAt(clock, &x.sp, cost, x.follow); late > 0 {
		return unlessFull(x.debit(late, x.follow))
	}
	return nil
}

// stackReservation is a reservation of charges to several accounts.
type stackReservation struct {
	Reservation
	clock   Clock
	spent   []settlement
	actuals actuals // the real costs of layers with an Actual, in their settlements' order
}

func (x *stackReservation) settleLocal(given int64) error {
	own, err := x.actuals.read(int(given))
	if err != nil {
		for i := range x.spent {
			if x.spent[i].holds {
				_ = x.spent[i].settle(x.clock, 0) // in memory it cannot fail
			}
		}
		return err
	}
	var errs []error
	for i := range x.spent {
		cost := x.spent[i].cost(given)
		for k, a := range x.actuals {
			if a.charge == i {
				cost = meter.Add(cost, own[k])
			}
		}
		errs = append(errs, x.spent[i].settle(x.clock, cost))
	}
	return errors.Join(errs...)
}

// actual is the real cost of a layer with an Actual.
type actual struct {
	charge, layer int // the indexes of the charge and of the layer
	cost          func() int
}

type actuals []actual

// read returns the layers' real costs in order, given the caller's real cost. If that is 0, nothing was done, and all are 0.
func (all actuals) read(given int) ([]int64, error) {
	if len(all) == 0 {
		return nil, nil
	}
	costs := make([]int64, len(all))
	for i, a := range all {
		if given <= 0 {
			break
		}
		if costs[i] = int64(a.cost()); costs[i] < 0 {
			return nil, &layerError{layer: a.layer, err: fmt.Errorf("the layer's Actual: %w", negativeCostError(int(costs[i])))}
		}
	}
	return costs, nil
}

func (x *stackReservation) extendLocal() bool {
	ok := true
	for i := range x.spent {
		if c := &x.spent[i]; c.holds && !c.a.extend(x.clock, &c.sp) {
			ok = ok && c.room == nil // a lapsed shadow ends no work
		}
	}
	return ok
}

func (x *stackReservation) await(ctx context.Context, latest time.Time) error {
	var all []awaited
	for i := range x.spent {
		if c := &x.spent[i]; c.room != nil {
			all = append(all, awaited{c.a, &c.sp, c.home, c.room})
		}
	}
	return awaitAll(ctx, x.clock, latest, all...)
}
