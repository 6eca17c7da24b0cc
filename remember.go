package ratelimit

import (
	"math/bits"
	"sync/atomic"
	"time"

	"github.com/weir-go/ratelimit/internal/meter"
)

// memory remembers what keys have spent that were evicted while they were not fresh: see
// [Options.Remember].
//
// It is a hash table of slots of 64 bits, eight to a line of the processor's cache. A key has two
// lines. It goes into the one with more room, so that hardly a line is full while half of
// the slots are used. A slot says when its key is fresh. From then on it is empty, so nothing
// has to be removed.
//
// A slot has 16 bits of its key's hash, and not the key. So a slot may be taken for that of
// another key, of one in 65536 that have the same line: such a key begins with less than it
// could have. What the memory says of a key is never less than what the key has spent, unless
// its slot was forgotten:
//
//   - To recall a key leaves its slot as it is, because it may be another key's.
//   - What is stored where a slot has the same bits is merged with it, for both keys.
//   - If both lines are full, the slot that is fresh soonest is forgotten, and counted. Nothing
//     is made up in its place: in a flood that would deny many keys that have spent nothing.
//
// A key's slot is written and its account inserted under the lock of the key's shard, so no
// insertion misses it. Lines belong to no shard. Slots are compared and swapped, so a write for
// one key undoes no other.
type memory struct {
	lines []line
	start int64 // the limiter's first reading, from which slots count; readings before it count as it

	recalled, overflowed atomic.Uint64
}

// line is as long as a line of the cache.
type line [slotsInLine]atomic.Uint64

const (
	slotsInLine = 8

	// maxRemember keeps indices of lines within the bits of a hash that choose them.
	maxRemember = 1 << 30

	// rememberedBytes is what one key takes: two slots, of which one is free for others.
	rememberedBytes = 16
)

// slot is what is remembered of one key: from the highest bits on, 40 of the instant at which
// it is fresh, in milliseconds since the start and rounded up; 8 of the share of its capacity
// that is spent; and a tag of 16 bits of its hash. The zero slot is empty.
type slot uint64

const (
	slotTick = int64(time.Millisecond)

	// slotNever is the latest instant that a slot can tell, 34 years after the start, or any
	// that is later.
	slotNever = 1<<40 - 1
)

// tagOf returns the bits of a hash that tell keys of one line apart. They choose neither the
// line nor the shard: these are bits 0 to 47.
func tagOf(hash uint64) uint16 { return uint16(hash >> 48) }

func newMemory(keys int, start int64) *memory {
	n := max(2, (keys*rememberedBytes+slotsInLine*8-1)/(slotsInLine*8))
	return &memory{lines: make([]line, n), start: start}
}

// linesOf returns the two lines of a key, which are different ones.
func (m *memory) linesOf(hash uint64) (a, b *line) {
	n := uint64(len(m.lines))
	x := hash << 16 // without the tag
	i, _ := bits.Mul64(x, n)
	// The other line is chosen by all of the bits, multiplied by an odd number that mixes them (2^64
	// divided by the golden ratio) and folded, so that keys which share one line share no other.
	x ^= x >> 29
	x *= 0x9e3779b97f4a7c15
	x ^= x >> 32
	x *= 0x9e3779b97f4a7c15
	j, _ := bits.Mul64(x, n)
	if i == j {
		j = (i + 1) % n
	}
	return &m.lines[i], &m.lines[j]
}

// pack returns the slot for what is to be remembered.
func (m *memory) pack(r meter.Remembered, tag uint16) slot {
	if r.Until <= m.start {
		return 0
	}
	// The difference may be above 2^63, because a reading is from −2^62 to 2^62 and what is
	// spent may last a century.
	until := (uint64(r.Until) - uint64(m.start) + uint64(slotTick) - 1) / uint64(slotTick)
	return slot(min(until, slotNever)<<24 | uint64(r.Share)<<16 | uint64(tag))
}

func (x slot) tag() uint16 { return uint16(x) }

