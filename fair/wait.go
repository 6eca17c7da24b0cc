package fair

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/weir-go/ratelimit"
	"github.com/weir-go/ratelimit/internal/meter"
	"github.com/weir-go/ratelimit/internal/wait"
)

// Wait waits until its turn comes, spends cost of the tenant's share and returns nil.
// Within a tenant, callers are served first come, first served; among tenants, by
// their shares. While a tenant has a caller in line, its Allow and Take are denied.
//
// A failed Wait has spent nothing. Its error wraps [context.DeadlineExceeded], at once if the burst
// cannot have room before the deadline. It wraps the context's error when the context ends, and
// [ratelimit.ErrLimited] if there is no room in line: see [Options.MaxWaiting]. Other errors are Take's.
func (l *Limiter[K]) Wait(ctx context.Context, tenant K, cost int) error {
	if ctx == nil {
		ctx = context.Background()
	}
	d := ratelimit.Decision{}
	err := l.wait(ctx, tenant, cost, meter.Final, &d, nil)
	l.report(tenant, cost, d, err == nil && cost > 0, err)
	return err
}

func (l *Limiter[K]) wait(ctx context.Context, key K, cost int, keep meter.Keep, d *ratelimit.Decision, c *charge) error {
	left, err := wait.Left(ctx)
	if err != nil {
		return err
	}
	if err := l.check(key, cost); err != nil {
		return err
	}
	weight, reading := l.weight(key), l.reading()
	l.mu.Lock()
	w, err := l.joinLocked(key, weight, reading, int64(cost), left, keep, d, c)
	l.wakeLocked()
	l.mu.Unlock()
	if w == nil {
		return err
	}
	return l.await(ctx, key, w, d)
}

// reserveInLine waits in line for at most maxDelay. If a call is not served by then, it is denied as by Take.
func (l *Limiter[K]) reserveInLine(ctx context.Context, key K, cost int, maxDelay time.Duration, d *ratelimit.Decision, c *charge) error {
	left, err := wait.Left(ctx)
	if err != nil {
		return err
	}
	inTime, stop := context.WithTimeout(ctx, maxDelay)
	defer stop()
	err = l.wait(inTime, key, cost, meter.Open, d, c)
	late := errors.Is(err, context.DeadlineExceeded) && ctx.Err() == nil && maxDelay < left
	if late || errors.Is(err, ratelimit.ErrLimited) {
		*d = ratelimit.Decision{}
		_, err = l.decide(key, cost, meter.Open, d, c)
	}
	return err
}

// joinLocked spends the cost at once, or puts a waiter in line.
func (l *Limiter[K]) joinLocked(key K, weight uint64, reading, cost int64, left time.Duration, keep meter.Keep, d *ratelimit.Decision, c *charge) (w *waiter, err error) {
	m := l.advanceLocked(reading)
	if err := l.exceedsLocked(int(cost)); err != nil {
		l.standingLocked(newTenant(key, weight), m, d)
		return nil, err
	}
	t := l.tenantLocked(key, weight, m)
	if cost == 0 || l.passesLocked(t, m, cost) {
		if cost > 0 {
			if err := l.trackLocked(t, true); err != nil {
				d.Limit = l.budget.limit
				return nil, err
			}
			l.chargeLocked(t, m, cost, keep, c)
		}
		d.Allowed = true
		l.standingLocked(t, m, d)
		return nil, nil
	}
	l.standingLocked(t, m, d)
	d.RetryAfter = l.retryLocked(t, m, cost)
	switch room, free := l.budget.retry(m, cost), l.opts.MaxWaiting-l.waiting; {
	case room > left:
		return nil, &ratelimit.LateError{Package: "fair", Limit: l.budget.limit, After: room, Reason: context.DeadlineExceeded}
	case free <= 0:
		return nil, fmt.Errorf("fair: %w: %d callers wait, as many as Options.MaxWaiting allows", ratelimit.ErrLimited, l.waiting)
	case t.line.waiting > 0 && t.line.waiting >= free:
		return nil, fmt.Errorf("fair: %w: %d callers of the tenant wait, and the %d places that Options.MaxWaiting leaves are for others",
			ratelimit.ErrLimited, t.line.waiting, free)
	}
	if err := l.trackLocked(t, true); err != nil {
		return nil, err
	}
	w = &waiter{cost: cost, keep: keep, charge: c, wake: make(chan struct{}, 1)}
	l.waiting++
	t.line.waiting++
	if t.line.first != nil {
		w.prev, t.line.last.next = t.line.last, w
		t.line.last = w
		t.line.costs += cost
		return w, nil
	}
	l.acquaintLocked(t)
	l.losePlaceLocked(t)
	t.line.first, t.line.last = w, w
	if !l.shares.isBarred(t) {
		if !t.counts {
			l.hurryLocked() // one more tenant shares the rate
		}
		l.shares.enter(t)
	}
	t.tag = l.shares.tag(t, cost)
	l.ahead += cost
	l.lineUpLocked(&l.waiters, t)
	l.filedLocked(t)
	return w, nil
}

