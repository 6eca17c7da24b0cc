package ratelimittest_test

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/weir-go/ratelimit"
	"github.com/weir-go/ratelimit/ratelimittest"
)

// WindowStore counts in fixed windows. One lock guards all keys. So the store can decide on several
// keys at once, as a database does in a transaction. It never forgets a key. A store for real use must.
type WindowStore struct {
	clock ratelimit.Clock

	mu      sync.Mutex // guards windows
	windows map[string]countedWindow
}

// countedWindow is a key's spending in the latest window. Spending above the limit counts in later windows.
type countedWindow struct {
	begin, last time.Duration // last is the highest reading of the key's calls
	spent       int
}

// WindowEngine is a limiter on a WindowStore.
type WindowEngine struct {
	store *WindowStore
	name  string
	limit ratelimit.Limit
}

var _ ratelimit.Joinable = (*WindowEngine)(nil)

// NewWindowEngine returns a limiter. One store's limiters need different names.
func NewWindowEngine(store *WindowStore, name string, limit ratelimit.Limit) (*WindowEngine, error) {
	if err := limit.Validate(); err != nil {
		return nil, err
	}
	if limit.Algorithm != ratelimit.AlgorithmFixedWindow {
		return nil, fmt.Errorf("%w: a WindowEngine counts in fixed windows, not by a %v", ratelimit.ErrInvalidLimit, limit.Algorithm)
	}
	return &WindowEngine{store, name, limit}, nil
}

func (e *WindowEngine) Allow(key string, cost int) bool {
	d, err := e.Take(context.Background(), key, cost)
	return err == nil && d.Allowed
}

// Take decides on one key.
func (e *WindowEngine) Take(ctx context.Context, key string, cost int) (ratelimit.Decision, error) {
	switch {
	case cost < 0:
		return ratelimit.Decision{Limit: e.limit}, fmt.Errorf("%w: %d", ratelimit.ErrNegativeCost, cost)
	case cost > e.limit.Capacity():
		return ratelimit.Decision{Limit: e.limit}, fmt.Errorf("%w: %d", ratelimit.ErrExceedsLimit, cost)
	}
	charges := []ratelimit.Charge{{Key: key, Limit: e.limit, Cost: cost}}
	_, err := windowJoint{e}.Decide(ctx, charges, ratelimit.JointRequest{})
	return charges[0].Decision, err
}

// Join returns a stack of one store's limiters.
func (e *WindowEngine) Join(limiters []ratelimit.Joining) (ratelimit.Joint, error) {
	var j windowJoint
	for i, l := range limiters {
		other, ok := l.Limiter.(*WindowEngine)
		if !ok || other.store != e.store {
			return nil, fmt.Errorf("layer %d has a limiter of another store: %w", i, errors.ErrUnsupported)
		}
		j = append(j, other)
	}
	return j, nil
}

// windowJoint decides on several of one store's limiters.
type windowJoint []*WindowEngine

func (j windowJoint) Limit(limiter int, _ string, ofRequest ratelimit.Limit) (ratelimit.Limit, any, error) {
	limit := j[limiter].limit // the limit cannot change, so Decide needs no plan
	if ofRequest != (ratelimit.Limit{}) {
		limit = ofRequest.Named(limit.Name)
	}
	_, err := NewWindowEngine(nil, "", limit)
	return limit, nil, err
}

