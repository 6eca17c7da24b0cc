package ratelimit

import (
	"fmt"
	"hash/maphash"
	"runtime"
	"sync"
	"sync/atomic"
	"time"

	"github.com/weir-go/ratelimit/internal/keys"
	"github.com/weir-go/ratelimit/internal/meter"
)

// table maps keys to accounts, and never holds more than max of them.
//
// To find a known key takes no lock and moves nothing. Keys stand in the order in which they
// were inserted; eviction looks at the oldest, and gives those that were used since a second
// chance (the CLOCK policy, after F. J. Corbató's paging experiment of 1968). The table starts
// no goroutine: old keys leave as new ones come.
//
// Locks. To insert or remove a key takes the lock of its shard. Who holds a shard's lock
// never waits for an account's: an account may be busy for long, and all new keys of
// the shard would wait with it. So under a shard's lock an account's lock is only tried,
// and an account that is busy counts as in use. The other way round, whoever holds an
// account's lock may wait for a shard's.
type table[K comparable] struct {
	index  index[K]
	cloner keys.Cloner[K]
	shards []shard[K]
	seed   maphash.Seed
	max    int64
	keys   atomic.Int64 // in the table, or about to be
	ttl    int64        // for how long an idle key is kept if there is room, in nanoseconds
	due    *dueKeys[K]  // if a full table refuses new keys, else nil
	full   error        // what a new key is refused with: made once, as a flood of keys asks for it

	expired, evicted, evictedThrottled, refused atomic.Uint64
}

// shard is a part of the keys, by hash.
type shard[K comparable] struct {
	mu    sync.Mutex // guards the fields below
	order order[K]

	// blocked counts how often the oldest key could not be dropped although it had been
	// idle for long. There may be keys behind it that can.
	blocked int

	// floor is the time before which no dropped key may be created anew: the
	// highest instant as of which one of them was dropped. Without it, a clock that steps back
	// behind a drop would let a key spend its budget twice. It is written under the
	// lock and read without it.
	floor atomic.Int64

	_ [64]byte // keeps the locks of two shards off one cache line
}

const (
	// shardKeys is how many keys a table needs before it has more than one shard.
	shardKeys = 4096
	numShards = 64

	// maxTries bounds how often a decision starts again because a key that it needs
	// was dropped in the meantime, or because all keys that could make room are pinned.
	maxTries = 100
)

func newTable[K comparable](maxKeys int, onFull Overflow, ttl time.Duration) *table[K] {
	n := 1
	if maxKeys >= shardKeys {
		n = numShards
	}
	t := &table[K]{
		index:  newIndex[K](maxKeys),
		cloner: keys.NewCloner[K](),
		shards: make([]shard[K], n),
		seed:   maphash.MakeSeed(),
		max:    int64(maxKeys),
		ttl:    int64(ttl),
		full:   fmt.Errorf("%w: %d keys", ErrTableFull, maxKeys),
	}
	if onFull == RefuseNew {
		t.due = newDueKeys[K]()
	}
	for i := range t.shards {
		t.shards[i].floor.Store(-maxReading)
	}
	return t
}

// early returns where plans list the keys that may be fresh earlier than was known, or nil
// if nobody needs the list.
func (t *table[K]) early() *early {
	if t.due == nil {
		return nil
	}
	return &t.due.early
}

// find returns the key's account, or nil. The account may be dropped before the caller has
// locked it; then its plan is nil, and to find the key again finds its next account.
func (t *table[K]) find(key K) *account { return t.index.find(key) }

// mustBe panics if there is no table, because the Keyed was not made by New.
func (t *table[K]) mustBe() {
	if t == nil {
		panic("ratelimit: zero Keyed; use New")
	}
}

func (t *table[K]) shard(key K) *shard[K] {
	if len(t.shards) == 1 {
		return &t.shards[0]
	}
	return &t.shards[t.index.hash(t.seed, key)%uint64(len(t.shards))]
}

// floor returns the time before which a key that is not in the table may not be created.
func (t *table[K]) floor(key K) int64 { return t.shard(key).floor.Load() }

// acquire returns the key's account, locked, and inserts one if there is none. For a
// new one it also returns the reading at which it was made.
func (t *table[K]) acquire(key K, p *plan, clock Clock) (b *account, now int64, fresh bool, err error) {
	s := t.shard(key)
	room := false // one of max is taken for this key
	for tries := 0; ; tries++ {
		s.mu.Lock()
		if b = t.index.find(key); b != nil {
			s.mu.Unlock()
			if b.lockKept() {
				t.release(room)
				return b, 0, false, nil
			}
			continue // dropped in the meantime
		}
		now = reading(clock)
		t.expireLocked(s, now)
		var busy place[K]
		if !room {
			room, busy = t.makeRoomLocked(s, now)
		}
		if room {
			return t.insertLocked(s, key, p, now), now, true, nil
		}
		s.mu.Unlock()
		if room = t.makeRoomElsewhere(s, busy, now); room {
			continue
		}
		if t.due != nil || tries == maxTries {
			t.refused.Add(1)
			return nil, 0, false, t.full
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

// release gives room back that was taken and is not needed.
func (t *table[K]) release(room bool) {
	if room {
		t.keys.Add(-1)
	}
}

// insertLocked publishes a new account, locked, and releases the shard.
func (t *table[K]) insertLocked(s *shard[K], key K, p *plan, now int64) *account {
	key = t.cloner.Clone(key)
	at := max(now, s.floor.Load())
	b := &account{plan: p, last: at, State: meter.State{At: at}}
	b.mu.Lock()
	s.order.add(place[K]{key, b, now})
	if t.due != nil {
		t.due.insert(key, b, at)
	}
	t.index.add(key, b)
	s.mu.Unlock()
	return b
}

// removeLocked takes an account out of the table and raises the shard's floor. The locks
// of both are held. Its room stays taken. Whoever waits for the account finds its plan to
// be nil, and the index up to date.
func (t *table[K]) removeLocked(s *shard[K], key K, b *account, floor int64) {
	b.plan = nil
	t.index.remove(key)
	if t.due != nil {
		t.due.remove(b)
	}
	if floor > s.floor.Load() {
		s.floor.Store(floor)
	}
}

// buryLocked is removeLocked for an account whose place stays in the order.
func (t *table[K]) buryLocked(s *shard[K], key K, b *account, floor int64) {
	t.removeLocked(s, key, b, floor)
	s.order.buried(func(p place[K]) bool { return t.index.find(p.key) == p.b })
}

// makeRoomLocked takes room for one more key in a shard. If it fails because of a key that
// is busy, it returns that.
func (t *table[K]) makeRoomLocked(s *shard[K], now int64) (ok bool, busy place[K]) {
	if t.reserve() {
		return true, busy
	}
	if t.due != nil {
		return false, busy
	}
	return t.evictLocked(s, now)
}

// makeRoomElsewhere takes room for one more key that the shard s did not give. The caller
// holds no lock.
func (t *table[K]) makeRoomElsewhere(s *shard[K], busy place[K], now int64) bool {
	switch {
	case t.due != nil:
		return t.dropDue(now)
	case busy.b != nil:
		return t.evictBusy(s, busy, now)
	}
	for i := range t.shards {
		if t.evictFrom(&t.shards[i], now) {
			return true
		}
	}
	return false
}
