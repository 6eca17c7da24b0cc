// Package micros determines whether redislimit can count a limit. Times must be whole microseconds, and figures
// small enough for the doubles of redislimit's scripts. The command policy uses it to check rules without a server.
package micros

import (
	"fmt"
	"time"

	"github.com/weir-go/ratelimit"
	"github.com/weir-go/ratelimit/internal/meter"
)

const (
	// Most is the largest number that is counted.
	Most = int64(1) << 52
	// MaxLog is the default maximum number of units in a sliding log.
	MaxLog = 2000
)

// Figures returns a limit's figures, or an error if the limit cannot be counted
// exactly. In a bucket, one unit takes per/units µs, in lowest terms. A window has
// units for each per; per is 0 for a calendar. Unlimited and Blocked have no figures.
func Figures(l ratelimit.Limit, maxLog int) (units, per int64, err error) {
	if err := l.Validate(); err != nil {
		return 0, 0, err
	}
	switch l.Algorithm {
	case ratelimit.AlgorithmUnlimited, ratelimit.AlgorithmBlocked:
		return 0, 0, nil
	case ratelimit.AlgorithmTokenBucket, ratelimit.AlgorithmLeakyBucket:
		return ofBucket(l)
	case ratelimit.AlgorithmFixedWindow, ratelimit.AlgorithmSlidingLog, ratelimit.AlgorithmSlidingCounter, ratelimit.AlgorithmCalendar, ratelimit.AlgorithmConcurrent:
		return ofWindow(l, maxLog)
	}
	return 0, 0, fmt.Errorf("%w: redislimit cannot count %v", ratelimit.ErrInvalidLimit, l) // a bug in this package
}

// MaxSharedBurst is the largest burst of a limit that keys share. Up to it redislimit's script counts fractions of a
// unit exactly.
const MaxSharedBurst = 1 << 30

// Shared is like Figures, for a limit that keys share by weight. The limit must be a token bucket.
func Shared(l ratelimit.Limit) (units, per int64, err error) {
	units, per, err = Figures(l, MaxLog)
	switch {
	case err != nil:
	case l.Algorithm != ratelimit.AlgorithmTokenBucket:
		err = fmt.Errorf("redislimit: %w: Algorithm is %v, want a token bucket", ratelimit.ErrInvalidLimit, l.Algorithm)
	case l.Burst > MaxSharedBurst:
		err = fmt.Errorf("redislimit: %w: Burst is %d, want at most 2^30", ratelimit.ErrInvalidLimit, l.Burst)
	case per > Most/max(units, int64(l.Burst)):
		err = fmt.Errorf("redislimit: %w: Burst %d at %d for each %v cannot be counted exactly at 1 µs", ratelimit.ErrInvalidLimit, l.Burst, l.Rate.Units, l.Rate.Per)
	}
	return units, per, err
}

// ofBucket returns a bucket's figures. Its Per may be any number of nanoseconds, because the fraction is exact.
func ofBucket(l ratelimit.Limit) (units, per int64, err error) {
	per, units = int64(l.Rate.Per), int64(l.Rate.Units)
	g := meter.GCD(per, units)
	per, units = per/g, units/g
	g = meter.GCD(per, 1000)
	per /= g
	switch {
	case units > Most/(1000/g):
		return 0, 0, invalid(l, "Rate.Units", int64(l.Rate.Units))
	case per > Most:
		return 0, 0, invalid(l, "Rate.Per", int64(l.Rate.Per))
	case int64(l.Capacity()) > Most:
		return 0, 0, invalid(l, "Burst", int64(l.Capacity()))
	}
	return units * (1000 / g), per, nil
}

func ofWindow(l ratelimit.Limit, maxLog int) (units, per int64, err error) {
	units = int64(l.Capacity())
	switch {
	case l.Rate.Per%time.Microsecond != 0:
		return 0, 0, fmt.Errorf("redislimit: %w: Rate.Per is %v, want whole microseconds for %v", ratelimit.ErrInvalidLimit, l.Rate.Per, l.Algorithm)
	case units > Most:
		return 0, 0, invalid(l, "Rate.Units", units)
	case l.Algorithm == ratelimit.AlgorithmConcurrent && units > int64(maxLog):
		return 0, 0, fmt.Errorf("redislimit: %w: Rate.Units is %d for %v, want at most %d (Options.MaxLog)", ratelimit.ErrInvalidLimit, units, l.Algorithm, maxLog)
	case l.Algorithm == ratelimit.AlgorithmSlidingLog && units > int64(maxLog):
		return 0, 0, fmt.Errorf("redislimit: %w: Rate.Units is %d for a sliding log, want at most %d (Options.MaxLog); a sliding counter has no such bound", ratelimit.ErrInvalidLimit, units, maxLog)
	}
	return units, int64(l.Rate.Per) / 1000, nil
}

func invalid(l ratelimit.Limit, field string, figure int64) error {
	return fmt.Errorf("redislimit: %w: %s is %d in %v, which Redis cannot count exactly at 1 µs (2^52 at most)", ratelimit.ErrInvalidLimit, field, figure, l.Named(""))
}
