package inflight

import "time"

// work is the work in flight under one permit.
type work struct {
	n     int           // units; 0 if it had ended before
	start time.Duration // set if the limiter is timed
	seq   uint64        // its number in the order of beginning, if the key has a learner; 0 after Ignore
}

// works holds the work in flight of a key. Its places are reused, so a
// permit costs no allocation. Places count from 1. The zero works is empty.
type works struct {
	first  held       // place 1, enough for most keys
	begun  begun      // the times of place 1
	newest uint32     // the place of the latest work, if there is a learner; otherwise 0
	more   *moreWorks // nil while one place is enough and Stats has examined nothing
}

// held has the permit's units at a place.
type held struct {
	n      int    // 0 after their release
	serial uint64 // distinguishes one place's permits
}

// begun has the times of work in a timed limiter.
type begun struct {
	start        time.Duration
	seq          uint64
	older, newer uint32 // places of the work begun before and after it, if there is a learner; 0 for none
}

// moreWorks is the part of works for all places but the first, and for Stats.
type moreWorks struct {
	held  []held     // the places from 2 on
	free  []uint32   // free places
	begun []begun    // the places' times in held, if the limiter is timed
	seen  []sighting // sightings by Stats, from place 1 on
}

// sighting records a permit seen by Stats at a place.
type sighting struct {
	serial uint64
	since  time.Duration // the time of the first sighting
}

// at returns the work at a place.
func (w *works) at(place uint32) *held {
	if place == 1 {
		return &w.first
	}
	return &w.more.held[place-2]
}

func (w *works) begunAt(place uint32) *begun {
	if place == 1 {
		return &w.begun
	}
	return &w.more.begun[place-2]
}

// begin adds n units and returns their place and serial.
func (w *works) begin(n int) (place uint32, serial uint64) {
	x := &w.first
	if place = 1; x.n != 0 {
		place = w.another()
		x = w.at(place)
	}
	x.n = n
	x.serial++
	return place, x.serial
}

// another returns a free place other than the first.
func (w *works) another() uint32 {
	m := w.extra()
	if last := len(m.free) - 1; last >= 0 {
		place := m.free[last]
		m.free = m.free[:last]
		return place
	}
	m.held = append(m.held, held{})
	return uint32(len(m.held)) + 1
}

func (w *works) extra() *moreWorks {
	if w.more == nil {
		w.more = new(moreWorks)
	}
	return w.more
}

// end removes a permit's units and returns their number, or 0 if they were removed before.
func (w *works) end(place uint32, serial uint64) (n int) {
	x := w.at(place)
	if x.serial != serial {
		return 0
	}
	if n, x.n = x.n, 0; n != 0 && place != 1 {
		w.more.free = append(w.more.free, place)
	}
	return n
}

// note records the beginning of newly added work.
func (w *works) note(place uint32, start time.Duration, seq uint64) {
	if place != 1 && len(w.more.begun) < len(w.more.held) {
		w.more.begun = append(w.more.begun, begun{})
	}
	*w.begunAt(place) = begun{start: start, seq: seq}
}

// link makes the work at a place the newest.
func (w *works) link(place uint32) {
	w.begunAt(place).older = w.newest
	if w.newest != 0 {
		w.begunAt(w.newest).newer = place
	}
	w.newest = place
}

// unlink removes linked work from the order.
func (w *works) unlink(place uint32) {
	x := w.begunAt(place)
	if x.newer == 0 {
		w.newest = x.older
	} else {
		w.begunAt(x.newer).older = x.older
	}
	if x.older != 0 {
		w.begunAt(x.older).newer = x.newer
	}
}

// leave unlinks a permit's work and returns it. The work stays in
// flight. ok is false if the work was unlinked or has ended before.
func (w *works) leave(place uint32, serial uint64) (left work, ok bool) {
	x := w.at(place)
	if x.serial != serial || x.n == 0 {
		return left, false
	}
	b := w.begunAt(place)
	if b.seq == 0 {
		return left, false
	}
	left = work{x.n, b.start, b.seq}
	w.unlink(place)
	b.seq = 0
	return left, true
}

// ignored returns the units in flight whose work is ignored. All work must be noted.
func (w *works) ignored() (n int) {
	if w.begun.seq == 0 {
		n = w.first.n
	}
	if w.more != nil {
		for i, b := range w.more.begun {
			if b.seq == 0 {
				n += w.more.held[i].n
			}
		}
	}
	return n
}

// each calls f with each linked work, the newest first, until f returns false.
func (w *works) each(f func(seq uint64, start time.Duration) bool) {
	for place := w.newest; place != 0; {
		x := w.begunAt(place)
		if !f(x.seq, x.start) {
			return
		}
		place = x.older
	}
}

// oldest returns the age of the oldest work in flight, counted from the first call of oldest with it.
func (w *works) oldest(now time.Duration) (age time.Duration) {
	m := w.extra()
	for len(m.seen) < len(m.held)+1 {
		m.seen = append(m.seen, sighting{})
	}
	for i := range m.seen {
		x, s := w.at(uint32(i)+1), &m.seen[i]
		if x.n == 0 {
			continue
		}
		if s.serial != x.serial {
			*s = sighting{x.serial, now}
		}
		age = max(age, now-s.since)
	}
	return age
}
