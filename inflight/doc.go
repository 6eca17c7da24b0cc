// Package inflight limits how much work is in flight at the same time: for each key, over all keys together, or both.
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
//   - A key never has more units in flight than its limit, and all keys together never more than Total. There are two
//     exceptions for learnt limits. A request above the adaptive limit passes, up to the upper bound, if the key has
//     nothing in flight. A priority may exceed Shared's learnt limit, up to Total, while lower priorities hold it.
//   - Callers of one key are served first come, first served. When a caller leaves the queue unserved, the order
//     changes until the queue is empty: the newest caller goes first, and takes the place of the oldest if the queue is
//     full.
//   - A waiter is refused at once if its context would end before the key's usual work ends.
//   - TryAcquire fails while other callers of its key wait. It also fails while a key of the same or a higher priority
//     waits for Total alone.
//   - Keys waiting for Total get units × time in proportion to their weights. A key that waits for its own
//     limit, below Total, is passed over. A large request keeps freed units, from its turn on, until it fits.
//   - A lowered limit ends no work. A waiter for more than the new limit gets an error.
//
// # Cost
//
// On a known key with a fixed limit, TryAcquire and Done read no clock and allocate nothing. With Total or MaxWaiting
// all keys share one lock. An adaptive limit takes about 3 kB more for each key.
package inflight
