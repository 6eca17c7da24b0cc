package model

import (
	"slices"

	"github.com/weir-go/ratelimit"
)

// The models' rules for a changing limit. Past spending counts under the new limit, too, and bookings keep their instants.

// adopt converts the spending to another limit.
func (m *model) adopt(l ratelimit.Limit, now int64) {
	old := m.limit
	m.record(now)
	m.limit, m.loose = l, len(m.ahead) > 0 && (m.loose || old.Named("") != l.Named(""))
	again := m.left && !Alike(old, l)
	m.left = m.left || !Alike(old, l)
	switch {
	case old.Named("") == l.Named(""):
	case again: // the former limits still count: internal/meter tests these changes
		m.blurry = true
	case m.base.reset(now) <= now && len(m.ahead) == 0 && !m.outlives(now) && (m.aside.units == 0 || m.aside.until <= now):
		m.base, m.aside = newSpending(l), aside{}
	case m.blurry || !m.canCarry(old, l, now):
		m.blurry = true
	default:
		m.blurry = !m.carry(old, l, now)
	}
	if m.blurry { // the model's state has become meaningless
		m.base, m.ahead, m.aside = newSpending(l), nil, aside{}
	}
}

// aside is spending not counted under a lowered limit. After a raise
// it counts again, until the old limit would have regained it.
type aside struct{ units, until int64 }

// carry converts the spending. Afterwards at most the new capacity counts,
// besides debts. It returns false if more than one result would be right.
func (m *model) carry(old, l ratelimit.Limit, now int64) bool {
	if m.aside.until <= now {
		m.aside = aside{}
	}
	spent := m.base.spent(now)
	debt := max(0, spent-int64(old.Capacity()))
	rest := m.base.clone()
	if debt > 0 && !rest.grant(now, debt) {
		return false
	}
	until := max(rest.reset(now), m.aside.until)
	to := carried(m.base, old, l, now)
	most, total := int64(l.Capacity())+debt, spent+m.aside.units
	switch counted := to.spent(now); {
	case counted > most && l.Algorithm == ratelimit.AlgorithmSlidingLog:
		to.(*modelLog).grantOldest(now, counted-most)
	case counted > most:
		if !to.grant(now, counted-most) {
			return false
		}
	case min(most, total) > counted && m.aside.units > 0:
		to.charge(now, min(most-counted, total-counted, m.aside.units))
	}
	m.base, m.aside = to, aside{}
	if over := total - to.spent(now); total > most && over > 0 && until > now {
		m.aside = aside{over, until}
	}
	return true
}

// aged returns a debt under shorter windows. The windows ended before the change have regained nothing of the debt.
func aged(start, used, units, per, fewer, now int64) (at, left, before int64) {
	k := (now - start) / per
	if k <= 0 || used <= units {
		return start, used, -1
	}
	if k == 1 {
		before = min(units, fewer)
	}
	return start + k*per, used - units, before
}

// canCarry reports whether the conversion of the old limit's state is specified. It is not
// if a debt is capped at a Century or takes very many windows, if a queue must be
// reordered, or if a log has set spending aside, or has a debt before a booking or in one.
func (m *model) canCarry(old, l ratelimit.Limit, now int64) bool {
	owed := m.base.spent(now)
	for _, b := range m.ahead {
		owed += b.cost
	}
	if mul(owed, int64(Span(l))).Cmp(mul(90*Year, int64(l.Rate.Units))) > 0 {
		return false
	}
	if l.Algorithm > ratelimit.AlgorithmLeakyBucket && owed/int64(l.Rate.Units) > 20 {
		return false // the models would take too long, window by window
	}
	if log, ok := m.base.(*modelLog); ok && log.debt > 0 && old.Algorithm == l.Algorithm {
		return false
	}
	if m.outlives(now) {
		return false // internal/meter tests these changes
	}
	if old.Algorithm == ratelimit.AlgorithmSlidingLog && l.Algorithm == old.Algorithm && m.aside.units > 0 {
		return false // the log keeps the instants of the units set aside, the model only their sum
	}
	if len(m.ahead) == 0 {
		return true
	}
	switch ratelimit.AlgorithmLeakyBucket {
	case old.Algorithm, l.Algorithm:
		return false
	}
	return l.Algorithm != ratelimit.AlgorithmSlidingLog || owed <= int64(l.Rate.Units)
}

