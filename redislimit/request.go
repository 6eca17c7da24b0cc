package redislimit

import (
	"context"
	"slices"

	"github.com/weir-go/ratelimit"
	"github.com/weir-go/ratelimit/internal/meter"
)

// request is one decision of a caller, with its result. The call refers to the
// request, and may be read after the caller has left. So a request is used only once.
type request struct {
	store   *store
	call    call
	keys    []string
	charges []charge
	test    []any // further arguments of a test for the call
	reading int64
	allowed bool
	open    bool        // the charge is an open reservation
	instead *settlement // the booking to replace, before others; nil if there is none
	behind  bool        // the charge goes behind all bookings: callers of this process wait for some
	after   int64       // for opBetween: the charge comes no earlier
	follows bool        // the answer has the sums of open estimates
	opens   []int64     // the sums by key

	tentative string // not "" if a booking far ahead is to be tentative: the first part of its record
	record    string // of the tentative booking that was made, "" if none was
	shared    bool   // the key had other records

	oneKey    [1]string
	oneCharge [1]charge
}

// charge is a decision's part about one Redis key, with the key's reply.
type charge struct {
	plan   *plan
	key    int   // the key's index in the call
	cost   int64 // to be spent
	own    int64 // the part of the cost that does not depend on the caller's cost
	shares int64 // layers with the caller's cost
	ahead  int64 // how far ahead the charge may be booked
	shadow bool  // it is charged if it fits, and denies nothing

	failed  byte // why a shadow charge's key could not be read
	allowed bool // according to the script
	gen     uint32
	changes byte
	now     int64 // the key's reading

	// The key's state before the decision, as of now, in the script's reply. A log's spendings
	// stay on the server: then At is when the cost is spent, and N the counting units.
	state  meter.State
	newest int64 // the last booking's instant, or in a log the last spending's; 0 if there is none
	spent  int64 // of a log: the sum of its spendings, and its debt
	next   int64 // of a log, and before loose bookings: the instant when one more unit fits, if none remains
	// there is room before bookings; then state is the state after the
	// decision, and the next three fields count: see report in lua/gaps.lua
	loose bool
	gap   int64 // when the cost is spent; 0 if other keys determine it
	left  int64 // the remaining budget; above most if other keys determine it
	owes  int64 // the debt
	// of units in use: the owner, to settle and extend them by; state.N is their number, and state.M the sum of their ages
	owner   int64
	instead *settlement // see request
	behind  bool        // it goes behind all bookings, loose or not
	place   int64       // if no more can be booked ahead: the time when one more booking fits; else 0
	offer   meter.Offer
}

// run sends the decision, and reads the answer.
func (r *request) run(ctx context.Context, op byte) error {
	if err := r.store.together(r.keys); err != nil {
		return err
	}
	r.open = op == opOpen
	freed := false
	for c, tries := &r.call, 0; ; tries++ {
		r.test = r.store.testWords()
		r.prepare(c, op)
		reply, err := r.store.eval(ctx, c)
		if err != nil {
			return err
		}
		if err = r.answer(reply); err == nil && !r.allowed && op != opPeek && !freed {
			if freed = r.frees(ctx, c.deadline); freed {
				r.anew()
				c = &call{undone: c.undone, deadline: c.deadline}
				continue
			}
		}
		if err != errOutside || tries == maxOutside {
			return err
		}
		r.store.learn(reply)
		c = &call{undone: c.undone, deadline: c.deadline}
	}
}

// finish reads the answer to a call whose caller has left.
func (r *request) finish(c *call) error {
	reply, err := r.store.rest(c)
	if err != nil {
		return err
	}
	return r.answer(reply)
}

// anew drops the reply, for another attempt at the decision.
func (r *request) anew() {
	for i := range r.charges {
		c := &r.charges[i]
		*c = charge{plan: c.plan, key: c.key, cost: c.cost, own: c.own, shares: c.shares, ahead: c.ahead, shadow: c.shadow, owner: c.owner,
			instead: c.instead, behind: c.behind}
	}
}

