// Package linearizability holds the proof that calls from many goroutines have the effect
// of the same calls one after the other, in an order that agrees with when they
// began and ended. It has tests only.
//
// A history runs in phases. In each, goroutines call Allow, Take, Adjust and Reset
// on a few keys at one instant of the clock, while others sweep and invent keys, so
// that buckets are dropped, evicted and made again under the callers' hands. Between
// two phases the clock moves on. Porcupine then looks, key by key, for an order in which a
// limiter that nobody else uses gives the same answers. That such a limiter answers right
// is for package ratelimittest to show.
package linearizability
