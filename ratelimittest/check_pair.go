package ratelimittest

// pair returns one key on each of two limiters with shared budgets.
func (h *history) pair() (a, b *testedKey) {
	one, other, err := h.cfg.NewPair(h.limit)
	h.must(err == nil, exact, "NewPair refuses a limit that it has to know: %v", err)
	h.must(one != nil && other != nil, exact, "NewPair returns nil without an error")
	a = h.newKeyOf(h.keep(one))
	return a, h.namedKey(h.keep(other), a.name)
}

// playPairBook compares two clients of one store with one book.
func playPairBook(h *history) {
	a, b := h.pair()
	book, left := h.newBook(), h.limit.Capacity()
	for range 30 {
		p := a
		if h.chance(2) {
			p = b
		}
		h.note("the client is %s", map[bool]string{true: "the first", false: "the second"}[p == a])
		d := p.booked(book, p.cost(left))
		left = d.Remaining
		h.pause(d)
	}
}

// playPairSettle reserves through one client. The reservation and its settlement must count for the other.
func playPairSettle(h *history) {
	a, b := h.pair()
	if a.has.reserver == nil {
		return
	}
	twin := h.newKey()
	cost := h.cost(h.limit.Capacity())
	actual := 1 + h.rng.IntN(cost)
	r := a.reserve(cost, 0)
	seen := b.left()
	h.must(seen.Remaining == h.limit.Capacity()-cost, storeIsShared, "one client has reserved %d of %d, and the other sees %d remain",
		cost, h.limit.Capacity(), seen.Remaining)
	twin.spend(actual)
	a.settle(r, actual)
	h.alike(storeIsShared, b, twin, "another client has reserved more, and settled at what the other key has spent")
}

// playPairReset resets a key through one client. It must be fresh for both.
func playPairReset(h *history) {
	a, b := h.pair()
	if a.has.reset == nil {
		return
	}
	a.spend(h.limit.Capacity())
	b.reset()
	h.alike(storeIsShared, a, h.newKey(), "another client has reset the key")
}

// playPairCrowd spends through both clients at once, in several goroutines.
func playPairCrowd(h *history) {
	for range 10 {
		a, b := h.pair()
		h.spendAtOnce(a, b)
	}
}
