// Package meter counts a key's spending under a limit: the arithmetic of the seven algorithms, of bookings, debts and limits that
// change.
//
// It knows no key, holds no lock, reads no clock and has no unit of time. Instants are int64 ticks since an origin that the
// caller chooses. A caller passes the instant now to each call, never an earlier one than in its last call for the same state.
// Package ratelimit counts in nanoseconds, package redislimit in microseconds.
//
// A [Meter] is a limit prepared for decisions. A [State] is one key's spending under it. Questions ([Meter.Offer],
// [Meter.Remaining], [Meter.Regained]) leave the state as it is. Methods that change it take a pointer: [Meter.Advance] brings
// it to now, [Meter.Accept] accepts an offer, [Meter.Take] and [Meter.Allow] combine these steps, [Meter.Settle] and
// [Meter.Adjust] correct it, and [Meter.Migrate] converts it to another limit.
package meter

import (
	"math"
	"math/bits"
)

// Kind is an algorithm.
type Kind uint8

const (
	TokenBucket Kind = iota + 1
	LeakyBucket
	FixedWindow
	SlidingLog
	SlidingCounter
	Calendar
	Concurrent
)

// Limit is the configuration of a [Meter]. All figures are above 0.
type Limit struct {
	Kind
	Units, Per int64   // Units are regained in Per ticks, or in each window of that length: a calendar's longest
	Burst      int64   // of a token bucket, or a leaky bucket's queue; else of no meaning
	Windows    Windows // of a calendar; else nil

	// Horizon bounds every span of time that a budget is counted in: the time in which the
	// capacity is regained, which must not be above it, how far ahead is booked, and the
	// debt of one key. Four times the horizon must not overflow.
	Horizon int64

	// Most bounds a key's debt. Twice Most must not overflow.
	Most int64

	// Retry is the shortest estimate of the time until units that are in use come back, above 0. Of Concurrent only.
	Retry int64
}

// Meter is a limit prepared for decisions. It is immutable, so all keys under the limit share it without a lock. The zero Meter
// counts nothing; only [Meter.Counts] may be called.
type Meter struct {
	algorithm

	// The fields that every decision reads come first.
	log      bool         // the algorithm is the sliding log, whose bookings are among its entries
	advances bool         // each decision advances the state to now first
	token    *tokenBucket // the algorithm, if it is that one: Allow has a shorter way for it
	held     *slidingLog  // the algorithm, if its units are held by reservations; otherwise nil
	leaky    *leakyBucket // the algorithm, if it is a leaky bucket, which delays the costs that it admits; otherwise nil

	// Without these two bounds, sums of instants and of costs could overflow.
	maxDebt  int64 // how much may be owed
	maxAhead int64 // how far ahead may be booked

	horizon, most int64 // the limit's

	kind Kind
}

// New returns the meter of a limit, which the caller has validated. A kind without a case here is a bug in this package:
// without an algorithm it would allow every cost.
func New(l Limit) Meter {
	m := Meter{horizon: l.Horizon, most: l.Most, kind: l.Kind}
	switch l.Kind {
	case TokenBucket:
		t := newTokenBucket(l)
		m.algorithm, m.token = &t, &t
		m.maxDebt, m.maxAhead = t.bounds(l.Most)
	case LeakyBucket:
		// A cost that fits into the queue is taken now and delayed, so the bookings are the queue itself.
		m.leaky = &leakyBucket{newTokenBucket(l)}
		m.algorithm, m.advances = m.leaky, true
		m.maxDebt, _ = m.leaky.bounds(l.Most)
		m.maxAhead = math.MaxInt64 // bounded by the queue's capacity
	case FixedWindow, SlidingLog, SlidingCounter, Calendar, Concurrent:
		m.window(l)
	default:
		panic("meter: no algorithm of that kind")
	}
	m.family() // panics if there is none
	return m
}

