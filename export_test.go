package ratelimit

// LockKey makes a key that is tracked busy, as a decision that takes long, until the function that it
// returns is called.
func LockKey[K comparable](l *Keyed[K], key K) (unlock func()) {
	a := l.keys.find(key)
	a.mu.Lock()
	return a.mu.Unlock
}

// PinKey makes a key that is tracked stay, as a stack does that inserts other keys.
func PinKey[K comparable](l *Keyed[K], key K) {
	defer LockKey(l, key)()
	l.keys.find(key).use.pin()
}

// LimitsKept returns the number of results of LimitFor that are kept beside the table.
func LimitsKept[K comparable](l *Keyed[K]) int { return l.lookups.Len() }
