package ratelimit

import (
	"math/bits"
	"sync/atomic"
	"time"

	"github.com/weir-go/ratelimit/internal/meter"
)

// memory holds the spending of keys that were evicted while they were not fresh: see [Options.Remember].
//
// It is a hash table of 64-bit slots, eight to a cache line. A key has two lines, and goes into the
// line with more room. So hardly a line is full while half the slots are used. A slot contains the
// time when its key is fresh. From then on the slot counts as empty, so nothing has to be removed.
//
// A calendar key's spending is dated: its slot contains a window of the calendar instead. It stays
// right when the wall clock is set. A key may have slots of both kinds, if its limit has changed.
//
// A slot has 16 bits of its key's hash, and not the key. So one in 65536 of the other keys
// with the same line uses a slot of another key, and begins with less than it could have. A
// key's recalled spending is never less than its real spending, unless its slot was forgotten:
//
//   - A recall leaves the slot as it is, because it may be another key's: but see shorten.
//   - If a slot has the same bits, the new record is merged with it, for both keys.
//   - If both lines are full, the slot that is fresh soonest is forgotten, and counted. Nothing
//     is made up in its place: in a flood it would deny many keys without any spending.
//
// A key's slot is written and its account inserted under the lock of the key's shard, so no insertion misses the
// slot. The table's lines belong to no shard: writers use compare-and-swap, so a write for one key undoes no other.
type memory struct {
	lines []cacheLine
	start int64      // the limiter's first reading: slots count from it, and earlier readings count as it
	dates *calendars // the calendars for dated slots

	// changed is set if another limit was in force before, for all keys. Then a slot may have
	// more spending than the limit in force allows, and is shortened. mixed is set if keys may
	// have limits of their own. Then no slot is shortened, because the slot may be another key's.
	changed, mixed atomic.Bool

	recalled, overflowed atomic.Uint64
}

// cacheLine has the size of the processor's cache line.
type cacheLine [slotsInLine]atomic.Uint64

const (
	slotsInLine = 8

	// maxRemember keeps a line's index within the bits of a hash that determine it.
	maxRemember = 1 << 30

	// rememberedBytes is the memory for one key: two slots, because half the slots should stay free.
	rememberedBytes = 16
)

// slot is one key's remembered spending. The highest bit is set if the slot is dated. The next 39 bits are the
// instant when the key is fresh, in milliseconds since the start and rounded up, or a window's ordinal. Then come
// 8 bits for the spent share of the capacity, and 16 bits of the key's hash, the tag. The zero slot is empty.
type slot uint64

const (
	slotTick  = int64(time.Millisecond)
	slotDated = 1 << 63

	// slotNever is a slot's latest instant, 17 years after the start. It stands for all
	// later ones. Ordinals are always below it: they are seconds up to the year 9999.
	slotNever = 1<<39 - 1
)

// tagOf returns the bits of a hash by which one line's keys differ. Bits
// 0 to 47 determine the line and the shard, and are not among them.
func tagOf(hash uint64) uint16 { return uint16(hash >> 48) }

func newMemory(keys int, start int64, dates *calendars) *memory {
	n := max(2, (keys*rememberedBytes+slotsInLine*8-1)/(slotsInLine*8))
	return &memory{lines: make([]cacheLine, n), start: start, dates: dates}
}

// slots are the two different lines for a key's slot.
type slots [2]*cacheLine

// slots returns the places for a key.
func (m *memory) slots(hash uint64) slots {
	n := uint64(len(m.lines))
	x := hash << 16 // without the tag
	i, _ := bits.Mul64(x, n)
	// All bits determine the other line: they are mixed by an odd factor, 2^64 divided by the
	// golden ratio, and folded. So two keys with one line in common seldom have both in common.
	x ^= x >> 29
	x *= 0x9e3779b97f4a7c15
	x ^= x >> 32
	x *= 0x9e3779b97f4a7c15
	j, _ := bits.Mul64(x, n)
	if i == j {
		j = (i + 1) % n
	}
	return slots{&m.lines[i], &m.lines[j]}
}

