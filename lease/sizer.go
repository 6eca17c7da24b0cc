package lease

import "time"

// pace bounds batches' size and life.
type pace struct {
	most     int           // the maximum number of units
	batchFor time.Duration // how long a batch should last
	holdFor  time.Duration // how long until the key's rate counts as unknown
}

// sizer computes the sizes of a key's batches from the key's rate of spending.
// It uses floats, because a wrong size costs a round trip, but never budget.
type sizer struct {
	size  int           // in units; 0 if the key's rate is not known
	at    time.Duration // when size was set
	spent int64         // the key's spending then
}

// next returns the size of the next batch, for a caller lacking need units. spent is the
// key's spending until now. The size begins at need. It doubles while such a batch would
// last less than batchFor, and halves if the batch would last more than twice as long.
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

// double returns 2·n, but at most most.
func double(n, most int) int {
	if n > most/2 {
		return most
	}
	return 2 * n
}
