package ratelimittest

import (
	"errors"
	"math"
	"math/big"
	"time"

	"github.com/weir-go/ratelimit"
)

// playBook keeps the book beside the limiter, and compares every figure.
func playBook(h *history) {
	p, book := h.party(), h.newBook()
	left := h.limit.Capacity()
	for range 30 {
		d := p.booked(book, p.cost(left))
		left = d.Remaining
		h.pause(d)
	}
}

// booked makes one call, and returns the Decision that the book has for it.
func (p *party) booked(book *book, cost int) ratelimit.Decision {
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

func (p *party) compareAllowed(got, want bool) {
	p.must(!got || want, boundHolds, "this is allowed, and goes beyond the bound")
	p.must(got || !want, exact, "this is denied, and is within the bound")
}

// compare fails with the promise that the first differing figure breaks.
func (p *party) compare(got, want ratelimit.Decision) {
	p.compareAllowed(got.Allowed, want.Allowed)
	p.must(got.Remaining == want.Remaining, remainingIsTrue, "Remaining is %d, and by the book %d", got.Remaining, want.Remaining)
	p.must(got.RetryAfter == want.RetryAfter, retryAfterIsTrue, "RetryAfter is %v, and by the book %v", got.RetryAfter, want.RetryAfter)
	p.must(got.ResetAfter == want.ResetAfter, resetAfterIsTrue, "ResetAfter is %v, and by the book %v", got.ResetAfter, want.ResetAfter)
	p.must(got.Delay == want.Delay, boundHolds, "Delay is %v, and by the book %v", got.Delay, want.Delay)
}

// playGreedy asks for all there is, at random instants: of a minute, and of a year. Nothing
// is lost to rounding as long as the bucket never fills up.
func playGreedy(h *history) {
	if !h.isBucket() {
		return
	}
	p := h.party()
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

func (h *history) isBucket() bool {
	return h.limit.Algorithm == ratelimit.AlgorithmTokenBucket || h.limit.Algorithm == ratelimit.AlgorithmLeakyBucket
}

// fillTime is how long an emptied bucket takes to gather the capacity less one, at
// most a hundredth of what a history may last.
func (h *history) fillTime(capacity int) time.Duration {
	t := new(big.Int).Mul(big.NewInt(int64(capacity-1)), big.NewInt(int64(h.limit.Rate.Per)))
	t.Div(t, big.NewInt(int64(h.limit.Rate.Units)))
	most := h.patience() / 100
	if !t.IsInt64() || t.Int64() > int64(most) {
		return most
	}
	return time.Duration(t.Int64())
}

// most is burst + floor(rate·t).
func (h *history) most(t time.Duration) *big.Int {
	n := new(big.Int).Mul(big.NewInt(int64(t)), big.NewInt(int64(h.limit.Rate.Units)))
	n.Div(n, big.NewInt(int64(h.limit.Rate.Per)))
	return n.Add(n, big.NewInt(int64(h.limit.Capacity())))
}

// playLimits has New look at limits: one whose fresh key has to hold the capacity, and
// some that nobody could enforce.
func playLimits(h *history) {
	p := h.party()
	d := p.spend(h.limit.Capacity())
	h.must(d.Remaining == 0 && d.ResetAfter > 0, exact, "a fresh key has spent its capacity, and answers %s", described(d, nil))
	if len(h.cfg.Limits) > 0 || !h.chance(4) {
		return // New knows a fixed set, or others have tried these
	}
	for _, l := range h.invalidLimits() {
		made, err := h.cfg.New(l)
		h.note("New(%+v): %v", l, err)
		h.must(errors.Is(err, ratelimit.ErrInvalidLimit), exact, "New(%+v) answers %v, %v", l, made, err)
	}
}

func (h *history) invalidLimits() []ratelimit.Limit {
	var all []ratelimit.Limit
	for _, spoil := range []func(l *ratelimit.Limit){
		func(l *ratelimit.Limit) { l.Rate.Units = 0 },
		func(l *ratelimit.Limit) { l.Rate.Units = -1 },
		func(l *ratelimit.Limit) { l.Rate.Units = figure(1<<53 + 1) },
		func(l *ratelimit.Limit) { l.Rate.Units = math.MaxInt },
		func(l *ratelimit.Limit) { l.Rate.Per = 0 },
		func(l *ratelimit.Limit) { l.Rate.Per = -h.cfg.Resolution },
		func(l *ratelimit.Limit) { l.Rate = ratelimit.Per(1, math.MaxInt64) }, // 292 years
		func(l *ratelimit.Limit) { l.Rate = ratelimit.PerDay(1); l.Burst = 36_526 },
		func(l *ratelimit.Limit) { l.Algorithm = 0 },
		func(l *ratelimit.Limit) { l.Algorithm = 99 },
		func(l *ratelimit.Limit) { l.Burst = -1 },
		func(l *ratelimit.Limit) { l.Burst = math.MaxInt; l.Rate = ratelimit.PerSecond(1) },
		func(l *ratelimit.Limit) { l.Name = "7 days" },
		func(l *ratelimit.Limit) { l.Name = "über" },
	} {
		l := h.limit
		if spoil(&l); l.Validate() != nil { // some are valid where an int has 32 bits
			all = append(all, l)
		}
	}
	return all
}

// ---- the bound, with bookings ----

// spending is what one call has charged: at the instant that it was booked for.
type spending struct {
	at     time.Duration
	amount int
}

// ledger is everything that a key was charged, for a judge who believes no figure of
// the limiter but Allowed and Delay.
type ledger struct {
	*history
	all   []spending
	grid  []time.Duration // where windows began
	until time.Duration   // the latest instant booked
}

// playBookings takes, reserves and settles, and holds every admission against the bound.
func playBookings(h *history) {
	p, l := h.party(), &ledger{history: h}
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
		r := p.reserve(cost, p.upto(2*p.limit.Rate.Per)*time.Duration(p.rng.IntN(2)))
		if r.Allowed {
			l.admit(r.Delay, cost)
			opened = append(opened, open{r, len(l.all) - 1})
		}
		p.pause(r.Decision)
	}
}

// admit enters an admission and checks it.
func (l *ledger) admit(delay time.Duration, cost int) {
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
	default:
		l.withinRate()
	}
}

