// Package inflight limits how many units of work are in flight at the same time: for
// each key, over all keys together, or both. Package ratelimit limits how many there
// are per time.
//
//	limiter, err := inflight.New[string](10, &inflight.Options[string]{MaxQueue: 100})
//	…
//	permit, err := limiter.Acquire(ctx, "tenant-42", 1)
//	if err != nil {
//		return err
//	}
//	defer permit.Release()
//
// Most callers need [Limiter.TryAcquire], which sheds what does not fit now, or
// [Limiter.Acquire], which waits in a bounded queue. With [Options.Adaptive] the limit
// follows what the backend can do: see [AIMD], [Vegas] and [Gradient].
//
// # What is promised
//
// A unit is in flight from when a permit for it was given until its [Permit.Release] or
// [Permit.Done].
//
//   - A key never gets a permit that would put more units in flight than its limit, nor one
//     that would put more in flight than Total over all keys. The only exception: a
//     request above an adaptive limit that is low for now, but not above its upper
//     bound, is let in when nothing else of the key is in flight.
//   - First come, first served among the callers of a key. TryAcquire passes nobody: it
//     fails while others of its key wait, or while a key waits that only lacks room in
//     Total.
//   - Keys that wait for Total share it by their weights. Over any stretch in which two
//     keys both wait and have room within their own limits, each gets units in
//     proportion to its weight, give or take the largest n. What other keys do, and how
//     many callers of a key wait, changes nothing of that. A key at its own limit is
//     passed over. The request whose turn it is keeps what becomes free for itself
//     until it fits.
//   - A wait that fails holds nothing: a caller that gives up leaves the queue in constant
//     time, and what it was given at the same instant goes to the next.
//   - A limit that is lowered cuts nobody off, and one that is raised wakes those who
//     wait. Whoever waits for more than the new bound gets an error at once.
//   - Releasing a permit twice does nothing the second time, also after its key was
//     forgotten.
//   - Calls on one key are linearizable: they have the effect of the same calls one after
//     the other.
//   - At most MaxKeys keys are tracked. A key with something in flight or somebody
//     waiting is never forgotten.
//
// It is the caller's task to release each permit, on every path: defer it. Stats shows
// how long the oldest permit has been held.
//
// # Cost
//
// TryAcquire and Done on a known key with a fixed limit take its lock twice, read no clock
// and allocate nothing. Adaptive limits read the clock twice in addition. With Total
// all keys share one lock. A refusal allocates nothing.
package inflight
