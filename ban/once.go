package ban

import (
	"context"
	"math"
	"reflect"
	"sync"
	"time"

	"github.com/hashicorp/golang-lru/v2/simplelru"

	"github.com/weir-go/ratelimit"
)

// once counts a denial as a strike, unless the denial belongs to a counted strike. If this
// bans the key, once returns the ban's denial. Otherwise it returns the zero Decision.
func (b *Limiter[K]) once(ctx context.Context, key K, d *ratelimit.Decision, cost int) (ban ratelimit.Decision, err error) {
	last := b.marks.of(key)
	if last != nil && last.counting {
		return ban, nil
	}
	// A Limiter has no clock, so the age of the last strike is computed from
	// the state of strikes. If this Peek fails, charge below fails too.
	now, peekErr := ratelimit.Peek(ctx, ratelimit.Limiter[K](b.strikes), key, 1)
	if peekErr == nil && belongs(last, &now, d, cost) {
		return ban, nil
	}
	counting, ok := b.marks.replace(key, last, &mark{counting: true})
	if !ok {
		return ban, nil // another call is counting this strike
	}
	var counted *mark // nil if the next denial has to try again
	defer func() { b.marks.replace(key, counting, counted) }()

	// Another call may have begun a ban, and forgotten the strikes, since this call looked up the ban.
	if d, ok, err := b.banned(ctx, key, cost); !ok {
		return d, err
	}
	after, exhausted, err := b.charge(ctx, key, 1)
	if err != nil {
		return ban, err
	}
	if peekErr == nil && contested(&now, &after) {
		if after.Allowed {
			err = ratelimit.Adjust(ctx, ratelimit.Limiter[K](b.strikes), key, -1)
		}
		return ban, err
	}
	if exhausted {
		return b.begin(ctx, key)
	}
	counted = &mark{hold: d.RetryAfter, remaining: after.Remaining, reset: after.ResetAfter}
	return ban, nil
}

// contested reports whether another process has counted a strike between a peek at the strikes and
// a charge to them. Of several denials at the same time, only the first one charged is a strike.
func contested(before, after *ratelimit.Decision) bool {
	if before.Remaining == 0 || before.Limit != after.Limit || before.Degraded != after.Degraded {
		return false
	}
	return !after.Allowed || after.Remaining < before.Remaining-1
}

// belongs reports whether a denial belongs to a counted strike: to last,
// or to one counted by another process. Now is the state of the strikes.
func belongs(last *mark, now, denial *ratelimit.Decision, cost int) bool {
	if now.ResetAfter == 0 { // all strikes are forgotten
		return false
	}
	if last != nil {
		// Since the strike, ResetAfter has become shorter by the time
		// that has passed, and longer by each strike counted by others.
		ago := last.reset - now.ResetAfter
		if last.hold <= 0 || ago < last.hold {
			return true
		}
		if now.Remaining >= last.remaining {
			return false // no other process has counted a strike
		}
	}
	if now.Limit.Algorithm != ratelimit.AlgorithmSlidingLog {
		return false
	}
	// If the strike and this denial belong to one wait, the time from the strike
	// to the end of this denial's RetryAfter is at most the longest wait.
	ago := now.Limit.Rate.Per - now.ResetAfter
	return denial.RetryAfter <= 0 || ago < denial.RetryAfter || ago+denial.RetryAfter <= longestWait(denial.Limit, cost)
}

// longestWait returns a cost's longest RetryAfter under a limit without debts.
// If it is unknown, longestWait returns the time to regain the whole budget.
func longestWait(l ratelimit.Limit, cost int) time.Duration {
	whole := l.RefillTime()
	switch l.Algorithm {
	case ratelimit.AlgorithmTokenBucket, ratelimit.AlgorithmLeakyBucket:
		return time.Duration(math.Ceil(float64(whole) * float64(cost) / float64(l.Capacity())))
	}
	return whole
}

// mark records a denial's counted strike.
type mark struct {
	counting  bool          // the strike is being counted
	hold      time.Duration // the denial's RetryAfter: until it has passed, further denials belong to the strike; 0 means without an end
	remaining int           // Remaining of strikes after this one
	reset     time.Duration // ResetAfter of strikes after this one
}

// maxMarks is the maximum number of keys whose last strike is remembered. Each takes about 150 bytes.
const maxMarks = 1 << 16

// marks holds each key's last mark. Incomparable keys have none.
type marks[K any] struct {
	mu   sync.Mutex
	last *simplelru.LRU[any, *mark] // nil until a key is denied
}

// of returns a key's mark, or nil if there is none. Nothing changes a mark in the table.
func (m *marks[K]) of(key K) *mark {
	if !canCompare(key) {
		return nil
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.last == nil {
		return nil
	}
	last, _ := m.last.Get(key)
	return last
}

// replace sets a key's mark to next, or removes it if next is nil, and returns next.
// If the key's mark is no longer last, replace changes nothing, and ok is false.
func (m *marks[K]) replace(key K, last, next *mark) (_ *mark, ok bool) {
	if !canCompare(key) {
		return next, true
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.last == nil {
		m.last, _ = simplelru.NewLRU[any, *mark](maxMarks, nil) // the error is nil for a size of at least 1
	}
	if present, _ := m.last.Peek(key); present != last {
		return nil, false
	}
	if next == nil {
		m.last.Remove(key)
	} else {
		m.last.Add(key, next)
	}
	return next, true
}

// canCompare reports whether key can be a key of a map.
func canCompare[K any](key K) bool {
	t := reflect.TypeFor[K]()
	switch t.Kind() {
	case reflect.Interface, reflect.Struct, reflect.Array: // the key may hold an interface with an incomparable value
		return reflect.ValueOf(key).Comparable()
	}
	return t.Comparable()
}
