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

// once counts a denial as a strike, unless it belongs to a strike that was counted before. If the key is banned after that, it
// returns the ban's denial, else the zero Decision.
func (b *Limiter[K]) once(ctx context.Context, key K, d *ratelimit.Decision, cost int) (ban ratelimit.Decision, err error) {
	last := b.marks.of(key)
	if last != nil && last.counting {
		return ban, nil
	}
	// A Limiter has no clock: the strikes themselves show how long ago the last one was counted. If they fail here, they fail below.
	now, peekErr := ratelimit.Peek(ctx, ratelimit.Limiter[K](b.strikes), key, 1)
	if peekErr == nil && belongs(last, &now, d, cost) {
		return ban, nil
	}
	counting, ok := b.marks.replace(key, last, &mark{counting: true})
	if !ok {
		return ban, nil // another call counts this strike
	}
	var counted *mark // stays nil if the next denial has to try again
	defer func() { b.marks.replace(key, counting, counted) }()

	// The call that has begun a ban may have come between this call's look at the bans and here. Its strikes are forgotten.
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

// contested reports whether another process has counted a strike between a look at the strikes and a charge to them: of
// denials at the same time the first charged is the strike.
func contested(before, after *ratelimit.Decision) bool {
	if before.Remaining == 0 || before.Limit != after.Limit || before.Degraded != after.Degraded {
		return false
	}
	return !after.Allowed || after.Remaining < before.Remaining-1
}

// belongs reports whether a denial belongs to a strike that was counted before: last, or one that another process has counted.
// Now is the state of the strikes.
func belongs(last *mark, now, denial *ratelimit.Decision, cost int) bool {
	if now.ResetAfter == 0 { // all strikes are forgotten
		return false
	}
	if last != nil {
		// ResetAfter has become shorter by the time since the strike, and longer by each strike that others have counted since.
		ago := last.reset - now.ResetAfter
		if last.hold <= 0 || ago < last.hold {
			return true
		}
		if now.Remaining >= last.remaining {
			return false // nobody else has counted a strike
		}
	}
	if now.Limit.Algorithm != ratelimit.AlgorithmSlidingLog {
		return false
	}
	// The time from the strike to the end of this denial's wait is at most the longest wait, if both are denials of one wait.
	ago := now.Limit.Rate.Per - now.ResetAfter
	return denial.RetryAfter <= 0 || ago < denial.RetryAfter || ago+denial.RetryAfter <= longestWait(denial.Limit, cost)
}

// longestWait returns the longest RetryAfter of a cost under a limit without debts, and 0 if it is not known.
func longestWait(l ratelimit.Limit, cost int) time.Duration {
	whole := l.RefillTime()
	switch l.Algorithm {
	case ratelimit.AlgorithmTokenBucket, ratelimit.AlgorithmLeakyBucket:
		return time.Duration(math.Ceil(float64(whole) * float64(cost) / float64(l.Capacity())))
	}
	return whole
}

// mark is a strike that was counted for a denial.
type mark struct {
	counting  bool          // the strike is being counted
	hold      time.Duration // the denial's RetryAfter: until then, further denials belong to the strike; 0 is without end
	remaining int           // of the strikes, after this one
	reset     time.Duration // ResetAfter of the strikes, after this one
}

// maxMarks bounds the number of keys whose last strike is remembered, at about 150 bytes each.
const maxMarks = 1 << 16

// marks holds the last mark of each key. A key that cannot be compared has none.
type marks[K any] struct {
	mu   sync.Mutex
	last *simplelru.LRU[any, *mark] // nil until a key is denied
}

// of returns a key's mark, or nil. A mark in the table does not change.
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

// replace sets a key's mark, or removes it if next is nil, and returns next. It does nothing, and ok is false, if the
// present mark is not last.
func (m *marks[K]) replace(key K, last, next *mark) (_ *mark, ok bool) {
	if !canCompare(key) {
		return next, true
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.last == nil {
		m.last, _ = simplelru.NewLRU[any, *mark](maxMarks, nil) // fails for a size below 1 alone
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

// canCompare reports whether a key can be a key of a map.
func canCompare[K any](key K) bool {
	t := reflect.TypeFor[K]()
	switch t.Kind() {
	case reflect.Interface, reflect.Struct, reflect.Array: // it may hold an interface with a value that cannot be compared
		return reflect.ValueOf(key).Comparable()
	}
	return t.Comparable()
}
