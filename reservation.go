package ratelimit

import (
	"context"
	"errors"
	"fmt"
	"sync/atomic"
	"time"

	"github.com/weir-go/ratelimit/internal/follow"
	"github.com/weir-go/ratelimit/internal/held"
	"github.com/weir-go/ratelimit/internal/meter"
	"github.com/weir-go/ratelimit/internal/wait"
)

// Reserver is a [Limiter] whose charge can be settled later.
type Reserver[K any] interface {
	Limiter[K]

	// Reserve is like Take, but may book budget up to maxDelay ahead, and its charge can be corrected when the real cost is
	// known. With a maxDelay of 0 or less it succeeds only if the work can begin now. The Reservation is never nil.
	Reserve(ctx context.Context, key K, cost int, maxDelay time.Duration) (*Reservation, error)
}

// Reservation is a charge that can be settled once the real cost is known. If its [Decision] is not Allowed, nothing
// was charged and there is nothing to settle. Its methods are safe for concurrent use, also on a nil Reservation.
//
// A Reservation keeps the caller's key in memory until it is dropped. A string cut from a longer
// one keeps the whole text in memory. So settle the reservation, or drop it, when the work is done.
type Reservation struct {
	Decision
	settled atomic.Bool
	settle  func(actual int) error // set by another engine or a stack, else nil
	made    time.Time              // the reservation's time by the monotonic clock, if there is a delay

	local   local         // set by a limiter in memory, else nil
	hold    time.Duration // the shortest hold among its Concurrent limits, 0 if there is none
	instead *instead      // functions of another limiter's reservation; nil if there are none
}

// instead has functions in place of a reservation's own, because its limiter stands in front of another one. Each may be nil.
type instead struct {
	wait   func(ctx context.Context) error // see package follow
	extend func(ctx context.Context) error // see package held
}

// replaced returns r.instead, and makes it if it is nil.
func (r *Reservation) replaced() *instead {
	if r.instead == nil {
		r.instead = new(instead)
	}
	return r.instead
}

func init() {
	follow.Moves = func(r any) bool {
		res, _ := r.(*Reservation)
		return res != nil && res.Delay > 0 && (res.local != nil || res.instead != nil && res.instead.wait != nil)
	}
	follow.Wait = func(r any, wait func(context.Context) error) { r.(*Reservation).replaced().wait = wait }
	held.Extend = func(r any, hold time.Duration, extend func(context.Context) error) {
		x := r.(*Reservation)
		x.hold, x.replaced().extend = hold, extend
	}
	held.Hold = func(r any) time.Duration {
		if x, ok := r.(*Reservation); ok && x != nil && x.Allowed {
			return x.hold
		}
		return 0
	}
}

// local is a charge in memory.
type local interface {
	// settleLocal replaces the charged cost.
	settleLocal(actual int64) error
	// await sleeps until the work may begin, no later than the given instant, and returns
	// nil. It returns an error if the context ends first, or if too many calls wait already.
	await(ctx context.Context, latest time.Time) error
	// extendLocal restarts the hold of units under Concurrent, and reports whether they are still held.
	extendLocal() bool
}

// keyedReservation is a reservation of a Keyed. It keeps the key,
// because the key may leave the table before the reservation is settled.
type keyedReservation[K comparable] struct {
	Reservation
	l   *Keyed[K]
	key K
	a   *account // the charged account, or nil
	sp  spending
}

func (x *keyedReservation[K]) await(ctx context.Context, latest time.Time) error {
	return awaitAll(ctx, x.l.clock, latest, awaited{x.a, &x.sp, keyHome[K]{x.l, x.key}, &x.l.waiting})
}

func (x *keyedReservation[K]) extendLocal() bool { return x.a == nil || x.a.extend(x.l.clock, &x.sp) }

func (x *keyedReservation[K]) settleLocal(actual int64) error {
	if x.hold > 0 {
		actual = 0
	}
	switch {
	case x.a != nil:
		if late := x.a.settleAt(x.l.clock, &x.sp, actual, nil); late > 0 {
			return unlessFull(x.l.debit(x.key, late, nil))
		}
	case x.sp.Cost == 0 && x.Limit.Algorithm != AlgorithmConcurrent:
		return x.l.debit(x.key, actual, nil)
	}
	return nil
}

// unlessFull drops an [ErrTableFull]: a reservation whose key has left a full table settles as much as it can.
func unlessFull(err error) error {
	if errors.Is(err, ErrTableFull) {
		return nil
	}
	return err
}

