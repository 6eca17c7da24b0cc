package ratelimit

// FixedWindow returns a limit of r.Units in each window of r.Per. A key's
// window begins with its first spending, and its next with its first spending
// after that one's end; so up to twice r.Units may pass around a window's end.
//
// In each window at most r.Units pass, because one count is kept for each. Two windows of a key
// never overlap, and an interval of length r.Per meets two of them at most.
func FixedWindow(r Rate) Limit { return Limit{Algorithm: AlgorithmFixedWindow, Rate: r} }

// SlidingCounter returns a limit that approximates a sliding window of length
// r.Per from the counts of two windows: what was spent in this one, plus what
// was spent in the one before, in proportion to how much of that still overlaps
// the last r.Per, stays within r.Units.
//
// In each of its windows, which follow each other without a gap while the key is in use, at most
// r.Units pass. Over the last r.Per at most r.Units pass if what the window before counted
// was spent evenly; if it was not, up to twice r.Units may.
func SlidingCounter(r Rate) Limit { return Limit{Algorithm: AlgorithmSlidingCounter, Rate: r} }

// validateWindow is for the limits that count units for each window: the two of this file, and the
// sliding log.
func (l Limit) validateWindow() error {
	if err := l.validateRate(); err != nil {
		return err
	}
	if l.Burst != 0 {
		return invalid("Burst is %d, want 0 for %v", l.Burst, l.Algorithm)
	}
	if int64(l.Rate.Per) > century {
		return invalid("Rate.Per is %v, want at most 100 years", l.Rate.Per)
	}
	return nil
}
