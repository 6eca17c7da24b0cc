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
//   - First come, first served among the callers of a key. TryAcquire passes nobody of its
//     key, nor of its priority or a higher one: it fails while others of its key wait, or
//     while such a key waits that only lacks room in Total.
//   - Keys that wait for Total share its slot-time by their weights: units × the time for
//     which they are held, of which each unit counts for 1 µs at least. Over any stretch in
//     which two keys both wait and have room within their own limits, each gets slot-time in
//     proportion to its weight, give or take one request and what was in flight when the
//     other began to wait. What other keys do, how many callers of a key wait and how long its
//     work takes changes nothing of that. A key that comes back begins level with the one
//     that has used least of those that wait. A changed weight holds from then on. A key at
//     its own limit is passed over. The request whose turn it is keeps what becomes free for
//     itself until it fits.
//   - With [Options.Priority], a higher level goes before a lower one, which can starve, also
//     where a large request of the lower one was collecting what becomes free. So
//     give a page 1 and its background jobs 0, and not the other way round.
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
// and allocate nothing. Adaptive limits and Total read the clock twice in addition. With Total
// or MaxWaiting all keys share one lock. A refusal allocates nothing. A key with an adaptive
// limit of its own takes about 3 kB more.
package inflight
