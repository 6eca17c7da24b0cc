package ratelimit

import (
	"math"
	"time"

	"github.com/weir-go/ratelimit/internal/meter"
)

// charge is what one decision asks of one account, the sum over the layers that meet
// there, and the offer that the account makes.
type charge struct {
	b *account // nil if the key is not tracked
	p *plan

	cost   int64 // to be spent
	over   bool  // it is more than can be counted
	own    int64 // the part of it that does not depend on the caller's cost
	shares int64 // how many layers charge the caller's cost
	seat   int   // of the first layer that meets here
	floor  int64 // if b is nil: the time before which the key may not be created

	m     meter.Moment
	o     meter.Offer
	never bool        // the cost can never be spent
	asked bool        // the offer is the account's, else it is an estimate
	spent bool        // the account has accepted it
	seen  meter.State // what the estimate is of
}

// begin makes it the charge of an account that a layer asks. Each field is set by itself:
// to write the struct as a whole costs more than the rest of gather.
func (c *charge) begin(a *ask, seat int) {
	c.b, c.p, c.seat, c.floor = a.b, a.p, seat, a.floor
	c.cost, c.own, c.shares = 0, 0, 0
	c.over, c.asked, c.spent, c.never = false, false, false, false
}

// add adds what one more layer asks.
func (c *charge) add(a *ask) {
	if a.own {
		c.own = meter.Add(c.own, int64(a.cost))
	} else {
		c.shares++
	}
	c.over = c.over || c.cost > math.MaxInt64-int64(a.cost)
	c.cost = meter.Add(c.cost, int64(a.cost))
}

// ask asks the account for an offer, and records the reading. The caller holds the lock.
func (c *charge) ask(reading int64, q request) {
	if c.b == nil {
		c.estimate(reading, q)
		return
	}
	c.b.adopt(c.p, reading)
	c.p, c.asked = c.b.plan, true
	if c.m = c.b.arrive(reading); c.weighs() {
		c.o = c.b.offer(c.m, c.cost, q)
	}
}

// estimate finds out what the account would offer, and spends nothing. A key that is
// not tracked is fresh. The caller holds the lock.
func (c *charge) estimate(reading int64, q request) {
	c.asked = false
	if c.b != nil {
		c.seen, c.m = c.b.view(c.p, reading, q)
	} else {
		c.m = meter.Moment{Reading: reading, Now: max(reading, c.floor)}
		c.seen = meter.State{At: c.m.Now}
	}
	if c.weighs() {
		c.o = c.p.Offer(c.seen, c.m, c.cost, q.ahead(c.p))
	}
}

// state returns what the key has spent.
func (c *charge) state() meter.State {
	if c.asked {
		return c.b.State
	}
	return c.seen
}

// weighs reports whether the state matters. A cost of 0 is free, a plan that tracks
// nothing allows what is within its capacity, and nothing above a capacity ever passes.
func (c *charge) weighs() bool {
	if c.never = c.exceeds(); !c.never && c.cost > 0 && c.p.tracks() {
		return true
	}
	c.o = c.m.Free()
	return false
}

// exceeds reports whether the cost is more than the account can ever allow.
func (c *charge) exceeds() bool { return c.cost > c.p.capacity || c.over && c.p.tracks() }

// err returns why the cost can never be spent, if it cannot.
func (c *charge) err() error {
	if !c.never {
		return nil
	}
	return c.p.exceeds(c.cost)
}

// fits reports whether the account allows the cost.
func (c *charge) fits() bool { return !c.never && !c.o.Denied(c.m.Reading) }

// accept spends what the account has offered. The caller holds the lock.
func (c *charge) accept(q request) {
	if c.b == nil || c.cost == 0 {
		return
	}
	c.b.plan.Accept(&c.b.State, c.m.Now, c.o, c.cost, q.keep)
	c.b.use.allowed()
	c.spent = true
}

// refuse tells the account if it was the one that denied. The caller holds the lock.
func (c *charge) refuse() {
	if c.b != nil && !c.fits() {
		c.b.use.denied()
	}
}

// try spends the cost if the account allows it. A cost that it can never allow changes nothing.
// The caller holds the lock.
func (c *charge) try(reading int64, q request) {
	if c.exceeds() {
		q.peek = true
		c.estimate(reading, q)
		return
	}
	if c.ask(reading, q); c.fits() {
		c.accept(q)
	} else {
		c.refuse()
	}
}

// answer fills in what the account has to say, whatever other layers say.
func (c *charge) answer(d *Decision) {
	if d.verdict(c.m, c.o); c.never {
		d.Allowed = false
	}
	if c.p.tracks() {
		c.p.standing(c.state(), c.m, d)
	} else {
		d.Limit, d.Remaining = c.p.limit, c.p.limit.Capacity()
	}
}

// room returns the largest cost of the caller that fits into what remains.
func (c *charge) room(remaining int) int {
	left := int64(remaining) - c.own
	switch {
	case left < 0:
		return 0
	case c.shares == 0:
		return math.MaxInt
	case c.shares == 1: // as it mostly is, and a division takes long
		return int(left)
	}
	return int(left / c.shares)
}

// clear drops what keeps users' data alive.
func (c *charge) clear() { c.b, c.p, c.seen = nil, nil, meter.State{} }

// wait returns how long the account takes to let the cost through.
func (c *charge) wait() time.Duration { return between(c.m.Reading, max(c.o.At, c.o.Retry)) }

// charges are what one decision asks of several accounts, in the order of the layers.
type charges []charge

func (x charges) clear() {
	for i := range x {
		x[i].clear()
	}
}

// of returns the first charge of an account, or none.
func (x charges) of(b *account) int {
	for i := range x {
		if x[i].b == b {
			return i
		}
	}
	return none
}

// estimate finds out what all accounts would offer, and spends nothing.
func (x charges) estimate(reading int64, q request) {
	for i := range x {
		x[i].estimate(reading, q)
	}
}

// longest returns how long the slowest of the accounts takes to let the cost through:
// until it has room, and the delay in its queue.
func (x charges) longest() (wait time.Duration) {
	for i := range x {
		wait = max(wait, x[i].wait())
	}
	return wait
}

// never returns the first charge whose account can never allow the cost, or nil.
func (x charges) never() *charge {
	for i := range x {
		if x[i].never {
			return &x[i]
		}
	}
	return nil
}

// settlements returns what is needed to settle what was spent.
func (x charges) settlements() (spent []settlement) {
	for i := range x {
		if c := &x[i]; c.spent {
			spent = append(spent, settlement{c.b, spendingOf(c.o, c.cost), c.shares, c.own})
		}
	}
	return spent
}

// settlement is what is needed to settle a charge.
type settlement struct {
	b           *account
	sp          spending
	shares, own int64
}

// settle settles the charge at what the caller's cost really was. The layer's own cost
// is given back only if that is nothing.
func (x *settlement) settle(clock Clock, actual int64) {
	cost, over := meter.Mul(x.shares, actual)
	if over {
		cost = math.MaxInt64
	}
	if actual > 0 {
		cost = meter.Add(cost, x.own)
	}
	x.b.settleAt(clock, x.sp, cost)
}
