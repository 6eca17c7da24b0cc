// Package linearizability proves that calls from many goroutines have the same effect as if they were
// made one after the other, in an order that fits when each began and ended. It has tests only.
//
// A history has phases. In each phase, goroutines call Allow, Take, Adjust and Reset on a few keys at one instant
// of the clock. Others sweep and invent keys, so buckets are dropped, evicted and made again during the calls.
// Between two phases the clock moves forward. For each key, Porcupine then searches for an order in which a
// limiter with a single caller returns the same results. Package ratelimittest shows that this limiter is right.
package linearizability
