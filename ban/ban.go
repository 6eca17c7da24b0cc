// Package ban bars a key for a time after too many denials, or other strikes such as failed logins.
//
//	limiter, err := ban.New(requests, strikes, bans)
//
// [NewGrowing] bans a returning key for longer.
package ban

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync/atomic"
	"time"

	"github.com/weir-go/ratelimit"
	"github.com/weir-go/ratelimit/internal/optional"
	"github.com/weir-go/ratelimit/internal/wait"
)

// Limiter bans keys. Make one with [New] or [NewGrowing]. It is as safe for concurrent use as its limiters. Methods of the zero
// Limiter panic.
type Limiter[K any] struct {
	limiter, strikes ratelimit.Reserver[K]
	repeats          ratelimit.Reserver[K]   // nil if bans do not grow
	bans             []ratelimit.Reserver[K] // the first is for a key's first ban, the second for its second
	marks            marks[K]
	line             line[K]

	begun, failed atomic.Uint64
	lastFailure   atomic.Pointer[error]
}

var _ ratelimit.Reserver[string] = (*Limiter[string])(nil)

// New returns a limiter that decides as limiter does, and bans keys denied too often:
//
//   - limiter is the limit itself. Nil means none: then only [Limiter.Strike] counts strikes.
//   - strikes limits the strikes of a key: with FixedWindow(PerHour(3)), the third within an hour begins a ban.
//   - bans sets the length of a ban by its window: with FixedWindow(Per(1, time.Hour)), an hour. Its capacity should be 1.
//
// A denial by the first of limiter's Limits is a strike, unless the denial is Degraded. So in a
// stack or a chain, put the key's own limit first. A banned key is denied with the Limit and
// RetryAfter of bans, also for a cost of 0. Further calls do not prolong a ban. If bans fails, the
// decision fails. Other failures are counted in Stats. A full table in memory may forget bans.
//
// A strike comprises a key's denials until the RetryAfter of the first has passed. For example, a page with 30
// parallel requests has 10 denials under a burst of 20, and one strike. A denial without a RetryAfter and all
// later denials are one strike, until strikes has forgotten it. So strikes should span several waits of limiter.
//
// For up to 65,536 keys of comparable types, the Limiter remembers the last such strike. Several processes with
// strikes in one store count one strike together if strikes is a SlidingLog: it records when the last one was. If
// requests from two waits follow each other closely, the processes may count one strike too few. A denial closely
// after a [Limiter.Strike] may count as part of that strike. Under another algorithm, each process counts its
// first denial as a strike. For an incomparable key, it counts each denial.
//
// It is an error if strikes or bans is nil or has no Peek or Reset, or if limiter's first limit equals another one.
func New[K any](limiter, strikes, bans ratelimit.Reserver[K]) (*Limiter[K], error) {
	return newLimiter("New", limiter, strikes, nil, bans)
}

// NewGrowing is [New] with bans that grow while a key comes back. The first limiter in bans serves a key's
// first ban, the second its second, and so on. The last serves all further bans. Each one's window is as
// long as its bans, for example a minute, five minutes and an hour. On a store each needs its own name.
//
// Repeats counts a key's bans, and decides when they are forgotten. For example, SlidingLog(Per(9, 24*time.Hour)) counts
// the bans of the last 24 hours, and TokenBucket(PerDay(1), 9) forgets one ban each day. Repeats should have a capacity
// above the number of bans, and a window longer than the longest ban. If repeats fails, the key gets a first ban, and
// Stats counts the failure. [Limiter.Reset] forgets a key's bans. To keep their number, reset the single limiters instead.
//
// Each decision peeks at all bans. In memory this costs less than a decision. On a store it costs a round trip for each.
func NewGrowing[K any](limiter, strikes, repeats ratelimit.Reserver[K], bans ...ratelimit.Reserver[K]) (*Limiter[K], error) {
	if optional.IsNil(repeats) {
		return nil, optional.Nil("ban: NewGrowing: repeats")
	}
	return newLimiter("NewGrowing", limiter, strikes, repeats, bans...)
}

