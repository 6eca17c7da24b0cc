package ratelimittest_test

import (
	"cmp"
	"context"
	"errors"
	"math"
	"runtime"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"

	"github.com/weir-go/ratelimit"
	"github.com/weir-go/ratelimit/internal/dev/testsize"
	"github.com/weir-go/ratelimit/ratelimittest"
)

// Each limiter in this file keeps a wrong state between calls: about denials, changed limits, bookings, windows or the time.

// memory is a wrong limiter's state for each key.
type memory[T any] struct {
	mu   sync.Mutex // guards keys and their values
	keys map[string]*T
}

// with passes a key's state to do. do may change it.
func (m *memory[T]) with(key string, do func(v *T)) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.keys == nil {
		m.keys = make(map[string]*T)
	}
	if m.keys[key] == nil {
		m.keys[key] = new(T)
	}
	do(m.keys[key])
}

// forget forgets all keys.
func (m *memory[T]) forget() {
	m.mu.Lock()
	defer m.mu.Unlock()
	clear(m.keys)
}

// decides replaces Take with a function that receives the clock's
// reading. One call runs at a time. The clock is still read once.
func decides[T any](l *faulty, limit ratelimit.Limit, c clock, m *memory[T],
	take func(v *T, now time.Duration, cost int, inner func(cost int) (ratelimit.Decision, error)) (ratelimit.Decision, error),
) {
	read := &handed{clock: c}
	l.keyed = ratelimit.Must(ratelimit.New(limit, &ratelimit.Options[string]{Clock: read}))
	l.take = func(ctx context.Context, key string, cost int) (d ratelimit.Decision, err error) {
		now := c.Now()
		m.with(key, func(v *T) {
			read.now.Store(&now)
			defer read.now.Store(nil)
			d, err = take(v, now, cost, func(cost int) (ratelimit.Decision, error) { return l.keyed.Take(ctx, key, cost) })
		})
		return d, err
	}
}

// handed is a clock that returns a given reading.
type handed struct {
	clock
	now atomic.Pointer[time.Duration]
}

func (h *handed) Now() time.Duration {
	if now := h.now.Load(); now != nil {
		return *now
	}
	return h.clock.Now()
}

// ---- denials ----

// denial is a remembered denial.
type denial struct {
	inARow, cost int
	until        time.Duration
}

// remembersDenials repeats a denial from memory after a number of denials of one cost in a row. covers
// reports whether this applies to a request's cost. forgets names the calls that clear the memory.
func remembersDenials(inARow int, covers func(denied, requested int) bool, forgets string) func(*faulty, ratelimit.Limit, clock) {
	return func(l *faulty, limit ratelimit.Limit, c clock) {
		var m memory[denial]
		decides(l, limit, c, &m, func(v *denial, now time.Duration, cost int, inner func(int) (ratelimit.Decision, error)) (ratelimit.Decision, error) {
			if v.inARow >= inARow && now < v.until && cost > 0 && cost <= l.current().Capacity() && covers(v.cost, cost) {
				d, err := inner(0)
				d.Allowed, d.RetryAfter = false, v.until-now
				return d, err
			}
			d, err := inner(cost)
			switch {
			case err != nil || cost == 0:
			case d.Allowed:
				*v = denial{}
			default:
				if v.cost != cost {
					*v = denial{}
				}
				v.inARow, v.cost, v.until = v.inARow+1, cost, now+d.RetryAfter
			}
			return d, err
		})
		end := func(call, key string) {
			if strings.Contains(forgets, call) {
				m.with(key, func(v *denial) { *v = denial{} })
			}
		}
		l.reserve = func(ctx context.Context, key string, cost int, maxDelay time.Duration) (*ratelimit.Reservation, error) {
			r, err := l.keyed.Reserve(ctx, key, cost, maxDelay)
			if err == nil && r.Allowed && cost > 0 {
				m.with(key, func(v *denial) { *v = denial{} })
			}
			return settled(r, func(actual int) error { defer end("Settle", key); return r.Settle(actual) }), err
		}
		l.adjust = func(key string, delta int) error {
			defer end("Adjust", key)
			return l.keyed.Adjust(context.Background(), key, delta)
		}
		l.reset = func(key string) { defer end("Reset", key); l.keyed.Reset(context.Background(), key) }
		l.setLimit = func(limit ratelimit.Limit) error {
			err := l.keyed.SetLimit(limit)
			if strings.Contains(forgets, "SetLimit") {
				m.forget()
			}
			return err
		}
	}
}

