package ratelimittest

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/weir-go/ratelimit"
)

// hung is the maximum real time of a call that must return at once. Only hanging calls come near it.
const hung = time.Minute

// waiting calls Wait, and ends the history if the call hangs.
func (p *testedKey) waiting(ctx context.Context, cost int) error {
	ctx, stop := context.WithCancelCause(ctx)
	defer stop(nil)
	late := time.AfterFunc(hung, func() { stop(errHung) })
	defer late.Stop()
	err := p.has.wait(ctx, p.key, cost)
	p.note("Wait(%s, %d): %v", p.name, cost, err)
	p.must(!errors.Is(context.Cause(ctx), errHung), waitIsTrue, "Wait for cost %d does not return", cost)
	p.reached(err)
	return err
}

var errHung = errors.New("ratelimittest: the call hung")

// playWaitFits waits for a cost that fits at once.
func playWaitFits(h *history) {
	a, b := h.newKey(), h.newKey()
	cost := 1
	if h.limit.Algorithm != ratelimit.AlgorithmLeakyBucket {
		cost = h.cost(h.limit.Capacity())
	}
	err := a.waiting(h.ctx(), cost)
	h.must(err == nil, waitIsTrue, "cost %d fits, and Wait fails: %v", cost, err)
	b.spend(cost)
	h.alike(waitIsTrue, a, b, "one has waited for what fitted, the other has taken it")
}

// playWaitErrors calls Wait with invalid costs, and with a cost of 0.
func playWaitErrors(h *history) {
	a, b := h.newKey(), h.newKey()
	for _, test := range []struct {
		cost int
		want error
	}{{-1, ratelimit.ErrNegativeCost}, {h.limit.Capacity() + 1, ratelimit.ErrExceedsLimit}} {
		if test.cost > h.limit.Capacity() || test.cost < 0 {
			err := a.waiting(h.ctx(), test.cost)
			h.must(errors.Is(err, test.want), waitIsTrue, "cost %d: the error is %v, want %q", test.cost, err, test.want)
		}
	}
	err := a.waiting(h.ctx(), 0)
	h.must(err == nil, waitIsTrue, "a cost of 0 fails: %v", err)
	h.alike(waitIsTrue, a, b, "one has waited for costs that are none")
}

// playWaitDeadline waits with a deadline before the cost fits.
func playWaitDeadline(h *history) {
	a, b, ok := h.delayed()
	if !ok {
		return
	}
	h.deadline(a)
	h.alike(waitIsTrue, a, b, "one has waited in vain")
}

// tooSoon is the time until a deadline. The cost fits long after it, and Wait must fail long before it.
const tooSoon = 30 * time.Second

// deadline calls Wait with too early a deadline. The call must fail at once, with the reason.
func (h *history) deadline(p *testedKey) {
	ctx, stop := context.WithTimeout(h.ctx(), tooSoon)
	defer stop()
	err := p.waiting(ctx, 1)
	h.must(errors.Is(err, context.DeadlineExceeded), waitIsTrue, "the deadline comes first, and the error is %v", err)
	h.must(ctx.Err() == nil, waitIsTrue, "the deadline comes first, and Wait does not fail at once")
}

// playWaitFull calls Wait while a leaky bucket's queue is full.
func playWaitFull(h *history) {
	if h.limit.Algorithm != ratelimit.AlgorithmLeakyBucket {
		return
	}
	a, b, ok := h.delayed()
	if !ok {
		return
	}
	for _, p := range []*testedKey{a, b} {
		p.spend(p.left().Remaining)
	}
	err := a.waiting(h.ctx(), h.cost(1))
	h.must(errors.Is(err, ratelimit.ErrLimited), waitIsTrue, "the queue is full, and the error is %v", err)
	h.alike(waitIsTrue, a, b, "one has waited for a place in a queue that is full")
}

