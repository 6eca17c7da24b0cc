package pace

import (
	"slices"
	"time"
)

// opensLocked returns the instant before which the server wants nothing to be sent.
func (l *line) opensLocked() time.Time {
	opens := l.until
	for _, b := range l.budgets {
		if b.Left <= 0 && b.Until.After(opens) {
			opens = b.Until
		}
	}
	return opens
}

// earliestLocked returns the earliest instant at which a place can be sent: when the
// server allows it, when the place before it has asked for an instant again, and, if more
// are before it than are left, after the reset.
func (l *line) earliestLocked(p *Place, now time.Time) time.Time {
	earliest := l.opensLocked()
	if first := l.firstLocked(); first != nil && first.at.After(earliest) {
		earliest = first.at
	}
	for _, b := range l.budgets {
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

// usesMoreLocked reports whether the uncounted requests use more than that of a budget.
func (l *line) usesMoreLocked(b Budget, left int64) bool {
	if !b.Units {
		return l.moreUncountedLocked(left, b.told)
	}
	for _, p := range l.queue[:l.booked] {
		left -= p.units
	}
	for _, f := range l.youngLocked(b.told) {
		if !f.landed {
			left -= f.units
		}
	}
	return left < 0
}

// roomLocked reports whether a request may be sent beside those that are booked and in
// flight.
func (l *line) roomLocked(p *Place, now time.Time) bool {
	return (l.window == 0 || !l.moreUncountedLocked(int64(l.window)-1, now)) && !l.exceededLocked(now, p)
}

// exceededLocked reports whether the uncounted requests, and one more if there is one, are
// above what the server leaves.
func (l *line) exceededLocked(now time.Time, more *Place) bool {
	return slices.ContainsFunc(l.budgets, func(b Budget) bool {
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
	next := l.resetLocked(now)
	young := l.youngLocked(now)
	if i := slices.IndexFunc(young, func(f flight) bool { return !f.landed }); i >= 0 {
		if at := young[i].at.Add(counted); next.IsZero() || at.Before(next) {
			next = at
		}
	}
	return next
}

// resetLocked returns the next instant at which a budget is over.
func (l *line) resetLocked(now time.Time) (reset time.Time) {
	for _, b := range l.budgets {
		if now.Before(b.Until) && (reset.IsZero() || b.Until.Before(reset)) {
			reset = b.Until
		}
	}
	return reset
}

// memory returns when what the server has said ends, and whether the line is to be kept until then, or for its window.
func (l *line) memory(now time.Time) (ends time.Time, keep bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	ends = l.until
	for _, b := range l.budgets {
		if b.Until.After(ends) {
			ends = b.Until
		}
	}
	return ends, now.Before(ends) || l.window > 0 && now.Before(l.wideAt)
}

// exhausted reports whether a budget says by itself that nothing may be sent.
func exhausted(budgets []Budget, now time.Time) bool {
	return slices.ContainsFunc(budgets, func(b Budget) bool { return b.Left == 0 && now.Before(b.Until) })
}

// spendLocked counts a request that is not in flight any more in the budgets of which its
// response says nothing.
func (l *line) spendLocked(f flight, told []Budget) {
	for i := range l.budgets {
		b := &l.budgets[i]
		same := func(t Budget) bool { return t.name == b.name }
		if f.seq <= b.seq || slices.ContainsFunc(told, same) {
			continue
		}
		if b.Units {
			b.Left -= f.units
		} else {
			b.Left--
		}
	}
}

// expireLocked forgets budgets whose time is over. What the server leaves after one that was
// used up, its next response tells.
func (l *line) expireLocked(now time.Time) {
	over := func(b Budget) bool { return !now.Before(b.Until) }
	for _, b := range l.budgets {
		if over(b) && l.usesMoreLocked(b, b.Left-1) {
			l.narrowLocked(now)
		}
	}
	l.budgets = slices.DeleteFunc(l.budgets, over)
}

// setLocked keeps what a response says to be left. Requests overtake each other on their way, and so do responses. An
// answer never replaces that to a request that was sent later. One that leaves more counts only if its request was sent
// after the other response was received.
func (l *line) setLocked(b Budget, units int64) {
	l.expireLocked(b.told)
	if !b.told.Before(b.Until) {
		return
	}
	i := slices.IndexFunc(l.budgets, func(old Budget) bool { return old.name == b.name })
	if i >= 0 {
		b.name = l.budgets[i].name
	} else {
		b.name = b.name.kept()
	}
	b.Policy = b.name.policy
	switch {
	case b.seq < l.heard[b.name]:
		if i >= 0 {
			l.budgets[i].count(b, units)
		}
		return
	case i >= 0:
		if old := l.budgets[i]; b.Left <= old.Left || b.sent.After(old.told) {
			l.budgets[i] = b
		}
	case len(l.budgets) < maxBudgets:
		l.budgets = append(l.budgets, b)
	}
	l.hearLocked(b)
}

// count counts a request in what the answer to a later one leaves, if the server may have counted it afterwards.
func (b *Budget) count(earlier Budget, units int64) {
	if !earlier.sent.After(b.told.Add(-counted)) || earlier.Left >= b.Left {
		return
	}
	if !b.Units {
		units = 1
	}
	b.Left -= units
}

// hearLocked notes which request's answer has told of a policy. What it forgets is the policy that was told of first.
func (l *line) hearLocked(b Budget) {
	if l.heard == nil {
		l.heard = map[budgetName]uint64{}
	}
	l.heard[b.name] = b.seq
	if len(l.heard) <= maxBudgets {
		return
	}
	oldest := b
	for name, seq := range l.heard {
		if seq < oldest.seq {
			oldest.name, oldest.seq = name, seq
		}
	}
	delete(l.heard, oldest.name)
}
