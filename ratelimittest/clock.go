package ratelimittest

import (
	"runtime"
	"sync/atomic"
	"time"
)

// Clock is a [ratelimit.Clock] with a wall time. Both stand still until the clock is moved. The zero Clock reads 0 and is ready for use.
// Its wall time is as long after the beginning of 1970, in UTC, as Now, unless SetWall has changed that. It is safe for concurrent use; it
// must not be copied.
type Clock struct {
	now   atomic.Int64
	wall  atomic.Int64 // how far the wall time is ahead of now, from 1970 on
	reads atomic.Int64

	yields atomic.Bool // readers let other goroutines go first, so that calls at one time meet
}

// Now returns the time that the clock was last set or advanced to.
func (c *Clock) Now() time.Duration {
	c.read()
	return time.Duration(c.now.Load())
}

// Wall returns the wall time at which the clock stands.
func (c *Clock) Wall() time.Time {
	c.read()
	return time.Unix(0, c.now.Load()+c.wall.Load()).UTC()
}

// read counts a reading of the clock.
func (c *Clock) read() {
	c.reads.Add(1)
	if c.yields.Load() {
		runtime.Gosched()
	}
}

// SetWall sets the wall time, as an operator or NTP sets a machine's: the result of Now stays as it is, and from then on both move
// together. The time is one of the years 1678 to 2262.
func (c *Clock) SetWall(at time.Time) { c.wall.Store(at.UnixNano() - c.now.Load()) }

// Advance moves the clock on by d, or back if d is negative.
func (c *Clock) Advance(d time.Duration) { c.now.Add(int64(d)) }

// Set sets the clock to now, which may be earlier than its last reading, and negative.
func (c *Clock) Set(now time.Duration) { c.now.Store(int64(now)) }
