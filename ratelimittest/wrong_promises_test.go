package ratelimittest_test

import (
	"cmp"
	"context"
	"errors"
	"flag"
	"hash/fnv"
	"math"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/weir-go/ratelimit"
	"github.com/weir-go/ratelimit/internal/dev/testsize"
	"github.com/weir-go/ratelimit/ratelimittest"
)

// Each limiter in this file breaks one easily forgotten promise, and keeps all others.

const (
	token   = ratelimit.AlgorithmTokenBucket
	leaky   = ratelimit.AlgorithmLeakyBucket
	fixed   = ratelimit.AlgorithmFixedWindow
	log     = ratelimit.AlgorithmSlidingLog
	counter = ratelimit.AlgorithmSlidingCounter
)

type clock = *ratelimittest.Clock

// ---- Wait ----

// waitPolls polls, and so lets other calls pass first.
func waitPolls(l *faulty, _ ratelimit.Limit, _ clock) {
	l.wait = func(ctx context.Context, key string, cost int) error {
		for {
			if ctx.Err() != nil {
				return ctx.Err()
			}
			if l.current().Algorithm == leaky {
				return l.keyed.Wait(ctx, key, cost)
			}
			d, err := l.keyed.Take(ctx, key, cost)
			switch deadline, ok := ctx.Deadline(); {
			case err != nil:
				return err
			case d.Allowed:
				return nil
			case ok && time.Now().Add(d.RetryAfter).After(deadline):
				return context.DeadlineExceeded
			}
			if err := sleepFor(ctx, d.RetryAfter); err != nil {
				return err
			}
		}
	}
}