// pack returns the slot for a record.
func (m *memory) pack(r meter.Remembered, tag uint16) slot {
	low := slot(r.Share)<<16 | slot(tag)
	switch {
	case r.Share == 0:
		return 0
	case r.Dated:
		return slotDated | slot(r.Until)<<24 | low
	case r.Until <= m.start:
		return 0
	}
	// The difference may be above 2^63, because a reading is from −2^62 to 2^62 and spending may last a century.
	until := (uint64(r.Until) - uint64(m.start) + uint64(slotTick) - 1) / uint64(slotTick)
	return slot(min(until, slotNever))<<24 | low
}

func (x slot) tag() uint16 { return uint16(x) }

func (x slot) dated() bool { return x&slotDated != 0 }

// unpack returns the record in a slot.
func (m *memory) unpack(x slot) meter.Remembered {
	r := meter.Remembered{Until: maxReading, Share: uint8(x >> 16), Dated: x.dated()}
	switch until := int64(x &^ slotDated >> 24); {
	case x == 0:
		return meter.Remembered{}
	case r.Dated:
		r.Until = until
	case until < slotNever:
		r.Until = m.start + until*slotTick
	}
	return r
}

// until returns the reading at which a slot's record ends. store calls it for sixteen slots for each evicted key.
func (m *memory) until(x slot, now int64) int64 {
	if x < slotNever<<24 && x != 0 {
		return m.start + int64(x>>24)*slotTick
	}
	return m.untilRare(x, now)
}

// untilRare is until for slots that are empty, dated or endless.
func (m *memory) untilRare(x slot, now int64) int64 {
	switch {
	case x == 0:
		return -maxReading
	case x.dated():
		return m.dates.instant(m.unpack(x).Until, now)
	}
	return maxReading
}

// store stores a key's spending as of a reading. The key is not fresh. The lock of the key's shard is held.
func (m *memory) store(hash uint64, p *plan, r meter.Remembered, now int64) {
	if m.shortens() { // shorten the key's slot from another limit, if there is one
		u := unseen{now, m, hash}
		u.begin(p, now, false)
	}
	s := m.slots(hash)
	for !m.tryStore(s, m.pack(r, tagOf(hash)), p, now) {
	}
}

// tryStore is store, or reports false because another key has taken the slot in the meantime.
func (m *memory) tryStore(s slots, x slot, p *plan, now int64) bool {
	at, old, found := m.place(s, x, now)
	switch found {
	case placeFree:
		if m.until(old, now) > now {
			return false
		}
		if old.dated() {
			m.dates.passed(now) // if the wall clock is set back, no slot shows this spending now
		}
		return at.CompareAndSwap(uint64(old), uint64(x))
	case placeOwn:
		both := m.pack(mergeRemembered(p, m.unpack(x), m.unpack(old), now), x.tag())
		return both == old || at.CompareAndSwap(uint64(old), uint64(both))
	case placeTaken:
		if !at.CompareAndSwap(uint64(old), uint64(x)) {
			return false
		}
	}
	m.overflowed.Add(1) // another key's spending is lost, or this one, if all others are fresh later
	return true
}

// placeKind is the kind of a place for a slot.
type placeKind uint8

const (
	placeNone  placeKind = iota // keys that are fresh later take all places
	placeFree                   // the place is empty, or its slot has ended
	placeOwn                    // the slot of the same key, or of a key with the same tag
	placeTaken                  // the slot of the key that is fresh soonest, to be replaced
)

// place returns the place for a slot, and the present slot there. It prefers the place of
// a slot of the same key and kind, and then a free place in the line with more of them.
func (m *memory) place(s slots, x slot, now int64) (at *atomic.Uint64, old slot, kind placeKind) {
	var free [2]*atomic.Uint64 // each line's first free place
	var room [2]int
	least := m.until(x, now)
	for i, l := range s {
		for j := range l {
			y := slot(l[j].Load())
			same := y.tag() == x.tag() && y.dated() == x.dated()
			switch until := m.until(y, now); {
			case same && until <= now && y.dated():
				return &l[j], y, placeFree // if the wall clock is set back, the slot's end is ahead again
			case until <= now:
				if room[i]++; free[i] == nil {
					free[i] = &l[j]
				}
			case same:
				return &l[j], y, placeOwn
			case until < least:
				at, old, least = &l[j], y, until
			}
		}
	}
	i := 0
	if room[1] > room[0] {
		i = 1
	}
	switch {
	case free[i] != nil:
		return free[i], slot(free[i].Load()), placeFree
	case at != nil:
		return at, old, placeTaken
	}
	return nil, 0, placeNone
}

