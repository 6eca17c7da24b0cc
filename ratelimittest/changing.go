package ratelimittest

import (
	"errors"
	"math"
	"time"

	"github.com/weir-go/ratelimit"
)

// playSetLimit raises and lowers a limit that is in use, at the rate, or over the windows, that it
// has. What was spent stays spent and keeps its age, also while the clock is behind.
func playSetLimit(h *history) {
	p := h.party()
	capacity := h.limit.Capacity()
	p.spend(h.cost(capacity))
	h.pause(p.left())
	if setBack(h) && h.chance(3) {
		h.back(min(h.limit.Rate.Per, year))
	}
	was := p.left()
	spent := capacity - was.Remaining
	for range 4 {
		p.change(h.resized(1 + h.rng.IntN(times(2, capacity))))
		if h.beyond(spent) {
			return
		}
		want := max(0, p.limit.Capacity()-spent)
		got := p.left()
		p.must(got.Remaining == want, spentStays, "%d were spent, the capacity is %d now, and %d remain", spent, p.limit.Capacity(), got.Remaining)
		if spent > p.limit.Capacity() {
			return // in windows, what is above goes into those that follow
		}
		p.must(got.ResetAfter == was.ResetAfter, spentStays, "the capacity is %d now, and ResetAfter is %v instead of %v", p.limit.Capacity(), got.ResetAfter, was.ResetAfter)
	}
}

// playSetBooked changes the limit of a key that has booked ahead: what was booked keeps its instant,
// and nobody gets in before it.
func playSetBooked(h *history) {
	if h.limit.Algorithm == ratelimit.AlgorithmLeakyBucket {
		return
	}
	p := h.party()
	d := p.spend(h.limit.Capacity())
	cost := h.cost(1)
	r := p.reserve(cost, min(2*d.ResetAfter, 10*year))
	if !r.Allowed || r.Delay == 0 {
		return
	}
	p.change(h.similar())
	if cost > p.limit.Capacity() || h.beyond(times(2, h.limit.Capacity())) {
		return
	}
	p.queued(r.Delay)
}

// playSetOften changes a limit several times at one instant, tightens it and raises it, also across
// algorithms, and has calls allowed and denied in between. What was spent stays spent, and no
// more than that.
func playSetOften(h *history) {
	p := h.party()
	first, spent := h.limit, h.cost(min(h.limit.Capacity(), 1<<40))
	p.spend(spent)
	for range 5 {
		l := h.other()
		if h.chance(2) {
			l = newLimit(l.Algorithm, ratelimit.Per(1+h.rng.IntN(times(2, spent)), first.Rate.Per), 1+h.rng.IntN(times(2, spent)))
		}
		p.set(l)
		if h.beyond(spent) {
			return
		}
		for range h.rng.IntN(3) {
			cost := p.cost(max(0, l.Capacity()-spent))
			if d, _ := p.take(cost); d.Allowed {
				spent += cost
			}
		}
		got, want := p.left().Remaining, max(0, l.Capacity()-spent)
		p.must(got == want, spentStays, "%d were spent at this instant, under several limits; of %d now, %d remain, want %d", spent, l.Capacity(), got, want)
	}
}

// playSetUnpaid asks a key, after a change, only for what charges nothing. What it says comes true.
func playSetUnpaid(h *history) {
	p := h.party()
	p.spend(h.cost(h.limit.Capacity()))
	h.advance(h.upto(p.left().ResetAfter))
	p.set(h.anyOther())
	d := p.unpaid(false)
	for range h.rng.IntN(3) {
		wait := h.upto(d.ResetAfter)
		h.advance(wait)
		next := p.unpaid(true)
		p.must(next.ResetAfter == d.ResetAfter-wait, resetAfterIsTrue, "after SetLimit, ResetAfter was %v, and %v later it is %v", d.ResetAfter, wait, next.ResetAfter)
		d = next
	}
	h.advance(d.ResetAfter)
	fresh := p.unpaid(true)
	p.must(fresh.ResetAfter == 0 && fresh.Remaining == p.limit.Capacity(), resetAfterIsTrue,
		"after SetLimit, ResetAfter was %v, and then the key answers %s", d.ResetAfter, described(fresh, nil))
	p.spend(p.limit.Capacity())
}

