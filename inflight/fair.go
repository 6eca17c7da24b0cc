package inflight

import "time"

// Fair order between keys: each key has used so much slot-time, units × the time for which they
// are held, divided by its weight, and what becomes free goes to the waiting key that has
// used least. What is in flight counts as it goes on, so a key whose work takes long gets no
// more than one whose work is short.
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

// began counts leastHeld of units in advance, and ended takes back what they were held of that,
// which is counted by then.
func (s *share) began(n int) { s.used += float64(n) * float64(leastHeld) / s.weight }

func (s *share) ended(n int, held time.Duration) {
	s.used -= float64(n) * float64(min(max(0, held), leastHeld)) / s.weight
}

// weightOf returns a weight that counts: at least 1 and at most maxWeight.
func weightOf(weight int) float64 { return float64(min(max(weight, 1), maxWeight)) }