// window sets the meter up for an algorithm that counts units for each window. A debt runs over into whole windows, so its
// bound is a number of windows too: the number in the horizon, as long as twice their units can be counted.
func (m *Meter) window(l Limit) {
	windows := min(l.Horizon/l.Per, l.Most/l.Units)
	m.maxDebt, m.maxAhead = windows*l.Units, max(0, (windows-1)*l.Per)
	switch l.Kind {
	case FixedWindow:
		m.algorithm = &fixedWindow{l.Per, l.Units, m.maxDebt}
	case SlidingCounter:
		m.algorithm = &slidingCounter{l.Per, l.Units, m.maxDebt}
	case SlidingLog:
		m.algorithm, m.log, m.advances = &slidingLog{per: l.Per, units: l.Units}, true, true
	case Concurrent:
		m.held = &slidingLog{per: l.Per, units: l.Units, held: true, retry: min(l.Retry, l.Per)}
		m.algorithm, m.log, m.advances, m.maxAhead = m.held, true, true, 0
	case Calendar:
		// A key that was only denied keeps the window that it has reached, too: it may be that
		// the wall clock is set back.
		m.algorithm, m.advances = &calendar{l.Windows, l.Units, m.maxDebt, l.Per}, true
	}
}

// Counts reports whether the meter has anything to count.
func (m *Meter) Counts() bool { return m.algorithm != nil }

// Delays reports whether an admitted cost may be delayed, as in a leaky bucket's queue. Other meters let a cost through at
// once, unless it is booked.
func (m *Meter) Delays() bool { return m.leaky != nil }

// MaxAhead returns how far ahead is booked at most. A leaky bucket has no such bound but its
// queue's capacity.
func (m *Meter) MaxAhead() int64 { return m.maxAhead }

// Price returns the time in which n units of a bucket are regained: whole ticks, and the rest in 1/units of a tick, for the
// units of the limit in lowest terms. It is at most the horizon.
func (m *Meter) Price(n int64) (ticks, frac int64) {
	price := m.bucket().price(n)
	return price.ticks, price.frac
}

// Advance brings a state to now. Accept wants a state that has been.
func (m *Meter) Advance(s *State, now int64) {
	if s.detail != nil || m.advances {
		m.advanceTo(s, now)
	}
}

func (m *Meter) advanceTo(s *State, now int64) {
	switch {
	case s.detail == nil || s.ledger == nil:
	default:
		if s.ledger.line != nil {
			if *s = m.serve(*s, now); s.detail == nil || s.ledger == nil {
				break
			}
		}
		if !m.log {
			*s = m.catchUp(*s, now)
		}
		*s = m.lapsed(m.tight(*s, now), now)
	}
	if m.advances {
		*s = m.advance(*s, now)
	}
}

// Allow spends a cost if that can be now, or can enter a leaky bucket's queue, and reports
// whether it did. It is Take for a caller who needs only the yes or no.
func (m *Meter) Allow(s *State, now, cost int64) bool {
	t := m.token
	if t == nil || s.detail != nil {
		return m.allow(s, now, cost)
	}
	// The most frequent case, without a call. The debt is counted from now, because an instant and two spans of the horizon may
	// add up to more than 2^63.
	owed := span{s.At - now, s.N}
	if owed.ticks < 0 {
		owed = span{}
	}
	price := t.one
	if cost != 1 {
		price = t.price(cost)
	}
	if owed = t.plus(owed, price); t.full.less(owed) {
		return false
	}
	s.At, s.N = now+owed.ticks, owed.frac
	return true
}

// Simple reports whether the state has no bookings and the meter never delays a cost. Then Spend is a short way.
func (m *Meter) Simple(s *State) bool { return s.detail == nil && m.leaky == nil }

// Spend spends a cost if that can be now, and returns now; or it returns the instant at which it can be. The
// state is Simple. It is Take for a caller who books nothing.
func (m *Meter) Spend(s *State, now, cost int64) (at int64) {
	if m.advances {
		*s = m.advance(*s, now)
	}
	if at = m.earliest(*s, now, cost); at <= now {
		*s = m.spend(*s, now, cost)
	}
	return at
}

