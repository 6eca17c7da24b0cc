package meter

import "math"

// totals lists spendings in their instants' order, each instant once, with running totals. So "how much until
// t" and "when has so much been spent" are binary searches. It is a deque. It grows by doubling and shrinks
// again; the zero totals is empty. Appending, and removing at either end, takes amortised O(1). Changing an
// inner element takes O(distance to the nearer end), because the totals behind it or before it change, too.
//
// The totals count from a moving origin, and wrap around. Only differences have a
// meaning, and none overflows, because the sum of the listed spendings does not.
//
//	spendings        3 at 10, 1 at 20, 4 at 50
//	before, marks    7, {10, 10} {20, 11} {50, 15}
//
// The spending after 10 is 15 - 10; the instant when 4 of these have
// left the window is found by the first total of 7 + 4 or more.
type totals struct {
	buf    []mark // its length is zero or a power of two, so an index wraps with a mask
	before int64  // the total before the oldest mark

	// The oldest mark's index, and how many marks there are. They have 32 bits
	// each, so a key's detail fits into an allocation of 48 bytes instead of 64.
	head, n uint32
}

// mark is an instant, and the total spending up to it.
type mark struct{ at, total int64 }

// entry is one spending: a cost at an instant.
type entry struct{ at, cost int64 }

// minTotals is the size of the smallest buffer: 64 bytes.
const minTotals = 4

func (r *totals) len() int { return int(r.n) }

// mark returns the i-th mark, the oldest first.
func (r *totals) mark(i int) *mark { return &r.buf[(int(r.head)+i)&(len(r.buf)-1)] }

// sum returns the total cost of the oldest k spendings.
func (r *totals) sum(k int) int64 {
	if k == 0 {
		return 0
	}
	return r.mark(k-1).total - r.before
}

// get returns the i-th spending.
func (r *totals) get(i int) entry {
	return entry{r.mark(i).at, r.sum(i+1) - r.sum(i)}
}

// newest returns the instant of the newest spending, or one before all others.
func (r *totals) newest() int64 {
	if r.n == 0 {
		return math.MinInt64
	}
	return r.mark(int(r.n) - 1).at
}

// search returns the index of the first spending at an instant or later.
func (r *totals) search(at int64) int {
	lo, hi := 0, r.len()
	for lo < hi {
		if mid := int(uint(lo+hi) >> 1); r.mark(mid).at < at {
			lo = mid + 1
		} else {
			hi = mid
		}
	}
	return lo
}

// covering returns how many of the oldest spendings are needed to cost need or more together. There are enough.
func (r *totals) covering(need int64) int {
	lo, hi := 0, r.len()
	for lo < hi {
		if mid := int(uint(lo+hi) >> 1); r.sum(mid) < need {
			lo = mid + 1
		} else {
			hi = mid
		}
	}
	return lo
}

// add appends a spending, no older than the newest. Spendings of one instant
// are one, so a key whose spending comes all at once needs one mark.
func (r *totals) add(at, cost int64) {
	total := r.before
	if r.n > 0 {
		last := r.mark(int(r.n) - 1)
		if last.at == at {
			last.total += cost
			return
		}
		total = last.total
	}
	r.reserve()
	r.n++
	*r.mark(int(r.n) - 1) = mark{at, total + cost}
}

// insert puts a spending at its place among the others.
func (r *totals) insert(at, cost int64) {
	i := r.search(at)
	if i == r.len() {
		r.add(at, cost)
		return
	}
	if r.mark(i).at != at {
		r.open(i, at)
	}
	r.change(i, cost)
}

// open makes room for the i-th mark, without a cost yet, from the nearer end.
func (r *totals) open(i int, at int64) {
	r.reserve()
	total := r.before + r.sum(i)
	r.n++
	if i < r.len()/2 { // the older ones move one place to the front
		r.head--
		for j := range i {
			*r.mark(j) = *r.mark(j + 1)
		}
	} else { // the newer ones move one place back
		for j := r.len() - 1; j > i; j-- {
			*r.mark(j) = *r.mark(j - 1)
		}
	}
	*r.mark(i) = mark{at, total}
}

// close removes the i-th mark after its cost is gone.
func (r *totals) close(i int) {
	if i < r.len()/2 {
		for ; i > 0; i-- {
			*r.mark(i) = *r.mark(i - 1)
		}
		r.head++
	} else {
		for ; i < r.len()-1; i++ {
			*r.mark(i) = *r.mark(i + 1)
		}
	}
	r.n--
	r.shrink()
}

// change adds to the cost of the i-th spending: the totals from there on are higher, or the totals before it lower.
func (r *totals) change(i int, cost int64) {
	if i < r.len()/2 {
		for j := range i {
			r.mark(j).total -= cost
		}
		r.before -= cost
		return
	}
	for ; i < r.len(); i++ {
		r.mark(i).total += cost
	}
}

// reduce takes up to n from the spending at the given instant, and returns the
// amount. It is below n only if the spending is smaller or does not exist.
func (r *totals) reduce(at, n int64) int64 {
	i := r.search(at)
	if i == r.len() || r.mark(i).at != at {
		return 0
	}
	cost := r.get(i).cost
	n = min(n, cost)
	if r.change(i, -n); n == cost {
		r.close(i)
	}
	return n
}

// reduceNewest takes up to n from the newest spendings, and returns the amount. It is below n only if there was no more.
func (r *totals) reduceNewest(n int64) int64 {
	n = min(n, r.sum(r.len()))
	left := r.sum(r.len()) - n
	r.n = uint32(r.covering(left))
	if r.n > 0 {
		r.mark(int(r.n) - 1).total = r.before + left
	}
	r.shrink()
	return n
}

// reduceOldest takes up to n from the oldest spendings, and returns the amount. It is below n only if there was no more.
func (r *totals) reduceOldest(n int64) int64 { // as in popFront, only before changes
	n = min(n, r.sum(r.len()))
	k := r.covering(n)
	if r.sum(k) > n {
		k--
	}
	r.before += n
	r.head += uint32(k)
	r.n -= uint32(k)
	r.shrink()
	return n
}

// popFront removes the oldest k spendings, and returns their total cost.
func (r *totals) popFront(k int) int64 { // the other totals stay: only before changes
	cost := r.sum(k)
	r.before += cost
	r.head += uint32(k)
	r.n -= uint32(k)
	r.shrink()
	return cost
}

// reserve makes room for one more mark.
func (r *totals) reserve() {
	if int(r.n) == len(r.buf) {
		r.resize(max(minTotals, 2*len(r.buf)))
	}
}

// shrink frees memory once three quarters of it are unused. With half, a list whose length swings around a power of two
// would copy itself each time.
func (r *totals) shrink() {
	size := len(r.buf)
	for size > minTotals && r.len() <= size/4 {
		size /= 2
	}
	if size < len(r.buf) {
		r.resize(size)
	}
}

// resize moves the marks to a new buffer.
func (r *totals) resize(size int) {
	buf := make([]mark, size)
	if r.n > 0 {
		head := int(r.head) & (len(r.buf) - 1)
		copied := copy(buf, r.buf[head:min(head+r.len(), len(r.buf))])
		copy(buf[copied:], r.buf[:r.len()-copied])
	}
	r.buf, r.head = buf, 0
}

// clone returns a copy with its own memory.
func (r *totals) clone() totals {
	c := *r
	c.buf = append([]mark(nil), r.buf...)
	return c
}

// first returns the instant of the oldest spending, but at most now.
func (r *totals) first(now int64) int64 {
	if r.n == 0 {
		return now
	}
	return min(now, r.mark(0).at)
}
