package keys

import (
	"math/bits"
	"sync/atomic"
	"unsafe"
)

// array holds a Map's buckets. Each shard has the same number of buckets, a power of
// two. The low bits of a key's hash select the shard, and the bits above them select
// the bucket. If the bucket is full, the key goes to the shard's next bucket with room.
//
// A shard allocates its buckets when it copies its entries, so no call has to clear all shards' memory.
type array[K comparable, V any] struct {
	parts []atomic.Pointer[bucket[K, V]] // each shard's first bucket, or nil
	shift int                            // how many bits of a hash choose the shard
	mask  uint64                         // buckets of a shard − 1
	next  atomic.Pointer[array[K, V]]    // this array's replacement, or nil
	left  atomic.Int64                   // shards still using this array or an earlier one
	limit int64                          // the number of keys above which a shard needs a larger array
	full  int64                          // slots in a shard
}

// slotsInBucket makes a bucket fill one cache line of a 64-bit processor.
const slotsInBucket = 7

// bucket holds up to seven entries. The low seven bytes of word are the slots' tags. A tag is a part of
// the entry's hash, or 0 for an empty slot. The high byte counts the entries that found this bucket full
// and went on to another one. At 255 it stops counting, and unsuccessful lookups here always continue.
//
// An insertion writes the slot before the tag, and a removal clears the tag before the slot. So a
// goroutine that reads a tag may find the entry, a later entry or none. Therefore it compares the key.
type bucket[K comparable, V any] struct {
	word  atomic.Uint64
	slots [slotsInBucket]atomic.Pointer[Entry[K, V]]
}

const (
	lows     = 0x01_01_01_01_01_01_01 // each tag's lowest bit
	overflow = 1 << 56                // adds one entry passed on to another bucket
	most     = 0xff                   // the highest count
)

// tagOf returns the part of a hash that distinguishes a bucket's entries. It is never 0.
func tagOf(hash uint64) uint64 { return max(hash>>56, 1) }

// matches sets the highest bit of each byte equal to the tag. It may also set a byte's bit above a match.
func matches(word, tag uint64) uint64 {
	x := word ^ tag*lows
	return (x - lows) &^ x & (lows << 7)
}

// newArray returns an array with the given number of buckets in each shard. No shard uses it yet.
func newArray[K comparable, V any](buckets, shards int) *array[K, V] {
	full := int64(buckets * slotsInBucket)
	a := &array[K, V]{
		parts: make([]atomic.Pointer[bucket[K, V]], shards),
		shift: bits.TrailingZeros(uint(shards)),
		mask:  uint64(buckets - 1),
		// A shard could be filled to seven eighths, and known keys would be found as fast. But as keys come and
		// go, more and more entries would leave their own bucket, and an insertion would take twice as long.
		limit: full * 3 / 4,
		full:  full,
	}
	a.left.Store(int64(shards))
	return a
}

// buckets counts a shard's buckets.
func (a *array[K, V]) buckets() int { return int(a.mask + 1) }

// makePart allocates a shard's buckets. The caller holds the shard's lock.
func (a *array[K, V]) makePart(shard int) {
	a.parts[shard].Store(unsafe.SliceData(make([]bucket[K, V], a.mask+1)))
}

// part returns the first bucket of the hash's shard, or nil. It also
// returns the number of the hash's bucket, modulo the number of buckets.
func (a *array[K, V]) part(hash uint64) (first *bucket[K, V], at uint64) {
	return a.parts[hash&uint64(len(a.parts)-1)].Load(), hash >> (a.shift & 63)
}

// bucket returns a bucket of a part.
func (a *array[K, V]) bucket(first *bucket[K, V], at uint64) *bucket[K, V] {
	// The mask bounds the index: a part has mask + 1 buckets.
	return (*bucket[K, V])(unsafe.Add(unsafe.Pointer(first), (at&a.mask)*uint64(unsafe.Sizeof(*first))))
}

