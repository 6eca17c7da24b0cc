package ratelimit

import (
	"fmt"
	"runtime"
	"sync"
	"sync/atomic"
	"time"

	"github.com/weir-go/ratelimit/internal/keys"
	"github.com/weir-go/ratelimit/internal/meter"
)

// table maps keys to accounts, and never has more than max of them. This file finds, inserts and
// removes keys. lru_order.go keeps the order in which keys leave, lru_usage.go ranks keys by the cost
// of dropping them, lru_expiry.go drops fresh keys, and lru_evict.go chooses the key to make room.
//
// To find a known key takes no lock and moves nothing. Keys stay in the order in which they were inserted.
// Eviction examines the oldest keys, and gives recently used ones a second chance (the CLOCK policy, after F.
// J. Corbató's paging experiment of 1968). The table starts no goroutine: old keys leave as new ones come.
//
// Locks. To insert or remove a key takes its shard's lock. While code holds a shard's lock, it never waits for an
// account's: an account may be busy for long, and all new keys of the shard would wait with it. So it only tries the
// account's lock, and treats a busy account as in use. While code holds an account's lock, it may wait for a shard's.
//
// A key has at most one live account, for two reasons. An account is inserted and removed under the lock of
// its key's shard. And it is marked as dropped (its plan is nil) under its own lock before another account
// can take its place. A decision may find an account just before it is dropped: it looks the key up again.
//
// Each key has one entry, the map's entry, which the order and the table use, too. The entry holds
// the account: so a known key takes one step less to find, and a new key takes one allocation.
//
// In a full table a new key takes no allocation: it gets the evicted key's entry. A call may have found that entry,
// without a lock, for the old key. So a call looks entries up by the hash alone, and compares the key when it holds
// the account's lock, which guards the entry's key. If the entry is another key's by then, the call looks its own
// key up under the shard's lock: an entry passes only to a key of the same shard, under that lock. An account does
// not pass to another key while a call may refer to it. A call may refer to an account with a reservation or a
// line, and to any account of a limiter in a stack, because stacks look at accounts before they lock them.
type table[K comparable] struct {
	accounts *keys.Map[K, account] // finds the accounts
	maker    keys.Maker[K, account]
	shards   []shard[K]
	max      int64
	count    atomic.Int64   // keys in the table, or about to be
	ttl      int64          // how long an idle key is kept while there is room, in nanoseconds
	expiry   *expiryHeap[K] // not nil means RefuseNew: a full table refuses new keys, and drops only fresh ones
	full     error          // the error of a refused new key, made once, because a flood of keys gets it
	memory   *memory        // evicted keys' spending, or nil
	orphans  orphans[K]     // the lines of untracked keys
	stacked  atomic.Bool    // accounts stay with their keys: see keep

	expired, evicted, evictedThrottled, refused atomic.Uint64
}

// entry is a tracked key, and its account.
type entry[K comparable] = keys.Entry[K, account]

// shard is a part of the keys, by hash. New keys of different shards do not wait for each other. A small table
// has one shard, because eviction needs many keys to choose from. A large table has many shards, so a walk
// through one is short. The shards share the table's room, so exactly max keys fit, whatever their hashes.
type shard[K comparable] struct {
	mu    sync.Mutex // guards the fields below
	order order[K]

	// blocked counts how often the oldest key could not be dropped
	// although it had been idle for long. Keys behind it may be droppable.
	blocked int

	// epoch counts insertions, and removals of remembered spending, in this shard.
	epoch uint64

	// floor is the time before which no dropped key may be created again: the latest instant
	// when a key was dropped. Without it, a key could spend its budget twice if the clock
	// stepped back to before the drop. It is written under the lock and read without it.
	floor atomic.Int64

	// kept is true if no entry of the shard may be given to another key.
	kept bool

	_ [64]byte // puts the locks of two shards on different cache lines
}

// maxTries is the maximum number of a decision's attempts. It starts again if
// one of its keys was dropped, or if no key can make room, since all are pinned.
const maxTries = 100

// A new key then sleeps between its tries, up to maxNaps times, 100 ms in all. The calls that hold all the room need it
// only for a moment, but the system may have stopped their threads meanwhile. The naps double from firstNap to longestNap.
const (
	maxNaps    = 26
	firstNap   = 50 * time.Microsecond
	longestNap = 5 * time.Millisecond
)

