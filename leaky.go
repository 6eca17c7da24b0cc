package ratelimit

// A leaky bucket in numbers. With LeakyBucket(PerSecond(10), 3), for one key:
//
//	at     take  allowed  remaining  retry after  reset after  delay
//	0s     1     true     2          0s           100ms        0s
//	0s     1     true     1          0s           200ms        100ms
//	0s     1     true     0          0s           300ms        200ms
//	0s     1     false    0          100ms        300ms        0s
//	100ms  1     true     0          0s           300ms        200ms
//	1s     3     true     0          0s           300ms        0s
//
// A unit drains in 100ms. If three units come at once, the first leaves now, the second after 100ms
// and the third after 200ms: their Delay. The fourth finds the queue full. At 100ms the first has
// drained, so one more may enter; it leaves behind the two before it. At 1s the queue is empty.
//
// An entering cost is counted as in a token bucket whose burst is the queue. So the token bucket's
// bound holds. Each cost leaves when all earlier costs have drained. See internal/meter/leaky.go.

// LeakyBucket returns a limit that takes in up to queue at once and lets it out evenly, at the rate. [Decision.Delay]
// is the time until the work may start; [Keyed.Wait] waits for it. Over any interval t at most queue + rate·t enters.
func LeakyBucket(r Rate, queue int) Limit {
	return Limit{Algorithm: AlgorithmLeakyBucket, Rate: r, Burst: queue}
}

// The figures of a leaky bucket are the same as a token bucket's, and validateBucket checks them.
