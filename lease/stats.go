package lease

import "github.com/weir-go/ratelimit/stats"

// Stats tells what a [Limiter] has done since it was made.
type Stats = stats.Lease

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