func larger(denied, requested int) bool  { return requested > denied }
func smaller(denied, requested int) bool { return requested < denied }
func same(denied, requested int) bool    { return requested == denied }

// punishes charges a key after a number of denials in a row.
func punishes(inARow int) func(*faulty, ratelimit.Limit, clock) {
	return func(l *faulty, limit ratelimit.Limit, c clock) {
		n := map[string]int{}
		var mu sync.Mutex
		l.take = func(ctx context.Context, key string, cost int) (ratelimit.Decision, error) {
			d, err := l.keyed.Take(ctx, key, cost)
			mu.Lock()
			defer mu.Unlock()
			if err == nil && !d.Allowed {
				n[key]++
			} else if cost > 0 {
				n[key] = 0
			}
			if n[key] == inARow {
				l.keyed.Adjust(context.Background(), key, 1)
			}
			return d, err
		}
	}
}

// failsToGiveBack sometimes returns an error with a denial, as if something else had failed.
func failsToGiveBack(l *faulty, _ ratelimit.Limit, _ clock) {
	n := 0
	var mu sync.Mutex
	l.take = func(ctx context.Context, key string, cost int) (ratelimit.Decision, error) {
		d, err := l.keyed.Take(ctx, key, cost)
		mu.Lock()
		defer mu.Unlock()
		if n++; err == nil && !d.Allowed && n%50 == 0 {
			err = errDown
		}
		return d, err
	}
}

// ---- changed limits ----

// looksWithoutTaking answers calls without a charge under the new limit, and leaves the key under the old one.
func looksWithoutTaking(l *faulty, _ ratelimit.Limit, _ clock) {
	l.take = func(ctx context.Context, key string, cost int) (ratelimit.Decision, error) {
		if cost == 0 || cost > l.current().Capacity() {
			return l.keyed.Peek(context.Background(), key, cost)
		}
		return l.keyed.Take(ctx, key, cost)
	}
}

// expires forgets a key a day after it would be fresh under the limit of its last charge.
func expires(l *faulty, limit ratelimit.Limit, c clock) {
	type expiry struct{ at time.Duration }
	var m memory[expiry]
	never := func(key string) { m.with(key, func(v *expiry) { v.at = math.MaxInt64 }) }
	decides(l, limit, c, &m, func(v *expiry, now time.Duration, cost int, inner func(int) (ratelimit.Decision, error)) (ratelimit.Decision, error) {
		if v.at != 0 && now > v.at {
			*v = expiry{}
			for key, w := range m.keys {
				if w == v {
					l.keyed.Reset(context.Background(), key)
				}
			}
		}
		d, err := inner(cost)
		if err == nil && d.Allowed && cost > 0 && v.at < math.MaxInt64 {
			v.at = now + d.ResetAfter + 24*time.Hour
		}
		return d, err
	})
	l.reserve = func(ctx context.Context, key string, cost int, maxDelay time.Duration) (*ratelimit.Reservation, error) {
		never(key)
		return l.keyed.Reserve(ctx, key, cost, maxDelay)
	}
	l.adjust = func(key string, delta int) error { never(key); return l.keyed.Adjust(context.Background(), key, delta) }
}