// slow returns a limit under which a denied cost must wait for at least an hour, or false
// if the engine has none. A leaky bucket has room for the cost, and delays it for as long.
func (h *history) slow() (ratelimit.Limit, bool) {
	a := h.limit.Algorithm
	l := h.newLimit(a, ratelimit.PerDay(1+h.rng.IntN(5)), 1+h.rng.IntN(5))
	if a == ratelimit.AlgorithmLeakyBucket {
		l.Burst += 3
	}
	if !h.cfg.accepts(l) {
		l = h.limit // for example if the engine has a fixed set
	}
	room := a != ratelimit.AlgorithmLeakyBucket || l.Burst > 3
	// delayed chooses a calendar's window with enough time left
	long := isCalendar(l) || l.Rate.Per/time.Duration(l.Rate.Units) >= time.Hour
	return l, h.cfg.accepts(l) && room && long
}

// delayed returns two keys on which a cost of 1 must wait for at least an hour, or false
// if the engine supports no such limit. A leaky bucket has room for the cost in its queue.
func (h *history) delayed() (a, b *testedKey, ok bool) {
	slow, ok := h.slow()
	if !ok {
		return nil, nil, false
	}
	h.limit = slow
	h.use(h.newLimiter(slow))
	if isCalendar(slow) && h.untilNext() < 2*time.Hour {
		h.advance(h.untilNext())
	}
	a, b = h.newKey(), h.newKey()
	spent := slow.Capacity()
	if slow.Algorithm == ratelimit.AlgorithmLeakyBucket {
		spent = 1
	}
	a.spend(spent)
	b.spend(spent)
	return a, b, true
}

// playWaitCancelled cancels a waiting call at once, or after a part of its delay.
// Its booking has regained nothing by then, so the whole cost is given back.
func playWaitCancelled(h *history) {
	a, b, ok := h.delayed()
	if !ok {
		return
	}
	due := b.left().ResetAfter // for a leaky bucket
	if h.limit.Algorithm != ratelimit.AlgorithmLeakyBucket {
		d, _ := b.take(1)
		due = d.RetryAfter
	}
	w := a.startWait(1)
	defer w.stop()
	h.advance(h.upto(due - h.cfg.Resolution))
	a.stopWait(w)
	h.alike(waitIsTrue, a, b, "one has waited until its context was cancelled")
}

// playWaitEnded calls Wait for a fitting cost, with an already ended context.
func playWaitEnded(h *history) {
	a, b := h.twins()
	cancelled, stop := context.WithCancel(h.ctx())
	stop()
	past, stop := context.WithDeadline(h.ctx(), time.Now().Add(-time.Hour))
	defer stop()
	for _, cost := range []int{1, h.cost(h.limit.Capacity())} {
		err := a.waiting(cancelled, cost)
		h.must(errors.Is(err, context.Canceled), waitIsTrue, "the context was cancelled before, and the error is %v", err)
		err = a.waiting(past, cost)
		h.must(errors.Is(err, context.DeadlineExceeded), waitIsTrue, "the deadline was an hour ago, and the error is %v", err)
	}
	h.alike(waitIsTrue, a, b, "one has waited with contexts that had ended before")
}

// waits is a call to Wait on a goroutine.
type waits struct {
	cost int
	stop context.CancelFunc
	done chan error
}

// soon is the maximum real time for a Wait to book its place, or to return if its place
// is a few milliseconds ahead. A right engine takes a millisecond or less for both.
const soon = 2 * time.Second

// behind is the maximum real time for a Wait behind another one to book its place, if it books one.
const behind = 50 * time.Millisecond

// looks is how many times a key must be read before soon may end a history: a machine may stop for longer than soon.
const looks = 200

// startWait starts a Wait, and returns when the key's figures show its booking.
func (p *testedKey) startWait(cost int) *waits {
	was := p.left()
	w := p.beginWait(cost)
	p.hasBooked(w, was)
	return w
}