func sleepFor(ctx context.Context, d time.Duration) error {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

// waitBooks waits with a reservation, but sleeps for a wrong time.
func waitBooks(sleeps func(d time.Duration) time.Duration) func(*faulty, ratelimit.Limit, clock) {
	return func(l *faulty, _ ratelimit.Limit, _ clock) {
		l.wait = func(ctx context.Context, key string, cost int) error {
			if ctx.Err() != nil || cost <= 0 {
				return l.keyed.Wait(ctx, key, cost)
			}
			most := time.Duration(math.MaxInt64)
			if deadline, ok := ctx.Deadline(); ok {
				most = time.Until(deadline)
			}
			r, err := l.keyed.Reserve(ctx, key, cost, most)
			if err != nil || !r.Allowed {
				return l.keyed.Wait(ctx, key, cost)
			}
			if err := sleepFor(ctx, sleeps(r.Delay)); err != nil {
				r.Cancel()
				return err
			}
			return nil
		}
	}
}

// waitSpendsFirst spends a fitting cost without checking its context.
func waitSpendsFirst(l *faulty, _ ratelimit.Limit, _ clock) {
	l.wait = func(ctx context.Context, key string, cost int) error {
		if d, err := l.keyed.Peek(context.Background(), key, cost); err == nil && d.Allowed && d.Delay == 0 {
			_, err = l.keyed.Take(ctx, key, cost)
			return err
		}
		return l.keyed.Wait(ctx, key, cost)
	}
}

// waitMovesUp moves up the calls behind a waiting call when it is cancelled.
func waitMovesUp(l *faulty, _ ratelimit.Limit, _ clock) {
	var waiting atomic.Int64
	l.wait = func(ctx context.Context, key string, cost int) error {
		waiting.Add(1)
		err := l.keyed.Wait(ctx, key, cost)
		if others := waiting.Add(-1); errors.Is(err, context.Canceled) && others > 0 {
			l.keyed.Adjust(context.Background(), key, -cost)
		}
		return err
	}
}

// waitLeavesDelay does not wait for a leaky bucket's delay.
func waitLeavesDelay(l *faulty, limit ratelimit.Limit, _ clock) {
	l.wait = func(ctx context.Context, key string, cost int) error {
		if ctx.Err() != nil || limit.Algorithm != leaky {
			return l.keyed.Wait(ctx, key, cost)
		}
		if _, bounded := ctx.Deadline(); bounded {
			if d, err := l.keyed.Peek(context.Background(), key, cost); err == nil && d.Allowed && d.Delay < time.Hour {
				_, err = l.keyed.Take(ctx, key, cost)
				return err
			}
		}
		return l.keyed.Wait(ctx, key, cost)
	}
}

// waitForgets forgets the key when a waiting call is cancelled.
func waitForgets(l *faulty, _ ratelimit.Limit, _ clock) {
	l.wait = func(ctx context.Context, key string, cost int) error {
		err := l.keyed.Wait(ctx, key, cost)
		if errors.Is(err, context.Canceled) {
			l.keyed.Reset(context.Background(), key)
		}
		return err
	}
}

// waitSettles gives a cancelled call nothing back if time has passed, as if its
// charge had been regained. A stack of limiters does so if it settles the charge.
func waitSettles(l *faulty, _ ratelimit.Limit, c clock) {
	l.wait = func(ctx context.Context, key string, cost int) error {
		began := c.Now()
		err := l.keyed.Wait(ctx, key, cost)
		if errors.Is(err, context.Canceled) && cost > 0 && c.Now() > began {
			l.keyed.Adjust(context.Background(), key, cost)
		}
		return err
	}
}

// ---- Reserve, Settle, Peek ----

type reserveFunc = func(ctx context.Context, key string, cost int, maxDelay time.Duration) (*ratelimit.Reservation, error)

// reserves replaces Reserve with a function that may call it.
func reserves(around func(l *faulty, inner reserveFunc, clock clock) reserveFunc) func(*faulty, ratelimit.Limit, clock) {
	return func(l *faulty, _ ratelimit.Limit, c clock) { l.reserve = around(l, l.keyed.Reserve, c) }
}

// settles replaces the function that settles a reservation.
func settles(change func(l *faulty, key string, cost, actual int, r *ratelimit.Reservation) error) func(*faulty, ratelimit.Limit, clock) {
	return reserves(func(l *faulty, inner reserveFunc, _ clock) reserveFunc {
		return func(ctx context.Context, key string, cost int, maxDelay time.Duration) (*ratelimit.Reservation, error) {
			r, err := inner(ctx, key, cost, maxDelay)
			return settled(r, func(actual int) error { return change(l, key, cost, actual, r) }), err
		}
	})
}

func cancelOfNothingMints(l *faulty, key string, cost, actual int, r *ratelimit.Reservation) error {
	if cost == 0 && actual == 0 {
		return l.keyed.Adjust(context.Background(), key, -1)
	}
	return r.Settle(actual)
}

func nothingIsSettled(_ *faulty, _ string, cost, actual int, r *ratelimit.Reservation) error {
	if cost == 0 {
		return nil
	}
	return r.Settle(actual)
}

func settlesUpToTheCapacity(l *faulty, _ string, _, actual int, r *ratelimit.Reservation) error {
	return r.Settle(min(actual, l.current().Capacity()))
}

func settlesUpToTheReserved(_ *faulty, _ string, cost, actual int, r *ratelimit.Reservation) error {
	if cost > 0 {
		actual = min(actual, cost)
	}
	return r.Settle(actual)
}

// settlesUnregained gives back only the part that a token bucket has not regained since, as if the cost had never been spent.
func settlesUnregained(l *faulty, _ ratelimit.Limit, c clock) {
	reserves(func(l *faulty, inner reserveFunc, _ clock) reserveFunc {
		return func(ctx context.Context, key string, cost int, maxDelay time.Duration) (*ratelimit.Reservation, error) {
			r, err := inner(ctx, key, cost, maxDelay)
			made, limit := c.Now(), l.current()
			return settled(r, func(actual int) error {
				if limit.Algorithm == token && actual < cost && r.Delay == 0 {
					regained := float64(c.Now()-made) / float64(limit.Rate.Per) * float64(limit.Rate.Units)
					actual = min(cost, max(actual, int(min(regained, 1<<40))))
				}
				return r.Settle(actual)
			}), err
		}
	})(l, ratelimit.Limit{}, c)
}

// settlesOnce ignores a second settlement at one instant.
func settlesOnce(l *faulty, _ ratelimit.Limit, c clock) {
	type moment struct {
		key string
		at  time.Duration
	}
	var mu sync.Mutex
	seen := map[moment]bool{}
	settles(func(_ *faulty, key string, _, actual int, r *ratelimit.Reservation) error {
		mu.Lock()
		defer mu.Unlock()
		m := moment{key, c.Now()}
		if seen[m] {
			return nil
		}
		seen[m] = true
		return r.Settle(actual)
	})(l, ratelimit.Limit{}, c)
}

// scalesRefunds scales a refund with the capacity's change since the reservation.
func scalesRefunds(l *faulty, _ ratelimit.Limit, _ clock) {
	l.reserve = func(ctx context.Context, key string, cost int, maxDelay time.Duration) (*ratelimit.Reservation, error) {
		r, err := l.keyed.Reserve(ctx, key, cost, maxDelay)
		made := l.current()
		return settled(r, func(actual int) error {
			if now := l.current(); now != made && actual < cost && r.Delay == 0 {
				return l.keyed.Adjust(context.Background(), key, -int(float64(cost-actual)*math.Ceil(float64(now.Capacity())/float64(made.Capacity()))*4))
			}
			return r.Settle(actual)
		}), err
	}
}

// refundsAfterAChange gives everything back after a change of the limit, even if the reservation no longer counts.
func refundsAfterAChange(l *faulty, _ ratelimit.Limit, _ clock) {
	l.reserve = func(ctx context.Context, key string, cost int, maxDelay time.Duration) (*ratelimit.Reservation, error) {
		r, err := l.keyed.Reserve(ctx, key, cost, maxDelay)
		made := l.current()
		return settled(r, func(actual int) error {
			if l.current().Rate != made.Rate && actual < cost && r.Delay == 0 {
				return l.keyed.Adjust(context.Background(), key, actual-cost)
			}
			return r.Settle(actual)
		}), err
	}
}

// deniedIsSettled gives units back for a denied reservation.
func deniedIsSettled(l *faulty, inner reserveFunc, _ clock) reserveFunc {
	return func(ctx context.Context, key string, cost int, maxDelay time.Duration) (*ratelimit.Reservation, error) {
		r, err := inner(ctx, key, cost, maxDelay)
		if err == nil && !r.Allowed {
			l.keyed.Adjust(context.Background(), key, -1) // for example in a finaliser of the denied reservation
		}
		return r, err
	}
}

func reserveOfNothingIsDenied(_ *faulty, inner reserveFunc, _ clock) reserveFunc {
	return func(ctx context.Context, key string, cost int, maxDelay time.Duration) (*ratelimit.Reservation, error) {
		r, err := inner(ctx, key, cost, maxDelay)
		if cost == 0 && r.Remaining == 0 {
			r.Allowed, r.RetryAfter = false, time.Second
		}
		return r, err
	}
}

func reserveOfNothingCharges(_ *faulty, inner reserveFunc, _ clock) reserveFunc {
	return func(ctx context.Context, key string, cost int, maxDelay time.Duration) (*ratelimit.Reservation, error) {
		return inner(ctx, key, max(cost, min(1, cost+1)), maxDelay)
	}
}

func reserveOfLessMints(l *faulty, inner reserveFunc, _ clock) reserveFunc {
	return func(ctx context.Context, key string, cost int, maxDelay time.Duration) (*ratelimit.Reservation, error) {
		if cost < 0 {
			err := l.keyed.Adjust(context.Background(), key, cost)
			return ratelimit.NewReservation(ratelimit.Decision{Allowed: true, Limit: l.current()}, nil), err
		}
		return inner(ctx, key, cost, maxDelay)
	}
}

func reserveReturnsNil(_ *faulty, inner reserveFunc, _ clock) reserveFunc {
	return func(ctx context.Context, key string, cost int, maxDelay time.Duration) (*ratelimit.Reservation, error) {
		r, err := inner(ctx, key, cost, maxDelay)
		if err != nil {
			return nil, err
		}
		return r, nil
	}
}

func reserveAnswersNotYet(_ *faulty, inner reserveFunc, _ clock) reserveFunc {
	return func(ctx context.Context, key string, cost int, maxDelay time.Duration) (*ratelimit.Reservation, error) {
		r, err := inner(ctx, key, cost, maxDelay)
		if errors.Is(err, ratelimit.ErrExceedsLimit) {
			r.RetryAfter, err = time.Hour, nil
		}
		return r, err
	}
}

// delaysBelow denies a delay of exactly maxDelay.
func delaysBelow(_ *faulty, inner reserveFunc, _ clock) reserveFunc {
	return func(ctx context.Context, key string, cost int, maxDelay time.Duration) (*ratelimit.Reservation, error) {
		if maxDelay > 0 {
			maxDelay--
		}
		return inner(ctx, key, cost, maxDelay)
	}
}

// queuesForever ignores maxDelay for a leaky bucket's reservation.
func queuesForever(l *faulty, inner reserveFunc, _ clock) reserveFunc {
	return func(ctx context.Context, key string, cost int, maxDelay time.Duration) (*ratelimit.Reservation, error) {
		if l.current().Algorithm == leaky {
			maxDelay = math.MaxInt64
		}
		return inner(ctx, key, cost, maxDelay)
	}
}

// negativeIsForever treats a negative delay as unlimited.
func negativeIsForever(_ *faulty, inner reserveFunc, _ clock) reserveFunc {
	return func(ctx context.Context, key string, cost int, maxDelay time.Duration) (*ratelimit.Reservation, error) {
		if maxDelay < 0 {
			maxDelay = math.MaxInt64
		}
		return inner(ctx, key, cost, maxDelay)
	}
}

func reserveReadsTwice(_ *faulty, inner reserveFunc, c clock) reserveFunc {
	return func(ctx context.Context, key string, cost int, maxDelay time.Duration) (*ratelimit.Reservation, error) {
		c.Now()
		return inner(ctx, key, cost, maxDelay)
	}
}

func peekReadsTwice(l *faulty, _ ratelimit.Limit, c clock) {
	l.peek = func(key string, cost int) (ratelimit.Decision, error) {
		c.Now()
		return l.keyed.Peek(context.Background(), key, cost)
	}
}

func peekSwallowsErrors(l *faulty, _ ratelimit.Limit, _ clock) {
	l.peek = func(key string, cost int) (ratelimit.Decision, error) {
		d, err := l.keyed.Peek(context.Background(), key, cost)
		if errors.Is(err, ratelimit.ErrExceedsLimit) {
			d.RetryAfter, err = time.Hour, nil
		}
		return d, err
	}
}

func peekTakesNegative(l *faulty, _ ratelimit.Limit, _ clock) {
	l.peek = func(key string, cost int) (ratelimit.Decision, error) {
		return l.keyed.Peek(context.Background(), key, max(cost, 0))
	}
}

// highest records the clock's highest reading at which a key was charged.
type highest struct {
	sync.Mutex
	at map[string]time.Duration
}

func (h *highest) gap(key string, now time.Duration) time.Duration {
	h.Lock()
	defer h.Unlock()
	h.at[key] = max(h.at[key], now)
	return h.at[key] - now
}

// reportsNoGap returns the figures at the clock's highest reading while the clock is behind it.
func reportsNoGap(l *faulty, limit ratelimit.Limit, clock clock) {
	c := noted(l, limit, clock)
	h := &highest{at: map[string]time.Duration{}}
	l.take = func(ctx context.Context, key string, cost int) (ratelimit.Decision, error) {
		d, err := l.keyed.Take(ctx, key, cost)
		if cost > 0 && err == nil {
			h.gap(key, c.read())
		}
		return d, err
	}
	l.reserve = func(ctx context.Context, key string, cost int, maxDelay time.Duration) (*ratelimit.Reservation, error) {
		r, err := l.keyed.Reserve(ctx, key, cost, maxDelay)
		if gap := h.gap(key, c.read()); gap > 0 && err == nil && r.RetryAfter > gap {
			r.RetryAfter -= gap
		}
		return r, err
	}
}

// peekReportsNoGap does the same in Peek.
func peekReportsNoGap(l *faulty, limit ratelimit.Limit, clock clock) {
	c := noted(l, limit, clock)
	h := &highest{at: map[string]time.Duration{}}
	l.take = func(ctx context.Context, key string, cost int) (ratelimit.Decision, error) {
		d, err := l.keyed.Take(ctx, key, cost)
		if cost > 0 && err == nil {
			h.gap(key, c.read())
		}
		return d, err
	}
	l.peek = func(key string, cost int) (ratelimit.Decision, error) {
		d, err := l.keyed.Peek(context.Background(), key, cost)
		h.Lock()
		seen, known := h.at[key]
		h.Unlock()
		if gap := seen - c.read(); known && gap > 0 && err == nil && d.ResetAfter > gap {
			d.ResetAfter -= gap
		}
		return d, err
	}
}

// noting is a clock that records its last reading, so a bug need not read it again.
type noting struct {
	clock
	last atomic.Int64
}

func (c *noting) Now() time.Duration {
	now := c.clock.Now()
	c.last.Store(int64(now))
	return now
}

func (c *noting) read() time.Duration { return time.Duration(c.last.Load()) }

// noted gives the limiter a noting clock.
func noted(l *faulty, limit ratelimit.Limit, c clock) *noting {
	n := &noting{clock: c}
	l.keyed = ratelimit.Must(ratelimit.New(limit, &ratelimit.Options[string]{Clock: n}))
	return n
}

// settlesAtTheReading settles at the present reading even if the clock has stepped back.
func settlesAtTheReading(l *faulty, limit ratelimit.Limit, c clock) {
	n := noted(l, limit, c)
	l.reserve = func(ctx context.Context, key string, cost int, maxDelay time.Duration) (*ratelimit.Reservation, error) {
		r, err := l.keyed.Reserve(ctx, key, cost, maxDelay)
		made := n.read()
		return settled(r, func(actual int) error {
			if c.Now() < made && actual < cost {
				return nil // at this reading, the cost seems not to be spent yet
			}
			return r.Settle(actual)
		}), err
	}
}

// ---- SetLimit ----

func setsProportionally(l *faulty, _ ratelimit.Limit, _ clock) {
	resets(l, func(old, now ratelimit.Limit) bool { return old.Algorithm == now.Algorithm && old.Rate != now.Rate })
}

func algorithmsStartFresh(l *faulty, _ ratelimit.Limit, _ clock) {
	resets(l, func(old, now ratelimit.Limit) bool { return old.Algorithm != now.Algorithm })
}

// resets forgets all keys when the limit changes and forgets returns true.
func resets(l *faulty, forgets func(old, now ratelimit.Limit) bool) {
	var seen sync.Map
	l.take = func(ctx context.Context, key string, cost int) (ratelimit.Decision, error) {
		seen.Store(key, true)
		return l.keyed.Take(ctx, key, cost)
	}
	l.setLimit = func(limit ratelimit.Limit) error {
		old := l.current()
		if err := l.keyed.SetLimit(limit); err != nil {
			return err
		}
		if counts(old) && counts(limit) && forgets(old, limit) {
			seen.Range(func(key, _ any) bool { l.keyed.Reset(context.Background(), key.(string)); return true })
		}
		return nil
	}
}

func counts(l ratelimit.Limit) bool { return l.Algorithm <= counter || l.Algorithm == dated }

func setsWhatIsInvalid(l *faulty, _ ratelimit.Limit, _ clock) {
	l.setLimit = func(limit ratelimit.Limit) error {
		if limit.Validate() != nil {
			return nil
		}
		return l.keyed.SetLimit(limit)
	}
}

func invalidClearsTheLimit(l *faulty, _ ratelimit.Limit, _ clock) {
	l.setLimit = func(limit ratelimit.Limit) error {
		err := l.keyed.SetLimit(limit)
		if err != nil {
			l.keyed.SetLimit(ratelimit.Unlimited())
		}
		return err
	}
}

func namesStay(l *faulty, _ ratelimit.Limit, _ clock) {
	l.setLimit = func(limit ratelimit.Limit) error {
		if limit.Named("") == l.current().Named("") {
			return nil
		}
		return l.keyed.SetLimit(limit)
	}
}

// countsAll counts all spending under a lowered limit, even above its capacity.
func countsAll(l *faulty, _ ratelimit.Limit, _ clock) {
	lowers(l, func(key string, over int) { l.keyed.Adjust(context.Background(), key, over) })
}

// forgetsTheRest counts at most the lowered capacity as spent, and forgets the rest.
func forgetsTheRest(l *faulty, _ ratelimit.Limit, _ clock) {
	lowers(l, func(key string, _ int) {
		l.keyed.Reset(context.Background(), key)
		l.keyed.Adjust(context.Background(), key, l.current().Capacity())
	})
}

// lowers calls do for each key with more spending than a lowered limit's capacity.
func lowers(l *faulty, do func(key string, over int)) {
	var seen sync.Map
	l.take = func(ctx context.Context, key string, cost int) (ratelimit.Decision, error) {
		seen.Store(key, true)
		return l.keyed.Take(ctx, key, cost)
	}
	l.setLimit = func(limit ratelimit.Limit) error {
		old, spent := l.current(), map[string]int{}
		seen.Range(func(key, _ any) bool {
			d, _ := l.keyed.Take(context.Background(), key.(string), 0)
			spent[key.(string)] = old.Capacity() - d.Remaining
			return true
		})
		err := l.keyed.SetLimit(limit)
		for key, n := range spent {
			if err == nil && counts(old) && counts(limit) && n > limit.Capacity() {
				_, _ = l.keyed.Take(context.Background(), key, 0)
				do(key, n-limit.Capacity())
			}
		}
		return err
	}
}

// blockedForgets forgets all keys after a limit that counts nothing.
func blockedForgets(l *faulty, _ ratelimit.Limit, _ clock) {
	var seen sync.Map
	l.take = func(ctx context.Context, key string, cost int) (ratelimit.Decision, error) {
		seen.Store(key, true)
		return l.keyed.Take(ctx, key, cost)
	}
	l.setLimit = func(limit ratelimit.Limit) error {
		if !counts(l.current()) {
			seen.Range(func(key, _ any) bool { l.keyed.Reset(context.Background(), key.(string)); return true })
		}
		return l.keyed.SetLimit(limit)
	}
}

// ---- Sweep ----

func sweepsNothing(l *faulty, _ ratelimit.Limit, _ clock) { l.sweep = func() int { return 0 } }

// sweepsBooked drops keys with room now, even if they have later bookings.
func sweepsBooked(l *faulty, _ ratelimit.Limit, _ clock) {
	var booked sync.Map
	l.reserve = func(ctx context.Context, key string, cost int, maxDelay time.Duration) (*ratelimit.Reservation, error) {
		r, err := l.keyed.Reserve(ctx, key, cost, maxDelay)
		if r.Delay > 0 {
			booked.Store(key, true)
		}
		return r, err
	}
	l.sweep = func() int {
		booked.Range(func(key, _ any) bool {
			l.keyed.Reset(context.Background(), key.(string))
			booked.Delete(key)
			return true
		})
		return l.keyed.Sweep()
	}
}

// sweepsIndebted drops keys with more than the capacity spent.
func sweepsIndebted(l *faulty, _ ratelimit.Limit, _ clock) {
	var indebted sync.Map
	l.adjust = func(key string, delta int) error {
		if delta > 0 {
			indebted.Store(key, true)
		}
		return l.keyed.Adjust(context.Background(), key, delta)
	}
	l.sweep = func() int {
		indebted.Range(func(key, _ any) bool {
			l.keyed.Reset(context.Background(), key.(string))
			indebted.Delete(key)
			return true
		})
		return l.keyed.Sweep()
	}
}

// ---- debt ----

// debtOfAYear caps a debt at a year's regain.
func debtOfAYear(l *faulty, _ ratelimit.Limit, _ clock) {
	l.adjust = func(key string, delta int) error {
		limit := l.current()
		worth := float64(limit.Rate.Units) / float64(limit.Rate.Per) * float64(365*24*time.Hour)
		if most := float64(limit.Capacity()) + worth; float64(delta) > most {
			delta = int(most)
		}
		return l.keyed.Adjust(context.Background(), key, delta)
	}
}

// debtIsSpending reports all spending as a debt.
func debtIsSpending(l *faulty, _ ratelimit.Limit, _ clock) {
	l.take = func(ctx context.Context, key string, cost int) (ratelimit.Decision, error) {
		d, err := l.keyed.Take(ctx, key, cost)
		if d.Debt > 0 {
			d.Debt += d.Limit.Capacity()
		}
		return d, err
	}
}

// ---- keys ----

// keysBy replaces each key with key's result, for example with a part of it.
func keysBy(key func(string) string) func(*faulty, ratelimit.Limit, clock) {
	return func(l *faulty, _ ratelimit.Limit, _ clock) { l.key = key }
}

func cut(n int) func(string) string { return func(s string) string { return s[:min(n, len(s))] } }

func untilNul(s string) string {
	s, _, _ = strings.Cut(s, "\x00")
	return s
}

func hashed(mod uint32) func(string) string {
	return func(s string) string {
		h := fnv.New32a()
		h.Write([]byte(s))
		return strconv.Itoa(int(h.Sum32() % mod))
	}
}

// keepsFew keeps only the latest keys, up to a number, and forgets the others.
func keepsFew(most int) func(*faulty, ratelimit.Limit, clock) {
	return func(l *faulty, _ ratelimit.Limit, _ clock) {
		var mu sync.Mutex
		known, order := map[string]bool{}, []string(nil)
		l.take = func(ctx context.Context, key string, cost int) (ratelimit.Decision, error) {
			mu.Lock()
			defer mu.Unlock()
			if !known[key] {
				known[key], order = true, append(order, key)
			}
			if len(order) > most {
				l.keyed.Reset(context.Background(), order[0])
				delete(known, order[0])
				order = order[1:]
			}
			return l.keyed.Take(ctx, key, cost)
		}
	}
}

// ---- limits ----

// spoilt returns another limit than the one in force.
func spoilt(spoil func(d *ratelimit.Decision)) func(*faulty, ratelimit.Limit, clock) {
	return func(l *faulty, _ ratelimit.Limit, _ clock) {
		l.take = func(ctx context.Context, key string, cost int) (ratelimit.Decision, error) {
			d, err := l.keyed.Take(ctx, key, cost)
			spoil(&d)
			return d, err
		}
	}
}

// unlimitedEnds treats Unlimited as a large number.
func unlimitedEnds(l *faulty, _ ratelimit.Limit, _ clock) {
	l.take = func(ctx context.Context, key string, cost int) (ratelimit.Decision, error) {
		d, err := l.keyed.Take(ctx, key, cost)
		if d.Limit.Algorithm == ratelimit.AlgorithmUnlimited && cost > 1<<30 {
			return ratelimit.Decision{Limit: d.Limit, RetryAfter: time.Hour}, nil
		}
		return d, err
	}
}

// blockedSoon returns a RetryAfter for Blocked.
func blockedSoon(l *faulty, _ ratelimit.Limit, _ clock) {
	l.take = func(ctx context.Context, key string, cost int) (ratelimit.Decision, error) {
		d, err := l.keyed.Take(ctx, key, cost)
		if d.Limit.Algorithm == ratelimit.AlgorithmBlocked && err != nil && cost > 0 {
			d.RetryAfter, err = time.Hour, nil
		}
		return d, err
	}
}

// clamps accepts limits too large to be counted, and makes them smaller.
func clamps(limit ratelimit.Limit, c clock) (limiter, error) {
	limit.Rate.Units = min(limit.Rate.Units, figure(1<<53))
	return ratelimit.New(limit, &ratelimit.Options[string]{Clock: c})
}

// figure returns n, or the largest int if n is larger.
func figure(n int64) int { return int(min(n, math.MaxInt)) }

// ---- long histories ----

// forgetsAfter forgets a key after a number of decisions on it.
func forgetsAfter(most int) func(*faulty, ratelimit.Limit, clock) {
	return func(l *faulty, _ ratelimit.Limit, _ clock) {
		var mu sync.Mutex
		n := map[string]int{}
		l.take = func(ctx context.Context, key string, cost int) (ratelimit.Decision, error) {
			mu.Lock()
			defer mu.Unlock()
			if n[key]++; n[key] == most {
				l.keyed.Reset(context.Background(), key)
			}
			return l.keyed.Take(ctx, key, cost)
		}
	}
}

// ---- a cost of 0 ----

// zeroOpens is an engine with a fixed window. A cost of 0 opens a window.
type zeroOpens struct {
	mu    sync.Mutex // guards keys
	limit ratelimit.Limit
	clock clock
	keys  map[string]window
}

type window struct {
	start, last time.Duration
	spent       int
}

func newZeroOpens(limit ratelimit.Limit, c clock) limiter {
	return &zeroOpens{limit: limit, clock: c, keys: map[string]window{}}
}

func (l *zeroOpens) Allow(key string, cost int) bool {
	d, _ := l.Take(context.Background(), key, cost)
	return d.Allowed
}

func (l *zeroOpens) Take(_ context.Context, key string, cost int) (ratelimit.Decision, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	reading, d := l.clock.Now(), ratelimit.Decision{Limit: l.limit}
	switch {
	case cost < 0:
		return d, ratelimit.ErrNegativeCost
	case cost > l.limit.Rate.Units:
		return d, ratelimit.ErrExceedsLimit
	}
	w, known := l.keys[key]
	now := reading
	if known {
		now = max(reading, w.last)
	}
	if !known || now-w.start >= l.limit.Rate.Per {
		w = window{start: now} // this is the bug if the cost is 0
	}
	w.last = now
	left := w.start + l.limit.Rate.Per - reading
	if d.Allowed = w.spent+cost <= l.limit.Rate.Units; d.Allowed {
		w.spent += cost
	} else {
		d.RetryAfter = left
	}
	if d.Remaining = l.limit.Rate.Units - w.spent; w.spent > 0 {
		d.ResetAfter = left
	} else {
		d.ResetAfter = now - reading
	}
	l.keys[key] = w
	return d, nil
}

var wrongPromises = []wrong{
	{name: "a Wait polls", promise: "the promise of Wait", text: "others get in first", build: fault(waitPolls)},
	{name: "a Wait returns too early", promise: "the promise of Wait", text: "and Wait returns after",
		build: fault(waitBooks(func(d time.Duration) time.Duration { return d / 2 }))},
	{name: "a Wait returns too late", promise: "the promise of Wait", text: "and Wait returns after",
		build: fault(waitBooks(func(d time.Duration) time.Duration { return 2 * d }))},
	{name: "a Wait spends though its context is cancelled", promise: "the promise of Wait", text: "was cancelled before", build: fault(waitSpendsFirst)},
	{name: "waiters move up when one gives up", promise: "the promise of Wait", text: "gives up, and", build: fault(waitMovesUp)},
	{name: "a Wait does not hold the work of a leaky bucket", promise: "the promise of Wait", text: "and Wait returns after", accepts: only(leaky), build: fault(waitLeavesDelay)},
	{name: "a waiter that gives up after a while leaves a charge", promise: "the promise of Wait", text: "until its context was cancelled", build: fault(waitSettles)},
	{name: "a key is forgotten when a waiter gives up", promise: "the promise of Wait", text: "until its context was cancelled", build: fault(waitForgets)},

	{name: "a cancelled reservation of 0 mints", promise: "the promise of Settle", text: "has reserved a cost of 0, and cancelled", build: fault(settles(cancelOfNothingMints))},
	{name: "a reservation of 0 is never settled", promise: "the promise of Settle", text: "has reserved a cost of 0 and settled it above", build: fault(settles(nothingIsSettled))},
	{name: "a settlement is capped at the capacity", promise: "the promise of Settle", text: "settled", build: fault(settles(settlesUpToTheCapacity))},
	{name: "a settlement is capped at what was reserved", promise: "the promise of Settle", text: "settled above", build: fault(settles(settlesUpToTheReserved))},
	{name: "a settlement gives back only what is not regained", promise: "the promise of Settle", text: "others have spent as much", build: fault(settlesUnregained)},
	{name: "one settlement an instant", promise: "the promise of Settle", text: "at one instant", build: fault(settlesOnce)},
	{name: "a refund is scaled after SetLimit", promise: "the promise of Settle", text: "beside what is cancelled", build: fault(scalesRefunds)},
	{name: "a late refund after SetLimit", promise: "the promise of Settle", text: "cancelled", build: fault(refundsAfterAChange)},
	{name: "a denied reservation gives back", promise: "the promise of Reserve", text: "", build: fault(reserves(deniedIsSettled))},
	{name: "a reservation of 0 is denied", promise: "the promise of Reserve", text: "Reserve of cost 0", build: fault(reserves(reserveOfNothingIsDenied))},
	{name: "a reservation of 0 charges", promise: "the promise of Reserve", text: "Reserve of cost 0", build: fault(reserves(reserveOfNothingCharges))},
	{name: "a negative reservation mints", promise: "the promise of Reserve", text: "Reserve of cost -1: the error is <nil>", build: fault(reserves(reserveOfLessMints))},
	{name: "a reservation is nil", promise: "the promise of Reserve", text: "returns nil", build: fault(reserves(reserveReturnsNil))},
	{name: "a reservation above the capacity is to be retried", promise: "the promise of Reserve", text: "the error is <nil>", build: fault(reserves(reserveAnswersNotYet))},
	{name: "a delay of maxDelay is denied", promise: "the promise of Reserve", text: "and a booking at it answers", build: fault(reserves(delaysBelow))},
	{name: "a queue of maxDelay is denied", promise: "the promise of Reserve", text: "Reserve with", accepts: only(leaky), build: fault(reserves(delaysBelow))},
	{name: "a queue knows no maxDelay", promise: "the promise of Reserve", text: "maxDelay", accepts: only(leaky), build: fault(reserves(queuesForever))},
	{name: "a delay below zero is any delay", promise: "the promise of Reserve", text: "maxDelay", build: fault(reserves(negativeIsForever))},
	{name: "Reserve reads the clock twice", promise: "promise 7", text: "Reserve reads the clock 2 times", build: fault(reserves(reserveReadsTwice))},
	{name: "Peek reads the clock twice", promise: "promise 7", text: "Peek reads the clock 2 times", build: fault(peekReadsTwice)},
	{name: "Peek has no ErrExceedsLimit", promise: "promise 4", text: "Peek at cost", build: fault(peekSwallowsErrors)},
	{name: "Peek has no ErrNegativeCost", promise: "promise 4", text: "Peek at cost -1", build: fault(peekTakesNegative)},
	{name: "Reserve forgets the gap of the clock", promise: "promise 7", text: "the clock is behind", build: fault(reportsNoGap)},
	{name: "Peek forgets the gap of the clock", promise: "promise 7", text: "the clock is behind", build: fault(peekReportsNoGap)},
	{name: "nothing is settled while the clock is behind", promise: "promise 7", text: "has settled while the clock was behind", build: fault(settlesAtTheReading)},

	{name: "another rate starts afresh", promise: "the promise of SetLimit", text: "were", build: fault(setsProportionally)},
	{name: "another algorithm starts afresh", promise: "the promise of SetLimit", text: "and now the limit is", accepts: only(token, fixed), build: fault(algorithmsStartFresh)},
	{name: "invalid limits are ignored", promise: "the promise of SetLimit", text: "answers <nil>", build: fault(setsWhatIsInvalid)},
	{name: "an invalid limit means none", promise: "", text: "where SetLimit refuses invalid limits", build: fault(invalidClearsTheLimit)},
	{name: "a name stays", promise: "the promise of SetLimit", text: "and the key answers for", build: fault(namesStay)},
	{name: "a lowered limit counts all", promise: "the promise of SetLimit", text: "the whole capacity", build: fault(countsAll)},
	{name: "a lowered limit forgets the rest", promise: "the promise of SetLimit", text: "remain", build: fault(forgetsTheRest)},
	{name: "a limit that counts nothing forgets", promise: "the promise of SetLimit", text: "counted nothing", build: fault(blockedForgets)},

	{name: "nothing is swept", promise: "the promise of Sweep", text: "was not swept", build: fault(sweepsNothing)},
	{name: "bookings are swept", promise: "the promise of Sweep", text: "after a sweep", build: fault(sweepsBooked)},
	{name: "debts are swept", promise: "the promise of Sweep", text: "after a sweep", build: fault(sweepsIndebted)},
	{name: "NextAfter is ResetAfter", promise: "promise 3", text: "NextAfter ", build: fault(spoilt(func(d *ratelimit.Decision) { d.NextAfter = min(d.NextAfter, 1) * d.ResetAfter }))},
	{name: "Debt is all that was spent", promise: "promise 8", text: "and Debt is", build: fault(debtIsSpending)},
	{name: "a debt is capped at a year", promise: "promise 8", text: "as much as can be was charged", build: fault(debtOfAYear)},

	{name: "keys are cut at 255 bytes", promise: "each key has a budget of its own", text: "a key never seen answers", build: fault(keysBy(cut(255)))},
	{name: "keys are cut at 4096 bytes", promise: "each key has a budget of its own", text: "a key never seen answers", build: fault(keysBy(cut(4096)))},
	{name: "keys end at a NUL", promise: "each key has a budget of its own", text: "a key never seen answers", build: fault(keysBy(untilNul))},
	{name: "keys are made valid text", promise: "each key has a budget of its own", text: "a key never seen answers",
		build: fault(keysBy(func(s string) string { return strings.ToValidUTF8(s, "\ufffd") }))},
	{name: "keys are trimmed", promise: "each key has a budget of its own", text: "a key never seen answers", build: fault(keysBy(strings.TrimSpace))},
	{name: "keys are hashed into 4096", promise: "each key has a budget of its own", text: "", build: fault(keysBy(hashed(4096)))},
	{name: "keys are hashed into 65536", promise: "each key has a budget of its own", text: "", build: fault(keysBy(hashed(1 << 16)))},
	{name: "64 keys are kept", promise: "each key has a budget of its own", text: "", build: fault(keepsFew(64))},
	{name: "1024 keys are kept", promise: "each key has a budget of its own", text: "that have spent all they had", build: fault(keepsFew(1024))},

	{name: "answers have no name", promise: "a Decision names its limit", text: "answers for the limit", build: fault(spoilt(func(d *ratelimit.Decision) { d.Limit.Name = "" }))},
	{name: "Unlimited ends", promise: "promise 6", text: "fits and is not allowed", build: fault(unlimitedEnds)},
	{name: "Blocked is to be retried", promise: "promise 4", text: `want "ratelimit: cost exceeds the limit"`, build: fault(blockedSoon)},
	{name: "what cannot be counted is clamped", promise: "promise 6", text: "<nil>", newly: clamps, wide: true},
	{name: "a key is forgotten after 1000 decisions", promise: "promise", text: "of a long history", build: fault(forgetsAfter(1000))},
	{name: "a cost of 0 opens a window", promise: "promise 4", text: "", accepts: only(fixed), build: newZeroOpens},
}

// The flag seeds sets how many seeds each wrong limiter is tested with. If
// it is set, all algorithms and the default number of histories are used.
var seeds = flag.Int("seeds", testsize.Of(0, 2), "how many seeds each wrong limiter is tried with; 0 for one, and one algorithm")

func TestLimitersThatBreakAPromiseAreFoundOut(t *testing.T) {
	testsize.Arithmetic(t)
	testsize.Extra(t)
	findAll(t, wrongPromises)
}

// findAll runs the suite on wrong limiters, and checks that it reports each fault.
func findAll(t *testing.T, all []wrong) {
	for _, w := range all {
		t.Run(w.name, func(t *testing.T) {
			t.Parallel()
			if w.wide && math.MaxInt == math.MaxInt32 {
				t.Skip("an int of 32 bits cannot hold what cannot be counted")
			}
			if *seeds == 0 {
				w.histories, w.accepts = cmp.Or(w.histories, 10), w.one()
			}
			for seed := range max(1, *seeds) {
				w.isFound(t, uint64(1+seed))
			}
		})
	}
}

// one returns w's accepts or, if it has none, a function that accepts token buckets, Unlimited and Blocked.
func (w wrong) one() func(ratelimit.Limit) bool {
	if w.accepts == nil {
		return only(token, ratelimit.AlgorithmUnlimited, ratelimit.AlgorithmBlocked)
	}
	return w.accepts
}

func (w wrong) isFound(t *testing.T, seed uint64) {
	clock := new(ratelimittest.Clock)
	err := ratelimittest.Check(ratelimittest.Config{
		Clock: clock, Seed: seed, Histories: w.histories, Accepts: w.accepts,
		New: func(l ratelimit.Limit) (limiter, error) {
			if w.newly != nil {
				return w.newly(l, clock)
			}
			if err := l.Validate(); err != nil {
				return nil, err
			}
			return w.build(l, clock), nil
		},
	})
	if err != nil {
		assert.NotContains(t, err.Error(), "comparing uncomparable", "no limiter is blamed for its type")
	}
	require.Error(t, err)
	assert.True(t, w.isFoundIn(err), "seed %d: want %s, and %q, in\n%v", seed, w.promise, w.text, err)
}
