package ratelimit

// SlidingLog returns a limit of r.Units in any window of length r.Per, exactly.
// It remembers each spending of the last r.Per, in 16 bytes, or up to four times as
// many while their number changes; those of one instant count as one.
//
// The bound needs no approximation: a spending counts from its instant on, and no longer
// r.Per after it, and a cost passes if what counts then, and the cost, are within r.Units.
func SlidingLog(r Rate) Limit { return Limit{Algorithm: AlgorithmSlidingLog, Rate: r} }
