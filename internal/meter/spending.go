package meter

// Spending is a cost and the instant when it is spent, or leaves a leaky bucket.
type Spending struct {
	At int64
	// In a token bucket: see open. In a calendar: the window's ordinal. In a leaky
	// bucket, if not 0: its place in the queue begins Part/units of a tick after At − 1.
	Part int64
	Cost int64

	Changed bool // at its settlement, whether the limit's figures have changed since it was spent
	Open    bool // whether its real cost is not known yet: see Keep
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
	Booked             // if it is spent later than now, it can be removed until then, as if it had never been spent
	Open               // as Booked, and a call to Settle will bring its real cost
)

// Moment is a reading of the caller's clock, with its instant for one key. Now is later than
// Reading if the clock has stepped back. The key's budget depends on Now, and its wait on Reading.
type Moment struct{ Reading, Now int64 }

// Free returns the offer for a cost of 0.
func (m Moment) Free() Offer { return Offer{At: m.Now, Retry: m.Reading} }

// Offer describes how a cost would be spent, before it is spent. It has four fields, because the
// compiler keeps structs of up to four in registers, and each decision passes an Offer around.
type Offer struct {
	At, Part int64 // how the cost would be spent: see Spending
	Retry    int64 // the first reading to spend it at

	// Changes is for the caller: it counts the changes of the state's limit.
	Changes uint32
}

// Denied reports whether the offer is a denial at a reading.
func (o Offer) Denied(reading int64) bool { return o.Retry > reading }

// Spending returns the spending if the offer is accepted.
func (o Offer) Spending(cost int64) Spending {
	return Spending{At: o.At, Part: o.Part, Cost: cost}
}
