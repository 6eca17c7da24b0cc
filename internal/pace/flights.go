package pace

import (
	"cmp"
	"slices"
	"time"
)

// flight is a request that was sent and is not answered.
type flight struct {
	seq    uint64
	units  int64
	at     time.Time // not before that of any with a lower number
	landed bool      // it is answered, and will be dropped with others
}

// loseLocked ends a request that may be in flight and whose answer nobody will learn.
func (l *line) loseLocked(seq uint64) {
	if f := l.landLocked(seq); f.seq > 0 {
		l.spendLocked(f, nil) // the server may have counted it
		l.wakeLocked(time.Now())
	}
}

// counted is how long after it was sent a request is sure to be counted by its server.
// What the server says to be left does not tell how many of the younger ones it has
// counted.
const counted = time.Second

// moreUncountedLocked reports whether more than n requests are booked, or in flight and too young
// at an instant to be sure to be counted.
func (l *line) moreUncountedLocked(n int64, at time.Time) bool {
	n -= int64(l.booked)
	if n < 0 || int64(len(l.flights)-l.landed) <= n {
		return n < 0
	}
	for _, f := range l.youngLocked(at) {
		if !f.landed {
			if n--; n < 0 {
				return true
			}
		}
	}
	return false
}

// youngLocked returns the requests in flight that are too young at an instant to be sure to be
// counted, and some that have landed.
func (l *line) youngLocked(at time.Time) []flight {
	old, _ := slices.BinarySearchFunc(l.flights, at.Add(-counted), func(f flight, t time.Time) int {
		if f.at.After(t) {
			return 1
		}
		return -1
	})
	return l.flights[old:]
}

// landLocked takes a request out of those in flight, and returns it: zero if it was not
// there. Requests are answered in any order. So they are dropped together, when they are half
// of what is kept.
func (l *line) landLocked(seq uint64) flight {
	i, found := l.findFlightLocked(seq)
	if !found || l.flights[i].landed {
		return flight{}
	}
	f := l.flights[i]
	l.flights[i].landed = true
	if l.landed++; 2*l.landed >= len(l.flights) {
		l.flights = slices.DeleteFunc(l.flights, func(f flight) bool { return f.landed })
		l.landed = 0
		if len(l.flights) < cap(l.flights)/8 && cap(l.flights) > 64 {
			l.flights = slices.Clone(l.flights)
		}
	}
	return f
}

// findFlightLocked returns where in those in flight a request is, or would be.
func (l *line) findFlightLocked(seq uint64) (at int, found bool) {
	return slices.BinarySearchFunc(l.flights, seq, func(f flight, seq uint64) int { return cmp.Compare(f.seq, seq) })
}
