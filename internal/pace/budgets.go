package pace

import (
	"slices"
	"time"
)

// budgets are a server's budgets, as far as its answers show them.
type budgets struct {
	list   []Budget
	latest map[budgetName]uint64 // of each policy, the number of the latest request whose answer names it
}

// closedUntil returns the instant at which the last of the budgets that are used up ends, or open if none ends later.
func (bs *budgets) closedUntil(open time.Time) time.Time {
	for _, b := range bs.list {
		if b.Left <= 0 && b.Until.After(open) {
			open = b.Until
		}
	}
	return open
}

// ends returns the instant at which the last of the budgets ends, or at least the given one.
func (bs *budgets) ends(least time.Time) time.Time {
	for _, b := range bs.list {
		if b.Until.After(least) {
			least = b.Until
		}
	}
	return least
}

// nextReset returns the next instant at which a budget ends, or the zero time.
func (bs *budgets) nextReset(now time.Time) (reset time.Time) {
	for _, b := range bs.list {
		if now.Before(b.Until) && (reset.IsZero() || b.Until.Before(reset)) {
			reset = b.Until
		}
	}
	return reset
}

// exhausted reports whether one of the budgets by itself lets nothing be sent.
func exhausted(all []Budget, now time.Time) bool {
	return slices.ContainsFunc(all, func(b Budget) bool { return b.Left == 0 && now.Before(b.Until) })
}

// dropBefore forgets the budgets in answers to requests up to a number.
func (bs *budgets) dropBefore(seq uint64) {
	bs.list = slices.DeleteFunc(bs.list, func(b Budget) bool { return b.seq <= seq })
}

// spend counts a request that is not in flight any more in the budgets that are missing in its
// answer.
func (bs *budgets) spend(f flight, answered []Budget) {
	for i := range bs.list {
		b := &bs.list[i]
		same := func(t Budget) bool { return t.name == b.name }
		if f.seq <= b.seq || slices.ContainsFunc(answered, same) {
			continue
		}
		if b.Units {
			b.Left -= f.units
		} else {
			b.Left--
		}
	}
}

// set keeps a budget in an answer, if it has not ended. Requests overtake each other on their way, and so do responses. An
// answer never replaces the answer to a request that was sent later. An answer that leaves more counts only if its
// request was sent after the other answer was received.
func (bs *budgets) set(b Budget, units int64) {
	if !b.received.Before(b.Until) {
		return
	}
	i := slices.IndexFunc(bs.list, func(old Budget) bool { return old.name == b.name })
	if i >= 0 {
		b.name = bs.list[i].name
	} else {
		b.name = b.name.kept()
	}
	b.Policy = b.name.policy
	switch {
	case b.seq < bs.latest[b.name]:
		if i >= 0 {
			bs.list[i].count(b, units)
		}
		return
	case i >= 0:
		if old := bs.list[i]; b.Left <= old.Left || b.sent.After(old.received) {
			bs.list[i] = b
		}
	case len(bs.list) < maxBudgets:
		bs.list = append(bs.list, b)
	}
	bs.note(b)
}

// count counts a request in a budget of the answer to a later one, if the server may have counted it afterwards.
func (b *Budget) count(earlier Budget, units int64) {
	if !earlier.sent.After(b.received.Add(-counted)) || earlier.Left >= b.Left {
		return
	}
	if !b.Units {
		units = 1
	}
	b.Left -= units
}

// note records the latest answer that names a policy. If there are too many policies, the policy with the oldest answer is
// forgotten.
func (bs *budgets) note(b Budget) {
	if bs.latest == nil {
		bs.latest = map[budgetName]uint64{}
	}
	bs.latest[b.name] = b.seq
	if len(bs.latest) <= maxBudgets {
		return
	}
	oldest := b
	for name, seq := range bs.latest {
		if seq < oldest.seq {
			oldest.name, oldest.seq = name, seq
		}
	}
	delete(bs.latest, oldest.name)
}
