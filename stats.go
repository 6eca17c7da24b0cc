package ratelimit

// Stats counts what has become of keys since the limiter was made.
type Stats struct {
	// Keys is how many keys are tracked now.
	Keys int
	// Expired counts the keys that were dropped when they were fresh. Nothing was
	// forgotten with them.
	Expired uint64
	// Evicted counts the keys that were dropped to make room although they were not fresh.
	// What they had spent was forgotten, unless [Options.Remember] is set. If it grows, MaxKeys
	// is too small for the traffic.
	Evicted uint64
	// EvictedThrottled counts those of Evicted whose last decision was a denial, and which were
	// forgotten. It is 0 if [Options.Remember] is set: then Overflowed counts what is forgotten.
	EvictedThrottled uint64
	// Refused counts the decisions on new keys that failed with ErrTableFull.
	Refused uint64
	// Recalled counts the new keys that began with less than a full budget, because of
	// [Options.Remember]. Few of them are keys that have spent nothing.
	Recalled uint64
	// Overflowed counts the keys that [Options.Remember] has forgotten before they were fresh,
	// because more of them were to be remembered than fit. If it grows, Remember is too small
	// for the traffic.
	Overflowed uint64
}

// Stats returns the limiter's counters. Each is exact. They are not all read at the same
// instant.
func (l *Keyed[K]) Stats() Stats {
	t := l.table()
	s := Stats{
		Keys:             l.Len(),
		Expired:          t.expired.Load(),
		Evicted:          t.evicted.Load(),
		EvictedThrottled: t.evictedThrottled.Load(),
		Refused:          t.refused.Load(),
	}
	if m := t.memory; m != nil {
		s.Recalled, s.Overflowed = m.recalled.Load(), m.overflowed.Load()
	}
	return s
}