// placesAgain charges the excess over a tightened limit once more when the limit is raised, if a call was denied in between.
func placesAgain(l *faulty, _ ratelimit.Limit, _ clock) {
	type over struct{ denied bool }
	var m memory[over]
	l.take = func(ctx context.Context, key string, cost int) (ratelimit.Decision, error) {
		d, err := l.keyed.Take(ctx, key, cost)
		if err == nil && !d.Allowed && d.Limit.Algorithm == log {
			m.with(key, func(v *over) { v.denied = true })
		}
		return d, err
	}
	l.setLimit = func(limit ratelimit.Limit) error {
		old := l.current()
		err := l.keyed.SetLimit(limit)
		if err == nil && limit.Capacity() > old.Capacity() {
			m.mu.Lock()
			defer m.mu.Unlock()
			for key, v := range m.keys {
				if v.denied {
					l.keyed.Adjust(context.Background(), key, 1)
				}
			}
		}
		return err
	}
}

// sweepsByTheFirst drops keys fresh under New's limit.
func sweepsByTheFirst(l *faulty, limit ratelimit.Limit, c clock) {
	type fresh struct{ at time.Duration }
	var m memory[fresh]
	decides(l, limit, c, &m, func(v *fresh, now time.Duration, cost int, inner func(int) (ratelimit.Decision, error)) (ratelimit.Decision, error) {
		d, err := inner(cost)
		if err == nil && d.Allowed && cost > 0 && l.current() == limit {
			v.at = now + d.ResetAfter
		}
		return d, err
	})
	l.sweep = func() int {
		m.mu.Lock()
		defer m.mu.Unlock()
		if l.current() != limit {
			for key, v := range m.keys {
				if v.at > 0 && c.Now() > v.at+time.Minute {
					l.keyed.Reset(context.Background(), key)
				}
			}
		}
		return l.keyed.Sweep()
	}
}

// changesForgetTheAge makes all spending as new as the limit's change.
func changesForgetTheAge(l *faulty, _ ratelimit.Limit, _ clock) {
	var seen sync.Map
	l.take = func(ctx context.Context, key string, cost int) (ratelimit.Decision, error) {
		seen.Store(key, true)
		return l.keyed.Take(ctx, key, cost)
	}
	l.setLimit = func(limit ratelimit.Limit) error {
		same := l.current() == limit
		err := l.keyed.SetLimit(limit)
		if err != nil || same || !counts(limit) {
			return err
		}
		seen.Range(func(key, _ any) bool {
			d, _ := l.keyed.Take(context.Background(), key.(string), 0)
			if spent := limit.Capacity() - d.Remaining; d.Remaining > 0 {
				l.keyed.Reset(context.Background(), key.(string))
				l.keyed.Adjust(context.Background(), key.(string), spent)
			}
			return true
		})
		return nil
	}
}

// changesForgetBookings keeps spending and drops bookings when the rate changes.
func changesForgetBookings(l *faulty, _ ratelimit.Limit, _ clock) {
	var mu sync.Mutex
	booked := map[*ratelimit.Reservation]bool{}
	l.reserve = func(ctx context.Context, key string, cost int, maxDelay time.Duration) (*ratelimit.Reservation, error) {
		r, err := l.keyed.Reserve(ctx, key, cost, maxDelay)
		if r.Delay > 0 && l.current().Algorithm != leaky {
			mu.Lock()
			booked[r] = true
			mu.Unlock()
		}
		return settled(r, func(actual int) error { return r.Settle(actual) }), err
	}
	l.setLimit = func(limit ratelimit.Limit) error {
		changed := l.current().Rate != limit.Rate
		err := l.keyed.SetLimit(limit)
		mu.Lock()
		defer mu.Unlock()
		for r := range booked {
			if err == nil && changed {
				r.Cancel()
				delete(booked, r)
			}
		}
		return err
	}
}

// ---- reservations ----

// settlesWithin settles only while Reserve's context lasts.
func settlesWithin(fails error) func(*faulty, ratelimit.Limit, clock) {
	return func(l *faulty, _ ratelimit.Limit, _ clock) {
		l.reserve = func(ctx context.Context, key string, cost int, maxDelay time.Duration) (*ratelimit.Reservation, error) {
			r, err := l.keyed.Reserve(ctx, key, cost, maxDelay)
			return settled(r, func(actual int) error {
				if ctx.Err() != nil {
					return fails
				}
				return r.Settle(actual)
			}), err
		}
	}
}

