package ratelimittest

import (
	"math/big"
	"time"

	"github.com/weir-go/ratelimit"
)

// playBook compares every figure of the limiter with the book.
func playBook(h *history) {
	p, book := h.newKey(), h.newBook()
	left := h.limit.Capacity()
	for range 30 {
		d := p.booked(book, p.cost(left))
		left = d.Remaining
		h.pause(d)
	}
}

// booked makes one call, and returns the book's decision.
func (p *testedKey) booked(book *book, cost int) ratelimit.Decision {
	now := p.now
	if p.chance(4) && p.has.peek != nil {
		got, _ := p.peek(cost)
		book.guess = got
		p.compare(got, book.peek(now, cost))
	}
	if p.chance(3) {
		want, got := book.decide(now, cost), p.allow(cost)
		p.compareAllowed(got, want.Allowed)
		return want
	}
	got, err := p.take(cost)
	p.must(err == nil, chargesNothing, "cost %d is within the capacity: %v", cost, err)
	book.guess = got
	want := book.decide(now, cost)
	p.compare(got, want)
	return want
}

func (p *testedKey) compareAllowed(got, want bool) {
	p.must(!got || want, boundHolds, "this is allowed, and goes beyond the bound")
	p.must(got || !want, exact, "this is denied, and is within the bound")
}

// compare ends the history at the first differing figure, with that figure's promise.
func (p *testedKey) compare(got, want ratelimit.Decision) {
	p.compareAllowed(got.Allowed, want.Allowed)
	p.must(got.Remaining == want.Remaining, remainingIsTrue, "Remaining is %d, and by the book %d", got.Remaining, want.Remaining)
	p.must(got.RetryAfter == want.RetryAfter, retryAfterIsTrue, "RetryAfter is %v, and by the book %v", got.RetryAfter, want.RetryAfter)
	p.must(got.ResetAfter == want.ResetAfter, resetAfterIsTrue, "ResetAfter is %v, and by the book %v", got.ResetAfter, want.ResetAfter)
	p.must(got.NextAfter == want.NextAfter || got.NextAfter == 0, nextAfterIsTrue, "NextAfter is %v, and by the book %v", got.NextAfter, want.NextAfter)
	p.must(got.Delay == want.Delay, boundHolds, "Delay is %v, and by the book %v", got.Delay, want.Delay)
}

// playGreedy takes the remaining budget at random instants, and never
// lets the bucket become full. Then rounding must lose nothing.
func playGreedy(h *history) {
	if !h.isBucket() {
		return
	}
	p := h.newKey()
	capacity := h.limit.Capacity()
	gap := h.fillTime(capacity)
	total, begin := int64(p.spend(capacity).Remaining)+int64(capacity), h.now
	for range 100 {
		h.advance(h.upto(gap))
		n := p.left().Remaining
		p.spend(n)
		total += int64(n)
		want := h.most(h.now - begin)
		h.must(big.NewInt(total).Cmp(want) == 0, exact,
			"a greedy caller has got %d in %v, and burst + rate·t is %v", total, h.now-begin, want)
	}
}

// fillTime returns the time in which an emptied bucket regains its capacity
// less one unit, but at most a hundredth of a history's usual length.
func (h *history) fillTime(capacity int) time.Duration {
	t := new(big.Int).Mul(big.NewInt(int64(capacity-1)), big.NewInt(int64(h.limit.Rate.Per)))
	t.Div(t, big.NewInt(int64(h.limit.Rate.Units)))
	most := h.patience() / 100
	if !t.IsInt64() || t.Int64() > int64(most) {
		return most
	}
	return time.Duration(t.Int64())
}

// most returns burst + floor(rate·t).
func (h *history) most(t time.Duration) *big.Int {
	n := new(big.Int).Mul(big.NewInt(int64(t)), big.NewInt(int64(h.limit.Rate.Units)))
	n.Div(n, big.NewInt(int64(h.limit.Rate.Per)))
	return n.Add(n, big.NewInt(int64(h.limit.Capacity())))
}

// spending is one call's charge, at its booked instant.
type spending struct {
	at     time.Duration
	amount int
}

// judge records a key's charges, and checks them against the limit.
// It uses only Allowed and Delay of the limiter's decisions.
type judge struct {
	*history
	all   []spending
	grid  []time.Duration // the windows' beginnings
	until time.Duration   // the latest booked instant
}

// playBookings takes, reserves and settles, and checks every admission against the bound.
func playBookings(h *history) {
	p, l := h.newKey(), &judge{history: h}
	type open struct {
		r *ratelimit.Reservation
		n int
	}
	var opened []open
	for range 30 {
		cost := p.cost(3)
		if len(opened) > 0 && p.chance(3) {
			o := opened[len(opened)-1]
			opened = opened[:len(opened)-1]
			l.all[o.n].amount = 1 + p.rng.IntN(l.all[o.n].amount)
			p.settle(o.r, l.all[o.n].amount)
		}
		r := p.reserve(cost, p.upto(2*p.per())*time.Duration(p.rng.IntN(2)))
		if r.Allowed {
			l.admit(r.Delay, cost)
			opened = append(opened, open{r, len(l.all) - 1})
		}
		p.pause(r.Decision)
	}
}

