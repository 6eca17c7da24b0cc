package ratelimit

import (
	"context"
	"errors"
	"fmt"
	"sync/atomic"
	"time"

	"github.com/weir-go/ratelimit/internal/meter"
	"github.com/weir-go/ratelimit/internal/optional"
	"github.com/weir-go/ratelimit/internal/wait"
)

// Wait spends cost of the key's budget and returns nil when its time has come: at once if it fits, else after sleeping in real
// time. On a leaky bucket it returns when the work may leave the queue.
//
// The waiters of one key are served in the order of their calls. When one of them leaves, because its context ends, all waiters
// behind it move up; none is served later than at the time that was computed when it came. Calls that do not wait do not
// overtake them. Bookings by [Keyed.Reserve] or a debt keep their instants. Removing a waiter takes constant time if all costs
// are equal. Otherwise it takes time linear in the number of waiters behind it, at most once for each decision on the key.
//
// It fails at once with an error that wraps [context.DeadlineExceeded] if the deadline comes before its time; with the
// context's error when that ends; with [ErrLimited] if a leaky bucket's queue is full, or [Options.MaxWaiting] calls wait; and
// with the errors of [Keyed.Take]. A Wait that fails has spent nothing, as after [Reservation.Cancel].
func (l *Keyed[K]) Wait(ctx context.Context, key K, cost int) error {
	ctx = wait.OrBackground(ctx)
	var d Decision
	spent, err := l.wait(ctx, key, cost, &d)
	if l.onDecision != nil {
		l.report(key, cost, d, spent && err == nil, err)
	}
	return err
}

// wait is Wait without the report. It also reports whether it has charged anything.
func (l *Keyed[K]) wait(ctx context.Context, key K, cost int, d *Decision) (spent bool, err error) {
	left, err := wait.Left(ctx)
	if err != nil {
		return false, err
	}
	var t *turn
	q := reserveRequest(left, meter.Booked)
	q.turn = &t
	a, o, err := l.decide(key, cost, q, d)
	switch {
	case err != nil:
		return false, err
	case t == noRoom:
		return false, l.waiting.full(cost)
	case !d.Allowed && d.Limit.Algorithm == AlgorithmLeakyBucket && cost > d.Remaining:
		return false, fmt.Errorf("%w: cost %d finds the queue full for another %v under %v", ErrLimited, cost, d.RetryAfter, d.Limit)
	case !d.Allowed && left == wait.Forever:
		return false, fmt.Errorf("%w: cost %d would be booked more than 100 years ahead under %v", ErrLimited, cost, d.Limit)
	case !d.Allowed: // RetryAfter is how much too late the time would be
		return false, tooLate(cost, between(-int64(left), int64(d.RetryAfter)), left, d.Limit)
	}
	if t != nil {
		err = await(ctx, l.clock, t)
	} else if err = wait.Sleep(ctx, d.Delay); err != nil { // the clock was set back
		sp := spendingOf(o, int64(cost), meter.Booked)
		a.settleAt(l.clock, &sp, 0)
	}
	return a != nil, err
}

// tooLate is the error of a Wait whose time would come after the deadline.
func tooLate(cost int, wait, left time.Duration, l Limit) error {
	return fmt.Errorf("%w: cost %d must wait for %v under %v, but the deadline is in %v", context.DeadlineExceeded, cost, wait, l, left)
}

// Wait spends cost of the key's budget on any limiter, and returns nil when its time has come. It is r's Wait if r is
// a [Waiter]. Else it reserves the cost as far ahead as the deadline allows, or sleeps for RetryAfter and tries
// again.
//
// It fails with the errors of Reserve; with the context's error when that ends; with [context.DeadlineExceeded] if
// the cost is denied until after the deadline; and with [ErrLimited] if it is denied and there is no deadline. A Wait
// that fails has spent nothing.
func Wait[K any](ctx context.Context, r Reserver[K], key K, cost int) error {
	ctx = wait.OrBackground(ctx)
	if optional.IsNil(r) {
		return errors.New("ratelimit: Wait was given no limiter")
	}
	if w, ok := r.(Waiter[K]); ok {
		return w.Wait(ctx, key, cost)
	}
	return waitByReserve(ctx, r, key, cost)
}

