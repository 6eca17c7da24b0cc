package pace

import (
	"slices"
	"time"
)

// budgets are a server's budgets, as its answers report them.
type budgets struct {
	list   []Budget
	anchor Budget                // an earlier answer to compare later ones with
	latest map[budgetName]latest // each policy's state, kept after its budget's end
}

// latest is the state kept for a budget after its end.
type latest struct {
	seq     uint64        // the number of the latest request whose answer named the budget
	every   time.Duration // see Budget
	refills bool          // whether the budget refills, as reported by the server or derived from its answers
	ends    time.Time     // the Until of the first answer with this end
	spent   int           // ends in a row with little left
}

// closedUntil returns the latest end of the used-up budgets, or open if later.
func (bs *budgets) closedUntil(open time.Time) time.Time {
	for _, b := range bs.list {
		if at := b.fits(1); b.Left <= 0 && at.After(open) {
			open = at
		}
	}
	return open
}

// leftAt returns the remaining budget at an instant.
func (b *Budget) leftAt(now time.Time) int64 {
	since := now.Sub(b.received) - b.first
	if b.every == 0 || since < 0 {
		return b.Left
	}
	if b.first > 0 {
		since += b.every
	}
	return max(b.Left, min(b.Limit, b.Left+int64(since/b.every)))
}

// fits returns the first instant when n remain.
func (b *Budget) fits(n int64) time.Time {
	if b.every == 0 || n > b.Limit {
		return b.Until
	}
	at := b.received
	switch {
	case n <= b.Left:
	case b.first > 0:
		at = at.Add(b.first + time.Duration(n-b.Left-1)*b.every)
	default:
		at = at.Add(time.Duration(n-b.Left) * b.every)
	}
	if at.After(b.Until) {
		return b.Until
	}
	return at
}

// ends returns the budgets' latest end, or least if later.
func (bs *budgets) ends(least time.Time) time.Time {
	for _, b := range bs.list {
		if b.Until.After(least) {
			least = b.Until
		}
	}
	return least
}

// nextUnit returns the instant when the budget's next unit comes back, or its end.
func (b *Budget) nextUnit(now time.Time) time.Time {
	if b.every == 0 {
		return b.Until
	}
	if at := b.fits(b.leftAt(now) + 1); at.After(now) {
		return at
	}
	return b.Until
}

// nextReset returns the next instant when a budget ends or a unit
// of one comes back. If there is none, it returns the zero time.
func (bs *budgets) nextReset(now time.Time) (reset time.Time) {
	for _, b := range bs.list {
		at := b.nextUnit(now)
		if now.Before(b.Until) && (reset.IsZero() || at.Before(reset)) {
			reset = at
		}
	}
	return reset
}

// exhausted reports whether one of the budgets is used up, so that nothing may be sent.
func exhausted(all []Budget, now time.Time) bool {
	return slices.ContainsFunc(all, func(b Budget) bool { return b.Left == 0 && now.Before(b.Until) })
}

// plenty reports whether each budget of requests refills and is nearly whole, according to the answers.
func (bs *budgets) plenty(now time.Time) (plenty bool) {
	for i := range bs.list {
		if b := &bs.list[i]; !b.Units {
			if plenty = b.informs() && b.every > 0 && b.leftAt(now) >= b.Limit-b.Limit/8; !plenty {
				return false
			}
		}
	}
	return plenty
}

// shared reports whether others use the budget, too. Then an earlier answer, this process's own
// requests since, and the requests in flight at its arrival explain only a part of the spending.
func (bs *budgets) shared(b Budget) bool {
	i := slices.IndexFunc(bs.list, func(old Budget) bool { return old.name == b.name })
	if i < 0 || b.Units || b.seq <= bs.list[i].seq {
		return false
	}
	if old := &bs.list[i]; old.others(b) > 1+old.doubtful(b) {
		return true
	}
	a := bs.anchor
	if a.name != b.name || !b.received.Before(a.Until) || b.Left > a.Left || a.every != bs.list[i].every || b.seq <= a.seq {
		bs.anchor = bs.list[i]
		return false
	}
	own := int64(b.seq - a.seq)
	if own > 4*(a.flying+1) {
		bs.anchor = bs.list[i]
	}
	return a.others(b) > 1+own/8+a.doubtful(b)
}

// doubtful returns how many units may be missing from a later answer although no other process
// uses the budget: in a sliding window, units spent later come back later. It is less than
// half the units that should have come back, because a process as busy as this one uses half.
func (b *Budget) doubtful(later Budget) int64 { return (b.leftAt(later.received) - b.Left) * 2 / 5 }

// others returns the minimum number of other users' requests counted by a later answer.
func (b *Budget) others(later Budget) int64 {
	return b.leftAt(later.received) - int64(later.seq-b.seq) - b.flying - later.Left
}

