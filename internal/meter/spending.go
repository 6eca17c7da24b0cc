package meter

// Spending is a cost and the instant at which it is spent, or leaves a leaky bucket.
type Spending struct {
	At   int64
	Part int64 // token bucket: see open; else, if not 0: its place in a leaky bucket's queue begins that many 1/units of a tick after at − 1; or the ordinal of a calendar's window
	Cost int64

	Changed bool // at its settlement: the limit's figures differ from the ones it was spent under
	Open    bool // its real cost follows: see Keep
}

// begin returns the spending's instant before it was rounded up.
func (sp Spending) begin() span {
	if sp.Part == 0 {
		return span{ticks: sp.At}
	}
	return span{sp.At - 1, sp.Part}
}

// Keep is the part of a spending that may still change.
type Keep uint8

const (
	Final  Keep = iota // nothing may change
	Booked             // if it is spent later than now, it can be taken out until then, as if it had never been
	Open               // as Booked, and its real cost follows in a call of Settle
)

// Moment is an instant that the caller has read from a clock, and the instant that applies to one key. Now is the later one if
// the clock has stepped back. The key's budget follows from Now; its wait is counted from Reading.
type Moment struct{ Reading, Now int64 }

// Free returns the offer for a cost of 0.
func (m Moment) Free() Offer { return Offer{At: m.Now, Retry: m.Reading} }

// Offer describes how a cost would be spent, before it is spent. It has four fields because the compiler keeps a struct in
// registers up to that many, and this one is passed around in each decision.
type Offer struct {
	At, Part int64 // how the cost would be spent: see Spending
	Retry    int64 // the first reading at which it would be

	// Changes is left to the caller, who counts how often the limit of the state has changed.
	Changes uint32
}

// Denied reports whether the offer is a denial at a reading.
func (o Offer) Denied(reading int64) bool { return o.Retry > reading }

// Spending returns the spending that results if the offer is accepted.
func (o Offer) Spending(cost int64) Spending {
	return Spending{At: o.At, Part: o.Part, Cost: cost}
}