// movedLocked restores the line's order after a tenant's debt or weight has changed.
func (l *Limiter[K]) movedLocked(t *tenant[K]) {
	l.filedLocked(t)
	switch {
	case t.line.first != nil:
		l.waiters.fix(t, t.tag)
		l.hurryLocked()
	case l.places.has(t):
		l.places.fix(t, t.tag)
	}
}

// await sleeps until a waiter is served or its context ends. The first waiter
// of all tenants sleeps on the clock, and the others until they are woken.
func (l *Limiter[K]) await(ctx context.Context, key K, w *waiter, d *ratelimit.Decision) error {
	for {
		reading := l.reading()
		l.mu.Lock()
		m := l.advanceLocked(reading)
		var timer <-chan time.Time
		if first := l.waiters.first(); first != nil && first.line.first == w {
			timer = time.After(l.turnLocked(m))
			l.sleeper = w
		}
		l.wakeLocked()
		t := l.tenants[key]
		if w.err != nil {
			l.mu.Unlock()
			return w.err
		}
		if w.served {
			d.Allowed, d.RetryAfter = true, 0
			if t != nil {
				l.standingLocked(t, m, d)
			}
			l.mu.Unlock()
			return nil
		}
		l.mu.Unlock()
		select {
		case <-w.wake:
		case <-timer:
		case <-ctx.Done():
			if l.quit(key, w) {
				return fmt.Errorf("fair: gave up in line: %w", ctx.Err())
			}
		}
	}
}

// quit removes a waiter from its line, unless it has been served.
func (l *Limiter[K]) quit(key K, w *waiter) bool {
	reading := l.reading()
	l.mu.Lock()
	defer l.mu.Unlock()
	defer l.wakeLocked()
	l.advanceLocked(reading)
	if w.served || w.err != nil {
		return false
	}
	l.leaveLocked(l.tenants[key], w)
	return true
}

// leaveLocked removes a waiter from its tenant's line.
func (l *Limiter[K]) leaveLocked(t *tenant[K], w *waiter) {
	l.waiting--
	t.line.waiting--
	if w.next != nil {
		w.next.prev = w.prev
	} else {
		t.line.last = w.prev
	}
	if w.prev != nil { // the waiter is not the first, so its cost is among the costs behind the first
		w.prev.next = w.next
		t.line.costs -= w.cost
		return
	}
	l.ahead -= w.cost
	if t.line.first = w.next; w.next != nil {
		t.line.costs -= w.next.cost
		l.ahead += w.next.cost
		t.tag = l.shares.tag(t, w.next.cost)
		l.waiters.fix(t, t.tag)
		return
	}
	l.stepOutLocked(&l.waiters, t)
	if w.served {
		l.lingerLocked(t, l.shares.now+patience)
	} else {
		l.lapseLocked(t)
	}
}

// needsLocked returns how much of the burst must be free before the turn of a tenant in
// line. A place never needs more room than can be kept, so an absent client delays no other.
func (l *Limiter[K]) needsLocked(t *tenant[K]) int64 {
	if t.line.first != nil {
		return l.withKeptLocked(t, t.cost())
	}
	kept := int64((l.keptLocked(t) + fraction - 1) >> fractionBits)
	return min(kept+t.spot.cost, l.mostKept())
}

