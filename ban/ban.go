// Package ban bars a key for a time after too many denials, or other strikes such as failed logins.
//
//	limiter, err := ban.New(requests, strikes, bans)
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

// Limiter bans keys. Make one with [New]. It is as safe for concurrent use as its limiters. Methods of the zero Limiter
// panic.
type Limiter[K any] struct {
	limiter, strikes, bans ratelimit.Reserver[K]

	begun, failed atomic.Uint64
	lastFailure   atomic.Pointer[error]
}

var _ ratelimit.Reserver[string] = (*Limiter[string])(nil)

// New returns a limiter that decides as limiter does, and bans keys that are denied too often:
//
//   - limiter is the limit itself. Nil means none: then only [Limiter.Strike] counts strikes.
//   - strikes limits the strikes of a key: with FixedWindow(PerMinute(3)), the third within a minute begins a ban.
//   - bans sets the length of a ban by its window: with FixedWindow(Per(1, time.Hour)), an hour. Its capacity should be 1.
//
// A denial by the first of limiter's Limits is a strike, unless it is Degraded: so in a stack or a chain the key's own
// limit comes first. A ban has the Limit and RetryAfter of bans, and further calls do not prolong it. It denies a cost of 0,
// too. If bans fails, the decision does; other failures are counted in Stats. A full table in memory may forget bans.
//
// Each denial is a strike of its own, also of requests that were sent at once: a page that loads with 30 parallel requests has
// 10 denials under a burst of 20. So strikes should allow more than the largest such page has beyond the burst.
//
// It is an error if strikes or bans is nil or has no Reset, if bans has no Peek, or if limiter's first limit equals
// another one.
func New[K any](limiter, strikes, bans ratelimit.Reserver[K]) (*Limiter[K], error) {
	if limiter == nil {
		limiter = unlimited[K]{}
	}
	switch {
	case optional.IsNil(limiter):
		return nil, fmt.Errorf("ban: limiter is a nil %T: give nil itself to have none", limiter)
	case optional.IsNil(strikes):
		return nil, errors.New("ban: New was given no strikes")
	case !optional.CanReset[K](strikes):
		return nil, optional.Unsupported("ban: strikes", strikes, "Reset")
	case optional.IsNil(bans):
		return nil, errors.New("ban: New was given no bans")
	case !optional.CanPeek[K, ratelimit.Decision](bans):
		return nil, optional.Unsupported("ban: bans", bans, "Peek")
	case !optional.CanReset[K](bans):
		return nil, optional.Unsupported("ban: bans", bans, "Reset")
	}
	limits := ratelimit.Describe(limiter).Limits
	if len(limits) > 1 && limits[0] != (ratelimit.Limit{}) && slices.Contains(limits[1:], limits[0]) {
		return nil, fmt.Errorf("ban: limiter has two limits of %v: give them names, so that a denial identifies its limit", limits[0])
	}
	return &Limiter[K]{limiter: limiter, strikes: strikes, bans: bans}, nil
}

// requireInit panics for the zero Limiter.
func (b *Limiter[K]) requireInit() {
	if b == nil || b.limiter == nil {
		panic("ban: a Limiter that was not made by New")
	}
}

// banned reports whether the key is banned. If ok, it is not, and limiter may decide. Else d and err are the answer.
func (b *Limiter[K]) banned(ctx context.Context, key K, cost int) (d ratelimit.Decision, ok bool, err error) {
	b.requireInit()
	if cost < 0 {
		return d, false, negative(cost)
	}
	d, err = ratelimit.Peek(ctx, ratelimit.Limiter[K](b.bans), key, 1)
	switch {
	case err != nil:
		return ratelimit.Decision{Limit: d.Limit, Degraded: d.Degraded}, false, fmt.Errorf("ban: bans: %w", err)
	case d.Allowed:
		return ratelimit.Decision{}, true, nil
	}
	return d, false, nil
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
		b.denied(ctx, key, &d)
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
		b.denied(ctx, key, &r.Decision)
	}
	return r, err
}

// Wait waits until the cost can be spent, and for a ban's end: see [ratelimit.Wait]. Its failure is no strike.
func (b *Limiter[K]) Wait(ctx context.Context, key K, cost int) error {
	ctx = wait.OrBackground(ctx)
	for {
		left, err := wait.Left(ctx)
		if err != nil {
			return err
		}
		d, ok, err := b.banned(ctx, key, cost)
		switch {
		case ok:
			return ratelimit.Wait(ctx, b.limiter, key, cost)
		case err != nil:
			return err
		case d.RetryAfter > left:
			return fmt.Errorf("%w: the key is banned for another %v under %v, but the deadline is in %v",
				context.DeadlineExceeded, d.RetryAfter, d.Limit, left)
		case d.RetryAfter <= 0:
			return fmt.Errorf("%w: the key is banned without an end, under %v", ratelimit.ErrLimited, d.Limit)
		}
		if err := wait.Sleep(ctx, d.RetryAfter); err != nil {
			return err
		}
	}
}

