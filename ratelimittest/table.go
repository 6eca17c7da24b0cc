package ratelimittest

import (
	"errors"
	"fmt"
	"runtime"
	"sync"
	"sync/atomic"
	"time"

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
	for range 6 {
		p := h.party()
		h.press(p)
	}
}

// tally counts what a crowd got.
type tally struct {
	got     atomic.Int64
	unknown atomic.Int64 // calls that the engine could not decide: each may have been charged
}

// press has a crowd spend the capacity of one key, about twice over if that is not much,
// through one or more clients, and compares what it got with what is left.
func (h *history) press(clients ...*party) {
	var t tally
	units := min(h.limit.Capacity(), 50)
	h.together(func(i int) {
		for n := range 1 + 2*units/crowd {
			clients[i%len(clients)].pressOnce(i, n, &t)
		}
	})
	h.note("%d goroutines have taken %d of %s", crowd, t.got.Load(), clients[0].name)
	left, spent, unknown := clients[0].left().Remaining, int(t.got.Load()), int(t.unknown.Load())
	h.must(spent+left <= h.limit.Capacity(), boundHolds, "%d were spent at once, and %d remain of %d", spent, left, h.limit.Capacity())
	h.must(spent+left+unknown >= h.limit.Capacity(), chargesNothing, "%d were spent at once, and only %d remain of %d", spent, left, h.limit.Capacity())
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
		p.takeOne(t)
	default:
		if p.cfg.Retries > 0 { // Allow does not say that it failed
			p.takeOne(t)
		} else if p.lim.Allow(p.key, 1) {
			t.got.Add(1)
		}
	}
}

func (p *party) takeOne(t *tally) {
	d, err := p.lim.Take(p.ctx(), p.key, 1)
	if err == nil && d.Allowed {
		t.got.Add(1)
	}
	if errors.Is(err, ratelimit.ErrUnavailable) {
		t.unknown.Add(1)
	}
}

// playSettleCrowd has goroutines settle at one time what they have reserved of one key, and
// spend from it. No settlement is lost, and none counts twice.
func playSettleCrowd(h *history) {
	const each = 16
	if l := newLimit(h.limit.Algorithm, ratelimit.PerMinute(4*each*crowd), 4*each*crowd); h.cfg.accepts(l) {
		h.limit = l
		h.use(h.newLimiter(l))
	}
	n := min(each, (h.limit.Capacity()-1)/(4*crowd))
	if n <= 0 {
		return
	}
	for began, round := time.Now(), 0; round < 3 || round < 16 && time.Since(began) < time.Millisecond/2; round++ {
		actual := 1
		if h.limit.Algorithm == ratelimit.AlgorithmLeakyBucket || h.chance(3) {
			actual = 3 // a queue gives back only its end
		}
		h.settleAtOnce(h.party(), n, actual)
	}
}

// settleAtOnce has each goroutine of a crowd settle n reservations of 2, and take 1 beside each.
func (h *history) settleAtOnce(p *party, n, actual int) {
	var reserved [crowd][]*ratelimit.Reservation
	for i := range n * crowd {
		r, err := p.has.reserver.Reserve(h.ctx(), p.key, 2, centuries)
		h.must(err == nil && r.Allowed || errors.Is(err, ratelimit.ErrUnavailable), reserveIsTrue, "cost 2 fits, and Reserve answers %v", err)
		if err == nil {
			reserved[i%crowd] = append(reserved[i%crowd], r)
		}
	}
	left := p.left().Remaining // whatever the calls have charged that were not answered
	var t, settled tally
	h.together(func(i int) {
		for _, r := range reserved[i] {
			if r.Settle(actual) == nil {
				settled.got.Add(1)
			} else {
				settled.unknown.Add(1)
			}
			p.takeOne(&t)
		}
	})
	h.note("%d goroutines have settled %d reservations of 2 of %s at %d, and have taken %d", crowd, settled.got.Load(), p.name, actual, t.got.Load())
	least := left - int(t.got.Load()) - (actual-2)*int(settled.got.Load())
	most := least
	least -= int(t.unknown.Load()) + max(0, actual-2)*int(settled.unknown.Load())
	most += max(0, 2-actual) * int(settled.unknown.Load())
	got := p.left().Remaining
	h.must(got >= least && got <= most, settleIsTrue, "%d remained, then %d reservations of 2 were settled at %d at one time, and %d more were spent: %d remain, want %d",
		left, settled.got.Load(), actual, t.got.Load(), got, most)
}

// together runs a crowd, and returns when all are done. They begin at one time, as far as there
// are processors.
func (h *history) together(do func(i int)) {
	var ready atomic.Int64
	var wg sync.WaitGroup
	if h.cfg.Clock != nil {
		h.cfg.Clock.yields.Store(true)
		defer h.cfg.Clock.yields.Store(false)
	}
	for i := range crowd {
		wg.Go(func() {
			for ready.Add(1); ready.Load() < crowd; {
				runtime.Gosched()
			}
			do(i)
		})
	}
	wg.Wait()
}
