package inflight

import "time"

// Stats say how a key stands.
type Stats struct {
	Limit    int // units that may be in flight now; of a blocked key 0
	Bound    int // what an adaptive Limit cannot rise above; else equal to Limit
	InFlight int // units in flight
	Queued   int // calls of Acquire that wait
	Weight   int // of the key's share of Total

	// Shed counts the calls that were refused with ErrLimited since the key was first
	// seen. Those who gave up, and those who asked for more than can ever fit,
	// are not counted.
	Shed uint64

	// Wait is how long those waited who were served from the queue of late: a mean in
	// which each wait weighs 1/8, and older ones less and less. While nobody waits, half of it is
	// left after each such time, and after a second at least. 0 if none ever waited.
	Wait time.Duration

	// Oldest is for how long the oldest permit has been held since the first call of Stats
	// or Snapshot that found it in flight. No clock is read for single permits, so ask
	// regularly, as a metrics scraper does. One that grows without end is a permit that was
	// never released. 0 if nothing is in flight.
	Oldest time.Duration
}

// Stats returns how a key stands, and whether it is tracked.
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

// Snapshot returns the Stats of all tracked keys. Each is consistent; they are not read at
// one instant.
func (l *Limiter[K]) Snapshot() map[K]Stats {
	all := make(map[K]Stats)
	for _, e := range l.entries(nil) {
		if s, ok := e.stats(); ok {
			all[e.key] = s
		}
	}
	return all
}

// WaitBuckets are the upper bounds, in seconds, of the buckets of [Totals].Waits.
var WaitBuckets = [...]float64{.001, .0025, .005, .01, .025, .05, .1, .25, .5, 1, 2.5, 10}

// Totals tells how a [Limiter] stands, over all keys.
type Totals struct {
	// InFlight is how many units are in flight now.
	InFlight int
	// Limit is how many may be in flight now over all keys: Options.Total, or what Options.Shared has learnt.
	// 0 if there is no such limit.
	Limit int
	// Queued is how many calls of Acquire wait now.
	Queued int
	// Keys is how many keys are tracked.
	Keys int
	// Shed counts the calls that were refused for lack of room, and those thrown out of a queue. In a dry run,
	// those that would have been.
	Shed uint64
	// Waits counts those who were served from a queue by how long they had waited: in each element those that
	// waited no longer than the bound of [WaitBuckets], and longer than the bound before; in the last one all others.
	Waits [len(WaitBuckets) + 1]uint64
}

// Totals returns how the limiter stands over all keys, for metrics: see packages promlimit and otellimit. The counters
// count from [New] on, also for keys that were forgotten. It takes time in proportion to the number of keys.
func (l *Limiter[K]) Totals() Totals {
	all := l.entries(nil)
	t := Totals{Keys: len(all), Shed: l.common.shed.Load()}
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

// stats returns how the slot stands, unless it was forgotten.
func (s *slot) stats() (Stats, bool) {
	now := s.common.reading(true)
	s.mutex().Lock()
	defer s.mutex().Unlock()
	return Stats{
		Limit: s.limit, Bound: s.bound, InFlight: s.inFlight, Queued: s.queued,
		Weight: int(s.weight), Shed: s.shed, Wait: s.agedLocked(now), Oldest: s.works.oldest(now),
	}, !s.dead
}
