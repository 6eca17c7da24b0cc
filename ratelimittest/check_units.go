package ratelimittest

import (
	"context"
	"errors"
	"math/rand/v2"
	"slices"
	"time"

	"github.com/weir-go/ratelimit"
	"github.com/weir-go/ratelimit/internal/held"
)

// unitChecks are the checks for limits of units in use: see [ratelimit.Concurrent]. Their book is a counter.
var unitChecks = []check{
	{name: "units in use are a counter's", play: playUnits, needs: canReserve},
	{name: "calls without an end hold nothing", play: playNoEnd},
	{name: "a crowd of reservations is within the units", play: playUnitsCrowd, needs: canReserve, few: true},
}

// unitsLimit returns a limit of units in use, or false if the engine supports none.
func (c *Config) unitsLimit(n int, rng *rand.Rand) (ratelimit.Limit, bool) {
	if slices.Contains(c.Skip, concurrents) {
		return ratelimit.Limit{}, false
	}
	if len(c.Limits) > 0 {
		return c.fixedLimit(ratelimit.AlgorithmConcurrent, n)
	}
	for range 20 {
		units := []int{1, 2, 3, 8, 100, 2000, 1 + rng.IntN(50)}[rng.IntN(7)]
		hold := []time.Duration{time.Second, time.Minute, time.Hour, 11 * time.Second, time.Duration(1+rng.IntN(1000)) * time.Second}[rng.IntN(5)]
		if l := ratelimit.Concurrent(units, hold-hold%c.Resolution); c.accepts(l) {
			return l, true
		}
	}
	return ratelimit.Limit{}, false
}

// withoutUnits returns why limits of units in use are left out, or
// "" if they are not. An engine without them refuses them in New.
func (c *Config) withoutUnits() string {
	if slices.Contains(c.Skip, concurrents) {
		return "Config.Skip names " + concurrents
	}
	l, ok := c.unitsLimit(1, rand.New(rand.NewPCG(c.Seed, 0)))
	if !ok {
		return "Config.Accepts takes no limit of units in use"
	}
	made, err := c.New(l)
	switch {
	case errors.Is(err, ratelimit.ErrInvalidLimit) && len(c.Limits) == 0:
		return "Config.New(" + l.String() + "): " + err.Error()
	case err != nil || made == nil:
		return "" // the checks report the error
	}
	if c.Close != nil {
		defer c.Close(made)
	}
	reserver := c.methodsOf(made).reserver
	if reserver == nil {
		return "the limiters have no Reserve, which holds units"
	}
	for range maxUnavailable {
		r, err := reserver.Reserve(context.Background(), keyPrefix(c.Seed, -1, 0)+"units", 1, 0)
		if errors.Is(err, ratelimit.ErrUnavailable) {
			continue
		}
		if err == nil && r != nil && r.Allowed && held.Hold(r) == 0 {
			return "Reservation.Extend has nothing to extend: a limiter that counts units in use gives ratelimit.NewReservation a function for it"
		}
		_ = r.Cancel() // otherwise it lapses
		break
	}
	return ""
}

// inUse is one reservation's units in the counter.
type inUse struct {
	r    *ratelimit.Reservation
	cost int
	ends time.Duration
}

// counter is a key's book: its reservations with units in use.
type counter []*inUse

func (c *counter) used(now time.Duration) (sum int) {
	*c = slices.DeleteFunc(*c, func(u *inUse) bool { return u.ends <= now })
	for _, u := range *c {
		sum += u.cost
	}
	return sum
}