func newLimiter[K any](caller string, limiter, strikes, repeats ratelimit.Reserver[K], bans ...ratelimit.Reserver[K]) (*Limiter[K], error) {
	if limiter == nil {
		limiter = unlimited[K]{}
	}
	if err := optional.NilInside("ban: "+caller+": limiter", limiter); err != nil {
		return nil, err
	}
	if len(bans) == 0 {
		return nil, fmt.Errorf("ban: %s needs at least one ban", caller)
	}
	if err := usable(caller, "strikes", strikes); err != nil {
		return nil, err
	}
	if repeats != nil {
		if err := usable(caller, "repeats", repeats); err != nil {
			return nil, err
		}
	}
	for i, l := range bans {
		name := "bans"
		if repeats != nil {
			name = fmt.Sprintf("bans[%d]", i)
		}
		if err := usable(caller, name, l); err != nil {
			return nil, err
		}
	}
	limits := ratelimit.Describe(limiter).Limits
	if len(limits) > 1 && limits[0] != (ratelimit.Limit{}) && slices.Contains(limits[1:], limits[0]) {
		return nil, fmt.Errorf("ban: limiter has two limits of %v: give them names, so that a denial identifies its limit", limits[0])
	}
	return &Limiter[K]{limiter: limiter, strikes: strikes, repeats: repeats, bans: slices.Clone(bans)}, nil
}

// usable returns an error if a Limiter cannot count with l.
func usable[K any](caller, name string, l ratelimit.Reserver[K]) error {
	switch {
	case optional.IsNil(l):
		return optional.Nil("ban: " + caller + ": " + name)
	case !optional.CanReset[K](l):
		return optional.Unsupported("ban: "+name, l, "Reset")
	case !optional.CanPeek[K, ratelimit.Decision](l):
		return optional.Unsupported("ban: "+name, l, "Peek")
	}
	return nil
}

// requireInit panics for the zero Limiter.
func (b *Limiter[K]) requireInit() {
	if b == nil || b.limiter == nil {
		panic(optional.Zero("ban", "Limiter", "New or NewGrowing"))
	}
}

// banned looks up the key's bans. If ok is true, the key is not banned,
// and limiter may decide. If ok is false, d and err are the answer.
func (b *Limiter[K]) banned(ctx context.Context, key K, cost int) (d ratelimit.Decision, ok bool, err error) {
	b.requireInit()
	if cost < 0 {
		return d, false, negative(cost)
	}
	for _, bans := range slices.Backward(b.bans) { // the longest first
		d, err = ratelimit.Peek(ctx, ratelimit.Limiter[K](bans), key, 1)
		switch {
		case err != nil:
			return ratelimit.Decision{Limit: d.Limit, Degraded: d.Degraded}, false, fmt.Errorf("ban: bans: %w", err)
		case !d.Allowed:
			b.line.began(key, d)
			return d, false, nil
		}
	}
	return ratelimit.Decision{}, true, nil
}

func negative(n int) error { return fmt.Errorf("%w: %d", ratelimit.ErrNegativeCost, n) }

// Allow is Take without details. An error counts as a denial.
func (b *Limiter[K]) Allow(key K, cost int) bool {
	d, _ := b.Take(context.Background(), key, cost)
	return d.Allowed
}

// Take calls limiter, unless the key is banned. It returns limiter's and bans' errors.
func (b *Limiter[K]) Take(ctx context.Context, key K, cost int) (ratelimit.Decision, error) {
	ctx = wait.OrBackground(ctx)
	if d, ok, err := b.banned(ctx, key, cost); !ok {
		return d, err
	}
	d, err := b.limiter.Take(ctx, key, cost)
	if err == nil && !d.Allowed {
		b.denied(ctx, key, &d, cost)
	}
	return d, err
}

// Reserve is Take with a charge that can be settled. It books as far ahead as limiter does, but not past a ban.
func (b *Limiter[K]) Reserve(ctx context.Context, key K, cost int, maxDelay time.Duration) (*ratelimit.Reservation, error) {
	ctx = wait.OrBackground(ctx)
	if d, ok, err := b.banned(ctx, key, cost); !ok {
		return ratelimit.NewReservation(d, nil), err
	}
	r, err := b.limiter.Reserve(ctx, key, cost, maxDelay)
	if r == nil {
		r = ratelimit.NewReservation(ratelimit.Decision{}, nil)
	}
	if err == nil && !r.Allowed {
		b.denied(ctx, key, &r.Decision, cost)
	}
	return r, err
}

