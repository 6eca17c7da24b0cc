// Package keys finds values by keys of any comparable type, without a lock and
// without allocating. It is what the limiters of this module share.
package keys

import (
	"hash/maphash"
	"iter"
	"math/bits"
	"net/netip"
	"reflect"
	"strings"
	"sync"
	"sync/atomic"
	"unsafe"
)

// Map is a hash table that grows and shrinks with what it holds. Keys are equal as Go's ==
// says. A Map is safe for concurrent use. The zero Map cannot be used.
//
// To find a key takes no lock: see array. To add or remove one takes the lock of its shard. Shard s
// owns those buckets of an array whose index is s modulo the number of shards, and
// a key that finds its bucket full goes on to the next bucket of its shard. So one lock
// guards all that an addition or a removal writes.
//
// If an array is too small or too large, one of another size is linked behind it. A shard
// that is written to then copies its entries there, and helps one other shard; so no single
// call copies the whole table. The old array keeps its entries for those who are reading it.
// A key that is not in an array is looked for in the next one. When all shards have
// copied their entries, lookups begin at the next array.
//
// Invariants. All keys of a shard are in the shard's array. An array to which a shard has
// not copied its entries has none of that shard. A key that is removed is removed from all
// arrays. Within an array an entry keeps its slot until it is removed.
type Map[K comparable, V any] struct {
	first  atomic.Pointer[array[K, V]] // where lookups begin
	hasher hasher[K]
	shards []shard[K, V]
	link   sync.Mutex // held to link an array; taken after a shard's lock
}

// shard is a part of the keys, by hash.
type shard[K comparable, V any] struct {
	mu     sync.Mutex
	number int
	array  *array[K, V] // that has all keys of the shard
	n      atomic.Int64 // of them; written under the lock

	_ [32]byte // keeps the locks of two shards off one cache line
}

// Entry is a key in a Map and its value. Neither changes.
type Entry[K comparable, V any] struct {
	Key   K
	Value V
	hash  uint64
}

// Hash returns the key's hash.
func (e *Entry[K, V]) Hash() uint64 { return e.hash }

const (
	// sharded is how many keys a map may have without more than one shard.
	sharded   = 4096
	numShards = 64

	// fewest is how many buckets of each shard an array has at least that replaces a larger one. With
	// fewer, a shard could have too many keys for it though all shards together have few.
	fewest = 4
)

// NewMap returns an empty Map for up to about most keys. It makes room as keys come.
func NewMap[K comparable, V any](most int) *Map[K, V] {
	if most < sharded {
		return newMap[K, V](1, fewest)
	}
	return newMap[K, V](numShards, 1)
}

// newMap returns an empty Map with so many shards and so many buckets for each. Both are powers
// of two.
func newMap[K comparable, V any](shards, buckets int) *Map[K, V] {
	m := &Map[K, V]{hasher: newHasher[K](), shards: make([]shard[K, V], shards)}
	a := newArray[K, V](shards*buckets, shards)
	for i := range m.shards {
		m.shards[i].number, m.shards[i].array = i, a
	}
	m.first.Store(a)
	return m
}

// Hash returns the key's hash. The seed is the map's own.
func (m *Map[K, V]) Hash(key K) uint64 { return m.hasher.hash(key) }

// Find returns the key's value, or the zero value if there is none.
func (m *Map[K, V]) Find(key K) (v V) {
	if e := m.Lookup(key); e != nil {
		v = e.Value
	}
	return v
}

// Lookup returns the key's entry, or nil if there is none.
func (m *Map[K, V]) Lookup(key K) *Entry[K, V] {
	hash := m.hasher.hash(key)
	tag := tagOf(hash)
	a := m.first.Load()
	at := hash
	for {
		b := a.bucket(at)
		word := b.word.Load()
		for same := matches(word, tag); same != 0; same &= same - 1 {
			e := b.slots[bits.TrailingZeros64(same)/8].Load()
			if e != nil && e.hash == hash && e.Key == key {
				return e
			}
		}
		at += a.step
		if word < overflow || (at-hash)&a.mask == 0 {
			if a = a.next.Load(); a == nil {
				return nil
			}
			at = hash
		}
	}
}