// find returns the key's entry, or nil. Map.Lookup does the same in a chain of arrays.
func (a *array[K, V]) find(hash uint64, key K) *Entry[K, V] {
	first, begin := a.part(hash)
	if first == nil {
		return nil
	}
	for at := begin; ; {
		b := a.bucket(first, at)
		word := b.word.Load()
		for same := matches(word, tagOf(hash)); same != 0; same &= same - 1 {
			e := b.slots[bits.TrailingZeros64(same)/8].Load()
			if e != nil && e.Hash() == hash && e.Key == key {
				return e
			}
		}
		at++
		if word < overflow || (at-begin)&a.mask == 0 {
			return nil
		}
	}
}

// insert adds an entry that is not yet in the array. The caller holds
// the shard's lock, and the shard has buckets with an empty slot.
func (a *array[K, V]) insert(e *Entry[K, V]) { a.insertHashed(e, e.hash) }

// insertHashed is like insert, with the entry's hash.
func (a *array[K, V]) insertHashed(e *Entry[K, V], hash uint64) {
	for first, at := a.part(hash); ; at++ {
		b := a.bucket(first, at)
		word := b.word.Load()
		empty := matches(word, 0)
		if empty == 0 {
			if word>>56 < most {
				b.word.Store(word + overflow)
			}
			continue
		}
		// Take the lowest one, because a higher one may be wrong.
		i := bits.TrailingZeros64(empty) / 8
		b.slots[i].Store(e)
		b.word.Store(word | tagOf(hash)<<(8*i))
		return
	}
}

// remove removes an entry, and reports whether it was there. The caller holds the shard's lock.
func (a *array[K, V]) remove(e *Entry[K, V]) bool {
	first, begin := a.part(e.hash)
	if first == nil {
		return false
	}
	for at := begin; ; {
		b := a.bucket(first, at)
		word := b.word.Load()
		for same := matches(word, tagOf(e.hash)); same != 0; same &= same - 1 {
			i := bits.TrailingZeros64(same) / 8
			if b.slots[i].Load() != e {
				continue
			}
			b.word.Store(word &^ (0xff << (8 * i)))
			b.slots[i].Store(nil)
			for ; at != begin; at-- {
				a.bucket(first, at-1).passedBack()
			}
			return true
		}
		at++
		if word < overflow || (at-begin)&a.mask == 0 {
			return false
		}
	}
}

// passedBack decrements the count of entries passed on to another bucket.
func (b *bucket[K, V]) passedBack() {
	if word := b.word.Load(); word>>56 < most {
		b.word.Store(word - overflow)
	}
}

// all returns a shard's buckets. The caller holds the shard's lock.
func (a *array[K, V]) all(shard int) []bucket[K, V] {
	first := a.parts[shard].Load()
	if first == nil {
		return nil
	}
	return unsafe.Slice(first, a.mask+1)
}

// entries appends a shard's entries. The caller holds the shard's lock.
func (a *array[K, V]) entries(to []*Entry[K, V], shard int) []*Entry[K, V] {
	all := a.all(shard)
	for i := range all {
		to = all[i].entries(to)
	}
	return to
}

// entries appends a bucket's entries.
func (b *bucket[K, V]) entries(to []*Entry[K, V]) []*Entry[K, V] {
	for i := range b.slots {
		if e := b.slots[i].Load(); e != nil {
			to = append(to, e)
		}
	}
	return to
}

// copy copies a shard's entries from another array. The caller holds the shard's lock. It reads
// several entries' hashes before it inserts them, so the processor can wait for all at once.
func (a *array[K, V]) copy(from *array[K, V], shard int) {
	var (
		buf     [8 * slotsInBucket]*Entry[K, V]
		hashes  [len(buf)]uint64
		entries = buf[:0]
	)
	a.makePart(shard)
	all := from.all(shard)
	for at := range all {
		entries = all[at].entries(entries)
		if len(entries) <= len(buf)-slotsInBucket && at+1 < len(all) {
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
