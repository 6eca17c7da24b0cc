package ratelimit

import (
	"context"
	"errors"

	"github.com/weir-go/ratelimit/internal/nilcheck"
	"github.com/weir-go/ratelimit/internal/optional"
)

// A limiter may have more methods than [Limiter] and [Reserver]: those of the interfaces in this file. A limiter that stands in
// front of another one has them too, and answers for that one.

// LimitLister is a [Limiter] that returns its limits: one for each layer of a stack or limiter of a chain, in order, and the
// zero Limit where each request or key has its own. A [Shadow] is left out. Nil means that they are not known.
type LimitLister interface {
	Limits() []Limit
}

// Booker is a [Reserver] that reports whether its Reserve may book budget that is still to come. A Reserver without the
// method counts as one that may.
type Booker interface {
	BooksAhead() bool
}

// Waiter is a [Reserver] with a Wait of its own, which [Wait] calls.
type Waiter[K any] interface {
	Wait(ctx context.Context, key K, cost int) error
}

// Peeker is a [Limiter] with a Peek, which [Peek] calls.
type Peeker[K any] interface {
	Peek(ctx context.Context, key K, cost int) (Decision, error)
}

// Adjuster is a [Limiter] with an Adjust, which [Adjust] calls.
type Adjuster[K any] interface {
	Adjust(ctx context.Context, key K, delta int) error
}

// Resetter is a [Limiter] with a Reset, which [Reset] calls.
type Resetter[K any] interface {
	Reset(ctx context.Context, key K) error
}

// CostReplacer is a [Limiter] that reports whether it may charge another cost than the caller's, as a stack with [WithCost]
// does. A Limiter without the method counts as one that does not.
type CostReplacer interface {
	ReplacesCost() bool
}

// Peek returns what l's Take would answer, and changes nothing. It is l's Peek, with or without a context. If l has none, or
// cannot use it, the error wraps [errors.ErrUnsupported].
func Peek[K any](ctx context.Context, l Limiter[K], key K, cost int) (Decision, error) {
	if nilcheck.IsNil(l) {
		return Decision{}, errors.New("ratelimit: Peek was given no limiter")
	}
	switch l := l.(type) {
	case Peeker[K]:
		return l.Peek(ctx, key, cost)
	case interface {
		Peek(key K, cost int) (Decision, error)
	}:
		return l.Peek(key, cost)
	}
	return Decision{}, optional.Unsupported("ratelimit", l, "Peek")
}

// Adjust corrects what a key has spent: see [Keyed.Adjust]. It is l's Adjust, with or without a context. If l has none, or
// cannot use it, the error wraps [errors.ErrUnsupported].
func Adjust[K any](ctx context.Context, l Limiter[K], key K, delta int) error {
	if nilcheck.IsNil(l) {
		return errors.New("ratelimit: Adjust was given no limiter")
	}
	switch l := l.(type) {
	case Adjuster[K]:
		return l.Adjust(ctx, key, delta)
	case interface{ Adjust(key K, delta int) error }:
		return l.Adjust(key, delta)
	}
	return optional.Unsupported("ratelimit", l, "Adjust")
}

// Reset forgets a key and what it has spent. It is l's Reset, with or without a context. If l has none, or cannot use it, the
// error wraps [errors.ErrUnsupported].
func Reset[K any](ctx context.Context, l Limiter[K], key K) error {
	if nilcheck.IsNil(l) {
		return errors.New("ratelimit: Reset was given no limiter")
	}
	switch l := l.(type) {
	case Resetter[K]:
		return l.Reset(ctx, key)
	case interface{ Reset(key K) }:
		l.Reset(key)
		return nil
	}
	return optional.Unsupported("ratelimit", l, "Reset")
}