// newTable returns an empty table. The options are valid, and their MaxKeys is set.
func newTable[K comparable](o *Options[K], dates *calendars) *table[K] {
	maxKeys := o.MaxKeys
	t := &table[K]{
		accounts: keys.NewMap[K, account](maxKeys),
		maker:    keys.NewMaker[K, account](),
		shards:   make([]shard[K], keys.Shards(maxKeys)),
		max:      int64(maxKeys),
		ttl:      int64(o.IdleTTL),
		full:     fmt.Errorf("%w: %d keys", ErrTableFull, maxKeys),
	}
	floor := int64(-maxReading)
	if o.OnFull == RefuseNew {
		t.expiry = newExpiryHeap[K]()
	}
	if o.Remember > 0 {
		floor = reading(o.Clock) // remembered times count from the first reading
		t.memory = newMemory(o.Remember, floor, dates)
		t.memory.mixed.Store(o.LimitFor != nil)
	}
	for i := range t.shards {
		t.shards[i].floor.Store(floor)
	}
	return t
}

// keep makes all accounts stay with their keys from now on.
func (t *table[K]) keep() {
	if t.stacked.Load() {
		return
	}
	for i := range t.shards {
		s := &t.shards[i]
		s.mu.Lock()
		s.kept = true
		s.mu.Unlock()
	}
	t.stacked.Store(true)
}

// lockEntry locks the account of an entry found for a key. If the entry
// is another key's by now, it unlocks the account and returns nil.
func (t *table[K]) lockEntry(e *entry[K], key K) *account {
	a := &e.Value
	a.mu.Lock()
	if a.plan == nil || e.Key != key {
		a.mu.Unlock()
		return nil
	}
	return a
}

// lockFound returns the key's account, locked, or nil if the key is not tracked.
func (t *table[K]) lockFound(key K) *account {
	e := t.accounts.Candidate(key)
	for e != nil {
		if a := t.lockEntry(e, key); a != nil {
			return a
		}
		s := t.shardOf(key)
		s.mu.Lock()
		e = t.accounts.Lookup(key)
		s.mu.Unlock()
	}
	return nil
}

// find returns the key's account, or nil if the key is not tracked. If the account is dropped before the caller has
// locked it, its plan is nil: then the caller calls find again. The caller holds the shard's lock, or accounts are kept.
func (t *table[K]) find(key K) *account {
	if e := t.accounts.Lookup(key); e != nil {
		return &e.Value
	}
	return nil
}

// shard returns the shard for the keys with a hash.
func (t *table[K]) shard(hash uint64) *shard[K] { return &t.shards[hash%uint64(len(t.shards))] }

// shardOf returns a key's shard.
func (t *table[K]) shardOf(key K) *shard[K] {
	if len(t.shards) == 1 {
		return &t.shards[0]
	}
	return t.shard(t.accounts.Hash(key))
}

// unseen returns an untracked key's record.
func (t *table[K]) unseen(key K) unseen {
	if t.memory == nil {
		return unseen{floor: t.shardOf(key).floor.Load()}
	}
	hash := t.accounts.Hash(key)
	return unseen{t.shard(hash).floor.Load(), t.memory, hash}
}

// acquire returns the key's account, locked, and inserts one if there
// is none. For a new one it also returns the reading of its creation.
//
// acquire takes room, one of max, before it inserts the key, so the table is never too full. It keeps that room while it
// unlocks the shard to evict a key elsewhere. If another call has inserted the key by then, acquire gives the room back.
//
// acquire computes the state of a new key before it makes room. So the evicted key's remembered spending
// does not change this state, and the new key is allowed as much as an earlier Peek has reported.
//
// pinning is true if the caller has pinned keys. It gets an error soon, because another call may need their room.
func (t *table[K]) acquire(key K, p *plan, clock Clock, pinning bool) (a *account, now int64, created bool, err error) {
	s := t.shardOf(key)
	room := false // acquire has taken room for this key
	var x initialState
	for tries := 0; ; tries++ {
		if a = t.findOrBegin(s, key, p, clock, &x); a != nil {
			t.release(room)
			return a, 0, false, nil
		}
		t.expireLocked(s, x.reading)
		var busy, spare *entry[K]
		if room = room || t.reserve(); !room {
			room, busy, spare = t.makeRoomLocked(s, x.reading)
		}
		if room {
			return t.insertLocked(s, key, p, &x, spare), x.reading, true, nil
		}
		s.mu.Unlock()
		if room = t.makeRoomElsewhere(s, busy, x.reading); room {
			continue
		}
		switch naps := tries - maxTries; { // decisions under way have pinned all keys, or have taken all room
		case t.expiry != nil, naps >= 0 && pinning, naps >= maxNaps:
			t.refused.Add(1)
			return nil, 0, false, t.full
		case naps >= 0:
			time.Sleep(min(firstNap<<naps, longestNap))
		default:
			runtime.Gosched()
		}
	}
}