// between is what was spent in [from, to).
func (l *ledger) between(from, to time.Duration) *big.Int {
	sum := new(big.Int)
	for _, s := range l.all {
		if s.at >= from && s.at < to {
			sum.Add(sum, big.NewInt(int64(s.amount)))
		}
	}
	return sum
}

// withinRate checks every interval that ends with the newest spending.
func (l *ledger) withinRate() {
	for _, s := range l.all {
		got, most := l.between(s.at, l.until+1), l.most(l.until-s.at)
		l.must(got.Cmp(most) <= 0, boundHolds, "%v were spent within %v, and burst + rate·t is %v", got, l.until-s.at, most)
	}
}

func (l *ledger) withinAnyWindow() {
	for _, s := range l.all {
		got := l.between(s.at, s.at+l.limit.Rate.Per)
		l.must(got.Cmp(big.NewInt(int64(l.limit.Rate.Units))) <= 0, boundHolds,
			"%v were spent within %v from %v on", got, l.limit.Rate.Per, s.at)
	}
}

// withinOwnWindow follows the windows: each begins with the first spending after the last
// one's end or, in a sliding counter that is not fresh by then, at that end.
func (l *ledger) withinOwnWindow(at time.Duration) {
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

// overlap is ceil(prev·overlap): what still counts of the window before.
func (l *ledger) overlap(start, at time.Duration) *big.Int {
	per := big.NewInt(int64(l.limit.Rate.Per))
	prev := l.between(start-l.limit.Rate.Per, start)
	prev.Mul(prev, big.NewInt(int64(start+l.limit.Rate.Per-at)))
	prev.Add(prev, per).Sub(prev, big.NewInt(1))
	return prev.Div(prev, per)
}