// denied counts a denial as a strike if limiter's first limit denies.
// If this bans the key, denied replaces d by the ban's denial.
func (b *Limiter[K]) denied(ctx context.Context, key K, d *ratelimit.Decision, cost int) {
	if d.Degraded || !b.own(d.Limit) {
		return
	}
	ban, err := b.once(ctx, key, d, cost)
	if err != nil {
		b.fail(err)
	}
	if ban.Limit != (ratelimit.Limit{}) && !ban.Allowed {
		*d = ban
	}
}

// fail counts a failure in Stats.
func (b *Limiter[K]) fail(err error) {
	b.failed.Add(1)
	b.lastFailure.Store(&err)
}

// own reports whether the denying limit is certainly limiter's first. The limits behind it may be shared by keys.
func (b *Limiter[K]) own(limit ratelimit.Limit) bool {
	limits := ratelimit.Describe(b.limiter).Limits
	if len(limits) <= 1 {
		return true
	}
	first, others := limits[0], limits[1:]
	switch {
	case slices.Contains(others, limit):
		return false
	case first == ratelimit.Limit{}:
		return !slices.Contains(others, ratelimit.Limit{})
	}
	return limit == first
}

// charge counts n strikes, and reports whether they exhaust the key's strikes.
func (b *Limiter[K]) charge(ctx context.Context, key K, n int) (d ratelimit.Decision, exhausted bool, err error) {
	d, err = b.strikes.Take(ctx, key, n)
	switch {
	case errors.Is(err, ratelimit.ErrExceedsLimit): // n is above the capacity of strikes
		return d, true, nil
	case err != nil:
		return d, false, fmt.Errorf("ban: strikes: %w", err)
	case d.Degraded && !d.Allowed: // the store of strikes is down, so their number is unknown
		return d, false, fmt.Errorf("ban: strikes: %w: the denial is degraded", ratelimit.ErrUnavailable)
	}
	return d, !d.Allowed || d.Remaining == 0, nil
}

// begin bans a key, unless another call has banned it, and forgets its strikes.
// It returns the ban's denial, or the zero Decision if the key is not banned.
func (b *Limiter[K]) begin(ctx context.Context, key K) (ban ratelimit.Decision, err error) {
	bans := b.bans[0]
	var failure error // a failure of repeats: it does not prevent the ban
	if b.repeats != nil {
		var earlier int
		if earlier, failure = b.earlier(ctx, key); earlier > 0 {
			bans = b.bans[min(earlier, len(b.bans)-1)]
			// Another call may have begun a ban since the key's strikes were
			// exhausted. It is among the earlier bans, so banned finds it.
			d, ok, err := b.banned(ctx, key, 1)
			if !ok {
				return d, err
			}
		}
	}
	// If several calls come here at the same time, bans allows only one.
	begun, err := bans.Take(ctx, key, 1)
	if err != nil {
		return ban, fmt.Errorf("ban: bans: %w", err)
	}
	ban = begun
	if begun.Allowed {
		if ban, err = ratelimit.Peek(ctx, ratelimit.Limiter[K](bans), key, 1); err != nil {
			return ratelimit.Decision{}, fmt.Errorf("ban: bans: %w", err)
		}
		if ban.Allowed { // the stand-in for bans allows everything, or the capacity of bans is above 1
			return ratelimit.Decision{}, fmt.Errorf("ban: bans: %w: they allow a key that was banned just now", ratelimit.ErrUnavailable)
		}
		b.begun.Add(1)
		if b.repeats != nil {
			if _, err := b.repeats.Take(ctx, key, 1); err != nil {
				failure = errors.Join(failure, err)
			}
		}
	}
	b.line.began(key, ban)
	if failure != nil {
		failure = fmt.Errorf("ban: repeats: %w", failure)
	}
	if err = ratelimit.Reset(ctx, ratelimit.Limiter[K](b.strikes), key); err != nil {
		err = fmt.Errorf("ban: strikes: %w", err)
	}
	return ban, errors.Join(failure, err)
}

// earlier counts a key's bans in repeats.
func (b *Limiter[K]) earlier(ctx context.Context, key K) (int, error) {
	d, err := ratelimit.Peek(ctx, ratelimit.Limiter[K](b.repeats), key, 1)
	if err != nil {
		return 0, err
	}
	return d.Limit.Capacity() - d.Remaining, nil
}

