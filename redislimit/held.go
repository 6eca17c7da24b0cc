package redislimit

import (
	"context"
	"fmt"
	"math"
	"math/rand/v2"
	"sync"
	"time"

	"github.com/weir-go/ratelimit"
)

// lua/held.lua counts units under ratelimit.Concurrent. Each reservation
// has an owner, the number by which it is settled and extended.

// newOwner returns a random number for a reservation, never 0. Two
// reservations of a key have the same number with a probability of 1 in 2^52.
func newOwner() int64 { return 1 + rand.Int64N(most-1) }

// back returns the estimated time until the given number of used units
// come back: for each, the mean age divided by the number of used units.
func (c *charge) back(units int64) int64 {
	used, p := float64(c.state.N), c.plan
	wait := math.Ceil(float64(c.state.M) / used / used * float64(units))
	if wait >= float64(p.per) {
		return p.per
	}
	return min(max(int64(wait), leastRetry), p.per)
}

// after returns the estimated instant when a cost fits, or now if it fits.
func (c *charge) after(cost int64) int64 {
	if excess := c.state.N - (c.plan.units - cost); excess > 0 {
		return c.now + c.back(excess)
	}
	return c.now
}

// inUse are one decision's held units.
type inUse struct {
	store *store
	keys  []string
	hold  time.Duration // the shortest hold

	mu      sync.Mutex // guards the fields below
	items   []settlement
	shadows []bool // shadows[i] reports whether items[i] is a shadow's, whose lapse ends no work
}

// inUse returns an allowed decision's held units, nil if there are none.
func (r *request) inUse() *inUse {
	var u *inUse
	for i := range r.charges {
		c := &r.charges[i]
		if c.plan.kind != kindHeld || !c.allowed || c.cost == 0 {
			continue
		}
		if hold := c.plan.limit.Rate.Per; u == nil {
			u = &inUse{store: r.store, hold: hold}
		} else {
			u.hold = min(u.hold, hold)
		}
		item := r.settlementOf(c)
		u.keys, item.key = withKey(u.keys, r.keys[c.key])
		u.items, u.shadows = append(u.items, item), append(u.shadows, c.shadow)
	}
	return u
}

// extend restarts the units' hold, in one round trip.
func (u *inUse) extend(ctx context.Context) error {
	if err := ctx.Err(); err != nil {
		return ended(err, false)
	}
	u.mu.Lock()
	defer u.mu.Unlock()
	b := head(make([]byte, 0, headSize+settleSize*len(u.items)), opExtend, len(u.items))
	for i := range u.items {
		b = u.items[i].pack(b, 0)
	}
	reply, err := u.store.correct(ctx, u.keys, b, false, func(b []byte, now int64) []byte {
		for i := range u.items { // the limiter may have a calendar now
			b, now = u.items[i].plan.latest().putDates(b, u.store, now)
		}
		return b
	})
	if err != nil {
		return err
	}
	if len(reply) != 8+7*len(u.items) {
		return errAnswer
	}
	for i := range u.items {
		item := &u.items[i]
		n := get7(reply[8+7*i:])
		lost := n == 0 || n < item.Cost
		if item.Cost = n; lost && !u.shadows[i] {
			err = fmt.Errorf("%w after %v, under %v", ratelimit.ErrLost, item.plan.limit.Rate.Per, item.plan.limit)
		}
	}
	return err
}
