package meter

import (
	"encoding/binary"
	"errors"
	"math"
	"slices"
)

// This file writes states to memory that outlives the program, and reads them. All
// instants are relative to the instant of writing. So the reader may be a later program,
// and may count from another origin. Numbers are varints, as of encoding/binary:
//
//	bucket           at, n
//	fixed window     at, n
//	sliding counter  at, n, m
//	calendar         0, n, m
//	sliding log      entries, {at, cost} for each, m, at if m > 0
//	all but the log  bookings, {at, cost, and for a leaky bucket part} for each
//	flagRest         units, until
//	flagOlder        the longest window, entries, {at, cost} for each: a log's rest
//	flagLoose        nothing: the bookings are loose, see gaps.go
//	flagOpen         the open reservations of each booking, opens, and those of them from before the last change, for each
//	                 {the span from there to the writing, part, count, least}, the newest first
//
// The flags are bits of the number of entries or bookings. A least debt is
// written as its ticks plus one, and its fraction; or as 0 if it is unsampled.
//
// The instant of an entry or a booking is written as the span since the one before. The
// reader does not trust the data: it checks every figure before the arithmetic relies on it.

// mostUnits is the maximum count of the previous window, under that time's limit.
const mostUnits = 1 << 53

// MostOrdinal is above the ordinals of all windows of a calendar: seconds up to the year 9999.
const MostOrdinal = 1 << 39

// Flags of the data after the bookings. They are bits above any count of bookings.
const (
	flagRest = 1 << 32
	flagOpen = 1 << 33

	flagOlder = 1 << 34
	flagLoose = 1 << 35
)

// mostOpens is the maximum number of open reservations to write.
const mostOpens = 16

// Errors of [Meter.ReadState].
var (
	ErrShort   = errors.New("cut short")
	ErrGarbage = errors.New("not a state of this limit")
)

// AppendState appends a state as of now to buf. The state is up to date, and stays as it is. Open reservations are left
// out: they cannot be settled in a later program. Former limits are forgotten: units counted by them alone are set aside.
func (m *Meter) AppendState(buf []byte, s State, now int64) []byte {
	return m.append(buf, m.forgetting(s, now), now, nil)
}

// AppendOpen is AppendState with the open reservations, for a store: there other programs
// settle them. If there are many, some count as one. A store has no former limits.
func (m *Meter) AppendOpen(buf []byte, s State, now int64) []byte {
	if m.token == nil || s.detail == nil {
		return m.append(buf, s, now, nil)
	}
	l := *s.ledger // the copy's list of opens may change
	l.opens = slices.Clone(l.opens)
	if k := l.search(now + 1); k > 0 {
		l.due(m.token, l.list[:k])
	}
	for len(l.opens) > mostOpens {
		l.merge(len(l.opens) - 1) // the last element numbers this instant's grants
	}
	return m.append(buf, s, now, &l)
}

// append is AppendState, with a ledger's open reservations unless the ledger is nil.
func (m *Meter) append(buf []byte, s State, now int64, l *ledger) []byte {
	flags, r := uint64(0), s.asideAt(now)
	switch {
	case r.log != nil:
		flags |= flagOlder
	case r.units > 0:
		flags |= flagRest
	}
	if l != nil && l.isOpen() {
		flags |= flagOpen
	}
	if s.loose() && m.newest(s, now) > now {
		flags |= flagLoose
	}
	if log, ok := m.algorithm.(*slidingLog); ok {
		buf = log.append(buf, log.advance(log.aside(s), now), now, flags)
	} else {
		buf = m.appendSums(buf, s, now, flags)
	}
	switch {
	case r.log != nil:
		buf = binary.AppendUvarint(buf, uint64(r.log.per))
		buf = appendEntries(binary.AppendUvarint(buf, uint64(r.log.len())), &r.log.totals, now-r.log.per)
	case r.units > 0:
		buf = binary.AppendUvarint(buf, uint64(r.units))
		buf = binary.AppendUvarint(buf, uint64(min(r.until-now, 2*m.horizon)))
	}
	if flags&flagOpen == 0 {
		return buf
	}
	for _, b := range l.list[l.search(now+1):] {
		buf = binary.AppendUvarint(buf, uint64(b.open))
	}
	buf = binary.AppendUvarint(buf, uint64(len(l.opens)))
	buf = binary.AppendUvarint(buf, uint64(l.older))
	for i := len(l.opens) - 1; i >= 0; i-- {
		o := &l.opens[i]
		buf = binary.AppendUvarint(buf, uint64(now-o.from))
		buf = binary.AppendUvarint(buf, uint64(o.part))
		buf = binary.AppendUvarint(buf, uint64(o.count))
		if o.least == unsampled {
			buf = append(buf, 0)
			continue
		}
		buf = binary.AppendUvarint(buf, uint64(o.least.ticks)+1)
		buf = binary.AppendUvarint(buf, uint64(o.least.frac))
	}
	return buf
}