// unpaid asks for how a key stands by some call that charges nothing. A Peek is none for a key
// that has made no decision since its limit was changed: it leaves it to the limit before.
func (p *party) unpaid(peek bool) ratelimit.Decision {
	capacity := p.limit.Capacity()
	switch n := p.rng.IntN(4); {
	case n == 0 && peek && p.has.peek != nil:
		d, _ := p.peek(p.cost(1))
		return d
	case n == 1 && p.has.reserver != nil:
		return p.reserve(0, 0).Decision
	case n == 2 && capacity < math.MaxInt:
		if d, _ := p.take(capacity + 1); d.Remaining > 0 || d.ResetAfter > 0 { // else the error says no more
			return d
		}
	}
	return p.left()
}

// playTighten tightens a limit, by which a key is fresh much later than it was by the limit
// before. What a denial says comes true after the key was idle for that long.
func playTighten(h *history) {
	p := h.party()
	p.spend(h.cost(h.limit.Capacity()))
	p.set(h.tighter())
	left := p.left().Remaining
	cost := min(p.limit.Capacity(), left+1+h.rng.IntN(3))
	d, err := p.take(cost)
	p.must(err == nil && !d.Allowed, spentStays, "%d remain after SetLimit, and cost %d answers %s", left, cost, described(d, err))
	if h.chance(2) {
		p.probeRetry(cost, d.RetryAfter)
		return
	}
	h.advance(d.ResetAfter - h.cfg.Resolution)
	early, _ := p.take(p.limit.Capacity())
	p.must(!early.Allowed, resetAfterIsTrue, "after SetLimit, ResetAfter was %v, and the whole capacity is free %v before", d.ResetAfter, h.cfg.Resolution)
}

// tighter is the limit over a time that is up to 100 000 times as long.
func (h *history) tighter() ratelimit.Limit {
	for longer := time.Duration(100_000); longer > 1; longer /= 10 {
		l := h.limit
		if l.Rate.Per < year/longer {
			l.Rate.Per *= longer
		}
		if l.Rate.Per > h.limit.Rate.Per && h.cfg.accepts(l) && h.chance(3) {
			return l
		}
	}
	return h.longer()
}

// anyOther is another limit, of any kind.
func (h *history) anyOther() ratelimit.Limit {
	if h.chance(3) {
		return h.tighter()
	}
	return h.other()
}

// resized is the limit with another capacity.
func (h *history) resized(capacity int) ratelimit.Limit {
	l := h.limit
	if h.isBucket() {
		l.Burst = capacity
	} else {
		l.Rate.Units = capacity
	}
	return l
}

// change sets another limit, and makes sure that the key answers for it.
func (p *party) change(l ratelimit.Limit) {
	p.set(l)
	var d ratelimit.Decision
	err := again(func() (err error) { d, err = p.lim.Take(p.ctx(), p.key, 0); return err })
	p.reached(err)
	p.must(err == nil && d.Limit == l, spentStays, "%v was set, and the key answers for %v (%v)", l, d.Limit, err)
}

// set sets another limit, and asks the key nothing. It ends the history if the engine does not know the limit.
func (p *party) set(l ratelimit.Limit) {
	if !p.cfg.accepts(l) {
		panic(enough{})
	}
	err := again(func() error { return p.has.setLimit(p.ctx(), l) })
	p.note("SetLimit(%v): %v", l, err)
	p.reached(err)
	p.must(err == nil, spentStays, "SetLimit(%v) fails: %v", l, err)
	p.limit = l
}

// playSameLimit sets the limit that there is already, which changes nothing.
func playSameLimit(h *history) {
	a, b := h.party(), h.stranger()
	for range 12 {
		cost := h.cost(a.left().Remaining)
		a.change(h.limit)
		da, _ := a.take(cost)
		db, _ := b.take(cost)
		h.must(da == db, spentStays, "an equal limit was set, and the key answers %s instead of %s", described(da, nil), described(db, nil))
		h.pause(da)
	}
}

