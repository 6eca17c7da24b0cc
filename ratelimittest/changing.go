package ratelimittest

import (
	"errors"
	"time"

	"github.com/weir-go/ratelimit"
)

// playSetLimit raises and lowers a limit that is in use.
func playSetLimit(h *history) {
	p := h.party()
	capacity := h.limit.Capacity()
	spent := h.cost(capacity)
	p.spend(spent)
	for range 4 {
		p.change(h.resized(1 + h.rng.IntN(times(2, capacity))))
		want := max(0, p.limit.Capacity()-spent)
		got := p.left().Remaining
		p.must(got == want, spentStays, "%d were spent, the capacity is %d now, and %d remain", spent, p.limit.Capacity(), got)
	}
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

// change sets another limit, or ends the history if the engine would not know it.
func (p *party) change(l ratelimit.Limit) {
	if !p.cfg.accepts(l) {
		panic(enough{})
	}
	err := p.has.setLimit(p.ctx(), l)
	p.note("SetLimit(%v): %v", l, err)
	p.reached(err)
	p.must(err == nil, spentStays, "SetLimit(%v) fails: %v", l, err)
	p.limit = l
	d, err := p.lim.Take(p.ctx(), p.key, 0)
	p.must(err == nil && d.Limit == l, spentStays, "%v was set, and the key answers for %v (%v)", l, d.Limit, err)
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
		err := a.has.setLimit(h.ctx(), l)
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
