package ratelimit

// sweepRuns is how many runs of places are swept before a shard lets others in.
const sweepRuns = 16

// forget removes a key, whatever it has spent.
func (t *table[K]) forget(key K) {
	b := t.find(key)
	for b != nil && !b.lockKept() {
		b = t.find(key)
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
		s.order.readers++
		s.mu.Unlock()
		for len(runs) > 0 {
			n := min(sweepRuns, len(runs))
			dropped += t.sweepSome(s, runs[:n], clock)
			runs = runs[n:]
		}
		s.mu.Lock()
		s.order.readers--
		s.mu.Unlock()
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
