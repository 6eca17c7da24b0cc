package ratelimittest

import (
	"errors"
	"math"
	"time"

	"github.com/weir-go/ratelimit"
)

// playLimits spends a fresh key's capacity under a valid limit. It also passes invalid limits to New.
func playLimits(h *history) {
	p := h.newKey()
	d := p.spend(h.limit.Capacity())
	h.must(d.Remaining == 0 && d.ResetAfter > 0, exact, "a fresh key has spent its capacity, and answers %s", described(d, nil))
	if len(h.cfg.Limits) > 0 || !h.chance(4) {
		return // New knows only a fixed set, or another history has tried these
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
		func(l *ratelimit.Limit) { l.Rate = ratelimit.Per(1, math.MaxInt64) }, // Per is 292 years
		func(l *ratelimit.Limit) { l.Rate = ratelimit.PerDay(1); l.Burst = 36_526 },
		func(l *ratelimit.Limit) { l.Algorithm = 0 },
		func(l *ratelimit.Limit) { l.Algorithm = 99 },
		func(l *ratelimit.Limit) { l.Burst = -1 },
		func(l *ratelimit.Limit) { l.Burst = math.MaxInt; l.Rate = ratelimit.PerSecond(1) },
		func(l *ratelimit.Limit) { l.Name = "7 days" },
		func(l *ratelimit.Limit) { l.Name = "über" },
		func(l *ratelimit.Limit) { *l = ratelimit.Calendar(5, ratelimit.Period{}) },
		func(l *ratelimit.Limit) { *l = ratelimit.Calendar(5, ratelimit.Day("")) },
		func(l *ratelimit.Limit) { *l = ratelimit.Calendar(5, ratelimit.Day("Local")) },
		func(l *ratelimit.Limit) { *l = ratelimit.Calendar(5, ratelimit.Day("Europe/Atlantis")) },
		func(l *ratelimit.Limit) { *l = ratelimit.Calendar(5, ratelimit.Week("UTC", 7)) },
		func(l *ratelimit.Limit) { *l = ratelimit.Calendar(5, ratelimit.Month("UTC", 0)) },
		func(l *ratelimit.Limit) { *l = ratelimit.Calendar(5, ratelimit.Month("UTC", 32)) },
		func(l *ratelimit.Limit) {
			*l = ratelimit.FixedWindow(ratelimit.PerDay(5))
			l.Period = ratelimit.Day("UTC")
		},
	} {
		l := h.limit
		if spoil(&l); l.Validate() != nil { // some are valid if an int has 32 bits
			all = append(all, l)
		}
	}
	return all
}

// playUnlimited makes decisions under limits that count nothing.
func playUnlimited(h *history) {
	if l := ratelimit.Unlimited(); h.cfg.accepts(l) {
		h.limit = l
		h.use(h.newLimiter(l))
		h.unlimited(h.newKey())
	}
	if l := ratelimit.Blocked(); h.cfg.accepts(l) {
		h.limit = l
		h.use(h.newLimiter(l))
		h.blocked(h.newKey())
	}
}

func (h *history) unlimited(p *testedKey) {
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

func (h *history) blocked(p *testedKey) {
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

// playNames checks that every kind of result contains the limit's name, also after a change of the name only.
func playNames(h *history) {
	l := h.limit.Named("per-user_2")
	if !h.cfg.accepts(l) {
		return
	}
	h.limit = l
	h.use(h.newLimiter(l))
	p := h.newKey()
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

// answersFor makes every call that returns a Decision. Each call checks the limit in the decision.
func (h *history) answersFor(p *testedKey) {
	for _, cost := range []int{0, 1, h.cost(1), h.limit.Capacity()} {
		p.take(cost)
		if p.has.peek != nil {
			p.peek(cost)
		}
		if p.has.reserver != nil {
			p.reserve(cost, h.upto(h.per()))
		}
	}
}
