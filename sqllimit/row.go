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
	at      int64 // the time of the last change
	state   []byte
	expires int64 // when a sweep examines whether the row is fresh
}

// equals reports whether the database has this row already.
func (r row) equals(old row) bool {
	return old.found && r.at == old.at && r.expires == old.expires && bytes.Equal(r.state, old.state)
}

// A row's state is
//
//	version, flags                                   a byte each
//	length of the limit's text, text                 the length as a varint
//	mark, changes                                    4 bytes; a varint
//	window, sum of open estimates                    varints, with flagOpen
//	the output of meter.AppendState
//
// or only the first two, for a key that was reset. The mark distinguishes a row from
// deleted rows with the same key; changes counts how often the limit's figures changed.
const (
	version = 1

	flagReset = 1 // the key was reset in this row, or has come from a row with this flag
	flagOpen  = 2 // the row has the sum of the key's open estimates: see openSum
)

var errForeign = errors.New("the row's state is not one of this package and version")

// account is a key's state, while its row is decided on.
type account struct {
	row
	now int64 // the reading, or a later recorded one

	plan    *plan       // the state's limit; nil if the key is new
	meters  meter.State // the state as of now
	stored  []byte      // the meter's part of row.state, while nothing has changed
	reset   bool
	mark    uint32
	changes uint64
	open    openSum
	edits   int // changes of the key; if above 0, the key must be written

	other      *plan // the last limit, other than plan, used to examine the state
	otherState meter.State
}

// open reads a row. It gets the plan only to avoid making an equal one.
func open(r row, p *plan) (*account, error) {
	a := &account{row: r, now: r.reading}
	if !r.found {
		return a, nil
	}
	b := r.state
	if len(b) < 2 || b[0] != version || b[1] > flagReset|flagOpen {
		return nil, errForeign
	}
	hasOpen := b[1]&flagOpen != 0
	a.reset = b[1]&flagReset != 0
	if b = b[2:]; len(b) == 0 {
		if !a.reset || hasOpen {
			return nil, errForeign
		}
		return a, nil // the key is like one never seen, even if the clock has stepped back since
	}
	size, n := binary.Uvarint(b)
	if n <= 0 || size > uint64(len(b)-n) {
		return nil, errForeign
	}
	text := b[n : n+int(size)]
	if b = b[n+int(size):]; len(b) < 5 {
		return nil, errForeign
	}
	a.mark = binary.BigEndian.Uint32(b)
	if a.changes, n = binary.Uvarint(b[4:]); n <= 0 {
		return nil, errForeign
	}
	b = b[4+n:]
	if hasOpen {
		if b = a.readOpen(b); b == nil {
			return nil, errForeign
		}
	}
	a.stored, a.now = b, max(r.reading, r.at)
	if a.plan = p; p == nil || p.text != string(text) {
		limit, err := ratelimit.ParseLimit(string(text))
		if err != nil {
			return nil, errForeign
		}
		if a.plan, err = newPlan(limit); err != nil || !a.plan.tracks() {
			return nil, errForeign
		}
	}
	var err error
	a.meters, err = a.asOf(a.now)
	return a, err
}

// asOf returns the stored state as of an instant.
func (a *account) asOf(at int64) (meter.State, error) {
	s, rest, err := a.plan.meter.ReadState(a.stored, at, at-a.at)
	if err != nil || len(rest) > 0 {
		return s, errForeign
	}
	a.plan.meter.Advance(&s, at) // readings are wall time, so an ended window stays ended
	return s, nil
}

// before returns the state under the key's present plan, at the instant when the key came under p.
func (a *account) before(p *plan) (meter.State, int64, error) {
	if a.edits > 0 {
		a.plan.meter.Refresh(&a.meters)
		return a.meters, a.now, nil
	}
	at := a.now
	if since := p.since.Load(); since != unset {
		at = min(max(a.at, since), a.now)
	}
	s, err := a.asOf(at)
	return s, at, err
}

