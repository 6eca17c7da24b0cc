package inflight

// Outcome states how a permit's work ended. Adaptive limits learn from it.
type Outcome uint8

const (
	// Success is work that was done.
	Success Outcome = iota
	// Dropped is work that failed as under overload: the backend refused it, or a timeout ended it. Many such outcomes
	// lower the limit. If the lower limit does not help, for example because a replica is dead, the limit returns.
	Dropped
	// Ignored is work unrelated to the backend's load, for example an invalid request. Unknown outcomes count as Ignored.
	Ignored
	// Cancelled is work whose client stopped waiting, or work that failed
	// for another reason than load. It can only raise the measured latency.
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