// mergeRemembered returns a record not below a or b. Either may be an older record of the same key.
func mergeRemembered(p *plan, a, b meter.Remembered, now int64) meter.Remembered {
	if p.wall != nil && a.Dated && b.Dated {
		// The wall clock may have been set back. Then a key with spending in a later
		// window begins in that window, and its earlier spending makes no difference.
		if p.wall.follows(a.Until, b.Until) {
			return a
		} else if p.wall.follows(b.Until, a.Until) {
			return b
		}
	}
	return p.Merge(a, b, now, slotTick)
}

// recall returns a key's remembered spending in the plan's units of time: windows for a calendar,
// and instants for any other limit. The spending may be another key's, with the same lines and tag.
func (m *memory) recall(hash uint64, p *plan, now int64) (r meter.Remembered) {
	for _, l := range m.slots(hash) {
		for j := range l {
			if x := slot(l[j].Load()); x.tag() == tagOf(hash) {
				r = mergeRemembered(p, r, m.read(x, p, now), now)
			}
		}
	}
	return r
}

// read returns a slot's record in the plan's units of time. If the record has ended, it returns the zero Remembered.
func (m *memory) read(x slot, p *plan, now int64) meter.Remembered {
	until := m.until(x, now)
	if until <= now {
		return meter.Remembered{}
	}
	r := m.unpack(x)
	switch {
	case p.wall == nil:
		r.Until, r.Dated = until, false
	case !r.Dated: // the spending counts in the present window
		r.Until, r.Dated = p.wall.afterFirst(now), true
	}
	return r
}

// shortens reports whether slots may be shortened.
func (m *memory) shortens() bool { return m.changed.Load() && !m.mixed.Load() }

// shorten replaces a key's slots by its recalled record if they exceed the record. The record counts under the limit in
// force. Otherwise each recall would make the key wait again for as long as a slower limit required. See memory.changed.
func (m *memory) shorten(hash uint64, r meter.Remembered, now int64) {
	short := m.pack(r, tagOf(hash))
	least := max(now, m.until(short, now))
	for _, l := range m.slots(hash) {
		for j := range l {
			x := slot(l[j].Load())
			if x.tag() != tagOf(hash) {
				continue
			}
			// The record's window was computed from an instant. If the wall clock is set forward, it gives another window.
			if until := m.until(x, now); until > least || until > now && r.Dated && !x.dated() {
				l[j].CompareAndSwap(uint64(x), uint64(short)) // if it fails, the slot may be newer
			}
		}
	}
}

// takeOut forgets a key. Its shard's lock is held. It also forgets any other key with the same lines and tag.
func (m *memory) takeOut(hash uint64) {
	for _, l := range m.slots(hash) {
		for j := range l {
			if x := l[j].Load(); slot(x).tag() == tagOf(hash) {
				l[j].CompareAndSwap(x, 0) // if it fails, the slot is another key's now
			}
		}
	}
}

// unseen is an untracked key's record.
type unseen struct {
	floor  int64   // the time before which it may not be created
	memory *memory // nil if nothing is remembered
	hash   uint64  // the key's hash, if something is remembered
}

// begin returns the instant when the key begins at a reading, and its
// state. If look is set, begin does not change the remembered spending.
func (u *unseen) begin(p *plan, reading int64, look bool) (now int64, s meter.State) {
	now = max(reading, u.floor)
	if u.memory == nil || !p.tracks() {
		return now, p.begins(meter.State{At: now})
	}
	r := u.memory.recall(u.hash, p, now)
	if r.Share == 0 {
		return now, p.begins(meter.State{At: now})
	}
	if s = p.Recall(r, now); p.wall != nil {
		s = p.wall.recalled(s, r.Until)
	}
	if m := u.memory; !look && m.shortens() {
		m.shorten(u.hash, p.Remember(s, now), now)
	}
	return now, p.begins(s)
}
