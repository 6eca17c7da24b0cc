package ratelimit

import (
	"context"
	"fmt"
	"math"
	"sync/atomic"
	"time"

	"github.com/weir-go/ratelimit/internal/held"
	"github.com/weir-go/ratelimit/internal/meter"
	"github.com/weir-go/ratelimit/internal/optional"
	"github.com/weir-go/ratelimit/internal/wait"
)

// Wait spends cost of the key's budget and returns nil when its time has come: at once if it fits, else after sleeping in real
// time. On a leaky bucket it returns when the work may leave the queue.
//
// A key's waiters are served in the order of their calls, each as early as the key's spending and limit then allow. They move
// up when a waiter before them leaves, a reservation is settled for less, units are granted or the limit is raised. No waiter
// is served later than computed at its arrival, unless the limit is lowered or more is charged. Other calls do not overtake
// waiters. Bookings by [Keyed.Reserve] keep their instants. Each change takes constant time, however many calls wait.
//
// It fails at once, wrapping [context.DeadlineExceeded], if the deadline comes before its time. It
// fails with the context's error when the context ends, and with [ErrLimited] if a leaky bucket's queue
// is full or [Options.MaxWaiting] calls wait. It fails with the errors of [Keyed.Take], also if the
// limit becomes too low for the cost. A failed Wait has spent nothing, as after [Reservation.Cancel].
func (l *Keyed[K]) Wait(ctx context.Context, key K, cost int) error {
	ctx = wait.OrBackground(ctx)
	var d Decision
	spent, err := l.wait(ctx, key, cost, &d)
	if l.onDecision != nil {
		l.report(ctx, key, cost, d, spent && err == nil, err)
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
	case !d.Allowed: // RetryAfter is the wait's excess over the maximum
		return false, tooLate(between(-int64(left), int64(d.RetryAfter)), d.Limit)
	}
	if t != nil {
		t.home = keyHome[K]{l, key}
		err = await(ctx, l.clock, t)
	} else if err = wait.Sleep(ctx, d.Delay); err != nil { // the clock was set back
		sp := spendingOf(o, int64(cost), meter.Booked)
		a.settleAt(l.clock, &sp, 0, nil)
	}
	return a != nil, err
}

// tooLate is the error of a Wait whose time would come after the deadline.
func tooLate(wait time.Duration, l Limit) error {
	return &LateError{Limit: l, After: wait, Reason: context.DeadlineExceeded}
}

// Wait spends cost of the key's budget on any limiter, and returns nil when its time has come. If r is a [Waiter], it calls
// r's Wait. Otherwise it reserves the cost as far ahead as the deadline allows, or sleeps for RetryAfter and tries again.
//
// It fails with Reserve's errors, and with the context's error when the context ends. It fails
// with [context.DeadlineExceeded] if the cost is denied until after the deadline, and with
// [ErrLimited] if the cost is denied and there is no deadline. A failed Wait has spent nothing.
func Wait[K any](ctx context.Context, r Reserver[K], key K, cost int) error {
	ctx = wait.OrBackground(ctx)
	if optional.IsNil(r) {
		return optional.Nil("ratelimit: Wait: r")
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
		switch {
		case res == nil:
		case res.hold > 0:
			return also(&held.NoEnd{}, res.Cancel())
		default:
			return res.Wait(ctx)
		}
		if err := wait.Sleep(ctx, retry); err != nil {
			return err
		}
	}
}

// reserveWithin reserves a cost for a time before the deadline, or returns when to try again. If
// the cost is denied, it calls a second time, without a delay: then an engine with bookings
// returns the time when the cost fits. If that time is after the deadline, no retry can succeed.
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

// reserveOnce reserves a cost with a delay. It returns an error if the cost is
// denied until after the deadline. Without an error, the reservation is not nil.
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
		return nil, tooLate(res.RetryAfter, res.Limit)
	}
	return res, nil
}

// turn is a call's place in a key's line, in real time: see [meter.Line].
// Only a line's first call has a timer. It is woken when anything changes.
type turn struct {
	meter.Turn
	home home
	room *waitingRoom
}

// home is the limiter and a line's key. The line's first call needs
// them when the limits change, or when the key has left the table.
type home interface {
	// current returns the limits' generation.
	current() *generation
	// renew puts the line's key under its present limit, and back into the table.
	renew(l *meter.Line) error
	// refusal returns the error if the limit of the line's key has become too low for the cost.
	refusal(l *meter.Line, cost int64) error
	// abandon forgets a line if all calls have left it while its key was not in the table.
	abandon(l *meter.Line)
}

// keyHome is home for one key.
type keyHome[K comparable] struct {
	l   *Keyed[K]
	key K
}

func (h keyHome[K]) current() *generation { return h.l.generation.Load() }

