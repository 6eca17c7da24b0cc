// Package keys finds values by keys of any comparable type, without a lock and
// without allocating. The limiters of this module share it.
package keys

import (
	"iter"
	"math/bits"
	"sync"
	"sync/atomic"
)

// Map is a hash table that grows and shrinks with the number of its entries. Keys are compared by Go's ==. A Map is safe for concurrent use. The zero Map cannot be used.
//
// To find a key takes no lock: see array. To add or remove one takes the lock of its shard. Each shard
// has buckets of its own in an array, and a key whose bucket is full goes to the next bucket of its shard. So one lock
// guards everything that an addition or a removal writes.
//
// If an array is too small or too large, one of another size is linked behind it. A shard
// that is written to then copies its entries there, and helps one other shard; so no single
// call copies the whole table. The old array keeps its entries for lookups that are reading it.
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
	link   sync.Mutex    // held to link an array; taken after a shard's lock
	turn   atomic.Uint64 // counts the shards that calls have looked at to help them
}

// shard is a part of the keys, by hash.
type shard[K comparable, V any] struct {
	mu     sync.Mutex
	number int
	array  *array[K, V] // that has all keys of the shard
	n      atomic.Int64 // of them; written under the lock
	gone   int          // the number of keys that were removed

	_ [24]byte // keeps the locks of two shards off one cache line
}

// Entry is a key in a Map and its value. The value's address does not change, and neither does the key while the entry is in a Map. The hash comes
// first, so that it shares a line of the cache with the key's text: see Maker. It is atomic, since lookups read the hashes of entries that have left.
type Entry[K comparable, V any] struct {
	hash  uint64
	Key   K
	Value V
}

// Hash returns the key's hash.
func (e *Entry[K, V]) Hash() uint64 { return atomic.LoadUint64(&e.hash) }

const (
	// sharded is the number of keys from which on a map has more than one shard.
	sharded      = 4096
	fewestShards = 64
	mostShards   = 512

	// keysOfShard is the maximum number of keys in each shard of a full map of up to a million. One call copies two
	// shards, so it bounds the time of a call. More than mostShards would slow down maps that are almost empty.
	keysOfShard = 2048

	// fewest is the minimum number of buckets of each shard in an array that replaces a larger one. With
	// fewer, a shard could have too many keys for it though all shards together have few.
	fewest = 4

	// helps is the maximum number of shards that a call examines for one whose entries are not yet copied.
	helps = 8
)

// Shards returns the number of shards, a power of two, for a maximum number of keys: so many that the work for
// all keys of one shard is short.
func Shards(most int) int {
	if most < sharded {
		return 1
	}
	n := fewestShards
	for n < mostShards && n*keysOfShard < most {
		n *= 2
	}
	return n
}

// NewMap returns an empty Map for up to about most keys. It makes room as keys come.
func NewMap[K comparable, V any](most int) *Map[K, V] {
	if most < sharded {
		return newMap[K, V](1, fewest)
	}
	return newMap[K, V](Shards(most), 1)
}