// Bucket reports whether the meter is a token bucket. Then SpendBucket is the shortest way.
func (m *Meter) Bucket() bool { return m.token != nil }

// SpendBucket is Spend of a Bucket, and returns what is owed after it: StandingOf makes a standing of that. The state is Simple.
func (m *Meter) SpendBucket(s *State, now, cost int64) (at int64, owed Owed) {
	t := m.token
	before := span{s.At - now, s.N} // as in Allow
	if before.ticks < 0 {
		before = span{}
	}
	price := t.one
	if cost != 1 {
		price = t.price(cost)
	}
	after := t.plus(before, price)
	if t.full.less(after) {
		over := t.minus(after, t.full)
		return now + t.regained(State{At: over.ticks, N: over.frac}), before
	}
	s.At, s.N = now+after.ticks, after.frac
	return now, after
}

// Owed is the time in which a token bucket regains all that is spent.
type Owed = span

// StandingOf returns the Standing of a Bucket that owes this, and the instant at which a unit remains. It reads no state, so the caller can
// unlock that before the division.
func (m *Meter) StandingOf(owed Owed, now int64) (remaining, debt, regained, next int64) {
	t := m.token
	regained = now + t.regained(State{At: owed.ticks, N: owed.frac})
	left := t.minus(t.full, owed)
	if left.less(t.one) { // as after most denials: this saves a division
		if left.ticks < 0 {
			debt = t.spent(State{At: now + owed.ticks, N: owed.frac}, now) - t.capacity
		}
		lacks := t.minus(t.one, left)
		return 0, debt, regained, now + t.regained(State{At: lacks.ticks, N: lacks.frac})
	}
	// As in worth, without a call.
	if hi, lo := bits.Mul64(uint64(left.ticks), uint64(t.units)); hi == 0 && lo < 1<<62 {
		return int64((lo + uint64(left.frac)) / uint64(t.per)), 0, regained, now
	}
	remaining, _ = t.worth(left)
	return remaining, 0, regained, now
}

// allow is Allow for any algorithm, and with bookings.
func (m *Meter) allow(s *State, now, cost int64) bool {
	m.Advance(s, now)
	if s.Line() != nil {
		return m.leaky != nil && !m.Take(s, Moment{now, now}, cost, math.MaxInt64, Final).Denied(now)
	}
	if m.first(*s, now, cost) > now {
		return false
	}
	if m.leaky == nil && (s.detail == nil || m.log && !s.loose()) {
		*s = m.spend(*s, now, cost)
		if m.log {
			if p := s.formers(); p != nil {
				p.passed(m, *s, now, cost, Final)
			}
		}
		return true
	}
	o := Offer{At: now}
	if m.leaky != nil {
		o.At, o.Part = m.leaky.place(*s, now, cost)
	}
	m.Accept(s, now, o, cost, Final)
	return true
}

// Take is Advance, Offer, and Accept if the offer is not a denial.
func (m *Meter) Take(s *State, mo Moment, cost, ahead int64, keep Keep) Offer {
	m.Advance(s, mo.Now)
	if ahead > 0 && s.Line() != nil {
		s.Line().exact() // a booking keeps its instant
	}
	o := m.Offer(*s, mo, cost, ahead)
	switch {
	case o.Denied(mo.Reading):
	case s.detail == nil && keep == Final: // the first case of Accept: most decisions save the call
		*s = m.spend(*s, o.At, cost)
	default:
		m.Accept(s, mo.Now, o, cost, keep)
	}
	return o
}

