package ratelimittest

import (
	"errors"
	"fmt"
	"sync"
	"sync/atomic"

	"github.com/weir-go/ratelimit"
)

// playSweep sweeps one limiter all the time, and another never.
func playSweep(h *history) {
	swept, kept := h.party(), h.stranger()
	for range 12 {
		cost := h.cost(swept.left().Remaining)
		h.note("Sweep(%s): %d", swept.name, swept.has.sweep())
		a, _ := swept.take(cost)
		b, _ := kept.take(cost)
		h.must(a == b, sweepIsSafe, "after a sweep %s, and without %s", described(a, nil), described(b, nil))
		h.pause(a)
	}
}

// flood is how many keys a small table is filled with, over and over.
const flood = 8

// playFlood lets somebody who was denied invent keys, to be forgotten.
func playFlood(h *history) {
	l, err := h.cfg.NewBounded(h.limit, flood)
	h.must(err == nil, exact, "NewBounded refuses a limit that it has to know: %v", err)
	p := h.partyOf(l)
	p.spend(h.limit.Capacity())
	d, _ := p.take(1)
	h.must(!d.Allowed, boundHolds, "all was spent, and 1 more is allowed")
	for i := range 4 * flood {
		h.named(l, fmt.Sprintf("invented-%d", i)).take(1)
		if p.has.count != nil {
			h.must(p.has.count() <= flood, keysAreBounded, "%d keys are tracked, of %d at most", p.has.count(), flood)
		}
	}
	d, _ = p.take(1)
	h.must(!d.Allowed, keysAreBounded, "a throttled key was wiped by a flood of %d invented ones", 4*flood)
}

// crowd is how many goroutines press on one key.
const crowd = 8

// playCrowd has goroutines take, peek and sweep at one instant. Together they get the capacity,
// and not one unit more or less.
func playCrowd(h *history) {
	for range 10 {
		p := h.party()
		h.press(p)
	}
}

// tally counts what a crowd got.
type tally struct {
	got         atomic.Int64
	unavailable atomic.Int64 // calls that the engine could not decide
}

// press has a crowd spend the capacity of one key, about twice over if that is not much,
// through one or more clients, and compares what it got with what is left.
func (h *history) press(clients ...*party) {
	var t tally
	var wg sync.WaitGroup
	units := min(h.limit.Capacity(), 50)
	for i := range crowd {
		wg.Go(func() {
			for n := range 1 + 2*units/crowd {
				clients[i%len(clients)].pressOnce(i, n, &t)
			}
		})
	}
	wg.Wait()
	if t.unavailable.Load() > 0 {
		panic(unavailable{ratelimit.ErrUnavailable})
	}
	h.note("%d goroutines have taken %d of %s", crowd, t.got.Load(), clients[0].name)
	left, spent := clients[0].left().Remaining, int(t.got.Load())
	h.must(spent+left <= h.limit.Capacity(), boundHolds, "%d were spent at once, and %d remain of %d", spent, left, h.limit.Capacity())
	h.must(spent+left >= h.limit.Capacity(), chargesNothing, "%d were spent at once, and only %d remain of %d", spent, left, h.limit.Capacity())
}

// pressOnce makes one call, without a word in the history.
func (p *party) pressOnce(i, n int, t *tally) {
	switch (i + n) % 4 {
	case 0:
		if p.has.peek != nil {
			p.has.peek(p.ctx(), p.key(), 1)
		}
		if p.has.sweep != nil {
			p.has.sweep()
		}
	case 1:
		d, err := p.lim.Take(p.ctx(), p.key(), 1)
		if err == nil && d.Allowed {
			t.got.Add(1)
		}
		if errors.Is(err, ratelimit.ErrUnavailable) {
			t.unavailable.Add(1)
		}
	default:
		if p.lim.Allow(p.key(), 1) {
			t.got.Add(1)
		}
	}
}

// playSetLimit raises and lowers a limit that is in use.
func playSetLimit(h *history) {
	p := h.party()
	capacity := h.limit.Capacity()
	spent := h.cost(capacity)
	p.spend(spent)
	for range 4 {
		p.change(h.resized(1 + h.rng.IntN(2*capacity)))
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
	d, err := p.lim.Take(p.ctx(), p.key(), 0)
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
