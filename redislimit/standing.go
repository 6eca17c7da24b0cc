package redislimit

import (
	"fmt"
	"math"
	"time"

	"github.com/weir-go/ratelimit"
	"github.com/weir-go/ratelimit/internal/meter"
)

// charge is what one decision asks of one Redis key, and what that has answered.
type charge struct {
	plan   *plan
	key    int   // which of the call's keys
	cost   int64 // to be spent
	own    int64 // the part of it that does not depend on the caller's cost
	shares int64 // how many layers charge the caller's cost
	ahead  int64 // how far ahead may be booked
	shadow bool  // it is charged if it fits, and denies nothing

	failed  byte // why the key could not be read, of a shadow charge only
	allowed bool // as the script says
	gen     uint32
	changes byte
	now     int64 // what the reading counts as

	// What the script has said about the key, as of now: its state before the decision. A log's
	// spendings stay on the server: of it, At is when the cost is spent, and N what counts now.
	state  meter.State
	newest int64 // the last booking, of a log the last spending; 0 if there is none
	place  int64 // if no more can be booked ahead, when there is place for one more; else 0
	offer  meter.Offer
}

// weigh finds out when the cost is spent, and as of which reading it may be.
func (c *charge) weigh(reading int64) {
	now := meter.Moment{Reading: reading, Now: c.now}
	c.offer = now.Free()
	switch p := c.plan; {
	case c.cost == 0:
	case p.kind == kindLog:
		if c.offer.At = c.state.At; c.offer.At > c.now {
			c.offer.Retry = max(reading, c.offer.At-c.ahead)
		}
	default:
		p.meter.Advance(&c.state, c.now)
		c.offer = p.meter.Offer(c.state, now, c.cost, c.ahead)
		if p.dates != nil {
			// No further than the next window is booked: of those behind it the script knows nothing.
			if boundary := p.dates.At(reading).To; c.offer.At > c.now && c.offer.At > boundary {
				c.offer.Retry = max(c.offer.Retry, boundary)
			}
		}
	}
	c.offer.Retry = max(c.offer.Retry, c.place)
}

// full is the error of a cost for whose booking there is no place.
func (c *charge) full(reading int64) error {
	return fmt.Errorf("%w: the key has %d bookings ahead, and could not give back one more; there is place in %v, under %v",
		ratelimit.ErrLimited, c.plan.mostBooked(), between(reading, c.place), c.plan.limit)
}

// mostBooked returns how many bookings of a key can be given back.
func (p *plan) mostBooked() int {
	if p.kind == kindLog {
		return maxQueued
	}
	return maxBooked
}

// spend makes the state what it is after the cost is spent.
func (c *charge) spend() {
	p, at := c.plan, c.offer.At
	switch {
	case c.cost == 0:
		return
	case p.kind == kindLog:
		c.newest = max(c.newest, at)
		if at == c.now {
			c.state.N += c.cost
		}
		return
	}
	p.meter.Accept(&c.state, c.now, c.offer, c.cost, !p.meter.Delays())
	if !p.meter.Delays() && at > c.now {
		c.newest = at
	}
}

// remaining returns the largest cost that would be spent at now.
func (c *charge) remaining() int64 {
	switch p := c.plan; {
	case p.kind != kindLog:
		return p.meter.Remaining(c.state, c.now)
	case c.newest > c.now:
		return 0
	default:
		return max(0, p.units-c.state.N)
	}
}

// regained returns the first instant at which the key is fresh.
func (c *charge) regained() int64 {
	switch p := c.plan; {
	case p.kind != kindLog:
		return max(c.now, c.newest, p.meter.Regained(c.state))
	case c.newest > 0:
		return max(c.now, c.newest+p.per)
	}
	return c.now
}

// between returns the time from one instant to a later one.
func between(from, to int64) time.Duration {
	if to-from > math.MaxInt64/1000 {
		return math.MaxInt64
	}
	return time.Duration(to-from) * time.Microsecond
}

func clampInt(n int64) int { return int(min(n, math.MaxInt)) }

// decide fills in the answer of a single charge.
func (c *charge) decide(reading int64, d *ratelimit.Decision) {
	d.Limit, d.Allowed = c.plan.limit, c.allowed
	if !c.allowed {
		d.RetryAfter = between(reading, c.offer.Retry)
	} else if c.offer.At > c.now {
		d.Delay = between(reading, c.offer.At)
	}
	c.standing(reading, d)
}

// standing fills in how the key stands.
func (c *charge) standing(reading int64, d *ratelimit.Decision) {
	d.Remaining = clampInt(c.remaining())
	d.ResetAfter = between(reading, c.regained())
}
