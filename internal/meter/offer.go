package meter

import "math"

// Moment is an instant that the caller has read from a clock, and the instant that it counts
// as for one key. Now is the later one if the clock has stepped back. What the key may spend
// follows from Now; how long it has to wait is counted from Reading.
type Moment struct{ Reading, Now int64 }

// Free returns the offer for a cost of 0.
func (m Moment) Free() Offer { return Offer{At: m.Now, Retry: m.Reading} }

// Offer says how a cost would be spent that has not been spent yet. It has four fields
// because the compiler keeps a struct in registers up to that many, and this one is passed
// around in each decision.
type Offer struct {
	At, Part int64 // how the cost would be spent: see Spending
	Retry    int64 // the first reading at which it would be

	// Changes is left to the caller, who counts how often the limit of the state has changed.
	Changes uint32
}

// Denied reports whether the offer is a denial at a reading.
func (o Offer) Denied(reading int64) bool { return o.Retry > reading }

// Spending returns what is spent if the offer is accepted.
func (o Offer) Spending(cost int64) Spending {
	return Spending{At: o.At, Part: o.Part, Cost: cost}
}

// farAhead is further than anything is booked, and can be taken from any instant.
const farAhead = math.MaxInt64 / 2

// Offer says how a cost would be spent, if it may be spent that long after the reading. In a
// leaky bucket that is how long the queue may delay it; when it enters the queue is up to
// the room there. The cost is from 1 to the capacity.
func (m *Meter) Offer(s State, mo Moment, cost, ahead int64) Offer {
	o := Offer{At: m.earliest(s, mo.Now, cost), Retry: mo.Reading}
	if m.leaky != nil {
		if o.At > mo.Now {
			o.Retry = o.At // when the queue has room
		}
		o.At, o.Part = m.leaky.leaves(s, mo.Now)
	}
	if ahead = min(ahead, m.maxAhead); o.At > mo.Now && ahead < farAhead {
		o.Retry = max(o.Retry, o.At-ahead)
	}
	return o
}