// findOrBegin returns the key's account, locked. If the key is not tracked, it returns nil, leaves the shard
// locked, and sets x to the state of the new key. It computes x again only if the shard's epoch has changed since.
func (t *table[K]) findOrBegin(s *shard[K], key K, p *plan, clock Clock, x *initialState) *account {
	for {
		s.mu.Lock()
		e := t.accounts.Lookup(key)
		if e == nil {
			if !x.known || x.epoch != s.epoch {
				t.initialStateLocked(s, key, p, reading(clock), x)
			}
			return nil
		}
		s.mu.Unlock() // another call may hold the account's lock for long
		if a := t.lockEntry(e, key); a != nil {
			return a
		}
	}
}

// reserve takes room for one more key, if there is any. The addition checks the maximum, so two concurrent insertions
// cannot both take the last room.
func (t *table[K]) reserve() bool {
	for {
		n := t.count.Load()
		if n >= t.max {
			return false
		}
		if t.count.CompareAndSwap(n, n+1) {
			return true
		}
	}
}

// hasRoom reports whether one more key fits without another being dropped.
func (t *table[K]) hasRoom() bool { return t.count.Load() < t.max }

// release gives unneeded room back.
func (t *table[K]) release(room bool) {
	if room {
		t.count.Add(-1)
	}
}

// initialState is a new key's state.
type initialState struct {
	reading, last int64
	state         meter.State
	recalled      bool   // it has remembered spending
	known         bool   // it has been computed
	epoch         uint64 // the shard's epoch when the state was computed
}

// initialStateLocked computes the state of a key inserted at a reading. The shard's lock is held.
func (t *table[K]) initialStateLocked(s *shard[K], key K, p *plan, now int64, x *initialState) {
	u := unseen{floor: s.floor.Load()}
	if t.memory != nil {
		u.memory, u.hash = t.memory, t.accounts.Hash(key)
	}
	x.known, x.reading, x.epoch = true, now, s.epoch
	x.last, x.state = u.begin(p, now, false)
	x.recalled = t.memory != nil && p.Regained(x.state) > x.last
}

// insertLocked publishes a new account and releases the shard. The account is locked before any other
// goroutine can find it. So the inserting decision is the account's first one, and no eviction finds a key
// before it has spent anything. spare is nil, or the entry of the evicted key, with its account locked.
func (t *table[K]) insertLocked(s *shard[K], key K, p *plan, x *initialState, spare *entry[K]) *account {
	e := spare
	if spare == nil || !t.maker.Replace(spare, key) {
		if spare != nil {
			spare.Value.mu.Unlock()
		}
		e = t.maker.New(key)
		e.Value.mu.Lock()
	}
	a := &e.Value
	a.plan, a.last, a.State, a.use, a.changes = p, x.last, x.state, 0, 0
	if x.recalled {
		t.memory.recalled.Add(1)
	}
	t.orphans.adopt(e.Key, a)
	s.epoch++
	t.accounts.AddEntry(e)
	s.order.add(e, x.reading)
	if t.expiry != nil {
		t.expiry.insert(e, x.last)
	}
	s.mu.Unlock()
	return a
}

// removeLocked takes an account out of the table and raises the shard's floor. The caller has taken its
// place out of the order, and holds the locks of account and shard. The key's room stays taken, for its
// replacement. A call that waits for the account's lock then sees a nil plan, and finds the map up to date.
func (t *table[K]) removeLocked(s *shard[K], e *entry[K], floor int64) {
	a := &e.Value
	if w := a.plan.wall; w != nil && floor > -maxReading {
		dropped(w, e.Key, a.State, floor)
	}
	a.plan = nil
	t.orphans.leave(e.Key, a)
	t.accounts.RemoveEntry(e)
	if t.expiry != nil {
		t.expiry.remove(a)
	}
	if floor > s.floor.Load() {
		s.floor.Store(floor)
	}
}

