package ratelimit

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync/atomic"
	"time"

	"github.com/weir-go/ratelimit/internal/ctxwait"
	"github.com/weir-go/ratelimit/internal/nilcheck"
)

// Banned is a limiter that shuts keys out for a time once they have been denied too often. Make
// one with [Ban]. It is as safe for concurrent use as the limiters that it is made of. The
// zero Banned cannot be used: its methods panic.
type Banned[K any] struct {
	limiter, strikes, bans Reserver[K]

	begun, failed atomic.Uint64
	lastFailure   atomic.Pointer[error]
}

var _ Reserver[string] = (*Banned[string])(nil)

// Ban returns a limiter that decides as l does, and bans keys that go on asking while they
// are denied. It is put together from three limiters, each of which may be in memory or on Redis:
//
//   - l is the limit itself;
//   - strikes says how many strikes a key may have: with FixedWindow(PerMinute(3)), the third
//     one within a minute begins a ban;
//   - bans says for how long: with FixedWindow(Per(1, time.Hour)) for an hour. Its capacity
//     should be 1. A key is banned as long as bans would deny it a cost of 1.
//
// A strike is a denial for now by l. No strike is an error, a cost that can never pass, a
// Degraded denial (see package failover), and a denial by another limit than the first of l's
// Limits (see [LimitLister]), because the key shares that one with others. So in a stack or a chain the
// limit that is the key's own comes first. The limits are told apart by their names and figures: if
// another one may be equal to the first, or if LimitFor or [WithLimit] gives each request its own in
// both places, what may be the other one's denial is no strike. Whoever calls [Banned.Strike] reports
// a strike of another kind, such as a failed login.
//
// The strike that exhausts strikes begins the ban, and the key's strikes are forgotten. The denial
// that was this strike tells the ban's RetryAfter already, and so do all others until the ban is
// over: their Limit is that of bans. After that l decides. While a key is banned, nothing is written, l is not
// asked, and the ban does not become longer. However many calls are under way, one ban begins. A
// strike of a call that was under way when the ban began may be left for the time after it.
//
// A denial still charges nothing to the budget of l. The strike is a second write, to strikes.
// If that fails, or if a ban cannot be begun, the denial stays a denial: [Banned.Stats]
// counts these failures. If bans cannot tell whether the key is banned, that error is the
// decision's, and l is not asked.
//
// Each decision asks bans first: in memory that takes less than a decision does. On Redis it is
// one more round trip for each decision, so keep bans on Redis if a banned key must be shut out
// by all processes at once, and in memory if it does not matter that each process
// bans by itself. A decision that is allowed writes nothing to strikes, so these may be on Redis
// for little. A table in memory forgets bans when it is full: see [Options.MaxKeys].
//
// It is an error if one of the three is nil; if bans has no Peek (see [Peeker]), or strikes or bans
// has no Reset (see [Resetter]); and if the first of l's limits equals another one.
func Ban[K any](l, strikes, bans Reserver[K]) (*Banned[K], error) {
	for _, part := range [...]struct {
		l          Reserver[K]
		name       string
		peek, wipe bool // what it is asked for
	}{
		{l, "limiter", false, false},
		{strikes, "strikes", false, true},
		{bans, "bans", true, true},
	} {
		switch {
		case nilcheck.IsNil(part.l):
			return nil, fmt.Errorf("ratelimit: Ban was given no %s", part.name)
		case part.peek && !canPeek[K](part.l):
			return nil, fmt.Errorf("ratelimit: the %s of Ban: %w", part.name, unsupported(part.l, "Peek"))
		case part.wipe && !canReset[K](part.l):
			return nil, fmt.Errorf("ratelimit: the %s of Ban: %w", part.name, unsupported(part.l, "Reset"))
		}
	}
	if limits := limitsOf(l); len(limits) > 1 && limits[0] != (Limit{}) && slices.Contains(limits[1:], limits[0]) {
		return nil, fmt.Errorf("ratelimit: the limiter of Ban has two limits of %v: give them names, to tell which one denies", limits[0])
	}
	return &Banned[K]{limiter: l, strikes: strikes, bans: bans}, nil
}

// mustBe panics for the zero Banned.
func (b *Banned[K]) mustBe() {
	if b == nil || b.limiter == nil {
		panic("ratelimit: a Banned that was not made by Ban")
	}
}

// banned asks whether the key is banned. If ok, it is not, and the limiter may be asked. Else d and err
// are the answer.
func (b *Banned[K]) banned(ctx context.Context, key K, cost int) (d Decision, ok bool, err error) {
	b.mustBe()
	if cost < 0 {
		return d, false, negativeCostError(cost)
	}
	d, err = Peek(ctx, Limiter[K](b.bans), key, 1)
	switch {
	case err != nil:
		return Decision{Limit: d.Limit, Degraded: d.Degraded}, false, fmt.Errorf("ratelimit: the bans of Ban: %w", err)
	case d.Allowed:
		return Decision{}, true, nil
	case cost == 0: // which is always allowed
		d.Allowed, d.RetryAfter = true, 0
	}
	return d, false, nil
}

