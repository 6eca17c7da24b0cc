package ratelimittest

import (
	"runtime"
	"sync/atomic"
	"time"
)

// Clock is a [ratelimit.Clock] with a wall time. Both stand still until the clock is moved. The
// zero Clock reads 0 and is ready for use. Unless SetWall has changed it, the wall time is Now
// after the beginning of 1970, in UTC. A Clock is safe for concurrent use. It must not be copied.
type Clock struct {
	now   atomic.Int64
	wall  atomic.Int64 // the wall time minus now, since 1970
	reads atomic.Int64

	yields atomic.Bool // a reading lets other goroutines run first, so that calls at one instant overlap
}

// Now returns the clock's present reading. Only Set and Advance change it.
func (c *Clock) Now() time.Duration {
	c.read()
	return time.Duration(c.now.Load())
}

// Wall returns the wall time.
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

// SetWall sets the wall time, as an operator or NTP sets a machine's. It does not change
// Now. From then on both move together. The time must lie within the years 1678 to 2262.
func (c *Clock) SetWall(at time.Time) { c.wall.Store(at.UnixNano() - c.now.Load()) }

// Advance moves the clock forward by d, or back if d is negative.
func (c *Clock) Advance(d time.Duration) { c.now.Add(int64(d)) }

// Set sets the clock to now, which may be negative or before its last reading.
func (c *Clock) Set(now time.Duration) { c.now.Store(int64(now)) }