// grantsAndSettles gives the same units back twice: by a grant, and by the booking's settlement.
func grantsAndSettles(l *faulty, _ ratelimit.Limit, _ clock) {
	type grants struct{ n int }
	var m memory[grants]
	l.adjust = func(key string, delta int) error {
		if delta < 0 {
			m.with(key, func(v *grants) { v.n++ })
		}
		return l.keyed.Adjust(context.Background(), key, delta)
	}
	l.reserve = func(ctx context.Context, key string, cost int, maxDelay time.Duration) (*ratelimit.Reservation, error) {
		r, err := l.keyed.Reserve(ctx, key, cost, maxDelay)
		var made int
		m.with(key, func(v *grants) { made = v.n })
		return settled(r, func(actual int) error {
			granted := false
			m.with(key, func(v *grants) { granted = v.n > made })
			if granted && r.Delay > 0 && actual < cost && l.current().Algorithm != leaky {
				l.keyed.Adjust(context.Background(), key, actual-cost)
			}
			return r.Settle(actual)
		}), err
	}
}

// losesSettlements reads the debt and then writes it. So one of two concurrent settlements is lost.
func losesSettlements(l *faulty, _ ratelimit.Limit, _ clock) {
	type writes struct{ n int }
	var m memory[writes]
	settles(func(_ *faulty, key string, _, actual int, r *ratelimit.Reservation) error {
		var before, now int
		m.with(key, func(v *writes) { before = v.n })
		runtime.Gosched() // another settlement runs here
		m.with(key, func(v *writes) { v.n++; now = v.n })
		if now > before+1 {
			return nil // its settlement is overwritten
		}
		return r.Settle(actual)
	})(l, ratelimit.Limit{}, nil)
}

// settlesAlone does nothing while another settlement runs.
func settlesAlone(l *faulty, _ ratelimit.Limit, _ clock) {
	var mu sync.Mutex
	settles(func(_ *faulty, _ string, _, actual int, r *ratelimit.Reservation) error {
		if !mu.TryLock() {
			return nil
		}
		defer mu.Unlock()
		return r.Settle(actual)
	})(l, ratelimit.Limit{}, nil)
}

// cancelMovesUp lets a later caller pass when the earlier of two
// bookings is cancelled. The other booking then has one unit less.
func cancelMovesUp(l *faulty, _ ratelimit.Limit, _ clock) {
	type open struct {
		n    int
		last *ratelimit.Reservation
		cost int
	}
	var m memory[open]
	l.reserve = func(ctx context.Context, key string, cost int, maxDelay time.Duration) (*ratelimit.Reservation, error) {
		r, err := l.keyed.Reserve(ctx, key, cost, maxDelay)
		mine := 0
		if r.Delay > 0 {
			m.with(key, func(v *open) {
				v.n++
				mine, v.last, v.cost = v.n, r, cost
			})
		}
		return settled(r, func(actual int) error {
			later := open{}
			m.with(key, func(v *open) { later = *v })
			if err := r.Settle(actual); err != nil || mine == 0 || later.n == mine || actual > 0 {
				return err
			}
			return later.last.Settle(later.cost - 1)
		}), err
	}
}

// sharesSettlements finds a reservation by its key and cost. If several match, it settles the last.
func sharesSettlements(l *faulty, _ ratelimit.Limit, _ clock) {
	type made struct {
		by map[int]*ratelimit.Reservation
	}
	var m memory[made]
	l.reserve = func(ctx context.Context, key string, cost int, maxDelay time.Duration) (*ratelimit.Reservation, error) {
		r, err := l.keyed.Reserve(ctx, key, cost, maxDelay)
		if err == nil && r.Allowed && cost > 0 {
			m.with(key, func(v *made) {
				if v.by == nil {
					v.by = map[int]*ratelimit.Reservation{}
				}
				v.by[cost] = r
			})
		}
		return settled(r, func(actual int) (err error) {
			m.with(key, func(v *made) {
				if last := v.by[cost]; last != nil {
					r = last
				}
			})
			return r.Settle(actual)
		}), err
	}
}

