package httplimit

// Keys returns how many keys the Transport remembers.
func (t *Transport) Keys() int {
	t.mu.Lock()
	defer t.mu.Unlock()
	return len(t.lines)
}
