package edge

import (
	"github.com/weir-go/ratelimit"
)

// mayDelay reports whether a limiter may delay an allowed request: one of its limits is a leaky bucket, or is not known.
func mayDelay(limiter any) bool {
	limits := ratelimit.Describe(limiter).Limits
	for _, limit := range limits {
		if limit.Algorithm == 0 || limit.Algorithm == ratelimit.AlgorithmLeakyBucket {
			return true
		}
	}
	return len(limits) == 0
}