// resetLeavesBookings forgets spending, but not bookings.
func resetLeavesBookings(l *faulty, _ ratelimit.Limit, _ clock) {
	type ahead struct{ cost int }
	var m memory[ahead]
	l.reserve = func(ctx context.Context, key string, cost int, maxDelay time.Duration) (*ratelimit.Reservation, error) {
		r, err := l.keyed.Reserve(ctx, key, cost, maxDelay)
		if r.Delay > 0 {
			m.with(key, func(v *ahead) { v.cost = cost })
		}
		return r, err
	}
	l.reset = func(key string) {
		l.keyed.Reset(context.Background(), key)
		m.with(key, func(v *ahead) {
			if v.cost > 0 {
				l.keyed.Adjust(context.Background(), key, v.cost)
			}
			v.cost = 0
		})
	}
}

// cutsDelays counts maxDelay in whole milliseconds.
func cutsDelays(_ *faulty, inner reserveFunc, _ clock) reserveFunc {
	return func(ctx context.Context, key string, cost int, maxDelay time.Duration) (*ratelimit.Reservation, error) {
		return inner(ctx, key, cost, maxDelay.Truncate(time.Millisecond))
	}
}

// ---- Adjust ----

// chargesWrap adds charges in 64 bits, and ignores overflow.
func chargesWrap(l *faulty, _ ratelimit.Limit, _ clock) {
	type sum struct{ n int64 }
	var m memory[sum]
	l.adjust = func(key string, delta int) error {
		wrapped := false
		m.with(key, func(v *sum) {
			if v.n += int64(delta); v.n < 0 && delta > 0 {
				wrapped, v.n = true, 0
			}
		})
		if wrapped {
			l.keyed.Reset(context.Background(), key)
			return nil
		}
		return l.keyed.Adjust(context.Background(), key, delta)
	}
}

// creditsUnseen stores a credit for a key that has spent nothing.
func creditsUnseen(l *faulty, _ ratelimit.Limit, _ clock) {
	type credit struct {
		n    int
		seen bool
	}
	var m memory[credit]
	l.adjust = func(key string, delta int) error {
		m.with(key, func(v *credit) {
			if !v.seen && delta < 0 {
				v.n = 1
			}
		})
		return l.keyed.Adjust(context.Background(), key, delta)
	}
	l.take = func(ctx context.Context, key string, cost int) (ratelimit.Decision, error) {
		free := 0
		m.with(key, func(v *credit) {
			if cost > 0 {
				free, v.n, v.seen = v.n, 0, true
			}
		})
		d, err := l.keyed.Take(ctx, key, cost)
		if err == nil && d.Allowed && free > 0 {
			l.keyed.Adjust(context.Background(), key, -free)
			return l.keyed.Take(ctx, key, 0)
		}
		return d, err
	}
}

// grantsEndDebts clears a debt by any grant.
func grantsEndDebts(l *faulty, _ ratelimit.Limit, _ clock) {
	l.adjust = func(key string, delta int) error {
		d, _ := l.keyed.Peek(context.Background(), key, 0)
		if full, _ := l.keyed.Peek(context.Background(), key, l.current().Capacity()); delta < 0 && d.Remaining == 0 && full.RetryAfter > 2*l.current().RefillTime() {
			l.keyed.Reset(context.Background(), key)
			return nil
		}
		return l.keyed.Adjust(context.Background(), key, delta)
	}
}

// bookingsHideCharges ignores charges while a booking is ahead.
func bookingsHideCharges(l *faulty, _ ratelimit.Limit, c clock) {
	type ahead struct{ until time.Duration }
	var m memory[ahead]
	l.reserve = func(ctx context.Context, key string, cost int, maxDelay time.Duration) (*ratelimit.Reservation, error) {
		r, err := l.keyed.Reserve(ctx, key, cost, maxDelay)
		if r.Delay > 0 && l.current().Algorithm != leaky {
			m.with(key, func(v *ahead) { v.until = c.Now() + r.Delay })
		}
		return r, err
	}
	l.adjust = func(key string, delta int) (err error) {
		hidden := false
		m.with(key, func(v *ahead) { hidden = delta > 0 && v.until > c.Now() })
		if hidden {
			return nil
		}
		return l.keyed.Adjust(context.Background(), key, delta)
	}
}

