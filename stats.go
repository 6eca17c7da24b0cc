package ratelimit

// Stats tells what has become of keys since the limiter was made.
type Stats struct {
	// Keys is how many are tracked now.
	Keys int
	// Expired counts keys dropped as good as new: nothing was forgotten.
	Expired uint64
	// Evicted counts keys dropped to make room, and what they had spent with
	// them. If it grows, MaxKeys is too small for the traffic.
	Evicted uint64
	// EvictedThrottled counts those of Evicted that were being denied.
	EvictedThrottled uint64
	// Refused counts how often a new key met ErrTableFull.
	Refused uint64
}

// Stats returns the limiter's counters. Each is exact; they are not read at one
// instant.
func (l *Keyed[K]) Stats() Stats {
	t := l.keys
	return Stats{
		Keys:             l.Len(),
		Expired:          t.expired.Load(),
		Evicted:          t.evicted.Load(),
		EvictedThrottled: t.evictedThrottled.Load(),
		Refused:          t.refused.Load(),
	}
}
