package ban

// Waiting counts the keys for which calls wait.
func (b *Limiter[K]) Waiting() int {
	b.line.mu.Lock()
	defer b.line.mu.Unlock()
	return len(b.line.keys)
}
