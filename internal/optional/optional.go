// Package optional finds the methods that a limiter may have besides Take and Reserve. It does not import package ratelimit, so that
// ratelimit can use it too: limits and decisions are type parameters.
package optional

import (
	"context"
	"errors"
	"fmt"
)

// ReplacesCost reports whether a limiter may charge another cost than the caller's: the result of its ReplacesCost, false without that
// method.
func ReplacesCost(limiter any) bool {
	r, ok := limiter.(interface{ ReplacesCost() bool })
	return ok && r.ReplacesCost()
}

// BooksAhead reports whether a limiter's Reserve may charge budget that is still to come: the result of its BooksAhead, true without that
// method.
func BooksAhead(limiter any) bool {
	b, ok := limiter.(interface{ BooksAhead() bool })
	return !ok || b.BooksAhead()
}

// Limits returns a limiter's limits, nil if it has no method Limits.
func Limits[L any](limiter any) []L {
	if l, ok := limiter.(interface{ Limits() []L }); ok {
		return l.Limits()
	}
	return nil
}

// LimitsOfAll returns the limits of several limiters in order, the zero L for one whose limits are not known.
func LimitsOfAll[L, R any](limiters ...R) (all []L) {
	for _, l := range limiters {
		limits := Limits[L](l)
		if limits == nil {
			limits = make([]L, 1)
		}
		all = append(all, limits...)
	}
	return all
}

// CanPeek, CanAdjust and CanReset report whether a limiter has the method, with a context or without one. A limiter in front
// of another one may have it and still return [errors.ErrUnsupported].

// CanPeek is for Peek.
func CanPeek[K, D any](limiter any) bool {
	switch limiter.(type) {
	case interface {
		Peek(ctx context.Context, key K, cost int) (D, error)
	}, interface {
		Peek(key K, cost int) (D, error)
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
	}, interface{ Adjust(key K, delta int) error }:
		return true
	}
	return false
}

// CanReset is for Reset.
func CanReset[K any](limiter any) bool {
	switch limiter.(type) {
	case interface {
		Reset(ctx context.Context, key K) error
	}, interface{ Reset(key K) }:
		return true
	}
	return false
}

// Unsupported is the error of a package for a method that a limiter does not have.
func Unsupported(pkg string, limiter any, method string) error {
	return fmt.Errorf("%s: %T has no %s: %w", pkg, limiter, method, errors.ErrUnsupported)
}
