package edge

// Outcome states how a request was treated: see httplimit.Outcome.
type Outcome uint8

// The outcomes. The zero Outcome does not occur.
const (
	Skipped Outcome = iota + 1
	Allowed
	Denied
	Exceeds
	Failed
	FailedOpen
	Rejected

	outcomes = iota + 1
)

var outcomeNames = [outcomes]string{"none", "skipped", "allowed", "denied", "exceeds", "failed", "failed-open", "rejected"}

// String returns the outcome's name.
func (o Outcome) String() string {
	if o >= outcomes {
		return outcomeNames[0]
	}
	return outcomeNames[o]
}

// Stats are httplimit.Stats.
type Stats struct {
	Skipped, Allowed, Denied, Exceeds, Rejected, Failed, FailedOpen uint64

	Degraded, Unsettled uint64
}

// Stats returns the counters. Each is exact, but they are not read at the same instant.
func (c *Core[R]) Stats() Stats {
	return Stats{
		Skipped:    c.counts[Skipped].Load(),
		Allowed:    c.counts[Allowed].Load(),
		Denied:     c.counts[Denied].Load(),
		Exceeds:    c.counts[Exceeds].Load(),
		Rejected:   c.counts[Rejected].Load(),
		Failed:     c.counts[Failed].Load(),
		FailedOpen: c.counts[FailedOpen].Load(),
		Degraded:   c.degraded.Load(),
		Unsettled:  c.unsettled.Load(),
	}
}
