package pace

import "sync/atomic"

// Stats count requests since the Pacer was made.
type Stats struct {
	Sent      uint64 // requests sent, repetitions included
	Waited    uint64 // requests that waited before sending
	Refused   uint64 // answers with a refusal or a wait
	Retried   uint64 // requests sent again
	Failed    uint64 // requests never sent: the limiter returned an error, or there was no time to wait
	Unsettled uint64 // bookings that could not be cancelled
	InFlight  uint64 // requests in flight now
}

type counters struct{ sent, waited, refused, retried, failed, unsettled, inFlight atomic.Uint64 }

func (c *counters) read() Stats {
	return Stats{
		Sent: c.sent.Load(), Waited: c.waited.Load(), Refused: c.refused.Load(),
		Retried: c.retried.Load(), Failed: c.failed.Load(), Unsettled: c.unsettled.Load(), InFlight: c.inFlight.Load(),
	}
}
