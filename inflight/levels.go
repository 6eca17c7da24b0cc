package inflight

import (
	"slices"
	"time"
)

// levels are the units in flight of each priority under a shared limit.
//
// Work cannot be interrupted. After the limit has fallen, higher levels would get nothing until the work of lower ones ends. So they may exceed
// the learnt limit then, up to its bound. And a lower level leaves the queue in the backend to the levels above, as its own work there would be
// ahead of theirs, and may take long.
type levels struct {
	all  []levelHeld
	last time.Duration // when work last began or ended
}

// levelHeld is the units that a priority has in flight.
type levelHeld struct {
	priority, n int
	last        time.Duration
}

// remembered is the time for which a level counts after its last work.
const remembered = time.Minute

// add counts units in flight of a priority, or subtracts them.
func (l *levels) add(priority, n int, now time.Duration) {
	l.last = now
	for i := range l.all {
		if h := &l.all[i]; h.priority == priority {
			h.n += n
			h.last = now
			return
		}
	}
	l.all = slices.DeleteFunc(l.all, func(h levelHeld) bool { return h.n == 0 && now-h.last > remembered })
	l.all = append(l.all, levelHeld{priority, n, now})
}

// move counts units of one priority as units of another one.
func (l *levels) move(from, to, n int) {
	if n > 0 {
		l.add(from, -n, l.last)
		l.add(to, n, l.last)
	}
}

// exceeds reports whether a caller may exceed the limit, because lower levels hold it.
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

// leaves returns the part of the limit that a caller leaves to higher levels: the queue, if one of them has had work of late, and at most half.
func (l *levels) leaves(priority, queue, limit int) int {
	for _, h := range l.all {
		if h.priority > priority && (h.n > 0 || l.last-h.last < remembered) {
			return min(queue, limit/2)
		}
	}
	return 0
}
