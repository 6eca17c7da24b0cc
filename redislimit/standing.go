package redislimit

import (
	"fmt"
	"math"
	"time"

	"github.com/weir-go/ratelimit"
)

// state is what a script has said about one key, as of now: for the buckets and the
// windows before the decision, and for the log the answer itself, whose spendings
// stay on the server.
type state struct {
	at     int64 // as in the scripts; of the log: when the cost is spent
	n      int64 // as in the scripts; of the log: what counts at now
	m      int64 // of the counter: spent in the window before; of the log: the newest spending
	newest int64 // the last booking, 0 if there is none
}

// spending is a cost and when it is spent, or leaves a leaky bucket.
type spending struct {
	at   int64
	part int64 // if not 0, it leaves the queue that many 1/units µs after at − 1
	cost int64
}

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
	state
	spending
	retry int64 // the first reading at which it is allowed
}

// weigh finds out when the cost is spent, and as of which reading it may be.
func (c *charge) weigh(reading int64) {
	c.spending, c.retry = spending{at: c.now, cost: c.cost}, reading
	if c.cost == 0 {
		return
	}
	c.spending.at = c.earliest()
	if c.plan.kind == kindLeaky {
		if c.bucketRegained() <= c.now {
			c.state.at, c.n = c.now, 0
		}
		if c.spending.at > c.now {
			c.retry = c.spending.at
		}
		c.spending.at, c.part = c.plan.leaves(c.state, c.now)
	}
	if c.spending.at > c.now && c.ahead < anywhere {
		c.retry = max(c.retry, c.spending.at-c.ahead)
	}
}

func (c *charge) earliest() int64 {
	switch p := c.plan; p.kind {
	case kindToken:
		return max(p.fits(c.state, c.now, c.cost), c.newest)
	case kindLeaky:
		return p.fits(c.state, c.now, c.cost)
	case kindFixed:
		return max(p.earliestFixed(c.state, c.now, c.cost), c.newest)
	case kindCounter:
		return max(p.earliestCounter(c.state, c.now, c.cost), c.newest)
	case kindLog:
		return c.state.at
	}
	panic(fmt.Sprintf("redislimit: kind %#x", c.plan.kind))
}

// spend makes the state what it is after the cost is spent.
func (c *charge) spend() {
	if c.cost == 0 {
		return
	}
	at := c.spending.at
	switch p := c.plan; p.kind {
	case kindToken, kindLeaky:
		c.state = p.owe(c.state, at, c.cost)
	case kindFixed:
		c.state = p.spendFixed(c.state, at, c.cost)
	case kindCounter:
		c.state = p.spendCounter(c.state, at, c.cost)
	case kindLog:
		c.m = max(c.m, at)
		if at == c.now {
			c.n += c.cost
		}
	}
	if c.plan.kind != kindLeaky && at > c.now {
		c.newest = at
	}
}

// remaining returns the largest cost that would be spent at now.
func (c *charge) remaining() int64 {
	p := c.plan
	switch {
	case p.kind == kindLeaky:
		return p.room(c.state, c.now)
	case c.newest > c.now, p.kind == kindLog && c.m > c.now:
		return 0
	}
	switch p.kind {
	case kindToken:
		return p.room(c.state, c.now)
	case kindFixed:
		return p.remainingFixed(c.state, c.now)
	case kindCounter:
		return p.remainingCounter(c.state, c.now)
	default:
		return max(0, p.units-c.n)
	}
}

// regained returns the first instant at which the key is fresh.
func (c *charge) regained() int64 {
	return max(c.now, c.newest, c.regainedState())
}

func (c *charge) regainedState() int64 {
	switch p := c.plan; {
	case p.isBucket():
		return c.bucketRegained()
	case p.kind == kindFixed:
		return c.state.at + ceilDiv(c.n, p.units)*p.per
	case p.kind == kindCounter:
		return p.regainedCounter(c.state)
	case c.m > 0:
		return c.m + p.per
	}
	return 0
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
		d.RetryAfter = between(reading, c.retry)
	} else if c.spending.at > c.now {
		d.Delay = between(reading, c.spending.at)
	}
	c.standing(reading, d)
}

// standing fills in how the key stands.
func (c *charge) standing(reading int64, d *ratelimit.Decision) {
	d.Remaining = clampInt(c.remaining())
	d.ResetAfter = between(reading, c.regained())
}
