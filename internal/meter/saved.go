package meter

import (
	"encoding/binary"
	"errors"
	"math"
)

// This file writes states to memory that outlives the program, and reads them. All instants are
// relative to the instant now at which a state is written, so the reader may count from another origin,
// and in a later program. Numbers are varints, as of encoding/binary:
//
//	bucket           at, n
//	fixed window     at, n
//	sliding counter  at, n, m
//	calendar         0, n, m
//	sliding log      entries, {at, cost} for each, m, at if m > 0
//	all but the log  bookings, {at, cost, and for a leaky bucket part} for each
//
// An instant of an entry or a booking is written as the span since the one before. What a reader finds
// is not trusted: every figure is checked that arithmetic relies on.

// mostUnits is what the window before may count at most, by a limit that was in force then.
const mostUnits = 1 << 53

// MostOrdinal is above the ordinals of all windows of a calendar: seconds up to the year 9999.
const MostOrdinal = 1 << 39

// Errors of [Meter.ReadState].
var (
	ErrShort   = errors.New("cut short")
	ErrGarbage = errors.New("not a state of this limit")
)

// AppendState appends what a state is at now to buf. The state is up to date, and stays as it is.
func (m *Meter) AppendState(buf []byte, s State, now int64) []byte {
	if l, ok := m.algorithm.(*slidingLog); ok {
		return l.append(buf, l.advance(l.aside(s), now), now)
	}
	base, booked := m.parted(s, now)
	_, dated := m.algorithm.(*calendar)
	if dated {
		// What is spent stays in its window, though that may be over: it may be that the wall clock was
		// ahead. The instant says only which spendings may be given back, and that is over.
		base.At = now
	} else {
		base = m.advance(base, now)
	}
	buf = binary.AppendVarint(buf, base.At-now)
	buf = binary.AppendUvarint(buf, uint64(base.N))
	if m.kind == SlidingCounter || dated {
		buf = binary.AppendUvarint(buf, uint64(base.M))
	}
	buf = binary.AppendUvarint(buf, uint64(len(booked)))
	for _, b := range booked {
		buf = binary.AppendUvarint(buf, uint64(b.at-now))
		buf = binary.AppendUvarint(buf, uint64(b.cost))
		if m.leaky != nil {
			buf = binary.AppendUvarint(buf, uint64(b.part))
		}
		now = b.at
	}
	return buf
}

// append is AppendState for a log that has been advanced to now.
func (l *slidingLog) append(buf []byte, s State, now int64) []byte {
	n := 0
	if s.detail != nil {
		n = s.log.len()
	}
	buf = binary.AppendUvarint(buf, uint64(n))
	since := now - l.per
	for i := range n {
		e := s.log.get(i)
		buf = binary.AppendUvarint(buf, uint64(e.at-since))
		buf = binary.AppendUvarint(buf, uint64(e.cost))
		since = e.at
	}
	if buf = binary.AppendUvarint(buf, uint64(s.M)); s.M > 0 {
		buf = binary.AppendUvarint(buf, uint64(s.At-now))
	}
	return buf
}

// ReadState reads what AppendState has written. The state is brought to now, which is the instant of
// writing and the ticks that have passed since; only a calendar's spending stays in its window, though that may be over, because
// the wall clock may be ahead. It returns what follows in data. The error is [ErrShort] or
// [ErrGarbage].
func (m *Meter) ReadState(data []byte, now, passed int64) (State, []byte, error) {
	r := reader{data: data, horizon: m.horizon, now: now, passed: passed}
	var s State
	if l, ok := m.algorithm.(*slidingLog); ok {
		s = r.log(l, m)
	} else {
		s = r.sums(m)
	}
	if r.err != nil {
		return State{}, nil, r.err
	}
	if m.kind != Calendar {
		m.Advance(&s, now)
	} else if s.detail != nil {
		s = m.catchUp(s, now)
	}
	return s, r.data, nil
}

// reader reads a state.
type reader struct {
	data        []byte
	horizon     int64
	now, passed int64
	err         error // the first
}

// sums reads a state of an algorithm that keeps sums.
func (r *reader) sums(m *Meter) State {
	lowest, mostN, mostM := int64(0), int64(0), int64(0)
	switch a := m.algorithm.(type) {
	case *tokenBucket:
		mostN = a.units - 1
	case *leakyBucket:
		mostN = a.units - 1
	case *fixedWindow:
		lowest, mostN = -a.per, a.most
	case *slidingCounter:
		lowest, mostN, mostM = -a.per, a.most, max(a.units, mostUnits)
	case *calendar:
		mostN, mostM = a.most, MostOrdinal
	default:
		panic("meter: no sums of that kind")
	}
	s := State{At: r.instant(r.signed(lowest, r.horizon)), N: r.number(0, mostN)}
	if mostM > 0 {
		s.M = r.number(0, mostM)
	}
	var booked []booking
	at := int64(0)
	for range r.count(2) {
		at += r.number(1, r.horizon-at)
		b := booking{at: r.instant(at), cost: r.number(1, max(m.most, m.maxDebt))}
		if m.leaky != nil {
			b.part = r.number(0, mostN)
		}
		if r.err != nil {
			return s
		}
		booked = append(booked, b)
	}
	if r.err != nil {
		return s
	}
	return m.fold(s, booked)
}

// log reads a state of a sliding log.
func (r *reader) log(l *slidingLog, m *Meter) (s State) {
	at := -l.per
	for range r.count(2) {
		at += r.number(1, r.horizon-at)
		cost := r.number(1, m.most+l.units-s.N)
		if r.err != nil {
			return s
		}
		s = l.spend(s, r.instant(at), cost)
	}
	if debt := r.number(0, m.maxDebt); debt > 0 {
		if s.detail == nil {
			s.detail = new(detail)
		}
		s.M, s.At = debt, r.instant(r.number(1, 2*r.horizon))
	}
	return s
}

// instant returns the instant of a span after the writing, on the reader's axis. What was longer ago than the
// longest span that is counted in was that long ago.
func (r *reader) instant(span int64) int64 {
	return Add(r.now, max(span-min(r.passed, farAhead), -farAhead))
}

// number reads a number that is not below least and not above most.
func (r *reader) number(least, most int64) int64 {
	n, size := binary.Uvarint(r.data)
	r.took(size)
	if r.err == nil && (n > math.MaxInt64 || int64(n) < least || int64(n) > most) {
		r.err = ErrGarbage
	}
	if r.err != nil {
		return 0
	}
	return int64(n)
}

// signed reads a number that may be below zero.
func (r *reader) signed(least, most int64) int64 {
	n, size := binary.Varint(r.data)
	r.took(size)
	if r.err == nil && (n < least || n > most) {
		r.err = ErrGarbage
	}
	if r.err != nil {
		return 0
	}
	return n
}

// count reads how many things follow, of that many bytes at least.
func (r *reader) count(bytes int) int64 {
	n := r.number(0, math.MaxInt64)
	if r.err == nil && n > int64(len(r.data)/bytes) {
		r.err = ErrShort
	}
	if r.err != nil {
		return 0
	}
	return n
}

// took takes note of a varint that was read.
func (r *reader) took(size int) {
	switch {
	case r.err != nil:
	case size == 0:
		r.err = ErrShort
	case size < 0:
		r.err = ErrGarbage
	default:
		r.data = r.data[size:]
	}
}
