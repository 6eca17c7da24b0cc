package fair

import (
	"fmt"
	"time"

	"github.com/weir-go/ratelimit"
	"github.com/weir-go/ratelimit/internal/meter"
)

// mostBurst is the largest burst. Up to it, amounts in fractions of a unit are counted exactly.
const mostBurst = 1 << 40

// century bounds a debt: it is regained within a century, as in package ratelimit.
const century = 876_600 * int64(time.Hour)

// fewTenants is a share's minimum number of tenants. So a single tenant leaves room for others: a quarter of its own debt.
const fewTenants = 4

// budget is a token bucket, counted exactly, for all tenants.
type budget struct {
	meter.Meter
	state      meter.State
	limit      ratelimit.Limit
	burst      uint64
	units, per uint64 // the rate in lowest terms
	changes    uint32 // changes of the limit

	// The free part of the burst. It is cached, because one decision needs it several times.
	freeKnown              bool
	freeNow, freeAt, freeN int64 // freeParts was computed for this instant and state
	freeParts              uint64
}

func checkLimit(limit ratelimit.Limit) error {
	switch err := limit.Validate(); {
	case err != nil:
		return fmt.Errorf("fair: %w", err)
	case limit.Algorithm != ratelimit.AlgorithmTokenBucket:
		return fmt.Errorf("fair: %w: Algorithm is %v, want a token bucket", ratelimit.ErrInvalidLimit, limit.Algorithm)
	case int64(limit.Burst) > mostBurst:
		return fmt.Errorf("fair: %w: Burst is %d, want at most 2^40", ratelimit.ErrInvalidLimit, limit.Burst)
	}
	return nil
}

// set replaces the limit. Spending stays.
func (b *budget) set(limit ratelimit.Limit, now int64) {
	g := meter.GCD(int64(limit.Rate.Per), int64(limit.Rate.Units))
	b.units, b.per = uint64(int64(limit.Rate.Units)/g), uint64(int64(limit.Rate.Per)/g)
	b.limit, b.burst = limit, uint64(limit.Burst)
	m := meter.New(meter.Limit{
		Kind: meter.TokenBucket, Units: int64(limit.Rate.Units), Per: int64(limit.Rate.Per), Burst: int64(limit.Burst),
		Horizon: century, Most: most,
	})
	if b.Counts() {
		b.state = m.Migrate(&b.Meter, b.state, now)
		b.changes++
	}
	b.Meter = m
	b.freeKnown = false
}

// owed returns the unregained spending, in 1/per units.
func (b *budget) owed(now int64) wide {
	if b.state.At < now {
		return wide{}
	}
	return product(uint64(b.state.At-now), b.units).plus(uint64(b.state.N))
}

// fresh reports whether all spending is regained.
func (b *budget) fresh(now int64) bool { return b.Regained(b.state) <= now }

// free returns the burst's free part, in fractions of a unit.
func (b *budget) free(now int64) uint64 {
	if !b.freeKnown || now != b.freeNow || b.state.At != b.freeAt || b.state.N != b.freeN {
		b.freeKnown, b.freeNow, b.freeAt, b.freeN = true, now, b.state.At, b.state.N
		b.freeParts, _ = product(b.burst, b.per).minus(b.owed(now)).parts().over(b.per)
	}
	return b.freeParts
}

// owedParts returns the same amount as owed, in fractions of a unit.
func (b *budget) owedParts(now int64) uint64 {
	parts, _ := b.owed(now).parts().over(b.per)
	return parts
}

// retry returns the time from a reading until the burst has room for a cost.
func (b *budget) retry(m meter.Moment, cost int64) time.Duration {
	return time.Duration(b.Offer(b.state, m, min(cost, int64(b.burst)), 0).Retry - m.Reading)
}

// A single tenant's share is exact: it owes the total's whole debt, and a quarter of
// this debt must stay free. In 1/per units: (few + 1) × owed + cost ≤ few × burst.

// beyondAlone returns the amount by which a cost exceeds a single tenant's share.
func (b *budget) beyondAlone(now, cost int64) wide {
	room := product(fewTenants*b.burst-uint64(cost), b.per)
	return b.owed(now).times(fewTenants + 1).minus(room)
}

// retryAlone returns the time until a cost passes for a single tenant.
func (b *budget) retryAlone(now, cost int64) time.Duration {
	return time.Duration(b.beyondAlone(now, cost).up((fewTenants + 1) * b.units))
}

// largestAlone returns the largest cost within a single tenant's share.
func (b *budget) largestAlone(now int64) int64 {
	n, _ := product(fewTenants*b.burst, b.per).minus(b.owed(now).times(fewTenants + 1)).over(b.per)
	return int64(n)
}