// under returns the state under a plan, as of now.
func (a *account) under(p *plan) (*meter.State, error) {
	switch {
	case a.plan != nil && a.plan.text == p.text:
		p.meter.Advance(&a.meters, a.now)
		return &a.meters, nil
	case a.other != nil && a.other.text == p.text:
		return &a.otherState, nil
	}
	s := meter.State{At: a.now}
	if a.plan != nil {
		old, at, err := a.before(p)
		if err != nil {
			return nil, err
		}
		s = p.meter.Migrate(&a.plan.meter, old, at)
	}
	p.meter.Advance(&s, a.now)
	a.other, a.otherState = p, s
	return &a.otherState, nil
}

// change makes s the key's state: the caller has changed it since under returned it.
func (a *account) change(p *plan, s *meter.State) {
	if s != &a.meters {
		if a.plan == nil || a.plan.meter.Holds() != p.meter.Holds() { // units in use do not count as spending: nothing is left to settle
			a.mark, a.open = rand.Uint32(), openSum{}
		} else if was, is := a.plan.limit, p.limit; was.Algorithm != ratelimit.AlgorithmCalendar || is.Algorithm != was.Algorithm || was.Period != is.Period {
			a.changes++ // under other units of its period, a calendar's windows are the same
		}
		a.meters, a.otherState = *s, meter.State{}
	}
	a.plan, a.other = p, nil
	a.edits++
}

// take carries out an operation to spend, and reports whether it was allowed.
func (a *account) take(o *operation) error {
	p := o.plan
	s, err := a.under(p)
	if err != nil {
		return err
	}
	p.decided(a.reading)
	m := meter.Moment{Reading: a.reading, Now: a.now}
	if o.follows {
		_, o.followed.openBefore = a.spent(p, s)
	}
	offer, tight, own := m.Free(), false, s
	if o.instead != nil {
		if s, err = a.without(p, s, o.instead); err != nil {
			return err
		}
	}
	if o.instead != nil || o.between {
		tight = p.meter.Loosen(s, a.now)
	}
	if o.behind && p.meter.Tighten(s) {
		defer func() { p.meter.Loosen(s, a.now) }()
	}
	if o.cost > 0 {
		ahead := o.ahead
		if !p.meter.Delays() && o.keep == meter.Final {
			ahead = 0
		}
		offer = p.meter.OfferAfter(*s, m, o.from, o.cost, ahead)
	}
	d := &o.decision
	*d = ratelimit.Decision{Limit: p.limit, Allowed: !offer.Denied(a.reading)}
	if s != own && d.Allowed {
		*own, s = *s, own
	}
	if !d.Allowed {
		d.RetryAfter = between(a.reading, offer.Retry)
		o.reading, o.booked = a.reading, p.meter.BookedUntil(*s, a.now)-a.now
	} else if offer.At > a.now {
		d.Delay = between(a.reading, offer.At)
	}
	if d.Allowed && o.cost > 0 && !o.peek {
		p.meter.Accept(s, a.now, offer, o.cost, o.keep)
		o.spending = offer.Spending(o.cost)
		o.spending.Open = o.keep == meter.Open
		if p.limit.Algorithm == ratelimit.AlgorithmCalendar {
			o.spending.Part = s.M
		}
		a.change(p, s)
		s = &a.meters
		o.mark, o.changes = a.mark, a.changes
		if o.follows {
			sum := o.followed.openBefore
			if o.spending.Open && !p.meter.Holds() {
				sum = meter.Add(sum, o.cost)
			}
			a.setOpen(sum)
		}
	}
	if tight {
		p.meter.Tighten(s)
	}
	if o.lives = a.plan != nil; o.lives {
		o.mark = a.mark
	}
	remaining, debt, regained := p.meter.Standing(*s, a.now)
	d.Remaining, d.Debt = int(min(remaining, math.MaxInt)), int(min(debt, math.MaxInt))
	if d.ResetAfter = between(a.reading, max(a.now, regained)); remaining == 0 {
		d.NextAfter = between(a.reading, p.meter.Earliest(*s, a.now, 1))
	}
	return nil
}

