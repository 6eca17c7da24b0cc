package failover

import (
	"fmt"
	"log/slog"
	"time"
)

// Options are what [New] can be told. Nil and zero fields mean the defaults. Functions
// in it are called outside every lock.
type Options struct {
	// Timeout bounds each call of the primary, beside the caller's context: a decision,
	// and the settling of a reservation. If zero, 50 ms. Below zero there is none: then the primary is
	// called on the caller's goroutine, which saves some microseconds, and must bound its calls
	// itself. Give a primary with a timeout of its own a shorter one, since its errors tell more.
	Timeout time.Duration

	// Failures is how many failures in a row open the breaker. If zero, 5.
	Failures int

	// OpenFor is how long the breaker stays open before one decision probes the primary. If
	// zero, 1 s. Each Limiter draws its own time within ±20 % of it, so that a fleet does
	// not probe at once.
	OpenFor time.Duration

	// OnStateChange is called after each change of state, in order, on the goroutine of one of the
	// decisions. If nil, nothing is.
	OnStateChange func(from, to State)

	// Logger is told of each change of state, and at most once a minute that decisions are
	// degraded, with the cause. If nil, slog.Default().
	Logger *slog.Logger
}

const (
	defaultTimeout  = 50 * time.Millisecond
	defaultFailures = 5
	defaultOpenFor  = time.Second
)

// withDefaults returns the options with nothing left open, or what is wrong with them.
func (o Options) withDefaults() (Options, error) {
	switch {
	case o.Failures < 0:
		return o, fmt.Errorf("failover: Options.Failures is %d, want 0 for the default or more", o.Failures)
	case o.OpenFor < 0:
		return o, fmt.Errorf("failover: Options.OpenFor is %v, want 0 for the default or more", o.OpenFor)
	}
	if o.Timeout == 0 {
		o.Timeout = defaultTimeout
	}
	if o.Failures == 0 {
		o.Failures = defaultFailures
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
