// Package inflight holds the proofs of package inflight. It has tests only.
//
// The first proof: concurrent calls of package inflight have the same effect as
// calls one after the other, in an order that agrees with their beginnings and ends.
//
// In a history, goroutines take permits of one key, give them back, some twice, wait for them, and change the limit. Other
// goroutines invent keys, so the key is forgotten and made again. Porcupine then searches for an order in which a plain
// counter and a limit explain all results. In histories without waiting callers, they must also explain each refusal.
//
// The second proof is that a partial outage stays partial. In simulated incidents the limits reach nearly the goodput of
// the best fixed limit, and are compared with limits of other libraries. Tests with real servers have the same result.
package inflight