// admit records an admission and checks it.
func (l *judge) admit(delay time.Duration, cost int) {
	at := l.now
	if l.limit.Algorithm != ratelimit.AlgorithmLeakyBucket {
		at += delay
	}
	l.must(at >= l.until, reserveIsTrue, "this begins at %v, and what was booked before begins at %v", at, l.until)
	l.until = at
	l.all = append(l.all, spending{at, cost})
	switch l.limit.Algorithm {
	case ratelimit.AlgorithmSlidingLog:
		l.withinAnyWindow()
	case ratelimit.AlgorithmFixedWindow, ratelimit.AlgorithmSlidingCounter:
		l.withinOwnWindow(at)
	case ratelimit.AlgorithmCalendar:
		w := l.windowAt(at)
		got := l.between(at-l.wallAt(at).Sub(w.from), at+w.to.Sub(l.wallAt(at)))
		l.must(got.Cmp(big.NewInt(int64(l.limit.Rate.Units))) <= 0, boundHolds, "%v were spent from %v to %v", got, w.from, w.to)
	default:
		l.withinRate()
	}
}

// between returns the spending in [from, to).
func (l *judge) between(from, to time.Duration) *big.Int {
	sum := new(big.Int)
	for _, s := range l.all {
		if s.at >= from && s.at < to {
			sum.Add(sum, big.NewInt(int64(s.amount)))
		}
	}
	return sum
}

// withinRate checks every interval up to the latest spending.
func (l *judge) withinRate() {
	for _, s := range l.all {
		got, most := l.between(s.at, l.until+1), l.most(l.until-s.at)
		l.must(got.Cmp(most) <= 0, boundHolds, "%v were spent within %v, and burst + rate·t is %v", got, l.until-s.at, most)
	}
}

func (l *judge) withinAnyWindow() {
	for _, s := range l.all {
		got := l.between(s.at, s.at+l.limit.Rate.Per)
		l.must(got.Cmp(big.NewInt(int64(l.limit.Rate.Units))) <= 0, boundHolds,
			"%v were spent within %v from %v on", got, l.limit.Rate.Per, s.at)
	}
}

// withinOwnWindow checks the window of an instant. A window begins with the first spending after the
// last window's end. In a sliding counter, it begins at that end unless the key is fresh by then.
func (l *judge) withinOwnWindow(at time.Duration) {
	per := l.limit.Rate.Per
	switch n := len(l.grid); {
	case n == 0 || at-l.grid[n-1] >= 2*per:
		l.grid = append(l.grid, at)
	case at-l.grid[n-1] >= per && l.limit.Algorithm == ratelimit.AlgorithmSlidingCounter:
		l.grid = append(l.grid, l.grid[n-1]+per)
	case at-l.grid[n-1] >= per:
		l.grid = append(l.grid, at)
	}
	start := l.grid[len(l.grid)-1]
	got := l.between(start, start+per)
	if l.limit.Algorithm == ratelimit.AlgorithmSlidingCounter {
		got.Add(got, l.overlap(start, at))
	}
	l.must(got.Cmp(big.NewInt(int64(l.limit.Rate.Units))) <= 0, boundHolds, "%v count in the window that began at %v", got, start)
}

// overlap returns ceil(prev·overlap): the units of the window before that still count.
func (l *judge) overlap(start, at time.Duration) *big.Int {
	per := big.NewInt(int64(l.limit.Rate.Per))
	prev := l.between(start-l.limit.Rate.Per, start)
	prev.Mul(prev, big.NewInt(int64(start+l.limit.Rate.Per-at)))
	prev.Add(prev, per).Sub(prev, big.NewInt(1))
	return prev.Div(prev, per)
}

// longHistory is the number of decisions on one key.
const longHistory = 1500

// playLong makes many decisions on one key, and compares them with the book. The engine must not forget, resize or round
// anything after the first thousand. In every second history most decisions are allowed, and in the others about half.
func playLong(h *history) {
	l := h.newLimit(h.limit.Algorithm, ratelimit.PerMinute(5*longHistory), 5*longHistory)
	if h.chance(2) {
		l = h.newLimit(h.limit.Algorithm, ratelimit.PerSecond(7), 5)
	}
	if h.cfg.accepts(l) {
		h.limit = l
		h.use(h.newLimiter(l))
	}
	p, book := h.newKey(), h.newBook()
	gap := max(h.cfg.Resolution, h.up(2*h.per()/time.Duration(h.limit.Rate.Units)))
	for i := range longHistory {
		p.longStep(book, i)
		if h.limit.Rate.Units < longHistory || i%50 == 0 {
			h.pauseShort(gap)
		}
	}
}

// longStep makes one decision. It compares all figures only for some decisions, because the book is slow.
func (p *testedKey) longStep(book *book, i int) {
	if i%37 == 0 {
		p.booked(book, 1)
		return
	}
	want := book.model.used(p.now) < p.limit.Capacity()
	if want {
		book.model.spend(p.now, 1)
	}
	p.compareAllowed(p.allow(1), want)
}
