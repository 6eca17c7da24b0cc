package ratelimit

// SetLimit replaces the limit that [New] was given. What was spent stays spent. If 40 of
// 50 are spent, and the limit is raised to 500, 460 remain. If 100 of 500 are spent, and the
// limit is lowered to 50, nothing remains until enough has been regained.
//
// Each key takes the new limit over at its next decision: allowed or denied, with a cost of
// 0, or above the limit. Until then it regains at the old rate; a Peek leaves it there.
// What was spent keeps its age, and what was booked keeps its instant. If the algorithm
// changes, what is spent carries over as exactly as the new one can express it, and is
// rounded up. A limit that equals the old one changes nothing. An invalid one changes
// nothing either, and the error wraps [ErrInvalidLimit].
//
// The first decision on a key after a change takes time linear in the number of bookings
// that the key has, and so does each Peek before that.
//
// With [Options.LimitFor], all keys ask it again, and keys for which it returns the zero
// Limit are under the new limit.
func (l *Keyed[K]) SetLimit(limit Limit) error {
	l.keys.mustBe()
	for {
		old := l.generation.Load()
		if limit == old.def.limit {
			return nil
		}
		next, err := old.next(limit)
		if err != nil {
			return err
		}
		if l.generation.CompareAndSwap(old, next) {
			l.keys.limitChanged()
			return nil
		}
	}
}

// Refresh makes keys ask [Options.LimitFor] again, each at its next decision. Without
// keys, and so for an empty slice of keys, all of them do. What was spent stays spent,
// as with SetLimit.
func (l *Keyed[K]) Refresh(keys ...K) {
	if len(keys) == 0 {
		l.refreshAll()
	}
	for _, key := range keys {
		if l.check(key, 0) == nil {
			l.refresh(key)
		}
	}
}

func (l *Keyed[K]) refreshAll() {
	l.keys.mustBe()
	for {
		old := l.generation.Load()
		next, _ := old.next(old.def.limit) // it was valid before
		if l.generation.CompareAndSwap(old, next) {
			return
		}
	}
}

// refresh counts first and marks the account then. A decision that has asked for the limit
// before and has not finished either sees the count, or its account is marked here.
func (l *Keyed[K]) refresh(key K) {
	l.refreshed.Add(1)
	if b := l.keys.find(key); b != nil {
		b.mu.Lock()
		defer b.mu.Unlock()
		if b.plan != nil {
			b.markStale()
		}
	}
}
