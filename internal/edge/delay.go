package edge

import (
	"context"
	"net/http"
	"time"

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

// OutlastsServer reports whether a delay is at least as long as a timeout of the net/http server that received the
// request: its ReadTimeout or its WriteTimeout. Such a call would get no answer if its timeouts cannot be renewed.
func OutlastsServer(ctx context.Context, delay time.Duration) bool {
	s, _ := ctx.Value(http.ServerContextKey).(*http.Server)
	if s == nil {
		return false
	}
	return s.WriteTimeout > 0 && delay >= s.WriteTimeout || s.ReadTimeout > 0 && delay >= s.ReadTimeout
}
