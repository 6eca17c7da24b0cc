package edge

import (
	"context"
	"fmt"
	"sync/atomic"
	"time"

	"github.com/weir-go/ratelimit"
	"github.com/weir-go/ratelimit/inflight"
	"github.com/weir-go/ratelimit/internal/wait"
)

// Permits issues permits for a client's requests.
type Permits struct {
	pkg     string
	limiter *inflight.Limiter[string]
	maxWait time.Duration

	sent, failed, inFlight atomic.Uint64
}

// NewPermits returns a limiter's permits. Requests wait for at most maxWait
// or, if it is 0, until their contexts end. pkg is the prefix of errors.
func NewPermits(pkg string, l *inflight.Limiter[string], maxWait time.Duration) *Permits {
	return &Permits{pkg: pkg, limiter: l, maxWait: maxWait}
}

// Acquire waits for a permit of a key. It returns the permit and how long the request has waited. The error
// wraps [ratelimit.ErrLimited] if there is no room, or none within MaxWait. Otherwise it is the context's error.
func (p *Permits) Acquire(ctx context.Context, key string) (inflight.Permit, time.Duration, error) {
	begin, waiting := time.Now(), ctx
	if p.maxWait > 0 {
		var cancel context.CancelFunc
		waiting, cancel = wait.Within(ctx, p.maxWait)
		defer cancel()
	}
	permit, err := p.limiter.Acquire(waiting, key, 1)
	if err == nil {
		return permit, time.Since(begin), nil
	}
	p.failed.Add(1)
	if ctx.Err() == nil && waiting.Err() != nil {
		err = fmt.Errorf("%w: no permit within MaxWait, which is %v", &ratelimit.LateError{Package: p.pkg, Reason: ratelimit.ErrLimited}, p.maxWait)
	}
	return inflight.Permit{}, 0, err
}

// Depart counts a sent request.
func (p *Permits) Depart() {
	p.sent.Add(1)
	p.inFlight.Add(1)
}

// Land counts an answer.
func (p *Permits) Land() { p.inFlight.Add(^uint64(0)) }

// Counted returns how many requests were sent, how many got no permit, and how many are in flight.
func (p *Permits) Counted() (sent, failed, inFlight uint64) {
	return p.sent.Load(), p.failed.Load(), p.inFlight.Load()
}