// Add adds a key, and returns its entry and true; or it returns the entry that the key has already.
func (m *Map[K, V]) Add(key K, v V) (e *Entry[K, V], added bool) {
	hash := m.hasher.hash(key)
	s := m.shard(hash)
	s.mu.Lock()
	defer s.mu.Unlock()
	m.makeRoomLocked(s)
	if e = s.array.find(hash, key); e != nil {
		return e, false
	}
	e = &Entry[K, V]{Key: key, Value: v, hash: hash}
	s.array.insert(e)
	s.n.Add(1)
	return e, true
}

// Remove removes the key, if it is there.
func (m *Map[K, V]) Remove(key K) {
	if e := m.Lookup(key); e != nil {
		m.RemoveEntry(e)
	}
}

// RemoveEntry removes an entry of this map, if it is still there.
func (m *Map[K, V]) RemoveEntry(e *Entry[K, V]) {
	s := m.shard(e.hash)
	s.mu.Lock()
	defer s.mu.Unlock()
	removed := false
	for a := m.first.Load(); a != nil; a = a.next.Load() {
		removed = a.remove(e) || removed
	}
	if removed {
		s.n.Add(-1)
		m.giveRoomLocked(s)
	}
}

// Len returns how many keys there are.
func (m *Map[K, V]) Len() (n int) {
	for i := range m.shards {
		n += int(m.shards[i].n.Load())
	}
	return n
}

// All returns an iterator over the entries, in no order. A key that is in the map all the time is yielded
// once. What is added or removed meanwhile is yielded once or not at all. No lock is held in
// the body.
func (m *Map[K, V]) All() iter.Seq[*Entry[K, V]] {
	return func(yield func(*Entry[K, V]) bool) {
		var entries []*Entry[K, V]
		for i := range m.shards {
			s := &m.shards[i]
			s.mu.Lock()
			entries = s.array.entries(entries[:0], i)
			s.mu.Unlock()
			for _, e := range entries {
				if !yield(e) {
					return
				}
			}
		}
	}
}

func (m *Map[K, V]) shard(hash uint64) *shard[K, V] {
	return &m.shards[hash&uint64(len(m.shards)-1)]
}

// makeRoomLocked makes room for one more key in a shard.
func (m *Map[K, V]) makeRoomLocked(s *shard[K, V]) {
	if a := s.array; s.n.Load() >= a.limit && a.next.Load() == nil {
		// Who links an array clears memory for it. Others use the room that is left meanwhile.
		if m.link.TryLock() {
			m.linkLocked(a, 2*len(a.buckets))
			m.link.Unlock()
		} else if s.n.Load() >= a.full {
			m.extend(a)
		}
	}
	m.copyLocked(s)
}

// giveRoomLocked makes the table smaller if it is almost empty, and the shard has lost a key.
func (m *Map[K, V]) giveRoomLocked(s *shard[K, V]) {
	a := s.array
	smaller := len(a.buckets) / 2
	if s.n.Load() < a.full/8 && smaller >= fewest*len(m.shards) && a.next.Load() == nil &&
		m.Len() < len(a.buckets)*slotsInBucket/8 && m.link.TryLock() {
		m.linkLocked(a, smaller)
		m.link.Unlock()
	}
	m.copyLocked(s)
}

// linkLocked links an array of so many buckets behind a, if there is none.
func (m *Map[K, V]) linkLocked(a *array[K, V], buckets int) {
	if a.next.Load() == nil {
		a.next.Store(newArray[K, V](buckets, len(m.shards)))
	}
}

