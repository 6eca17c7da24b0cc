package pace

import (
	"math"
	"slices"
	"time"
)

// opensLocked returns when the wait demanded by the server ends.
func (l *line) opensLocked() time.Time { return l.budgets.closedUntil(l.backoff.until) }

// earliestLocked returns the earliest instant when a place can be sent. By then three
// conditions hold. The server permits sending. The first place without a booking may call the
// limiter again. And if more places are before this one than requests remain, a reset has come.
func (l *line) earliestLocked(p *Place, now time.Time) time.Time {
	earliest := l.opensLocked()
	if first := l.firstLocked(); first != nil && first.at.After(earliest) {
		earliest = first.at
	}
	if at := l.paceLocked(now); at.After(earliest) {
		earliest = at
	}
	if at := l.rate.opens(l.booked); at.After(earliest) {
		earliest = at
	}
	for _, b := range l.budgets.list {
		if b.Until.After(earliest) && b.Until.After(now) && !l.fitsLocked(p, b, now) {
			if at := b.fits(l.needsLocked(p, b)); at.After(earliest) {
				earliest = at
			}
		}
	}
	return earliest
}

// fitsLocked reports whether a budget has enough left for a place and all places before it.
func (l *line) fitsLocked(p *Place, b Budget, now time.Time) bool {
	left := b.leftAt(now)
	if !b.Units {
		return left >= int64(len(l.queue)) || int64(l.indexLocked(p)) < left
	}
	left -= p.units
	for i := 0; left >= 0 && l.queue[i] != p; i++ {
		left -= l.queue[i].units
	}
	return left >= 0
}

// needsLocked returns how many of a budget's units a place and all places before it need.
func (l *line) needsLocked(p *Place, b Budget) int64 {
	at := l.indexLocked(p)
	if !b.Units {
		return int64(at) + 1
	}
	n := p.units
	for _, q := range l.queue[:at] {
		n += q.units
	}
	return n
}

// paceLocked returns when one more request leaves other processes their
// share. It returns the zero time if no other processes were noticed.
func (l *line) paceLocked(now time.Time) time.Time {
	if !l.crowd.here() {
		return time.Time{}
	}
	var next time.Time
	for i := range l.budgets.list {
		b := &l.budgets.list[i]
		if b.Units || !now.Before(b.Until) {
			continue
		}
		gap := float64(b.share(float64(l.flights.sentSince(b.seq)), l.crowd.last, now)) * l.crowd.jitter * float64(1+l.booked)
		at := l.crowd.last.Add(time.Duration(min(gap, float64(MaxWait))))
		if until := b.scarceUntil(); at.After(until) {
			at = until
		}
		if gap > 0 && at.After(next) {
			next = at
		}
	}
	return next
}

// share returns the time between two requests of this process while other processes use the budget, too. No process knows
// their number. The less is left, the longer the time is. All processes receive the same figure, so they use equal parts, and
// the budget lasts. Of the units regained by a bucket in this time, only a quarter counts, because the others take the rest.
func (b *Budget) share(since float64, last, now time.Time) time.Duration {
	left := max(0, float64(b.Left)-since)
	switch {
	case b.every == 0:
		return time.Duration(1.8 * float64(b.Until.Sub(last)) / (left + 1))
	case b.leftAt(now) > b.Limit/2:
		return 0
	}
	return time.Duration(4 * float64(b.every) * (math.Sqrt(left*left+float64(b.Limit)/4) - left))
}

// scarceUntil returns until when the budget must be shared: its end, or the instant when a bucket is more than half full.
func (b *Budget) scarceUntil() time.Time {
	if b.every == 0 {
		return b.Until
	}
	return b.fits(b.Limit/2 + 1)
}

// usesMoreLocked reports whether the uncounted requests need more than left units of a budget.
func (l *line) usesMoreLocked(b Budget, left int64) bool {
	if !b.Units {
		return l.moreUncountedLocked(left, b.received)
	}
	for _, p := range l.queue[:l.booked] {
		left -= p.units
	}
	for _, f := range l.flights.young(b.received) {
		if !f.landed {
			left -= f.units
		}
	}
	return left < 0
}

// moreUncountedLocked reports whether more than n requests are uncounted
// at an instant. An uncounted request is booked, or in flight and young.
func (l *line) moreUncountedLocked(n int64, at time.Time) bool {
	return l.flights.moreYoung(n-int64(l.booked), at)
}

// hasSlotLocked reports whether a request may take a slot. A request takes its slot
// when it books, not when it is sent. So requests waiting while the server stalls have
// no bookings. When slots come back, these requests are sent at the limiter's pace.
func (l *line) hasSlotLocked() bool { return l.slots == 0 || l.held+l.booked < l.slots }

// roomLocked reports whether a request may be sent in addition to the booked requests and the requests in flight.
func (l *line) roomLocked(p *Place, now time.Time) bool {
	window := l.backoff.window
	return l.hasSlotLocked() && (window == 0 || !l.moreUncountedLocked(int64(window)-1, now)) && !l.exceededLocked(now, p)
}

// exceededLocked reports whether the uncounted requests exceed a budget. If more is not nil, that place counts, too.
func (l *line) exceededLocked(now time.Time, more *Place) bool {
	return slices.ContainsFunc(l.budgets.list, func(b Budget) bool {
		left := b.leftAt(now)
		switch {
		case more != nil && b.Units:
			left -= more.units
		case more != nil:
			left--
		}
		return now.Before(b.Until) && l.usesMoreLocked(b, left)
	})
}

// changesLocked returns the next instant when there may be room if no answer comes earlier.
func (l *line) changesLocked(now time.Time) time.Time {
	next, at := l.budgets.nextReset(now), l.flights.nextCounted(now)
	if next.IsZero() || !at.IsZero() && at.Before(next) {
		return at
	}
	return next
}

// memory returns when the server's answers cease to matter. keep
// reports whether the line must be kept until then, or for its window.
func (l *line) memory(now time.Time) (ends time.Time, keep bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	ends = l.budgets.ends(l.rate.ends(l.backoff.until))
	return ends, now.Before(ends) || l.backoff.holds(now)
}

// expireLocked forgets budgets that have ended, and a pace last used long ago. After the end of a
// used-up budget a single request is sent first, because only its answer shows the remaining budget.
func (l *line) expireLocked(now time.Time) {
	over := func(b Budget) bool { return !now.Before(b.Until) }
	for _, b := range l.budgets.list {
		if over(b) && l.usesMoreLocked(b, b.Left-1) {
			l.backoff.narrow(l.flights.sent, now)
		}
	}
	l.budgets.list = slices.DeleteFunc(l.budgets.list, over)
	l.rate.expire(now)
}
