// Package inflight has proofs for the library's package inflight. It has tests only.
//
// The first proof: concurrent calls to package inflight have the same effect as if
// they were made one after the other, in an order that fits when each began and ended.
//
// In a history, goroutines take one key's permits, give them back, some twice, wait for them, and change the limit.
// Other goroutines invent keys, so the key is forgotten and made again. Porcupine then searches for an order in
// which a plain counter and a limit explain all results. If no caller waits, they must also explain each refusal.
//
// The second proof: a partial outage stays partial. In simulated incidents the limits reach nearly the best fixed
// limit's goodput. They are also compared with other libraries' limits. Tests with real servers have the same result.
package inflight
