package ratelimit

// A full table evicts a key to make room. Among a few of the shard's oldest keys, it drops the cheapest key
// (evictLocked). The key's spending is forgotten, unless [Options.Remember] keeps it. If all of these keys are
// pinned, other shards make room. If a key is busy, the call waits for it, and evicts it unless it is pinned then.
//
// A table with RefuseNew evicts only fresh keys: see lru_expiry.go.

// makeRoomLocked evicts a key of the shard, and takes its room for another key. If it reports
// false, busy may be a key whose account was in use. spare is nil, or an entry for another key of
// the shard, with its account locked. The shard's lock is held. With RefuseNew no key is evicted.
func (t *table[K]) makeRoomLocked(s *shard[K], now int64) (room bool, busy, spare *entry[K]) {
	if t.expiry != nil {
		return false, nil, nil
	}
	evicted, busy := t.evictOldLocked(s, now)
	if evicted == nil {
		return false, busy, nil
	}
	if s.kept || evicted.Value.held {
		evicted.Value.mu.Unlock()
		return true, nil, nil
	}
	return true, nil, evicted
}

// makeRoomElsewhere takes room for one more key after the shard s had none to give. The caller
// holds no lock, because makeRoomElsewhere waits for a busy key and locks other shards.
func (t *table[K]) makeRoomElsewhere(s *shard[K], busy *entry[K], now int64) bool {
	switch {
	case t.expiry != nil:
		return t.expireDue(now)
	case busy != nil:
		return t.evictBusy(s, busy, now)
	}
	for i := range t.shards {
		if t.evictFrom(&t.shards[i], now) {
			return true
		}
	}
	return false
}

// victim is a candidate for eviction. Its account is locked, unless it was busy.
type victim[K comparable] struct {
	entry *entry[K]
	rank  rank
	last  int64
}

// lookLocked finds the cost of evicting the key at a place. Its account stays locked, unless
// it is busy. It only peeks at the time, because a look by eviction does not count as use.
func (t *table[K]) lookLocked(p *entry[K], now int64) victim[K] {
	a := &p.Value
	if !a.mu.TryLock() {
		return victim[K]{entry: p, rank: rankBusy}
	}
	if a.plan == nil {
		return victim[K]{entry: p, rank: rankTombstone}
	}
	return victim[K]{p, a.use.rank(a.fresh(now), a.waitedFor(), a.plan.holds()), a.last}
}

// evictLocked drops a key of the shard, and the caller takes over its room. Of the few oldest keys it drops the one of
// the lowest rank, and among equal ranks the least recently used. The other keys in use or throttled get a second chance.
// Idle keys keep their places, so the next eviction looks at them first. If a key was busy, evictLocked returns it.
//
// The accounts of all examined keys stay locked until one is chosen,
// so none can spend, or be dropped, while they are compared.
func (t *table[K]) evictLocked(s *shard[K], now int64) (ok bool, busy *entry[K]) {
	evicted, busy := t.evictOldLocked(s, now)
	if evicted != nil {
		evicted.Value.mu.Unlock()
	}
	return evicted != nil, busy
}

// evictOldLocked is evictLocked, and also returns the removed entry, with its account locked.
func (t *table[K]) evictOldLocked(s *shard[K], now int64) (evicted, busy *entry[K]) {
	var buf [looks]victim[K]
	looked := t.lookAtOldestLocked(s, now, buf[:0])
	best := cheapest(looked)
	busy = s.returnLocked(looked, best, now)
	if best < 0 {
		return nil, busy
	}
	v := &looked[best]
	a := &v.entry.Value
	a.held = a.held || a.plan.wall != nil // a calendar may keep the key's text
	t.evicting(v.entry, v.rank, now, s.floor.Load())
	t.removeLocked(s, v.entry, a.floor(now))
	return v.entry, busy
}

