package failover

import (
	"cmp"
	"log/slog"
	"time"

	"github.com/weir-go/ratelimit/internal/optional"
)

// Options configure [New]. Nil and zero fields mean the defaults.
type Options struct {
	// Timeout bounds a decision by the primary, including the wait for a turn. It defaults to 50 ms. If negative,
	// the primary runs on the caller's goroutine with the caller's context, and must enforce its own timeout.
	Timeout time.Duration

	// Failures is how many failures open the breaker. It defaults to 5.
	Failures int

	// MaxCalls is how many decisions may be under way at the primary. It also bounds settlements
	// under way, counted separately. It defaults to 128. It does not apply if Timeout is negative.
	MaxCalls int

	// OpenFor is how long the breaker stays open before a probe. It varies by ±20 %. It defaults to 1 s.
	OpenFor time.Duration

	// OnStateChange is called after each state change, in order. It may be nil.
	OnStateChange func(from, to State)

	// Logger receives a line at the beginning and the end of an outage, one each
	// minute between them, and one for each Force. It defaults to [slog.Default].
	Logger *slog.Logger
}

const (
	defaultTimeout  = 50 * time.Millisecond
	defaultFailures = 5
	defaultOpenFor  = time.Second
	defaultMaxCalls = 128
)

// withDefaults returns the options with all defaults, or an error about the first invalid one.
func (o Options) withDefaults() (Options, error) {
	err := cmp.Or(
		optional.NotNegative("failover: Options.Failures", o.Failures, "the default"),
		optional.NotNegative("failover: Options.MaxCalls", o.MaxCalls, "the default"),
		optional.NotNegative("failover: Options.OpenFor", o.OpenFor, "the default"),
	)
	if err != nil {
		return o, err
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
