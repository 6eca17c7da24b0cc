package meter

import (
	"math"
	"slices"
)

// This file keeps a key's states under its former limits. Suppose a limit changes back and
// forth between two algorithms, or between windows of two lengths. Without former limits, each
// change would begin a new window with all spending in it, and the key would regain nothing.
//
// A former limit goes on counting as if it had stayed in force: it is charged with each passing cost, up
// to its capacity, and it regains. When it comes into force again, the key continues from its state
// there. So a key under such a limit has at least as much left as if the limit had never changed and the
// same costs had passed. Any sequence of limits admits at least as much as the lowest of them alone.
//
// The bound of changing limits holds, because each state regains by its own limit alone. Let S be the spending in an
// interval. First, suppose the last limit in force was never full while it was a former limit. Then its state counts
// all of S except the regained part, and at most its capacity. Otherwise consider the last instant when it was full. At
// most as much passes afterwards as it regains. The limit in force before bounds the earlier spending in the same way.
//
// A former limit does not follow future bookings. If there is one, a change of the limit forgets all former limits.

// formers is a state's part about former limits.
type formers struct {
	m    *Meter   // the former limits; the last element is the most recent one
	list []former // the limit left last is the last

	// The instant at which the key will have been fresh under all limits for long enough to be like a
	// new key. A newly fresh key keeps its former limits: otherwise the next change would begin a
	// window under them. The instant follows from the charges alone, and never from the time of a look.
	idle int64

	// The instant before which the key is not forgotten. If a full former limit has not counted some units, the limit under
	// which they were spent regains them until then. If full is set, the limit in force will be such a former limit, too.
	hold int64
	full bool
}

// noFormers is formers without former limits.
var noFormers = formers{idle: never, hold: never}

// former is a key's former limit, and the key's state under it, without bookings and without a line.
type former struct {
	m     *Meter
	s     State
	until int64 // when it is forgotten
}

const (
	// mostFormer is the maximum number of former limits.
	mostFormer = 8

	// formerFor bounds how long a former limit is kept, as a multiple of the time to regain
	// its capacity. If a limit changes less often, it loses only a small part at each change.
	formerFor = 50
)

// formers returns the state's former limits, nil if there are none.
func (s *State) formers() *formers {
	if s.detail == nil || s.ledger == nil {
		return nil
	}
	p, _ := s.ledger.formers.(*formers)
	return p
}

// withFormers returns a state with former limits.
func (s State) withFormers(p formers) State {
	if len(p.list) == 0 && p.hold == never && s.lostAt(never).units == 0 {
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

// passed charges all former limits, if there are any.
func (p *formers) passed(s State, at, cost int64, keep Keep) {
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
	p.lasts(s, at)
}

// count charges a cost up to the capacity, and reports whether it charged less than the cost.
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
	if s.M > 0 { // only the debt counts
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

// booked keeps the former limits until a booking has passed, and is regained.
func (p *formers) booked(at int64) {
	p.idle = max(p.idle, Add(at, 2*p.m.refill()))
	for _, f := range p.list {
		p.idle = max(p.idle, Add(at, 2*f.m.refill()))
	}
}

// adjusted adjusts the spending under the former limits.
func (p *formers) adjusted(now, delta int64) {
	p.drop(now)
	for i := range p.list {
		f := &p.list[i]
		f.m.Advance(&f.s, now)
		f.s = f.m.adjust(f.s, now, delta)
	}
}

// settleFormer settles a spending under the former limits. back is the amount given back by the limit in force.
func (p *formers) settleFormer(now int64, sp Spending, back int64) {
	sp.Changed = true
	for i := range p.list {
		f := &p.list[i]
		f.m.Advance(&f.s, now)
		f.m.settleHere(&f.s, now, sp, sp.Cost-back)
	}
}

func (p *formers) over(now int64) bool {
	p.drop(now)
	return len(p.list) == 0 && p.hold <= now
}

// drop drops ended limits. After a limit has ended, only a charge could change it, and
// every charge calls drop first. So it does not matter whether drop was called in between.
func (p *formers) drop(now int64) {
	if len(p.list) > 0 {
		p.list = slices.DeleteFunc(p.list, func(f former) bool { return p.gone(f, now) })
	}
}

// gone reports whether a former limit no longer counts.
func (p *formers) gone(f former, now int64) bool {
	return p.idle <= now || f.until <= now && p.hold <= now
}

// held returns the first instant when a fresh key may be forgotten with its former limits. By
// then all their spending is regained, or counts under the limit in force and is regained there.
func (p *formers) held() int64 { return p.hold }

// lasts brings formers.idle up to date after a charge, or a change of the limit.
func (m *Meter) lasts(s State, now int64) {
	if p := s.formers(); p != nil && len(p.list) > 0 {
		p.lasts(s, now)
	}
}

func (p *formers) lasts(s State, now int64) {
	p.last(p.m, s, now)
	for i := range p.list {
		p.last(p.list[i].m, p.list[i].s, now)
	}
}

// last is lasts for one state. A state without spending has no such instant.
func (p *formers) last(m *Meter, s State, now int64) {
	if m.spent(s, now) > 0 || s.asideAt(now).units > 0 {
		p.idle = max(p.idle, Add(m.Forgotten(s), m.refill()))
	}
}

// Kept returns the first instant when a fresh key no longer has former limits. To forget
// a fresh key earlier breaks no bound: under a former limit it would start fresh.
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
		if p := s.formers(); p != nil {
			l.formers = p.cloned()
		}
		if l.lost != nil {
			x := *l.lost
			l.lost = &x
		}
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

// parting removes the former limits from a state with its own memory, and returns them. Its lost units stay with it.
func (m *Meter) parting(s State) (State, formers) {
	p := s.formers()
	if p == nil {
		return s, noFormers
	}
	s.ledger.formers = nil
	return m.trimmed(s), *p
}

// found returns the state with its lost units set aside, unless they are regained. The given state stays as it is.
func (m *Meter) found(s State, now int64) State {
	x := s.lostAt(now)
	if x.units <= x.over {
		return s
	}
	d, l := *s.detail, *s.ledger
	d.ledger, s.detail = &l, &d
	l.formers, l.lost = nil, nil
	r := s.asideAt(now)
	if r.units == 0 {
		r.until = x.until
	}
	r.units, r.until = Add(r.units, x.units-x.over), max(r.until, x.until)
	return s.setAside(r)
}

// lose notes units that the state does not count.
func (s State) lose(n, until int64) State {
	x := s.lostAt(never)
	x.units, x.until = Add(x.units, n), max(x.until, until)
	return s.withLost(x)
}

// forgetting is forget, but leaves the state as it is.
func (m *Meter) forgetting(s State, now int64) State {
	if s.formers() == nil {
		return s
	}
	s = m.cloned(s)
	m.Advance(&s, now)
	return m.forget(s, now)
}

// forget drops the former limits where they cannot be followed. Units that are lost,
// or counted by a former limit alone, are set aside unless a limit has regained them.
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
	if s = m.found(s, now); s.detail != nil && s.ledger != nil && s.ledger.lost != nil {
		s.ledger.lost = nil
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

// oldest returns a log's rest as entries, in a copy.
func (l *slidingLog) oldest(s State, r rest, now int64) older {
	if r.log != nil {
		return older{r.log.clone(), max(l.per, r.log.per)}
	}
	all := older{per: l.per}
	if r.units > 0 { // another algorithm kept no entries for these units, and none is newer than the first entry
		all.put(s.log.first(now), r.units, r.until)
	}
	return all
}