// Allow spends cost of the key's budget and reports true; or it spends nothing and reports
// false. A denial may be a strike, as it is with Take.
func (b *Banned[K]) Allow(key K, cost int) bool {
	d, _ := b.Take(context.Background(), key, cost)
	return d.Allowed
}

// Take asks the limiter, unless the key is banned. The errors are those of the limiter and of
// the bans. See [Ban].
func (b *Banned[K]) Take(ctx context.Context, key K, cost int) (Decision, error) {
	ctx = orBackground(ctx)
	if d, ok, err := b.banned(ctx, key, cost); !ok {
		return d, err
	}
	d, err := b.limiter.Take(ctx, key, cost)
	if err == nil && !d.Allowed {
		b.denied(ctx, key, &d)
	}
	return d, err
}

// Reserve is Take with a charge that can be settled later, as far ahead as the limiter books.
// A ban is not waited for, whatever maxDelay is. A cost of 0 is allowed while the key is banned, and
// what that reservation is settled at is charged to the limiter.
func (b *Banned[K]) Reserve(ctx context.Context, key K, cost int, maxDelay time.Duration) (*Reservation, error) {
	ctx = orBackground(ctx)
	if d, ok, err := b.banned(ctx, key, cost); !ok {
		if err != nil || !d.Allowed {
			return NewReservation(d, nil), err
		}
		return NewReservation(d, func(actual int) error { return b.charge(ctx, key, actual) }), nil
	}
	r, err := b.limiter.Reserve(ctx, key, cost, maxDelay)
	if r == nil {
		r = NewReservation(Decision{}, nil)
	}
	if err == nil && !r.Allowed {
		b.denied(ctx, key, &r.Decision)
	}
	return r, err
}

// charge charges the limiter what a reservation of cost 0 has really cost, banned or not.
func (b *Banned[K]) charge(ctx context.Context, key K, actual int) error {
	if actual == 0 {
		return nil
	}
	r, err := b.limiter.Reserve(context.WithoutCancel(ctx), key, 0, 0)
	if err != nil {
		return also(err, r.Cancel())
	}
	return r.Settle(actual)
}

// Wait spends cost of the key's budget and returns nil when its time has come: see [Wait]. If the key is
// banned, it first waits for the ban's end. It fails at once, with an error that wraps
// [context.DeadlineExceeded], if the ban ends after the context's deadline. A Wait that fails is no strike: who
// waits does not insist.
func (b *Banned[K]) Wait(ctx context.Context, key K, cost int) error {
	ctx = orBackground(ctx)
	for {
		left, err := ctxwait.Left(ctx)
		if err != nil {
			return err
		}
		d, ok, err := b.banned(ctx, key, cost)
		switch {
		case ok:
			return Wait(ctx, b.limiter, key, cost)
		case err != nil || d.Allowed:
			return err
		case d.RetryAfter > left:
			return fmt.Errorf("%w: the key is banned for another %v under %v, and %v are left",
				context.DeadlineExceeded, d.RetryAfter, d.Limit, left)
		case d.RetryAfter <= 0:
			return fmt.Errorf("%w: the key is banned without an end, under %v", ErrLimited, d.Limit)
		}
		if err := ctxwait.Sleep(ctx, d.RetryAfter); err != nil {
			return err
		}
	}
}

// denied takes a denial by the limiter for a strike, if it is one. If a ban begins by it, or has
// begun, the denial becomes that of the ban.
func (b *Banned[K]) denied(ctx context.Context, key K, d *Decision) {
	if d.Degraded || !b.own(d.Limit) {
		return
	}
	ban, err := b.strike(ctx, key, 1)
	if err != nil {
		b.failed.Add(1)
		b.lastFailure.Store(&err)
	}
	if ban.Limit != (Limit{}) && !ban.Allowed {
		*d = ban
	}
}

// own reports whether a limit that has denied is surely the limiter's first: those behind it are shared.
func (b *Banned[K]) own(limit Limit) bool {
	limits := limitsOf(b.limiter)
	if len(limits) <= 1 {
		return true
	}
	first, others := limits[0], limits[1:]
	switch {
	case slices.Contains(others, limit):
		return false
	case first == Limit{}:
		return !slices.Contains(others, Limit{})
	}
	return limit == first
}

