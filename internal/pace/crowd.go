package pace

import (
	"math/rand/v2"
	"time"
)

// crowd records whether other processes use the server's budget, too, and spaces
// this process's requests. A process that is alone may spend a whole budget at once.
type crowd struct {
	served int64     // requests to serve until the server's budgets count as this process's own again
	alone  int64     // requests to serve until the next refusal counts as a first one; 0 if there was none
	last   time.Time // when the last request was sent
	jitter float64   // a random factor of the time after last
}

// After an answer that shows other processes, the budgets count as shared for the next aware requests,
// or for as many as a budget has. After a second refusal they count as shared for suspicious requests.
const (
	aware      = 64
	suspicious = 16
)

// send counts a sent request. The time to the next request varies by up to a
// quarter: otherwise processes with the same figure would send at the same time.
func (c *crowd) send(now time.Time) { c.last, c.jitter = now, .75+.5*rand.Float64() }

// serve counts a served request.
func (c *crowd) serve() { c.served, c.alone = max(0, c.served-1), max(0, c.alone-1) }

// refuse counts a refusal. A single refusal has no effect: it may
// come from the rounding of times, and not from others' requests.
func (c *crowd) refuse() {
	if c.alone > 0 {
		c.served = max(c.served, suspicious)
	}
	c.alone = aware
}

// meet records an answer that shows other processes' requests.
func (c *crowd) meet(limit int64) { c.served = max(aware, limit) }

// here reports whether other processes use the budget, too.
func (c *crowd) here() bool { return c.served > 0 }
