package inflight

import "time"

// Fair order between keys: the use of a key is its slot-time, units × the time for which they are held, divided by its weight.
// Freed units go to the waiting key with the least use. Work in flight counts while it runs, so a key with long work gets no
// more than a key with short work.
const (
	maxWeight = 1 << 20
	leastHeld = time.Microsecond // for which each unit counts at least
)

// share is the use of a key.
type share struct {
	weight float64       // 1 to maxWeight
	used   float64       // slot-time in ns, divided by weight; only differences between keys mean something
	until  time.Duration // so far it is counted
	turn   uint64        // among keys that have used the same, the lowest is first
	waits  bool          // a caller has waited since used was made level with the others
}

// advance counts the work in flight until now.
func (s *share) advance(inFlight int, now time.Duration) {
	if now > s.until {
		s.used += float64(inFlight) * float64(now-s.until) / s.weight
		s.until = now
	}
}

// began counts leastHeld for each unit in advance. ended subtracts the part of it for which the units were held, because
// advance has counted that part by then.
func (s *share) began(n int) { s.used += float64(n) * float64(leastHeld) / s.weight }

func (s *share) ended(n int, held time.Duration) {
	s.used -= float64(n) * float64(min(max(0, held), leastHeld)) / s.weight
}

// weightOf returns a weight that counts: at least 1 and at most maxWeight.
func weightOf(weight int) float64 { return float64(min(max(weight, 1), maxWeight)) }