// waitByReserve is Wait for a limiter without a Wait of its own.
func waitByReserve[K any](ctx context.Context, r Reserver[K], key K, cost int) error {
	for {
		left, err := wait.Left(ctx)
		if err != nil {
			return err
		}
		res, retry, err := reserveWithin(ctx, r, key, cost, left)
		if err != nil {
			return err
		}
		if res != nil {
			return res.Wait(ctx)
		}
		if err := wait.Sleep(ctx, retry); err != nil {
			return err
		}
	}
}

// reserveWithin reserves a cost for a time before the deadline, or returns when to try again. If the cost is denied, it calls a
// second time, without a delay: then an engine that books ahead returns the time at which the cost fits. If that is after the
// deadline, no retry can succeed.
func reserveWithin[K any](ctx context.Context, r Reserver[K], key K, cost int, left time.Duration) (*Reservation, time.Duration, error) {
	res, err := reserveOnce(ctx, r, key, cost, left, left)
	if err != nil || res.Allowed {
		return res, 0, err
	}
	retry := res.RetryAfter
	if res, err = reserveOnce(ctx, r, key, cost, 0, left); err != nil || res.Allowed {
		return res, 0, err
	}
	return nil, retry, nil
}

// reserveOnce reserves a cost with a delay. It is an error if that is denied until after the deadline. The reservation is
// not nil without an error.
func reserveOnce[K any](ctx context.Context, r Reserver[K], key K, cost int, delay, left time.Duration) (*Reservation, error) {
	res, err := r.Reserve(new(optional.Passing).From(ctx), key, cost, delay)
	switch {
	case err != nil:
		return nil, also(err, res.Cancel())
	case res == nil:
		res = new(Reservation)
	case res.Allowed:
		return res, nil
	}
	switch {
	case left == wait.Forever:
		return nil, fmt.Errorf("%w: cost %d is denied under %v, and there is no deadline to wait for", ErrLimited, cost, res.Limit)
	case res.RetryAfter <= 0:
		return nil, fmt.Errorf("%w: cost %d is denied under %v, without a time to wait for", context.DeadlineExceeded, cost, res.Limit)
	case res.RetryAfter > left:
		return nil, tooLate(cost, res.RetryAfter, left, res.Limit)
	}
	return res, nil
}

// turn is the place of a call in the line of a key, in real time: see [meter.Line]. Only the first call of a line has a
// timer. A call that serves turns, or leaves the line, wakes the next one.
type turn struct {
	meter.Turn
	a    *account
	room *waitingRoom
}

// waitingRoom counts the calls that wait, up to a maximum unless that is 0.
type waitingRoom struct {
	n   atomic.Int64
	max int64
}

// enter counts one more call, or reports false if there is no room.
func (r *waitingRoom) enter() bool {
	if n := r.n.Add(1); n <= r.max || r.max == 0 {
		return true
	}
	r.n.Add(-1)
	return false
}

func (r *waitingRoom) leave() { r.n.Add(-1) }

// full is the error of a call that finds no room.
func (r *waitingRoom) full(cost int) error {
	return fmt.Errorf("%w: cost %d would have to wait, and %d calls wait, which Options.MaxWaiting allows", ErrLimited, cost, r.max)
}

// noRoom stands for the turn of a call that finds no room.
var noRoom = new(turn)

