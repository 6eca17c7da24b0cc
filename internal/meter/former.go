package meter

import (
	"math"
	"slices"
)

// This file keeps the states of a key under limits that it has left. A limit that changes back and forth between two algorithms,
// or between windows of two lengths, would otherwise begin a new window at each change, with all that counts in it, and so
// regain nothing.
//
// A former limit goes on counting as if it had stayed in force: it is charged each cost that passes, up to its capacity, and it
// regains. When the key comes under it again, it goes on from there. So a key under such a limit has no less than if the limit
// had never changed and all the same costs had passed: what passes in any sequence of limits is no less than under the lowest of
// them alone.
//
// The bound of changing limits holds, since each state regains by its own limit alone. Let S be what passes in an interval. If
// the last limit in force was never full while it was a former one, its state counts all of S but what it has regained, and
// no more than its capacity. Otherwise consider the last instant at which it was full. What passes after that is at most what it
// regains, and what passed before it is bounded in the same way by the limit that was in force then.
//
// A former limit does not follow bookings to come: with one, a change of the limit forgets all former limits.

// formers is the part of a state that depends on former limits.
type formers struct {
	list []former // the last one that was left is the last

	// The instant at which the key will have been fresh under all limits for so long that it is as good as a new key. A key that has
	// just become fresh keeps its former limits: otherwise it would begin a window under them with the next change. It follows from
	// what was charged alone, and never from the instant of a look.
	idle int64

	// The key is not forgotten before that: until then, units that a full former limit has not counted are regained by the limit
	// that they were spent under. If full is set, the limit in force is such a limit, too, once it is left.
	hold int64
	full bool

	// The units that passed while the state was a former one and full, until it has regained those that it counts. A settlement takes
	// from them first.
	lost, until int64
	over        int64 // the part of lost that is regained, and that a raised limit does not count again
}

// noFormers is the part of a state without former limits.
var noFormers = formers{idle: never, hold: never, until: never}

// never is an instant before all others.
const never = math.MinInt64

// former is a limit that a key has left, and the state under it, which has neither bookings nor a line.
type former struct {
	m     *Meter
	s     State
	until int64 // the instant at which it is forgotten
}

const (
	// mostFormer is the maximum number of former limits.
	mostFormer = 8

	// formerFor is the number of times that the capacity of a former limit is regained until the limit is forgotten. A limit that
	// changes so seldom loses a small part at each change.
	formerFor = 50
)

// formers returns the part of the state that depends on former limits, nil if there are none.
func (s *State) formers() *formers {
	if s.detail == nil || s.ledger == nil {
		return nil
	}
	return s.ledger.formers
}