func (j windowJoint) Decide(ctx context.Context, charges []ratelimit.Charge, q ratelimit.JointRequest) (func([]int) error, error) {
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	s := j[0].store
	now := s.clock.Now()
	s.mu.Lock()
	defer s.mu.Unlock()
	allowed := true
	for i := range charges {
		c := &charges[i]
		c.Decided, c.Decision = true, ratelimit.Decision{Limit: c.Limit}
		w := s.at(j.row(*c), now, c.Limit)
		if over := w.spent + c.Cost - c.Limit.Capacity(); over > 0 && c.Cost > 0 {
			c.Decision.RetryAfter = w.ends(over, c.Limit) - now
		} else {
			c.Decision.Allowed = true
		}
		allowed = allowed && (c.Shadow || c.Decision.Allowed)
	}
	for i := range charges {
		c := &charges[i]
		if allowed && !q.Peek && c.Decision.Allowed && c.Cost > 0 {
			s.spend(j.row(*c), now, c.Limit, c.Cost)
		}
		w := s.at(j.row(*c), now, c.Limit)
		c.Decision.Remaining = max(0, c.Limit.Capacity()-w.spent)
		if w.spent > 0 {
			c.Decision.ResetAfter = w.ends(w.spent, c.Limit) - now
		}
	}
	if !q.Settled || !allowed {
		return nil, nil
	}
	return func(costs []int) error {
		s.mu.Lock()
		defer s.mu.Unlock()
		later := s.clock.Now()
		for i, c := range charges {
			more := costs[i] - c.Cost
			w := s.at(j.row(c), later, c.Limit)
			if c.Decision.Allowed && c.Cost > 0 && (more > 0 || w.spent > 0 && w.begin <= now) { // otherwise the spending no longer counts
				s.spend(j.row(c), later, c.Limit, more)
			}
		}
		return nil
	}, nil
}

func (j windowJoint) Adjust(_ context.Context, charges []ratelimit.Charge) error {
	s := j[0].store
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, c := range charges {
		s.spend(j.row(c), s.clock.Now(), c.Limit, c.Cost)
	}
	return nil
}

func (j windowJoint) Report(int, ratelimit.Event[string]) {} // Report does nothing, because the limiters have no observers.

func (j windowJoint) row(c ratelimit.Charge) string { return j[c.Limiter].name + ":" + c.Key }

// at returns a key's window as of a reading.
func (s *WindowStore) at(row string, now time.Duration, l ratelimit.Limit) countedWindow {
	w := s.windows[row]
	if w == (countedWindow{}) {
		w.last = now
	}
	w.last = max(w.last, now) // a clock that steps back restores no budget
	if passed := (w.last - w.begin) / l.Rate.Per; w.spent > 0 && passed > 0 {
		w.spent = max(0, w.spent-int(min(passed, time.Duration(w.spent)))*l.Rate.Units)
		w.begin += passed * l.Rate.Per
	}
	if w.spent == 0 {
		w.begin = w.last // a window begins with its first spending
	}
	return w
}

func (s *WindowStore) spend(row string, now time.Duration, l ratelimit.Limit, cost int) {
	w := s.at(row, now, l)
	w.spent = max(0, w.spent+cost)
	s.windows[row] = w
}

// ends returns the instant at which the given units of the spending stop counting.
func (w countedWindow) ends(units int, l ratelimit.Limit) time.Duration {
	return w.begin + time.Duration((units-1)/l.Rate.Units+1)*l.Rate.Per
}

// Joinable limiters can form a stack, and can hold package policy's budgets. The suite finds Join and tests it.
func Example_newJoint() {
	clock := new(ratelimittest.Clock)
	store := &WindowStore{clock: clock, windows: make(map[string]countedWindow)}
	made := 0
	err := ratelimittest.Check(ratelimittest.Config{
		Clock:     clock,
		Histories: 20,
		Accepts: func(l ratelimit.Limit) bool {
			return l.Algorithm == ratelimit.AlgorithmFixedWindow && l.Rate.Units < 1e9 && l.Rate.Per < 1000*time.Hour
		},
		New: func(limit ratelimit.Limit) (ratelimit.Limiter[string], error) {
			made++
			return NewWindowEngine(store, fmt.Sprint(made), limit)
		},
		Want: []string{"Join"},
	})
	fmt.Println(err)

	users, _ := NewWindowEngine(store, "users", ratelimit.FixedWindow(ratelimit.PerMinute(10)))
	total, _ := NewWindowEngine(store, "total", ratelimit.FixedWindow(ratelimit.PerHour(12)))
	both, err := ratelimit.All(
		ratelimit.By(users, func(user string) (string, error) { return user, nil }),
		ratelimit.Global[string](total),
	)
	fmt.Println(err)
	for _, user := range []string{"ann", "bob", "bob"} {
		d, err := both.Take(context.Background(), user, 5)
		fmt.Println(d.Allowed, d.Remaining, d.RetryAfter, err)
	}
	// Output:
	// <nil>
	// <nil>
	// true 5 0s <nil>
	// true 2 0s <nil>
	// false 2 1h0m0s <nil>
}
