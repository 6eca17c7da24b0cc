package ratelimit

import (
	"math"
	"sync/atomic"
	"unsafe"

	"github.com/hashicorp/golang-lru/v2/simplelru"
)

// order lists a shard's keys in the order in which they took their places: when they were
// inserted, or when eviction last gave them a second chance. The lock of the shard guards
// it. It does not depend on the keys' spending or use: code that takes places looks at both.
//
// simplelru keeps the order. Its elements are blocks of keys: with an entry and a map cell of simplelru for each
// key, a new key took half as long again, and 90 bytes more. The newest block is outside of the list until it is
// full. The oldest keys are outside, too, because eviction compares a few of them. From the oldest to the newest:
//
//	oldest (a front) → blocks (a list of full ones) → newest (a block that is being filled)
//
// Only take removes a place. If a key is removed out of order, for example by Sweep, it leaves a
// tombstone behind: a place whose account is no longer in the table. take's callers skip tombstones.
// When tombstones are a quarter of the places, all are removed, so each costs constant time.
//
// The zero order is empty.
type order[K comparable] struct {
	blocks     *simplelru.LRU[*block[K], struct{}] // nil until a block is full: most limiters have few keys
	newest     *block[K]                           // nil, or a block with at least one place
	oldest     *front[K]                           // nil until it is first needed
	spare      *block[K]                           // an empty block to use next, or nil
	readers    int                                 // sweeps reading runs without the shard's lock; while there are any, no block is used again
	n          int                                 // places, tombstones included
	tombstones int
}

// blockSize is the number of places in a block. It makes a block an allocation of 512 bytes.
const blockSize = 61

// block is a run of places, filled from the first to the last. A full block does not change until it is the oldest.
type block[K comparable] struct {
	places [blockSize]*entry[K]
	n      int
	since  int64 // the reading at which the first took its place; the others did so later
}

// looks is how many of the oldest keys eviction compares.
const looks = 3

// front is the run of the oldest places, from first to end. It has
// room before first to put back as many places as eviction takes.
type front[K comparable] struct {
	places     [looks + blockSize]*entry[K]
	since      int64 // the since of their block
	first, end int
	read       int // the end of the accounts read ahead
}

// ahead is how many accounts readAhead reads at once.
const ahead = 8

// readAhead reads the accounts of the next places when the ones read before are used up. Eviction will
// look at them, and the processor loads several cache lines at once in less time than one after another.
func (f *front[K]) readAhead() {
	if f.first < f.read {
		return
	}
	for f.read = f.first; f.read < min(f.first+ahead, f.end); f.read++ {
		if e := f.places[f.read]; e != nil {
			// The key's cache line ends where the account begins, whose first field is its
			// lock. The read is atomic, because the compiler never removes an atomic read.
			atomic.LoadUint32((*uint32)(unsafe.Add(unsafe.Pointer(&e.Value), -4)))
			atomic.LoadUint32((*uint32)(unsafe.Pointer(&e.Value.mu)))
		}
	}
}

// add gives a key the newest place, at a reading.
func (o *order[K]) add(e *entry[K], now int64) {
	if o.newest == nil {
		if o.newest, o.spare = o.spare, nil; o.newest == nil {
			o.newest = new(block[K])
		}
	}
	if o.newest.n == 0 {
		o.newest.since = now
	}
	o.newest.places[o.newest.n] = e
	o.newest.n++
	if o.newest.n == blockSize {
		o.close()
	}
	o.n++
}

// close puts the newest block into the list of blocks. It is full.
func (o *order[K]) close() {
	if o.blocks == nil {
		o.blocks, _ = simplelru.NewLRU[*block[K], struct{}](math.MaxInt, nil) // NewLRU fails only for sizes below 1
	}
	o.blocks.Add(o.newest, struct{}{})
	o.newest = nil
}

// oldestBlock removes the oldest block and returns it, or nil if there is none.
// If no block is full, it returns the newest one, with any number of places.
func (o *order[K]) oldestBlock() (b *block[K]) {
	if o.blocks != nil {
		b, _, _ = o.blocks.RemoveOldest()
	}
	if b == nil {
		b, o.newest = o.newest, nil
	}
	return b
}

// front returns the run of the oldest places, at least one, or nil if there is none.
func (o *order[K]) front() *front[K] {
	f := o.oldest
	if f == nil || f.first == f.end {
		f = o.refill()
	}
	return f
}

// take removes the oldest place and returns it. It reports false if there
// is none. It empties the place: otherwise it would keep the key in memory.
func (o *order[K]) take() (e *entry[K], ok bool) {
	f := o.front()
	if f == nil {
		return nil, false
	}
	e, f.places[f.first] = f.places[f.first], nil
	f.first++
	f.readAhead()
	o.n--
	return e, true
}

// refill makes the oldest block the front, and returns the front, or nil if there is no block. The block becomes
// the spare one. If another goroutine may still read the block, refill leaves it to the garbage collector.
func (o *order[K]) refill() *front[K] {
	b := o.oldestBlock()
	if b == nil {
		return nil
	}
	if o.oldest == nil {
		o.oldest = new(front[K])
	}
	f := o.oldest
	f.read, f.since = 0, b.since
	f.first, f.end = looks, looks+copy(f.places[looks:], b.places[:b.n])
	if o.readers == 0 {
		*b = block[K]{}
		o.spare = b
	}
	return f
}

// putBack undoes take: the place is the oldest again. The front has room for the
// last looks places taken. To put several back, begin with the one taken last.
func (o *order[K]) putBack(e *entry[K]) {
	o.oldest.first--
	o.oldest.places[o.oldest.first] = e
	o.n++
}

// runs returns all places, the oldest first. The slices belong to the order, and are valid under
// the shard's lock only. They may lack places added later, and contain places taken since. If
// the caller releases the lock while it uses the runs, it must increment readers first.
func (o *order[K]) runs() [][]*entry[K] {
	if o.n == 0 {
		return nil
	}
	var blocks []*block[K]
	if o.blocks != nil {
		blocks = o.blocks.Keys()
	}
	runs := make([][]*entry[K], 0, len(blocks)+2)
	if f := o.oldest; f != nil {
		runs = append(runs, f.places[f.first:f.end])
	}
	for _, b := range blocks {
		runs = append(runs, b.places[:])
	}
	if o.newest != nil {
		runs = append(runs, o.newest.places[:o.newest.n])
	}
	return runs
}

// addTombstone records a new tombstone, and removes all tombstones if they are a quarter of the places. To remove
// them copies the other places. It happens once for every n/4 removals, so each removal pays for at most four places.
//
// A place does not store whether it is a tombstone. Its key may have been removed and
// inserted again, so only the account shows whether the table contains it: see alive.
func (o *order[K]) addTombstone(alive func(*entry[K]) bool) {
	o.tombstones++
	if o.tombstones <= o.n/4+blockSize {
		return
	}
	old := *o
	*o = order[K]{readers: old.readers} // a sweep that reads the old runs still decrements readers here
	keep := func(places []*entry[K], since int64) {
		for _, e := range places {
			if e != nil && alive(e) {
				o.add(e, since)
			}
		}
	}
	if f := old.oldest; f != nil {
		keep(f.places[f.first:f.end], f.since)
	}
	if old.blocks != nil {
		for _, b := range old.blocks.Keys() {
			keep(b.places[:], b.since)
		}
	}
	if b := old.newest; b != nil {
		keep(b.places[:b.n], b.since)
	}
}
