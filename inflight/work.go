package inflight

import "time"

// work is what is in flight under one permit.
type work struct {
	n          int           // units; 0 once they are released
	serial     uint64        // of its permit: a place is used again, a serial never
	start      time.Duration // if the key's limit is adaptive
	order      uint64        // among the work that the key's learner has seen
	seen       time.Duration // when Stats first saw it, if known
	known      bool          // Stats has seen it
	prev, next uint32        // places of the work that began before and after it
}

// works holds what is in flight of a key, in the order in which it began, and uses places
// again: so a permit costs no allocation. Place 0 is the head of that list, which is a
// ring. The zero works cannot be used: see init.
type works struct {
	at     []work
	free   uint32 // a place that is free, whose next is another one; 0 if there is none
	serial uint64
	own    [2]work // what at starts with: a key mostly has little in flight
}

func (w *works) init() { w.at = w.own[:1] }

// begin adds work that begins now, and returns its place.
func (w *works) begin(n int, start time.Duration, order uint64) (place uint32) {
	if place = w.free; place != 0 {
		w.free = w.at[place].next
	} else {
		place = uint32(len(w.at))
		w.at = append(w.at, work{})
	}
	w.serial++
	last := w.at[0].prev
	w.at[place] = work{n: n, serial: w.serial, start: start, order: order, prev: last}
	w.at[last].next = place
	w.at[0].prev = place
	return place
}

// end takes out the work of a permit, and returns it, or nothing if it has ended before.
func (w *works) end(place uint32, serial uint64) (ended work) {
	x := &w.at[place]
	if x.serial != serial || x.n == 0 {
		return work{}
	}
	ended = *x
	w.at[x.prev].next = x.next
	w.at[x.next].prev = x.prev
	x.n, x.next = 0, w.free
	w.free = place
	return ended
}

// each calls f with each work, the one that began last first, until it returns false.
func (w *works) each(f func(order uint64, start time.Duration) bool) {
	for i := w.at[0].prev; i != 0 && f(w.at[i].order, w.at[i].start); i = w.at[i].prev {
	}
}

// oldest returns for how long the oldest work has been in flight since Stats first saw it, and
// notes what it sees. What it has not seen before is at the end.
func (w *works) oldest(now time.Duration) time.Duration {
	for i := w.at[0].prev; i != 0 && !w.at[i].known; i = w.at[i].prev {
		w.at[i].seen, w.at[i].known = now, true
	}
	first := w.at[0].next
	if first == 0 {
		return 0
	}
	return max(0, now-w.at[first].seen)
}
