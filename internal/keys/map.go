// Package keys provides a concurrent map whose lookups take no lock and allocate nothing. All limiters of this module use it.
package keys

import (
	"iter"
	"math/bits"
	"sync"
	"sync/atomic"
)

// Map is a hash table that grows and shrinks with its number of entries. It compares keys with ==. It is safe for
// concurrent use. The zero Map cannot be used.
//
// A lookup takes no lock: see array. An addition or a removal takes the lock of the key's shard. Each shard
// has its own buckets, and a key never leaves its shard. So one lock guards everything that a call writes.
//
// When an array is too small or too large, a call links an array of another size behind it. Each later
// write to a shard copies the shard's and one other shard's entries to the new array. So no call copies
// the whole table. The old array keeps its entries for lookups under way. If a lookup finds nothing in
// one array, it continues in the next. When all shards are copied, lookups begin at the next array.
//
// Invariants: all keys of a shard are in the shard's array. An array has no entry of a shard until the shard is
// copied to it. A removal removes the key from all arrays. An entry keeps its slot in an array until it is removed.
type Map[K comparable, V any] struct {
	first  atomic.Pointer[array[K, V]] // where lookups begin
	hasher hasher[K]
	shards []shard[K, V]
	link   sync.Mutex    // held to link an array; acquired after a shard's lock
	turn   atomic.Uint64 // the next shard to copy besides a call's own
}

// shard holds the keys with the same low bits of the hash.
type shard[K comparable, V any] struct {
	mu     sync.Mutex
	number int
	array  *array[K, V] // holds all keys of the shard
	n      atomic.Int64 // keys; written under the lock
	gone   int          // removed keys

	_ [24]byte // keeps the locks of two shards on separate cache lines
}

// Entry is a key in a Map and its value. The value's address never changes, and the key does not change
// while the entry is in a Map. The hash comes first, to share a cache line with the key's text: see
// Maker. It is read atomically, because lookups may read the hash of an entry that has left the map.
type Entry[K comparable, V any] struct {
	hash  uint64
	Key   K
	Value V
}

// Hash returns the key's hash.
func (e *Entry[K, V]) Hash() uint64 { return atomic.LoadUint64(&e.hash) }

const (
	// sharded is the smallest number of keys for which a map has more than one shard.
	sharded      = 4096
	fewestShards = 64
	mostShards   = 512

	// keysOfShard is the maximum number of keys in a shard of a full map of up to a million keys. It bounds a call's
	// time, because a call copies at most two shards. More than mostShards shards would slow down an almost empty map.
	keysOfShard = 2048

	// fewest is each shard's minimum number of buckets in an array that replaces a larger one. With
	// fewer buckets, one shard could have too many keys although all shards together have few.
	fewest = 4

	// helps is the maximum number of shards that a call examines to find one with entries to copy.
	helps = 8
)

// Shards returns how many shards a maximum number of keys needs. It is
// a power of two, large enough that a pass over one shard is short.
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

// NewMap returns an empty Map for up to about most keys. It allocates room when keys are added.
func NewMap[K comparable, V any](most int) *Map[K, V] {
	if most < sharded {
		return newMap[K, V](1, fewest)
	}
	return newMap[K, V](Shards(most), 1)
}

// newMap returns an empty Map. The numbers of shards, and buckets in each, are powers of two.
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

// Hash returns the key's hash. It depends on the map's own seed.
func (m *Map[K, V]) Hash(key K) uint64 { return m.hasher.hash(key) }

// Find returns the key's value, or the zero value if there is none.
func (m *Map[K, V]) Find(key K) (v V) {
	if e := m.Lookup(key); e != nil {
		v = e.Value
	}
	return v
}

// Lookup returns the key's entry, or nil.
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

// Candidate returns an entry with the key's hash, or nil if the map does not have the key. It does not read
// the entry's key, because [Maker.Replace] may replace the key at any time. The caller compares it under the
// key's lock. If the key is another one, the caller calls Lookup under a lock that prevents replacements.
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

// Add adds a key, and returns its entry and true. If the key exists, it returns the existing entry and false.
func (m *Map[K, V]) Add(key K, v V) (e *Entry[K, V], added bool) {
	return m.AddEntry(&Entry[K, V]{Key: key, Value: v})
}

// AddEntry adds the caller's entry, and returns it and true. If the key exists, it returns the existing entry and false.
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

// Remove removes the key if it exists.
func (m *Map[K, V]) Remove(key K) {
	if e := m.Lookup(key); e != nil {
		m.RemoveEntry(e)
	}
}

// RemoveEntry removes an entry of this map, unless it has been removed.
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

// Len counts the keys.
func (m *Map[K, V]) Len() (n int) {
	for i := range m.shards {
		n += int(m.shards[i].n.Load())
	}
	return n
}

// All returns an iterator over the entries, in no particular order. It yields a staying key exactly
// once, and an entry added or removed during the iteration at most once. The body runs without a lock.
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
		// Only one call links an array. Until it is done, other goroutines use the remaining slots.
		if m.link.TryLock() {
			m.linkLocked(a, 2*a.buckets())
			m.link.Unlock()
		} else if s.n.Load() >= a.full {
			m.extend(a)
		}
	}
	m.copyLocked(s)
}

// giveRoomLocked shrinks an almost empty table. The check reads all shards, so only some removals run it.
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

// fitting returns how many buckets each shard needs for its keys, at most the number in a. Each shard must
// have room to spare. For example, a sweep removes keys shard by shard, so the last shards are full while
// most of the table is empty. An array too small for one shard would be replaced at once, again and again.
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

// linkLocked links an array with the given number of buckets behind a, if none is linked yet.
func (m *Map[K, V]) linkLocked(a *array[K, V], buckets int) {
	if a.next.Load() == nil {
		a.next.Store(newArray[K, V](buckets, len(m.shards)))
	}
}

// extend links an array of twice the size behind a, if none is linked yet.
func (m *Map[K, V]) extend(a *array[K, V]) {
	m.link.Lock()
	defer m.link.Unlock()
	m.linkLocked(a, 2*a.buckets())
}

// copyLocked copies the entries of the shard and of one other shard to the last array. Calls help the other shards in turn.
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

// copyShardLocked copies the shard's entries to the last array. It reports whether the shard used another array before.
func (m *Map[K, V]) copyShardLocked(s *shard[K, V]) bool {
	from := s.array
	to := from
	for {
		if next := to.next.Load(); next != nil {
			to = next
		} else if to == from || s.n.Load() < to.limit {
			break
		} else {
			m.extend(to) // the new array was made when there were fewer keys
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
