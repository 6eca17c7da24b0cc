package redislimit

import (
	"context"
	"time"

	"github.com/weir-go/ratelimit"
)

// session is one decision: what is asked, and what was answered. What is sent refers to it, and
// may be read after the caller has left: a session serves once, and is never used again.
type session struct {
	remote
	call    call
	keys    []string
	charges []charge
	test    []any // what a test adds to the call
	reading int64
	allowed bool

	oneKey    [1]string
	oneCharge [1]charge
}

// one makes the session one of a single charge. Its sender is the limiter's, unless it has one.
func (s *session) one(l *Limiter, key string, p *plan, cost int64, ahead time.Duration, op byte) {
	sender := s.sender
	if s.remote = l.remote; sender != nil {
		s.sender = sender
	}
	s.oneKey[0] = key
	s.oneCharge[0] = charge{plan: p, cost: cost, shares: 1}
	s.keys, s.charges = s.oneKey[:], s.oneCharge[:]
	if p.kind == kindLeaky || op == opKeep {
		s.charges[0].ahead = p.clampAhead(ahead)
	}
}

// run sends the decision, and reads the answer.
func (s *session) run(ctx context.Context, op byte) error {
	if err := s.sender.together(s.keys); err != nil {
		return err
	}
	for c, tries := &s.call, 0; ; tries++ {
		s.test = s.testWords()
		s.prepare(c, op)
		reply, err := s.sender.eval(ctx, c)
		if err != nil {
			return err
		}
		if err = s.answer(reply); err != errOutside || tries == maxOutside {
			return err
		}
		s.learn(reply)
		c = &call{undone: c.undone}
	}
}

// prepare makes the call, from which on the keys stay as they are.
func (s *session) prepare(c *call, op byte) {
	if len(s.charges) == 1 && s.charges[0].cost == 0 { // nothing is written: the key stays under the limit that it is under
		op = opPeek
	}
	c.script, c.keys, c.test = s.scriptFor(op), s.keys, s.test
	b := c.room[:0]
	if len(s.charges) > 1 {
		b = make([]byte, 0, headSize+askSize*len(s.charges))
	}
	b = head(b, op, len(s.charges))
	for i := range s.charges {
		b = s.charges[i].ask(b, op)
	}
	now := int64(0)
	for i := range s.charges {
		b, now = s.charges[i].plan.putDates(b, &s.remote, now)
	}
	c.payload = b
}

// conclude fills in the decision on a single key.
func (s *session) conclude(op byte, d *ratelimit.Decision) {
	c := &s.charges[0]
	if c.allowed && op != opPeek {
		c.spend()
	}
	c.decide(s.reading, d)
}

// failed returns the error for a key that could not be read.
func (s *session) failed(f failure) error {
	for i := range s.charges {
		if c := &s.charges[i]; c.key == f.key {
			return f.err(c.plan.limit.Name)
		}
	}
	return f.err("")
}

// settlerFor returns how to settle a reservation: one of 0 is settled by charging. It
// returns nil if nothing was sent.
func (s *session) settlerFor(cost int) func(int) error {
	if len(s.charges) == 0 {
		return nil
	}
	if cost > 0 {
		return s.settler()
	}
	return s.adjuster()
}
