package failover

import (
	"fmt"
	"log/slog"
	"time"
)

// Options are what [New] can be told. Nil and zero fields mean the defaults. Functions
// in it are called outside every lock.
type Options struct {
	// Timeout bounds each call of the primary, and how long a caller waits for it: for its turn and
	// for the answer of a decision, or of a settlement. If zero, 50 ms. A caller whose context has
	// an earlier deadline is answered then. The call itself runs on, for its full Timeout. Below zero
	// there is no bound: then the primary is called on the caller's goroutine, under the caller's
	// context, which saves some microseconds, and must bound its calls itself. Give a primary
	// with a timeout of its own a shorter one, since its errors tell more.
	Timeout time.Duration

	// Failures is the number of failures that open the breaker. The window is 1 s, or twice
	// Timeout if that is longer. The breaker opens if this many calls fail within a window and
	// are at least half of its results, or if this many fail in a row over a window or more.
	// If zero, 5.
	Failures int

	// MaxCalls is the highest number of decisions that the primary is asked for at one time, and
	// likewise of settlements. Others wait for their turn, within Timeout. If zero, 128. A probe needs no turn.
	// A call that ignores its context keeps its turn after Timeout, until it ends. If such calls hold all
	// turns when the breaker closes, they lose them, and may be under way beside MaxCalls others. It does not apply
	// if Timeout is below zero.
	MaxCalls int

	// OpenFor is how long the breaker stays open before one decision probes the primary. If
	// zero, 1 s. Each Limiter draws its own time within ±20 % of it, so that a fleet does
	// not probe at once.
	OpenFor time.Duration

	// OnStateChange is called after each change of state, in order, on the goroutine of one of the
	// decisions. If it panics, that is logged. If nil, nothing is called.
	OnStateChange func(from, to State)

	// Logger is told of outages: one line when decisions begin to be degraded; one a minute as long as that lasts, of
	// which the first says that the breaker has opened; and one when the breaker closes, or after a minute without
	// a degraded decision. Each tells the error, how many decisions were degraded, and for how long. An outage that
	// comes back within a minute is the same one, so that at most two lines and one for each minute are written of it.
	// Each call of Force has a line beside that. If nil, slog.Default().
	Logger *slog.Logger
}

const (
	defaultTimeout  = 50 * time.Millisecond
	defaultFailures = 5
	defaultOpenFor  = time.Second
	defaultMaxCalls = 128
)

// withDefaults returns the options with nothing left open, or what is wrong with them.
func (o Options) withDefaults() (Options, error) {
	switch {
	case o.Failures < 0:
		return o, fmt.Errorf("failover: Options.Failures is %d, want 0 for the default or more", o.Failures)
	case o.MaxCalls < 0:
		return o, fmt.Errorf("failover: Options.MaxCalls is %d, want 0 for the default or more", o.MaxCalls)
	case o.OpenFor < 0:
		return o, fmt.Errorf("failover: Options.OpenFor is %v, want 0 for the default or more", o.OpenFor)
	}
	if o.Timeout == 0 {
		o.Timeout = defaultTimeout
	}
	if o.Failures == 0 {
		o.Failures = defaultFailures
	}
	if o.MaxCalls == 0 {
		o.MaxCalls = defaultMaxCalls
	}
	if o.OpenFor == 0 {
		o.OpenFor = defaultOpenFor
	}
	return o, nil
}

func (o *Options) logger() *slog.Logger {
	if o.Logger == nil {
		return slog.Default()
	}
	return o.Logger
}