// extend links an array of twice the size behind a, if there is none.
func (m *Map[K, V]) extend(a *array[K, V]) {
	m.link.Lock()
	defer m.link.Unlock()
	m.linkLocked(a, 2*len(a.buckets))
}

// copyLocked copies the shard's entries to the last array, and those of one other shard, if that has not
// been done.
func (m *Map[K, V]) copyLocked(s *shard[K, V]) {
	m.copyShardLocked(s)
	if m.first.Load() == s.array {
		return
	}
	for i := range m.shards {
		other := &m.shards[i]
		if other == s || !other.mu.TryLock() {
			continue
		}
		copied := m.copyShardLocked(other)
		other.mu.Unlock()
		if copied {
			return
		}
	}
}

// copyShardLocked copies the shard's entries to the last array, and reports whether it was another one.
func (m *Map[K, V]) copyShardLocked(s *shard[K, V]) bool {
	from := s.array
	to := from
	for {
		if next := to.next.Load(); next != nil {
			to = next
		} else if to == from || s.n.Load() < to.limit {
			break
		} else {
			m.extend(to) // it was made when there were fewer keys
		}
	}
	if to == from {
		return false
	}
	to.copy(from, s.number)
	s.array = to
	for a := from; a != to; a = a.next.Load() {
		a.left.Add(-1)
	}
	for a := m.first.Load(); a.left.Load() == 0; a = m.first.Load() {
		m.first.CompareAndSwap(a, a.next.Load())
	}
	return true
}

// array is the buckets of a Map, a power of two of them. The low bits of a key's hash choose its bucket. If that is
// full, the key goes into the next one of its shard that has room.
type array[K comparable, V any] struct {
	buckets []bucket[K, V]
	mask    uint64                      // len(buckets) − 1
	step    uint64                      // from a bucket to the next one of its shard: the number of shards
	next    atomic.Pointer[array[K, V]] // that replaces this one, or nil
	left    atomic.Int64                // shards that have this array, or one before it
	limit   int64                       // keys of one shard from which on the array is too small
	full    int64                       // slots of one shard
}

// slotsInBucket makes a bucket a line of the cache of a 64-bit processor.
const slotsInBucket = 7

// bucket is up to seven entries. The lowest seven bytes of word are the tags of the slots, a part of the
// entry's hash each, 0 for an empty slot. The highest byte counts the entries that went
// on to another bucket because they found this one full. From 255 on it stays as it is:
// such a bucket leads lookups to the next one for ever.
//
// A slot is written before its tag, and emptied after it. So who finds a tag finds its entry, or one that has come
// after it, or none; and that is looked at.
type bucket[K comparable, V any] struct {
	word  atomic.Uint64
	slots [slotsInBucket]atomic.Pointer[Entry[K, V]]
}

const (
	lows     = 0x01_01_01_01_01_01_01 // the lowest bit of each tag
	overflow = 1 << 56                // one entry that went on
	most     = 0xff                   // of them are counted
)

// tagOf returns the part of a hash by which the entries of a bucket are told apart. It is not 0.
func tagOf(hash uint64) uint64 { return max(hash>>56, 1) }

// matches returns a number with the highest bit of each byte set that is a tag of the word. It may set that of
// a higher byte too.
func matches(word, tag uint64) uint64 {
	x := word ^ tag*lows
	return (x - lows) &^ x & (lows << 7)
}

func newArray[K comparable, V any](buckets, shards int) *array[K, V] {
	full := int64(buckets / shards * slotsInBucket)
	a := &array[K, V]{
		buckets: make([]bucket[K, V], buckets),
		mask:    uint64(buckets - 1),
		step:    uint64(shards),
		limit:   full * 3 / 4,
		full:    full,
	}
	a.left.Store(int64(shards))
	return a
}

// bucket returns the bucket for a hash, or for a hash and some steps.
func (a *array[K, V]) bucket(at uint64) *bucket[K, V] { return &a.buckets[at&a.mask] }