// Strike counts n strikes against a key, unless the key is banned. If n is negative, it returns [ratelimit.ErrNegativeCost].
func (b *Limiter[K]) Strike(ctx context.Context, key K, n int) error {
	ctx = wait.OrBackground(ctx)
	_, ok, err := b.banned(ctx, key, n)
	if !ok || n == 0 {
		return err
	}
	_, exhausted, err := b.charge(ctx, key, n)
	if exhausted {
		_, err = b.begin(ctx, key)
	}
	return err
}

// Peek returns Take's answer if it begins no ban: see [ratelimit.Peek].
func (b *Limiter[K]) Peek(ctx context.Context, key K, cost int) (ratelimit.Decision, error) {
	ctx = wait.OrBackground(ctx)
	if d, ok, err := b.banned(ctx, key, cost); !ok {
		return d, err
	}
	return ratelimit.Peek(ctx, ratelimit.Limiter[K](b.limiter), key, cost)
}

// Adjust adjusts a key's spending in limiter.
func (b *Limiter[K]) Adjust(ctx context.Context, key K, delta int) error {
	b.requireInit()
	return ratelimit.Adjust(wait.OrBackground(ctx), ratelimit.Limiter[K](b.limiter), key, delta)
}

// Reset ends a key's ban, and forgets its spending, its strikes and its earlier bans. If limiter
// has no Reset, Reset forgets the rest and returns an error that wraps [errors.ErrUnsupported].
func (b *Limiter[K]) Reset(ctx context.Context, key K) error {
	b.requireInit()
	ctx = wait.OrBackground(ctx)
	err := errors.Join(ratelimit.Reset(ctx, ratelimit.Limiter[K](b.limiter), key), ratelimit.Reset(ctx, ratelimit.Limiter[K](b.strikes), key))
	if b.repeats != nil {
		err = errors.Join(err, ratelimit.Reset(ctx, ratelimit.Limiter[K](b.repeats), key))
	}
	for _, bans := range b.bans {
		err = errors.Join(err, ratelimit.Reset(ctx, ratelimit.Limiter[K](bans), key))
	}
	b.line.ended(key)
	return err
}

// Describe returns limiter's description, with all bans' limits after limiter's own.
func (b *Limiter[K]) Describe() ratelimit.Description {
	b.requireInit()
	d := ratelimit.Describe(b.limiter)
	d.Limits = optional.AppendLimits(nil, d.Limits)
	for _, bans := range b.bans {
		d.Limits = optional.AppendLimits(d.Limits, ratelimit.Describe(bans).Limits)
	}
	return d
}

// Stats counts bans and failures since New or NewGrowing.
type Stats struct {
	Begun       uint64 // bans begun by this Limiter
	Failed      uint64 // denials that failed to read or write a strike, a ban or a repeat, and panics of bans beside a Wait
	LastFailure error  // the latest of the failures
}

// Stats returns the counts.
func (b *Limiter[K]) Stats() Stats {
	b.requireInit()
	s := Stats{Begun: b.begun.Load(), Failed: b.failed.Load()}
	if err := b.lastFailure.Load(); err != nil {
		s.LastFailure = *err
	}
	return s
}

// unlimited is the limiter in place of a nil one: it allows every cost and keeps no state.
type unlimited[K any] struct{}

func (unlimited[K]) Allow(_ K, cost int) bool { return cost >= 0 }

func (unlimited[K]) Take(_ context.Context, _ K, cost int) (ratelimit.Decision, error) {
	if cost < 0 {
		return ratelimit.Decision{}, negative(cost)
	}
	l := ratelimit.Unlimited()
	return ratelimit.Decision{Allowed: true, Limit: l, Remaining: l.Capacity()}, nil
}

func (u unlimited[K]) Reserve(ctx context.Context, key K, cost int, _ time.Duration) (*ratelimit.Reservation, error) {
	d, err := u.Take(ctx, key, cost)
	return ratelimit.NewReservation(d, nil), err
}

func (u unlimited[K]) Peek(ctx context.Context, key K, cost int) (ratelimit.Decision, error) {
	return u.Take(ctx, key, cost)
}

func (unlimited[K]) Adjust(context.Context, K, int) error { return nil }
func (unlimited[K]) Reset(context.Context, K) error       { return nil }

// Describe returns an empty list of limits, because nil would stand for unknown ones.
func (unlimited[K]) Describe() ratelimit.Description {
	return ratelimit.Description{Limits: []ratelimit.Limit{}}
}