// lookAtOldestLocked takes a few of the oldest keys out of the order. It stops at a fresh key, because no key costs less.
func (t *table[K]) lookAtOldestLocked(s *shard[K], now int64, looked []victim[K]) []victim[K] {
	for len(looked) < looks {
		p, ok := s.order.take()
		if !ok {
			break
		}
		v := t.lookLocked(p, now)
		if v.rank == rankTombstone {
			s.order.tombstones--
			p.Value.mu.Unlock()
			continue
		}
		looked = append(looked, v)
		if v.rank == rankFresh {
			break
		}
	}
	return looked
}

// cheapest returns the cheapest victim's index, or -1 if none may be evicted.
func cheapest[K comparable](looked []victim[K]) int {
	best := -1
	for i, v := range looked {
		if v.rank < rankPinned && (best < 0 || v.less(looked[best])) {
			best = i
		}
	}
	return best
}

// less reports whether it costs less to evict v than w. Of one rank, the key decided on less recently goes.
func (v *victim[K]) less(w victim[K]) bool {
	return v.rank < w.rank || v.rank == w.rank && v.last < w.last
}

// returnLocked gives all victims but the best a place in the order again, and unlocks them. If some were busy, it returns one
// of these.
func (s *shard[K]) returnLocked(looked []victim[K], best int, now int64) (busy *entry[K]) {
	for i, v := range looked {
		if v.rank == rankBusy {
			busy = v.entry
		}
		if i != best && v.rank != rankIdle {
			v.secondChance(s, now)
		}
	}
	for i := len(looked) - 1; i >= 0; i-- { // so the oldest is the oldest again
		if v := looked[i]; i != best && v.rank == rankIdle {
			s.order.putBack(v.entry)
			v.entry.Value.mu.Unlock()
		}
	}
	return busy
}

// secondChance gives an examined key the newest place, and unlocks it. Each use counts
// once: if the key is not used again, it goes when it is the oldest the next time.
func (v *victim[K]) secondChance(s *shard[K], now int64) {
	s.order.add(v.entry, now)
	if v.rank != rankBusy {
		v.entry.Value.use.clearRecent()
		v.entry.Value.mu.Unlock()
	}
}

// evicting counts a key before it is dropped to make room, and stores its spending if the table remembers any. A fresh
// key has expired: nothing is forgotten with it. The locks of account and shard are held, and floor is the shard's. If
// a call finds the account, it waits until the account is removed, and then finds the remembered spending.
func (t *table[K]) evicting(e *entry[K], r rank, now, floor int64) {
	a := &e.Value
	switch r {
	case rankFresh:
		t.expired.Add(1)
		return
	case rankThrottled, rankWaiting:
		if t.memory == nil {
			t.evictedThrottled.Add(1)
		}
	}
	t.evicted.Add(1)
	if a.use.end(); t.memory == nil {
		return
	}
	// After a step back of the clock, a formerly fresh key may not be fresh now. Then there is nothing to remember.
	past := a.remembered(now, floor)
	if w := a.plan.wall; w != nil {
		at := max(now, a.last)
		w.evicted(a.plan.Reached(a.State, at), at, past.Share > 0)
	}
	if past.Share > 0 {
		t.memory.store(e.Hash(), a.plan, past, now)
	}
}

// evictFrom makes room in another shard. While the table is full, a shard may
// be empty or have only pinned keys, because the room belongs to the table.
func (t *table[K]) evictFrom(s *shard[K], now int64) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	ok, _ := t.evictLocked(s, now)
	return ok
}

// evictBusy makes room if all candidates are busy: it waits for one, without the shard's lock. By then
// the key may have been dropped or pinned, or may have become fresh, so evictBusy ranks it again.
func (t *table[K]) evictBusy(s *shard[K], e *entry[K], now int64) bool {
	a := &e.Value
	if !a.lockKept() {
		return false
	}
	defer a.mu.Unlock()
	r := a.use.rank(a.fresh(now), a.waitedFor(), a.plan.holds())
	if r == rankPinned {
		return false
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	t.evicting(e, r, now, s.floor.Load())
	t.removeAnywhereLocked(s, e, a.floor(now))
	return true
}