// find returns the entry of a key, or nil. Map.Lookup does the same with a chain of arrays.
func (a *array[K, V]) find(hash uint64, key K) *Entry[K, V] {
	for at := hash; ; {
		b := a.bucket(at)
		word := b.word.Load()
		for same := matches(word, tagOf(hash)); same != 0; same &= same - 1 {
			e := b.slots[bits.TrailingZeros64(same)/8].Load()
			if e != nil && e.hash == hash && e.Key == key {
				return e
			}
		}
		at += a.step
		if word < overflow || (at-hash)&a.mask == 0 {
			return nil
		}
	}
}

// insert puts an entry that is not in the array into it. The shard's lock is held, and one of its slots is
// empty.
func (a *array[K, V]) insert(e *Entry[K, V]) { a.insertHashed(e, e.hash) }

// insertHashed is insert for a hash that has been read.
func (a *array[K, V]) insertHashed(e *Entry[K, V], hash uint64) {
	for at := hash; ; at += a.step {
		b := a.bucket(at)
		word := b.word.Load()
		empty := matches(word, 0)
		if empty == 0 {
			if word>>56 < most {
				b.word.Store(word + overflow)
			}
			continue
		}
		// The lowest one: a higher one may be wrong.
		i := bits.TrailingZeros64(empty) / 8
		b.slots[i].Store(e)
		b.word.Store(word | tagOf(hash)<<(8*i))
		return
	}
}

// remove removes an entry, and reports whether it was there. The shard's lock is held.
func (a *array[K, V]) remove(e *Entry[K, V]) bool {
	for at := e.hash; ; {
		b := a.bucket(at)
		word := b.word.Load()
		for same := matches(word, tagOf(e.hash)); same != 0; same &= same - 1 {
			i := bits.TrailingZeros64(same) / 8
			if b.slots[i].Load() != e {
				continue
			}
			b.word.Store(word &^ (0xff << (8 * i)))
			b.slots[i].Store(nil)
			for ; at != e.hash; at -= a.step {
				a.bucket(at - a.step).passedBack()
			}
			return true
		}
		at += a.step
		if word < overflow || (at-e.hash)&a.mask == 0 {
			return false
		}
	}
}

// passedBack counts one entry less that went on.
func (b *bucket[K, V]) passedBack() {
	if word := b.word.Load(); word>>56 < most {
		b.word.Store(word - overflow)
	}
}

// entries appends the entries of a shard. The shard's lock is held.
func (a *array[K, V]) entries(to []*Entry[K, V], shard int) []*Entry[K, V] {
	for at := uint64(shard); at <= a.mask; at += a.step {
		b := a.bucket(at)
		for i := range b.slots {
			if e := b.slots[i].Load(); e != nil {
				to = append(to, e)
			}
		}
	}
	return to
}

// copy copies the entries of a shard from another array. The shard's lock is held. It reads the hashes of some
// entries before it inserts these, so that the processor can wait for all of them at once.
func (a *array[K, V]) copy(from *array[K, V], shard int) {
	var (
		buf     [8 * slotsInBucket]*Entry[K, V]
		hashes  [len(buf)]uint64
		entries = buf[:0]
	)
	for at := uint64(shard); at <= from.mask; at += from.step {
		b := from.bucket(at)
		for i := range b.slots {
			if e := b.slots[i].Load(); e != nil {
				entries = append(entries, e)
			}
		}
		if len(entries) <= len(buf)-slotsInBucket && at+from.step <= from.mask {
			continue
		}
		for i, e := range entries {
			hashes[i] = e.hash
		}
		for i, e := range entries {
			a.insertHashed(e, hashes[i])
		}
		entries = buf[:0]
	}
}

