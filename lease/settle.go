package lease

// settle corrects a reservation whose cost was spent from batches. h
// is the key's current holding, or nil if the key has been dropped.
func (f *fetcher[K]) settle(key K, h *holding[K], c claims[K], cost, actual int) error {
	if actual <= cost {
		f.returns.lose(c.release(cost - actual))
		return nil
	}
	c.release(0)
	if excess := actual - cost - f.spendMore(h, actual-cost); excess > 0 {
		return f.remote.charge(key, excess)
	}
	return nil
}

// spendMore spends up to most of the held units on a cost beyond its reservation. It returns the number of units spent.
func (f *fetcher[K]) spendMore(h *holding[K], most int) int {
	if h == nil {
		return 0
	}
	h.mu.Lock()
	n := min(most, h.left)
	if n > 0 {
		h.spendLocked(n)
	}
	low := n > 0 && h.left <= h.low
	h.mu.Unlock()
	if low {
		f.prefetch(h)
	}
	return n
}