// Accept spends a cost as was offered, in a state that has been advanced to now. No other
// call may come in between. Unless keep is Final, a spending later than now is booked, so that all of it can be given
// back until then.
func (m *Meter) Accept(s *State, now int64, o Offer, cost int64, keep Keep) {
	l := s.Line()
	if l != nil {
		l.forget(m.newest(*s, now))
		if s.loose() {
			l.end.known = false
		} else if l.end.known {
			defer l.end.spend(m, o.At, cost)
		}
	}
	p := s.formers()
	if p != nil && m.later(*s, now, o, keep) {
		if m.log || keep == Final {
			*s = m.forget(*s, now)
		}
		p = nil
	}
	switch {
	case s.loose() && m.newest(*s, now) > o.At:
		sp := o.Spending(cost)
		sp.Open = keep == Open
		*s = m.slip(*s, now, sp)
	case m.token != nil && s.detail == nil && keep == Final: // the next case by a direct call, which takes less time
		*s = m.token.spend(*s, o.At, cost)
	case m.log, s.detail == nil && keep == Final:
		*s = m.spend(*s, o.At, cost)
	case o.At > now && (keep != Final || l != nil || m.bookings(*s) != nil):
		sp := o.Spending(cost)
		sp.Open = keep == Open
		*s = m.book(*s, sp)
	case m.token != nil && o.At <= now:
		*s = m.spendNow(*s, now, cost, keep)
	default:
		*s = m.spend(*s, o.At, cost)
	}
	if p != nil {
		p.passed(m, *s, now, cost, keep)
	}
}

// later reports whether former limits are charged an accepted offer when its instant has come.
func (m *Meter) later(s State, now int64, o Offer, keep Keep) bool {
	return o.At > now && (m.leaky == nil || keep != Final || s.Line() != nil || m.bookings(s) != nil)
}

// Remaining returns the largest cost that would be spent now, 0 if there is none.
func (m *Meter) Remaining(s State, now int64) int64 {
	n, _ := m.left(s, m.view(s), now)
	return n
}

// Regained returns the first instant at which the key is fresh: all that it has spent is
// regained. The instant may be past.
func (m *Meter) Regained(s State) int64 { return m.regained(m.view(s)) }

// Debt returns the units that are spent or booked above the capacity, and not regained by now, rounded up.
func (m *Meter) Debt(s State, now int64) int64 {
	_, debt := m.left(s, m.view(s), now)
	return debt
}

// Standing returns Remaining, Debt and Regained.
func (m *Meter) Standing(s State, now int64) (remaining, debt, regained int64) {
	if t := m.token; t != nil && s.detail == nil {
		remaining, debt, _, _ = m.StandingOf(s.owed(now), now)
		return remaining, debt, t.regained(s)
	}
	v := m.view(s)
	if c, ok := m.algorithm.(*calendar); ok && !v.loose() {
		return c.standing(v, now)
	}
	remaining, debt = m.left(s, v, now)
	if m.held != nil {
		return remaining, debt, m.held.back(v, now)
	}
	return remaining, debt, m.regained(v)
}

// Earliest returns the first instant, now or later, at which a cost could be spent behind all that is spent, booked or waits in line. The cost is from 1
// to the capacity. It is now if and only if Remaining is no less than the cost.
func (m *Meter) Earliest(s State, now, cost int64) int64 {
	if s.detail != nil {
		s = m.view(s)
	}
	return m.first(s, now, cost)
}

// Refresh updates a state after a booking has been cancelled, without advancing it. It must be called before a question about a
// state that has not been advanced.
func (m *Meter) Refresh(s *State) {
	if s.detail != nil {
		*s = m.refold(*s)
	}
}

