package told

import (
	"math"
	"time"
)

// MaxInteger is the largest Integer of a structured field (RFC 9651, section 3.3.1).
const MaxInteger = 999_999_999_999_999

// Clamp brings a figure into the range of a quota.
func Clamp(n int64) int64 { return min(max(n, 0), MaxInteger) }

// Seconds rounds up to whole seconds.
func Seconds(d time.Duration) int64 {
	s := int64(d / time.Second)
	if d%time.Second > 0 {
		s++
	}
	return s
}

// MaxSeconds is how many seconds a time.Duration can hold.
const MaxSeconds = int64(math.MaxInt64 / time.Second)
