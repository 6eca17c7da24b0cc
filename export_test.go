package ratelimit

// LockKey makes a key that is tracked busy, as a decision that takes long, until the function that it
// returns is called.
func LockKey[K comparable](l *Keyed[K], key K) (unlock func()) {
	b := l.keys.find(key)
	b.mu.Lock()
	return b.mu.Unlock
}
