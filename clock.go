package ratelimit

import (
	"math"
	"time"
)

// Clock measures time since its own origin, at most 146 years away. It must be safe for concurrent use. It must
// not call the limiter: the limiter holds locks while it reads the clock. If it steps back, time stands still for
// each key until the key's highest reading comes again. For a [Calendar] it also needs a method Wall() time.Time.
type Clock interface {
	Now() time.Duration
}

// systemClock reads the monotonic clock. All limiters have the same one, so several of them can decide at one reading.
type systemClock struct{}

var origin = time.Now()

// Now returns the time since the program's start.
func (systemClock) Now() time.Duration { return time.Since(origin) }

// Wall returns the date and the time of day.
func (systemClock) Wall() time.Time { return time.Now() }

// maxReading leaves room to add a century to a reading, and to subtract any two.
const maxReading = math.MaxInt64 / 2

// century bounds every time span for a budget: the time to regain
// a whole capacity, how far ahead is booked, and one key's debt.
const century = 876_600 * int64(time.Hour)

// mostCounted is a key's maximum spending. The sum of two such debts does not overflow.
const mostCounted = math.MaxInt64 / 2

// reading is the clock's time in nanoseconds.
func reading(c Clock) int64 {
	return min(max(int64(c.Now()), -maxReading), maxReading)
}
