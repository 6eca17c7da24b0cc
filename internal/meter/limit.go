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
	Units, Per int64   // Units are regained in Per ticks, or in each window of that length: a calendar's longest
	Burst      int64   // of a token bucket, or a leaky bucket's queue; else of no meaning
	Windows    Windows // of a calendar; else nil

	// Horizon bounds every span of time in which a budget is counted: the time in which
	// the capacity is regained, how far ahead is booked, and the debt of one key. A limit
	// whose capacity takes longer is invalid. Four times the horizon must not overflow.
	Horizon int64

	// Most bounds a key's debt. Twice Most must not overflow.
	Most int64

	// Retry is the shortest estimate of the time until units that are in use come back, above 0. Of Concurrent only.
	Retry int64
}

// Windows are the windows of a calendar, on the caller's axis of instants. Each has an ordinal above 0, and a later window has
// a larger one. They follow each other without a gap. Results may change from one call to the next: where the calendar follows
// a wall clock and the clock is set, an instant moves to another window.
type Windows interface {
	// At returns the window that an instant lies in.
	At(instant int64) Window
	// After returns the k-th window after the one of an ordinal.
	After(ordinal, k int64) Window
	// Count returns the number of windows from the first ordinal's to the second's.
	Count(first, second int64) int64
}

// Window is one window: from an instant on, and before another.
type Window struct{ From, To, Ordinal int64 }