// denied counts a denial by limiter as a strike, if it is one. If that bans the key, the denial becomes the ban's.
func (b *Limiter[K]) denied(ctx context.Context, key K, d *ratelimit.Decision) {
	if d.Degraded || !b.own(d.Limit) {
		return
	}
	ban, err := b.strike(ctx, key, 1)
	if err != nil {
		b.failed.Add(1)
		b.lastFailure.Store(&err)
	}
	if ban.Limit != (ratelimit.Limit{}) && !ban.Allowed {
		*d = ban
	}
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

// strike counts n strikes of a key that is not banned, and bans it if that exhausts them. If the key is banned after that,
// it returns how the ban stands, else the zero Decision.
func (b *Limiter[K]) strike(ctx context.Context, key K, n int) (ban ratelimit.Decision, err error) {
	d, err := b.strikes.Take(ctx, key, n)
	switch {
	case errors.Is(err, ratelimit.ErrExceedsLimit): // more strikes than any key may have
	case err != nil:
		return ban, fmt.Errorf("ban: strikes: %w", err)
	case d.Allowed && d.Remaining > 0:
		return ban, nil
	case d.Degraded && !d.Allowed: // their store is down: their number is unknown
		return ban, fmt.Errorf("ban: strikes: %w: the denial is degraded", ratelimit.ErrUnavailable)
	}
	// Of all calls that come here at the same time, bans lets one pass.
	begun, err := b.bans.Take(ctx, key, 1)
	if err != nil {
		return ban, fmt.Errorf("ban: bans: %w", err)
	}
	ban = begun
	if begun.Allowed {
		if ban, err = ratelimit.Peek(ctx, ratelimit.Limiter[K](b.bans), key, 1); err != nil {
			return ratelimit.Decision{}, fmt.Errorf("ban: bans: %w", err)
		}
		if ban.Allowed { // the stand-in for bans allows everything, or its capacity is above 1
			return ratelimit.Decision{}, fmt.Errorf("ban: bans: %w: they allow a key that was banned just now", ratelimit.ErrUnavailable)
		}
		b.begun.Add(1)
	}
	if err = ratelimit.Reset(ctx, ratelimit.Limiter[K](b.strikes), key); err != nil {
		err = fmt.Errorf("ban: strikes: %w", err)
	}
	return ban, err
}

// Strike counts n strikes of a key, unless it is banned. An n below zero is [ratelimit.ErrNegativeCost].
func (b *Limiter[K]) Strike(ctx context.Context, key K, n int) error {
	ctx = wait.OrBackground(ctx)
	_, ok, err := b.banned(ctx, key, n)
	if !ok || n == 0 {
		return err
	}
	_, err = b.strike(ctx, key, n)
	return err
}

// Lift ends a key's ban and forgets its strikes.
func (b *Limiter[K]) Lift(ctx context.Context, key K) error {
	b.requireInit()
	ctx = wait.OrBackground(ctx)
	return errors.Join(
		ratelimit.Reset(ctx, ratelimit.Limiter[K](b.strikes), key),
		ratelimit.Reset(ctx, ratelimit.Limiter[K](b.bans), key))
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

// Reset forgets the key in all three limiters.
func (b *Limiter[K]) Reset(ctx context.Context, key K) error {
	b.requireInit()
	ctx = wait.OrBackground(ctx)
	return errors.Join(ratelimit.Reset(ctx, ratelimit.Limiter[K](b.limiter), key), b.Lift(ctx, key))
}

// Describe returns the description of limiter, with the limits of bans behind its own.
func (b *Limiter[K]) Describe() ratelimit.Description {
	b.requireInit()
	d := ratelimit.Describe(b.limiter)
	d.Limits = optional.AppendLimits(optional.AppendLimits(nil, d.Limits), ratelimit.Describe(b.bans).Limits)
	return d
}

// Stats counts bans and failures since a [Limiter] was made.
type Stats struct {
	Begun       uint64 // bans that this Limiter began
	Failed      uint64 // denials whose strike or ban could not be written or read
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

// Describe returns no limits, rather than nil, which would mean that they are not known.
func (unlimited[K]) Describe() ratelimit.Description {
	return ratelimit.Description{Limits: []ratelimit.Limit{}}
}
