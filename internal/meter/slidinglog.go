package meter

import "math"

// slidingLog records each spending for the window's length. The spendings are the entries
// of detail.log, and State.N is their sum. A booking is an entry with a future instant.
// The entries are in their instants' order, and a new one goes behind all others.
//
// In any window of length per, beginning or ending anywhere, at most units pass. An entry counts from its instant on, and no
// longer at its instant + per.
//
// A debt (State.M) is the spending beyond a window's units. Its parts are spent as soon as
// they fit: units at State.At, units again after each per, and the remainder at last. It is
// kept as one figure, because it may last as long as the horizon. A due part becomes an entry.
//
// The entries carry running totals: see totals. So for a key with n entries, a spending takes amortised
// O(1). Questions, for example for the counted sum, or for the instant when a cost fits, take O(log n),
// and so does a grant of any part. One key with a large limit does not hold up the callers at its lock.
type slidingLog struct {
	per, units int64

	held  bool  // the entries are units in use: see concurrent.go
	retry int64 // the minimum estimate of the time until they come back
}

// lastDebt returns the last part of the debt. Questions about the time after it need no other part: each
// part is one window older than the next, so all others have left by then. Before it nothing else fits.
func (l *slidingLog) lastDebt(s State) entry {
	if s.M == 0 {
		return entry{at: math.MinInt64}
	}
	k := (s.M - 1) / l.units
	return entry{Add(s.At, k*l.per), s.M - k*l.units}
}

// newest returns the instant of the last spending, or one before all others.
func (l *slidingLog) newest(s State) int64 {
	if s.detail == nil {
		return math.MinInt64
	}
	return max(s.log.newest(), l.lastDebt(s).at)
}

// A spending goes behind all others, so no later cost takes its place. At its instant the sum of the entries,
// the last debt and the cost exceeds the units, and the excess has to leave first, from the oldest spending on.
// Entries that have already left are among the oldest, so it makes no difference whether they were dropped.
func (l *slidingLog) earliest(s State, now, cost int64) int64 {
	if s.detail == nil {
		return now
	}
	if l.held {
		return l.estimate(s, now, cost)
	}
	debt := l.lastDebt(s)
	now = max(now, s.log.newest(), debt.at)
	// State.N is bounded: bookings and debts are at most Limit.Most, plus one window.
	if excess := s.N + debt.cost - (l.units - cost); excess > 0 {
		now = max(now, l.freed(s, debt, excess))
	}
	return now
}

// freed returns the instant by which the excess will have left the window. The
// excess is at most the whole spending, because no cost is above the units.
func (l *slidingLog) freed(s State, debt entry, excess int64) int64 {
	r := &s.log
	if debt.cost > 0 {
		// The last debt lies between two entries, or after all. If the entries before
		// it do not free enough, the debt leaves next, and then the entries behind it.
		before := r.sum(r.search(Add(debt.at, 1)))
		if before < excess && before >= excess-debt.cost {
			return Add(debt.at, l.per)
		}
		if before < excess {
			excess -= debt.cost
		}
	}
	return Add(r.mark(r.covering(excess)-1).at, l.per)
}

// spend adds an entry, even if it does not fit. Its instant is not before the
// newest, as earliest ensures. So the entries stay in order without a search.
func (l *slidingLog) spend(s State, at, cost int64) State {
	if s.detail == nil {
		s.detail = new(detail)
	}
	s.log.add(at, cost)
	s.N += cost
	return s
}

// refund subtracts from the instant's entry, if it still counts. Entries of
// one instant are one, and no spending gives back more than its own cost.
func (l *slidingLog) refund(s State, now int64, sp Spending, actual int64) State {
	if s = l.advance(s, now); s.detail != nil {
		s.N -= s.log.reduce(sp.At, sp.Cost-actual)
	}
	return s
}

// charge adds an entry if n fits now, and a debt otherwise.
func (l *slidingLog) charge(s State, now, n int64) State {
	if s = l.advance(s, now); l.held || s.M == 0 && n <= l.units && l.earliest(s, now, n) == now {
		return l.spend(s, now, n)
	}
	return l.advance(l.indebt(s, now, n), now)
}

// indebt adds n to the debt. All the debt begins again where its first part
// fits. If no booking lies behind the debt, it begins no later than before.
func (l *slidingLog) indebt(s State, now, n int64) State {
	if s.detail == nil {
		s.detail = new(detail)
	}
	n += s.M
	s.M = 0 // otherwise the old debt would have to leave before the new one fits
	s.At, s.M = l.earliest(s, now, min(n, l.units)), n
	return s
}

