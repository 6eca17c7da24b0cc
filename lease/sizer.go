package lease

import "time"

// pace is the recommended size and life of batches.
type pace struct {
	most     int           // units
	batchFor time.Duration // how long one should last
	holdFor  time.Duration // after which nothing is known of a key's rate any more
}

// sizer sizes a key's batches by the rate of its spending. It
// computes in floats: a wrong size costs a round trip, never budget.
type sizer struct {
	size  int           // units; 0 if nothing is known of the key's rate
	at    time.Duration // when size was set
	spent int64         // the key's spending by then
}

// next returns the size of the next batch, for a caller who lacks need units and a key that has
// spent so much since the last one. The size begins at need. It doubles while a batch of that
// size would last less than the target, and halves when it would last more than twice as long.
func (s *sizer) next(p pace, now time.Duration, spent int64, need int) int {
	elapsed := now - s.at
	lasts := float64(elapsed) * float64(s.size) / float64(max(1, spent-s.spent))
	switch {
	case elapsed < 0 || elapsed >= p.holdFor:
		s.size = 0
	case lasts < float64(p.batchFor):
		s.size = double(s.size, p.most)
	case lasts > 2*float64(p.batchFor):
		s.size /= 2
	}
	s.size = min(max(s.size, need, 1), p.most)
	s.at, s.spent = now, spent
	return s.size
}

// forget makes the next batch start small.
func (s *sizer) forget() { s.size = 0 }

// double returns 2·n, and no more than most.
func double(n, most int) int {
	if n > most/2 {
		return most
	}
	return 2 * n
}
