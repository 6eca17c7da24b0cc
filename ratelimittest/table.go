package ratelimittest

import (
	"errors"
	"fmt"
	"sync"
	"sync/atomic"

	"github.com/weir-go/ratelimit"
)

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
			p.has.peek(p.ctx(), p.key, 1)
		}
		if p.has.sweep != nil {
			p.has.sweep()
		}
	case 1:
		d, err := p.lim.Take(p.ctx(), p.key, 1)
		if err == nil && d.Allowed {
			t.got.Add(1)
		}
		if errors.Is(err, ratelimit.ErrUnavailable) {
			t.unavailable.Add(1)
		}
	default:
		if p.lim.Allow(p.key, 1) {
			t.got.Add(1)
		}
	}
}
