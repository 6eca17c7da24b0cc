package keys

import (
	"math/bits"
	"sync/atomic"
	"unsafe"
)

// array is the buckets of a Map: as many for each shard, a power of two. The low bits of a key's hash choose the shard, and
// the bits above them the bucket. If that is full, the key goes into the next one of its shard that has room.
//
// The buckets of a shard are made when the shard copies its entries: so no call clears the memory of them all.
type array[K comparable, V any] struct {
	parts []atomic.Pointer[bucket[K, V]] // the first bucket of each shard, or nil
	shift int                            // the number of bits of a hash that choose the shard
	mask  uint64                         // the number of buckets of a shard − 1
	next  atomic.Pointer[array[K, V]]    // that replaces this one, or nil
	left  atomic.Int64                   // shards that have this array, or one before it
	limit int64                          // keys of one shard from which on the array is too small
	full  int64                          // slots of one shard
}

// slotsInBucket makes a bucket a line of the cache of a 64-bit processor.
const slotsInBucket = 7

// bucket is up to seven entries. The lowest seven bytes of word are the tags of the slots, a part of the
// entry's hash each, 0 for an empty slot. The highest byte counts the entries that went
// on to another bucket because they found this one full. From 255 on it stays as it is:
// such a bucket leads lookups to the next one for ever.
//
// A slot is written before its tag, and emptied after it. So a goroutine that reads a tag reads its entry, a later entry of the slot, or
// none; it compares the key.
type bucket[K comparable, V any] struct {
	word  atomic.Uint64
	slots [slotsInBucket]atomic.Pointer[Entry[K, V]]
}

const (
	lows     = 0x01_01_01_01_01_01_01 // the lowest bit of each tag
	overflow = 1 << 56                // one entry that went on
	most     = 0xff                   // of them are counted
)

// tagOf returns the part of a hash that distinguishes the entries of a bucket. It is not 0.
func tagOf(hash uint64) uint64 { return max(hash>>56, 1) }

// matches returns a number in which the highest bit of each byte is set that equals the tag. It may set the bit of
// a higher byte too.
func matches(word, tag uint64) uint64 {
	x := word ^ tag*lows
	return (x - lows) &^ x & (lows << 7)
}

// newArray returns an array of so many buckets for each shard, which no shard has yet.
func newArray[K comparable, V any](buckets, shards int) *array[K, V] {
	full := int64(buckets * slotsInBucket)
	a := &array[K, V]{
		parts: make([]atomic.Pointer[bucket[K, V]], shards),
		shift: bits.TrailingZeros(uint(shards)),
		mask:  uint64(buckets - 1),
		// At seven eighths known keys are found as quickly. But where keys are replaced all the time, more and more entries
		// lie behind their bucket, and a new key took twice as long.
		limit: full * 3 / 4,
		full:  full,
	}
	a.left.Store(int64(shards))
	return a
}

// buckets returns the number of buckets of a shard.
func (a *array[K, V]) buckets() int { return int(a.mask + 1) }

// makePart makes a shard's buckets. The shard's lock is held.
func (a *array[K, V]) makePart(shard int) {
	a.parts[shard].Store(unsafe.SliceData(make([]bucket[K, V], a.mask+1)))
}

// part returns the first bucket of the shard of a hash, or nil, and the number of the hash's bucket, or a number that is
// equal to it modulo the number of buckets.
func (a *array[K, V]) part(hash uint64) (first *bucket[K, V], at uint64) {
	return a.parts[hash&uint64(len(a.parts)-1)].Load(), hash >> (a.shift & 63)
}

// bucket returns a bucket of a part.
func (a *array[K, V]) bucket(first *bucket[K, V], at uint64) *bucket[K, V] {
	// The mask bounds the index: a part has mask + 1 buckets.
	return (*bucket[K, V])(unsafe.Add(unsafe.Pointer(first), (at&a.mask)*uint64(unsafe.Sizeof(*first))))
}

// find returns the entry of a key, or nil. Map.Lookup does the same with a chain of arrays.
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

// insert puts an entry that is not in the array into it. The shard's lock is held, it has its part, and one of its slots
// is empty.
func (a *array[K, V]) insert(e *Entry[K, V]) { a.insertHashed(e, e.hash) }

// insertHashed is insert for a hash that has been read.
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
		// The lowest one: a higher one may be wrong.
		i := bits.TrailingZeros64(empty) / 8
		b.slots[i].Store(e)
		b.word.Store(word | tagOf(hash)<<(8*i))
		return
	}
}

// remove removes an entry, and reports whether it was there. The shard's lock is held.
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

// passedBack counts one entry less that went on.
func (b *bucket[K, V]) passedBack() {
	if word := b.word.Load(); word>>56 < most {
		b.word.Store(word - overflow)
	}
}

// all returns the buckets of a shard. The shard's lock is held.
func (a *array[K, V]) all(shard int) []bucket[K, V] {
	first := a.parts[shard].Load()
	if first == nil {
		return nil
	}
	return unsafe.Slice(first, a.mask+1)
}

// entries appends the entries of a shard. The shard's lock is held.
func (a *array[K, V]) entries(to []*Entry[K, V], shard int) []*Entry[K, V] {
	all := a.all(shard)
	for i := range all {
		to = all[i].entries(to)
	}
	return to
}

// entries appends the entries of a bucket.
func (b *bucket[K, V]) entries(to []*Entry[K, V]) []*Entry[K, V] {
	for i := range b.slots {
		if e := b.slots[i].Load(); e != nil {
			to = append(to, e)
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
