package lease

// Stats tells what a [Limiter] has done since it was made.
type Stats struct {
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

// Stats returns the counts. They are not read at one instant. It looks at each key.
func (l *Limiter[K]) Stats() (s Stats) {
	s.Local = l.table.leftKeys()
	for _, h := range l.table.all() {
		h.mu.Lock()
		s.Local += h.local
		s.Held += h.left
		h.mu.Unlock()
		s.Keys++
	}
	s.Decisions = s.Local + l.asked.Load()
	s.RoundTrips = l.remote.trips.Load()
	l.fetcher.returns.report(&s)
	return s
}

func (r *returns) report(s *Stats) {
	r.mu.Lock()
	defer r.mu.Unlock()
	s.BatchesGivenBack, s.UnitsGivenBack, s.UnitsLost, s.BatchesForfeited = r.batches, r.units, r.lost, r.forfeits
	s.Held += r.waits
}