// removeAnywhereLocked is removeLocked for an account whose place may be anywhere in the order. The place becomes a
// tombstone.
func (t *table[K]) removeAnywhereLocked(s *shard[K], e *entry[K], floor int64) {
	t.removeLocked(s, e, floor)
	s.order.addTombstone(func(p *entry[K]) bool { return t.accounts.Lookup(p.Key) == p })
}

// remove removes a key whose account is locked, and gives its room back.
func (t *table[K]) remove(key K, floor int64) {
	s := t.shardOf(key)
	s.mu.Lock()
	defer s.mu.Unlock()
	t.removeAnywhereLocked(s, t.accounts.Lookup(key), floor)
	t.count.Add(-1)
}

// lockListed locks the account of an entry found by an iteration, or the account in its place by now, and returns
// it with the key. If the key is no longer tracked, it returns nil. The returned key shares no text with the entry.
func (t *table[K]) lockListed(e *entry[K]) (key K, a *account) {
	a = &e.Value
	a.mu.Lock()
	if key = t.maker.Clone(e.Key); a.plan != nil {
		return key, a
	}
	a.mu.Unlock()
	return key, t.lockFound(key)
}

// forget removes a key, its spending, and its remembered spending. It raises no floor, because the
// key starts fresh now. If the key has a line, forget returns it, and the caller puts it back.
func (t *table[K]) forget(key K) *meter.Line {
	for {
		a := t.lockFound(key)
		switch {
		case a == nil && t.memory == nil:
			return nil
		case a == nil:
			if t.takeOut(key) {
				return nil
			}
		default:
			defer a.mu.Unlock()
			line := a.State.Line()
			t.forgetPast(key) // now, so no call recalls it once the account is gone
			t.remove(key, -maxReading)
			a.use.end()
			return line
		}
	}
}

// knows reports whether the key is tracked, or something is remembered of it.
func (t *table[K]) knows(key K, p *plan, clock Clock) bool {
	if t.accounts.Candidate(key) != nil {
		return true
	}
	u := t.unseen(key)
	now, s := u.begin(p, reading(clock), true)
	return p.Regained(s) > now
}

// forgetPast forgets a key's remembered spending after a grant or a reset, because the key has
// spent less now. The key's account is locked: so the key is neither evicted nor inserted.
func (t *table[K]) forgetPast(key K) {
	if t.memory != nil {
		t.memory.takeOut(t.accounts.Hash(key))
	}
}

// limitChanged records that some keys may be evicted, now or before, under another limit than the present one for all keys.
func (t *table[K]) limitChanged() {
	if t.memory != nil {
		t.memory.changed.Store(true)
	}
}

// remembers reports whether a key's remembered spending is at least its account's. The account is locked.
func (t *table[K]) remembers(key K, a *account, reading int64) bool {
	if t.memory == nil {
		return false
	}
	u := t.unseen(key)
	now, s := u.begin(a.plan, reading, true)
	return a.plan.Covers(a.plan.Remember(s, now), a.remembered(reading, u.floor))
}

// takeOut forgets an untracked key's remembered spending, or reports false because the key is
// tracked now. The lock of the shard keeps it from being inserted or evicted at the same time.
func (t *table[K]) takeOut(key K) bool {
	s := t.shardOf(key)
	s.mu.Lock()
	defer s.mu.Unlock()
	if t.find(key) != nil {
		return false
	}
	s.epoch++
	t.memory.takeOut(t.accounts.Hash(key))
	return true
}

// withdraw unpins a key inserted for a decision that became a denial. If no other decision has charged
// the key, withdraw removes it. The key is then fresh, or the table remembers all its spending.
func (t *table[K]) withdraw(key K, a *account, clock Clock) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.use.unpin()
	if a.plan == nil {
		return
	}
	now := reading(clock)
	if !a.fresh(now) && !t.remembers(key, a, now) {
		return
	}
	floor := int64(-maxReading) // nothing was spent, so nothing can be spent twice
	if a.use.recent() {
		floor = a.floor(now)
	}
	t.remove(key, floor)
}
