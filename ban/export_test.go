package ban

// Waiting counts the keys with waiting calls.
func (b *Limiter[K]) Waiting() int {
	b.line.mu.Lock()
	defer b.line.mu.Unlock()
	return len(b.line.keys)
}