// without returns a copy of a state under a plan, without a booking. If the booking is gone, it returns the state itself.
func (a *account) without(p *plan, s *meter.State, b *booking) (*meter.State, error) {
	sp := b.spending
	if a.plan == nil || a.mark != b.mark || p.meter.Holds() {
		return s, nil
	}
	sp.Changed = a.changes != b.changes || s != &a.meters
	p.meter.Refresh(s)
	c, rest, err := p.meter.ReadState(p.meter.AppendOpen(nil, *s, a.now), a.now, 0)
	if err != nil || len(rest) > 0 {
		return s, errForeign
	}
	p.meter.Settle(&c, a.now, sp, 0)
	p.meter.Advance(&c, a.now)
	return &c, nil
}

// settle corrects an operation's spending. Its plan is the limiter's current plan for the key.
func (a *account) settle(o *operation) error {
	sp, p := o.spending, o.plan
	if a.plan == nil || a.mark != o.mark {
		// The key was reset, so there is nothing to settle. Or its row was deleted because the key was fresh.
		if !a.reset && o.actual > sp.Cost && !p.meter.Holds() {
			return a.adjust(p, o.actual-sp.Cost)
		}
		return nil
	}
	sp.Changed = a.changes != o.changes
	if o.stays || p.text == a.plan.text {
		a.plan.meter.Settle(&a.meters, a.now, sp, o.actual)
		a.change(a.plan, &a.meters)
		return nil
	}
	s, at, err := a.before(p)
	if err != nil {
		return err
	}
	a.plan.meter.Settle(&s, at, sp, o.actual)
	a.plan.meter.Refresh(&s)
	s = p.meter.Migrate(&a.plan.meter, s, at)
	p.meter.Advance(&s, a.now)
	a.change(p, &s)
	return nil
}

// adjust charges a delta, or forgives one below 0.
func (a *account) adjust(p *plan, delta int64) error {
	s, err := a.under(p)
	if err != nil {
		return err
	}
	p.decided(a.reading)
	p.meter.Adjust(s, a.now, delta)
	a.change(p, s)
	return nil
}

// ends returns when the row may be deleted, under the key's present limit. A row stays for some
// time after its key is fresh: otherwise the key could spend again after a step back of the clock.
func (a *account) ends(p *plan) (int64, error) {
	at := a.at // the write's time, so spending that has ended since stays
	s, err := a.asOf(at)
	if err == nil && p.text != a.plan.text {
		if s, at, err = a.before(p); err == nil {
			s = p.meter.Migrate(&a.plan.meter, s, at)
		}
	}
	if err != nil {
		return 0, err
	}
	return meter.Add(max(at, p.meter.Forgotten(s)), p.keep), nil
}

