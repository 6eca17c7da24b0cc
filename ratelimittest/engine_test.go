package ratelimittest_test

import (
	"context"
	"math"
	"sync"
	"time"

	"github.com/weir-go/ratelimit"
)

// wordBucket is another engine: a token bucket in 64-bit integers, in
// time units of its own. It counts the spending in 1/per of a unit.
type wordBucket struct {
	mu          sync.Mutex // guards keys
	limit       ratelimit.Limit
	unit        time.Duration
	now         func() time.Duration
	keys        map[string]words
	followsBack bool
}

type words struct {
	owed int64
	last int64
}

func newWordBucket(limit ratelimit.Limit, unit time.Duration, now func() time.Duration) *wordBucket {
	return &wordBucket{limit: limit, unit: unit, now: now, keys: make(map[string]words)}
}

// fitsWords reports whether a wordBucket can count a limit.
func fitsWords(l ratelimit.Limit) bool {
	return tokenBuckets(l) && float64(l.Burst)*float64(l.Rate.Per) < math.MaxInt64/8 && l.Rate.Units < 1<<21
}

func (b *wordBucket) per() int64 { return int64(b.limit.Rate.Per / b.unit) }

func (b *wordBucket) Allow(key string, cost int) bool {
	d, err := b.Take(context.Background(), key, cost)
	return err == nil && d.Allowed
}

func (b *wordBucket) Take(_ context.Context, key string, cost int) (ratelimit.Decision, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	now := int64(b.now() / b.unit)
	switch {
	case cost < 0:
		return ratelimit.Decision{}, ratelimit.ErrNegativeCost
	case cost > b.limit.Burst:
		return ratelimit.Decision{}, ratelimit.ErrExceedsLimit
	}
	k := b.regained(key, now)
	d := b.decide(&k, cost)
	if b.followsBack {
		k.last = now
	}
	b.keys[key] = k
	gap := time.Duration(k.last-now) * b.unit
	if !d.Allowed {
		d.RetryAfter += gap
	}
	if k.owed > 0 {
		d.ResetAfter += gap
	}
	return d, nil
}

func (b *wordBucket) regained(key string, now int64) words {
	k, known := b.keys[key]
	if !known {
		k.last = now
	}
	if passed := now - k.last; passed > 0 {
		if passed > k.owed/int64(b.limit.Rate.Units) {
			k.owed = 0
		}
		k.owed = max(0, k.owed-passed*min(int64(b.limit.Rate.Units), k.owed))
		k.last = now
	}
	return k
}

func (b *wordBucket) decide(k *words, cost int) ratelimit.Decision {
	d := ratelimit.Decision{Limit: b.limit}
	most := int64(b.limit.Burst) * b.per()
	over := k.owed + int64(cost)*b.per() - most
	if d.Allowed = over <= 0; d.Allowed {
		k.owed += int64(cost) * b.per()
	}
	d.RetryAfter = b.until(max(0, over))
	d.ResetAfter = b.until(k.owed)
	d.Remaining = int((most - k.owed) / b.per())
	return d
}

// until returns the time to regain owed, rounded up.
func (b *wordBucket) until(owed int64) time.Duration {
	units := int64(b.limit.Rate.Units)
	return time.Duration((owed+units-1)/units) * b.unit
}
