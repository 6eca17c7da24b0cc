// Package inflight limits the units of work that are in flight at the same time: for
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
// [Limiter.TryAcquire] fails if there is no room now. [Limiter.Acquire] waits in a bounded
// queue.
//
// # Promises
//
//   - A key never has more units in flight than its limit, and all keys together never more than
//     Total. If nothing else of a key is in flight, a request above its adaptive limit passes, up to the upper bound. A priority may exceed
//     the limit that Shared has learnt, up to Total, while lower ones hold it.
//   - Callers of one key are served first come, first served. From the first caller that leaves the queue unserved until the queue is empty,
//     the newest goes first, and takes the place of the oldest in a full queue.
//   - A waiter whose context ends before its key's usual work would end is refused at once.
//   - TryAcquire fails while others of its key wait, or a key of its priority or a higher one waits for Total alone.
//   - Keys that wait for Total get units × time in proportion to their weights. A key at its own limit, if
//     below Total, is passed over. A large request at its turn keeps freed units until it fits.
//   - A lowered limit ends no work. A waiter for more than the new limit gets an error.
//
// # Cost
//
// TryAcquire and Done on a known key with a fixed limit read no clock and allocate nothing. With
// Total or MaxWaiting all keys share one lock. A key with an adaptive limit takes about 3 kB more.
package inflight