// ---- windows, and the time ----

// repeats treats two calls with one cost at one reading as the same call.
func repeats(inARow int) func(*faulty, ratelimit.Limit, clock) {
	return func(l *faulty, limit ratelimit.Limit, c clock) {
		type call struct {
			n, cost int
			at      time.Duration
			d       ratelimit.Decision
		}
		var m memory[call]
		decides(l, limit, c, &m, func(v *call, now time.Duration, cost int, inner func(int) (ratelimit.Decision, error)) (ratelimit.Decision, error) {
			if v.n == inARow && v.cost == cost && v.at == now && cost > 0 {
				v.n = 0
				return v.d, nil
			}
			d, err := inner(cost)
			if err != nil || !d.Allowed || cost == 0 || v.cost != cost || v.at != now {
				*v = call{}
			}
			if err == nil && d.Allowed && cost > 0 {
				*v = call{v.n + 1, cost, now, d}
			}
			return d, err
		})
	}
}

// denialsStepBack sets the key's time to the present reading with each denial, even if the clock has stepped back.
func denialsStepBack(l *faulty, limit ratelimit.Limit, c clock) {
	type seen struct{ gap, high time.Duration }
	var m memory[seen]
	decides(l, limit, c, &m, func(v *seen, now time.Duration, cost int, inner func(int) (ratelimit.Decision, error)) (ratelimit.Decision, error) {
		d, err := inner(cost)
		if cost > 0 && err == nil && !d.Allowed && now < v.high {
			l.keyed.SetLimit(l.current())
			v.gap = v.high - now
			for key, w := range m.keys {
				if w == v {
					l.keyed.Reset(context.Background(), key)
					l.keyed.Adjust(context.Background(), key, d.Limit.Capacity()-d.Remaining)
				}
			}
			v.high = now
		}
		v.high = max(v.high, now)
		return d, err
	})
}

// changesForgetTheTime sets all keys' highest reading to the reading at the limit's change.
func changesForgetTheTime(l *faulty, limit ratelimit.Limit, c clock) {
	var mu sync.Mutex
	seen := map[string]bool{}
	l.take = func(ctx context.Context, key string, cost int) (ratelimit.Decision, error) {
		mu.Lock()
		defer mu.Unlock()
		seen[key] = true
		return l.keyed.Take(ctx, key, cost)
	}
	l.setLimit = func(limit ratelimit.Limit) error {
		mu.Lock()
		defer mu.Unlock()
		if limit == l.current() {
			return nil
		}
		if err := l.keyed.SetLimit(limit); err != nil {
			return err
		}
		for key := range seen {
			d, _ := l.keyed.Peek(context.Background(), key, 0)
			if spent := limit.Capacity() - d.Remaining; d.Remaining > 0 && counts(limit) {
				l.keyed.Reset(context.Background(), key)
				l.keyed.Adjust(context.Background(), key, spent)
			}
		}
		return nil
	}
}

// countsTo counts only a log's newest entries, up to a number, and forgets the others.
func countsTo(most int) func(*faulty, ratelimit.Limit, clock) {
	return func(l *faulty, _ ratelimit.Limit, _ clock) {
		type entries struct{ all []int }
		var m memory[entries]
		l.take = func(ctx context.Context, key string, cost int) (ratelimit.Decision, error) {
			d, err := l.keyed.Take(ctx, key, cost)
			if err == nil && d.Allowed && cost > 0 {
				m.with(key, func(v *entries) {
					if d.Remaining+cost == d.Limit.Capacity() {
						v.all = nil
					}
					if v.all = append(v.all, cost); len(v.all) > most {
						l.keyed.Adjust(context.Background(), key, -v.all[0])
						v.all = v.all[1:]
					}
				})
			}
			return d, err
		}
	}
}

