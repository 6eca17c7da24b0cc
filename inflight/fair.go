package inflight

import "time"

// Keys share a pool in fair order. A key's use is its held units, times how long it holds them,
// divided by its weight. Freed units go to the waiting key with the least use. Work in flight
// counts while it runs, so a key with long work gets no more than a key with short work.
const (
	maxWeight = 1 << 20
	leastHeld = time.Microsecond // each unit counts for at least this time
)

// share is the use of a key.
type share struct {
	weight float64       // 1 to maxWeight
	used   float64       // units × nanoseconds, divided by weight; only differences between keys matter
	until  time.Duration // the last instant of counted work
	turn   uint64        // breaks ties: of keys with equal use, the lowest turn goes first
	waits  bool          // whether used was raised to other keys' use when a caller began to wait
}

// advance counts the work in flight until now.
func (s *share) advance(inFlight int, now time.Duration) {
	if now > s.until {
		s.used += float64(inFlight) * float64(now-s.until) / s.weight
		s.until = now
	}
}

// began counts leastHeld for each unit in advance. For units held
// for a shorter time, ended subtracts the time counted by advance.
func (s *share) began(n int) { s.used += float64(n) * float64(leastHeld) / s.weight }

func (s *share) ended(n int, held time.Duration) {
	s.used -= float64(n) * float64(min(max(0, held), leastHeld)) / s.weight
}

// weightOf returns the weight, but at least 1 and at most maxWeight.
func weightOf(weight int) float64 { return float64(min(max(weight, 1), maxWeight)) }
