package meter

import "math"

// entry is one spending: so much, at that instant.
type entry struct{ at, cost int64 }

// ring is a deque of entries in the order of their instants, each instant once. It
// grows by doubling and shrinks again. The zero ring is empty. Appending, dropping from
// either end and changing one entry are amortised O(1); finding one is O(log n).
//
// To take an entry out of the middle of a long ring would move many others. It stays
// with a cost of 0 instead, until such entries are half of the ring or their time has
// come. The newest entry always has a cost above 0, so that newest is true.
//
// S is what runs of neighbouring entries come to: see runs. Whatever changes an entry has
// to call touch, or what is remembered of its runs is wrong.
type ring[S any] struct {
	buf  []entry  // its length is zero or a power of two, so that an index wraps with a mask
	runs *runs[S] // nil in a short ring, and until a question needs it

	// The index of the oldest entry, and how many there are. With 32 bits each, a key's
	// detail fits into an allocation of 48 bytes instead of 64.
	head, n uint32
}

// minRing is the first size of a ring, and the one below which it never shrinks: 64 bytes.
const minRing = 4

func (r *ring[S]) len() int { return int(r.n) }

// get returns the i-th entry, the oldest first.
func (r *ring[S]) get(i int) entry { return *r.slot(i) }

func (r *ring[S]) slot(i int) *entry { return &r.buf[r.index(i)] }

// index returns where in buf the i-th entry is.
func (r *ring[S]) index(i int) int { return (int(r.head) + i) & (len(r.buf) - 1) }

// set writes the i-th entry.
func (r *ring[S]) set(i int, e entry) {
	*r.slot(i) = e
	r.touch(i)
}

// newest returns the instant of the newest entry, or one before all others.
func (r *ring[S]) newest() int64 {
	if r.n == 0 {
		return math.MinInt64
	}
	return r.slot(int(r.n) - 1).at
}

// add appends a spending that is not older than the newest. Spendings of one instant are one
// entry, so a key that spends all at once needs one.
func (r *ring[S]) add(e entry) {
	if r.n > 0 {
		if last := r.slot(int(r.n) - 1); last.at == e.at {
			last.cost += e.cost
			r.touch(int(r.n) - 1)
			return
		}
	}
	r.push(e)
}

// push appends an entry that is newer than all others.
func (r *ring[S]) push(e entry) {
	r.reserve()
	r.n++
	r.set(int(r.n)-1, e)
}

// reserve makes room for one more entry.
func (r *ring[S]) reserve() {
	if int(r.n) == len(r.buf) {
		r.resize(max(minRing, 2*len(r.buf)))
	}
}

// insert puts a spending at its place among the others, from the end that is nearer:
// a part of a debt goes before all bookings, and behind little else.
func (r *ring[S]) insert(e entry) {
	r.reserve()
	i := r.search(e.at)
	switch {
	case i < r.len() && r.slot(i).at == e.at:
		e.cost += r.slot(i).cost
	case i < r.len()/2: // the older entries move one place to the front
		r.head = uint32(r.index(-1))
		r.n++
		for j := range i {
			r.set(j, r.get(j+1))
		}
	default: // the newer ones move one place back
		r.n++
		for j := r.len() - 1; j > i; j-- {
			r.set(j, r.get(j-1))
		}
	}
	r.set(i, e)
}

// popFront forgets the oldest k.
func (r *ring[S]) popFront(k int) {
	r.head = uint32(r.index(k))
	r.n -= uint32(k)
	r.shrink()
}

// at returns the cost at that instant, 0 if there is none.
func (r *ring[S]) at(at int64) int64 {
	if i := r.search(at); i < r.len() && r.slot(i).at == at {
		return r.slot(i).cost
	}
	return 0
}

// reduce takes up to n from what was spent at that instant, and returns how much
// it took: less than n only if the instant has less or is not here.
func (r *ring[S]) reduce(at, n int64) int64 {
	i := r.search(at)
	if i == r.len() || r.slot(i).at != at {
		return 0
	}
	return r.reduceAt(i, n)
}