func (h keyHome[K]) abandon(line *meter.Line) { h.l.keys.orphans.drop(h.key, line) }

func (h keyHome[K]) refusal(line *meter.Line, cost int64) error {
	switch p, err := h.plan(line); {
	case err != nil:
		return err
	case p.holds():
		return p.endless(1, new(request))
	case cost > p.capacity:
		return p.exceeds(cost)
	}
	return fmt.Errorf("%w: cost %d was above a limit of the key that has changed again since", ErrExceedsLimit, cost)
}

func (h keyHome[K]) renew(line *meter.Line) error {
	refreshed := h.l.refreshed.Load() // before the call to LimitFor: see Keyed.Refresh
	p, err := h.plan(line)
	if err != nil {
		return err
	}
	if !p.tracks() || p.holds() {
		h.release(line, p.capacity == 0 || p.holds())
		return nil
	}
	a := lockOwner(line)
	if a.plan == nil {
		a.mu.Unlock()
		// Whoever inserts the key gives it its line.
		if a, _, _, err = h.l.keys.acquire(h.key, p, h.l.clock, false); err != nil {
			return err
		}
	}
	defer a.mu.Unlock()
	a.adopt(p, reading(h.l.clock))
	if h.l.refreshed.Load() != refreshed {
		a.markStale()
	}
	return nil
}

// plan returns the key's due plan: the plan of its own limit, or of its last request's limit.
func (h keyHome[K]) plan(line *meter.Line) (*plan, error) {
	a := lockOwner(line)
	p := a.plan
	a.mu.Unlock()
	if p != nil && p.ofRequest() && !p.stale() {
		return h.l.generation.Load().forRequest(p.limit)
	}
	return h.l.planOfKey(h.key)
}

// release ends the line under Unlimited or Blocked: all calls pass, or all are refused.
func (h keyHome[K]) release(line *meter.Line, refused bool) {
	a := lockOwner(line)
	defer a.mu.Unlock()
	if a.plan == nil {
		h.abandon(line)
		line.ReleaseAll(refused)
		return
	}
	a.plan.Release(&a.State, refused)
	a.mayBeFresher()
}

// lockOwner locks the account that owns a line, even if the line changes its owner meanwhile.
func lockOwner(l *meter.Line) *account {
	for {
		a := l.Owner.Load().(*account)
		a.mu.Lock()
		if l.Owner.Load() == a {
			return a
		}
		a.mu.Unlock()
	}
}

// waitingRoom counts the waiting calls, up to a maximum unless the maximum is 0.
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

// full is the error of a call without room.
func (r *waitingRoom) full(cost int) error {
	return fmt.Errorf("%w: cost %d would have to wait, and %d calls wait, which Options.MaxWaiting allows", ErrLimited, cost, r.max)
}

// noRoom stands for the turn of a call without room.
var noRoom = new(turn)

// decideTurn is decide for a waiting call. If the cost fits only later, the call gets a turn. The caller holds the lock.
func (a *account) decideTurn(clock Clock, room *waitingRoom, m meter.Moment, cost int64, q request, d *Decision) meter.Offer {
	a.last, a.held = m.Now, true
	a.plan.Advance(&a.State, m.Now)
	o := a.plan.Offer(a.State, m, cost, q.ahead(a.plan))
	fits := !o.Denied(m.Reading)
	waits := fits && o.At > m.Now
	if waits && !room.enter() {
		*q.turn, fits, waits = noRoom, false, false
		o = a.plan.Offer(a.State, m, cost, 0)
	}
	switch {
	case waits:
		t := &turn{Turn: meter.Turn{Cost: cost, Open: q.keep == meter.Open, Wake: make(chan struct{}, 1)}, room: room}
		a.plan.Join(&a.State, m.Now, &t.Turn, o)
		t.comes(a, clock)
		*q.turn = t
	case fits:
		a.plan.Accept(&a.State, m.Now, o, cost, q.keep)
	}
	o.Changes = a.changes
	d.verdict(m, o)
	a.use.decided(d.Allowed)
	return o
}

// comes records the account of a turn that has come into its line, and both clocks' times. It reads
// the clock again, because the call may have waited for the lock since the moment of the decision.
func (t *turn) comes(a *account, clock Clock) {
	t.Line.Owner.Store(a)
	t.Line.At, t.Line.Due = reading(clock), time.Now()
}