// appendSums is append for an algorithm with sums.
func (m *Meter) appendSums(buf []byte, s State, now int64, flags uint64) []byte {
	base, booked := m.parted(s, now)
	_, dated := m.algorithm.(*calendar)
	if dated {
		// The spending stays in its window, perhaps a past one, because the wall clock may have
		// been ahead. The instant only decides about refunds, and after a restart there are none.
		base.At = now
	} else {
		base = m.advance(base, now)
	}
	buf = binary.AppendVarint(buf, base.At-now)
	buf = binary.AppendUvarint(buf, uint64(base.N))
	if m.kind == SlidingCounter || dated {
		buf = binary.AppendUvarint(buf, uint64(base.M))
	}
	buf = binary.AppendUvarint(buf, uint64(len(booked))|flags)
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

// append is append for a log advanced to now.
func (l *slidingLog) append(buf []byte, s State, now int64, flags uint64) []byte {
	var none totals
	r := &none
	if s.detail != nil {
		r = &s.log
	}
	buf = appendEntries(binary.AppendUvarint(buf, uint64(r.len())|flags), r, now-l.per)
	if buf = binary.AppendUvarint(buf, uint64(s.M)); s.M > 0 {
		buf = binary.AppendUvarint(buf, uint64(s.At-now))
	}
	return buf
}

// appendEntries appends entries, all after an instant.
func appendEntries(buf []byte, r *totals, since int64) []byte {
	for i := range r.len() {
		e := r.get(i)
		buf = binary.AppendUvarint(buf, uint64(e.at-since))
		buf = binary.AppendUvarint(buf, uint64(e.cost))
		since = e.at
	}
	return buf
}

// ReadState reads AppendState's state, and brings it to now: passed ticks after the writing.
// But a calendar's spending stays in its window, perhaps a past one, because the wall clock may
// be ahead. ReadState also returns the rest of data. The error is [ErrShort] or [ErrGarbage].
func (m *Meter) ReadState(data []byte, now, passed int64) (State, []byte, error) {
	r := reader{data: data, horizon: m.horizon, now: now, passed: passed}
	var s State
	if l, ok := m.algorithm.(*slidingLog); ok {
		s = r.log(l, m)
	} else {
		s = r.sums(m)
	}
	s = r.appendix(m, s)
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
	flags       int64
	err         error // the first error
}

// sums reads a state of any algorithm without a list of entries.
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

// appendix reads the parts announced by the flags.
func (r *reader) appendix(m *Meter, s State) State {
	if r.err == nil && r.flags&flagRest != 0 {
		units := r.number(1, math.MaxInt64)
		if until := r.instant(r.number(1, 2*r.horizon)); r.err == nil && until > r.now {
			s = s.setAside(rest{units: units, until: until})
		}
	}
	if r.err == nil && r.flags&flagOlder != 0 {
		s = r.older(m, s)
	}
	if r.err == nil && r.flags&flagLoose != 0 {
		s = m.loosened(m, s, r.now)
	}
	if r.err != nil || r.flags&flagOpen == 0 {
		return s
	}
	if m.token == nil {
		r.err = ErrGarbage
	}
	if s.detail == nil {
		s.detail = &detail{ledger: &ledger{}}
	}
	for i := range s.ledger.list {
		s.ledger.list[i].open = int(r.number(0, farAhead))
	}
	s.ledger.opens, s.ledger.older = r.opens(m)
	s.ledger.uneven = !slices.IsSortedFunc(s.ledger.opens, byLeast)
	return s
}

// older reads a log's rest.
func (r *reader) older(m *Meter, s State) State {
	if !m.log {
		r.err = ErrGarbage
		return s
	}
	o := older{per: r.number(1, 2*r.horizon)}
	at, sum := -o.per, int64(0)
	for range r.number(0, int64(len(r.data)/2)) {
		at += r.number(1, -at)
		cost := r.number(1, math.MaxInt64-sum)
		if r.err != nil {
			return s
		}
		o.add(r.instant(at), cost)
		sum += cost
	}
	if o.len() == 0 {
		return s
	}
	return s.setAside(restOf(o, r.now))
}

// opens reads a token bucket's open reservations.
func (r *reader) opens(m *Meter) (opens []open, older int) {
	n := r.number(0, mostOpens)
	older = int(r.number(0, n))
	for range n {
		o := open{from: r.instant(-r.number(0, farAhead)), part: r.number(0, farAhead), count: int(r.number(0, farAhead)), least: unsampled}
		if ticks := r.number(0, r.horizon+1); ticks > 0 {
			o.least = span{ticks - 1, r.number(0, m.token.units-1)}
		}
		if k := len(opens) - 1; k >= 0 && o.from > opens[k].from && r.err == nil {
			r.err = ErrGarbage
		}
		if r.err != nil {
			return nil, 0
		}
		opens = append(opens, o)
	}
	slices.Reverse(opens)
	return opens, older
}

// instant returns a span's instant after the writing, on the reader's axis. If it is
// longer ago than the longest counted span, instant returns that span's beginning.
func (r *reader) instant(span int64) int64 {
	return Add(r.now, max(span-min(r.passed, farAhead), -farAhead))
}

// number reads a number from least to most.
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

// count reads the flags, and the number of the following elements. Each takes at least the given number of bytes.
func (r *reader) count(bytes int) int64 {
	n := r.number(0, math.MaxInt64)
	r.flags, n = n&^(flagRest-1), n&(flagRest-1)
	if r.err == nil && r.flags&^(flagRest|flagOpen|flagOlder|flagLoose) != 0 {
		r.err = ErrGarbage
	}
	if r.err == nil && n > int64(len(r.data)/bytes) {
		r.err = ErrShort
	}
	if r.err != nil {
		return 0
	}
	return n
}

// took counts the bytes of a varint after it was read.
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
