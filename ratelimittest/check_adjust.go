package ratelimittest

import (
	"math"
	"time"

	"github.com/weir-go/ratelimit"
)

// playCharge charges one key by Adjust, and another by Take. Both must then return the same decisions.
func playCharge(h *history) {
	a, b := h.newKey(), h.newKey()
	cost := h.cost(h.limit.Capacity())
	a.adjust(cost)
	b.spend(cost)
	h.alike(adjustIsTrue, a, b, "one was charged by Adjust what the other has spent")
}

// playGrant gives back a part of the spending or of a debt, and then more than is left.
// The contract does not state which part of a debt in windows a grant reduces first.
func playGrant(h *history) {
	p := h.newKey()
	capacity := h.limit.Capacity()
	spent := h.cost(capacity)
	p.spend(spent)
	if more := h.rng.IntN(min(times(2, capacity), figure(1<<40))); h.chance(2) && !h.beyond(spent+more) {
		p.adjust(more)
		spent += more
	}
	back := h.rng.IntN(spent + 1)
	p.adjust(-back)
	got, want := p.left().Remaining, max(0, capacity-spent+back)
	h.must(got == want || spent > capacity && got < want, adjustIsTrue, "%d were spent, %d given back, and %d remain of %d", spent, back, got, capacity)
	p.adjust(-spent)
	p.adjust(math.MinInt)
	d := p.left()
	h.must(d.Remaining == capacity, adjustIsTrue, "all was given back, and %d remain of %d", d.Remaining, capacity)
	p.spend(capacity)
	d, _ = p.take(1)
	h.must(!d.Allowed, adjustIsTrue, "a grant has gone past a fresh key")
}

// playDebt charges a fresh key into debt, and waits until the debt is regained: at the rate, or as the windows pass.
func playDebt(h *history) {
	h.debt(func(p *testedKey, owed int) { p.adjust(owed) })
}

// debt charges a fresh key more than its capacity.
func (h *history) debt(charge func(p *testedKey, owed int)) {
	p, capacity := h.newKey(), h.limit.Capacity()
	owed := capacity + 1 + h.rng.IntN(min(times(3, capacity), figure(1<<40)))
	if h.beyond(owed) {
		return
	}
	charge(p, owed)
	d := p.left()
	h.must(d.Remaining == 0, saturates, "%d of %d were charged, and %d remain", owed, capacity, d.Remaining)
	// an engine may ignore Debt and leave it 0
	h.must(d.Debt == owed-capacity || d.Debt == 0, saturates, "%d of %d were charged, and Debt is %d", owed, capacity, d.Debt)
	cost := h.cost(1)
	d, err := p.take(cost)
	h.must(err == nil && !d.Allowed, saturates, "%d of %d were charged, and cost %d answers %s", owed, capacity, cost, described(d, err))
	if want, known := h.regained(owed, cost); known {
		h.must(d.RetryAfter == want, saturates, "%d of %d were charged; RetryAfter of cost %d is %v, want %v", owed, capacity, cost, d.RetryAfter, want)
	}
	p.probeRetry(cost, d.RetryAfter)
}

// regained returns the time until a cost fits after a fresh key was charged the owed
// units. The contract does not state how a sliding counter's debt counts in its windows.
func (h *history) regained(owed, cost int) (time.Duration, bool) {
	if h.limit.Algorithm == ratelimit.AlgorithmSlidingCounter {
		return 0, false
	}
	model := h.newModel(h.limit)
	if h.limit.Algorithm == ratelimit.AlgorithmSlidingLog {
		model = h.newModel(ratelimit.FixedWindow(h.limit.Rate)) // under a log, as in windows, Units of the debt are regained for each Per
	}
	book := &book{history: h, model: model}
	book.model.spend(h.now, owed)
	return book.retryAfter(h.now, cost), true
}

// centuries is above the longest time of a debt: a hundred years, rounded up to whole windows.
const centuries = 101 * 366 * 24 * time.Hour

// playDebtCap charges more than could ever be regained. The debt must be capped at 100 years, and not earlier.
func playDebtCap(h *history) {
	p := h.newKey()
	p.spend(1)
	least := h.leastDebt()
	for range 4 {
		if p.has.reserver != nil && h.chance(3) {
			p.settle(p.reserve(0, 0), math.MaxInt)
		} else {
			p.adjust(math.MaxInt)
		}
		d, err := p.take(1)
		h.must(err == nil && !d.Allowed && d.Remaining == 0, saturates, "as much as can be was charged, and cost 1 answers %s", described(d, err))
		h.must(d.ResetAfter >= d.RetryAfter && d.ResetAfter <= centuries+2*h.per(), saturates,
			"as much as can be was charged: RetryAfter is %v, ResetAfter %v", d.RetryAfter, d.ResetAfter)
		h.must(d.ResetAfter >= least, saturates, "as much as can be was charged, and ResetAfter is %v, want at least %v", d.ResetAfter, least)
		h.pause(ratelimit.Decision{})
	}
}

// beyond reports whether a debt may be above the cap of a hundred years.
func (h *history) beyond(owed int) bool {
	windows := float64(owed) / float64(h.limit.Rate.Units)
	if !h.isBucket() {
		windows = math.Ceil(windows) // a window's units are regained together
	}
	return windows*float64(h.per()) > float64(90*year)
}

// countable returns the time in which 2^51 units are regained. Every engine can count several times as many.
func (h *history) countable() time.Duration {
	n := min(1<<51, math.MaxInt) / float64(h.limit.Rate.Units) * float64(h.per())
	return time.Duration(min(n, float64(math.MaxInt64/2)))
}

// leastDebt returns a lower bound for the longest time of a debt. It is 100 years
// less the rounding of windows, or the time to regain 2^51 units if shorter.
func (h *history) leastDebt() time.Duration {
	least := min(float64(99*year), float64(h.countable()))
	if isCalendar(h.limit) {
		least *= 0.91 // the longest day has 26 hours, but most have 24
	}
	return max(0, time.Duration(least*0.99)-2*h.per())
}
