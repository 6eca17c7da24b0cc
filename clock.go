package ratelimit

import (
	"math"
	"time"
)

// Clock tells the time, as a span since an origin of its own; it may be negative. It must
// be safe for concurrent use, and should not step back. If it does, time stands still for
// each key until the clock has reached the key's highest reading again. It is read while
// locks are held, so it must not call the limiter.
//
// Readings more than 146 years from the origin count as 146 years.
type Clock interface {
	Now() time.Duration
}

// systemClock reads the monotonic clock. All limiters have the same one, so that several
// of them can decide at one reading.
type systemClock struct{}

var origin = time.Now()

// Now returns the time since the program's start.
func (systemClock) Now() time.Duration { return time.Since(origin) }

// Wall returns the date and the time of day.
func (systemClock) Wall() time.Time { return time.Now() }

// maxReading leaves room to add a century to a reading, and to subtract any two.
const maxReading = math.MaxInt64 / 2

// reading is the clock's time in nanoseconds.
func reading(c Clock) int64 {
	return min(max(int64(c.Now()), -maxReading), maxReading)
}
