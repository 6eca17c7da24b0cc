package ratelimit

import (
	"fmt"
	"hash/maphash"
	"runtime"
	"sync"
	"sync/atomic"
	"time"

	"github.com/weir-go/ratelimit/internal/keys"
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

	_ [56]byte // keeps the locks of two shards off one cache line
}

const (
	// shardKeys is how many keys a table needs before it has more than one shard.
	shardKeys = 4096
	numShards = 64

	// minIdle is for how long a key is kept at least if there is room. Without it, keys
	// with high rates would come and go all the time.
	minIdle = int64(time.Minute)

	// maxTries bounds how often a decision starts again because a key that it needs
	// was dropped in the meantime, or because all keys that could make room are pinned.
	maxTries = 100

	// sweepRuns is how many runs of places are swept before a shard lets others in.
	sweepRuns = 16
)

func newTable[K comparable](maxKeys int, onFull Overflow, ttl time.Duration) *table[K] {
	n := 1
	if maxKeys >= shardKeys {
		n = numShards
	}
	t := &table[K]{
		index:  newIndex[K](),
		cloner: keys.NewCloner[K](),
		shards: make([]shard[K], n),
		seed:   maphash.MakeSeed(),
		max:    int64(maxKeys),
		ttl:    int64(ttl),
	}
	if onFull == RefuseNew {
		t.due = newDueKeys[K]()
	}
	for i := range t.shards {
		t.shards[i].order = newOrder[K]()
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

func (t *table[K]) find(key K) *account { return t.index.find(key) }

// mustBe panics if there is no table, because the Keyed was not made by New.
func (t *table[K]) mustBe() {
	if t == nil {
		panic("ratelimit: zero Keyed; use New")
	}
}

// findLocked finds a key under its shard's lock. Whoever has found a dropped account needs
// it, because that leaves the index a moment after it was marked.
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
	b := &account{plan: p, last: at, state: state{at: at}}
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
// of both are held. Its room stays taken.
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

// ---- expiry: old keys leave as new ones come ----

// expireLocked drops one or two of the oldest keys, if they are fresh and have been idle for
// long. A key that is not fresh may stay the oldest and keep others behind it. So it is
// counted how often that happens, and once it has happened so often that a look at all
// keys costs each insertion little, all of them are looked at.
func (t *table[K]) expireLocked(s *shard[K], now int64) {
	ttl := max(t.ttl, minIdle)
	for range 2 {
		oldest := s.order.peek()
		if oldest == nil {
			return
		}
		if age := now - oldest.since; 0 <= age && age < ttl {
			return
		}
		if !t.expireOldestLocked(s, now, ttl) {
			break
		}
	}
	if s.blocked > s.order.n/4 {
		s.blocked = 0
		t.sweepLocked(s, s.order.runs(), now, ttl)
	}
}

// expireOldestLocked drops the oldest key, or gives it a second chance if it is in use. It
// reports false if it has done neither, so that the key stays the oldest.
func (t *table[K]) expireOldestLocked(s *shard[K], now, ttl int64) bool {
	p, _ := s.order.take()
	if !p.b.mu.TryLock() {
		s.order.add(place[K]{p.key, p.b, now})
		return true
	}
	defer p.b.mu.Unlock()
	switch {
	case p.b.plan == nil:
		s.order.dead--
	case p.b.expired(now, ttl):
		t.removeLocked(s, p.key, p.b, p.b.freshAt())
		t.keys.Add(-1)
		t.expired.Add(1)
	case p.b.use.recent():
		p.b.use.seen()
		s.order.add(place[K]{p.key, p.b, now})
	default:
		s.order.putBack(p)
		s.blocked++
		return false
	}
	return true
}

// ---- eviction: a full table makes room ----

// victim is a key that may be evicted. Its account is locked, unless it was busy.
type victim[K comparable] struct {
	place[K]
	rank rank
	last int64
}

// look finds out what it costs to evict the key at a place.
func (t *table[K]) look(p place[K], now int64) victim[K] {
	if !p.b.mu.TryLock() {
		return victim[K]{place: p, rank: rankBusy}
	}
	if p.b.plan == nil {
		return victim[K]{place: p, rank: rankDead}
	}
	return victim[K]{p, p.b.use.rank(p.b.fresh(now)), p.b.last}
}

// evictLocked makes room in a full shard, and leaves it to the caller. Of the few oldest keys
// it drops the one of the lowest rank, and of those the one that was used least recently.
// The others that are in use or throttled get a second chance; idle ones keep their
// places, and so are the first to be looked at the next time. If the room is not to be had
// because of a key that is busy, that is returned.
func (t *table[K]) evictLocked(s *shard[K], now int64) (ok bool, busy place[K]) {
	var buf [looks]victim[K]
	looked := t.lookAtOldestLocked(s, now, buf[:0])
	best := -1
	for i, v := range looked {
		if v.rank < rankPinned && (best < 0 || v.less(looked[best])) {
			best = i
		}
	}
	for i, v := range looked {
		if v.rank == rankBusy {
			busy = v.place
		}
		if i != best && v.rank != rankIdle {
			v.secondChance(s, now)
		}
	}
	for i := len(looked) - 1; i >= 0; i-- {
		if v := looked[i]; i != best && v.rank == rankIdle {
			s.order.putBack(v.place)
			v.b.mu.Unlock()
		}
	}
	if best < 0 {
		return false, busy
	}
	t.evicts(looked[best].rank)
	t.removeLocked(s, looked[best].key, looked[best].b, looked[best].b.floor(now))
	looked[best].b.mu.Unlock()
	return true, place[K]{}
}

// lookAtOldestLocked takes a few of the oldest keys out of the order, none behind a fresh one.
func (t *table[K]) lookAtOldestLocked(s *shard[K], now int64, looked []victim[K]) []victim[K] {
	for len(looked) < looks {
		p, ok := s.order.take()
		if !ok {
			break
		}
		v := t.look(p, now)
		if v.rank == rankDead {
			s.order.dead--
			p.b.mu.Unlock()
			continue
		}
		looked = append(looked, v)
		if v.rank == rankFresh {
			break
		}
	}
	return looked
}

// less reports whether it costs less to evict v than w.
func (v *victim[K]) less(w victim[K]) bool {
	return v.rank < w.rank || v.rank == w.rank && v.last < w.last
}

// secondChance gives a key that was looked at the newest place, and unlocks it.
func (v *victim[K]) secondChance(s *shard[K], now int64) {
	s.order.add(place[K]{v.key, v.b, now})
	if v.rank != rankBusy {
		v.b.use.seen()
		v.b.mu.Unlock()
	}
}

// evicts counts a key that is dropped to make room.
func (t *table[K]) evicts(r rank) {
	switch r {
	case rankFresh:
		t.expired.Add(1)
	case rankThrottled:
		t.evictedThrottled.Add(1)
		t.evicted.Add(1)
	default:
		t.evicted.Add(1)
	}
}

// evictFrom makes room in another shard.
func (t *table[K]) evictFrom(s *shard[K], now int64) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	ok, _ := t.evictLocked(s, now)
	return ok
}

// evictBusy makes room where all keys that could go are busy: it waits for one of them,
// without the shard's lock.
func (t *table[K]) evictBusy(s *shard[K], p place[K], now int64) bool {
	if !p.b.lockKept() {
		return false
	}
	defer p.b.mu.Unlock()
	r := p.b.use.rank(p.b.fresh(now))
	if r == rankPinned {
		return false
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	t.evicts(r)
	t.buryLocked(s, p.key, p.b, p.b.floor(now))
	return true
}

// dropDue makes room in a table that refuses new keys: it drops a key that is fresh. If
// none is, it reports false. Keys that are busy or pinned do not count; the next call looks
// at them again.
func (t *table[K]) dropDue(now int64) bool {
	var kept []*account
	defer func() {
		for _, b := range kept {
			t.due.later(b, now)
		}
	}()
	for {
		key, b, ok := t.due.next(now)
		if !ok {
			return false
		}
		switch dropped, again := t.dropIfFresh(key, b, now); {
		case dropped:
			return true
		case again:
			kept = append(kept, b)
		}
	}
}

// dropIfFresh drops a key that is fresh. If it cannot tell or the key is pinned, it asks
// to be called again.
func (t *table[K]) dropIfFresh(key K, b *account, now int64) (dropped, again bool) {
	s := t.shard(key)
	s.mu.Lock()
	defer s.mu.Unlock()
	if !b.mu.TryLock() {
		return false, true
	}
	defer b.mu.Unlock()
	if b.plan == nil {
		return false, false
	}
	b.use.lookedUp()
	switch at := b.freshAt(); {
	case at > now:
		t.due.later(b, at)
		return false, false
	case b.use.isPinned():
		return false, true
	}
	t.expired.Add(1)
	t.buryLocked(s, key, b, b.freshAt())
	return true, false
}

// ---- removal on request ----

// forget removes a key, whatever it has spent.
func (t *table[K]) forget(key K) {
	b := t.find(key)
	for b != nil && !b.lockKept() {
		b = t.findLocked(key)
	}
	if b == nil {
		return
	}
	defer b.mu.Unlock()
	t.discard(key, b, -maxReading)
}

// withdraw unpins a key that was inserted for a decision that then was a denial, and
// removes it unless another decision has spent from it.
func (t *table[K]) withdraw(key K, b *account, clock Clock) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.use.unpin()
	if b.plan == nil || !b.fresh(reading(clock)) {
		return
	}
	floor := int64(-maxReading) // nothing was spent, so there is nothing to spend twice
	if b.use.recent() {
		floor = b.freshAt()
	}
	t.discard(key, b, floor)
}

// discard removes a key whose account is locked.
func (t *table[K]) discard(key K, b *account, floor int64) {
	s := t.shard(key)
	s.mu.Lock()
	defer s.mu.Unlock()
	t.buryLocked(s, key, b, floor)
	t.keys.Add(-1)
}

// sweep drops all keys that are fresh and have been idle for long enough. Between a few
// hundred keys it lets others into the shard.
func (t *table[K]) sweep(clock Clock) (dropped int) {
	for i := range t.shards {
		s := &t.shards[i]
		s.mu.Lock()
		runs := s.order.runs()
		s.mu.Unlock()
		for len(runs) > 0 {
			n := min(sweepRuns, len(runs))
			dropped += t.sweepSome(s, runs[:n], clock)
			runs = runs[n:]
		}
	}
	return dropped
}

func (t *table[K]) sweepSome(s *shard[K], runs [][]place[K], clock Clock) int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return t.sweepLocked(s, runs, reading(clock), t.ttl)
}

func (t *table[K]) sweepLocked(s *shard[K], runs [][]place[K], now, ttl int64) (dropped int) {
	for _, run := range runs {
		for _, p := range run {
			if p.b != nil && t.sweepPlaceLocked(s, p, now, ttl) {
				dropped++
			}
		}
	}
	return dropped
}

// sweepPlaceLocked drops a key that is fresh and has been idle for long enough.
func (t *table[K]) sweepPlaceLocked(s *shard[K], p place[K], now, ttl int64) bool {
	if !p.b.mu.TryLock() {
		return false
	}
	defer p.b.mu.Unlock()
	if p.b.plan == nil || !p.b.expired(now, ttl) {
		return false
	}
	t.buryLocked(s, p.key, p.b, p.b.freshAt())
	t.keys.Add(-1)
	t.expired.Add(1)
	return true
}
