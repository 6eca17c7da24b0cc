// Package inflight holds the proofs of package inflight. It has tests only.
//
// The first is that calls of package inflight from many goroutines have the
// effect of the same calls one after the other, in an order that agrees with when they
// began and ended.
//
// In a history, goroutines take permits of one key, give them back, some of them twice, wait
// for them, and change the limit, while others invent keys, so that the key is
// forgotten and made again. Porcupine then looks for an order in which a plain counter
// and a limit explain all answers. In histories without callers that wait, each refusal
// must be explained as well.
//
// The second is that a partial outage stays partial: in simulated incidents the limits, beside those of other libraries,
// reach nearly the goodput of the best fixed limit, and real servers show the same.
package inflight
