// Package linearizability holds the proof that calls from many goroutines have the effect of the same calls one after the
// other, in an order that agrees with their beginnings and ends. It has tests only.
//
// A history runs in phases. In each, goroutines call Allow, Take, Adjust and Reset on a few keys at one instant of the clock,
// while others sweep and invent keys, so that buckets are dropped, evicted and made again during the calls. Between two phases
// the clock moves on. Porcupine then looks, key by key, for an order in which a limiter with a single caller returns the same
// results. The correctness of that limiter is shown by package ratelimittest.
package linearizability
