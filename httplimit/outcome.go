package httplimit

import (
	"log/slog"
	"net/http"
	"sync/atomic"
	"time"

	"github.com/weir-go/ratelimit"
)

// Outcome is what the middleware does with a request; in shadow mode, what it would
// have done. The zero Outcome does not occur.
type Outcome uint8

const (
	// OutcomeSkipped is left out by [Options.Skip].
	OutcomeSkipped Outcome = iota + 1
	// OutcomeAllowed is within the limits.
	OutcomeAllowed
	// OutcomeDenied is denied for now.
	OutcomeDenied
	// OutcomeExceeds costs more than can ever pass.
	OutcomeExceeds
	// OutcomeFailed could not be decided, and is refused.
	OutcomeFailed
	// OutcomeFailedOpen could not be decided, and is let through.
	OutcomeFailedOpen

	outcomes = iota + 1
)

var outcomeNames = [outcomes]string{"none", "skipped", "allowed", "denied", "exceeds", "failed", "failed-open"}

// String returns the outcome as a word, such as "denied", for logs and metrics.
func (o Outcome) String() string {
	if o >= outcomes {
		return outcomeNames[0]
	}
	return outcomeNames[o]
}

// Event is one decision. It is valid during the call that gets it.
type Event struct {
	Request  *http.Request
	Cost     int
	Decision ratelimit.Decision
	Err      error
	Outcome  Outcome
}

// Stats count requests since the middleware was made, each under what was done with
// it: the sum of all is the number of requests. In shadow mode they count what would
// have been done.
type Stats struct {
	Skipped    uint64 // left out by Options.Skip
	Allowed    uint64 // within the limits
	Denied     uint64 // denied for now
	Exceeds    uint64 // cost more than can ever pass
	Failed     uint64 // could not be decided, refused
	FailedOpen uint64 // could not be decided, let through by Options.FailOpen
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
	}
}

// throttledLog writes at most one line a second, so that a flood of malformed
// requests is not one of log lines too.
type throttledLog struct {
	next    atomic.Int64 // Unix nanoseconds: no line before
	dropped atomic.Uint64
}

func (l *throttledLog) error(to *slog.Logger, now time.Time, e *Event) {
	at, next := now.UnixNano(), l.next.Load()
	early := at < next && next-at <= int64(time.Second) // else the clock was set back
	if early || !l.next.CompareAndSwap(next, at+int64(time.Second)) {
		l.dropped.Add(1)
		return
	}
	if to == nil {
		to = slog.Default()
	}
	to.ErrorContext(e.Request.Context(), "httplimit: request not decided",
		"outcome", e.Outcome, "error", e.Err, "unlogged", l.dropped.Swap(0))
}