// await sleeps until all turns are over, and returns nil. If the context ends first, await takes the
// open turns out of their lines, and returns the context's error. The turns share their channel.
func await(ctx context.Context, clock Clock, turns ...*turn) error {
	defer func() {
		for _, t := range turns {
			t.room.leave()
		}
	}()
	leave := func() (left bool) {
		for _, t := range turns {
			left = t.leave(clock) || left
		}
		return left
	}
	for {
		over, changed, timer, err := look(clock, turns)
		if err != nil && leave() {
			return err
		}
		if over || err != nil {
			for _, t := range turns {
				if t.Refused {
					leave()
					return t.home.refusal(t.Line, t.Cost)
				}
			}
			return nil
		}
		var due <-chan time.Time
		if timer != nil {
			due = timer.C
		}
		select {
		case <-turns[0].Wake:
		case <-due:
		case <-changed:
		case <-ctx.Done():
			if !leave() {
				return nil
			}
			return ctx.Err()
		}
		if timer != nil {
			timer.Stop()
		}
	}
}

// look serves all due turns in the lines of the given turns, and reports whether the given turns are over. If they are
// not, it returns a timer for the first ones of their lines, and a channel, to be closed when their limits change.
func look(clock Clock, turns []*turn) (over bool, changed <-chan struct{}, timer *time.Timer, err error) {
	over = true
	soonest := time.Duration(-1)
	for _, t := range turns {
		x, err := t.look(clock)
		if err != nil {
			return false, nil, nil, err
		}
		if over = over && x.over; x.first && (soonest < 0 || x.wait < soonest) {
			soonest, changed = max(0, x.wait), x.changed
		}
	}
	if over || soonest < 0 {
		return over, nil, nil, nil
	}
	return false, changed, time.NewTimer(soonest), nil
}

// looked is a turn's state.
type looked struct {
	over    bool
	first   bool            // the turn is the first in its line
	wait    time.Duration   // of the first turn: the time until it is due
	changed <-chan struct{} // closed when the limits have changed, and the first turn must look again
	again   bool            // the first turn's call tries at once
}

// look serves all due turns. A line's first turn first puts the key under its present limit, and into the table.
func (t *turn) look(clock Clock) (looked, error) {
	for {
		g := t.home.current()
		x, outdated := t.lookAt(clock, g)
		if !outdated {
			x.changed = g.changed
			return x, nil
		}
		if err := t.home.renew(t.Line); err != nil {
			return looked{}, err
		}
	}
}

// lookAt is look, unless the line is outdated: then its key is not in the table, or may have another limit in generation g.
func (t *turn) lookAt(clock Clock, g *generation) (x looked, outdated bool) {
	a := lockOwner(t.Line)
	defer a.mu.Unlock()
	if x = (looked{over: t.Over, first: !t.Over && t.Line.First() == &t.Turn}); !x.first {
		return x, false
	}
	if a.plan == nil || a.plan.stale() || a.plan.generation() != g.seq {
		return x, true
	}
	x.wait = a.serve(clock, t.Line)
	if x.over, x.first = t.Over, t.Line.First() == &t.Turn; x.first {
		x.again, t.Again = t.Again, false
	}
	return x, false
}

// serve serves all due turns, by the clock or in real time, and returns
// the time until the next one is due. The caller holds the lock.
func (a *account) serve(clock Clock, l *meter.Line) (wait time.Duration) {
	read := reading(clock)
	now := time.Now()
	for a.State.Line() == l {
		at := a.plan.Due(&a.State)
		due := l.Due.Add(time.Duration(at - l.At))
		if l.First().Tries && (at <= read || !due.After(now)) {
			l.Rouse()
			return 0
		}
		switch {
		case at <= read:
			a.last = max(read, a.last)
		case due.After(now):
			return due.Sub(now)
		case a.plan.ServeAhead(&a.State):
			continue
		default:
			a.last = max(at, a.last)
		}
		a.plan.Advance(&a.State, a.last)
	}
	return 0
}

// leave takes a turn out of its line, or reports false if it was over.
func (t *turn) leave(clock Clock) bool {
	a := lockOwner(t.Line)
	defer a.mu.Unlock()
	if !t.Over && a.plan != nil {
		a.serve(clock, t.Line)
	}
	if t.Over {
		return false
	}
	return a.giveUp(reading(clock), t)
}

// giveUp takes a turn out of its line, or reports false if the turn has been served. The caller holds the lock.
func (a *account) giveUp(read int64, t *turn) bool {
	if a.plan == nil {
		if t.Line.Drop(&t.Turn); t.Line.First() == nil {
			t.home.abandon(t.Line)
		}
		return true
	}
	a.last = max(read, a.last)
	if a.plan.Advance(&a.State, a.last); t.Over {
		return false
	}
	a.plan.Leave(&a.State, &t.Turn)
	a.mayBeFresher()
	return true
}

// settleTurn ends the turn of a settled spending, and replaces it by its charge. It reports true if nothing is
// left to settle, for example because an unlimited key has let the call through. The caller holds the lock.
func (a *account) settleTurn(read int64, sp *spending, actual int64) (settled bool) {
	t := sp.turn
	sp.turn = nil
	if !t.Over {
		a.giveUp(read, t)
	}
	sp.Spending = t.Spent
	return t.Free || t.Spent.Cost == 0 && actual == 0
}