// NewReservation returns a reservation for another kind of engine. Delay counts from now. If the reservation is allowed,
// its first Settle or Cancel calls settle with the actual cost, never a negative one. A nil settle has nothing to do.
//
// An engine that counts by [Concurrent] also passes extend, for [Reservation.Extend]. extend
// restarts the units' hold, and its error wraps [ErrLost] if they have lapsed. Several
// goroutines may call it, but not after settle has begun. Under other limits it is not called.
func NewReservation(d Decision, settle func(actual int) error, extend ...func(ctx context.Context) error) *Reservation {
	r := &Reservation{Decision: d, settle: settle}
	r.booked()
	if len(extend) > 0 && extend[0] != nil && d.Limit.Algorithm == AlgorithmConcurrent {
		held.Extend(r, d.Limit.Rate.Per, extend[0])
	}
	return r
}

// booked records the time if there is a delay to wait out.
func (r *Reservation) booked() {
	if r.Delay > 0 {
		r.made = time.Now()
	}
}

// Settle replaces the reserved cost by the actual one; a negative one counts as zero. Only the
// first call to Settle or Cancel counts. A cost above the reserved one is charged, as a debt
// if need be. If the cost is lower, the difference is given back, as far as the bound allows:
//
//   - token bucket: as if the real cost had been charged at the beginning. So
//     the whole difference is given back, or the lowest spending since, if less;
//   - leaky bucket: at most cost − rate·(time since it was spent), and only while nothing has entered after it;
//   - windows and log: only while the spending still counts;
//   - [Concurrent]: all units are given back, whatever the actual cost;
//   - if the limit's figures have changed since: in a token bucket as many units as without the change, less up to a
//     unit for each change, and nothing once units set aside by a lowered limit have lapsed; in a leaky bucket nothing;
//     after a change of algorithm to or from a bucket nothing; in a sliding counter only spending of the present window.
//
// In memory a token bucket's key keeps up to 4,096 open reservations apart. Above this
// number, the two with the most similar refunds count as one, with the lower refund.
//
// A grant ([Keyed.Adjust] with a negative delta) may give the same spending back once more: settle first. In a
// token bucket this happens only if the grant comes before Delay is over. After [Keyed.Reset] and eviction there
// is nothing to settle. If a key was dropped because it was fresh, the excess over the reserved cost is charged
// as by [Keyed.Adjust], unless the table is full. Settle takes time linear in the bookings behind this one.
//
// In memory the error is nil, with two exceptions. A reservation with cost 0 fails as
// [Keyed.Adjust] does. A dropped key's reservation fails if LimitFor returns an invalid limit.
// If a remote engine cannot settle, it returns an error, and the reserved cost stays charged.
func (r *Reservation) Settle(actual int) error {
	if r == nil || !r.Allowed || r.settled.Swap(true) {
		return nil
	}
	actual = max(0, actual)
	if r.settle != nil {
		return r.settle(actual)
	}
	if r.local != nil {
		return r.local.settleLocal(int64(actual))
	}
	return nil
}

// Extend restarts the hold of units under [Concurrent]. Call it every third of hold while the work goes on, if the work may
// take longer. The error wraps [ErrLost] if units have lapsed, the reservation was settled, or it is not Allowed. Then the
// limit no longer counts the work: end the work, or reserve again. A remote engine also returns its store's errors; the
// units are then held as long as before. Charges under other limits stay as they are. Without such units, Extend returns
// nil, as on a nil reservation. A limiter in front of another one, such as package chain's, extends the inner reservation.
func (r *Reservation) Extend(ctx context.Context) error {
	switch {
	case r == nil:
		return nil
	case !r.Allowed:
		return fmt.Errorf("%w: the reservation was denied, under %v", ErrLost, r.Limit)
	case r.settled.Load():
		return fmt.Errorf("%w: the reservation was settled", ErrLost)
	case r.hold == 0:
		return nil
	case r.instead != nil && r.instead.extend != nil:
		return r.instead.extend(wait.OrBackground(ctx))
	case r.local != nil && !r.local.extendLocal():
		return fmt.Errorf("%w after %v", ErrLost, r.hold)
	}
	return nil
}

// Cancel gives the whole cost back: it is Settle(0).
func (r *Reservation) Cancel() error { return r.Settle(0) }