// carried returns spending converted from one limit to another.
func carried(from spending, old, l ratelimit.Limit, now int64) spending {
	if old.Algorithm <= ratelimit.AlgorithmLeakyBucket && l.Algorithm <= ratelimit.AlgorithmLeakyBucket {
		return converted(from, l, now)
	}
	units, per := int64(l.Rate.Units), int64(l.Rate.Per)
	switch s := from.(type) { // windows keep their beginning, and a log keeps its instants
	case *modelWindow:
		s.pass(now)
		if l.Period == old.Period && l.Algorithm == ratelimit.AlgorithmCalendar {
			return &modelWindow{units: units, windows: s.windows, start: s.start, used: s.used}
		}
		if old.Algorithm == ratelimit.AlgorithmCalendar {
			break
		}
		if l.Algorithm != ratelimit.AlgorithmFixedWindow && l.Algorithm != ratelimit.AlgorithmSlidingCounter {
			break
		}
		start, used, before := aged(s.start, s.used, s.units, per, units, now)
		if l.Algorithm == ratelimit.AlgorithmFixedWindow {
			return &modelWindow{units: units, windows: ownWindows{per}, start: start, used: used}
		}
		return &modelCounter{units: units, per: per, start: start, curr: used, prev: max(0, before)}
	case *modelCounter:
		if s.pass(now); l.Algorithm == ratelimit.AlgorithmSlidingCounter && per < s.per {
			return &modelCounter{units: units, per: per, start: now, curr: s.spent(now)}
		}
		if l.Algorithm == ratelimit.AlgorithmSlidingCounter {
			start, used, before := aged(s.start, s.curr, s.units, per, units, now)
			if before < 0 {
				before = s.prev
			}
			return &modelCounter{units: units, per: per, start: start, curr: used, prev: before}
		}
		if l.Algorithm == ratelimit.AlgorithmFixedWindow {
			start, used, _ := aged(s.start, s.spent(now), s.units, per, units, now)
			return &modelWindow{units: units, windows: ownWindows{per}, start: start, used: used}
		}
	case *modelLog:
		if l.Algorithm == ratelimit.AlgorithmSlidingLog {
			kept := slices.DeleteFunc(slices.Clone(s.entries), func(e booking) bool { return e.at <= now-s.per })
			to := &modelLog{units: units, per: per, entries: kept, until: s.until}
			if n := len(kept); n > 0 && per < s.per {
				to.until = max(to.until, kept[n-1].at+s.per)
			}
			return to
		}
	}
	to := newSpending(l)
	if n := from.spent(now); n > 0 {
		to.charge(now, n)
	}
	return to
}

// converted returns a bucket's spending under another bucket's limit: as many whole units,
// and the same fraction of a unit, rounded up to the new limit's resolution in lowest terms.
func converted(from spending, l ratelimit.Limit, now int64) spending {
	b := bucketOf(from)
	to := newSpending(l)
	t := bucketOf(to)
	owed := sub(b.full, mul(now, b.units)) // in parts of a unit; a part is 1/per
	g := gcd(t.units, t.per)
	owed.Mul(owed, mul(t.per/g, 1)).Add(owed, mul(b.per-1, 1)).Div(owed, mul(b.per, 1))
	t.full = add(mul(now, t.units), owed.Mul(owed, mul(g, 1)))
	return to
}

func bucketOf(s spending) *modelBucket {
	if b, ok := s.(*modelBucket); ok {
		return b
	}
	return &s.(*modelQueue).modelBucket
}

func gcd(a, b int64) int64 {
	for b != 0 {
		a, b = b, a%b
	}
	return a
}

// spent returns the spending counted now, in whole units. After a change, another algorithm begins with this number.

func (s *modelBucket) spent(now int64) int64 {
	return max(0, ceilDiv(sub(s.full, mul(now, s.units)), s.per))
}

func (s *modelWindow) spent(now int64) int64 {
	c := *s
	c.pass(now)
	return c.used
}

func (s *modelLog) spent(now int64) int64 { return s.within(now) }

func (s *modelCounter) spent(now int64) int64 {
	c := *s
	if c.pass(now); c.fresh() {
		return 0
	}
	return c.curr + c.weight(now)
}

// keepReceipts adjusts the reservations when the limit's figures change. A booking can still be cancelled before its
// instant. For past reservations, buckets give nothing back, and fixed windows give back spending that still counts.
// Other windows' refunds are not specified. Reservations from before the key was dropped as fresh stay the same.
func (j *judge) keepReceipts() {
	for id, r := range j.made {
		switch {
		case r == nil || r.free || r.life != j.life:
		case slices.Contains(j.ahead, r.booking) || j.limit.Algorithm <= ratelimit.AlgorithmFixedWindow:
			r.changed = true
		default:
			delete(j.made, id)
		}
	}
}
