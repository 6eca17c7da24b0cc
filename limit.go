package ratelimit

import (
	"fmt"
	"math"
	"time"
)

// maxUnits is the largest rate numerator that is counted exactly: 2^53.
const maxUnits = 1 << 53

// Rate is a number of units of cost for a span of time, such as 100 a second.
// Both fields must be positive; the zero Rate is invalid. A Rate is a plain
// value and may be compared.
type Rate struct {
	Units int           // how much may be spent …
	Per   time.Duration // … in this span of time
}

// PerSecond returns the rate of n units a second.
func PerSecond(n int) Rate { return Rate{n, time.Second} }

// PerMinute returns the rate of n units a minute.
func PerMinute(n int) Rate { return Rate{n, time.Minute} }

// PerHour returns the rate of n units an hour.
func PerHour(n int) Rate { return Rate{n, time.Hour} }

// PerDay returns the rate of n units in 24 hours.
func PerDay(n int) Rate { return Rate{n, 24 * time.Hour} }

// Per returns the rate of n units for each d: Per(7, 11*time.Second). One unit every d, as
// rate.Every of golang.org/x/time/rate says it, is Per(1, d).
func Per(n int, d time.Duration) Rate { return Rate{n, d} }

// Algorithm is the way in which a [Limit] counts. The zero Algorithm is
// invalid, which makes the zero Limit recognisable as "none given".
type Algorithm uint8

// A Saved has these numbers in it, so a new one comes last.
const (
	// AlgorithmTokenBucket lets bursts through and bounds the mean rate.
	AlgorithmTokenBucket Algorithm = iota + 1
	// AlgorithmLeakyBucket queues, and lets work out evenly spaced.
	AlgorithmLeakyBucket
	// AlgorithmFixedWindow counts in windows that begin with a key's first spending.
	AlgorithmFixedWindow
	// AlgorithmSlidingLog remembers each spending and is exact over any window.
	AlgorithmSlidingLog
	// AlgorithmSlidingCounter estimates a sliding window from two counts.
	AlgorithmSlidingCounter
	// AlgorithmUnlimited allows everything.
	AlgorithmUnlimited
	// AlgorithmBlocked allows nothing.
	AlgorithmBlocked
	// AlgorithmCalendar counts in calendar days, weeks or months.
	AlgorithmCalendar
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
}

// String returns the algorithm's name as [ParseLimit] reads it, such as
// "token-bucket", or "algorithm(9)" for one that does not exist.
func (a Algorithm) String() string {
	if a == 0 || int(a) >= len(algorithmNames) {
		return fmt.Sprintf("algorithm(%d)", uint8(a))
	}
	return algorithmNames[a]
}

// Limit says what is allowed. It is a plain value: it can be compared, printed,
// parsed, stored and sent. Make one with [TokenBucket], [LeakyBucket],
// [FixedWindow], [SlidingLog], [SlidingCounter], [Calendar], [Unlimited] or [Blocked]. The
// zero Limit is invalid, except where it is documented to mean a default.
type Limit struct {
	// Name tells this limit from others in a [Decision]. It may be empty.
	Name string
	// Algorithm is the way of counting.
	Algorithm Algorithm
	// Rate is what is regained in time: at that pace by the buckets, or as so
	// many units for each window of length Rate.Per. A calendar's Per is zero.
	Rate Rate
	// Burst is a token bucket's burst or a leaky bucket's queue; else zero.
	Burst int
	// Period is what a calendar's windows are; else zero.
	Period Period
}

// Unlimited returns a limit that allows every cost and tracks nothing.
func Unlimited() Limit { return Limit{Algorithm: AlgorithmUnlimited} }

// Blocked returns a limit that allows no cost above zero: the answer is
// [ErrExceedsLimit]. It tracks nothing.
func Blocked() Limit { return Limit{Algorithm: AlgorithmBlocked} }

// Named returns a copy of the limit with that name: empty, or a letter followed
// by letters, digits, "_" and "-", so that an HTTP header can carry it.
// [Limit.Validate] checks it.
func (l Limit) Named(name string) Limit {
	l.Name = name
	return l
}

// Capacity returns the most that can be spent at once: a token bucket's burst, a
// leaky bucket's queue, a window's units, [math.MaxInt] for [Unlimited], 0 for
// [Blocked]. A cost above it can never pass.
func (l Limit) Capacity() int {
	switch l.Algorithm {
	case AlgorithmTokenBucket, AlgorithmLeakyBucket:
		return l.Burst
	case AlgorithmFixedWindow, AlgorithmSlidingLog, AlgorithmSlidingCounter, AlgorithmCalendar:
		return l.Rate.Units
	case AlgorithmUnlimited:
		return math.MaxInt
	}
	return 0
}

// RefillTime returns the time in which a key that has spent all of its capacity is
// fresh again, if nothing else is spent: burst·per/units for the buckets, rounded up
// to a nanosecond; the window for a fixed window and a sliding log; twice the window for
// a sliding counter, which counts the window before as well. A calendar's is its longest window:
// 31 days for a month, and an hour more where clocks are set back by one. It is 0 for [Unlimited]
// and [Blocked], and for a limit that is invalid.
func (l Limit) RefillTime() time.Duration {
	if l.Validate() != nil {
		return 0
	}
	switch l.Algorithm {
	case AlgorithmTokenBucket, AlgorithmLeakyBucket:
		return l.refillBucket()
	case AlgorithmFixedWindow, AlgorithmSlidingLog:
		return l.Rate.Per
	case AlgorithmSlidingCounter:
		return 2 * l.Rate.Per
	case AlgorithmCalendar:
		return l.longest()
	}
	return 0
}

// Validate reports whether the limit can be enforced exactly, as [New] does: nil,
// or an error that wraps [ErrInvalidLimit] and names the field and the figure.
// Valid is every limit with positive figures, Rate.Units up to 2^53, and a
// capacity that is regained within 100 years; for a calendar, every Period of a zone that is known.
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
		return invalid("the zero Limit is none; use TokenBucket, another algorithm, or Unlimited")
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