// forgive takes from the debt first, then from the entries by now, and then from the bookings, each time from the newest.
func (l *slidingLog) forgive(s State, now, n int64) State {
	s = l.advance(s, now) // a past entry cannot be forgiven
	off := min(n, s.M)
	s.M -= off
	if n -= off; s.detail == nil || n == 0 {
		return s
	}
	later, sum := l.bookings(s, now)
	s.log.reduceNewest(sum)
	off = s.log.reduceNewest(n)
	for i := range later {
		s.log.add(later[i].at, later[i].cost)
	}
	s.N -= off + s.log.reduceNewest(n-off)
	return s
}

// advance drops the past entries, and turns the due part of the debt into
// entries. Each entry is dropped once, so the drops take amortised O(1).
func (l *slidingLog) advance(s State, now int64) State {
	if s.detail == nil {
		return s
	}
	if s.M > 0 && s.At <= now {
		s = l.due(s, now)
	}
	r := &s.log
	if r.newest() <= now-l.per { // the key was idle: all entries have left
		s.N = 0
		r.popFront(r.len())
		return s
	}
	k := 0
	for ; r.mark(k).at <= now-l.per; k++ { // stops at the newest, still in the window
	}
	if k > 0 {
		s.N -= r.popFront(k)
	}
	return s
}

// due makes an entry of the debt's part in the present window. The earlier parts have
// left the window, and so have most entries before this part. Bookings may lie behind it.
func (l *slidingLog) due(s State, now int64) State {
	k := (now - s.At) / l.per
	if past, over := Mul(k, l.units); over || past >= s.M {
		s.M = 0 // the last part has left as well
		return s
	}
	s.M -= k * l.units
	s.At += k * l.per
	part := min(s.M, l.units)
	s.log.insert(s.At, part) // its instant is past, but it counts until s.at + per
	s.N += part
	s.M -= part
	s.At += l.per
	return s
}

// remaining is 0 while a booking or a debt lies ahead: a cost that fits before it would take its place.
func (l *slidingLog) remaining(s State, now int64) (n, debt int64) {
	if s.detail == nil {
		return l.units, 0
	}
	last := l.lastDebt(s)
	if max(s.log.newest(), last.at) > now {
		return 0, max(0, l.spent(s, now)-l.units)
	}
	spent := l.counts(s, now)
	if last.at > now-l.per {
		spent += last.cost
	}
	return left(l.units - spent)
}

// counts returns the sum of the counting entries at an instant, bookings included.
// Past entries may be in the list, because reading the state does not drop them.
func (l *slidingLog) counts(s State, now int64) int64 {
	r := &s.log
	switch since := now - l.per; {
	case r.newest() <= since: // as in a Peek of an idle key
		return 0
	case r.mark(0).at > since: // nothing has left since the last decision
		return s.N
	default:
		return s.N - r.sum(r.search(since+1))
	}
}

// regained returns the instant when the last spending leaves. Until then the key differs from a key never seen.
func (l *slidingLog) regained(s State) int64 {
	if at := l.newest(s); at != math.MinInt64 {
		return Add(at, l.per)
	}
	return math.MinInt64
}

// spent is the counted spending, and the part of the debt that is still ahead. Of the due parts, only the last one may count.
func (l *slidingLog) spent(s State, now int64) int64 {
	if s.detail == nil {
		return 0
	}
	n := l.counts(s, now)
	if s.M == 0 {
		return n
	}
	if s.At > now {
		return n + s.M
	}
	past, over := Mul((now-s.At)/l.per, l.units)
	if over {
		past = s.M
	}
	return n + max(0, s.M-past)
}

// aside returns a state for advance to change, without changing s. The two share the entries, because dropping
// the oldest moves only the beginning. If there is a debt, advance may write entries, so they are copied.
func (l *slidingLog) aside(s State) State {
	if s.detail == nil {
		return s
	}
	d := *s.detail
	if s.M > 0 {
		d.log = d.log.clone()
	}
	s.detail = &d
	return s
}

// bookings returns the later bookings, and their sum.
func (l *slidingLog) bookings(s State, now int64) (booked []booking, n int64) {
	if s.detail == nil {
		return nil, 0
	}
	for i := s.log.search(now + 1); i < s.log.len(); i++ {
		e := s.log.get(i)
		booked = append(booked, booking{at: e.at, cost: e.cost})
		n += e.cost
	}
	return booked, n
}