// unpack returns what a slot says.
func (m *memory) unpack(x slot) meter.Remembered {
	if x == 0 {
		return meter.Remembered{Until: -maxReading}
	}
	r := meter.Remembered{Until: maxReading, Share: uint8(x >> 16)}
	if until := int64(x >> 24); until < slotNever {
		r.Until = m.start + until*slotTick
	}
	return r
}

// live reports whether what a slot says is not over at a reading.
func (m *memory) live(x slot, now int64) bool { return m.unpack(x).Until > now }

// store remembers what a key has spent, which is not fresh at a reading. The lock of the key's
// shard is held.
func (m *memory) store(hash uint64, p *plan, r meter.Remembered, now int64) {
	a, b := m.linesOf(hash)
	for !m.tryStore(a, b, m.pack(r, tagOf(hash)), p, now) {
	}
}

// tryStore is store, or reports false because another key has taken the slot meanwhile.
func (m *memory) tryStore(a, b *line, x slot, p *plan, now int64) bool {
	var free [2]*atomic.Uint64 // of each line
	var room [2]int
	first, soonest := x, (*atomic.Uint64)(nil)
	for i, l := range [...]*line{a, b} {
		for j := range l {
			y := slot(l[j].Load())
			switch {
			case !m.live(y, now):
				room[i]++
				if free[i] == nil {
					free[i] = &l[j]
				}
			case y.tag() == x.tag():
				both := m.pack(p.Merge(m.unpack(x), m.unpack(y), now, slotTick), x.tag())
				return both == y || l[j].CompareAndSwap(uint64(y), uint64(both))
			case y < first:
				first, soonest = y, &l[j]
			}
		}
	}
	i := 0
	if room[1] > room[0] {
		i = 1
	}
	switch {
	case free[i] != nil:
		old := free[i].Load()
		return !m.live(slot(old), now) && free[i].CompareAndSwap(old, uint64(x))
	case soonest != nil && !soonest.CompareAndSwap(uint64(first), uint64(x)):
		return false
	}
	m.overflowed.Add(1) // of another key, or this one, if all others are fresh later
	return true
}

// recall returns what is remembered of a key, under a plan. It is about the key's past, or that
// of another one of which nothing tells it apart.
func (m *memory) recall(hash uint64, p *plan, now int64) meter.Remembered {
	r := m.unpack(0)
	a, b := m.linesOf(hash)
	for _, l := range [...]*line{a, b} {
		for j := range l {
			if x := slot(l[j].Load()); x.tag() == tagOf(hash) && m.live(x, now) {
				r = p.Merge(r, m.unpack(x), now, slotTick)
			}
		}
	}
	return r
}

// knows reports whether what is remembered of a key says no less than r.
func (m *memory) knows(hash uint64, p *plan, r meter.Remembered, now int64) bool {
	return p.Covers(m.recall(hash, p, now), m.unpack(m.pack(r, 0)))
}

// takeOut forgets a key. The lock of its shard is held. With it goes what is remembered of
// another one of which nothing tells it apart.
func (m *memory) takeOut(hash uint64) {
	a, b := m.linesOf(hash)
	for _, l := range [...]*line{a, b} {
		for j := range l {
			if x := l[j].Load(); slot(x).tag() == tagOf(hash) {
				l[j].CompareAndSwap(x, 0) // if it fails, it is another key's now
			}
		}
	}
}

// unseen is what is known of a key that is not tracked.
type unseen struct {
	floor  int64   // the time before which it may not be created
	memory *memory // nil if nothing is remembered
	hash   uint64  // if something is
}

// begin returns the instant at which the key begins at a reading, and its state.
func (u *unseen) begin(p *plan, reading int64) (now int64, s meter.State) {
	now = max(reading, u.floor)
	if u.memory == nil || !p.tracks() {
		return now, p.begins(meter.State{At: now})
	}
	grain := slotTick
	if p.wall != nil {
		// The wall clock may have been set since, so that the boundary that a slot tells is no boundary
		// now. What would be fresh within a minute of the window's begin was spent before it.
		grain = lookAgain
	}
	return now, p.begins(p.Recall(u.memory.recall(u.hash, p, now), now, grain))
}
