package ratelimit

import (
	"fmt"
	"math"
	"time"
)

// maxUnits is the largest exactly counted rate numerator: 2^53.
const maxUnits = 1 << 53

// Rate is a number of units per time, such as 100 a second. Both fields must be positive; the zero Rate is invalid.
type Rate struct {
	Units int           // how much may be spent …
	Per   time.Duration // … in this time span
}

// PerSecond returns the rate of n units a second.
func PerSecond(n int) Rate { return Rate{n, time.Second} }

// PerMinute returns the rate of n units a minute.
func PerMinute(n int) Rate { return Rate{n, time.Minute} }

// PerHour returns the rate of n units an hour.
func PerHour(n int) Rate { return Rate{n, time.Hour} }

// PerDay returns the rate of n units in 24 hours.
func PerDay(n int) Rate { return Rate{n, 24 * time.Hour} }

// Per returns the rate of n units for each d. One unit every d is Per(1, d), as rate.Every of golang.org/x/time/rate.
func Per(n int, d time.Duration) Rate { return Rate{n, d} }

// Algorithm is how a [Limit] counts. The zero Algorithm is invalid.
type Algorithm uint8

// Each algorithm has the name of its limits' constructor.
const (
	AlgorithmTokenBucket Algorithm = iota + 1
	AlgorithmLeakyBucket
	AlgorithmFixedWindow
	AlgorithmSlidingLog
	AlgorithmSlidingCounter
	AlgorithmUnlimited
	AlgorithmBlocked
	AlgorithmCalendar
	AlgorithmConcurrent
	// A Saved stores these numbers, so a new algorithm comes here, at the end.
)

var algorithmNames = [...]string{
	AlgorithmTokenBucket:    "token-bucket",
	AlgorithmLeakyBucket:    "leaky-bucket",
	AlgorithmFixedWindow:    "fixed-window",
	AlgorithmSlidingLog:     "sliding-log",
	AlgorithmSlidingCounter: "sliding-counter",
	AlgorithmUnlimited:      "unlimited",
	AlgorithmBlocked:        "blocked",
	AlgorithmCalendar:       "calendar",
	AlgorithmConcurrent:     "concurrent",
}

// String returns the algorithm's name as [ParseLimit] reads it, such as "token-bucket".
func (a Algorithm) String() string {
	if a == 0 || int(a) >= len(algorithmNames) {
		return fmt.Sprintf("algorithm(%d)", uint8(a))
	}
	return algorithmNames[a]
}

// Limit states how much is allowed: a plain value, to be compared, printed, parsed and stored. Make one with
// [TokenBucket], [LeakyBucket], [FixedWindow], [SlidingLog], [SlidingCounter], [Calendar], [Concurrent],
// [Unlimited] or [Blocked]. The zero Limit is invalid, except where it is documented to mean a default.
type Limit struct {
	// Name identifies this limit in a [Decision]. It may be empty: see [Limit.Named].
	Name string
	// Algorithm is how the limit counts.
	Algorithm Algorithm
	// Rate is how fast a bucket regains, or the number of units in each window. A calendar's Per is
	// zero. Under Concurrent, Units is the maximum in use at the same time, and Per is the hold.
	Rate Rate
	// Burst is a token bucket's burst or a leaky bucket's queue; else zero.
	Burst int
	// Period is the unit and time zone for a calendar's windows; else zero.
	Period Period
}

// Unlimited returns a limit that allows every cost.
func Unlimited() Limit { return Limit{Algorithm: AlgorithmUnlimited} }

// Blocked returns a limit that denies every cost above zero with [ErrBlocked].
func Blocked() Limit { return Limit{Algorithm: AlgorithmBlocked} }

// Named returns the limit with that name: empty, or a letter followed by letters, digits, "_" and "-".
func (l Limit) Named(name string) Limit {
	l.Name = name
	return l
}

