package redislimit

import "math/rand/v2"

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
	answerOutside   = 5 // the time is not one that the call says anything about
	answerFull      = 6 // of one key: no more can be booked ahead
)

// The first byte of an answer in the usual case, in words: the time and states as they are
// stored follow.
const (
	quickDenied  = '-'
	quickAllowed = '+'
)

func put7(b []byte, n int64) []byte {
	return append(b, byte(n>>48), byte(n>>40), byte(n>>32), byte(n>>24), byte(n>>16), byte(n>>8), byte(n))
}

func put3(b []byte, n uint32) []byte { return append(b, byte(n>>16), byte(n>>8), byte(n)) }

func get7(s string) int64 {
	return int64(s[0])<<48 | int64(s[1])<<40 | int64(s[2])<<32 | int64(s[3])<<24 | int64(s[4])<<16 | int64(s[5])<<8 | int64(s[6])
}

func get3(s string) uint32 { return uint32(s[0])<<16 | uint32(s[1])<<8 | uint32(s[2]) }

// head begins a call.
func head(b []byte, op byte, items int) []byte { return append(b, op, byte(items)) }

// testWords returns what a test adds to a call: its time, in the form of Redis's TIME, by how
// much keys outlive theirs, and the mark of those that are created, which tells them from keys
// of the same name before. In use that is of the server's time.
func (s *store) testWords() []any {
	if s.clock == nil {
		return nil
	}
	now := s.clock()
	return []any{now / 1e6, now % 1e6, s.grace, rand.Uint32() & 0xFFFFFF}
}

// How the usual case tells charges apart: by kind, or as not its business.
const (
	howNothing = 0 // a charge of 0 beside others
	howShadow  = 9 // a shadow layer's
)

var hows = [...]byte{kindToken & 7: 1, kindLeaky & 7: 2, kindFixed & 7: 3, kindLog & 7: 4, kindCounter & 7: 5, kindCalendar & 7: 6}

// ask appends what a charge asks. What the usual case needs comes first: which key, how, what
// a usual state begins with, and five figures of the kind's own.
func (c *charge) ask(b []byte, op byte) []byte {
	p, how := c.plan, hows[c.plan.kind&7]
	if c.shadow {
		how = howShadow
	} else if c.cost == 0 && op != opPeek {
		how = howNothing
	}
	b = append(b, byte(c.key+1), how, p.kind)
	b = put7(put7(b, p.units), p.per)
	figures := [5]int64{c.cost, p.units, p.per}
	if p.isBucket() {
		figures = p.bucketFigures(c.cost)
	}
	for _, n := range figures {
		b = put7(b, n)
	}
	return put7(put7(put7(put7(b, c.cost), c.ahead), p.capacity), p.since.Load())
}

// bucketFigures are how much may be owed for a cost to fit, and its price. A cost of 0 always
// fits.
func (p *plan) bucketFigures(cost int64) [5]int64 {
	if cost == 0 {
		return [5]int64{2 * most, 0, p.units}
	}
	price, part := p.meter.Price(cost)
	room, frac := p.meter.Price(p.capacity)
	if room, frac = room-price, frac-part; frac < 0 {
		room, frac = room-1, frac+p.units
	}
	return [5]int64{room, frac, p.units, price, part}
}

// settlement appends what is needed to settle a charge.
func (s *settlement) pack(b []byte, actual int64) []byte {
	b = append(b, byte(s.key+1), s.plan.kind, s.changes)
	b = put3(b, s.gen)
	for _, n := range [...]int64{s.Cost, min(actual, most), s.At, s.Part} {
		b = put7(b, n)
	}
	p := s.plan.latest()
	b = append(b, p.kind)
	for _, n := range [...]int64{p.units, p.per, p.since.Load()} {
		b = put7(b, n)
	}
	return b
}