// prepare makes the call. Afterwards the keys do not change.
func (r *request) prepare(c *call, op byte) {
	if len(r.charges) == 1 && r.charges[0].cost == 0 { // a Peek writes nothing, so the key stays under its present limit
		op = opPeek
	}
	c.script, c.keys, c.test = r.scriptFor(op), r.keys, r.test
	if r.follows {
		c.script, c.keys = following.decide, sumKeys(r.keys)
	}
	if r.tentative != "" {
		c.script, c.keys = tentatively.decide, []string{r.keys[0], recordsKey(r.keys[0])}
	}
	b := c.room[:0]
	if len(r.charges) > 1 {
		b = make([]byte, 0, headSize+chargeSize*len(r.charges))
	}
	b = head(b, op, len(r.charges))
	for i := range r.charges {
		b = r.charges[i].put(b, op)
	}
	now := int64(0)
	for i := range r.charges {
		b, now = r.charges[i].plan.putDates(b, r.store, now)
	}
	b = append(b, r.tentative...)
	if op == opBetween {
		b = put7(b, r.after)
	}
	c.payload = b
}

// conclude fills in the decision on a single key.
func (r *request) conclude(op byte, d *ratelimit.Decision) {
	c := &r.charges[0]
	if c.allowed && op != opPeek {
		c.spend()
	}
	c.decide(r.reading, d)
}

// failed returns the error for an unreadable key.
func (r *request) failed(f failure) error {
	for i := range r.charges {
		if c := &r.charges[i]; c.key == f.key {
			return f.err(c.plan.limit.Name)
		}
	}
	return f.err("")
}

// settlerFor returns a function to settle a reservation. Settling a reservation
// of 0 charges the real cost. If nothing was sent, settlerFor returns nil.
func (r *request) settlerFor(cost int) func(int) error {
	if len(r.charges) == 0 {
		return nil
	}
	if cost > 0 {
		return r.settler()
	}
	return r.adjuster()
}

// scriptFor returns the script for a decision.
func (r *request) scriptFor(op byte) *script {
	d := r.store.scripts.many
	if len(r.charges) == 1 && !r.charges[0].shadow {
		d = r.store.scripts.one[r.charges[0].plan.kind]
	}
	switch {
	case op == opPeek:
		return d.peek
	case r.instead != nil, r.behind: // these have no usual case
		return r.store.scripts.many.open
	case op == opOpen && slices.ContainsFunc(r.charges, func(c charge) bool { return c.plan.kind == kindToken }):
		return d.open
	case (op == opKeep || op == opOpen || op == opBetween) && r.charges[0].ahead > 0:
		return d.keep
	}
	return d.take
}

var hows = [...]byte{kindToken & 7: 1, kindLeaky & 7: 2, kindFixed & 7: 3, kindLog & 7: 4, kindCounter & 7: 5, kindCalendar & 7: 6, kindHeld & 7: 7}

// put appends a charge's request. The part for the usual case comes first: the key, the operation, the beginning of a usual
// state, and five figures of the kind's own.
func (c *charge) put(b []byte, op byte) []byte {
	p, how := c.plan, hows[c.plan.kind&7]
	if c.shadow {
		how = howShadow
	} else if c.cost == 0 && op != opPeek {
		how = howNothing
	} else if c.instead != nil {
		how = howBefore
	} else if c.behind {
		how = howBehind
	}
	b = append(b, byte(c.key+1), how, p.kind)
	b = put7(put7(b, p.units), p.per)
	figures := [5]int64{c.cost, p.units, p.per, c.owner}
	if p.isBucket() {
		figures = p.bucketFigures(c.cost)
	}
	if how == howBefore && p.kind != kindHeld {
		figures = c.instead.booked()
	}
	for _, n := range figures {
		b = put7(b, n)
	}
	return put7(put7(put7(put7(b, c.cost), c.ahead), p.capacity), p.since.Load())
}

// booked returns the figures of a booked charge.
func (s *settlement) booked() [5]int64 {
	return [5]int64{s.At, s.Cost, s.Part, int64(s.gen), 256*int64(s.plan.kind) + int64(s.changes)}
}

// bucketFigures are a cost's maximum debt to fit at, and its price. A
// cost of 0 fits at a larger debt, too: the general case decides it.
func (p *plan) bucketFigures(cost int64) [5]int64 {
	price, part := p.meter.Price(cost)
	room, frac := p.meter.Price(p.capacity)
	if room, frac = room-price, frac-part; frac < 0 {
		room, frac = room-1, frac+p.units
	}
	return [5]int64{room, frac, p.units, price, part}
}