// decideTurn is decide for a call that waits. If its cost is booked for later, it has a turn. The caller holds the lock.
func (a *account) decideTurn(clock Clock, room *waitingRoom, m meter.Moment, cost int64, q request, d *Decision) meter.Offer {
	a.last = m.Now
	a.plan.Advance(&a.State, m.Now)
	o := a.plan.Offer(a.State, m, cost, q.ahead(a.plan))
	fits := !o.Denied(m.Reading)
	waits := fits && o.At > m.Now
	if waits && !room.enter() {
		*q.turn, fits, waits = noRoom, false, false
		o = a.plan.Offer(a.State, m, cost, 0)
	}
	if fits {
		a.plan.Accept(&a.State, m.Now, o, cost, q.keep)
	}
	if waits {
		// The lock may have been waited for since the moment was read.
		read, now := reading(clock), time.Now()
		*q.turn = a.stand(read, now, now.Add(time.Duration(o.At-read)), o.Spending(cost), room, make(chan struct{}, 1))
	}
	o.Changes = a.changes
	d.verdict(m, o)
	a.use.decided(d.Allowed)
	return o
}

// stand puts a booking into the key's line, and returns its turn, or nil if the cost is not booked any more. The caller holds
// the lock, and has read both clocks.
func (a *account) stand(read int64, now, latest time.Time, sp meter.Spending, room *waitingRoom, wake chan struct{}) *turn {
	t := &turn{Turn: meter.Turn{Cost: sp.Cost, Open: sp.Open, Latest: latest, Wake: wake}, a: a, room: room}
	if !a.plan.Join(&a.State, &t.Turn, sp) {
		room.leave()
		return nil
	}
	t.Line.At, t.Line.Due = read, now
	return t
}

// await sleeps until all turns are over, and returns nil; or it returns the context's error if that ends before, and the
// turns that were not over have left their lines. The turns share their channel.
func await(ctx context.Context, clock Clock, turns ...*turn) error {
	defer func() {
		for _, t := range turns {
			t.room.leave()
		}
	}()
	for {
		over, timer := look(clock, turns)
		if over {
			return nil
		}
		var due <-chan time.Time
		if timer != nil {
			due = timer.C
		}
		select {
		case <-turns[0].Wake:
		case <-due:
		case <-ctx.Done():
			left := false
			for _, t := range turns {
				left = t.a.leave(clock, t) || left
			}
			if !left {
				return nil
			}
			return ctx.Err()
		}
		if timer != nil {
			timer.Stop()
		}
	}
}

// look serves all due turns in the lines of the given turns. It reports whether the given turns are over, or returns a timer
// for the turns that are first in their lines.
func look(clock Clock, turns []*turn) (over bool, timer *time.Timer) {
	over = true
	soonest := time.Duration(-1)
	for _, t := range turns {
		isOver, isFirst, wait := t.a.lookAt(clock, t)
		if over = over && isOver; isFirst && (soonest < 0 || wait < soonest) {
			soonest = max(0, wait)
		}
	}
	if over || soonest < 0 {
		return over, nil
	}
	return false, time.NewTimer(soonest)
}

// lookAt serves all turns that are due. It reports whether this one is over, or is the first one and has to wait for so long.
func (a *account) lookAt(clock Clock, t *turn) (over, isFirst bool, wait time.Duration) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if t.Over {
		return true, false, 0
	}
	_, first, wait := a.serve(clock, t.Line)
	return t.Over, first == &t.Turn, wait
}

// leave takes a turn out of its line and gives its cost back, or reports false if it was over.
func (a *account) leave(clock Clock, t *turn) bool {
	a.mu.Lock()
	defer a.mu.Unlock()
	if t.Over {
		return false
	}
	read, _, _ := a.serve(clock, t.Line)
	if t.Over {
		return false
	}
	a.giveUp(read, t)
	return true
}

// giveUp takes a turn that is not over out of its line and gives its cost back. The caller holds the lock.
func (a *account) giveUp(read int64, t *turn) {
	var first bool
	if a.plan == nil {
		first = t.Line.Drop(&t.Turn)
	} else {
		a.last = max(read, a.last)
		first = a.plan.Leave(&a.State, a.last, &t.Turn)
		a.mayBeFresher()
	}
	if t.Spent = (meter.Spending{}); first {
		wakeFirst(t.Line)
	}
}

