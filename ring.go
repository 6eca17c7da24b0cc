package ratelimit

import "math"

// ring is a deque of entries in the order of their instants, each instant once.
// It grows by doubling and shrinks again. The zero ring is empty.
type ring struct {
	buf  []entry // its length is zero or a power of two
	head int     // index of the oldest
	n    int
}

// minRing is the first size of a ring, and the one below which it never shrinks.
const minRing = 4

// get returns the i-th entry, the oldest first.
func (r *ring) get(i int) entry { return *r.slot(i) }

func (r *ring) slot(i int) *entry { return &r.buf[(r.head+i)&(len(r.buf)-1)] }

// newest returns the instant of the newest entry, or one before all others.
func (r *ring) newest() int64 {
	if r.n == 0 {
		return math.MinInt64
	}
	return r.slot(r.n - 1).at
}

// add appends a spending that is not older than the newest.
func (r *ring) add(e entry) {
	if r.n > 0 {
		if last := r.slot(r.n - 1); last.at == e.at {
			last.cost += e.cost
			return
		}
	}
	r.push(e)
}

func (r *ring) push(e entry) {
	if r.n == len(r.buf) {
		r.resize(max(minRing, 2*r.n))
	}
	r.n++
	*r.slot(r.n - 1) = e
}

// insert puts a spending at its place among the others.
func (r *ring) insert(e entry) {
	i := r.search(e.at)
	if i < r.n && r.slot(i).at == e.at {
		r.slot(i).cost += e.cost
		return
	}
	r.push(e)
	for j := r.n - 1; j > i; j-- {
		*r.slot(j) = *r.slot(j - 1)
	}
	*r.slot(i) = e
}

// popFront forgets the oldest k.
func (r *ring) popFront(k int) {
	r.n -= k
	if r.n == 0 {
		r.head = 0
	} else {
		r.head = (r.head + k) & (len(r.buf) - 1)
	}
	r.shrink()
}

// reduce takes up to n from what was spent at that instant, and returns how much
// it took: less than n only if the instant has less or is not here.
func (r *ring) reduce(at, n int64) int64 {
	i := r.search(at)
	if i == r.n || r.slot(i).at != at {
		return 0
	}
	return r.reduceAt(i, n)
}

// reduceNewest takes up to n from the newest spendings, and returns how much.
func (r *ring) reduceNewest(n int64) (took int64) {
	for r.n > 0 && took < n {
		took += r.reduceAt(r.n-1, n-took)
	}
	return took
}

func (r *ring) reduceAt(i int, n int64) int64 {
	e := r.slot(i)
	n = min(n, e.cost)
	if e.cost -= n; e.cost == 0 {
		r.remove(i)
	}
	return n
}

// remove closes the gap from the end that is nearer.
func (r *ring) remove(i int) {
	if i < r.n/2 {
		for ; i > 0; i-- {
			*r.slot(i) = *r.slot(i - 1)
		}
		r.popFront(1)
		return
	}
	for ; i < r.n-1; i++ {
		*r.slot(i) = *r.slot(i + 1)
	}
	r.n--
	r.shrink()
}

// search returns the index of the first entry at that instant or later.
func (r *ring) search(at int64) int {
	lo, hi := 0, r.n
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
func (r *ring) shrink() {
	if len(r.buf) > minRing && r.n <= len(r.buf)/4 {
		size := len(r.buf) / 2
		for size > minRing && r.n <= size/4 {
			size /= 2
		}
		r.resize(size)
	}
}

func (r *ring) resize(size int) {
	buf := make([]entry, size)
	for i := range r.n {
		buf[i] = r.get(i)
	}
	r.buf, r.head = buf, 0
}

func (r *ring) clone() ring {
	c := *r
	c.buf = append([]entry(nil), r.buf...)
	return c
}

// entry is one spending: so much, at that instant.
type entry struct{ at, cost int64 }
