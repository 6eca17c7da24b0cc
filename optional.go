package ratelimit

import (
	"context"
	"errors"

	"github.com/weir-go/ratelimit/internal/optional"
	"github.com/weir-go/ratelimit/internal/wait"
)

// Limiter decides whether a key may spend. Callers should depend on this interface. Implementations are safe for
// concurrent use.
type Limiter[K any] interface {
	// Allow spends cost of the key's budget and reports true, or spends nothing and reports false. An error counts as
	// false. A cost of 0 is always allowed.
	Allow(key K, cost int) bool

	// Take is Allow with the details. The context bounds the I/O of a remote limiter; in memory it is not used.
	Take(ctx context.Context, key K, cost int) (Decision, error)
}

// A limiter may have the methods of the interfaces below, in addition to [Limiter]'s and
// [Reserver]'s. A limiter in front of another one has them too, and passes their calls on.

// Describer is a [Limiter] that describes itself. For a Limiter without this method, callers assume
// unknown limits, a Reserve that may book ahead, and charges of the caller's cost. See [Describe].
type Describer interface {
	Describe() Description
}

// Description holds what callers, and limiters in front, need to know about a [Limiter]. Later versions may add fields.
type Description struct {
	// Limits has one limit for each layer or inner limiter, in order, without shadow layers. A limit
	// is the zero Limit where each request or key has its own. If nil, the limits are not known.
	Limits []Limit

	// BooksAhead reports whether Reserve may book future budget. It is false only if
	// Reserve never does: then callers pass the longest delay even if they may not wait.
	BooksAhead bool

	// ReplacesCost reports whether the limiter may charge another cost than
	// the caller's. For example, a stack does so if a [Layer] has a Cost.
	ReplacesCost bool

	// Holds reports whether one of the limits is [Concurrent]: then Take, Allow and Wait
	// return an error. Call Reserve, and Settle when the work has ended. Where each
	// request or key has its own limit, one may be Concurrent although Holds is false.
	Holds bool

	// Shared reports whether all keys share the limits by their weights,
	// as in package fair. Otherwise each key has its own budget.
	Shared bool
}

// Describe returns the result of l's Describe. If l has none, it returns a Description with only BooksAhead set.
func Describe(l any) Description {
	if d, ok := l.(Describer); ok {
		return d.Describe()
	}
	return Description{BooksAhead: true}
}

// Waiter is a [Reserver] with a Wait of its own, called by [Wait].
type Waiter[K any] interface {
	Wait(ctx context.Context, key K, cost int) error
}

// Peeker is a [Limiter] with a Peek, called by [Peek].
type Peeker[K any] interface {
	Peek(ctx context.Context, key K, cost int) (Decision, error)
}

// Adjuster is a [Limiter] with an Adjust, called by [Adjust].
type Adjuster[K any] interface {
	Adjust(ctx context.Context, key K, delta int) error
}

// Resetter is a [Limiter] with a Reset, called by [Reset].
type Resetter[K any] interface {
	Reset(ctx context.Context, key K) error
}

// Peek returns the decision of l's Take, and changes nothing. If l has
// no Peek, or cannot use it, the error wraps [errors.ErrUnsupported].
func Peek[K any](ctx context.Context, l Limiter[K], key K, cost int) (Decision, error) {
	if optional.IsNil(l) {
		return Decision{}, optional.Nil("ratelimit: Peek: l")
	}
	if l, ok := l.(Peeker[K]); ok {
		return l.Peek(ctx, key, cost)
	}
	return Decision{}, optional.Unsupported("ratelimit", l, "Peek")
}

// Adjust corrects a key's spending: see [Keyed.Adjust]. If l has no Adjust, or cannot use it, the error wraps [errors.ErrUnsupported].
func Adjust[K any](ctx context.Context, l Limiter[K], key K, delta int) error {
	if optional.IsNil(l) {
		return optional.Nil("ratelimit: Adjust: l")
	}
	if l, ok := l.(Adjuster[K]); ok {
		return l.Adjust(ctx, key, delta)
	}
	return optional.Unsupported("ratelimit", l, "Adjust")
}

// Reset forgets a key and its spending. If l has no Reset, or cannot use it, the error
// wraps [errors.ErrUnsupported].
func Reset[K any](ctx context.Context, l Limiter[K], key K) error {
	if optional.IsNil(l) {
		return optional.Nil("ratelimit: Reset: l")
	}
	if l, ok := l.(Resetter[K]); ok {
		return l.Reset(ctx, key)
	}
	return optional.Unsupported("ratelimit", l, "Reset")
}

// upToTries is the maximum number of TakeUpTo's attempts.
const upToTries = 4

// TakeUpTo spends a key's remaining budget, up to most, on any limiter, and returns how many
// units it was granted. It is for work that can be done in parts. A most above the capacity
// is no error. If most is 0, it grants 0; if negative, it returns an [ErrNegativeCost].
//
// The Decision comes from the granting Take. If nothing is granted, it is a denial: after RetryAfter at least
// 1 is granted. If other callers are faster, TakeUpTo tries again, at most four times; each denied attempt
// counts as a denial. The errors are the limiter's; with [ErrExceedsLimit], not even 1 can ever pass.
func TakeUpTo[K any](ctx context.Context, l Limiter[K], key K, most int) (granted int, d Decision, err error) {
	if optional.IsNil(l) {
		return 0, d, optional.Nil("ratelimit: TakeUpTo: l")
	}
	ctx = wait.OrBackground(ctx)
	switch {
	case most < 0:
		return 0, d, negativeCostError(most)
	case most == 0:
		d, err = l.Take(ctx, key, 0)
		return 0, d, err
	}
	n, known := most, true // for a most of 1 Take alone is enough
	if most > 1 {          // else Take alone is enough
		switch d, err = Peek(ctx, l, key, 1); {
		case err == nil:
			n = d.upTo(most)
		case errors.Is(err, errors.ErrUnsupported):
			known = false
		default:
			d.Allowed = false
			return 0, d, err
		}
	}
	for tries := 0; ; {
		d, err = l.Take(ctx, key, n)
		switch {
		case errors.Is(err, ErrExceedsLimit) && n > 1: // n was not the remaining budget, because there was no Peek or the limit has changed
			n = d.below(n)
			continue
		case err != nil:
			d.Allowed = false
			return 0, d, err
		case d.Allowed:
			return n, d, nil
		case n == 1:
			return 0, d, nil
		}
		if known {
			tries++
		}
		if known = true; tries == upToTries {
			return 0, d, nil
		}
		n = d.upTo(most)
	}
}

// upTo returns the cost to take: the remaining budget, but at most most. If nothing
// remains, it returns 1, whose denial contains the time until something does.
func (d *Decision) upTo(most int) int { return min(most, max(1, d.Remaining)) }

// below returns the next cost to try when n can never be allowed: the
// remaining budget or the capacity in the decision, or else half of n.
func (d *Decision) below(n int) int {
	for _, less := range [...]int{d.Remaining, d.Limit.Capacity()} {
		if 0 < less && less < n {
			return less
		}
	}
	return n / 2
}
