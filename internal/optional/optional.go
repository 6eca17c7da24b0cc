// Package optional finds the methods that a limiter may have besides Take and Reserve. It also finds arguments that a
// constructor must refuse because the first call through them would panic. Limits and decisions are type parameters, so
// the package does not import ratelimit, and ratelimit can use it.
package optional

import (
	"context"
	"errors"
	"fmt"
)

// AppendLimits appends the limits of one of several limiters, the zero L if they are not known.
func AppendLimits[L any](all, limits []L) []L {
	if limits == nil {
		limits = make([]L, 1)
	}
	return append(all, limits...)
}

// CanPeek, CanAdjust and CanReset report whether a limiter has the method. A limiter in front
// of another one may have it and still return [errors.ErrUnsupported].

// CanPeek is for Peek.
func CanPeek[K, D any](limiter any) bool {
	switch limiter.(type) {
	case interface {
		Peek(ctx context.Context, key K, cost int) (D, error)
	}:
		return true
	}
	return false
}

// CanAdjust is for Adjust.
func CanAdjust[K any](limiter any) bool {
	switch limiter.(type) {
	case interface {
		Adjust(ctx context.Context, key K, delta int) error
	}:
		return true
	}
	return false
}

// CanReset is for Reset.
func CanReset[K any](limiter any) bool {
	switch limiter.(type) {
	case interface {
		Reset(ctx context.Context, key K) error
	}:
		return true
	}
	return false
}

// Unsupported is the error of a package for a method that a limiter does not have.
func Unsupported(pkg string, limiter any, method string) error {
	return fmt.Errorf("%s: %T has no %s: %w", pkg, limiter, method, errors.ErrUnsupported)
}
