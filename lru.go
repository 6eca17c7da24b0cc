package ratelimit

import (
	"fmt"
	"hash/maphash"
	"math"
	"net/netip"
	"sync"
	"sync/atomic"
	"time"

	"github.com/hashicorp/golang-lru/v2/simplelru"
	"github.com/puzpuzpuz/xsync/v4"
)

// table maps keys to buckets, never more of them than max. Finding a key takes no
// lock; the order of use is kept in sharded lists, and brought up to date about once
// a second for each key. It starts no goroutine: old keys leave as new ones come.
type table[K comparable] struct {
	index  index[K]
	shards []shard[K]
	seed   maphash.Seed
	max    int64
	keys   atomic.Int64 // buckets in the table, or about to be
	idle   int64        // how long a key is kept at least, in nanoseconds
	refuse bool         // a full table refuses new keys, unless it can forget one for nothing

	expired, evicted, evictedThrottled, refused atomic.Uint64
}

// shard is the order of use of a part of the keys. Its lock is held to insert and
// remove any of them, and may be held while a bucket's lock is taken.
type shard[K comparable] struct {
	mu  sync.Mutex
	lru *simplelru.LRU[*bucket, K] // by bucket, so that a key is hashed once, and a stranger's never removed
	_   [48]byte                   // keeps the locks of two shards off one cache line
}

const (
	// shardKeys is how many keys a table needs to be worth more than one shard.
	shardKeys = 4096
	numShards = 64

	// minIdle is how long a key is kept at least when there is room: without it,
	// keys with high rates would come and go all the time.
	minIdle = int64(time.Minute)

	// looks is how many of a full shard's oldest keys are looked at for one to evict.
	looks = 3
)

func newTable[K comparable](maxKeys int, onFull Overflow, idle time.Duration) *table[K] {
	n := 1
	if maxKeys >= shardKeys {
		n = numShards
	}
	t := &table[K]{
		index:  newIndex[K](),
		shards: make([]shard[K], n),
		seed:   maphash.MakeSeed(),
		max:    int64(maxKeys),
		idle:   int64(idle),
		refuse: onFull == RefuseNew,
	}
	for i := range t.shards {
		t.shards[i].lru, _ = simplelru.NewLRU[*bucket, K](math.MaxInt, nil) // fails for sizes below 1 only
	}
	return t
}

func (t *table[K]) find(key K) *bucket { return t.index.find(key) }

// findLocked is find for who has met a dropped bucket: it waits until the index
// has caught up with that.
func (t *table[K]) findLocked(key K) *bucket {
	s := &t.shards[t.shard(key)]
	s.mu.Lock()
	defer s.mu.Unlock()
	return t.index.find(key)
}

// shard returns the number of the key's shard.
func (t *table[K]) shard(key K) uint8 {
	if len(t.shards) == 1 {
		return 0
	}
	return uint8(t.index.hash(t.seed, key) % uint64(len(t.shards)))
}

// touch makes a bucket the most recently used, if it is still in the table.
func (t *table[K]) touch(b *bucket) {
	s := &t.shards[b.shard]
	s.mu.Lock()
	s.lru.Get(b)
	s.mu.Unlock()
}

// acquire returns the key's bucket, locked, and a new one if there is none. For
// a new one it also returns the clock's reading, as of which it is fresh.
func (t *table[K]) acquire(key K, p *plan, clock Clock) (b *bucket, now int64, fresh bool, err error) {
	i := t.shard(key)
	s := &t.shards[i]
	room := false // one of max is ours, and not yet used
	for {
		s.mu.Lock()
		if b := t.index.find(key); b != nil {
			b.mu.Lock()
			s.mu.Unlock()
			if room {
				t.keys.Add(-1)
			}
			return b, 0, false, nil
		}
		now = reading(clock)
		t.expireLocked(s, now)
		if room || t.reserve() || t.evictLocked(s, now) {
			return t.insertLocked(i, key, p, now), now, true, nil
		}
		empty := s.lru.Len() == 0
		s.mu.Unlock()
		// A full table whose keys are all in other shards: take the room of one there.
		if room = empty && t.evictElsewhere(s, now); !room && (t.refuse || !empty) {
			t.refused.Add(1)
			return nil, 0, false, fmt.Errorf("%w: %d keys", ErrTableFull, t.max)
		}
	}
}

// reserve takes room for one more key, if there is any.
func (t *table[K]) reserve() bool {
	for {
		n := t.keys.Load()
		if n >= t.max {
			return false
		}
		if t.keys.CompareAndSwap(n, n+1) {
			return true
		}
	}
}

// insertLocked publishes a new bucket, locked, and lets go of the shard.
func (t *table[K]) insertLocked(i uint8, key K, p *plan, now int64) *bucket {
	s := &t.shards[i]
	b := &bucket{plan: p, last: now, state: state{at: now}, shard: i}
	b.mu.Lock()
	s.lru.Add(b, key)
	t.index.add(key, b)
	s.mu.Unlock()
	return b
}

// expireLocked drops one or two of the least recently used keys, if they are as
// good as new and have been idle for long.
func (t *table[K]) expireLocked(s *shard[K], now int64) {
	for range 2 {
		b, key, ok := s.lru.GetOldest()
		if !ok || !t.dropLocked(s, key, b, now, max(t.idle, minIdle)) {
			return
		}
	}
}

// dropLocked removes a key that is as good as new and has been idle for so long.
func (t *table[K]) dropLocked(s *shard[K], key K, b *bucket, now, idle int64) bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.plan == nil || b.pinned || !b.fresh(now) || now-b.last < idle {
		return false
	}
	t.removeLocked(s, key, b)
	t.keys.Add(-1)
	t.expired.Add(1)
	return true
}

