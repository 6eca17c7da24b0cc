package ratelimit

import (
	"math"
	"time"
)

// Clock tells the time as a span since an origin of its own, which may be
// negative. It must be safe for concurrent use and should not step back; where
// it does, a key's time stands still until the clock has caught up. It is read
// while a key's lock is held, so it must not call the limiter.
//
// Readings are counted within ±146 years of the clock's origin; beyond that a
// key's time stands still.
type Clock interface {
	Now() time.Duration
}

// systemClock reads the monotonic clock. It is one value for all limiters, so
// that several of them can decide on one reading.
type systemClock struct{}

var origin = time.Now()

// Now returns the time since the program's start.
func (systemClock) Now() time.Duration { return time.Since(origin) }

// maxReading leaves room to add a century, and to subtract any two readings.
const maxReading = math.MaxInt64 / 2

// reading is the clock's time in nanoseconds.
func reading(c Clock) int64 {
	return min(max(int64(c.Now()), -maxReading), maxReading)
}
