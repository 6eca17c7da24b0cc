package ratelimit

// LockKey locks a tracked key, as a long decision does, until unlock is called.
func LockKey[K comparable](l *Keyed[K], key K) (unlock func()) {
	a := l.keys.find(key)
	a.mu.Lock()
	return a.mu.Unlock
}

// PinKey pins a tracked key, as a stack does while it inserts other keys.
func PinKey[K comparable](l *Keyed[K], key K) {
	defer LockKey(l, key)()
	l.keys.find(key).use.pin()
}

// LimitsKept counts LimitFor's results kept outside the table.
func LimitsKept[K comparable](l *Keyed[K]) int { return l.lookups.Len() }
