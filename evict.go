package ratelimit

import "time"

// minIdle is for how long a key is kept at least if there is room. Without it, keys with
// high rates would come and go all the time.
const minIdle = int64(time.Minute)

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
// places, and so are the first to be looked at the next time. If one of them was busy, that
// is returned.
func (t *table[K]) evictLocked(s *shard[K], now int64) (ok bool, busy place[K]) {
	var buf [looks]victim[K]
	looked := t.lookAtOldestLocked(s, now, buf[:0])
	best := cheapest(looked)
	busy = s.returnLocked(looked, best, now)
	if best < 0 {
		return false, busy
	}
	v := &looked[best]
	defer v.b.mu.Unlock()
	t.evicts(v.rank)
	t.removeLocked(s, v.key, v.b, v.b.floor(now))
	return true, busy
}

// cheapest returns the index of the victim that costs least, or -1 if none may be evicted.
func cheapest[K comparable](looked []victim[K]) int {
	best := -1
	for i, v := range looked {
		if v.rank < rankPinned && (best < 0 || v.less(looked[best])) {
			best = i
		}
	}
	return best
}

// returnLocked gives all victims but the best a place in the order again, and unlocks them. It
// returns one that was busy, if there is one.
func (s *shard[K]) returnLocked(looked []victim[K], best int, now int64) (busy place[K]) {
	for i, v := range looked {
		if v.rank == rankBusy {
			busy = v.place
		}
		if i != best && v.rank != rankIdle {
			v.secondChance(s, now)
		}
	}
	for i := len(looked) - 1; i >= 0; i-- { // so that the oldest is the oldest again
		if v := looked[i]; i != best && v.rank == rankIdle {
			s.order.putBack(v.place)
			v.b.mu.Unlock()
		}
	}
	return busy
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