// Wait sleeps until the work may begin. It may begin at the latest when Delay is over, in real time from the reservation on.
// Wait returns earlier if the work may begin earlier, for example after a raise or a settlement, or because a call before it
// leaves. In memory it has a place among the waiters of [Keyed.Wait]. On Redis and in SQL it replaces its booking by an
// earlier one. There it may return later than Delay after another process has reset the key, because it has to book again.
//
// If the deadline comes before Delay is over, it fails at once; if the context ends, it fails then. It fails with
// [ErrLimited] if [Options.MaxWaiting] calls wait, and with [ErrExceedsLimit] or [ErrBlocked] if the limit becomes too
// low for the cost. A failed Wait cancels the reservation and returns the error, joined with Cancel's. If the reservation
// is not Allowed, Wait returns [ErrLimited]. If it is nil or settled, even while Wait sleeps, Wait returns nil.
func (r *Reservation) Wait(ctx context.Context) error {
	switch {
	case r == nil || r.settled.Load():
		return nil
	case !r.Allowed:
		return fmt.Errorf("%w: the reservation was denied, under %v", ErrLimited, r.Limit)
	}
	ctx = wait.OrBackground(ctx)
	left, err := wait.Left(ctx)
	if err != nil {
		return also(err, r.Cancel())
	}
	delay := r.delayLeft()
	if delay > left {
		return also(tooLate(delay, r.Limit), r.Cancel())
	}
	switch {
	case delay <= 0:
		return nil
	case r.instead != nil && r.instead.wait != nil:
		err = r.instead.wait(ctx)
	case r.local != nil:
		err = r.local.await(ctx, r.made.Add(r.Delay))
	default:
		err = wait.Sleep(ctx, delay)
	}
	if err != nil {
		return also(err, r.Cancel())
	}
	return nil
}

// delayLeft returns the rest of the delay.
func (r *Reservation) delayLeft() time.Duration {
	if r.Delay <= 0 {
		return 0
	}
	return max(0, r.Delay-time.Since(r.made))
}

// also returns err, with second joined to it unless second is nil.
func also(err, second error) error {
	if second == nil {
		return err
	}
	return errors.Join(err, second)
}

// spending is a charge of a key, as a settlement needs it.
type spending struct {
	meter.Spending
	changes uint32 // the account's count of changes when the cost was spent
	turn    *turn  // the turn of a call while it waits for its instant, and afterwards; guarded by the account's lock
	number  uint64 // the number of its arrival, if it is booked for later
}

// spendingOf returns the spending of an accepted offer.
func spendingOf(o meter.Offer, cost int64, keep meter.Keep) spending {
	sp := o.Spending(cost)
	sp.Open = keep == meter.Open
	return spending{Spending: sp, changes: o.Changes}
}

// settleAt replaces a charge by the actual cost. If the key was dropped because it was fresh, there is nothing to give
// back, and settleAt returns the excess for its caller to charge. If the key was reset or evicted, there is nothing to
// settle. f, the request that follows the key, receives the change, unless it is nil or there is an excess.
func (a *account) settleAt(clock Clock, charged *spending, actual int64, f *followed) (late int64) {
	now := reading(clock)
	a.mu.Lock()
	for t := charged.turn; t != nil && t.Line.Owner.Load() != a; { // the key was dropped, and its line has brought it back
		a.mu.Unlock()
		a = lockOwner(t.Line)
	}
	defer a.mu.Unlock()
	if f != nil {
		at := now
		if a.plan != nil {
			at = max(now, a.last)
		}
		before := f.before(a, at)
		defer func() {
			if late == 0 {
				f.after(a, at, before)
			}
		}()
	}
	if charged.turn != nil && a.settleTurn(now, charged, actual) {
		return 0
	}
	sp := *charged
	if a.plan == nil {
		if a.use.isOver() || a.changes>>kindShift != sp.changes>>kindShift {
			return 0
		}
		return max(0, actual-sp.Cost)
	}
	if a.changes>>kindShift != sp.changes>>kindShift {
		return 0
	}
	a.last = max(now, a.last)
	if a.plan.holds() {
		a.plan.End(&a.State, a.last, sp.Spending)
		charged.Cost = 0 // a concurrent Extend must not find the units of others
		a.use.touched()
	} else {
		sp.Changed = sp.changes != a.changes
		a.plan.Settle(&a.State, a.last, sp.Spending, actual)
	}
	a.mayBeFresher()
	return 0
}

// extend restarts a charge's hold under Concurrent, and reports
// whether its units are still held. Other charges need no extension.
func (a *account) extend(clock Clock, sp *spending) bool {
	now := reading(clock)
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.plan == nil || a.changes>>kindShift != sp.changes>>kindShift {
		return false
	}
	a.last = max(now, a.last)
	a.use.touched()
	return a.plan.Extend(&a.State, a.last, &sp.Spending)
}
