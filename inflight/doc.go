// Package inflight limits how many units of work are in flight at the same time: for
// each key, over all keys together, or both.
//
//	limiter, err := inflight.New[string](10, &inflight.Options[string]{MaxQueue: 100})
//	…
//	permit, err := limiter.Acquire(ctx, "tenant-42", 1)
//	if err != nil {
//		return err
//	}
//	defer permit.Release()
//
// [Limiter.TryAcquire] refuses what does not fit now. [Limiter.Acquire] waits in a bounded
// queue.
//
// # What is promised
//
//   - A key never has more units in flight than its limit, and all keys together never more than
//     Total. One exception: a request above an adaptive limit, but not above its upper bound, is let
//     in when nothing else of its key is in flight.
//   - Callers of one key are served first come, first served. TryAcquire fails while others of its
//     key wait, or a key of its priority or a higher one waits for Total alone.
//   - Keys that wait for Total get slot-time, units × the time for which they are held, in proportion to
//     their weights. A key at its own limit, if below Total, is passed over. A large request whose turn it
//     is keeps what becomes free until it fits.
//   - A lowered limit ends no work. Waiters who want more than it get an error.
//
// # Cost
//
// TryAcquire and Done on a known key with a fixed limit read no clock and allocate nothing. With
// Total or MaxWaiting all keys share one lock. A key with an adaptive limit takes about 3 kB more.
package inflight
