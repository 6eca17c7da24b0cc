// Package meter counts a key's spending under a limit: the arithmetic
// of the seven algorithms, of bookings, debts and changing limits.
//
// It knows no key, holds no lock, reads no clock and has no unit of time. Instants are int64 ticks since an
// origin of the caller's choice. The caller passes the instant now to each call, and never an earlier one than in
// its last call for the same state. Package ratelimit counts in nanoseconds, package redislimit in microseconds.
//
// A [Meter] is a limit prepared for decisions. A [State] is one key's spending under it. Questions ([Meter.Offer],
// [Meter.Remaining], [Meter.Regained]) leave the state as it is. Methods that change it take a pointer: [Meter.Advance] brings
// it to now, [Meter.Accept] accepts an offer, [Meter.Take] and [Meter.Allow] combine these steps, [Meter.Settle] and
// [Meter.Adjust] correct it, and [Meter.Migrate] converts it to another limit.
//
// The files build on each other. Each uses only files above it here,
// except state.go with line.go, and slidinglog.go with concurrent.go:
//
//	arith.go, totals.go               sums that do not overflow; spendings in the order of their instants
//	limit.go, spending.go             callers' arguments and results: a limit, a spending and its offer
//	aside.go, open.go                 units that do not count now; reservations whose real cost is not known
//	state.go, line.go                 a key's state, with its bookings and its line; the follower of its charges
//	bucket.go, leaky.go, fixedwindow.go, slidingcounter.go, slidinglog.go, concurrent.go, calendar.go
//	                                  the algorithms: functions of a state
//	algorithm.go, meter.go            the methods of all algorithms; a limit prepared for decisions
//	open_bucket.go, bookings.go       a token bucket's open reservations; bookings
//	gaps.go, rest.go, settle.go       room before bookings; the rest of a lowered limit; corrections: under one limit, without a line
//	line_end.go, line_serve.go        the end of a line; its due turns
//	advance.go, standing.go           the step to now; answers about a state
//	former.go                         a follower: a key's former limits, each a meter with a state
//	decide.go, correct.go             decisions and corrections under all of these
//	convert_bucket.go, convert_log.go, convert.go, migrate.go
//	                                  a state under another limit
//	remember.go, saved.go             a state in two figures, and as bytes
package meter

import "math"

// Meter is a limit prepared for decisions. It is immutable, so all keys under the limit share it without a lock. The zero Meter
// counts nothing; only [Meter.Counts] may be called.
type Meter struct {
	algorithm

	// The fields for every decision come first.
	log      bool         // the algorithm is the sliding log, whose bookings are among its entries
	advances bool         // each decision advances the state to now first
	token    *tokenBucket // the algorithm, if it is a token bucket: Allow has a shorter way for it
	held     *slidingLog  // the algorithm, if its units are held by reservations; otherwise nil
	leaky    *leakyBucket // the algorithm, if it is a leaky bucket and delays admitted costs; otherwise nil

	// Without these two bounds, sums of instants or costs could overflow.
	maxDebt  int64 // the maximum debt
	maxAhead int64 // how far ahead bookings may be

	horizon, most int64 // of the limit

	kind Kind
}

// New returns a limit's meter. The caller has validated the limit. A kind without a
// case here is a bug in this package: without an algorithm it would allow every cost.
func New(l Limit) Meter {
	m := Meter{horizon: l.Horizon, most: l.Most, kind: l.Kind}
	switch l.Kind {
	case TokenBucket:
		t := newTokenBucket(l)
		m.algorithm, m.token = &t, &t
		m.maxDebt, m.maxAhead = t.bounds(l.Most)
	case LeakyBucket:
		// If a cost fits into the queue, it is taken now and delayed, so the bookings are the queue itself.
		m.leaky = &leakyBucket{newTokenBucket(l)}
		m.algorithm, m.advances = m.leaky, true
		m.maxDebt, _ = m.leaky.bounds(l.Most)
		m.maxAhead = math.MaxInt64 // bounded by the queue's capacity
	case FixedWindow, SlidingLog, SlidingCounter, Calendar, Concurrent:
		m.window(l)
	default:
		panic("meter: no algorithm of that kind")
	}
	m.family() // panics if the algorithm has no family
	return m
}

// window sets the meter up for an algorithm with units for each window. A debt runs over into whole windows.
// So the maximum debt is the units of all windows within the horizon, unless twice that debt would overflow.
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
		// Even a key with nothing but denials keeps its latest window, because the wall clock may be set back.
		m.algorithm, m.advances = &calendar{l.Windows, l.Units, m.maxDebt, l.Per}, true
	}
}

// Counts reports whether the meter counts anything.
func (m *Meter) Counts() bool { return m.algorithm != nil }

// Delays reports whether an admitted cost may be delayed, as in a leaky bucket's queue. Other meters let a cost through at
// once, unless it is booked.
func (m *Meter) Delays() bool { return m.leaky != nil }

// Holds reports whether the meter counts units in use.
func (m *Meter) Holds() bool { return m.held != nil }

// Bucket reports whether the meter is a token bucket. Then SpendBucket is the shortest way.
func (m *Meter) Bucket() bool { return m.token != nil }

// MaxAhead returns how far ahead bookings may be. For a leaky bucket only its queue's capacity bounds them.
func (m *Meter) MaxAhead() int64 { return m.maxAhead }

// Price returns the time to regain n units of a bucket: whole ticks, and the rest in
// 1/units of a tick, for the limit's units in lowest terms. It is at most the horizon.
func (m *Meter) Price(n int64) (ticks, frac int64) {
	price := m.bucket().price(n)
	return price.ticks, price.frac
}

// capacity returns the maximum cost.
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

// windows returns a window's length and its units, for the algorithms with windows.
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

// bucket returns the token bucket with which the meter's algorithm
// counts, if any: the state of a leaky bucket is the same debt in time.
func (m *Meter) bucket() *tokenBucket {
	switch a := m.algorithm.(type) {
	case *tokenBucket:
		return a
	case *leakyBucket:
		return &a.tokenBucket
	}
	return nil
}

// family returns the algorithm's family. A missing algorithm must not be mistaken for another.
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

// refill returns the time within which a key is fresh.
func (m *Meter) refill() int64 {
	switch a := m.algorithm.(type) {
	case *calendar:
		return a.per
	case *slidingCounter:
		return 2 * a.per
	}
	if t := m.bucket(); t != nil {
		return t.full.ticks + 1
	}
	per, _ := m.windows()
	return per
}

// trimmed drops a detail without content.
func (m *Meter) trimmed(s State) State {
	if s.detail == nil || s.ledger == nil {
		return s
	}
	l := s.ledger
	if l.loose && !m.log && len(l.list) == 0 && !l.stale() {
		l.loose = false
	}
	if !l.empty() {
		return s
	}
	if m.log {
		s.detail.ledger = nil
	} else {
		s.detail = nil
	}
	return s
}
