package ratelimittest_test

import (
	"context"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/weir-go/ratelimit"
	"github.com/weir-go/ratelimit/ratelimittest"
)

// LogEngine is a limiter written with package ratelimit's exported names alone. It is a sliding log: it records a
// key's spending, and allows at most Units in any span of Per. It never forgets a key. An engine for real use must.
type LogEngine struct {
	limit ratelimit.Limit
	clock ratelimit.Clock
	store func() error // calls the store; over a network it can fail

	mu   sync.Mutex // guards keys and their accounts
	keys map[string]*logAccount
}

// logAccount is one key's spending, the oldest first. Bookings are after last.
type logAccount struct {
	last  time.Duration // the highest reading of the key's calls
	spent []*logEntry
}

type logEntry struct {
	at   time.Duration
	cost int
}

var _ ratelimit.Reserver[string] = (*LogEngine)(nil)

// NewLogEngine returns an engine that holds each key to the limit.
func NewLogEngine(limit ratelimit.Limit, clock ratelimit.Clock, store func() error) (*LogEngine, error) {
	if err := limit.Validate(); err != nil {
		return nil, err
	}
	if limit.Algorithm != ratelimit.AlgorithmSlidingLog {
		return nil, fmt.Errorf("%w: LogEngine counts by a sliding log, not by a %v", ratelimit.ErrInvalidLimit, limit.Algorithm)
	}
	return &LogEngine{limit: limit, clock: clock, store: store, keys: make(map[string]*logAccount)}, nil
}

// Describe lets package httplimit announce the limit before the first decision.
func (e *LogEngine) Describe() ratelimit.Description {
	return ratelimit.Description{Limits: []ratelimit.Limit{e.limit}, BooksAhead: true}
}

func (e *LogEngine) Allow(key string, cost int) bool {
	d, _ := e.Take(context.Background(), key, cost)
	return d.Allowed
}

func (e *LogEngine) Take(ctx context.Context, key string, cost int) (ratelimit.Decision, error) {
	r, err := e.Reserve(ctx, key, cost, 0)
	return r.Decision, err
}

func (e *LogEngine) Reserve(_ context.Context, key string, cost int, maxDelay time.Duration) (*ratelimit.Reservation, error) {
	e.mu.Lock()
	defer e.mu.Unlock()
	d := ratelimit.Decision{Limit: e.limit}
	if err := e.check(cost); err != nil {
		return ratelimit.NewReservation(d, nil), err
	}
	now := e.clock.Now()
	a := e.keys[key]
	if a == nil {
		a = &logAccount{last: now}
	}
	seen := max(now, a.last) // a clock that steps back restores no budget
	s := &logEntry{at: seen, cost: cost}
	if d.Allowed = true; cost > 0 {
		e.keys[key] = a
		a.pass(seen, e.limit)
		s.at = a.earliest(cost, e.limit)
		late := s.at - now - max(0, maxDelay)
		if d.Allowed = s.at == seen || late <= 0; !d.Allowed {
			d.RetryAfter = late
		} else if a.spent = append(a.spent, s); s.at > seen {
			d.Delay = s.at - now
		}
	}
	d.Remaining, d.ResetAfter = a.standing(seen, e.limit)
	d.ResetAfter -= now
	return ratelimit.NewReservation(d, func(actual int) error { return e.settle(key, s, actual) }), nil
}

func (e *LogEngine) check(cost int) error {
	switch err := e.store(); {
	case cost < 0:
		return fmt.Errorf("%w: %d", ratelimit.ErrNegativeCost, cost)
	case cost > e.limit.Capacity():
		return fmt.Errorf("%w: %d", ratelimit.ErrExceedsLimit, cost)
	case err != nil:
		return fmt.Errorf("%w: %w", ratelimit.ErrUnavailable, err)
	}
	return nil
}

// settle reduces a spending, or charges the missing cost, perhaps over several
// windows. If the spending no longer counts, reducing it has no effect.
func (e *LogEngine) settle(key string, s *logEntry, actual int) error {
	e.mu.Lock()
	defer e.mu.Unlock()
	if err := e.store(); err != nil {
		return fmt.Errorf("%w: %w", ratelimit.ErrUnavailable, err)
	}
	over := actual - s.cost
	if s.cost = min(s.cost, actual); over <= 0 {
		return nil
	}
	a := e.keys[key]
	if a == nil {
		a = &logAccount{last: e.clock.Now()}
		e.keys[key] = a
	}
	for a.pass(max(e.clock.Now(), a.last), e.limit); over > 0; over -= e.limit.Capacity() {
		part := min(over, e.limit.Capacity())
		a.spent = append(a.spent, &logEntry{a.earliest(part, e.limit), part})
	}
	return nil
}

// pass records a reading, and drops spending that no longer counts.
func (a *logAccount) pass(now time.Duration, l ratelimit.Limit) {
	a.last = now
	a.spent = slices.DeleteFunc(a.spent, func(s *logEntry) bool { return s.cost == 0 || s.at <= now-l.Rate.Per })
}

// earliest returns the first instant when the cost fits, but never one before existing bookings.
func (a *logAccount) earliest(cost int, l ratelimit.Limit) time.Duration {
	at := a.last
	for _, s := range a.spent {
		at = max(at, s.at)
	}
	for _, s := range a.spent {
		if a.counted(at, l)+cost <= l.Capacity() {
			break
		}
		at = max(at, s.at+l.Rate.Per)
	}
	return at
}

// counted returns how much spending counts at an instant, including later bookings.
func (a *logAccount) counted(at time.Duration, l ratelimit.Limit) (sum int) {
	for _, s := range a.spent {
		if s.at > at-l.Rate.Per {
			sum += s.cost
		}
	}
	return sum
}

// standing returns the remaining budget, and the reading at which the key is fresh.
func (a *logAccount) standing(now time.Duration, l ratelimit.Limit) (remaining int, fresh time.Duration) {
	remaining, fresh = l.Capacity()-a.counted(now, l), now
	for _, s := range a.spent {
		if s.cost == 0 {
			continue
		}
		if fresh = max(fresh, s.at+l.Rate.Per); s.at > now {
			remaining = 0 // later callers wait behind the booking
		}
	}
	return max(0, remaining), fresh
}

// A new engine needs only package ratelimit's exported names. The suite reports its faults.
func Example_newEngine() {
	clock := new(ratelimittest.Clock)
	reachable := func() error { return nil }
	err := ratelimittest.Check(ratelimittest.Config{
		Clock:     clock,
		Histories: 20,
		Accepts:   func(l ratelimit.Limit) bool { return l.Algorithm == ratelimit.AlgorithmSlidingLog },
		New: func(limit ratelimit.Limit) (ratelimit.Limiter[string], error) {
			return NewLogEngine(limit, clock, reachable)
		},
		Want: []string{"Reserve"},
	})
	fmt.Println(err)
	// Output: <nil>
}
