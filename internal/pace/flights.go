package pace

import (
	"cmp"
	"slices"
	"time"
)

// flights are the requests of a line that were sent and are not answered yet.
type flights struct {
	list   []flight // in the order of their numbers; some of them have landed
	landed int      // the number of landed flights in it
	sent   uint64   // the number of requests sent since the line was made
}

// flight is a request that was sent and is not answered yet.
type flight struct {
	seq    uint64
	units  int64
	at     time.Time // at or after the instant of a flight with a lower number
	landed bool      // it is answered, and will be dropped together with others
}

// depart adds a request that is sent, and returns its number.
func (fs *flights) depart(units int64, now time.Time) (seq uint64) {
	if n := len(fs.list); n > 0 && now.Before(fs.list[n-1].at) {
		now = fs.list[n-1].at // the clock was read before the lock was taken
	}
	fs.sent++
	fs.list = append(fs.list, flight{seq: fs.sent, units: units, at: now})
	return fs.sent
}

// land ends the flight of a request, and returns it, or the zero flight if it was not in flight.
// Requests are answered in any order, so they are dropped together, when they are half of the list.
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

// find returns the index of a request in the list, or the index at which to insert it.
func (fs *flights) find(seq uint64) (at int, found bool) {
	return slices.BinarySearchFunc(fs.list, seq, func(f flight, seq uint64) int { return cmp.Compare(f.seq, seq) })
}

// counted is the time after which a server has certainly counted a request. The remaining
// budget in an answer does not show how many younger requests the server has counted.
const counted = time.Second

// flying returns the number of requests in flight.
func (fs *flights) flying() int64 { return int64(len(fs.list) - fs.landed) }

// sentSince returns the number of requests that were sent after a request.
func (fs *flights) sentSince(seq uint64) uint64 { return fs.sent - min(seq, fs.sent) }

// young returns the requests in flight that the server may not have counted by an instant, and some that have landed.
func (fs *flights) young(at time.Time) []flight {
	old, _ := slices.BinarySearchFunc(fs.list, at.Add(-counted), func(f flight, t time.Time) int {
		if f.at.After(t) {
			return 1
		}
		return -1
	})
	return fs.list[old:]
}

// moreYoung reports whether more than n requests are in flight that the server may not have counted by an instant.
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

// nextCounted returns the first instant at which one of the young requests is certainly counted, or the zero time.
func (fs *flights) nextCounted(now time.Time) (at time.Time) {
	young := fs.young(now)
	if i := slices.IndexFunc(young, func(f flight) bool { return !f.landed }); i >= 0 {
		at = young[i].at.Add(counted)
	}
	return at
}
