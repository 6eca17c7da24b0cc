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

// charge is the cost of one decision to one account, and the offer that the account makes.
//
// It is the sum over the enforcing layers that meet at the account: two layers that charge 3 each where 5 are left are denied,
// though each of them alone would pass. A shadow layer has a charge of its own, because its cost must not make an enforcing
// layer fail.
//
// A charge is begun without a lock. From check or preview on, its account is locked, and stays so until the charge has been
// committed or refused and its decision has been filled in. So the offer is true when it is accepted, and the decision
// describes the state after it.
type charge struct {
	a *account // nil if the key is not tracked
	p *plan

	// The cost is own + shares × the caller's. The parts are needed to compute which cost of the caller would fit, and to
	// settle the charge when the caller's cost is known.
	cost       int64   // to be spent
	overflowed bool    // the cost is more than can be counted
	own        int64   // of layers with a cost of their own
	shares     int64   // how many layers charge the caller's cost
	first      int     // the index of the first member that meets here
	unseen     *unseen // if a is nil: the record of the key
	shared     bool    // all requests meet at the account

	m       meter.Moment // when it was decided
	o       meter.Offer  // the account's offer
	never   bool         // the cost can never be spent
	checked bool         // the offer is the account's, and m is recorded; else it is a preview
	spent   bool         // the account has spent it
	passes  bool         // the offer comes before the key's line
	keep    meter.Keep   // the part of the spending that may still change
	viewed  meter.State  // the state that preview looked at
}

// begin makes it the charge of a member's account. Each field is set by itself: to write the struct as a whole costs more than
// the rest of summing up the charges.
func (c *charge) begin(a *account, p *plan, u *unseen, first int) {
	c.a, c.p, c.unseen, c.first = a, p, u, first
	c.cost, c.own, c.shares = 0, 0, 0
	c.overflowed, c.checked, c.spent, c.never, c.passes = false, false, false, false, false
}

// add adds the cost of one more layer: its own, or the caller's cost. Sums do not overflow but stop at the largest number, and
// overflowed reports that they did: such a cost is above any capacity, even the capacity of a limit which allows the largest
// number itself.
func (c *charge) add(amount int64, own bool) {
	if own {
		c.own = meter.Add(c.own, amount)
	} else {
		c.shares++
	}
	c.overflowed = c.overflowed || c.cost > math.MaxInt64-amount
	c.cost = meter.Add(c.cost, amount)
}

// check gets an offer from the account, and records the reading: from now on the key's time does not go back behind it. If the
// limit has changed, the key is put under the newer one, which is the account's if another decision was quicker. The caller
// holds the lock.
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
			// It is the oldest here, too. Asked at the end of the line it would be denied, go to the head of this line, be denied in the one that it has
			// left for the same reason, and go back, without end.
			c.o, c.passes = c.p.OfferBefore(c.a.State, c.m, c.cost), true
			c.o.Changes = c.a.changes
			return
		}
		c.o = c.a.offer(c.m, c.cost, q.ahead(c.p))
	}
}

// skip leaves the account out of a decision that another one has denied.
func (c *charge) skip(reading int64) {
	c.m = meter.Moment{Reading: reading, Now: reading}
	c.o, c.never, c.checked = c.m.Free(), false, false
}

// preview computes the account's offer, for an answer without a charge. It records nothing in the account, so its state is a
// copy. A key that is not tracked begins in the state that unseen.begin returns. The caller holds the lock.
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

// state returns the state of the key: the account's own if the charge was checked, so that it includes spending since then;
// else the state that preview looked at.
func (c *charge) state() meter.State {
	if c.checked {
		return c.a.State
	}
	return c.viewed
}

// trivial decides the cost if that can be done without the state, and reports whether it did. A cost of 0 is free, a plan that
// tracks nothing allows every cost within its capacity, and nothing above a capacity ever passes.
func (c *charge) trivial() bool {
	if c.never = c.exceeds(); !c.never && c.cost > 0 && c.p.tracks() {
		return false
	}
	c.o = c.m.Free()
	return true
}

// exceeds reports whether the cost is more than the account can ever allow. A sum that is too
// large to be counted is no matter to a plan that counts nothing.
func (c *charge) exceeds() bool { return c.cost > c.p.capacity || c.overflowed && c.p.tracks() }

// err returns why the cost can never be spent, if it cannot.
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

// refuse marks the account as throttled if it denied the charge. The others had room, and a denial by another layer is no
// reason to keep them longer. The caller holds the lock.
func (c *charge) refuse() {
	if c.a != nil && !c.fits() {
		c.a.use.denied()
	}
}

// try spends the cost if the account allows it. A cost that it can never allow changes nothing.
// The caller holds the lock.
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

// decision fills in the account's own decision, which does not depend on other layers. The caller holds the lock.
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

// room returns the largest cost of the caller that fits into the remaining budget: the largest x with own + shares·x ≤
// remaining. If no layer charges the caller's cost, any fits.
func (c *charge) room(remaining int) int {
	return merge.Room(int64(remaining), c.own, c.shares)
}

// next returns the time until there is room for a cost of 1 of the caller, 0 if there never is. The caller holds the lock.
func (c *charge) next() time.Duration {
	cost := meter.Add(c.own, c.shares)
	if cost > c.p.capacity || !c.p.tracks() {
		return 0
	}
	return between(c.m.Reading, c.p.Earliest(c.state(), c.m.Now, cost))
}

// clear drops the references that keep users' data alive.
func (c *charge) clear() { c.a, c.p, c.viewed = nil, nil, meter.State{} }

// wait returns how long the account takes to let the cost through: until the work leaves
// the queue of a leaky bucket, or until the cost is allowed at all.
func (c *charge) wait() time.Duration { return between(c.m.Reading, max(c.o.At, c.o.Retry)) }

// settlement returns the settlement of the charge, if debit charges its key.
func (c *charge) settlement(debit func(int64, *followed) error) settlement {
	sp := spendingOf(c.o, c.cost, c.keep)
	if c.o.At > c.m.Now {
		sp.number = meter.Arrival()
	}
	return settlement{a: c.a, sp: sp, shares: c.shares, own: c.own, debit: debit, holds: c.p.holds()}
}

// settlement is the part of a charge that is kept until it is settled: the spending, and how much of it depends on the caller's
// cost. It outlives the decision, and the account may have been dropped by then: settleAt checks that.
type settlement struct {
	a           *account
	sp          spending
	shares, own int64
	debit       func(int64, *followed) error
	follow      *followed    // by the request, else nil
	holds       bool         // under Concurrent: it ends, whatever the real cost
	home        home         // of a charge that is booked for later
	room        *waitingRoom // of an enforcing layer; nil for a shadow, which the work does not wait for
}

// cost returns the charge for the caller's real cost. The layer's own cost is given back only if the real cost is zero: a request
// that was made has used it up, however little the work behind it has cost.
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
	actuals actuals // of layers with an Actual, by the index of their settlement
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
	charge, layer int // the index of its charge, and the layer's
	cost          func() int
}

type actuals []actual

// read returns the real costs in order, for the caller's real cost: all are 0 if that is, since then nothing was done.
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
			ok = ok && c.room == nil // a shadow ends no work
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