// resetsHalf leaves a part of the spending if it resets a key in the second half of its time.
func resetsHalf(l *faulty, _ ratelimit.Limit, _ clock) {
	l.reset = func(key string) {
		d, _ := l.keyed.Peek(context.Background(), key, 0)
		l.keyed.Reset(context.Background(), key)
		if d.ResetAfter > 0 && d.ResetAfter < d.Limit.Rate.Per && d.Limit.Capacity() > d.Remaining {
			l.keyed.Adjust(context.Background(), key, 1)
		}
	}
}

// waitsForNothing waits for a cost of 0 as for a cost of 1.
func waitsForNothing(l *faulty, _ ratelimit.Limit, _ clock) {
	l.wait = func(ctx context.Context, key string, cost int) error {
		if cost == 0 {
			cost = 1
		}
		return l.keyed.Wait(ctx, key, cost)
	}
}

// hashTag returns the part of a key in braces, for a limiter that treats braces as a tag.
func hashTag(s string) string {
	if _, rest, ok := strings.Cut(s, "{"); ok {
		if tag, _, ok := strings.Cut(rest, "}"); ok && tag != "" {
			return tag
		}
	}
	return s
}

// emptyIsNobody allows every call with the empty key.
func emptyIsNobody(l *faulty, _ ratelimit.Limit, _ clock) {
	l.take = func(ctx context.Context, key string, cost int) (ratelimit.Decision, error) {
		if key == "" {
			return l.keyed.Take(ctx, key, 0)
		}
		return l.keyed.Take(ctx, key, cost)
	}
}

// emptyIsRefused refuses the empty key.
func emptyIsRefused(l *faulty, _ ratelimit.Limit, _ clock) {
	l.take = func(ctx context.Context, key string, cost int) (ratelimit.Decision, error) {
		if key == "" {
			return ratelimit.Decision{Limit: l.current()}, errors.New("no key")
		}
		return l.keyed.Take(ctx, key, cost)
	}
}

