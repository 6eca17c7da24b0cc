package figures

import "github.com/weir-go/ratelimit/lease"

// ofLease returns leases' figures. read is the limiter's method Stats.
func ofLease(read func() lease.Stats) Group {
	return Group{
		Figures: []Figure{
			{Name: "lease.decisions", Unit: "{decision}", By: []string{"by"}, Help: "Decisions, by whether the remote limiter was called."},
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
