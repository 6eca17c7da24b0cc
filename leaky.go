package ratelimit

// LeakyBucket returns a limit that takes in up to queue at once and lets it out
// evenly, at the rate. [Decision.Delay] says for how long to hold the work;
// [Keyed.Wait] does the holding. Over any interval t at most queue + rate·t enters.
//
// It is the leaky bucket as a queue, as in traffic shaping. What enters is counted as by a
// token bucket whose burst is the queue, which proves the bound. Each cost leaves when all
// that entered before it has drained.
func LeakyBucket(r Rate, queue int) Limit {
	return Limit{Algorithm: AlgorithmLeakyBucket, Rate: r, Burst: queue}
}
