// Package ban bars a key for a time after too many denials, or other strikes such as failed logins.
//
//	limiter, err := ban.New(requests, strikes, bans)
//
// [NewGrowing] bans a key that comes back for longer.
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
	repeats          ratelimit.Reserver[K]   // nil if each ban is the first
	bans             []ratelimit.Reserver[K] // of a key's first ban, its second, and so on
	marks            marks[K]
	line             line[K]

	begun, failed atomic.Uint64
	lastFailure   atomic.Pointer[error]
}

var _ ratelimit.Reserver[string] = (*Limiter[string])(nil)

// New returns a limiter that decides as limiter does, and bans keys that are denied too often:
//
//   - limiter is the limit itself. Nil means none: then only [Limiter.Strike] counts strikes.
//   - strikes limits the strikes of a key: with FixedWindow(PerHour(3)), the third within an hour begins a ban.
//   - bans sets the length of a ban by its window: with FixedWindow(Per(1, time.Hour)), an hour. Its capacity should be 1.
//
// A denial by the first of limiter's Limits is a strike, unless it is Degraded: so in a stack or a chain the key's own
// limit comes first. A ban has the Limit and RetryAfter of bans, and further calls do not prolong it. It denies a cost of 0,
// too. If bans fails, the decision does; other failures are counted in Stats. A full table in memory may forget bans.
//
// The denials of a key until the RetryAfter of the first of them has passed are one strike. For example, a page that loads
// with 30 parallel requests has 10 denials under a burst of 20, and one strike. A denial without a RetryAfter and the
// denials after it are one strike, for as long as strikes remembers it. So strikes should span several waits of limiter.
//
// The Limiter remembers the last such strike of up to 65,536 keys of comparable types. Several processes whose strikes are in one
// store count one strike together if strikes is a SlidingLog, which knows when the last one was; where requests of two waits
// follow each other closely, they may count one too few. Under another algorithm each process counts the strike that it sees
// first: up to one for each process. The same holds for keys that cannot be compared, and there for each denial.
//
// It is an error if strikes or bans is nil or has no Peek or Reset, or if limiter's first limit equals another one.
func New[K any](limiter, strikes, bans ratelimit.Reserver[K]) (*Limiter[K], error) {
	return newLimiter("New", limiter, strikes, nil, bans)
}

// NewGrowing is [New] with bans that grow while a key comes back: its first ban is by the first of bans, its second by the second,
// and so on; the last one serves all further bans. Each sets the length of its bans by its window, for example a minute, five
// minutes and an hour. On a store each needs a name of its own.
//
// Repeats counts the bans of a key, and decides when they are forgotten: under SlidingLog(Per(9, 24*time.Hour)) the bans of the
// last 24 hours count, under TokenBucket(PerDay(1), 9) one ban is forgotten each day. Its capacity should be above the number of
// bans, and its window longer than the longest. If repeats fails, the ban is a first one, and Stats counts the failure.
// [Limiter.Reset] forgets the bans of a key. To keep their number, reset the single limiters instead.
//
// Each decision peeks at all bans: in memory that costs less than a decision, on a store a round trip for each.
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
		return nil, fmt.Errorf("ban: %s was given no bans", caller)
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

// usable returns an error if a Limiter cannot count by l.
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

// banned reports whether the key is banned. If ok, it is not, and limiter may decide. Else d and err are the answer.
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

// Take decides by limiter, unless the key is banned. It fails as limiter and bans do.
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

// denied counts a denial by limiter as a strike, if it is one. If that bans the key, the denial becomes the ban's.
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

// fail counts a failure.
func (b *Limiter[K]) fail(err error) {
	b.failed.Add(1)
	b.lastFailure.Store(&err)
}

// own reports whether a limit that has denied is surely the first of limiter's: the limits behind it may be shared.
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

