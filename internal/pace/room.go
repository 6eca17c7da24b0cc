package pace

import (
	"slices"
	"time"
)

// opensLocked returns the instant before which the server wants nothing to be sent.
func (l *line) opensLocked() time.Time { return l.budgets.closedUntil(l.backoff.until) }

// earliestLocked returns the earliest instant at which a place can be sent: when the
// server allows it, when the first place without a booking may call the limiter again, and, if more
// are before it than are left, after the reset.
func (l *line) earliestLocked(p *Place, now time.Time) time.Time {
	earliest := l.opensLocked()
	if first := l.firstLocked(); first != nil && first.at.After(earliest) {
		earliest = first.at
	}
	for _, b := range l.budgets.list {
		if b.Until.After(earliest) && b.Until.After(now) && !l.fitsLocked(p, b) {
			earliest = b.Until
		}
	}
	return earliest
}

// fitsLocked reports whether a budget has enough left for a place and all before it.
func (l *line) fitsLocked(p *Place, b Budget) bool {
	if !b.Units {
		return b.Left >= int64(len(l.queue)) || int64(l.indexLocked(p)) < b.Left
	}
	left := b.Left - p.units
	for i := 0; left >= 0 && l.queue[i] != p; i++ {
		left -= l.queue[i].units
	}
	return left >= 0
}

// usesMoreLocked reports whether the uncounted requests use more of a budget than left.
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

// moreUncountedLocked reports whether more than n requests are booked, or in flight and too young
// at an instant to be sure to be counted.
func (l *line) moreUncountedLocked(n int64, at time.Time) bool {
	return l.flights.moreYoung(n-int64(l.booked), at)
}

// roomLocked reports whether a request may be sent beside the requests that are booked and in
// flight.
func (l *line) roomLocked(p *Place, now time.Time) bool {
	window := l.backoff.window
	return (window == 0 || !l.moreUncountedLocked(int64(window)-1, now)) && !l.exceededLocked(now, p)
}

// exceededLocked reports whether the uncounted requests, and one more if there is one, are
// above a budget.
func (l *line) exceededLocked(now time.Time, more *Place) bool {
	return slices.ContainsFunc(l.budgets.list, func(b Budget) bool {
		left := b.Left
		switch {
		case more != nil && b.Units:
			left -= more.units
		case more != nil:
			left--
		}
		return now.Before(b.Until) && l.usesMoreLocked(b, left)
	})
}

// changesLocked returns the next instant at which there may be room, if no response comes
// before.
func (l *line) changesLocked(now time.Time) time.Time {
	next, at := l.budgets.nextReset(now), l.flights.nextCounted(now)
	if next.IsZero() || !at.IsZero() && at.Before(next) {
		return at
	}
	return next
}

// memory returns the instant until which the server's answers matter, and whether the line is to be kept until then, or for
// its window.
func (l *line) memory(now time.Time) (ends time.Time, keep bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	ends = l.budgets.ends(l.backoff.until)
	return ends, now.Before(ends) || l.backoff.holds(now)
}

// expireLocked forgets budgets that have ended. After a budget that was used up, only the next response
// shows how much the server leaves, so one request is sent first.
func (l *line) expireLocked(now time.Time) {
	over := func(b Budget) bool { return !now.Before(b.Until) }
	for _, b := range l.budgets.list {
		if over(b) && l.usesMoreLocked(b, b.Left-1) {
			l.backoff.narrow(l.flights.sent, now)
		}
	}
	l.budgets.list = slices.DeleteFunc(l.budgets.list, over)
}
