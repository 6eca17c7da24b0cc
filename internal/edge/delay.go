package edge

import (
	"context"
	"net/http"
	"time"

	"github.com/weir-go/ratelimit"
)

// mayDelay reports whether a limiter may delay an allowed request: one of its limits is a leaky bucket or is not known.
func mayDelay(limiter any) bool {
	limits := ratelimit.Describe(limiter).Limits
	for _, limit := range limits {
		if limit.Algorithm == 0 || limit.Algorithm == ratelimit.AlgorithmLeakyBucket {
			return true
		}
	}
	return len(limits) == 0
}

// OutlastsServer reports whether a delay is at least as long as the ReadTimeout or the WriteTimeout of the
// request's net/http server. If these timeouts cannot be renewed, a request with such a delay gets no answer.
func OutlastsServer(ctx context.Context, delay time.Duration) bool {
	s, _ := ctx.Value(http.ServerContextKey).(*http.Server)
	if s == nil {
		return false
	}
	return s.WriteTimeout > 0 && delay >= s.WriteTimeout || s.ReadTimeout > 0 && delay >= s.ReadTimeout
}
