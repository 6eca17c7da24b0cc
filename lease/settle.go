package lease

// charge is what a reservation has cost in the end.
type charge struct {
	claim  claim
	cost   int // that was reserved
	actual int
}

// settle corrects what was spent of a batch. The holding may be nil, if the key has been dropped.
func (f *fetcher[K]) settle(key K, h *holding[K], c charge) error {
	if c.actual <= c.cost {
		f.returns.lose(c.cost - c.actual - putBack(h, c))
		return nil
	}
	if excess := c.actual - c.cost - f.spendMore(h, c); excess > 0 {
		return f.remote.charge(key, excess)
	}
	return nil
}

// putBack puts back what was not needed, and returns how much of it could be.
func putBack[K comparable](h *holding[K], c charge) int {
	if h == nil {
		return 0
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.releaseLocked(c.claim, c.cost-c.actual)
}

// spendMore spends of what is held what was needed beyond the reservation, and returns
// how much it has spent.
func (f *fetcher[K]) spendMore(h *holding[K], c charge) int {
	if h == nil {
		return 0
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	h.releaseLocked(c.claim, 0)
	n := min(c.actual-c.cost, h.left)
	if n == 0 {
		return 0
	}
	h.spendLocked(n)
	if h.left <= h.low {
		f.prefetchLocked(h)
	}
	return n
}
