package redislimit

import (
	"context"
	"time"

	"github.com/weir-go/ratelimit"
)

// request is what a caller asks, one decision, and what was answered. What is sent refers to it, and
// may be read after the caller has left: a request serves once, and is never used again.
type request struct {
	store   *store
	call    call
	keys    []string
	charges []charge
	test    []any // what a test adds to the call
	reading int64
	allowed bool

	oneKey    [1]string
	oneCharge [1]charge
}

// one makes the request one of a single charge. Its store is the limiter's, unless it has one.
func (r *request) one(l *Limiter, key string, p *plan, cost int64, ahead time.Duration, op byte) {
	if r.store == nil {
		r.store = l.store
	}
	r.oneKey[0] = key
	r.oneCharge[0] = charge{plan: p, cost: cost, shares: 1}
	r.keys, r.charges = r.oneKey[:], r.oneCharge[:]
	if p.kind == kindLeaky || op == opKeep {
		r.charges[0].ahead = p.clampAhead(ahead)
	}
}

// run sends the decision, and reads the answer.
func (r *request) run(ctx context.Context, op byte) error {
	if err := r.store.together(r.keys); err != nil {
		return err
	}
	for c, tries := &r.call, 0; ; tries++ {
		r.test = r.store.testWords()
		r.prepare(c, op)
		reply, err := r.store.eval(ctx, c)
		if err != nil {
			return err
		}
		if err = r.answer(reply); err != errOutside || tries == maxOutside {
			return err
		}
		r.store.learn(reply)
		c = &call{undone: c.undone}
	}
}

// prepare makes the call, from which on the keys stay as they are.
func (r *request) prepare(c *call, op byte) {
	if len(r.charges) == 1 && r.charges[0].cost == 0 { // nothing is written: the key stays under the limit that it is under
		op = opPeek
	}
	c.script, c.keys, c.test = r.scriptFor(op), r.keys, r.test
	b := c.room[:0]
	if len(r.charges) > 1 {
		b = make([]byte, 0, headSize+askSize*len(r.charges))
	}
	b = head(b, op, len(r.charges))
	for i := range r.charges {
		b = r.charges[i].ask(b, op)
	}
	now := int64(0)
	for i := range r.charges {
		b, now = r.charges[i].plan.putDates(b, r.store, now)
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

// failed returns the error for a key that could not be read.
func (r *request) failed(f failure) error {
	for i := range r.charges {
		if c := &r.charges[i]; c.key == f.key {
			return f.err(c.plan.limit.Name)
		}
	}
	return f.err("")
}

// settlerFor returns how to settle a reservation: one of 0 is settled by charging. It
// returns nil if nothing was sent.
func (r *request) settlerFor(cost int) func(int) error {
	if len(r.charges) == 0 {
		return nil
	}
	if cost > 0 {
		return r.settler()
	}
	return r.adjuster()
}
