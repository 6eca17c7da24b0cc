package fair

import (
	"container/heap"
	"context"
	"fmt"
	"slices"
	"time"

	"github.com/weir-go/ratelimit"
	"github.com/weir-go/ratelimit/internal/ctxwait"
	"github.com/weir-go/ratelimit/internal/meter"
)

// line is a tenant's callers who wait, first come, first served.
type line struct {
	first, last *waiter
	tag         uint64 // of the first: the virtual time at which the debt is paid after it; it keeps it
	costs       int64  // of those behind the first
	place       int    // among the lines
}

// waiter is a caller who waits.
type waiter struct {
	cost       int64
	next, prev *waiter
	served     bool
	err        error         // why it will never be served
	wake       chan struct{} // that it is served, or has come first of all
}

// Wait spends cost of the tenant's share and returns nil when its time has come. Callers of one tenant are served first come,
// first served, and tenants by their shares. While a tenant has a caller in line, its Allow and Take are denied.
//
// A Wait that fails has spent nothing. Its error wraps [context.DeadlineExceeded], at once if the burst cannot have room
// before the deadline; the context's error when that ends; [ratelimit.ErrLimited] if [Options.MaxWaiting] callers wait; or
// is one of Take's.
func (l *Limiter[K]) Wait(ctx context.Context, tenant K, cost int) error {
	if ctx == nil {
		ctx = context.Background()
	}
	d := ratelimit.Decision{}
	err := l.wait(ctx, tenant, cost, &d)
	l.report(tenant, cost, d, err == nil && cost > 0, err)
	return err
}

func (l *Limiter[K]) wait(ctx context.Context, key K, cost int, d *ratelimit.Decision) error {
	left, err := ctxwait.Left(ctx)
	if err != nil {
		return err
	}
	if err := l.check(key, cost); err != nil {
		return err
	}
	weight, reading := l.weight(key), l.reading()
	l.mu.Lock()
	w, err := l.joinLocked(key, weight, reading, int64(cost), left, d)
	l.wakeLocked()
	l.mu.Unlock()
	if w == nil {
		return err
	}
	return l.await(ctx, key, w, d)
}

// joinLocked spends the cost at once, or puts a waiter in line.
func (l *Limiter[K]) joinLocked(key K, weight uint64, reading, cost int64, left time.Duration, d *ratelimit.Decision) (*waiter, error) {
	m := l.advanceLocked(reading)
	if err := l.exceedsLocked(int(cost)); err != nil {
		l.standingLocked(newTenant(key, weight), m, d)
		return nil, err
	}
	t, err := l.tenantLocked(key, weight, cost > 0)
	if err != nil {
		d.Limit = l.budget.limit
		return nil, err
	}
	if d.Allowed = cost == 0 || l.passesLocked(t, m, cost); d.Allowed {
		if cost > 0 {
			l.chargeLocked(t, m, cost, meter.Final)
		}
		l.standingLocked(t, m, d)
		return nil, nil
	}
	l.standingLocked(t, m, d)
	d.RetryAfter, _ = l.retryLocked(t, m, cost)
	if room := l.budget.retry(m, cost); room > left {
		return nil, fmt.Errorf("fair: %w: there is no room for cost %d before %v, and the deadline is in %v",
			context.DeadlineExceeded, cost, room, left)
	}
	if l.waiting >= l.opts.MaxWaiting {
		return nil, fmt.Errorf("fair: %w: %d callers wait, as many as Options.MaxWaiting allows", ratelimit.ErrLimited, l.waiting)
	}
	w := &waiter{cost: cost, wake: make(chan struct{}, 1)}
	l.waiting++
	if t.line.first == nil {
		t.line.first, t.line.last = w, w
		l.filedLocked(t)
		l.tagLocked(t)
		heap.Push(&l.lines, t)
	} else {
		w.prev, t.line.last.next = t.line.last, w
		t.line.last = w
		t.line.costs += cost
	}
	return w, nil
}

// tagLocked gives a line's first waiter its tag.
func (l *Limiter[K]) tagLocked(t *tenant[K]) {
	t.line.tag = l.shares.virtual + l.shares.lead(t, t.line.first.cost)
}