// newMap returns an empty Map with so many shards and so many buckets for each. Both are powers
// of two.
func newMap[K comparable, V any](shards, buckets int) *Map[K, V] {
	m := &Map[K, V]{hasher: newHasher[K](), shards: make([]shard[K, V], shards)}
	a := newArray[K, V](buckets, shards)
	all := make([]bucket[K, V], shards*buckets)
	for i := range m.shards {
		m.shards[i].number, m.shards[i].array = i, a
		a.parts[i].Store(&all[i*buckets])
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
	for a := m.first.Load(); a != nil; a = a.next.Load() {
		first, at := a.part(hash)
		if first == nil {
			continue
		}
		for end := at + a.mask; ; at++ {
			b := a.bucket(first, at)
			word := b.word.Load()
			for same := matches(word, tag); same != 0; same &= same - 1 {
				e := b.slots[bits.TrailingZeros64(same)/8].Load()
				if e != nil && e.Hash() == hash && e.Key == key {
					return e
				}
			}
			if word < overflow || at == end {
				break
			}
		}
	}
	return nil
}

// Candidate returns an entry with the key's hash, or nil if the key is not there. It does not read the entry's key, which
// may be replaced: see [Maker.Replace]. The caller compares it under a lock that guards it, and if it is another key, calls Lookup
// under a lock that keeps keys from being replaced.
func (m *Map[K, V]) Candidate(key K) *Entry[K, V] {
	hash := m.hasher.hash(key)
	tag := tagOf(hash)
	for a := m.first.Load(); a != nil; a = a.next.Load() {
		first, at := a.part(hash)
		if first == nil {
			continue
		}
		for end := at + a.mask; ; at++ {
			b := a.bucket(first, at)
			word := b.word.Load()
			for same := matches(word, tag); same != 0; same &= same - 1 {
				e := b.slots[bits.TrailingZeros64(same)/8].Load()
				if e != nil && e.Hash() == hash {
					return e
				}
			}
			if word < overflow || at == end {
				break
			}
		}
	}
	return nil
}

// Add adds a key, and returns its entry and true; or it returns the entry that the key has already.
func (m *Map[K, V]) Add(key K, v V) (e *Entry[K, V], added bool) {
	return m.AddEntry(&Entry[K, V]{Key: key, Value: v})
}

// AddEntry adds an entry that the caller has made, and returns it and true; or it returns the entry that the key has
// already.
func (m *Map[K, V]) AddEntry(e *Entry[K, V]) (kept *Entry[K, V], added bool) {
	hash := m.hasher.hash(e.Key)
	s := m.shard(hash)
	s.mu.Lock()
	defer s.mu.Unlock()
	m.makeRoomLocked(s)
	if kept = s.array.find(hash, e.Key); kept != nil {
		return kept, false
	}
	atomic.StoreUint64(&e.hash, hash)
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
// once. An entry that is added or removed during the iteration is yielded once or not at all. No lock is held in
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
		// One call links an array. Until that is done, other goroutines use the remaining slots.
		if m.link.TryLock() {
			m.linkLocked(a, 2*a.buckets())
			m.link.Unlock()
		} else if s.n.Load() >= a.full {
			m.extend(a)
		}
	}
	m.copyLocked(s)
}

// giveRoomLocked makes the table smaller if it is almost empty, and the shard has lost a key. To find that out looks at
// all shards, so not each removal does.
func (m *Map[K, V]) giveRoomLocked(s *shard[K, V]) {
	a := s.array
	s.gone++
	n := s.n.Load()
	look := n == 0 || s.gone%max(1, len(m.shards)/16) == 0
	if look && n < a.full/8 && a.buckets() > fewest && a.next.Load() == nil {
		if fitting := m.fitting(a); fitting < a.buckets() && m.link.TryLock() {
			m.linkLocked(a, fitting)
			m.link.Unlock()
		}
	}
	m.copyLocked(s)
}

// fitting returns the number of buckets of a shard that the keys of all shards need, at most as many as an array has. Each
// shard has to fit with room to spare: keys may be removed shard by shard, and then the last shards are full when most of
// the table is empty. An array that is too small for one of them would be replaced by a larger one at once, time and again.
func (m *Map[K, V]) fitting(a *array[K, V]) int {
	var all, largest int64
	for i := range m.shards {
		n := m.shards[i].n.Load()
		all += n
		largest = max(largest, n)
	}
	buckets, full := a.buckets(), a.full
	for buckets/2 >= fewest && all < int64(len(m.shards))*(full/8) && largest < full/4 {
		buckets, full = buckets/2, full/2
	}
	return buckets
}

// linkLocked links an array of so many buckets for each shard behind a, if there is none.
func (m *Map[K, V]) linkLocked(a *array[K, V], buckets int) {
	if a.next.Load() == nil {
		a.next.Store(newArray[K, V](buckets, len(m.shards)))
	}
}

// extend links an array of twice the size behind a, if there is none.
func (m *Map[K, V]) extend(a *array[K, V]) {
	m.link.Lock()
	defer m.link.Unlock()
	m.linkLocked(a, 2*a.buckets())
}

// copyLocked copies the entries of the shard, and of one other shard, to the last array, unless they are there. The calls look at the other shards in turn.
func (m *Map[K, V]) copyLocked(s *shard[K, V]) {
	m.copyShardLocked(s)
	if m.first.Load() == s.array {
		return
	}
	for range helps {
		other := &m.shards[m.turn.Add(1)%uint64(len(m.shards))]
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
