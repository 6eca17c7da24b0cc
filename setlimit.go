package ratelimit

// SetLimit replaces the limit that [New] was given. What was spent stays spent:
// 40 of 50 spent and the limit raised to 500 leaves 460; lowered from 500 to 50
// with 100 spent it leaves 0 until that has been regained. The change reaches
// each key with its next decision, whole, and until then the key regains at the
// old rate. Spendings keep their ages and bookings their instants. If the
// algorithm changes, what is spent carries over as well as the new one can hold
// it. An equal limit changes nothing. An invalid one is refused, with an error
// that wraps [ErrInvalidLimit], and changes nothing either.
//
// With [Options.LimitFor], all keys ask it again, and the limit is that of keys
// for which it returns the zero Limit.
func (l *Keyed[K]) SetLimit(limit Limit) error {
	for {
		old := l.era.Load()
		if limit == old.def.limit {
			return nil
		}
		next, err := old.next(limit)
		if err != nil {
			return err
		}
		if l.era.CompareAndSwap(old, next) {
			return nil
		}
	}
}

// Refresh makes these keys ask [Options.LimitFor] again, each with its next
// decision; without keys, and so for an empty slice of keys, all do. What was spent stays spent, as with SetLimit.
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
	for {
		old := l.era.Load()
		next, _ := old.next(old.def.limit) // it was valid before
		if l.era.CompareAndSwap(old, next) {
			return
		}
	}
}

// refresh counts first and marks the bucket then. Whoever is about to put it under
// a limit that was asked for before either sees the count, or is seen here.
func (l *Keyed[K]) refresh(key K) {
	l.refreshed.Add(1)
	if b := l.keys.find(key); b != nil {
		b.mu.Lock()
		defer b.mu.Unlock()
		if b.plan != nil {
			b.expire()
		}
	}
}