// Capacity returns the largest cost that can pass: a token bucket's burst, a leaky bucket's queue, the units
// of a window or of [Concurrent], [math.MaxInt] for [Unlimited], 0 for [Blocked] and for an invalid limit.
func (l Limit) Capacity() int {
	switch l.Algorithm {
	case AlgorithmTokenBucket, AlgorithmLeakyBucket:
		return l.Burst
	case AlgorithmFixedWindow, AlgorithmSlidingLog, AlgorithmSlidingCounter, AlgorithmCalendar, AlgorithmConcurrent:
		return l.Rate.Units
	case AlgorithmUnlimited:
		return math.MaxInt
	}
	return 0
}

// RefillTime returns how long a key takes to be fresh again after it has spent its capacity: burst·per/units for
// a bucket, rounded up; the window's length for a fixed window or a log; twice that for a sliding counter; a
// calendar's longest window; the hold of [Concurrent]. It is 0 for [Unlimited], [Blocked] and an invalid limit.
func (l Limit) RefillTime() time.Duration {
	if l.Validate() != nil {
		return 0
	}
	switch l.Algorithm {
	case AlgorithmTokenBucket, AlgorithmLeakyBucket:
		return l.refillBucket()
	case AlgorithmFixedWindow, AlgorithmSlidingLog, AlgorithmConcurrent:
		return l.Rate.Per
	case AlgorithmSlidingCounter:
		return 2 * l.Rate.Per
	case AlgorithmCalendar:
		return l.longest()
	}
	return 0
}

// Validate returns nil if the limit can be enforced exactly, else an error with the field and the figure, wrapping
// [ErrInvalidLimit]. Figures must be positive, Rate.Units at most 2^53, and the capacity regained within 100 years.
func (l Limit) Validate() error {
	if err := validateName(l.Name); err != nil {
		return err
	}
	if l.Period != (Period{}) && l.Algorithm != AlgorithmCalendar {
		return invalid("Period is %v, want none for %v", l.Period, l.Algorithm)
	}
	switch l.Algorithm {
	case AlgorithmTokenBucket, AlgorithmLeakyBucket:
		return l.validateBucket()
	case AlgorithmFixedWindow, AlgorithmSlidingLog, AlgorithmSlidingCounter:
		return l.validateWindow()
	case AlgorithmConcurrent:
		return l.validateConcurrent()
	case AlgorithmCalendar:
		return l.validateCalendar()
	case AlgorithmUnlimited, AlgorithmBlocked:
		if l.Rate != (Rate{}) || l.Burst != 0 {
			return invalid("%v takes neither Rate nor Burst, got %d per %v, burst %d",
				l.Algorithm, l.Rate.Units, l.Rate.Per, l.Burst)
		}
		return nil
	}
	if l == (Limit{}) {
		return invalid("it is the zero Limit; use TokenBucket or another constructor")
	}
	return invalid("Algorithm %v does not exist", l.Algorithm)
}

func invalid(format string, args ...any) error {
	return fmt.Errorf("%w: %s", ErrInvalidLimit, fmt.Sprintf(format, args...))
}

func validateName(name string) error {
	for i, c := range name {
		letter := 'a' <= c|0x20 && c|0x20 <= 'z'
		inner := '0' <= c && c <= '9' || c == '_' || c == '-'
		if !letter && (i == 0 || !inner) {
			return invalid("Name %q has %q at position %d, want a letter, then letters, digits, _ and -", name, c, i)
		}
	}
	return nil
}

func (l Limit) validateRate() error {
	if err := l.validateUnits(); err != nil {
		return err
	}
	if l.Rate.Per <= 0 {
		return invalid("Rate.Per is %v, want more than 0", l.Rate.Per)
	}
	return nil
}

func (l Limit) validateUnits() error {
	switch {
	case l.Rate.Units <= 0:
		return invalid("Rate.Units is %d, want at least 1", l.Rate.Units)
	case int64(l.Rate.Units) > maxUnits:
		return invalid("Rate.Units is %d, want at most 2^53", l.Rate.Units)
	}
	return nil
}
