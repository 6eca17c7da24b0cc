package ratelimit

import (
	"fmt"
	"hash/maphash"
	"math"
	"runtime"
	"sync"
	"sync/atomic"
	"time"

	"github.com/hashicorp/golang-lru/v2/simplelru"
)

// table maps keys to buckets, never more of them than max. Finding a key takes no
// lock and moves no list entry: the lists hold keys in the order in which they came,
// and one that has been used since is given a second chance when its turn to leave
// has come (the CLOCK policy, after F. J. Corbató's paging experiment of 1968). It
// starts no goroutine: old keys leave as new ones come.
type table[K comparable] struct {
	index  index[K]
	shards []shard[K]
	seed   maphash.Seed
	max    int64
	keys   atomic.Int64 // buckets in the table, or about to be
	ttl    int64        // how long a key is kept at least, in nanoseconds
	refuse bool         // a full table refuses new keys, unless it can forget one for nothing

	expired, evicted, evictedThrottled, refused atomic.Uint64
}

// shard is the order of use of a part of the keys. Its lock is held to insert and
// remove any of them, and may be held while a bucket's lock is taken.
type shard[K comparable] struct {
	mu  sync.Mutex
	lru *simplelru.LRU[*account, K] // by bucket, so that a key is hashed once, and a stranger's never removed

	// blocked counts how often the oldest keys could not be dropped although they had
	// been idle for long. They may hide others that can.
	blocked int
	_       [40]byte // keeps the locks of two shards off one cache line
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

func newTable[K comparable](maxKeys int, onFull Overflow, ttl time.Duration) *table[K] {
	n := 1
	if maxKeys >= shardKeys {
		n = numShards
	}
	t := &table[K]{
		index:  newIndex[K](),
		shards: make([]shard[K], n),
		seed:   maphash.MakeSeed(),
		max:    int64(maxKeys),
		ttl:    int64(ttl),
		refuse: onFull == RefuseNew,
	}
	for i := range t.shards {
		t.shards[i].lru, _ = simplelru.NewLRU[*account, K](math.MaxInt, nil) // fails for sizes below 1 only
	}
	return t
}

func (t *table[K]) find(key K) *account { return t.index.find(key) }

// findLocked is find for who has met a dropped bucket: it waits until the index
// has caught up with that.
func (t *table[K]) findLocked(key K) *account {
	s := t.shard(key)
	s.mu.Lock()
	defer s.mu.Unlock()
	return t.index.find(key)
}

func (t *table[K]) shard(key K) *shard[K] {
	if len(t.shards) == 1 {
		return &t.shards[0]
	}
	return &t.shards[t.index.hash(t.seed, key)%uint64(len(t.shards))]
}

// acquire returns the key's bucket, locked, and a new one if there is none. For
// a new one it also returns the clock's reading, as of which it is fresh.
func (t *table[K]) acquire(key K, p *plan, clock Clock) (b *account, now int64, fresh bool, err error) {
	s := t.shard(key)
	room := false // one of max is ours, and not yet used
	for tries := 0; ; tries++ {
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
		if room || t.reserve() || t.evictLocked(s, now) || t.searchLocked(s, now) {
			return t.insertLocked(s, key, p, now), now, true, nil
		}
		empty := s.lru.Len() == 0
		s.mu.Unlock()
		// A full table whose keys are all in other shards: take the room of one there.
		if room = empty && t.evictElsewhere(s, now); room {
			continue
		}
		if t.refuse || tries == maxTries {
			t.refused.Add(1)
			return nil, 0, false, fmt.Errorf("%w: %d keys", ErrTableFull, t.max)
		}
		runtime.Gosched() // all are pinned by decisions that are under way
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
func (t *table[K]) insertLocked(s *shard[K], key K, p *plan, now int64) *account {
	b := &account{plan: p, last: now, state: state{at: now}}
	b.mu.Lock()
	s.lru.Add(b, key)
	t.index.add(key, b)
	s.mu.Unlock()
	return b
}

// expireLocked drops one or two of the oldest keys, if they are as good as new and
// have been idle for long. Where a key in debt is in the way of others for so many
// insertions that a look at all of them costs each insertion little, it takes that look.
func (t *table[K]) expireLocked(s *shard[K], now int64) {
	ttl := max(t.ttl, minIdle)
	for range 2 {
		b, key, ok := s.lru.GetOldest()
		if !ok {
			return
		}
		if !t.dropLocked(s, key, b, now, ttl) && !s.secondChance(b, now-ttl) {
			break
		}
	}
	if s.overdue() {
		t.sweepLocked(s, s.lru.Keys(), s.lru.Values(), now, ttl)
	}
}

// overdue reports whether keys have been in the way often enough to pay for a look at
// all of them, and starts to count anew.
func (s *shard[K]) overdue() bool {
	if s.blocked <= s.lru.Len()/4 {
		return false
	}
	s.blocked = 0
	return true
}

// searchLocked makes room in a shard of which no key may be evicted, if there is one
// to forget for nothing behind those that were looked at.
func (t *table[K]) searchLocked(s *shard[K], now int64) bool {
	return s.overdue() && t.sweepLocked(s, s.lru.Keys(), s.lru.Values(), now, 0) > 0 && t.reserve()
}

// secondChance moves a bucket that has been used since it was put in its place to
// the front, and reports whether it has. It counts one that is in the way: idle since
// that instant, and not as good as new.
func (s *shard[K]) secondChance(b *account, since int64) bool {
	b.mu.Lock()
	used := b.use.recent()
	b.use.seen()
	if !used && b.last <= since {
		s.blocked++
	}
	b.mu.Unlock()
	if used {
		s.lru.Get(b)
	}
	return used
}

// dropLocked removes a key that is as good as new and has been idle for so long.
func (t *table[K]) dropLocked(s *shard[K], key K, b *account, now, ttl int64) bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.plan == nil || b.use.isPinned() || !b.fresh(now) || now-b.last < ttl {
		return false
	}
	t.removeLocked(s, key, b)
	t.keys.Add(-1)
	t.expired.Add(1)
	return true
}

// removeLocked takes the bucket out of the table; both locks are held. Its room
// stays taken.
func (t *table[K]) removeLocked(s *shard[K], key K, b *account) {
	b.plan = nil
	t.index.remove(key)
	s.lru.Remove(b)
}

// evictLocked makes room in a full shard, and leaves it to the caller. It looks at a
// few of the oldest keys and takes the first that is neither in use nor throttled.
// The others get a second chance, so that nobody shakes off a denial by inventing
// keys. If there is none such, it takes one in use rather than one throttled, and of
// those the one that was decided on least recently.
func (t *table[K]) evictLocked(s *shard[K], now int64) bool {
	best := victim[K]{rank: rankPinned}
	for range min(looks, s.lru.Len()) {
		b, key, _ := s.lru.GetOldest()
		v := t.victim(b, key, now)
		if v.rank < best.rank || v.rank == best.rank && v.last < best.last {
			best = v
		}
		if v.rank <= rankIdle {
			break
		}
		if v.rank == rankPinned {
			s.blocked++
		}
		s.lru.Get(b) // to the front
	}
	return best.rank != rankPinned && t.evictBucketLocked(s, best, now)
}

// victim is a key that might be evicted, with the reasons against it.
type victim[K comparable] struct {
	b    *account
	key  K
	rank rank
	last int64
}

// victim looks at a key, and takes note that it has been looked at.
func (t *table[K]) victim(b *account, key K, now int64) victim[K] {
	b.mu.Lock()
	defer b.mu.Unlock()
	v := victim[K]{b, key, t.rank(b, now), b.last}
	b.use.seen()
	return v
}

// rank says what it costs to drop a key. Its lock is held.
func (t *table[K]) rank(b *account, now int64) rank {
	r := b.use.rank(b.fresh(now))
	if t.refuse && r != rankFresh {
		return rankPinned
	}
	return r
}

// evictBucketLocked removes a key, unless it must not go any more.
func (t *table[K]) evictBucketLocked(s *shard[K], v victim[K], now int64) bool {
	v.b.mu.Lock()
	defer v.b.mu.Unlock()
	rank := t.rank(v.b, now)
	if rank == rankPinned {
		return false
	}
	if v.b.fresh(now) {
		t.expired.Add(1)
	} else {
		t.evicted.Add(1)
	}
	if rank == rankThrottled {
		t.evictedThrottled.Add(1)
	}
	t.removeLocked(s, v.key, v.b)
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
	s := t.shard(key)
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
func (t *table[K]) withdraw(key K, b *account, clock Clock) {
	s := t.shard(key)
	s.mu.Lock()
	defer s.mu.Unlock()
	b.mu.Lock()
	defer b.mu.Unlock()
	b.use.unpin()
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

func (t *table[K]) sweepSome(s *shard[K], buckets []*account, keys []K, clock Clock) int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return t.sweepLocked(s, buckets, keys, reading(clock), t.ttl)
}

func (t *table[K]) sweepLocked(s *shard[K], buckets []*account, keys []K, now, ttl int64) (dropped int) {
	for i, b := range buckets {
		if t.dropLocked(s, keys[i], b, now, ttl) {
			dropped++
		}
	}
	return dropped
}

// maxTries bounds how often a decision starts again because a key that it needs
// was reset, or withdrawn by another decision, in the meantime.
const maxTries = 100