// reduceNewest takes up to n from the newest spendings, and returns how much it took: less
// than n only if there was no more.
func (r *ring[S]) reduceNewest(n int64) (took int64) {
	for r.n > 0 && took < n {
		took += r.reduceAt(r.len()-1, n-took)
	}
	return took
}

// reduceAt takes up to n from the i-th entry, and returns how much.
func (r *ring[S]) reduceAt(i int, n int64) int64 {
	e := r.slot(i)
	n = min(n, e.cost)
	e.cost -= n
	if r.touch(i); e.cost == 0 {
		r.drop(i)
	}
	return n
}

// drop takes out an entry whose cost is 0, or leaves it where it is. In a short ring the
// others are moved: that is a bounded number of moves, and keeps the ring without gaps.
func (r *ring[S]) drop(i int) {
	switch {
	case i == r.len()-1:
		r.trim() // also what was dropped before it, and stayed
	case r.len() <= runLen:
		r.remove(i)
	default:
		r.leave()
	}
}

// trim forgets the newest entries as long as their cost is 0.
func (r *ring[S]) trim() {
	for r.n > 0 && r.slot(r.len()-1).cost == 0 {
		r.n--
	}
	r.shrink()
}

// remove closes the gap from the end that is nearer.
func (r *ring[S]) remove(i int) {
	if i < r.len()/2 {
		for ; i > 0; i-- {
			r.set(i, r.get(i-1))
		}
		r.popFront(1)
		return
	}
	for ; i < r.len()-1; i++ {
		r.set(i, r.get(i+1))
	}
	r.n--
	r.shrink()
}

// leave counts an entry that stays with a cost of 0. Once such gaps may be half of the ring,
// it closes all of them. That moves n entries after n/2 have been dropped, so the cost of
// each is amortised O(1).
func (r *ring[S]) leave() {
	if r.summed(); 2*r.runs.gaps < r.len() {
		r.runs.gaps++
		return
	}
	r.resize(len(r.buf))
	r.shrink()
}

// search returns the index of the first entry at that instant or later. Entries with a cost
// of 0 keep their instants, so the order is never broken.
func (r *ring[S]) search(at int64) int {
	lo, hi := 0, r.len()
	for lo < hi {
		if mid := int(uint(lo+hi) >> 1); r.slot(mid).at < at {
			lo = mid + 1
		} else {
			hi = mid
		}
	}
	return lo
}

// shrink gives memory back once three quarters of it are idle, so that a ring
// whose length swings around a power of two does not copy itself each time.
func (r *ring[S]) shrink() {
	size := len(r.buf)
	for size > minRing && r.len() <= size/4 {
		size /= 2
	}
	if size < len(r.buf) {
		r.resize(size)
	}
}

// resize moves the entries to a new buffer, and leaves out those with a cost of 0. No run
// is known any more: the entries are at other places.
func (r *ring[S]) resize(size int) {
	buf, n := make([]entry, size), 0
	for i := range r.len() {
		if e := r.get(i); e.cost > 0 {
			buf[n] = e
			n++
		}
	}
	*r = ring[S]{buf: buf, n: uint32(n)}
}

// clone returns a copy that shares nothing. Its runs are not known, because who asks for a
// copy looks at each entry anyway.
func (r *ring[S]) clone() ring[S] {
	c := *r
	c.buf, c.runs = append([]entry(nil), r.buf...), nil
	return c
}

// summed makes sure that a long ring has runs. A short one is looked at entry by entry.
func (r *ring[S]) summed() {
	if r.runs == nil && len(r.buf) > runLen {
		r.runs = newRuns[S](len(r.buf))
	}
}

// touch takes note that the i-th entry has changed.
func (r *ring[S]) touch(i int) {
	if r.runs != nil {
		r.runs.touch(r.index(i))
	}
}

// longest returns the level of the longest run that begins with the i-th entry and
// ends before the end-th: 0 for the entry alone.
func (r *ring[S]) longest(i, end int) int {
	if r.runs == nil {
		return 0
	}
	return r.runs.longest(r.index(i), end-i)
}

// run returns the run of a level from 1 on that begins with the i-th entry.
func (r *ring[S]) run(i, level int) *run[S] { return r.runs.at(r.index(i), level) }