// hasher hashes keys. Those that are equal have one hash. The seed is its own, so that nobody can
// choose keys whose hashes collide.
//
// maphash.Comparable moves keys with pointers to the heap. netip.Addr, the one such type that
// many use, is hashed by what it holds instead. Integers are hashed in line, which takes less
// than a call.
type hasher[K comparable] struct {
	kind   hashKind
	k0, k1 uint64 // for integers
	seed   maphash.Seed
}

type hashKind uint8

const (
	hashAny hashKind = iota
	hash64           // integers of 64 bits
	hash32           // and of 32
	hashAddr
)

func newHasher[K comparable]() hasher[K] {
	h := hasher[K]{seed: maphash.MakeSeed()}
	h.k0, h.k1 = maphash.Comparable(h.seed, 0), maphash.Comparable(h.seed, 1)
	t := reflect.TypeFor[K]()
	switch t.Kind() {
	case reflect.Int, reflect.Int32, reflect.Int64, reflect.Uint, reflect.Uint32, reflect.Uint64, reflect.Uintptr:
		h.kind = hash32
		if t.Size() == 8 {
			h.kind = hash64
		}
	}
	if t == reflect.TypeFor[netip.Addr]() {
		h.kind = hashAddr
	}
	return h
}

func (h *hasher[K]) hash(key K) uint64 {
	switch h.kind {
	case hash64:
		return h.mix(*(*uint64)(unsafe.Pointer(&key)))
	case hash32:
		return h.mix(uint64(*(*uint32)(unsafe.Pointer(&key))))
	case hashAddr:
		return h.addr(*(*netip.Addr)(unsafe.Pointer(&key)))
	}
	return maphash.Comparable(h.seed, key)
}

// mix hashes a number.
func (h *hasher[K]) mix(x uint64) uint64 {
	hi, lo := bits.Mul64(x^h.k0, h.k1|1)
	hi, lo = bits.Mul64(hi^lo^h.k1, 0x9e3779b97f4a7c15)
	return hi ^ lo
}

// addr hashes an address without its pointer.
func (h *hasher[K]) addr(a netip.Addr) uint64 {
	bare := struct {
		ip   [16]byte
		bits int // 0 for the zero Addr
	}{a.As16(), a.BitLen()}
	x := maphash.Comparable(h.seed, bare)
	if zone := a.Zone(); zone != "" {
		x = h.mix(x ^ maphash.String(h.seed, zone))
	}
	return x
}

// Cloner copies the text of keys. A string that is a part of a longer one keeps all of
// that one in memory, and a table may hold its keys for long, so a table clones a key
// before it stores it. The zero Cloner copies nothing.
//
// It copies the string if K is a string type, and each string in the fields and elements of
// K if K is a struct or an array, however deep. What an interface, a pointer or a channel
// refers to is left as it is.
type Cloner[K comparable] struct {
	strings []uintptr // where in a K the strings are
}

// NewCloner returns the Cloner for keys of type K.
func NewCloner[K comparable]() Cloner[K] {
	return Cloner[K]{stringsIn(nil, reflect.TypeFor[K](), 0)}
}

// stringsIn appends the offsets of all strings in a value of a type that is itself at
// an offset.
func stringsIn(found []uintptr, t reflect.Type, at uintptr) []uintptr {
	switch t.Kind() {
	case reflect.String:
		return append(found, at)
	case reflect.Array:
		for i := range t.Len() {
			found = stringsIn(found, t.Elem(), at+uintptr(i)*t.Elem().Size())
		}
	case reflect.Struct:
		for i := range t.NumField() {
			found = stringsIn(found, t.Field(i).Type, at+t.Field(i).Offset)
		}
	}
	return found
}

// Clone returns a key that equals k and shares no text with it.
func (c *Cloner[K]) Clone(k K) K {
	for _, at := range c.strings {
		// at is the offset of a field of kind string, and all string types have one layout.
		s := (*string)(unsafe.Add(unsafe.Pointer(&k), at))
		*s = strings.Clone(*s)
	}
	return k
}
