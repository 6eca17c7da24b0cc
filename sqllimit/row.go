package sqllimit

import (
	"bytes"
	"encoding/binary"
	"errors"
	"math"
	"math/rand/v2"
	"time"

	"github.com/weir-go/ratelimit"
	"github.com/weir-go/ratelimit/internal/meter"
)

// row is the database's record of a key.
type row struct {
	reading int64 // the database's clock
	found   bool
	at      int64 // of the last change
	state   []byte
	expires int64 // when to look whether the row is fresh
}

// equals reports whether the database has the row already.
func (r row) equals(old row) bool {
	return old.found && r.at == old.at && r.expires == old.expires && bytes.Equal(r.state, old.state)
}

// A row's state is
//
//	version, flags                                   a byte each
//	length of the limit's text, text                 the length as a varint
//	mark, changes                                    4 bytes; a varint
//	the output of meter.AppendState
//
// or the first two alone, for a key that was reset. The mark distinguishes a row from deleted rows of the same key; changes counts how
// often the limit's figures have changed under it.
const (
	version = 1

	flagReset = 1 // the key was reset in this row, or has come from a row with this flag
)

var errForeign = errors.New("the row's state is not one of this package and version")

// entry is a key, while its row is decided on.
type entry struct {
	row
	now int64 // the reading, or a later recorded one

	plan    *plan       // the limit that the state is under; nil if the key is new
	meters  meter.State // as of now
	stored  []byte      // the meter's part of row.state, as long as nothing has changed
	reset   bool
	mark    uint32
	changes uint64
	edits   int // how often the key was changed; if above 0, it is to be written

	other      *plan // another limit than plan, under which the state was looked at last
	otherState meter.State
}

// open reads a row. It gets the plan only so that it need not make it anew.
func open(r row, p *plan) (*entry, error) {
	e := &entry{row: r, now: r.reading}
	if !r.found {
		return e, nil
	}
	b := r.state
	if len(b) < 2 || b[0] != version || b[1] > flagReset {
		return nil, errForeign
	}
	e.reset = b[1] == flagReset
	if b = b[2:]; len(b) == 0 {
		if !e.reset {
			return nil, errForeign
		}
		return e, nil // as if the key had never been seen, also if the clock has stepped back since
	}
	size, n := binary.Uvarint(b)
	if n <= 0 || size > uint64(len(b)-n) {
		return nil, errForeign
	}
	text := b[n : n+int(size)]
	if b = b[n+int(size):]; len(b) < 5 {
		return nil, errForeign
	}
	e.mark = binary.BigEndian.Uint32(b)
	if e.changes, n = binary.Uvarint(b[4:]); n <= 0 {
		return nil, errForeign
	}
	e.stored, e.now = b[4+n:], max(r.reading, r.at)
	if e.plan = p; p == nil || p.text != string(text) {
		limit, err := ratelimit.ParseLimit(string(text))
		if err != nil {
			return nil, errForeign
		}
		if e.plan, err = newPlan(limit); err != nil || !e.plan.tracks() {
			return nil, errForeign
		}
	}
	var err error
	e.meters, err = e.asOf(e.now)
	return e, err
}

// asOf returns the stored state as of an instant.
func (e *entry) asOf(at int64) (meter.State, error) {
	s, rest, err := e.plan.meter.ReadState(e.stored, at, at-e.at)
	if err != nil || len(rest) > 0 {
		return s, errForeign
	}
	e.plan.meter.Advance(&s, at) // readings are wall time, so a window that is over stays so
	return s, nil
}

// before returns the state under the plan that the key is under, at the instant from which on it is
// under p.
func (e *entry) before(p *plan) (meter.State, int64, error) {
	if e.edits > 0 {
		e.plan.meter.Refresh(&e.meters)
		return e.meters, e.now, nil
	}
	at := e.now
	if since := p.since.Load(); since != unset {
		at = min(max(e.at, since), e.now)
	}
	s, err := e.asOf(at)
	return s, at, err
}

// under returns the state under a plan, as of now.
func (e *entry) under(p *plan) (*meter.State, error) {
	switch {
	case e.plan != nil && e.plan.text == p.text:
		p.meter.Advance(&e.meters, e.now)
		return &e.meters, nil
	case e.other != nil && e.other.text == p.text:
		return &e.otherState, nil
	}
	s := meter.State{At: e.now}
	if e.plan != nil {
		old, at, err := e.before(p)
		if err != nil {
			return nil, err
		}
		s = p.meter.Migrate(&e.plan.meter, old, at)
	}
	p.meter.Advance(&s, e.now)
	e.other, e.otherState = p, s
	return &e.otherState, nil
}

// change makes a state that under has returned, and that was changed, the key's.
func (e *entry) change(p *plan, s *meter.State) {
	if s != &e.meters {
		if e.plan == nil {
			e.mark = rand.Uint32()
		} else if a, b := e.plan.limit, p.limit; a.Algorithm != ratelimit.AlgorithmCalendar || b.Algorithm != a.Algorithm || a.Period != b.Period {
			e.changes++ // under other units of its period, a calendar's windows are the same
		}
		e.meters, e.otherState = *s, meter.State{}
	}
	e.plan, e.other = p, nil
	e.edits++
}

