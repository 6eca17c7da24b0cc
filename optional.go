package ratelimit

import (
	"context"
	"errors"
	"fmt"

	"github.com/weir-go/ratelimit/internal/nilcheck"
)

// The interfaces in this file are what a limiter may offer besides [Limiter] and [Reserver]. Who
// is given a limiter asks for them by a type assertion. A limiter that stands before another
// one has the methods too, and answers for that one.

// LimitLister is a [Limiter] that tells its limits, before the first decision too: one for
// each layer of a stack or limiter of a chain, in order, and the zero Limit where each request
// or key has its own. A layer that never denies, a [Shadow], is left out. One that knows none
// returns nil.
type LimitLister interface {
	Limits() []Limit
}

// Booker is a [Reserver] that says whether its Reserve books budget that is still to come. One
// that does not, such as [Layered], delays only what leaky buckets delay. A Reserver
// that is no Booker counts as one that books.
type Booker interface {
	BooksAhead() bool
}

// Waiter is a [Reserver] with a Wait of its own, which [Wait] calls.
type Waiter[K any] interface {
	Wait(ctx context.Context, key K, cost int) error
}

// Peeker is a [Limiter] that can say what Take would answer, and change nothing. [Peek]
// asks any limiter. An engine that cannot, or that stands before one which cannot, returns
// an error that wraps [errors.ErrUnsupported].
type Peeker[K any] interface {
	Peek(ctx context.Context, key K, cost int) (Decision, error)
}

// Adjuster is a [Limiter] that can correct what a key has spent, as [Keyed.Adjust] does.
// [Adjust] asks any limiter.
type Adjuster[K any] interface {
	Adjust(ctx context.Context, key K, delta int) error
}

// Resetter is a [Limiter] that can forget a key and what it has spent. [Reset] asks any
// limiter.
type Resetter[K any] interface {
	Reset(ctx context.Context, key K) error
}

// CostReplacer is a [Limiter] that may charge another cost than the caller's, such as a stack
// with [WithCost]. One that stands before another limiter reports what that one does.
type CostReplacer interface {
	ReplacesCost() bool
}

// Peek says what Take would answer, if l is a [Peeker], or has the Peek of this package's
// limiters, which need no context. Else the error wraps [errors.ErrUnsupported].
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
	return Decision{}, unsupported(l, "Peek")
}

// Adjust corrects what a key has spent, if l is an [Adjuster], or has the Adjust of [Keyed],
// which needs no context. Else the error wraps [errors.ErrUnsupported].
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
	return unsupported(l, "Adjust")
}

// Reset forgets a key and what it has spent, if l is a [Resetter], or has the Reset of
// [Keyed], which needs no context. Else the error wraps [errors.ErrUnsupported].
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
	return unsupported(l, "Reset")
}

// canPeek, canAdjust and canReset report whether a limiter has the methods. One that stands before
// another limiter may have them and still return [errors.ErrUnsupported].

func canPeek[K any](l Limiter[K]) bool {
	_, plain := l.(interface {
		Peek(key K, cost int) (Decision, error)
	})
	_, peeker := l.(Peeker[K])
	return peeker || plain
}

func canAdjust[K any](l Limiter[K]) bool {
	_, plain := l.(interface{ Adjust(key K, delta int) error })
	_, adjuster := l.(Adjuster[K])
	return adjuster || plain
}

func canReset[K any](l Limiter[K]) bool {
	_, plain := l.(interface{ Reset(key K) })
	_, resetter := l.(Resetter[K])
	return resetter || plain
}

func unsupported(l any, what string) error {
	return fmt.Errorf("ratelimit: %T has no %s: %w", l, what, errors.ErrUnsupported)
}

// replacesCost reports whether a limiter may charge another cost than the caller's, as far
// as it tells.
func replacesCost(l any) bool {
	r, ok := l.(CostReplacer)
	return ok && r.ReplacesCost()
}