// Settle corrects a spending from its estimated cost to its real cost. A difference above the estimate is charged, as a debt if
// necessary. A difference below is refunded, as far as it has not been regained and no later spending depends on it.
func (m *Meter) Settle(s *State, now int64, sp Spending, actual int64) {
	if s.Line() != nil {
		*s = m.serve(*s, now)
	}
	*s = m.popDue(*s, now)
	p := s.formers()
	if p != nil {
		p.drop(now)
	}
	if p == nil || len(p.list) == 0 {
		m.settleHere(s, now, sp, actual)
		*s = m.moved(*s)
		return
	}
	*s = m.refold(*s)
	before := m.spent(*s, now) + s.asideAt(now).units
	m.settleHere(s, now, sp, actual)
	if *s = m.refold(*s); actual <= sp.Cost && sp.At <= now {
		back := before - m.spent(*s, now) - s.asideAt(now).units
		if m.bucket() != nil && back < sp.Cost-actual {
			back-- // both figures are rounded up
		}
		p.settleFormer(now, sp, max(0, min(back, sp.Cost-actual)))
	}
	m.lasts(*s, now)
	*s = m.moved(*s)
}

// settleHere is Settle under this limit alone.
func (m *Meter) settleHere(s *State, now int64, sp Spending, actual int64) {
	open := m.token != nil && sp.Open
	if sp.Changed && sp.Part != 0 && sp.At <= now && !open {
		// In a leaky bucket the spending began before its instant, which is rounded up. A part of it may have left before the
		// limit changed, and its refund would refund the spending of others.
		actual = max(actual, sp.Cost)
	}
	if !open {
		actual = m.settleAside(s, now, sp, actual)
	}
	*s = m.settle(*s, now, sp, actual)
}

// Adjust charges a delta above 0, as a debt if necessary. A delta below 0 is forgiven, beginning with the last booking.
func (m *Meter) Adjust(s *State, now, delta int64) {
	m.Advance(s, now)
	*s = m.adjust(*s, now, delta)
	m.lasts(*s, now)
	*s = m.moved(*s)
}

// capacity returns the most that can be spent at once.
func (m *Meter) capacity() int64 {
	if t := m.bucket(); t != nil {
		return t.capacity
	}
	if c, ok := m.algorithm.(*calendar); ok {
		return c.units
	}
	_, units := m.windows()
	return units
}

// windows returns the length of a window and its units, for the algorithms that have windows.
func (m *Meter) windows() (per, units int64) {
	switch a := m.algorithm.(type) {
	case *fixedWindow:
		return a.per, a.units
	case *slidingCounter:
		return a.per, a.units
	case *slidingLog:
		return a.per, a.units
	}
	panic("meter: no windows of that kind")
}

// bucket returns the meter's algorithm as a token bucket, if it counts like one: a leaky
// bucket's state is the same debt in time.
func (m *Meter) bucket() *tokenBucket {
	switch a := m.algorithm.(type) {
	case *tokenBucket:
		return a
	case *leakyBucket:
		return &a.tokenBucket
	}
	return nil
}

// family is the kind of figures in a meter's state. Within a family, spending carries over from one limit to another exactly.
type family int

const (
	familyBucket family = iota // the time until all is regained
	familyWindow               // the spending since a window's beginning
	familyLog                  // each spending
)

// family returns the algorithm's family. An algorithm that is missing here must not be mistaken for another.
func (m *Meter) family() family {
	switch m.kind {
	case TokenBucket, LeakyBucket:
		return familyBucket
	case FixedWindow, SlidingCounter, Calendar:
		return familyWindow
	case SlidingLog, Concurrent:
		return familyLog
	}
	panic("meter: no family of that kind")
}

// Moment is an instant that the caller has read from a clock, and the instant that applies to one key. Now is the later one if
// the clock has stepped back. The key's budget follows from Now; its wait is counted from Reading.
type Moment struct{ Reading, Now int64 }

// Free returns the offer for a cost of 0.
func (m Moment) Free() Offer { return Offer{At: m.Now, Retry: m.Reading} }

// Offer describes how a cost would be spent, before it is spent. It has four fields because the compiler keeps a struct in
// registers up to that many, and this one is passed around in each decision.
type Offer struct {
	At, Part int64 // how the cost would be spent: see Spending
	Retry    int64 // the first reading at which it would be

	// Changes is left to the caller, who counts how often the limit of the state has changed.
	Changes uint32
}