// take answers an order to spend. It reports whether that was allowed.
func (e *entry) take(o *order) error {
	p := o.plan
	s, err := e.under(p)
	if err != nil {
		return err
	}
	p.decided(e.reading)
	m := meter.Moment{Reading: e.reading, Now: e.now}
	offer := m.Free()
	if o.cost > 0 {
		ahead := o.ahead
		if !p.meter.Delays() && o.keep == meter.Final {
			ahead = 0
		}
		offer = p.meter.Offer(*s, m, o.cost, ahead)
	}
	d := &o.decision
	*d = ratelimit.Decision{Limit: p.limit, Allowed: !offer.Denied(e.reading)}
	if !d.Allowed {
		d.RetryAfter = between(e.reading, offer.Retry)
	} else if offer.At > e.now {
		d.Delay = between(e.reading, offer.At)
	}
	if d.Allowed && o.cost > 0 && !o.peek {
		p.meter.Accept(s, e.now, offer, o.cost, o.keep)
		o.spending = offer.Spending(o.cost)
		o.spending.Open = o.keep == meter.Open
		if p.limit.Algorithm == ratelimit.AlgorithmCalendar {
			o.spending.Part = s.M
		}
		e.change(p, s)
		s = &e.meters
		o.mark, o.changes = e.mark, e.changes
	}
	remaining, debt, regained := p.meter.Standing(*s, e.now)
	d.Remaining, d.Debt = int(min(remaining, math.MaxInt)), int(min(debt, math.MaxInt))
	d.ResetAfter = between(e.reading, max(e.now, regained))
	return nil
}

// settle corrects the spending of an order. Its plan is the limiter's current plan for the key.
func (e *entry) settle(o *order) error {
	sp, p := o.spending, o.plan
	if e.plan == nil || e.mark != o.mark {
		// The key was reset, and there is nothing to settle; or its row was deleted because it was fresh.
		if !e.reset && o.actual > sp.Cost {
			return e.adjust(p, o.actual-sp.Cost)
		}
		return nil
	}
	sp.Changed = e.changes != o.changes
	if p.text == e.plan.text {
		e.plan.meter.Settle(&e.meters, e.now, sp, o.actual)
		e.change(e.plan, &e.meters)
		return nil
	}
	s, at, err := e.before(p)
	if err != nil {
		return err
	}
	e.plan.meter.Settle(&s, at, sp, o.actual)
	e.plan.meter.Refresh(&s)
	s = p.meter.Migrate(&e.plan.meter, s, at)
	p.meter.Advance(&s, e.now)
	e.change(p, &s)
	return nil
}

// adjust charges a delta, or forgives one below 0.
func (e *entry) adjust(p *plan, delta int64) error {
	s, err := e.under(p)
	if err != nil {
		return err
	}
	p.decided(e.reading)
	p.meter.Adjust(s, e.now, delta)
	e.change(p, s)
	return nil
}

// ends returns the instant from which on the row may be deleted, under the limit that the key has now. A row is kept for
// some time after the key is fresh: without it, a clock that steps back would have the key spend again.
func (e *entry) ends(p *plan) (int64, error) {
	at := e.at // the time of the write: spending that has ended since then is not to be advanced
	s, err := e.asOf(at)
	if err == nil && p.text != e.plan.text {
		if s, at, err = e.before(p); err == nil {
			s = p.meter.Migrate(&e.plan.meter, s, at)
		}
	}
	if err != nil {
		return 0, err
	}
	return meter.Add(max(at, p.meter.Forgotten(s)), p.keep), nil
}

// next returns the row that takes the place of the entry's, after a change.
func (e *entry) next() row {
	m := &e.plan.meter
	m.Refresh(&e.meters)
	b := append(make([]byte, 0, 64+len(e.stored)), version, 0)
	if e.reset {
		b[1] = flagReset
	}
	b = binary.AppendUvarint(b, uint64(len(e.plan.text)))
	b = append(b, e.plan.text...)
	b = binary.BigEndian.AppendUint32(b, e.mark)
	b = binary.AppendUvarint(b, e.changes)
	r := row{at: e.now, state: m.AppendOpen(b, e.meters, e.now), expires: e.expires}
	// As long as expires is to come it stays, so that the database need not write its index. It only determines when the row is looked at.
	if !e.found || e.expires <= e.now {
		r.expires = meter.Add(max(e.now, m.Forgotten(e.meters)), e.plan.keep)
	}
	return r
}

// between returns the time from one instant to a later one.
func between(from, to int64) time.Duration {
	if d := to - from; d >= 0 && d <= math.MaxInt64/1000 {
		return time.Duration(d) * time.Microsecond
	}
	return math.MaxInt64
}

// correct carries out an adjustment.
func (e *entry) correct(o *order) error { return e.adjust(o.plan, o.actual) }
