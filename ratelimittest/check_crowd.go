package ratelimittest

import (
	"errors"
	"runtime"
	"sync"
	"sync/atomic"
	"time"

	"github.com/weir-go/ratelimit"
)

// crowd is how many goroutines spend from one key at once.
const crowd = 8

// playCrowd takes, peeks and sweeps at one instant, in several goroutines. Together they must get exactly the capacity.
func playCrowd(h *history) {
	for range 6 {
		p := h.newKey()
		h.spendAtOnce(p)
	}
}

// tally counts all goroutines' admissions.
type tally struct {
	got     atomic.Int64
	unknown atomic.Int64 // calls without a decision: each may have been charged
}

// spendAtOnce tries to spend about twice one key's capacity, or a part of a large capacity, in several
// goroutines and through one or more clients. It compares the admissions with the remaining budget.
func (h *history) spendAtOnce(clients ...*testedKey) {
	var t tally
	units := min(h.limit.Capacity(), 50)
	h.atOnce(func(i int) {
		for n := range 1 + 2*units/crowd {
			clients[i%len(clients)].spendOnce(i, n, &t)
		}
	})
	h.note("%d goroutines have taken %d of %s", crowd, t.got.Load(), clients[0].name)
	left, spent, unknown := clients[0].left().Remaining, int(t.got.Load()), int(t.unknown.Load())
	h.must(spent+left <= h.limit.Capacity(), boundHolds, "%d were spent at once, and %d remain of %d", spent, left, h.limit.Capacity())
	h.must(spent+left+unknown >= h.limit.Capacity(), chargesNothing, "%d were spent at once, and only %d remain of %d", spent, left, h.limit.Capacity())
}

// spendOnce makes one call. The history does not record it.
func (p *testedKey) spendOnce(i, n int, t *tally) {
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
		if p.cfg.Retries > 0 { // a false may stand for an error
			p.takeOne(t)
		} else if p.lim.Allow(p.key, 1) {
			t.got.Add(1)
		}
	}
}

func (p *testedKey) takeOne(t *tally) {
	d, err := p.lim.Take(p.ctx(), p.key, 1)
	if err == nil && d.Allowed {
		t.got.Add(1)
	}
	if errors.Is(err, ratelimit.ErrUnavailable) {
		t.unknown.Add(1)
	}
}

// playSettleCrowd settles one key's reservations and spends from the key at the
// same time, in several goroutines. Each settlement must count exactly once.
func playSettleCrowd(h *history) {
	const each = 16
	if l := h.newLimit(h.limit.Algorithm, ratelimit.PerMinute(4*each*crowd), 4*each*crowd); h.cfg.accepts(l) {
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
			actual = 3 // a leaky bucket gives back only its queue's end
		}
		h.settleAtOnce(h.newKey(), n, actual)
	}
}

// settleAtOnce settles n reservations of 2 in each of several goroutines, and takes 1 after each settlement.
func (h *history) settleAtOnce(p *testedKey, n, actual int) {
	var reserved [crowd][]*ratelimit.Reservation
	for i := range n * crowd {
		r, err := p.has.reserver.Reserve(h.ctx(), p.key, 2, centuries)
		h.must(err == nil && r.Allowed || errors.Is(err, ratelimit.ErrUnavailable), reserveIsTrue, "cost 2 fits, and Reserve answers %v", err)
		if err == nil {
			reserved[i%crowd] = append(reserved[i%crowd], r)
		}
	}
	left := p.left().Remaining // includes the unknown charges of failed calls
	var t, settled tally
	h.atOnce(func(i int) {
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

// atOnce runs a function in all goroutines at once, and returns when
// all have ended. If some panic, it panics with the first one's value.
func (h *history) atOnce(do func(i int)) {
	var ready atomic.Int64
	var wg sync.WaitGroup
	var panicked atomic.Pointer[any]
	if h.cfg.Clock != nil {
		h.cfg.Clock.yields.Store(true)
		defer h.cfg.Clock.yields.Store(false)
	}
	for i := range crowd {
		wg.Go(func() {
			defer func() {
				if e := recover(); e != nil {
					panicked.CompareAndSwap(nil, &e)
				}
			}()
			for ready.Add(1); ready.Load() < crowd; {
				runtime.Gosched()
			}
			do(i)
		})
	}
	wg.Wait()
	if e := panicked.Load(); e != nil {
		panic(*e)
	}
}