// next returns the new row of the account after a change.
func (a *account) next() row {
	m := &a.plan.meter
	m.Refresh(&a.meters)
	b := append(make([]byte, 0, 64+len(a.stored)), version, 0)
	if a.reset {
		b[1] = flagReset
	}
	if a.open.sum > 0 {
		b[1] |= flagOpen
	}
	b = binary.AppendUvarint(b, uint64(len(a.plan.text)))
	b = append(b, a.plan.text...)
	b = binary.BigEndian.AppendUint32(b, a.mark)
	b = binary.AppendUvarint(b, a.changes)
	if a.open.sum > 0 {
		b = a.open.appendTo(b)
	}
	r := row{at: a.now, state: m.AppendOpen(b, a.meters, a.now), expires: a.expires}
	// While expires is in the future it stays, so the database need not
	// write its index. It only determines when the row is examined.
	if !a.found || a.expires <= a.now {
		r.expires = meter.Add(max(a.now, m.Forgotten(a.meters)), a.plan.keep)
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
func (a *account) correct(o *operation) error { return a.adjust(o.plan, o.actual) }

// A key's row contains the sum of the estimates of its open reservations, if their calls follow their
// keys' spending. Package policy makes such calls for rules with notices. Other calls leave the sum as
// it is. Under a limit with windows, the sum counts only in its own window. It is at most the spending.
type openSum struct{ window, sum int64 }

// windowOf returns a number to distinguish a state's window from others by, 0 for limits without windows.
func windowOf(p *plan, s *meter.State) int64 {
	switch p.limit.Algorithm {
	case ratelimit.AlgorithmFixedWindow:
		return s.At
	case ratelimit.AlgorithmCalendar:
		return s.M
	}
	return 0
}

// spent returns a key's spending and the sum of its open estimates, for a state as of now.
func (a *account) spent(p *plan, s *meter.State) (spent, open int64) {
	p.meter.Refresh(s)
	remaining, debt, _ := p.meter.Standing(*s, a.now)
	spent = meter.Add(max(0, int64(p.limit.Capacity())-remaining), debt)
	if a.open.sum > 0 && !p.meter.Holds() && a.open.window == windowOf(p, s) {
		open = min(a.open.sum, spent)
	}
	return spent, open
}

// setOpen replaces the sum of the key's open estimates. The caller writes the key anyway.
func (a *account) setOpen(sum int64) {
	if a.open = (openSum{}); sum > 0 {
		a.open = openSum{windowOf(a.plan, &a.meters), sum}
	}
}

// carryOut makes an operation change the account, and returns the followed figures.
func (a *account) carryOut(o *operation) error {
	if !o.follows {
		return o.do(a, o)
	}
	f, estimated := &o.followed, int64(0)
	if *f = (followed{}); a.plan != nil {
		f.before, f.openBefore = a.spent(a.plan, &a.meters)
		if sp := &o.spending; sp.Open && a.mark == o.mark && a.counted(sp) {
			estimated = sp.Cost
		}
	}
	edits := a.edits
	if err := o.do(a, o); err != nil {
		return err
	}
	if f.gone = a.plan == nil; f.gone {
		return nil
	}
	if a.edits > edits {
		a.open.window = windowOf(a.plan, &a.meters)
		spent, _ := a.spent(a.plan, &a.meters)
		a.setOpen(min(max(0, f.openBefore-estimated), spent))
	}
	_, f.openAfter = a.spent(a.plan, &a.meters)
	d := &f.after
	if d.Limit = a.plan.limit; d.Limit.Name == "" {
		d.Limit.Name = o.plan.limit.Name
	}
	remaining, debt, regained := a.plan.meter.Standing(a.meters, a.now)
	d.Remaining, d.Debt = int(min(remaining, math.MaxInt)), int(min(debt, math.MaxInt))
	d.ResetAfter = between(a.reading, max(a.now, regained))
	return nil
}

// counted reports whether a spending is in the key's present window.
func (a *account) counted(sp *meter.Spending) bool {
	switch a.plan.limit.Algorithm {
	case ratelimit.AlgorithmFixedWindow:
		return sp.At >= a.meters.At
	case ratelimit.AlgorithmCalendar:
		return sp.Part == a.meters.M
	}
	return true
}

// readOpen reads the sum from a row's state, and returns the rest. Without a sum it returns nil.
func (a *account) readOpen(b []byte) []byte {
	window, n := binary.Varint(b)
	if n <= 0 {
		return nil
	}
	sum, m := binary.Uvarint(b[n:])
	if m <= 0 || sum > math.MaxInt64 {
		return nil
	}
	a.open = openSum{window, int64(sum)}
	return b[n+m:]
}

// appendTo appends the sum to a row's state.
func (o openSum) appendTo(b []byte) []byte {
	return binary.AppendUvarint(binary.AppendVarint(b, o.window), uint64(o.sum))
}
