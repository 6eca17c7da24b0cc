package ratelimit

import (
	"context"
	"time"
)

// Single is one limit without keys: the pace of a job, or the limit of a whole service. Make one with [NewSingle]. It is a
// [Keyed] limiter of one key. Its methods are Keyed's without the key parameter, and Keyed's methods without a key, such as
// SetLimit. The methods of the zero Single panic.
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
	// The table is never full, although keys that Reset has marked may not have left it yet.
	o.MaxKeys, o.OnFull, o.IdleTTL = 1000, evictLeastUsed, 0
	l, err := New(limit, &o)
	if err != nil {
		return nil, err
	}
	return &Single{l}, nil
}

// Keyed returns the limiter as one with keys, whose one key is struct{}{}, for [Global].
func (s *Single) Keyed() *Keyed[struct{}] {
	if s.oneKey == nil {
		return new(oneKey) // whose methods panic with the reason
	}
	return s.oneKey
}

// Allow is [Keyed.Allow].
func (s *Single) Allow(cost int) bool { return s.Keyed().Allow(struct{}{}, cost) }

// Take is [Keyed.Take].
func (s *Single) Take(ctx context.Context, cost int) (Decision, error) {
	return s.Keyed().Take(ctx, struct{}{}, cost)
}

// Peek is [Keyed.Peek].
func (s *Single) Peek(cost int) (Decision, error) { return s.Keyed().Peek(struct{}{}, cost) }

// Wait is [Keyed.Wait].
func (s *Single) Wait(ctx context.Context, cost int) error {
	return s.Keyed().Wait(ctx, struct{}{}, cost)
}

// Reserve is [Keyed.Reserve].
func (s *Single) Reserve(ctx context.Context, cost int, maxDelay time.Duration) (*Reservation, error) {
	return s.Keyed().Reserve(ctx, struct{}{}, cost, maxDelay)
}

// Adjust is [Keyed.Adjust].
func (s *Single) Adjust(delta int) error { return s.Keyed().Adjust(struct{}{}, delta) }

// Reset is [Keyed.Reset].
func (s *Single) Reset() { s.Keyed().Reset(struct{}{}) }
