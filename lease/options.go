package lease

import (
	"cmp"
	"fmt"
	"math"
	"time"

	"github.com/weir-go/ratelimit"
	"github.com/weir-go/ratelimit/internal/optional"
)

// Options configure [New]. MaxBatch is required. The zero value of each other option means its default.
type Options[K comparable] struct {
	// MaxBatch is the maximum number of units held for each key; at least 1. Units kept for open reservations do not count.
	MaxBatch int

	// HoldFor is how long a batch is held before its rest is given back. It defaults to 1 s.
	HoldFor time.Duration

	// BatchFor is how long a batch should last, at most HoldFor. It defaults to 50 ms, or half of HoldFor if shorter.
	BatchFor time.Duration

	// DenyFor is how long a denial is repeated without a call to the remote limiter, but
	// at most its RetryAfter. It defaults to 100 ms; if negative, no denial is repeated.
	DenyFor time.Duration

	// Timeout bounds each call to the remote limiter but Settle and Wait. It defaults to 1 s.
	Timeout time.Duration

	// MaxKeys is the maximum number of tracked keys. A key takes 270 bytes
	// in addition to its text, and 560 with a batch. It defaults to 65,536.
	MaxKeys int

	// OnDecision is called after each Allow, Take, Reserve and Wait, on the caller's goroutine. It may be nil.
	OnDecision func(ratelimit.Event[K])

	// Clock sizes batches and times denials. It defaults to the system's
	// monotonic clock. HoldFor and Timeout are measured in real time.
	Clock ratelimit.Clock
}

const (
	defaultHoldFor  = time.Second
	defaultBatchFor = 50 * time.Millisecond
	defaultDenyFor  = 100 * time.Millisecond
	defaultTimeout  = time.Second
	defaultMaxKeys  = 65536
)

// validate returns the first invalid option as an error.
func (o *Options[K]) validate() error {
	return cmp.Or(
		optional.AtLeastOne("lease: Options.MaxBatch", o.MaxBatch),
		optional.NotNegative("lease: Options.HoldFor", o.HoldFor, "the default"),
		optional.NotNegative("lease: Options.BatchFor", o.BatchFor, "the default"),
		optional.NotNegative("lease: Options.Timeout", o.Timeout, "the default"),
		optional.NotNegative("lease: Options.MaxKeys", o.MaxKeys, "the default"),
		optional.NilInside("lease: Options.Clock", o.Clock),
	)
}

// withDefaults returns the options with all defaults, or an error about the first invalid one.
func (o Options[K]) withDefaults() (Options[K], error) {
	if err := o.validate(); err != nil {
		return o, err
	}
	o.HoldFor = orDefault(o.HoldFor, defaultHoldFor)
	o.BatchFor = orDefault(o.BatchFor, min(defaultBatchFor, o.HoldFor/2))
	o.DenyFor = orDefault(o.DenyFor, defaultDenyFor)
	o.Timeout = orDefault(o.Timeout, defaultTimeout)
	o.MaxKeys = orDefault(o.MaxKeys, defaultMaxKeys)
	if o.Clock == nil {
		o.Clock = systemClock{}
	}
	if o.BatchFor > o.HoldFor {
		return o, fmt.Errorf("lease: Options.BatchFor is %v, want at most HoldFor, %v", o.BatchFor, o.HoldFor)
	}
	return o, nil
}

func orDefault[T comparable](v, def T) T {
	var zero T
	if v == zero {
		return def
	}
	return v
}

// systemClock reads the monotonic clock.
type systemClock struct{}

var origin = time.Now()

// Now returns the time since the program's start.
func (systemClock) Now() time.Duration { return time.Since(origin) }

// reading returns the clock's time, bounded so spans of decades can be added or subtracted.
func reading(c ratelimit.Clock) time.Duration {
	return min(max(c.Now(), -maxReading), maxReading)
}

const maxReading = math.MaxInt64 / 4
