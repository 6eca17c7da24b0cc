package redislimit

import (
	"fmt"
	"math/rand/v2"
)

// What is sent to a script, and what it answers, is packed: big-endian whole numbers
// without names. Lua reads them with struct.unpack.

// The first byte of a call, for the script that decides …
const (
	opTake = 0 // what is booked ahead is not to be given back
	opPeek = 2
	opKeep = 4 // what is booked ahead may be given back
)

// … and for the one that settles.
const (
	opSettle = 0
	opAdjust = 1
)

// The first byte of an answer.
const (
	answerDenied    = 0
	answerAllowed   = 1
	answerWrongType = 2
	answerNotOurs   = 3
	answerOther     = 4
	answerDeniedAt  = 5 // and the state as it is stored, or nothing for a new key
	answerAllowedAt = 6 // likewise, before the cost is spent
)

const (
	headSize   = 1 + 7 + 3 + 7 + 1
	askSize    = 3 + 10*7
	settleSize = 3 + 3 + 4*7 + 1 + 3*7
	adjustSize = 3 + 4*7
	digestSize = 1 + 3 + 1 + 5*7
)

func put7(b []byte, n int64) []byte {
	return append(b, byte(n>>48), byte(n>>40), byte(n>>32), byte(n>>24), byte(n>>16), byte(n>>8), byte(n))
}

func put3(b []byte, n uint32) []byte { return append(b, byte(n>>16), byte(n>>8), byte(n)) }

func get7(s string) int64 {
	return int64(s[0])<<48 | int64(s[1])<<40 | int64(s[2])<<32 | int64(s[3])<<24 | int64(s[4])<<16 | int64(s[5])<<8 | int64(s[6])
}

func get3(s string) uint32 { return uint32(s[0])<<16 | uint32(s[1])<<8 | uint32(s[2]) }

// newSalt returns 3 random bytes.
func newSalt() uint32 { return rand.Uint32() & 0xFFFFFF }

// head begins a call. The salt tells a key that the call creates from one of the same
// name before it, whose reservations must not settle it.
func (r *remote) head(b []byte, op byte, salt uint32, items int) []byte {
	b = append(b, op)
	var now, grace int64
	if r.clock != nil {
		now, grace = r.clock(), r.grace
	}
	b = put7(b, now)
	b = put3(b, salt)
	b = put7(b, grace)
	return append(b, byte(items))
}

// ask appends what a charge asks.
func (c *charge) ask(b []byte) []byte {
	p := c.plan
	b = append(b, byte(c.key+1), p.kind, 0)
	if c.shadow {
		b[len(b)-1] = 1
	}
	price := p.priceOf(c.cost)
	for _, n := range [...]int64{c.cost, p.units, p.per, p.capacity, price.us, price.frac, p.full.us, p.full.frac, c.ahead, p.since.Load()} {
		b = put7(b, n)
	}
	return b
}

// priceOf is price for a bucket, and nothing else.
func (p *plan) priceOf(cost int64) span {
	if !p.isBucket() {
		return span{}
	}
	return p.price(cost)
}

// settlement appends what is needed to settle a charge.
func (s *settlement) pack(b []byte, actual int64) []byte {
	b = append(b, byte(s.key+1), s.plan.kind, s.changes)
	b = put3(b, s.gen)
	for _, n := range [...]int64{s.cost, min(actual, most), s.at, s.part} {
		b = put7(b, n)
	}
	p := s.plan.latest()
	b = append(b, p.kind)
	for _, n := range [...]int64{p.units, p.per, p.since.Load()} {
		b = put7(b, n)
	}
	return b
}

// answer reads what the script that decides has answered.
func (s *session) answer(reply string) error {
	switch {
	case len(reply) >= 8 && reply[0] >= answerDeniedAt:
		return s.stored(reply)
	case len(reply) >= 2 && reply[0] >= answerWrongType:
		return s.failed(failureOf(reply))
	}
	if len(reply) != 8+digestSize*len(s.charges) {
		return fmt.Errorf("redislimit: the script answered %d bytes, want %d", len(reply), 8+digestSize*len(s.charges))
	}
	s.allowed = reply[0] == answerAllowed
	s.reading = get7(reply[1:])
	for i := range s.charges {
		s.charges[i].digest(reply[8+i*digestSize:], s.reading)
	}
	return nil
}

// stored reads an answer that holds the one key's state as it is stored.
func (s *session) stored(reply string) error {
	raw, c := reply[8:], &s.charges[0]
	s.allowed, s.reading = reply[0] == answerAllowedAt, get7(reply[1:])
	c.allowed, c.now, c.state = s.allowed, s.reading, state{at: s.reading}
	if len(raw) == 0 {
		c.gen = s.salt
	} else if len(raw) < 44 {
		return fmt.Errorf("redislimit: the script answered %d bytes, want 44 or more", len(raw))
	} else {
		c.gen, c.changes, c.now = get3(raw[1:]), raw[4], max(s.reading, get7(raw[5:]))
		c.state.at, c.n = get7(raw[30:]), get7(raw[37:])
	}
	if len(raw) >= 51 {
		c.m = get7(raw[44:])
	}
	c.check(s.reading)
	return nil
}

func (c *charge) digest(s string, reading int64) {
	if c.allowed = s[0] == answerAllowed; s[0] > answerAllowed {
		c.failed = s[0]
		return
	}
	c.gen, c.changes, c.now = get3(s[1:]), s[4], get7(s[5:])
	c.state = state{at: get7(s[12:]), n: get7(s[19:]), m: get7(s[26:]), newest: get7(s[33:])}
	c.check(reading)
}

// check finds out what the script has found out, and more.
func (c *charge) check(reading int64) {
	c.plan.decided(reading)
	c.weigh(reading)
	if checkVerdict != nil {
		checkVerdict(c, reading)
	}
}

// checkVerdict is set by tests, which compare the script's verdict with Go's.
var checkVerdict func(c *charge, reading int64)
