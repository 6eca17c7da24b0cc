package pace

import (
	"cmp"
	"slices"
	"time"
)

// flights are a line's sent requests without an answer.
type flights struct {
	list   []flight // ordered by their numbers; some have landed
	landed int      // landed flights in list
	sent   uint64   // requests sent since the line was made
}

// flight is a sent request without an answer.
type flight struct {
	seq    uint64
	units  int64
	at     time.Time // at or after the instant of each flight with a lower number
	landed bool      // whether it was answered; landed flights are removed together
}

// depart adds a sent request, and returns its number.
func (fs *flights) depart(units int64, now time.Time) (seq uint64) {
	if n := len(fs.list); n > 0 && now.Before(fs.list[n-1].at) {
		now = fs.list[n-1].at // the clock was read before the lock was acquired
	}
	fs.sent++
	fs.list = append(fs.list, flight{seq: fs.sent, units: units, at: now})
	return fs.sent
}

// land ends a request's flight, and returns it. It returns the zero flight if the request was not in flight.
// Requests are answered in any order, so landed flights are removed together, when they are half the list.
func (fs *flights) land(seq uint64) flight {
	i, found := fs.find(seq)
	if !found || fs.list[i].landed {
		return flight{}
	}
	f := fs.list[i]
	fs.list[i].landed = true
	if fs.landed++; 2*fs.landed >= len(fs.list) {
		fs.list = slices.DeleteFunc(fs.list, func(f flight) bool { return f.landed })
		fs.landed = 0
		if len(fs.list) < cap(fs.list)/8 && cap(fs.list) > 64 {
			fs.list = slices.Clone(fs.list)
		}
	}
	return f
}

// find returns a request's index in the list, or the index for inserting it.
func (fs *flights) find(seq uint64) (at int, found bool) {
	return slices.BinarySearchFunc(fs.list, seq, func(f flight, seq uint64) int { return cmp.Compare(f.seq, seq) })
}

// counted is the longest time that a server takes to count a request.
// The remaining budget in an answer may include younger requests or not.
const counted = time.Second

// flying counts the requests in flight.
func (fs *flights) flying() int64 { return int64(len(fs.list) - fs.landed) }

// sentSince counts the requests sent after the request seq.
func (fs *flights) sentSince(seq uint64) uint64 { return fs.sent - min(seq, fs.sent) }

// young returns the requests in flight that the server may not have counted at an instant. Some may have landed.
func (fs *flights) young(at time.Time) []flight {
	old, _ := slices.BinarySearchFunc(fs.list, at.Add(-counted), func(f flight, t time.Time) int {
		if f.at.After(t) {
			return 1
		}
		return -1
	})
	return fs.list[old:]
}

// moreYoung reports whether more than n requests in flight may be uncounted by the server at an instant.
func (fs *flights) moreYoung(n int64, at time.Time) bool {
	if n < 0 || int64(len(fs.list)-fs.landed) <= n {
		return n < 0
	}
	for _, f := range fs.young(at) {
		if !f.landed {
			if n--; n < 0 {
				return true
			}
		}
	}
	return false
}

// nextCounted returns the first instant when another young request is certainly counted, or the zero time.
func (fs *flights) nextCounted(now time.Time) (at time.Time) {
	young := fs.young(now)
	if i := slices.IndexFunc(young, func(f flight) bool { return !f.landed }); i >= 0 {
		at = young[i].at.Add(counted)
	}
	return at
}