var wrongStates = []wrong{
	{name: "a cost is denied for as long as a smaller one", promise: "promise 1", text: "where each cost has a time of its own",
		build: fault(remembersDenials(8, larger, "Settle Adjust Reset SetLimit"))},
	{name: "a cost is denied for as long as a larger one", histories: 24, promise: "promise", text: "",
		build: fault(remembersDenials(8, smaller, "Settle Adjust Reset SetLimit"))},
	{name: "a remembered denial survives Settle", promise: "promise 2", text: "was given back some", build: fault(remembersDenials(1, same, "Adjust Reset SetLimit"))},
	{name: "a remembered denial survives SetLimit", promise: "promise 2", text: "was given back some", build: fault(remembersDenials(1, same, "Settle Adjust Reset"))},
	{name: "a remembered denial survives Adjust", promise: "promise 2", text: "", build: fault(remembersDenials(1, same, "Settle SetLimit Reset"))},
	{name: "a remembered denial survives Reset", promise: "promise 2", text: "was given back some", build: fault(remembersDenials(1, same, "Settle SetLimit Adjust"))},
	{name: "six denials in a row are charged", promise: "promise 4", text: "", build: fault(punishes(6))},
	{name: "a denial whose clean-up failed is an error", promise: "promise 1", text: "unavailable", build: fault(failsToGiveBack)},

	{name: "a question leaves a key under the old limit", promise: "promise 3", text: "after SetLimit, ResetAfter was", build: fault(looksWithoutTaking)},
	{name: "a key expires by the old limit", histories: 24, promise: "promise", text: "where a tightened limit forgives nothing", build: fault(expires)},
	{name: "a debt is placed again when the limit is raised", histories: 24, promise: "the promise of SetLimit", text: "under several limits", accepts: counts, build: fault(placesAgain)},
	{name: "Sweep goes by the limit of New", histories: 24, promise: "the promise of Sweep", text: "the limit was changed", build: fault(sweepsByTheFirst)},
	{name: "what was spent is new when the limit changes", promise: "the promise of SetLimit", text: "and ResetAfter is", accepts: only(fixed, log, counter), build: fault(changesForgetTheAge)},
	{name: "bookings are lost when the rate changes", promise: "the promise of Reserve", text: "gets in before what is booked", build: fault(changesForgetBookings)},
	{name: "the time is forgotten when the limit changes", promise: "the promise of SetLimit", text: "and ResetAfter is", build: fault(changesForgetTheTime)},

	{name: "nothing is settled once Reserve's context has ended", promise: "the promise of Settle", text: "", build: fault(settlesWithin(nil))},
	{name: "a settlement fails once Reserve's context has ended", promise: "the promise of Settle", text: "fails: context canceled", build: fault(settlesWithin(context.Canceled))},
	{name: "a grant and a settlement give back the same", promise: "the promise of Settle", text: "and then a booking of before was settled", build: fault(grantsAndSettles)},
	{name: "settlements at one time lose each other's", promise: "the promise of Settle", text: "at one time", build: fault(losesSettlements)},
	{name: "a settlement beside another does nothing", promise: "the promise of Settle", text: "at one time", build: fault(settlesAlone)},
	{name: "a cancelled booking lets a later caller in", promise: "the promise of Reserve", text: "gets in before what is booked", build: fault(cancelMovesUp)},
	{name: "reservations of one cost are one", promise: "the promise of Settle", text: "", build: fault(sharesSettlements)},
	{name: "Reset leaves bookings", promise: "the promise of Reset", text: "", build: fault(resetLeavesBookings)},
	{name: "a maxDelay is cut to milliseconds", promise: "the promise of Reserve", text: "", build: fault(reserves(cutsDelays))},

	{name: "a key never seen gets a credit", histories: 24, promise: "promise", text: "", build: fault(creditsUnseen)},
	{name: "any grant ends a debt", histories: 24, promise: "the promise of Adjust", text: "given back", build: fault(grantsEndDebts)},
	{name: "bookings hide charges", promise: "the promise of Adjust", text: "", build: fault(bookingsHideCharges)},

	{name: "the second of two equal calls at one instant is free", promise: "promise", text: "", build: fault(repeats(1))},
	{name: "the sixth of equal calls at one instant is free", promise: "promise 5", text: "", build: fault(repeats(5))},
	{name: "a denial steps back with the clock", promise: "promise 7", text: "", build: fault(denialsStepBack)},
	{name: "128 entries are counted", promise: "promise", text: "of a long history", build: fault(countsTo(128))},
	{name: "Reset forgets half", promise: "the promise of Reset", text: "", build: fault(resetsHalf)},
	{name: "a Wait for nothing waits", promise: "the promise of Wait", text: "", build: fault(waitsForNothing)},
	{name: "keys are hash tags", promise: "each key has a budget of its own", text: "a key never seen answers", build: fault(keysBy(hashTag))},
	{name: "the empty key is not counted", promise: "promise 5", text: "the empty key has spent all", build: fault(emptyIsNobody)},
	{name: "the empty key is refused", promise: "promise 4", text: "where the empty key is a key", build: fault(emptyIsRefused)},
}

func TestLimitersThatRememberWronglyAreFoundOut(t *testing.T) {
	testsize.Arithmetic(t)
	testsize.Extra(t)
	all := slices.Clone(wrongStates)
	for i := range all {
		if *seeds == 0 {
			all[i].histories = cmp.Or(all[i].histories, 8)
		}
	}
	findAll(t, all)
}

// A server's time cannot be set back. The suite finds overflowing charges even so.
func TestChargesThatWrapAroundAreFoundOutWithoutAClock(t *testing.T) {
	if math.MaxInt == math.MaxInt32 {
		t.Skip("a few charges of 32 bits do not wrap around 64")
	}
	config := remoteConfig(&link{})
	config.Histories, config.NewPair, config.Close, config.Want = 5, nil, nil, nil
	clock := new(ratelimittest.Clock)
	config.TryAdvance = func(d time.Duration) error { clock.Advance(d); return nil }
	config.New = func(limit ratelimit.Limit) (limiter, error) {
		if err := limit.Validate(); err != nil {
			return nil, err
		}
		return fault(chargesWrap)(limit, clock), nil
	}
	assert.ErrorContains(t, ratelimittest.Check(config), "as much as can be was charged")
}
