package meter

// Kind is an algorithm.
type Kind uint8

const (
	TokenBucket Kind = iota + 1
	LeakyBucket
	FixedWindow
	SlidingLog
	SlidingCounter
	Calendar
	Concurrent
)

// Limit is the configuration of a [Meter]. All figures are above 0.
type Limit struct {
	Kind
	Units, Per int64   // Units are regained in Per ticks, or in each window of Per ticks; of a calendar, Per is the longest window
	Burst      int64   // a token bucket's burst or a leaky bucket's queue; otherwise unused
	Windows    Windows // a calendar's windows; else nil

	// Horizon bounds every time span for a budget: the time to regain the capacity, how far ahead is booked, and
	// one key's debt. A limit whose capacity takes longer is invalid. Four times the horizon must not overflow.
	Horizon int64

	// Most bounds a key's debt. Twice Most must not overflow.
	Most int64

	// Retry is the minimum estimate of the time until units in use come back, above 0. Only Concurrent uses it.
	Retry int64
}

// Windows are a calendar's windows, on the caller's axis of instants. Each has an ordinal above 0, and a
// later window has a larger one. They follow each other without a gap. Results may change from one call to
// the next: where the calendar follows a wall clock and the clock is set, an instant moves to another window.
type Windows interface {
	// At returns an instant's window.
	At(instant int64) Window
	// After returns the k-th window after the window of an ordinal.
	After(ordinal, k int64) Window
	// Count counts the windows from the first ordinal to the second.
	Count(first, second int64) int64
}

// Window is one window: from From on, and before To.
type Window struct{ From, To, Ordinal int64 }