// startWaitBehind starts a Wait behind another one. It reports whether the key's
// figures show a booking, because an engine may book only for a line's first callers.
func (p *testedKey) startWaitBehind(cost int) (w *waits, booked bool) {
	was := p.left()
	w = p.beginWait(cost)
	for began := time.Now(); time.Since(began) < behind; time.Sleep(100 * time.Microsecond) {
		if d, err := p.lim.Take(p.ctx(), p.key, 0); err == nil && d != was {
			return w, true
		}
	}
	return w, false
}

// becomes waits until the key's decision is the wanted one.
func (p *testedKey) becomes(want ratelimit.Decision) {
	began := time.Now()
	for n := 0; p.left() != want; n++ {
		p.must(n < looks || time.Since(began) < soon, waitIsTrue, "the first of two gives up, and the key answers %s; want %s",
			described(p.left(), nil), described(want, nil))
		time.Sleep(100 * time.Microsecond)
	}
}

func (p *testedKey) beginWait(cost int) *waits {
	ctx, stop := context.WithCancel(p.ctx())
	w := &waits{cost, stop, make(chan error, 1)}
	go func() {
		defer func() {
			if e := recover(); e != nil {
				w.done <- fmt.Errorf("panic: %v", e)
			}
		}()
		w.done <- p.has.wait(ctx, p.key, cost)
	}()
	p.note("Wait(%s, %d) begins", p.name, cost)
	return w
}

// hasBooked waits until the key's figures differ from its figures before the Wait.
func (p *testedKey) hasBooked(w *waits, was ratelimit.Decision) {
	began := time.Now()
	for n := 0; n < looks || time.Since(began) < soon; n++ {
		if d, err := p.lim.Take(p.ctx(), p.key, 0); err == nil && d != was {
			return
		}
		select {
		case err := <-w.done:
			p.reached(err)
			p.fail(waitIsTrue, "Wait for cost %d has to wait for hours, and has returned: %v", w.cost, err)
		default:
		}
		time.Sleep(100 * time.Microsecond)
	}
	w.stop()
	p.fail(waitIsTrue, "Wait for cost %d has to wait, and after %v it has not booked its place: others get in first", w.cost, soon)
}

// stopWait cancels a Wait.
func (p *testedKey) stopWait(w *waits) {
	w.stop()
	select {
	case err := <-w.done:
		p.note("Wait(%s, %d) is cancelled: %v", p.name, w.cost, err)
		p.reached(err)
		p.must(errors.Is(err, context.Canceled), waitIsTrue, "the context is cancelled, and the error is %v", err)
	case <-time.After(hung):
		p.fail(waitIsTrue, "Wait for cost %d does not return though it is cancelled", w.cost)
	}
}

// playWaitOrder starts two waiting calls, one after the other, and a third caller decides in
// between. When the first gives up, the second keeps its place or moves up to the first one's.
func playWaitOrder(h *history) {
	a, b, ok := h.delayed()
	if !ok {
		return
	}
	cost := 1
	if !h.isBucket() {
		cost = h.limit.Capacity() // each booking then fills a window
	}
	first := a.startWait(cost)
	defer first.stop()
	if h.limit.Algorithm != ratelimit.AlgorithmLeakyBucket {
		a.queued(h.cfg.Resolution)
	}
	h.deadline(a)
	if isCalendar(h.limit) && !h.booksFar() {
		a.stopWait(first)
		h.alike(waitIsTrue, a, b, "one has waited until its context was cancelled")
		return
	}
	second, booked := a.startWaitBehind(cost)
	defer second.stop()
	if b.has.reserver == nil {
		a.stopWait(second)
		a.stopWait(first)
		h.alike(waitIsTrue, a, b, "two have waited, and given up in turn")
		return
	}
	r := b.reserve(cost, centuries)
	one := b.left()
	if !booked { // the second call waits behind the first, and books when the first has given up
		a.stopWait(first)
		a.becomes(one)
		a.stopWait(second)
		b.settle(r, 0)
		h.alike(waitIsTrue, a, b, "two have waited, and given up; the other has cancelled a booking")
		return
	}
	other := b.reserve(cost, centuries)
	h.must(r.Allowed && other.Allowed, reserveIsTrue, "cost %d cannot be booked for the time when it fits", cost)
	h.must(a.left() == b.left(), waitIsTrue, "two wait, and the key answers %s; another has two bookings, and answers %s",
		described(a.left(), nil), described(b.left(), nil))
	a.stopWait(first)
	if a.left() == one { // the second has moved up
		r, other = other, r
	}
	b.settle(r, 0)
	h.must(a.left() == b.left(), waitIsTrue, "the first of two gives up, and the key answers %s; want %s",
		described(a.left(), nil), described(b.left(), nil))
	a.stopWait(second)
	b.settle(other, 0)
	h.alike(waitIsTrue, a, b, "two have waited, and given up; the other has cancelled two bookings")
}

