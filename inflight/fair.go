package inflight

import "math/bits"

// Fair order between keys, by self-clocked fair queueing: S. J. Golestani, "A
// self-clocked fair queueing scheme for broadband applications", INFOCOM 1994. A key's
// units take up virtual time in inverse proportion to its weight; the key whose next
// request ends first in virtual time is next. Deficit round robin shares in the same
// proportion, but its error grows with the weights; here it is at most the largest n.
//
// Virtual time is counted in whole ticks, with a remainder, so that nothing drifts. It
// wraps around: two tags are compared by their difference, which stays below maxPrice.
const (
	ticks     = 1 << 20 // of one unit at weight 1
	maxWeight = ticks   // so that one unit at any weight is a tick at least
	maxPrice  = 1 << 60
)

// tags are a waiting key's place in virtual time.
type tags struct {
	weight uint64 // 1 to maxWeight
	start  uint64 // when its first waiter's work starts
	rem    uint64 // fraction of start, in 1/weight ticks
	finish uint64 // when it ends
	turn   uint64 // among equal finishes, the lowest is first
	began  bool   // start counts: somebody has waited since it was set
}

// before compares two instants of virtual time.
func before(a, b uint64) bool { return int64(a-b) < 0 }

// price returns n units' virtual time after a fraction of rem, and the next fraction.
func price(n int, weight, rem uint64) (t, left uint64) {
	hi, lo := bits.Mul64(uint64(n), ticks)
	lo, carry := bits.Add64(lo, rem, 0)
	if hi += carry; hi >= weight {
		return maxPrice, 0
	}
	t, left = bits.Div64(hi, lo, weight)
	if t >= maxPrice {
		return maxPrice, 0
	}
	return t, left
}

// plan sets the end of a request of n units that starts at start.
func (t *tags) plan(n int) {
	d, _ := price(n, t.weight, t.rem)
	t.finish = t.start + d
}

// spend moves the start past a request of n units that was served.
func (t *tags) spend(n int) {
	d, rem := price(n, t.weight, t.rem)
	t.start, t.rem = t.start+d, rem
}

// startAt starts at that instant, whatever was spent earlier.
func (t *tags) startAt(now uint64) { t.start, t.rem = now, 0 }

// delayTo makes the request end at finish, if it would end earlier.
func (t *tags) delayTo(finish uint64) {
	if before(t.finish, finish) {
		t.start += finish - t.finish
		t.finish = finish
	}
}

// weightOf returns a weight that counts: at least 1 and at most maxWeight.
func weightOf(weight int) uint64 { return uint64(min(max(weight, 1), maxWeight)) }
