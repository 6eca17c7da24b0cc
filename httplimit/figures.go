package httplimit

import (
	"math"
	"time"
)

// maxInteger is the largest Integer of a structured field (RFC 9651, section 3.3.1).
const maxInteger = 999_999_999_999_999

// clamp brings a figure into the range of a quota.
func clamp(n int64) int64 { return min(max(n, 0), maxInteger) }

// seconds rounds up to whole seconds.
func seconds(d time.Duration) int64 {
	s := int64(d / time.Second)
	if d%time.Second > 0 {
		s++
	}
	return s
}

// maxSeconds is how many seconds a time.Duration can hold.
const maxSeconds = int64(math.MaxInt64 / time.Second)