// removeLocked takes the bucket out of the table; both locks are held. Its room
// stays taken.
func (t *table[K]) removeLocked(s *shard[K], key K, b *bucket) {
	b.plan = nil
	t.index.remove(key)
	s.lru.Remove(b)
}

// evictLocked makes room in a full shard, and leaves it to the caller. It takes
// the first of the oldest keys that is not throttled; one that is gets a second
// chance, so that nobody shakes off a denial by inventing other keys.
func (t *table[K]) evictLocked(s *shard[K], now int64) bool {
	oldest, oldestKey, ok := s.lru.GetOldest()
	for range min(looks, s.lru.Len()) {
		b, key, _ := s.lru.GetOldest()
		if t.evictBucketLocked(s, key, b, now, false) {
			return true
		}
		s.lru.Get(b) // to the front
	}
	return ok && t.evictBucketLocked(s, oldestKey, oldest, now, true)
}

// evictBucketLocked removes one key, if that is allowed: always when it is as
// good as new; never otherwise if new keys are to be refused; else unless it
// is throttled, or if that is no reason any more.
func (t *table[K]) evictBucketLocked(s *shard[K], key K, b *bucket, now int64, throttledToo bool) bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	switch {
	case b.pinned:
		return false
	case b.fresh(now):
		t.expired.Add(1)
	case t.refuse || b.denied && !throttledToo:
		return false
	default:
		t.evicted.Add(1)
		if b.denied {
			t.evictedThrottled.Add(1)
		}
	}
	t.removeLocked(s, key, b)
	return true
}

// evictElsewhere makes room in another shard, and leaves it to the caller.
func (t *table[K]) evictElsewhere(except *shard[K], now int64) bool {
	for i := range t.shards {
		s := &t.shards[i]
		if s == except {
			continue
		}
		s.mu.Lock()
		ok := t.evictLocked(s, now)
		s.mu.Unlock()
		if ok {
			return true
		}
	}
	return false
}

// forget removes a key, whatever it has spent.
func (t *table[K]) forget(key K) {
	s := &t.shards[t.shard(key)]
	s.mu.Lock()
	defer s.mu.Unlock()
	if b := t.index.find(key); b != nil {
		b.mu.Lock()
		defer b.mu.Unlock()
		t.removeLocked(s, key, b)
		t.keys.Add(-1)
	}
}

// withdraw removes a key that was inserted for a decision that then was no, if
// nobody else has spent from it.
func (t *table[K]) withdraw(key K, b *bucket, clock Clock) {
	s := &t.shards[b.shard]
	s.mu.Lock()
	defer s.mu.Unlock()
	b.mu.Lock()
	defer b.mu.Unlock()
	b.pinned = false
	if b.plan != nil && b.fresh(reading(clock)) {
		t.removeLocked(s, key, b)
		t.keys.Add(-1)
	}
}

// sweepChunk is how many keys are swept before a shard lets others in.
const sweepChunk = 256

// sweep drops all keys that are as good as new and have been idle long enough.
func (t *table[K]) sweep(clock Clock) (dropped int) {
	for i := range t.shards {
		s := &t.shards[i]
		s.mu.Lock()
		buckets, keys := s.lru.Keys(), s.lru.Values()
		s.mu.Unlock()
		for len(keys) > 0 {
			n := min(sweepChunk, len(keys))
			dropped += t.sweepSome(s, buckets[:n], keys[:n], clock)
			buckets, keys = buckets[n:], keys[n:]
		}
	}
	return dropped
}

func (t *table[K]) sweepSome(s *shard[K], buckets []*bucket, keys []K, clock Clock) (dropped int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	now := reading(clock)
	for i, b := range buckets {
		if t.dropLocked(s, keys[i], b, now, t.idle) {
			dropped++
		}
	}
	return dropped
}

// index finds buckets by key. Keys with pointers have to be moved to the heap to be
// hashed; netip.Addr, the one such type that many will use, is taken apart instead.
type index[K comparable] struct {
	buckets *xsync.Map[K, *bucket]
	addrs   *xsync.Map[addr, *bucket] // instead of buckets, if K is netip.Addr
}

// addr is a netip.Addr without a pointer.
type addr struct {
	ip   [16]byte
	bits uint8 // 0 for the zero Addr, else 32 or 128
	zone string
}

func newIndex[K comparable]() index[K] {
	if _, ok := any(*new(K)).(netip.Addr); ok {
		return index[K]{addrs: xsync.NewMap[addr, *bucket]()}
	}
	return index[K]{buckets: xsync.NewMap[K, *bucket]()}
}

// toAddr returns a key that is known to be a netip.Addr as an addr.
func toAddr[K comparable](key K) addr {
	a := any(key).(netip.Addr)
	return addr{ip: a.As16(), bits: uint8(a.BitLen()), zone: a.Zone()}
}

func (x *index[K]) find(key K) *bucket {
	if x.addrs != nil {
		b, _ := x.addrs.Load(toAddr(key))
		return b
	}
	b, _ := x.buckets.Load(key)
	return b
}

func (x *index[K]) add(key K, b *bucket) {
	if x.addrs != nil {
		x.addrs.Store(toAddr(key), b)
		return
	}
	x.buckets.Store(key, b)
}

func (x *index[K]) remove(key K) {
	if x.addrs != nil {
		x.addrs.Delete(toAddr(key))
		return
	}
	x.buckets.Delete(key)
}

func (x *index[K]) hash(seed maphash.Seed, key K) uint64 {
	if x.addrs != nil {
		return maphash.Comparable(seed, toAddr(key))
	}
	return maphash.Comparable(seed, key)
}
