package inflight

import (
	"time"

	"github.com/weir-go/ratelimit/internal/wait"
)

// Stats are a key's state.
type Stats struct {
	Limit    int // the maximum units in flight now; 0 if the key is blocked
	Bound    int // an adaptive Limit's upper bound; equal to a fixed Limit
	InFlight int // the units in flight
	Queued   int // waiting calls to Acquire
	Weight   int // the key's weight, for its share of Total

	// Shed counts the calls refused with ErrLimited since the key was first seen.
	Shed uint64

	// Wait averages about the last eight waits in the queue. It decays while no call waits. It is 0 if no call has waited.
	Wait time.Duration

	// Oldest is the age of the oldest permit in flight, counted from the first call to Stats or Snapshot
	// that saw it. It is 0 if nothing is in flight. If it grows without end, a permit was never released.
	Oldest time.Duration
}

// Stats returns a key's state, and whether the key is tracked.
func (l *Limiter[K]) Stats(key K) (Stats, bool) {
	l.made()
	if l.keys.err(key) != nil {
		return Stats{}, false
	}
	e := l.table.find(key)
	if e == nil {
		return Stats{}, false
	}
	s, ok := e.stats()
	return s, ok
}

// Snapshot returns the Stats of all tracked keys. They are read one after another, not at the same instant.
func (l *Limiter[K]) Snapshot() map[K]Stats {
	all := make(map[K]Stats)
	for _, e := range l.entries(nil) {
		if s, ok := e.stats(); ok {
			all[e.key] = s
		}
	}
	return all
}

// Totals are a [Limiter]'s state over all keys. Its counters begin with [New].
type Totals struct {
	InFlight int // the units in flight
	Limit    int // Options.Total, or Options.Shared's learnt limit; 0 if there is none
	Queued   int // waiting calls to Acquire
	Keys     int // tracked keys

	// Adaptive is true if limits follow outcomes: [Options.Adaptive] or [Options.Shared] is set.
	Adaptive bool

	// Shed counts the calls refused because there was no room. In a dry run it counts the calls that would have been refused.
	Shed uint64
	// Waits counts the calls served from a queue, in buckets by their waits. The buckets' upper bounds are
	// 1, 2.5, 5, 10, 25, 50, 100, 250 and 500 ms, and 1, 2.5 and 10 s. The last bucket has the longer waits.
	Waits [13]uint64
}

var _ [len(wait.Buckets) + 1]uint64 = Totals{}.Waits

// Totals returns the limiter's state over all keys, for example for metrics. Its time is proportional to the number of keys.
func (l *Limiter[K]) Totals() Totals {
	all := l.entries(nil)
	t := Totals{Keys: len(all), Shed: l.common.shed.Load()}
	t.Adaptive = l.common.adaptive != nil || l.common.pool != nil && l.common.pool.learner != nil
	for i := range t.Waits {
		t.Waits[i] = l.common.waits[i].Load()
	}
	for _, e := range all {
		e.mutex().Lock()
		t.InFlight += e.inFlight
		t.Queued += e.queued
		e.mutex().Unlock()
	}
	if p := l.common.pool; l.hasTotal {
		l.common.mu.Lock()
		t.Limit = p.total
		l.common.mu.Unlock()
	}
	return t
}

// stats returns the semaphore's state, or false if the table has forgotten it.
func (s *semaphore) stats() (Stats, bool) {
	now := s.common.reading(true)
	s.mutex().Lock()
	defer s.mutex().Unlock()
	return Stats{
		Limit: s.limit, Bound: s.bound, InFlight: s.inFlight, Queued: s.queued,
		Weight: int(s.weight), Shed: s.shed, Wait: s.agedLocked(now), Oldest: s.works.oldest(now),
	}, !s.dead
}