// charge counts n strikes, and reports whether the key is to be banned for them.
func (b *Limiter[K]) charge(ctx context.Context, key K, n int) (d ratelimit.Decision, exhausted bool, err error) {
	d, err = b.strikes.Take(ctx, key, n)
	switch {
	case errors.Is(err, ratelimit.ErrExceedsLimit): // more strikes than any key may have
		return d, true, nil
	case err != nil:
		return d, false, fmt.Errorf("ban: strikes: %w", err)
	case d.Degraded && !d.Allowed: // their store is down: their number is unknown
		return d, false, fmt.Errorf("ban: strikes: %w: the denial is degraded", ratelimit.ErrUnavailable)
	}
	return d, !d.Allowed || d.Remaining == 0, nil
}

// begin bans a key, unless it is banned by now, and forgets its strikes. If the key is banned after that, it returns the ban's
// denial, else the zero Decision.
func (b *Limiter[K]) begin(ctx context.Context, key K) (ban ratelimit.Decision, err error) {
	bans := b.bans[0]
	var failure error // of repeats: the ban begins all the same
	if b.repeats != nil {
		var earlier int
		if earlier, failure = b.earlier(ctx, key); earlier > 0 {
			bans = b.bans[min(earlier, len(b.bans)-1)]
			// Another call may have begun a ban since the key's strikes were exhausted: then it is among the earlier ones, and
			// found here.
			d, ok, err := b.banned(ctx, key, 1)
			if !ok {
				return d, err
			}
		}
	}
	// Of all calls that come here at the same time, bans lets one pass.
	begun, err := bans.Take(ctx, key, 1)
	if err != nil {
		return ban, fmt.Errorf("ban: bans: %w", err)
	}
	ban = begun
	if begun.Allowed {
		if ban, err = ratelimit.Peek(ctx, ratelimit.Limiter[K](bans), key, 1); err != nil {
			return ratelimit.Decision{}, fmt.Errorf("ban: bans: %w", err)
		}
		if ban.Allowed { // the stand-in for bans allows everything, or its capacity is above 1
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

// earlier returns the number of a key's bans that repeats remembers.
func (b *Limiter[K]) earlier(ctx context.Context, key K) (int, error) {
	d, err := ratelimit.Peek(ctx, ratelimit.Limiter[K](b.repeats), key, 1)
	if err != nil {
		return 0, err
	}
	return d.Limit.Capacity() - d.Remaining, nil
}

// Strike counts n strikes of a key, unless it is banned. An n below zero is [ratelimit.ErrNegativeCost].
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

// Peek returns the answer that Take gives if it begins no ban: see [ratelimit.Peek].
func (b *Limiter[K]) Peek(ctx context.Context, key K, cost int) (ratelimit.Decision, error) {
	ctx = wait.OrBackground(ctx)
	if d, ok, err := b.banned(ctx, key, cost); !ok {
		return d, err
	}
	return ratelimit.Peek(ctx, ratelimit.Limiter[K](b.limiter), key, cost)
}

// Adjust adjusts a key's spending of limiter's budget.
func (b *Limiter[K]) Adjust(ctx context.Context, key K, delta int) error {
	b.requireInit()
	return ratelimit.Adjust(wait.OrBackground(ctx), ratelimit.Limiter[K](b.limiter), key, delta)
}

// Reset ends a key's ban, and forgets its spending, its strikes and its earlier bans. It forgets them also where limiter has no Reset, and
// then returns an error that wraps [errors.ErrUnsupported].
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

// Describe returns the description of limiter, with the limits of all bans behind its own.
func (b *Limiter[K]) Describe() ratelimit.Description {
	b.requireInit()
	d := ratelimit.Describe(b.limiter)
	d.Limits = optional.AppendLimits(nil, d.Limits)
	for _, bans := range b.bans {
		d.Limits = optional.AppendLimits(d.Limits, ratelimit.Describe(bans).Limits)
	}
	return d
}

// Stats counts bans and failures since a [Limiter] was made.
type Stats struct {
	Begun       uint64 // bans that this Limiter began
	Failed      uint64 // denials whose strike, ban or repeat could not be written or read, and panics of bans beside a Wait
	LastFailure error  // of the last of them
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

// unlimited is the limiter of keys without a limit: it allows all and keeps nothing.
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

// Describe returns no limits instead of nil, which would mean that they are unknown.
func (unlimited[K]) Describe() ratelimit.Description {
	return ratelimit.Description{Limits: []ratelimit.Limit{}}
}
