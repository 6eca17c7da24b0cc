package ratelimit

import (
	"context"
	"time"
)

// Single is one limit without keys: the pace of a job, or the limit of a whole service. Make
// one with [NewSingle]. It is a [Keyed] limiter of the one key struct{}{}, and each method
// does what Keyed's method of that name does. It is safe for concurrent use. The methods of
// the zero Single panic.
type Single Keyed[struct{}]

// NewSingle returns a limiter without keys. Nil options are the defaults; MaxKeys, OnFull and
// IdleTTL change nothing here. The errors are those of [New].
func NewSingle(limit Limit, opts *Options[struct{}]) (*Single, error) {
	var o Options[struct{}]
	if opts != nil {
		o = *opts
	}
	if err := o.validate(); err != nil {
		return nil, err
	}
	// The table is never full, although keys that Reset has marked may not have left it yet.
	o.MaxKeys, o.OnFull, o.IdleTTL = 1000, EvictLeastUsed, 0
	l, err := New(limit, &o)
	return (*Single)(l), err
}

// Keyed returns this limiter as one with keys, whose one key is struct{}{}. Both spend the same
// budget. [Global] makes a layer of it.
func (s *Single) Keyed() *Keyed[struct{}] { return (*Keyed[struct{}])(s) }

// Allow spends the cost and reports true, or spends nothing and reports false. See
// [Keyed.Allow].
func (s *Single) Allow(cost int) bool { return s.Keyed().Allow(struct{}{}, cost) }

// Take is Allow with the details: how much is left, and when to retry. See [Keyed.Take].
func (s *Single) Take(ctx context.Context, cost int) (Decision, error) {
	return s.Keyed().Take(ctx, struct{}{}, cost)
}

// Peek says what Take would answer, and changes nothing. See [Keyed.Peek].
func (s *Single) Peek(cost int) (Decision, error) { return s.Keyed().Peek(struct{}{}, cost) }

// Wait spends the cost, and returns when its time has come: first come, first served. See
// [Keyed.Wait].
func (s *Single) Wait(ctx context.Context, cost int) error {
	return s.Keyed().Wait(ctx, struct{}{}, cost)
}

// Reserve charges a cost that can be settled later, up to maxDelay ahead. See [Keyed.Reserve].
func (s *Single) Reserve(ctx context.Context, cost int, maxDelay time.Duration) (*Reservation, error) {
	return s.Keyed().Reserve(ctx, struct{}{}, cost, maxDelay)
}

// Adjust charges delta, or gives it back if it is negative, whatever the limit allows. See
// [Keyed.Adjust].
func (s *Single) Adjust(delta int) error { return s.Keyed().Adjust(struct{}{}, delta) }

// Reset forgets what was spent. See [Keyed.Reset].
func (s *Single) Reset() { s.Keyed().Reset(struct{}{}) }

// SetLimit replaces the limit. What was spent stays spent. See [Keyed.SetLimit].
func (s *Single) SetLimit(limit Limit) error { return s.Keyed().SetLimit(limit) }

// Limits returns the limit that is in force. See [Keyed.Limits].
func (s *Single) Limits() []Limit { return s.Keyed().Limits() }