// movedLocked keeps the tenant's places after what it owes or weighs has changed.
func (l *Limiter[K]) movedLocked(t *tenant[K]) {
	l.filedLocked(t)
	if t.line.first != nil {
		heap.Fix(&l.lines, t.line.place)
		l.hurryLocked()
	}
}

// await sleeps until a waiter is served or its context ends. The one that comes first of all tenants
// sleeps on the clock, the others until they are woken.
func (l *Limiter[K]) await(ctx context.Context, key K, w *waiter, d *ratelimit.Decision) error {
	for {
		reading := l.reading()
		l.mu.Lock()
		m := l.advanceLocked(reading)
		var timer <-chan time.Time
		if len(l.lines) > 0 && l.lines[0].line.first == w {
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

// quit takes a waiter out of its line, unless it has been served.
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
	if w.next != nil {
		w.next.prev = w.prev
	} else {
		t.line.last = w.prev
	}
	if w.prev != nil { // it is not the first, so its cost is among those behind it
		w.prev.next = w.next
		t.line.costs -= w.cost
		return
	}
	if t.line.first = w.next; w.next == nil {
		heap.Remove(&l.lines, t.line.place)
		l.filedLocked(t)
		return
	}
	t.line.costs -= w.next.cost
	l.tagLocked(t)
	heap.Fix(&l.lines, t.line.place)
}

// serveLocked lets all waiters spend whose time has come.
func (l *Limiter[K]) serveLocked(m meter.Moment) {
	for len(l.lines) > 0 {
		t := l.lines[0]
		w := t.line.first
		lead := after(t.line.tag, l.shares.virtual)
		if l.budget.retry(m, w.cost) > 0 || !l.withinLocked(t, m, lead, w.cost, l.budget.free(m.Now)) {
			return
		}
		l.budget.Allow(&l.budget.state, m.Now, w.cost)
		l.shares.owe(t, t.line.tag, 0)
		w.served = true
		wake(w)
		l.leaveLocked(t, w)
	}
}

// turnLocked returns how long the first waiter of all sleeps: until it may be served, if nobody
// else spends, or until the first debt is paid, which makes the others' shares larger.
func (l *Limiter[K]) turnLocked(m meter.Moment) time.Duration {
	t := l.lines[0]
	cost, b, s := t.line.first.cost, &l.budget, &l.shares
	room := b.retry(m, cost)
	if s.alone(t) {
		return max(room, b.retryAlone(m.Now, cost)+time.Duration(m.Now-m.Reading), 1)
	}
	lead := after(t.line.tag, s.virtual)
	amount, _ := s.ifNobodySpends(t, lead, lead, b.free(m.Now))
	if len(s.debtors) > 0 {
		amount = min(amount, s.toReach(after(s.first().paid, s.virtual)))
	}
	return max(room, s.timeFor(amount)+time.Duration(m.Now-m.Reading), 1)
}

// wakeLocked wakes the first waiter of all, if it does not sleep on the clock yet. It ends each
// critical section in which that may have changed.
func (l *Limiter[K]) wakeLocked() {
	if len(l.lines) > 0 && l.lines[0].line.first != l.sleeper {
		l.sleeper = nil // its time may change before it comes first again
		wake(l.lines[0].line.first)
	}
}

// hurryLocked wakes the first waiter of all, since its time may come earlier than it sleeps.
func (l *Limiter[K]) hurryLocked() {
	l.sleeper = nil
	l.wakeLocked()
}

// refuseLocked ends the waits of all whose cost is above the burst.
func (l *Limiter[K]) refuseLocked() {
	for _, t := range slices.Clone(l.lines) {
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

// lines are the tenants whose callers wait: a heap by the tags of their first ones.
type lines[K comparable] []*tenant[K]

func (h lines[K]) Len() int { return len(h) }

func (h lines[K]) Less(i, j int) bool { return int64(h[i].line.tag-h[j].line.tag) < 0 }

func (h lines[K]) Swap(i, j int) {
	h[i], h[j] = h[j], h[i]
	h[i].line.place, h[j].line.place = i, j
}

func (h *lines[K]) Push(x any) {
	t := x.(*tenant[K])
	t.line.place = len(*h)
	*h = append(*h, t)
}

func (h *lines[K]) Pop() any {
	last := len(*h) - 1
	t := (*h)[last]
	(*h)[last] = nil
	*h = (*h)[:last]
	return t
}