// playUnits reserves, extends and settles units, and lets them lapse.
func playUnits(h *history) {
	p, other := h.newKey(), h.newKey()
	hold, capacity := h.limit.Rate.Per, h.limit.Capacity()
	var book, ended counter
	for range 60 {
		used := book.used(h.now)
		switch op := h.rng.IntN(10); {
		case op < 4:
			cost := 1 + h.rng.IntN(capacity)
			if h.chance(2) {
				cost = 1
			}
			r := p.reserve(cost, h.upto(hold))
			fits := used+cost <= capacity
			p.must(r.Allowed == fits, boundHolds, "%d of %d units are in use, and a Reserve of %d answers %s", used, capacity, cost, described(r.Decision, nil))
			p.must(r.Delay == 0, reserveIsTrue, "units in use are not booked ahead, and Delay is %v", r.Delay)
			if fits {
				used += cost
				book = append(book, &inUse{r, cost, h.now + hold})
			} else {
				p.must(r.RetryAfter <= max(hold, 10*time.Millisecond), retryAfterIsTrue, "RetryAfter is %v, and the hold %v", r.RetryAfter, hold)
				err := r.Extend(h.ctx())
				p.must(errors.Is(err, ratelimit.ErrLost), reserveIsTrue, "Extend of a denied reservation answers %v, want ErrLost", err)
			}
			p.must(r.Remaining == capacity-used, remainingIsTrue, "%d of %d units are in use, and Remaining is %d", used, capacity, r.Remaining)
		case op < 7 && len(book) > 0:
			i := h.rng.IntN(len(book))
			u := book[i]
			p.settle(u.r, h.rng.IntN(2*capacity)) // all units come back, at any cost
			book = append(book[:i], book[i+1:]...)
			ended = append(ended, u)
		case op == 7 && len(book) > 0:
			u := book[h.rng.IntN(len(book))]
			err := u.r.Extend(h.ctx())
			p.note("Extend(%s): %v", p.name, err)
			p.reached(err)
			p.must(err == nil, reserveIsTrue, "Extend of units that are held fails: %v", err)
			u.ends = h.now + hold
		case op == 8 && len(ended) > 0:
			u := ended[h.rng.IntN(len(ended))]
			err := u.r.Extend(h.ctx())
			p.note("Extend(%s): %v", p.name, err)
			p.reached(err)
			p.must(errors.Is(err, ratelimit.ErrLost), reserveIsTrue, "Extend of units that are given back, or have lapsed, answers %v, want ErrLost", err)
			p.settle(u.r, 0) // a second settlement has no effect
		default:
			was := slices.Clone(book)
			p.advance(h.upto(hold / 2))
			book.used(h.now)
			for _, u := range was {
				if !slices.Contains(book, u) {
					ended = append(ended, u)
				}
			}
		}
		if p.has.peek != nil {
			used = book.used(h.now)
			d, err := p.peek(1)
			p.must(err == nil && d.Allowed == (used < capacity) && d.Remaining == capacity-used, remainingIsTrue,
				"%d of %d units are in use, and Peek answers %s", used, capacity, described(d, err))
		}
	}
	for _, u := range book {
		p.settle(u.r, 0)
	}
	for _, k := range []*testedKey{p, other} {
		r := k.reserve(capacity, 0)
		p.must(r.Allowed, settleIsTrue, "no unit is in use, and a Reserve of all %d answers %s", capacity, described(r.Decision, nil))
		k.settle(r, capacity)
	}
}

// playNoEnd calls Take and Allow, which cannot give units back. They must fail.
func playNoEnd(h *history) {
	p := h.newKey()
	for range 3 {
		cost := 1 + h.rng.IntN(h.limit.Capacity())
		d, err := p.take(cost)
		p.must(err != nil && !d.Allowed, chargesNothing, "Take has no end at which %d units are given back, and answers %s", cost, described(d, err))
		p.must(!p.allow(cost), chargesNothing, "Allow has no end at which %d units are given back, and allows them", cost)
	}
	if p.has.reserver != nil {
		r := p.reserve(h.limit.Capacity(), 0)
		p.must(r.Allowed, chargesNothing, "calls without an end have taken units: a Reserve of all answers %s", described(r.Decision, nil))
		p.settle(r, 0)
	}
}

// playUnitsCrowd reserves units in several goroutines at once, and then gives them back.
func playUnitsCrowd(h *history) {
	p := h.newKey()
	capacity := h.limit.Capacity()
	cost := max(1, capacity/5)
	got := make(chan *ratelimit.Reservation, 4*crowd)
	h.atOnce(func(int) {
		for range 4 {
			if r, err := p.has.reserver.Reserve(context.Background(), p.key, cost, 0); err == nil {
				got <- r
			}
		}
	})
	close(got)
	sum := 0
	for r := range got {
		if r.Allowed {
			sum += cost
			p.settle(r, 0)
		}
	}
	p.must(sum <= capacity, boundHolds, "%d callers at once held %d units, of %d", 4*crowd, sum, capacity)
	if p.cfg.Retries == 0 && 4*crowd*cost >= capacity {
		p.must(sum+cost > capacity, exact, "%d callers at once for %d units each held only %d, of %d", 4*crowd, cost, sum, capacity)
	}
	r := p.reserve(capacity, 0)
	p.must(r.Allowed, settleIsTrue, "all units were given back, and a Reserve of all %d answers %s", capacity, described(r.Decision, nil))
	p.settle(r, 0)
}
