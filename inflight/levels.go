package inflight

import (
	"math"
	"slices"
	"time"
)

// levels counts the units in flight of each priority under a shared limit. Ignored work does not count.
//
// Work cannot be interrupted. When the limit falls, higher levels would get nothing until work of lower levels
// ends. So higher levels may then exceed the learnt limit, up to its bound. A lower level also leaves the
// queue in the backend to the levels above. Otherwise its work would be ahead of theirs, and might take long.
//
// This is not enough if the work of a lower level takes longer than the learnt limit needs to change. The
// limit grows while the higher level is served well. Then the lower level fills it, and holds it until its
// work ends. So each lower level has its own bound. It changes at the pace of the level's work. See levelHeld.
type levels struct {
	all  []levelHeld   // by priority, the lowest first
	last time.Duration // when work last began or ended
}

// levelHeld counts the units in flight of one priority, and bounds them.
//
// The bound limits the units of this level and all lower ones while a higher level has work. When a call of a higher
// level is late, the bound falls to a sixteenth below these units. It grows in each period in which it was reached
// and no call was late. It then grows by an eighth of the distance to the value where a call was late, but at least
// by a quarter of a unit. So the bound is near this value for most of the time. It passes the value quickly if the
// call was late for another reason. CUBIC grows the window of a TCP connection in the same way (RFC 9438).
type levelHeld struct {
	priority, n int
	last        time.Duration // when its work last began or ended

	bound, late float64       // the bound, or 0 for none; the units in flight when a call of a higher level was late
	hold        time.Duration // the mean time of about the last 16 successes; 0 before the first, so no period ends before it
	began       time.Duration // the beginning of the period; it lasts as long as hold, and at least a second
	most        [2]int        // the maximum of units of this level and those below, in this period and in the previous one
	lowered     bool          // whether the bound fell in this period
}

// remembered is how long a level counts after its last work.
const remembered = time.Minute

// differing is the least ratio for the times of two levels to count as different.
const differing = 2

// add adds n to the units in flight of a priority. If n is negative,
// bounds may change, and the caller must serve the waiters afterwards.
func (l *levels) add(priority, n int, now time.Duration) {
	l.last = now
	if n < 0 {
		l.pass(now)
	}
	i := l.find(priority)
	if i == len(l.all) || l.all[i].priority != priority {
		l.all = slices.DeleteFunc(l.all, func(h levelHeld) bool { return h.n == 0 && now-h.last > remembered })
		i = l.find(priority)
		l.all = slices.Insert(l.all, i, levelHeld{priority: priority, began: now})
	}
	l.all[i].n += n
	l.all[i].last = now
	below := 0
	for j := range l.all {
		h := &l.all[j]
		below += h.n
		h.most[0] = max(h.most[0], below)
	}
}

// find returns a priority's index, or the index to insert it at.
func (l *levels) find(priority int) int {
	i := 0
	for i < len(l.all) && l.all[i].priority < priority {
		i++
	}
	return i
}

// move counts one priority's units as another one's.
func (l *levels) move(from, to, n int) {
	if n > 0 {
		l.add(from, -n, l.last)
		l.add(to, n, l.last)
	}
}

// exceeds reports whether a caller may exceed the limit because lower levels hold it.
func (l *levels) exceeds(n, priority, limit int) bool {
	own, lower := 0, 0
	for _, h := range l.all {
		if h.priority >= priority {
			own += h.n
		} else {
			lower += h.n
		}
	}
	return lower > 0 && n <= limit-own
}

// differ reports whether two levels recently had work of very different
// length. Then the mean time of all work depends on their mix.
func (l *levels) differ() bool {
	shortest, longest := time.Duration(math.MaxInt64), time.Duration(0)
	for _, h := range l.all {
		if h.hold > 0 && (h.n > 0 || l.last-h.last < remembered) {
			shortest, longest = min(shortest, h.hold), max(longest, h.hold)
		}
	}
	return longest/differing > shortest
}

// leaves returns the part of the limit left to higher levels by a caller. If one
// recently had work, it is the queue, but at most half the limit. Otherwise it is 0.
func (l *levels) leaves(priority, queue, limit int) int {
	if l.worksAbove(l.find(priority + 1)) {
		return min(queue, limit/2)
	}
	return 0
}

// worksAbove reports whether a level recently had work, among those from an index on.
func (l *levels) worksAbove(place int) bool {
	for _, h := range l.all[place:] {
		if h.n > 0 || l.last-h.last < remembered {
			return true
		}
	}
	return false
}

// reached reports whether n more units of a priority would exceed its bound or the bound of a
// level above it. As with the learnt limit, a request larger than the bound is admitted alone.
func (l *levels) reached(n, priority int) bool {
	below := 0
	for i, h := range l.all {
		below += h.n
		if h.bound > 0 && h.priority >= priority && below > 0 && float64(below+n) > h.bound && l.worksAbove(i+1) {
			return true
		}
	}
	return false
}

// delayed records a priority's late call: it was refused, gave up, or waited for long.
func (l *levels) delayed(priority int) {
	i := l.find(priority) - 1
	for i >= 0 && l.all[i].n == 0 {
		i--
	}
	if i < 0 || l.all[i].lowered {
		return
	}
	h := &l.all[i]
	held := float64(max(h.most[0], h.most[1]))
	if h.bound > 0 {
		held = min(held, h.bound)
	}
	h.late, h.bound, h.lowered = held, max(1, held-max(1, held/16)), true
}

// held records the time of a priority's successful work.
func (l *levels) held(priority int, d time.Duration) {
	i := l.find(priority)
	if i == len(l.all) || l.all[i].priority != priority {
		return
	}
	h := &l.all[i]
	if h.hold == 0 {
		h.began = l.last
	} else {
		d = h.hold + (d-h.hold)/16
	}
	h.hold = max(1, d)
}

// pass ends each level's period that is over, and begins the next.
func (l *levels) pass(now time.Duration) {
	below := 0
	for i := range l.all {
		h := &l.all[i]
		below += h.n
		period := max(h.hold, time.Second)
		if h.hold == 0 || now-h.began < period {
			continue
		}
		if h.bound > 0 && !h.lowered && float64(max(h.most[0], h.most[1])) > h.bound-1 {
			h.bound += max(0.25, math.Abs(h.late-h.bound)/8)
		}
		h.lowered, h.most = false, [2]int{below, h.most[0]}
		h.began = now - (now-h.began)%period // if several periods are over, nothing began or ended in the later ones
	}
}