// playSetOther sets a limit with another rate, or of another algorithm: what was spent stays spent,
// and is regained as the new limit regains.
func playSetOther(h *history) {
	p := h.party()
	capacity := h.limit.Capacity()
	spent := h.cost(capacity)
	p.spend(spent)
	p.change(h.other())
	book := h.newBook()
	got := p.left().Remaining
	want := max(0, p.limit.Capacity()-spent)
	h.must(got == want, spentStays, "%d were spent, and now the limit is %v: %d remain, want %d", spent, p.limit, got, want)
	if h.beyond(spent) {
		return
	}
	if spent > p.limit.Capacity() {
		p.probe(p.cost(1))
		return
	}
	book.account.spend(h.now, spent)
	for range 5 {
		p.compareChanged(book, p.cost(p.left().Remaining))
		h.pause(p.left())
	}
}

// compareChanged makes a call under a limit that was changed, and compares it with the book.
func (p *party) compareChanged(book *book, cost int) {
	got, err := p.take(cost)
	book.guess = got
	want := book.decide(p.now, cost)
	p.must(err == nil && got == want, spentStays, "what was spent under the limit before counts under this one as if it was spent under it; Take answers %s, want %s",
		described(got, err), described(want, nil))
}

// probe asks for a cost that has to be denied, and probes RetryAfter.
func (p *party) probe(cost int) {
	d, err := p.take(cost)
	p.must(err == nil && !d.Allowed, spentStays, "more is spent than the limit holds, and cost %d answers %s", cost, described(d, err))
	p.probeRetry(cost, d.RetryAfter)
}

// other is a limit with another rate, of the same algorithm or of another one.
func (h *history) other() ratelimit.Limit {
	if h.chance(3) {
		return h.similar()
	}
	l := h.cfg.randomLimit(algorithms[h.rng.IntN(len(algorithms))], h.rng)
	if h.chance(2) && l.Algorithm != h.limit.Algorithm {
		l = newLimit(l.Algorithm, h.limit.Rate, h.limit.Capacity())
	}
	return l
}

// playSetLater sets another limit some time after the spending: what is regained by then is
// regained at the old rate, and the rest stays spent.
func playSetLater(h *history) {
	p, old := h.party(), newAccount(h.limit)
	spent := h.cost(h.limit.Capacity())
	p.spend(spent)
	old.spend(h.now, spent)
	l := h.other()
	if h.isBucket() {
		h.advance(h.upto(p.left().ResetAfter))
	} else {
		h.advance(h.upto(min(h.limit.Rate.Per, l.Rate.Per) - h.cfg.Resolution)) // a spending keeps its age
	}
	rest := old.used(h.now)
	p.change(l)
	want, got := max(0, l.Capacity()-rest), p.left().Remaining
	h.must(got == want, spentStays, "%d were still spent when the limit became %v, and %d remain, want %d", rest, l, got, want)
	p.take(1)
	if want == 0 && !h.beyond(rest) {
		p.probe(p.cost(1))
	}
}

// playSetInvalid sets limits that nobody could enforce. They are refused, and nothing changes.
func playSetInvalid(h *history) {
	a, b := h.party(), h.stranger()
	cost := h.cost(h.limit.Capacity())
	a.spend(cost)
	b.spend(cost)
	for _, l := range append(h.invalidLimits(), ratelimit.Limit{}) {
		err := again(func() error { return a.has.setLimit(h.ctx(), l) })
		h.note("SetLimit(%+v): %v", l, err)
		h.reached(err)
		h.must(errors.Is(err, ratelimit.ErrInvalidLimit), spentStays, "SetLimit(%+v) answers %v", l, err)
	}
	h.alike(spentStays, a, b, "one has been refused limits")
}