// settleTurn ends the turn of a spending that is settled, and replaces it by the spending of the turn's booking in the line. It
// reports true if nothing is left to settle. The caller holds the lock.
func (a *account) settleTurn(read int64, sp *spending, actual int64) (settled bool) {
	t := sp.turn
	sp.turn = nil
	if t.Over {
		sp.Spending = t.Spent
		return false
	}
	defer rouse(&t.Turn)
	if actual == 0 || a.plan == nil {
		a.giveUp(read, t)
		return actual == 0
	}
	var first bool
	if sp.Spending, first = a.plan.Part(&a.State, &t.Turn); first {
		wakeFirst(t.Line)
	}
	return false
}

// serve serves all turns that are due. It returns the clock's reading, and the first turn that is left with the time until it
// is due. The caller holds the lock. The system's time is read last: all turns that are due by the clock are served.
func (a *account) serve(clock Clock, l *meter.Line) (read int64, first *meter.Turn, wait time.Duration) {
	read = reading(clock)
	now := time.Now()
	for served := false; ; served = true {
		t, at, booked := l.First()
		if t == nil {
			return read, nil, 0
		}
		due := t.Latest
		if d := l.Due.Add(time.Duration(at - l.At)); booked && d.Before(due) {
			due = d
		}
		if due.After(now) && !(booked && at <= read) {
			if served {
				rouse(t)
			}
			return read, t, due.Sub(now)
		}
		if a.plan == nil {
			l.Pop()
		} else {
			a.plan.Serve(&a.State, max(read, a.last), l)
		}
		rouse(t)
	}
}

// wakeFirst wakes the first call of a line, which sets its timer.
func wakeFirst(l *meter.Line) {
	if t, _, _ := l.First(); t != nil {
		rouse(t)
	}
}

func rouse(t *meter.Turn) {
	select {
	case t.Wake <- struct{}{}:
	default: // it is awake, or will be
	}
}

// awaited is a charge that work may have to wait for.
type awaited struct {
	a    *account // nil if nothing was charged
	sp   *spending
	room *waitingRoom
}

// awaitAll sleeps until the instants of all charges have come, but not longer than until the latest instant. See [local].
func awaitAll(ctx context.Context, clock Clock, latest time.Time, all ...awaited) error {
	var turns []*turn
	sleeps := false // in full, as a charge has no turn in a line
	wake := make(chan struct{}, 1)
	for _, x := range all {
		if x.a == nil {
			continue
		}
		t, due := x.a.standLater(clock, x.sp, latest, x.room, wake)
		switch {
		case t == noRoom:
			for _, t := range turns {
				t.room.leave() // the turns leave their lines when the charge is settled
			}
			return x.room.full(int(x.sp.Cost))
		case t != nil:
			turns = append(turns, t)
		case !due:
			sleeps = true
		}
	}
	if len(turns) > 0 {
		if err := await(ctx, clock, turns...); err != nil {
			return err
		}
	}
	if sleeps {
		return wait.Sleep(ctx, time.Until(latest))
	}
	return nil
}

// standLater is stand for a cost that was booked before: the turn is at the place that the booking's instant determines.
// Without a turn, it reports whether the work is due; if not, the work waits until the latest instant.
func (a *account) standLater(clock Clock, sp *spending, latest time.Time, room *waitingRoom, wake chan struct{}) (t *turn, due bool) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if sp.turn != nil {
		return nil, sp.turn.Over
	}
	read, now := reading(clock), time.Now()
	if a.plan == nil {
		return nil, sp.At <= read
	}
	a.last = max(read, a.last)
	if a.plan.Advance(&a.State, a.last); sp.At <= a.last {
		return nil, sp.At <= read
	}
	if !room.enter() {
		return noRoom, false
	}
	booked := sp.Spending
	if sp.changes != a.changes {
		booked.Part = 0 // as the booking has none any more
	}
	sp.turn = a.stand(read, now, latest, booked, room, wake)
	return sp.turn, false
}
