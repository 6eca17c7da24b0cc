package stats

// Lease tells what a limiter of package lease has done since it was made.
type Lease struct {
	// Decisions counts all decisions: Allow, Take, Reserve and Wait.
	Decisions uint64
	// Local counts those of Decisions for which the remote limiter was not asked:
	// allowed from a batch, or denied by a denial that was remembered.
	Local uint64
	// RoundTrips counts the calls of the remote limiter, of whatever kind: fetches, decisions
	// asked for directly, settlements.
	RoundTrips uint64
	// BatchesGivenBack counts batches of which something was left and given back.
	BatchesGivenBack uint64
	// UnitsGivenBack counts what was left of them. The remote limiter takes back no
	// more than has not been regained since.
	UnitsGivenBack uint64
	// UnitsLost counts units that were charged and neither used nor given back: the
	// remote limiter failed to take them, or a reservation was settled below its
	// cost after its batch was gone.
	UnitsLost uint64
	// BatchesForfeited counts batches that were given back although reservations of them were not
	// settled: after ten times HoldFor, or by Flush.
	BatchesForfeited uint64
	// Keys is how many keys are tracked now.
	Keys int
	// Held is how many units are held now, with those that wait to be given back until all
	// reservations of their batch are settled.
	Held int
}

// OfLease returns the figures of leases. read is the limiter's method Stats.
func OfLease(read func() Lease) Group {
	return Group{
		Figures: []Figure{
			{Name: "lease.decisions", Unit: "{decision}", By: []string{"by"}, Help: "Decisions, by whether the remote limiter was asked."},
			{Name: "lease.round_trips", Unit: "{call}", Help: "Calls of the remote limiter."},
			{Name: "lease.given_back", Unit: "{unit}", Help: "Units of batches that were given back."},
			{Name: "lease.lost", Unit: "{unit}", Help: "Units that were charged, and neither used nor given back."},
			{Name: "lease.held", Unit: "{unit}", Gauge: true, Help: "Units that are held."},
		},
		Read: func(add func(int, float64, ...string)) {
			s := read()
			add(0, float64(s.Local), "local")
			add(0, float64(max(s.Decisions, s.Local)-s.Local), "remote")
			add(1, float64(s.RoundTrips))
			add(2, float64(s.UnitsGivenBack))
			add(3, float64(s.UnitsLost))
			add(4, float64(s.Held))
		},
	}
}
