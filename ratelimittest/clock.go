package ratelimittest

import (
	"runtime"
	"sync/atomic"
	"time"
)

// Clock is a [ratelimit.Clock] that stands still until it is moved. The zero Clock
// reads 0 and is ready for use. It is safe for concurrent use; it must not be copied.
type Clock struct {
	now   atomic.Int64
	reads atomic.Int64

	yields atomic.Bool // who reads it lets others go first, so that calls at one time meet
}

// Now returns the time that the clock was last set or advanced to.
func (c *Clock) Now() time.Duration {
	c.reads.Add(1)
	if c.yields.Load() {
		runtime.Gosched()
	}
	return time.Duration(c.now.Load())
}

// Advance moves the clock on by d, or back if d is negative.
func (c *Clock) Advance(d time.Duration) { c.now.Add(int64(d)) }

// Set sets the clock to now, which may be earlier than what it read before, and
// negative.
func (c *Clock) Set(now time.Duration) { c.now.Store(int64(now)) }
