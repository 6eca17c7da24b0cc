package meter

// maxPrice is more than can lie between least and most: a horizon that is booked ahead,
// and another that may be owed then.
func (t *tokenBucket) maxPrice() int64 { return 2*t.horizon + 1 }

// flow returns what a booking does to what is owed: see spend, replay and owe.
func (t *tokenBucket) flow(begin span, sp Spending) flow {
	return flow{least: begin, price: t.price(sp.Cost), most: span{ticks: Add(sp.At, t.horizon)}}
}

// then returns what f does, and g after it. Written out, that is
//
//	min(max(min(max(owed, f.least) + f.price, f.most), g.least) + g.price, g.most)
//
// If f.most < g.least, the inner part is below g.least whatever is owed. Else max and min
// change places, and the sums come out. No instant here is further from another than the
// horizon is booked ahead and the horizon is owed then, so differences do not overflow.
func (t *tokenBucket) then(f, g flow) flow {
	switch {
	case f == flow{}:
		return g
	case g == flow{}:
		return f
	case f.most.less(g.least):
		return flow{g.least, g.price, t.sumTo(g.least, g.price, g.most)}
	}
	both := flow{f.least, span{ticks: t.maxPrice()}, t.sumTo(f.most, g.price, g.most)}
	if f.price.ticks <= t.maxPrice()-1-g.price.ticks {
		both.price = t.plus(f.price, g.price)
	}
	if f.price.less(t.minus(g.least, f.least)) {
		both.least = t.minus(g.least, f.price)
	}
	return both
}

// sumTo returns at + price, but at most most; the sum itself need not be a number that
// can be held.
func (t *tokenBucket) sumTo(at, price, most span) span {
	if t.minus(most, at).less(price) {
		return most
	}
	return t.plus(at, price)
}

// pour returns the state after a run of bookings, given what is owed before it.
func (t *tokenBucket) pour(s State, f flow) State {
	if f == (flow{}) {
		return s
	}
	owed := span{s.At, s.N}
	if owed.less(f.least) {
		owed = f.least
	}
	owed = t.sumTo(owed, f.price, f.most)
	s.At, s.N = owed.ticks, owed.frac
	return s
}
