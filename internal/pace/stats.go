package pace

import "sync/atomic"

// Stats count requests since the Pacer was made.
type Stats struct {
	Sent      uint64 // sent, repetitions included
	Waited    uint64 // had to wait before that
	Refused   uint64 // were answered with a refusal, or a time to wait
	Retried   uint64 // were sent again
	Failed    uint64 // were never sent: the limiter's error, or no time to wait
	Unsettled uint64 // had a booking that could not be cancelled
	InFlight  uint64 // are in flight now
}

type counters struct{ sent, waited, refused, retried, failed, unsettled, inFlight atomic.Uint64 }

func (c *counters) read() Stats {
	return Stats{
		Sent: c.sent.Load(), Waited: c.waited.Load(), Refused: c.refused.Load(),
		Retried: c.retried.Load(), Failed: c.failed.Load(), Unsettled: c.unsettled.Load(), InFlight: c.inFlight.Load(),
	}
}