// playSetNothing changes a limit to one that counts nothing, and back: what was spent stays.
func playSetNothing(h *history) {
	p := h.party()
	limit, spent := h.limit, h.cost(h.limit.Capacity())
	p.spend(spent)
	if h.cfg.accepts(ratelimit.Blocked()) {
		p.change(ratelimit.Blocked())
		p.errs(ratelimit.ErrExceedsLimit, 1)
	}
	if h.cfg.accepts(ratelimit.Unlimited()) {
		p.change(ratelimit.Unlimited())
		p.spend(limit.Capacity())
	}
	p.change(limit)
	got := p.left().Remaining
	h.must(got == limit.Capacity()-spent, spentStays, "%d were spent of %d, then for an instant the limit counted nothing, and %d remain", spent, limit.Capacity(), got)
}

// playUnlimited has limits that count nothing decide.
func playUnlimited(h *history) {
	if l := ratelimit.Unlimited(); h.cfg.accepts(l) {
		h.limit = l
		h.use(h.newLimiter(l))
		h.unlimited(h.party())
	}
	if l := ratelimit.Blocked(); h.cfg.accepts(l) {
		h.limit = l
		h.use(h.newLimiter(l))
		h.blocked(h.party())
	}
}

func (h *history) unlimited(p *party) {
	for _, cost := range []int{0, 1, 1000, figure(1 << 62), p.limit.Capacity(), p.limit.Capacity()} {
		d := p.spend(cost)
		h.must(d.Remaining == p.limit.Capacity() && d.ResetAfter == 0 && d.Delay == 0, exact, "the limit allows everything, and cost %d answers %s", cost, described(d, nil))
		h.must(p.allow(cost), exact, "the limit allows everything, and Allow denies cost %d", cost)
		if p.has.reserver != nil {
			r := p.reserve(cost, 0)
			h.must(r.Allowed, exact, "the limit allows everything, and Reserve denies cost %d", cost)
			p.settle(r, 5)
		}
	}
	p.errs(ratelimit.ErrNegativeCost, -1)
	if p.has.wait != nil {
		err := p.waiting(h.ctx(), 1)
		h.must(err == nil, waitIsTrue, "the limit allows everything, and Wait fails: %v", err)
	}
}

func (h *history) blocked(p *party) {
	for range 2 {
		p.errs(ratelimit.ErrExceedsLimit, 1)
		p.errs(ratelimit.ErrExceedsLimit, figure(1<<62))
		p.errs(ratelimit.ErrNegativeCost, -1)
		d := p.left()
		h.must(d.Remaining == 0, remainingIsTrue, "the limit allows nothing, and %d remain", d.Remaining)
		h.move(h.up(time.Hour))
	}
	if p.has.wait != nil {
		err := p.waiting(h.ctx(), 1)
		h.must(errors.Is(err, ratelimit.ErrExceedsLimit), waitIsTrue, "the limit allows nothing, and the error of Wait is %v", err)
	}
}

// playNames has every kind of answer name its limit, also after a change of the name alone.
func playNames(h *history) {
	l := h.limit.Named("per-user_2")
	if !h.cfg.accepts(l) {
		return
	}
	h.limit = l
	h.use(h.newLimiter(l))
	p := h.party()
	h.answersFor(p)
	if p.has.setLimit == nil || !h.cfg.accepts(l.Named("B")) {
		return
	}
	was := p.left()
	p.change(l.Named("B"))
	got := p.left()
	was.Limit = got.Limit
	h.must(got == was, spentStays, "the limit has another name, and the key answers %s instead of %s", described(got, nil), described(was, nil))
	h.answersFor(p)
}

// answersFor makes every call that answers with a Decision; each checks the limit in it.
func (h *history) answersFor(p *party) {
	for _, cost := range []int{0, 1, h.cost(1), h.limit.Capacity()} {
		p.take(cost)
		if p.has.peek != nil {
			p.peek(cost)
		}
		if p.has.reserver != nil {
			p.reserve(cost, h.upto(h.limit.Rate.Per))
		}
	}
}
