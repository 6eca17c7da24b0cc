// Package optional finds the methods that a limiter may have besides Take and Reserve. It
// also finds arguments that a constructor must reject, because the first call through them
// would panic. Limits and decisions are type parameters: so ratelimit can import the package.
package optional

import (
	"context"
	"errors"
	"fmt"
)

// AppendLimits appends a limiter's limits to those of others. If they are not known, it appends the zero L.
func AppendLimits[L any](all, limits []L) []L {
	if limits == nil {
		limits = make([]L, 1)
	}
	return append(all, limits...)
}

// CanPeek, CanAdjust and CanReset report whether a limiter has the method. A limiter in front
// of another one may have it and still return [errors.ErrUnsupported].

// CanPeek reports whether a limiter has Peek.
func CanPeek[K, D any](limiter any) bool {
	switch limiter.(type) {
	case interface {
		Peek(ctx context.Context, key K, cost int) (D, error)
	}:
		return true
	}
	return false
}

// CanAdjust reports whether a limiter has Adjust.
func CanAdjust[K any](limiter any) bool {
	switch limiter.(type) {
	case interface {
		Adjust(ctx context.Context, key K, delta int) error
	}:
		return true
	}
	return false
}

// CanReset reports whether a limiter has Reset.
func CanReset[K any](limiter any) bool {
	switch limiter.(type) {
	case interface {
		Reset(ctx context.Context, key K) error
	}:
		return true
	}
	return false
}

// Unsupported returns a package's error for a method that a limiter lacks.
func Unsupported(pkg string, limiter any, method string) error {
	return fmt.Errorf("%s: %T has no %s: %w", pkg, limiter, method, errors.ErrUnsupported)
}