// withFormers returns a state with former limits.
func (s State) withFormers(p formers) State {
	if len(p.list) == 0 && p.hold == never && p.lost == 0 {
		return s
	}
	if s.detail == nil {
		s.detail = new(detail)
	}
	if s.ledger == nil {
		s.ledger = new(ledger)
	}
	s.ledger.formers = &p
	return s
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

// alike reports whether the state of one meter keeps the instants at which it regains when it is converted to the other one. Of
// former limits that are alike, only the last one goes on counting.
func (m *Meter) alike(other *Meter) bool {
	switch {
	case m.family() != other.family():
		return false
	case m.family() != familyWindow:
		return true
	case m.kind != other.kind:
		return false
	case m.kind == Calendar: // whose windows end when they end
		return true
	}
	a, _ := m.windows()
	b, _ := other.windows()
	return a == b
}

// lasts brings formers.idle up to date after a charge, or a change of the limit.
func (m *Meter) lasts(s State, now int64) {
	if p := s.formers(); p != nil && len(p.list) > 0 {
		p.lasts(m, s, now)
	}
}

func (p *formers) lasts(m *Meter, s State, now int64) {
	p.last(m, s, now)
	for i := range p.list {
		p.last(p.list[i].m, p.list[i].s, now)
	}
}

// last is lasts for one state. A state without spending has no instant.
func (p *formers) last(m *Meter, s State, now int64) {
	if m.spent(s, now) > 0 || s.asideAt(now).units > 0 {
		p.idle = max(p.idle, Add(m.Forgotten(s), m.refill()))
	}
}

// booked keeps the former limits until a booking has passed, and is regained.
func (p *formers) booked(m *Meter, at int64) {
	p.idle = max(p.idle, Add(at, 2*m.refill()))
	for _, f := range p.list {
		p.idle = max(p.idle, Add(at, 2*f.m.refill()))
	}
}

// hasBookings reports whether anything is booked after now.
func (m *Meter) hasBookings(s State, now int64) bool {
	switch {
	case s.detail == nil:
		return false
	case m.log:
		return s.log.newest() > now
	}
	return s.ledger.newest() > now
}

// cloned returns a copy of a state, without its line.
func (m *Meter) cloned(s State) State {
	if s.detail == nil {
		return s
	}
	d := &detail{log: s.log.clone()}
	if s.ledger != nil {
		l := *s.ledger
		l.line, l.list, l.gone, l.opens = nil, slices.Clone(l.list), 0, slices.Clone(l.opens)
		if o := l.rest.log; o != nil {
			l.rest.log = &older{o.clone(), o.per}
		}
		l.formers = l.formers.cloned()
		d.ledger = &l
	}
	s.detail = d
	return m.trimmed(s)
}

func (p *formers) cloned() *formers {
	if p == nil {
		return nil
	}
	c := *p
	c.list = slices.Clone(p.list)
	for i := range c.list {
		c.list[i].s = c.list[i].m.cloned(c.list[i].s)
	}
	return &c
}

// parting takes the former limits out of a state that shares no memory, and returns them. The units that the state has lost stay
// with it.
func (m *Meter) parting(s State) (State, formers) {
	p := s.formers()
	if p == nil {
		return s, noFormers
	}
	was := *p
	s.ledger.formers = nil
	if was.lost > 0 {
		kept := noFormers
		kept.lost, kept.until, kept.over = was.lost, was.until, was.over
		s.ledger.formers = &kept
	}
	return m.trimmed(s), was
}

// under is Migrate for a state with former limits, or one that leaves a limit. Bookings to come would count in both, so with
// them all former limits are forgotten.
func (to *Meter) under(from *Meter, s State, now int64) State {
	alike := from.alike(to)
	if alike && s.formers() == nil {
		return to.convert(from, s, now)
	}
	s = from.cloned(s)
	from.Advance(&s, now)
	if !alike && from.hasBookings(s, now) {
		return to.convert(from, from.forget(s, now), now)
	}
	s, was := from.parting(s)
	f := formers{list: was.list, hold: was.hold, idle: was.idle, full: alike && was.full, until: never}
	if !alike {
		left, old := from, s
		if was.full {
			f.hold = max(f.hold, left.Forgotten(old))
		}
		if i := slices.IndexFunc(f.list, func(f former) bool { return f.m.alike(to) }); i >= 0 {
			from, s = f.list[i].m, f.list[i].s
			from.Advance(&s, now)
			if was.hold <= now {
				s = from.reduced(s, now, Add(left.spent(old, now), old.asideAt(now).units))
			}
			f.list = slices.Delete(f.list, i, i+1)
		}
		f.list = append(f.list, former{left, old, Add(now, formerFor*min(left.refill(), left.horizon/formerFor))})
		if len(f.list) > mostFormer {
			f.list = f.list[1:]
		}
	}
	var r State
	if from.alike(to) {
		r = to.convert(from, s, now)
		if p := s.formers(); p != nil && p.lost > 0 && p.until > now {
			f.lost, f.until, f.over = p.lost, p.until, p.over
			if more := min(f.lost-f.over, to.capacity()-from.capacity(), to.capacity()-to.spent(r, now)); more > 0 {
				f.lost -= more // a limit of this capacity would have counted them
				r = to.owe(r, now, more)
			}
		}
	} else { // it begins with all that was spent
		r = to.convert(from, from.found(s, now), now)
	}
	r = r.withFormers(f)
	to.lasts(r, now)
	return to.outlived(r, now)
}

// found returns the state with its lost units set aside, as far as they are not regained. The given state stays as it is.
func (m *Meter) found(s State, now int64) State {
	f := s.formers()
	if f == nil || f.until <= now || f.lost <= f.over {
		return s
	}
	d, l := *s.detail, *s.ledger
	d.ledger, s.detail = &l, &d
	l.formers = nil
	r := s.asideAt(now)
	if r.units == 0 {
		r.until = f.until
	}
	r.units, r.until = Add(r.units, f.lost-f.over), max(r.until, f.until)
	return s.setAside(r)
}

// reduced returns a state with no more spending than the key has under the limit that it leaves: the rest is regained.
func (m *Meter) reduced(s State, now, most int64) State {
	n := m.spent(s, now)
	if t := m.bucket(); t != nil { // rounded down: the key keeps a part of a unit
		n, _ = t.worth(s.owed(now))
	}
	r := s.asideAt(now)
	if f := s.formers(); f != nil {
		f.over = max(f.over, f.lost-max(0, most-n-r.units))
	}
	over := n + r.units - most
	if off := min(over, r.units); off > 0 {
		s.ledger.rest.reduce(off)
		over -= off
		s = m.trimmed(s)
	}
	if over <= 0 {
		return s
	}
	until := m.regained(s)
	if l, ok := m.algorithm.(*slidingLog); ok {
		off := min(over, s.M)
		s.M -= off
		s.N -= s.log.reduceOldest(over - off)
		s = l.advance(s, now)
	} else {
		s = m.grant(s, now, over)
	}
	s = s.lose(over, until)
	s.ledger.formers.over += over
	return s
}

// lose notes units that the state does not count.
func (s State) lose(n, until int64) State {
	f := noFormers
	if was := s.formers(); was != nil {
		f = *was
	}
	f.lost, f.until = Add(f.lost, n), max(f.until, until)
	return s.withFormers(f)
}

// outlived drops the parts that are over.
func (m *Meter) outlived(s State, now int64) State {
	p := s.formers()
	if p == nil {
		return s
	}
	if p.drop(now); len(p.list) == 0 && p.lost == 0 && p.hold <= now {
		s.ledger.formers = nil
		return m.trimmed(s)
	}
	return s
}

// drop drops the parts that are over. What is over stays so unless something is charged, and whatever charges calls drop first. So it
// makes no difference whether a key was looked at in between.
func (p *formers) drop(now int64) {
	if p.until <= now {
		p.lost, p.over = 0, 0
	}
	if len(p.list) > 0 {
		p.list = slices.DeleteFunc(p.list, func(f former) bool { return p.gone(f, now) })
	}
}

// gone reports whether a former limit does not count any more.
func (p *formers) gone(f former, now int64) bool {
	return p.idle <= now || f.until <= now && p.hold <= now
}

// forgotten returns the first instant at which a fresh key may be forgotten. Then its former limits are, too: all that they
// count is regained, or it counts under the limit in force and is regained there.
func (p *formers) forgotten() int64 {
	if p.lost > p.over {
		return max(p.hold, p.until)
	}
	return p.hold
}

// Kept returns the first instant at which a fresh key has no former limits any more. To forget a fresh key before that breaks no
// bound: it begins anew under a limit that it comes back to.
func (m *Meter) Kept(s State) int64 {
	p := s.formers()
	if p == nil {
		return math.MinInt64
	}
	at := int64(math.MinInt64)
	for _, f := range p.list {
		at = max(at, f.until)
	}
	return max(p.hold, min(at, p.idle))
}

// passed charges the former limits a cost that has passed at an instant.
func (m *Meter) passed(s State, at, cost int64, keep Keep) {
	if p := s.formers(); p != nil {
		p.passed(m, s, at, cost, keep)
	}
}

// passed charges all of them. The state is the one of the limit in force.
func (p *formers) passed(m *Meter, s State, at, cost int64, keep Keep) {
	if p == nil {
		return
	}
	if p.drop(at); len(p.list) == 0 {
		return
	}
	for i := range p.list {
		x := &p.list[i]
		if x.m.Advance(&x.s, at); x.m.count(&x.s, at, cost, keep) {
			p.full = true
		}
	}
	p.lasts(m, s, at)
}

// count charges a cost up to the capacity, and reports whether that was less than the cost.
func (m *Meter) count(s *State, at, cost int64, keep Keep) bool {
	lost := int64(0)
	if t := m.bucket(); t != nil {
		before := s.owed(at)
		most := before
		if most.less(t.full) {
			most = t.full
		}
		if m.token != nil {
			*s = m.spendNow(*s, at, cost, keep)
		} else {
			*s = m.charge(*s, at, cost)
		}
		if owed := s.owed(at); most.less(owed) {
			fits, _ := t.worth(t.minus(most, before))
			lost = cost - fits
			if s.At, s.N = at+most.ticks, most.frac; m.token != nil && s.detail != nil {
				s.ledger.granted(at, s.ledger.total(t, at, most))
				*s = m.trimmed(*s)
			}
		}
	} else if l, ok := m.algorithm.(*slidingLog); ok {
		return l.count(s, at, cost)
	} else {
		fits := min(cost, max(0, m.capacity()-m.spent(*s, at)))
		if lost = cost - fits; fits > 0 {
			*s = m.charge(*s, at, fits)
		}
	}
	if lost == 0 {
		return false
	}
	*s = s.lose(lost, m.regained(*s))
	return true
}

// count is count for a log: it counts the newest spendings, and sets the older ones aside.
func (l *slidingLog) count(s *State, at, cost int64) bool {
	over := cost
	if s.M == 0 {
		*s = l.spend(*s, at, cost)
		over = s.N - l.units
	}
	if over <= 0 {
		return false
	}
	all := l.oldest(*s, s.asideAt(at), at)
	if s.M > 0 { // the debt counts, and no more
		all.add(max(at, all.newest()), over)
	}
	for s.M == 0 && over > 0 {
		e := s.log.get(0)
		e.cost = s.log.reduceOldest(min(e.cost, over))
		s.N, over = s.N-e.cost, over-e.cost
		all.add(max(e.at, all.newest()), e.cost)
	}
	*s = s.setAside(restOf(all, at))
	return true
}

// settleFormer settles a spending under the former limits, of which the limit in force has given so much back.
func (p *formers) settleFormer(now int64, sp Spending, back int64) {
	sp.Changed = true
	for i := range p.list {
		f := &p.list[i]
		f.m.Advance(&f.s, now)
		f.m.Settle(&f.s, now, sp, sp.Cost-back)
	}
}

// adjustFormer adjusts the spending under the former limits.
func (s *State) adjustFormer(now, delta int64) {
	p := s.formers()
	if p == nil {
		return
	}
	p.drop(now)
	for i := range p.list {
		f := &p.list[i]
		f.m.Adjust(&f.s, now, delta)
	}
}

// fromLost takes the part of an amount to give back that a token bucket has not counted, and returns the rest.
func (p *formers) fromLost(t *tokenBucket, back span) span {
	if p == nil || p.lost == 0 {
		return back
	}
	n, part := t.worth(back)
	off := min(n, p.lost)
	if p.lost -= off; part > 0 {
		off++
	}
	return t.less(back, t.price(off))
}

// oldest returns a log's rest as entries, in a copy.
func (l *slidingLog) oldest(s State, r rest, now int64) older {
	if r.log != nil {
		return older{r.log.clone(), max(l.per, r.log.per)}
	}
	all := older{per: l.per}
	if r.units > 0 { // by another algorithm, which has known no entries: none of these units is newer than the first
		all.put(s.log.first(now), r.units, r.until)
	}
	return all
}

// first returns the instant of the oldest spending, now at the latest.
func (r *totals) first(now int64) int64 {
	if r.n == 0 {
		return now
	}
	return min(now, r.mark(0).at)
}

// put adds an entry behind all others that does not lapse before an instant.
func (o *older) put(at, cost, until int64) {
	at = max(at, o.newest())
	o.add(at, cost)
	o.per = max(o.per, until-at)
}

// forgetting is forget for a state that stays as it is.
func (m *Meter) forgetting(s State, now int64) State {
	if s.formers() == nil {
		return s
	}
	s = m.cloned(s)
	m.Advance(&s, now)
	return m.forget(s, now)
}

// forget drops the former limits, where they cannot be followed. Units that the state has lost, or that only a former limit counts,
// are set aside if no limit has regained them.
func (m *Meter) forget(s State, now int64) State {
	if s.formers() == nil {
		return s
	}
	s, f := m.parting(s)
	most, until := int64(0), int64(never)
	if f.drop(now); f.hold > now {
		for _, x := range f.list {
			x.m.Advance(&x.s, now)
			most = max(most, x.m.spent(x.s, now)+x.s.asideAt(now).units)
			until = max(until, x.m.Forgotten(x.s))
		}
	}
	if s = m.found(s, now); s.formers() != nil {
		s.ledger.formers = nil
		s = m.trimmed(s)
	}
	r := s.asideAt(now)
	more := most - m.spent(s, now)
	if more <= 0 {
		return s
	}
	if l, ok := m.algorithm.(*slidingLog); ok {
		all := l.oldest(s, r, now)
		if more -= r.units; more > 0 {
			all.put(s.log.first(now), more, until)
		}
		all.per = max(all.per, until-all.mark(0).at)
		return s.setAside(restOf(all, now))
	}
	if r.units == 0 {
		r.until = until
	}
	r.units, r.until = max(r.units, more), max(r.until, until)
	return s.setAside(r)
}