// awaited is a charge whose instant the work may have to wait for.
type awaited struct {
	a    *account // nil if nothing was charged
	sp   *spending
	home home
	room *waitingRoom
}

// awaitAll sleeps until all charges' instants have come. For charges
// without a turn, it sleeps until the latest instant at most. See [local].
func awaitAll(ctx context.Context, clock Clock, latest time.Time, all ...awaited) error {
	var turns []*turn
	sleeps := false // whether a charge has no turn: then awaitAll sleeps until latest
	wake := make(chan struct{}, 1)
	for _, x := range all {
		if x.a == nil {
			continue
		}
		t, due := x.a.standLater(clock, x, wake)
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

// standLater moves a booked cost into the line, at the place of its arrival, and gives the booking back.
// If it returns no turn, it reports whether the work is due. Other work waits until the latest instant.
func (a *account) standLater(clock Clock, x awaited, wake chan struct{}) (t *turn, due bool) {
	a.mu.Lock()
	defer a.mu.Unlock()
	sp := x.sp
	if sp.turn != nil {
		return nil, sp.turn.Over
	}
	read := reading(clock)
	if a.plan == nil {
		return nil, sp.At <= read
	}
	a.last = max(read, a.last)
	if a.plan.Advance(&a.State, a.last); sp.At <= a.last {
		return nil, sp.At <= read
	}
	if sp.Cost > a.plan.capacity || !a.plan.HasBooking(&a.State, sp.At) {
		return nil, false
	}
	if !x.room.enter() {
		return noRoom, false
	}
	sp.Changed = sp.changes != a.changes
	a.plan.Settle(&a.State, a.last, sp.Spending, 0)
	t = &turn{Turn: meter.Turn{Cost: sp.Cost, Open: sp.Open, Wake: wake, Number: sp.number}, home: x.home, room: x.room}
	a.plan.Insert(&a.State, a.last, &t.Turn, sp.At)
	t.comes(a, clock)
	sp.turn = t
	return t, false
}

// tries puts a call into the line of its key, at the place of its arrival. The call needs other keys'
// budgets, too. tries reports false if the key was dropped, or its limit has become too low for the cost.
func (a *account) tries(clock Clock, cost int64, t *turn) bool {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.plan == nil || cost > a.plan.capacity {
		return false
	}
	a.last = max(reading(clock), a.last)
	a.plan.Advance(&a.State, a.last)
	t.Turn = meter.Turn{Cost: cost, Tries: true, Number: t.Number, Wake: make(chan struct{}, 1)}
	a.plan.Insert(&a.State, a.last, &t.Turn, math.MaxInt64)
	t.comes(a, clock)
	return true
}

// stays reports whether a turn with the given cost is in an account's line.
func (t *turn) stays(a *account, cost int64) bool {
	owner := lockOwner(t.Line)
	defer owner.mu.Unlock()
	return owner == a && !t.Over && t.Cost == cost
}

// urgeNext makes the call behind the first one try at once when the first one has left.
func (t *turn) urgeNext() {
	owner := lockOwner(t.Line)
	defer owner.mu.Unlock()
	if t.Line.First() == &t.Turn {
		t.Line.Urge()
	}
}

// rereadEvery is how often the first call of a line computes its request's limits again. Nothing reports when they change.
const rereadEvery = time.Second

// comesFirst sleeps until the call should try: its turn is the first and due, or is over, or its limits have changed. If the
// limits are its request's, the first call also tries now and then. Then early is true.
func (t *turn) comesFirst(ctx context.Context, clock Clock, ofRequest bool) (early bool, err error) {
	g := t.home.current()
	for {
		x, outdated := t.lookAt(clock, g)
		if x.over || outdated || x.first && x.wait <= 0 {
			return false, nil
		}
		var due, reread <-chan time.Time
		var changed <-chan struct{}
		var timer *time.Timer
		switch {
		case x.again:
			return true, nil
		case x.first && ofRequest && x.wait > rereadEvery:
			timer = time.NewTimer(rereadEvery)
			reread, changed = timer.C, g.changed
		case x.first:
			timer = time.NewTimer(x.wait)
			due, changed = timer.C, g.changed
		}
		select {
		case <-t.Wake:
		case <-due:
		case <-reread:
			early = true
		case <-changed:
		case <-ctx.Done():
			err = ctx.Err()
		}
		if timer != nil {
			timer.Stop()
		}
		if early || err != nil {
			return early, err
		}
		if x.first && t.home.current() != g {
			return false, nil
		}
	}
}