// spend counts a landed request in the budgets missing from its answer.
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

// set stores a budget from an answer, unless the budget has ended. Requests and responses
// overtake each other. So an answer never replaces the answer to a request sent later. An answer
// that leaves more is stored only if its request was sent after the other answer was received.
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
	known := bs.latest[b.name]
	known.learnKind(&b)
	b.paceUnits(known.every)
	switch {
	case b.seq < bs.latest[b.name].seq:
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
	bs.note(b, known)
}

// The ends in successive answers show the kind of a budget. Clocks are rounded, so two ends that differ by at
// most movedBy are the same end. Under a limit below leastLimit, the requests left after an end show nothing.
const (
	movedBy    = 2 * time.Second
	leastLimit = 16
)

// learnKind determines whether a budget refills gradually, if neither the server nor the dialect reports it. Otherwise
// the budget has a window. A window's reported end stays the same until it is reached, and then the budget is full.
func (l *latest) learnKind(b *Budget) {
	end := l.ends
	l.ends = b.Until
	switch moved := b.Until.Sub(end); {
	case b.Refills || b.Window > 0 || b.Limit <= 0:
		l.refills = b.Refills
		return
	case end.IsZero():
	case !b.received.Before(end):
		if b.Limit >= leastLimit && b.Left < b.Limit/4 && b.received.Sub(end) < movedBy {
			l.spent++
		} else {
			l.spent = 0
		}
		l.refills = l.refills || l.spent > 1
	case moved > movedBy && b.received.Before(end.Add(-movedBy)):
		l.refills = true
	case moved <= movedBy:
		l.ends = end
	}
	b.Refills, b.inferred = l.refills, l.refills
}

// refused records a request's refusal until an instant. Budgets are empty until then if they come back
// bit by bit. Other budgets are forgotten, because the server's time is more precise than a window's end.
func (bs *budgets) refused(seq uint64, until, now time.Time) {
	kept := bs.list[:0]
	for _, b := range bs.list {
		switch {
		case b.seq > seq:
		case b.every == 0 || b.Units || b.Left > 0 && len(bs.list) > 1:
			continue
		default:
			b.seq, b.Left, b.received, b.first = seq, 0, now, max(1, until.Sub(now))
			if full := now.Add(time.Duration(b.Limit) * b.every); b.Until.Before(full) {
				b.Until = full
			}
		}
		kept = append(kept, b)
	}
	clear(bs.list[len(kept):])
	bs.list = kept
}

// paceUnits determines how long one unit of a refilling budget takes to come back. It is the unit's share
// of the window, or of the time until the budget is whole. If an answer leaves nothing, its reset may
// belong to the next unit or to the whole budget. Then paceUnits uses the time from an earlier answer.
func (b *Budget) paceUnits(known time.Duration) {
	if !b.Refills || b.Limit <= 0 {
		return
	}
	left := b.Until.Sub(b.received)
	b.every = known
	switch {
	case b.Window > 0:
		b.every = max(1, b.Window/time.Duration(b.Limit))
	case b.Limit <= b.Left:
	case b.Left > 0:
		b.every = max(1, left/time.Duration(b.Limit-b.Left))
	case b.every == 0 && b.inferred: // a window's end would have moved, so the reset belongs to the next unit
		b.every = max(1, left)
	case b.every == 0:
		b.every = max(1, left/time.Duration(b.Limit))
	}
	if b.every == 0 {
		return
	}
	if whole := b.received.Add(time.Duration(min(b.Limit-min(b.Left, b.Limit), int64(MaxWait/b.every))) * b.every); whole.After(b.Until) {
		b.Until = whole
	}
	if b.Left == 0 {
		b.first = max(1, min(left, b.every))
		if b.Window > 0 && left < b.Window { // the reset is the exact time of the next unit
			b.first = max(1, left)
		}
	}
}

// count subtracts an earlier request from a later answer's budget,
// if the server may have counted the request after the answer.
func (b *Budget) count(earlier Budget, units int64) {
	if !earlier.sent.After(b.received.Add(-counted)) || earlier.Left >= b.Left {
		return
	}
	if !b.Units {
		units = 1
	}
	b.Left -= units
	if earlier.Until.Before(b.Until) { // the server's later answer has this reset
		b.Until = earlier.Until
	}
}

// note records a policy's latest answer. If there are too many policies, it forgets the one with the oldest answer.
func (bs *budgets) note(b Budget, known latest) {
	if bs.latest == nil {
		bs.latest = map[budgetName]latest{}
	}
	known.seq, known.every = b.seq, b.every
	bs.latest[b.name] = known
	if len(bs.latest) <= maxBudgets {
		return
	}
	oldest := b
	for name, l := range bs.latest {
		if l.seq < oldest.seq {
			oldest.name, oldest.seq = name, l.seq
		}
	}
	delete(bs.latest, oldest.name)
}
