// Package inflight holds the proofs of package inflight. It has tests only.
//
// The first proof is that concurrent calls of package inflight have the effect of the same
// calls in sequence, in an order that agrees with the times at which they began and ended.
//
// In a history, goroutines take permits of one key, give them back, some of them twice, wait for them, and change the limit,
// while other goroutines invent keys, so that the key is forgotten and made again. Porcupine then looks for an order in which a
// plain counter and a limit explain all results. In histories without callers that wait, each refusal must be explained as
// well.
//
// The second proof is that a partial outage stays partial: in simulated incidents the limits, beside limits of other libraries,
// reach nearly the goodput of the best fixed limit, and real servers show the same.
package inflight
