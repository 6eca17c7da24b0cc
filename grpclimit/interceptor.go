package grpclimit

import (
	"sync/atomic"
	"time"

	"github.com/weir-go/ratelimit"
	"github.com/weir-go/ratelimit/internal/spread"
	"github.com/weir-go/ratelimit/internal/throttled"
	"github.com/weir-go/ratelimit/internal/undecided"
)

// Interceptor holds the calls of servers to a limiter. Make one with [New] or [PerIP]. It
// is safe for concurrent use, and may serve any number of servers, which then share its
// limits. The zero Interceptor cannot be used: its interceptors panic.
type Interceptor struct {
	limiter   ratelimit.Limiter[*Call]
	reserver  ratelimit.Reserver[*Call] // the limiter if it is one, else nil
	maxDelay  time.Duration             // of the reserver
	reserves  reserves
	opts      Options
	counts    [outcomes]atomic.Uint64
	degraded  atomic.Uint64
	unsettled atomic.Uint64
	logs      [undecided.Reasons]throttled.Log
	settleLog throttled.Log
	seed      spread.Seed // of the jitter
}

// reserves say which charges may have to be given back, so that the reserver is asked.
type reserves struct {
	calls    bool // a call may be held in vain, or there is something to settle
	messages bool // a message may be held in vain
	both     bool // a stream that is denied waits until it can open and pass a message
}

// Stats returns the counters. Each is exact; they are not read at one instant.
func (i *Interceptor) Stats() Stats {
	return Stats{
		Skipped:    i.counts[OutcomeSkipped].Load(),
		Allowed:    i.counts[OutcomeAllowed].Load(),
		Denied:     i.counts[OutcomeDenied].Load(),
		Exceeds:    i.counts[OutcomeExceeds].Load(),
		Failed:     i.counts[OutcomeFailed].Load(),
		FailedOpen: i.counts[OutcomeFailedOpen].Load(),
		Degraded:   i.degraded.Load(),
		Unsettled:  i.unsettled.Load(),
	}
}