// serveLocked serves all tenants in line whose turn has come: waiters spend, and room is kept for places.
func (l *Limiter[K]) serveLocked(m meter.Moment) {
	l.relieveLocked()
	for {
		t := l.firstLocked(nil)
		if t == nil || l.budget.retry(m, l.needsLocked(t)) > 0 || !l.dueLocked(t, m) {
			return
		}
		w := t.line.first
		if w == nil {
			l.stepOutLocked(&l.places, t)
			l.ahead -= t.spot.cost
			l.keepLocked(t, uint64(t.spot.cost)<<fractionBits)
			continue
		}
		w.served = true
		l.spendLocked(m, w.cost, w.keep, w.charge)
		l.shares.charge(t, uint64(w.cost)<<fractionBits)
		wake(w)
		l.leaveLocked(t, w)
	}
}

// lineUpLocked puts a tenant into the line of waiters or the line of places, by its tag.
func (l *Limiter[K]) lineUpLocked(h *heap[K], t *tenant[K]) {
	h.add(t, t.tag)
	l.lineWeights += t.weight
}

// stepOutLocked removes a tenant from its line.
func (l *Limiter[K]) stepOutLocked(h *heap[K], t *tenant[K]) {
	h.remove(t)
	l.lineWeights -= t.weight
}

// relieveLocked relieves one tenant of each line, and another one at the
// next call. So a decision takes the same time even if the lines are long.
func (l *Limiter[K]) relieveLocked() {
	if l.waiters.len()+l.places.len() < 2 {
		return
	}
	l.relieved++
	weights := l.lineWeights + l.keptWeights
	for _, h := range []*heap[K]{&l.waiters, &l.places} {
		if n := h.len(); n > 0 {
			t := h.items[l.relieved%n].tenant
			if l.shares.relieve(t, l.budget.burst, weights, l.firstLocked(t).tag) {
				l.movedLocked(t)
			}
		}
	}
}

// turnLocked returns how long the first waiter sleeps. It ends when the first tenant in line may
// be served if nothing is spent, or when a tenant stops counting: the others' shares then grow.
func (l *Limiter[K]) turnLocked(m meter.Moment) time.Duration {
	t := l.firstLocked(nil)
	b, s := &l.budget, &l.shares
	late := time.Duration(m.Now - m.Reading)
	room := b.retry(m, l.needsLocked(t))
	turn := b.retryAlone(m.Now, t.cost())
	if !l.aloneLocked(t) {
		turn = s.timeFor(s.untilFits(t, s.lead(t.tag), l.freeLocked(t, m)))
	}
	turn = min(turn, time.Duration(max(b.Regained(b.state), m.Now)-m.Now))
	if next := s.soonest(); next != nil {
		turn = min(turn, s.timeFor(s.toReach(after(next.finish, s.virtual))))
	}
	turn = max(room, turn+late)
	if next := l.nextDeadlineLocked(); next != nil {
		turn = min(turn, time.Duration(next.spot.expires-m.Reading))
	}
	return max(turn, 1)
}

// wakeLocked wakes the first waiter of all, unless it sleeps on the clock already.
// Each critical section calls it at the end if it may change the first waiter.
func (l *Limiter[K]) wakeLocked() {
	if t := l.waiters.first(); t != nil && t.line.first != l.sleeper {
		l.sleeper = nil // its turn may have changed before it is the first again
		wake(t.line.first)
	}
}

// hurryLocked wakes the first waiter of all, because its turn may now come earlier.
func (l *Limiter[K]) hurryLocked() {
	l.sleeper = nil
	l.wakeLocked()
}

// refuseLocked ends the waits of all callers whose cost is above the burst.
func (l *Limiter[K]) refuseLocked() {
	for _, x := range slices.Clone(l.waiters.items) {
		t := x.tenant
		for w := t.line.first; w != nil; w = w.next {
			if w.err = l.exceedsLocked(int(w.cost)); w.err != nil {
				l.leaveLocked(t, w)
				wake(w)
			}
		}
	}
}

func wake(w *waiter) {
	select {
	case w.wake <- struct{}{}:
	default:
	}
}