// strike counts n strikes of a key that is not banned, and bans it if that exhausts them. If it did
// so, or found the key to be banned by then, it returns how the ban stands; else the zero Decision.
func (b *Banned[K]) strike(ctx context.Context, key K, n int) (ban Decision, err error) {
	d, err := b.strikes.Take(ctx, key, n)
	switch {
	case errors.Is(err, ErrExceedsLimit): // more strikes than any key may have
	case err != nil:
		return ban, fmt.Errorf("ratelimit: the strikes of Ban: %w", err)
	case d.Allowed && d.Remaining > 0:
		return ban, nil
	case d.Degraded && !d.Allowed: // their store is down: nobody knows how many there were
		return ban, fmt.Errorf("ratelimit: the strikes of Ban: %w: what stands in denies", ErrUnavailable)
	}
	// Of all calls that come here at the same time, bans lets one pass.
	begun, err := b.bans.Take(ctx, key, 1)
	if err != nil {
		return ban, fmt.Errorf("ratelimit: the bans of Ban: %w", err)
	}
	ban = begun
	if begun.Allowed {
		if ban, err = Peek(ctx, Limiter[K](b.bans), key, 1); err != nil {
			return Decision{}, fmt.Errorf("ratelimit: the bans of Ban: %w", err)
		}
		if ban.Allowed { // what stands in for bans allows everything, or its capacity is above 1
			return Decision{}, fmt.Errorf("ratelimit: the bans of Ban: %w: they allow a key that was banned just now", ErrUnavailable)
		}
		b.begun.Add(1)
	}
	if err = Reset(ctx, Limiter[K](b.strikes), key); err != nil {
		err = fmt.Errorf("ratelimit: the strikes of Ban: %w", err)
	}
	return ban, err
}

// Strike reports n strikes of a key, such as failed logins. If they exhaust the key's strikes, a ban
// begins. To a key that is banned it does nothing, and n = 0 does nothing. The errors wrap
// [ErrNegativeCost] if n is below zero, else they are those of strikes and bans: what has
// failed then may have been done in part, and to report it again counts it again.
func (b *Banned[K]) Strike(ctx context.Context, key K, n int) error {
	ctx = orBackground(ctx)
	d, ok, err := b.banned(ctx, key, n)
	if err != nil || !ok && !d.Allowed || n == 0 {
		return err
	}
	_, err = b.strike(ctx, key, n)
	return err
}

// Lift ends a key's ban, if there is one, and forgets its strikes. Each is tried whatever becomes of the
// other; the errors are joined. What the key has spent of the limiter's budget stays spent: see
// [Banned.Reset].
func (b *Banned[K]) Lift(ctx context.Context, key K) error {
	b.mustBe()
	ctx = orBackground(ctx)
	return errors.Join(
		Reset(ctx, Limiter[K](b.strikes), key),
		Reset(ctx, Limiter[K](b.bans), key))
}

// Peek says what Take would answer, and is no strike. Where Take would begin a ban, Peek still tells
// the limiter's denial. The errors are those of Take; if the limiter has no Peek, the error wraps
// [errors.ErrUnsupported].
func (b *Banned[K]) Peek(ctx context.Context, key K, cost int) (Decision, error) {
	ctx = orBackground(ctx)
	if d, ok, err := b.banned(ctx, key, cost); !ok {
		return d, err
	}
	return Peek(ctx, Limiter[K](b.limiter), key, cost)
}

// Adjust corrects what a key has spent of the limiter's budget, banned or not: see [Adjust].
func (b *Banned[K]) Adjust(ctx context.Context, key K, delta int) error {
	b.mustBe()
	return Adjust(orBackground(ctx), Limiter[K](b.limiter), key, delta)
}

// Reset forgets the key in all three limiters. Each is tried whatever becomes of the others; the errors
// are joined. If the limiter has no Reset, that one's wraps [errors.ErrUnsupported].
func (b *Banned[K]) Reset(ctx context.Context, key K) error {
	b.mustBe()
	ctx = orBackground(ctx)
	return errors.Join(Reset(ctx, Limiter[K](b.limiter), key), b.Lift(ctx, key))
}

// Limits returns the limits of the limiter, and those of the bans behind them.
func (b *Banned[K]) Limits() []Limit {
	b.mustBe()
	var limits []Limit
	for _, l := range [...]Reserver[K]{b.limiter, b.bans} {
		if told := limitsOf(l); told != nil {
			limits = append(limits, told...)
		} else {
			limits = append(limits, Limit{})
		}
	}
	return limits
}

// BooksAhead reports whether the limiter's Reserve may charge budget that is still to come.
func (b *Banned[K]) BooksAhead() bool {
	b.mustBe()
	return booksAhead(b.limiter)
}

// ReplacesCost reports whether the limiter may charge another cost than the caller's.
func (b *Banned[K]) ReplacesCost() bool {
	b.mustBe()
	return replacesCost(b.limiter)
}

// BanStats counts what has become of strikes since the [Banned] was made.
type BanStats struct {
	// Begun counts the bans that this Banned began. Other processes that share its bans count theirs.
	Begun uint64
	// Failed counts the denials whose strike could not be counted, or whose ban could not be begun or
	// told. The denials were denials all the same. The errors of [Banned.Strike] are its caller's.
	Failed uint64
	// LastFailure says why the last of them failed, nil if none did.
	LastFailure error
}

// Stats returns the counts.
func (b *Banned[K]) Stats() BanStats {
	b.mustBe()
	s := BanStats{Begun: b.begun.Load(), Failed: b.failed.Load()}
	if err := b.lastFailure.Load(); err != nil {
		s.LastFailure = *err
	}
	return s
}