// Denied reports whether the offer is a denial at a reading.
func (o Offer) Denied(reading int64) bool { return o.Retry > reading }

// Spending returns the spending that results if the offer is accepted.
func (o Offer) Spending(cost int64) Spending {
	return Spending{At: o.At, Part: o.Part, Cost: cost}
}

// farAhead is further than anything is booked, and can be taken from any instant.
const farAhead = math.MaxInt64 / 2

// Offer describes how a cost would be spent, if it may be spent up to ahead after the reading. In a leaky bucket, ahead is the
// maximum delay in the queue; the instant at which the cost enters the queue depends on the room there. The cost is from 1 to
// the capacity.
func (m *Meter) Offer(s State, mo Moment, cost, ahead int64) Offer {
	o := Offer{Retry: mo.Reading}
	if s.detail != nil {
		s = m.view(s)
	}
	switch t := m.token; {
	case s.detail != nil:
		o.At = m.first(s, mo.Now, cost)
	case t != nil: // as m.earliest, but a direct call takes less time
		o.At = t.earliest(s, mo.Now, cost)
	default:
		o.At = m.earliest(s, mo.Now, cost)
	}
	if m.leaky != nil {
		if o.At > mo.Now {
			o.Retry = o.At // when the queue has room
		}
		o.At, o.Part = m.leaky.place(s, mo.Now, cost)
	}
	if m.token != nil && s.detail != nil && o.At == mo.Now {
		o.Part = s.ledger.part(mo.Now)
	}
	if ahead = min(ahead, m.maxAhead); o.At > mo.Now && ahead < farAhead {
		o.Retry = max(o.Retry, o.At-ahead)
	}
	return o
}

// algorithm is the contract of the algorithms: arithmetic on one key's spending, at a given time. None holds a lock, reads
// a clock or knows a key.
//
// Costs are from 1 to the capacity. Instants are in ticks. now is never before the state's last instant: a key's time does not
// go back.
//
// Questions leave the state as it is. The other methods return a new one; only the detail behind its pointer is changed in
// place, so the old state must not be used again.
type algorithm interface {
	// earliest returns the first instant, now or later, at which the cost fits
	// behind all that is spent and booked.
	earliest(s State, now, cost int64) int64
	// spend spends at an instant that earliest has returned, or more than fits, as debt.
	spend(s State, at, cost int64) State
	// refund refunds the difference between the cost of a spending and its real cost, as far as it has not been regained since.
	// A part that cannot be determined is not refunded: the bound matters more.
	refund(s State, now int64, sp Spending, actual int64) State
	// charge spends n at now, whether it fits or not.
	charge(s State, now, n int64) State
	// forgive takes n from the spending, the newest first.
	forgive(s State, now, n int64) State
	// advance drops the spending that has been regained by now.
	advance(s State, now int64) State
	// remaining returns the largest cost whose earliest is now, 0 if there is none; and, only if it is 0, the debt: how much
	// spent exceeds the capacity by.
	remaining(s State, now int64) (n, debt int64)
	// regained returns the first instant at which all is regained, which may be past.
	regained(s State) int64
	// spent returns how much is spent and not regained, rounded up.
	spent(s State, now int64) int64
}

// behind returns at, or the instant of the last booking if that is later: later costs queue behind bookings. It is for the
// algorithms that keep a ledger.
func (s State) behind(at int64) int64 {
	if s.detail == nil || s.ledger == nil {
		return at
	}
	return max(at, s.ledger.newest())
}

// Add returns a + b, or the largest number if that overflows. It does not guard against
// sums below the smallest.
func Add(a, b int64) int64 {
	if c := a + b; c >= a || b < 0 {
		return c
	}
	return math.MaxInt64
}

// OnHeap reports whether a copy of the state shares memory with it.
func (s *State) OnHeap() bool { return s.detail != nil }
