package inflight

// Outcome is the way in which the work under a permit has ended. Adaptive limits learn from it.
type Outcome uint8

const (
	// Success is work that was done.
	Success Outcome = iota
	// Dropped is work that failed as it does under overload: the backend refused it, or a timeout ended it. Many such
	// outcomes lower the limit, but only if there are fewer of them at a lower limit: a dead replica lowers it for a
	// moment.
	Dropped
	// Ignored is work that is no evidence of the backend's load, such as an invalid request. Unknown
	// outcomes count as Ignored.
	Ignored
	// Cancelled is work that its client no longer waits for, or that failed for another reason than
	// load. It can only show that latency is high.
	Cancelled
)

// String returns the outcome as a word.
func (o Outcome) String() string {
	switch o {
	case Success:
		return "success"
	case Dropped:
		return "dropped"
	case Cancelled:
		return "cancelled"
	}
	return "ignored"
}