// booksFar reports whether the engine books in a calendar's window after the next one.
func (h *history) booksFar() bool {
	p, capacity := h.newKey(), h.limit.Capacity()
	if p.has.reserver == nil {
		return false
	}
	p.spend(capacity)
	p.reserve(capacity, centuries)
	return p.reserve(capacity, centuries).Allowed
}

// playWaitLength measures some waits in real time. None may be shorter than required, and one must not be much
// longer. The limiter's time stands still, so a Wait that polls instead of booking never ends. A machine that stops
// for a moment can hide a Wait that returns too early, so two more waits follow the first one of the right length.
func playWaitLength(h *history) {
	ended, right := 0, 0
	for gap := 10 * time.Millisecond; ; gap *= 2 {
		l, ok := h.paced(gap)
		if !ok {
			return
		}
		took, due, err := h.timed(l, h.up(gap))
		if err != nil { // a machine may stop for so long, but not every time
			ended++
			h.must(took >= soon && ended < 2, waitIsTrue, "the time of a cost of 1 comes after %v, and Wait, which may take %v, fails: %v", due, soon, err)
			continue
		}
		h.must(took >= due, waitIsTrue, "the time of a cost of 1 comes after %v, and Wait returns after %v", due, took)
		if right > 0 || took < due+due*3/4 {
			if right++; right == 3 {
				return
			}
			gap /= 2 // the next Wait sleeps for half as long
			continue
		}
		h.must(gap < 300*time.Millisecond, waitIsTrue, "the time of a cost of 1 comes after %v, and Wait returns after %v", due, took)
	}
}

// paced returns a limit of one unit for each gap, or false if the engine does not support it.
func (h *history) paced(gap time.Duration) (ratelimit.Limit, bool) {
	l := h.newLimit(h.limit.Algorithm, ratelimit.Per(1, h.up(gap)), 3)
	return l, h.cfg.accepts(l)
}

// timed waits for a cost of 1 under an exhausted limit. It returns how long the Wait took, and how long it should take.
func (h *history) timed(l ratelimit.Limit, gap time.Duration) (took, due time.Duration, err error) {
	h.limit = l
	h.use(h.newLimiter(l))
	if isCalendar(l) { // the calendar's next window must begin after the gap
		if h.untilNext() < gap {
			h.advance(h.untilNext())
		}
		h.advance(h.untilNext() - gap)
	}
	a, b := h.newKey(), h.newKey()
	if l.Algorithm == ratelimit.AlgorithmLeakyBucket {
		a.spend(1)
		b.spend(1)
		due = a.left().ResetAfter
	} else {
		a.spend(l.Capacity())
		b.spend(l.Capacity())
		d, _ := a.take(1)
		due = d.RetryAfter
	}
	ctx, stop := context.WithTimeout(h.ctx(), soon)
	defer stop()
	began := time.Now()
	err = a.waiting(ctx, 1)
	took = time.Since(began)
	if err == nil && b.has.reserver != nil {
		b.reserve(1, due)
		h.alike(waitIsTrue, a, b, "one has waited for what the other has booked")
	}
	return took, due, err
}
