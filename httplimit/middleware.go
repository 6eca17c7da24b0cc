package httplimit

import (
	"net/http"
	"sync/atomic"
	"time"

	"github.com/weir-go/ratelimit"
	"github.com/weir-go/ratelimit/internal/spread"
	"github.com/weir-go/ratelimit/internal/throttled"
	"github.com/weir-go/ratelimit/internal/undecided"
)

// Middleware holds handlers to a limiter. Make one with [New] or [PerIP]. It is safe for
// concurrent use, and may wrap any number of handlers, which then share its limits.
// The zero Middleware cannot be used: Wrap panics.
type Middleware struct {
	limiter   ratelimit.Limiter[*http.Request]
	reserver  ratelimit.Reserver[*http.Request] // if charges may have to be given back, else nil
	maxDelay  time.Duration                     // of the reserver
	opts      Options
	counts    [outcomes]atomic.Uint64
	degraded  atomic.Uint64
	unsettled atomic.Uint64
	logs      [undecided.Reasons]throttled.Log
	settleLog throttled.Log
	seed      spread.Seed // of the jitter
	views     views
}

// Stats returns the counters. Each is exact; they are not read at one instant.
func (m *Middleware) Stats() Stats {
	return Stats{
		Skipped:    m.counts[OutcomeSkipped].Load(),
		Allowed:    m.counts[OutcomeAllowed].Load(),
		Denied:     m.counts[OutcomeDenied].Load(),
		Exceeds:    m.counts[OutcomeExceeds].Load(),
		Failed:     m.counts[OutcomeFailed].Load(),
		FailedOpen: m.counts[OutcomeFailedOpen].Load(),
		Degraded:   m.degraded.Load(),
		Unsettled:  m.unsettled.Load(),
	}
}
