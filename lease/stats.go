package lease

// Stats counts a [Limiter]'s work since it was made.
type Stats struct {
	Decisions  uint64 // calls to Allow, Take, Reserve and Wait
	Local      uint64 // decisions without a call to the remote limiter
	RoundTrips uint64 // calls to the remote limiter, of any kind

	BatchesGivenBack uint64 // batches with unused units
	UnitsGivenBack   uint64 // their unused units
	// units charged, but neither used nor certainly given back: if the algorithm changes, a remote limiter may keep all
	UnitsLost        uint64
	BatchesForfeited uint64 // batches given back before all reservations were settled

	Keys int // keys tracked now
	Held int // units held now
}

// Stats returns the counts. Its time is proportional to the number of keys.
func (l *Limiter[K]) Stats() (s Stats) {
	l.mustBeMade()
	all, left := l.table.standing()
	s.Local = left
	for _, h := range all {
		h.mu.Lock()
		s.Local += h.local
		s.Held += h.left
		h.mu.Unlock()
		s.Keys++
	}
	s.Decisions = s.Local + l.called.Load()
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
