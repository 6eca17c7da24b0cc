package ratelimit

import (
	"context"
	"time"
)

// Single is one limit without keys, for example a job's pace or a whole service's limit. Make one with
// [NewSingle]. It has the methods of [Keyed], without the key parameter. The zero Single's methods panic.
//
// If the limit is also a layer, or is passed to a function for any [Limiter], use a
// Keyed[struct{}]: make it with New[struct{}], and call it with the key struct{}{}. See [Global].
type Single struct{ *oneKey }

type oneKey = Keyed[struct{}]

// NewSingle returns a limiter without keys. Nil options mean the defaults; MaxKeys, OnFull and IdleTTL change nothing. The
// errors are the same as New's.
func NewSingle(limit Limit, opts *Options[struct{}]) (*Single, error) {
	var o Options[struct{}]
	if opts != nil {
		o = *opts
	}
	if err := o.validate(); err != nil {
		return nil, err
	}
	// The table is never full, although marked keys may not have left it yet after a Reset.
	o.MaxKeys, o.OnFull, o.IdleTTL = 1000, evictLeastUsed, 0
	l, err := New(limit, &o)
	if err != nil {
		return nil, err
	}
	return &Single{l}, nil
}

// keyed returns the limiter of the one key. If the Single is zero, the limiter's methods panic with the reason.
func (s *Single) keyed() *oneKey {
	if s.oneKey == nil {
		return new(oneKey)
	}
	return s.oneKey
}

// Allow is [Keyed.Allow].
func (s *Single) Allow(cost int) bool { return s.keyed().Allow(struct{}{}, cost) }

// Take is [Keyed.Take].
func (s *Single) Take(ctx context.Context, cost int) (Decision, error) {
	return s.keyed().Take(ctx, struct{}{}, cost)
}

// Peek is [Keyed.Peek].
func (s *Single) Peek(ctx context.Context, cost int) (Decision, error) {
	return s.keyed().Peek(ctx, struct{}{}, cost)
}

// Wait is [Keyed.Wait].
func (s *Single) Wait(ctx context.Context, cost int) error {
	return s.keyed().Wait(ctx, struct{}{}, cost)
}

// Reserve is [Keyed.Reserve].
func (s *Single) Reserve(ctx context.Context, cost int, maxDelay time.Duration) (*Reservation, error) {
	return s.keyed().Reserve(ctx, struct{}{}, cost, maxDelay)
}

// Adjust is [Keyed.Adjust].
func (s *Single) Adjust(ctx context.Context, delta int) error {
	return s.keyed().Adjust(ctx, struct{}{}, delta)
}

// Reset is [Keyed.Reset].
func (s *Single) Reset(ctx context.Context) error { return s.keyed().Reset(ctx, struct{}{}) }
