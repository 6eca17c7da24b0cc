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
//   - Limits. A key never has more units in flight than its limit, and all keys together
//     never more than Total. One exception: a request above an adaptive limit that is low for
//     now is let in when nothing else of its key is in flight, if it is not above the upper bound.
//   - Order. Callers of one key are served first come, first served. TryAcquire does not
//     overtake: it fails while others of its key wait. It fails too while a key of its priority
//     or a higher one waits that only lacks room in Total.
//   - Shares. Keys that wait for Total share slot-time by their weights. Slot-time is units ×
//     the time for which they are held; each unit counts for 1 µs at least. While two keys both
//     wait and have room within their own limits, each gets slot-time in proportion to its
//     weight, give or take one request and what was in flight when the other began to wait. It
//     does not matter what other keys do, how many callers wait, or how long their work takes. A
//     key that comes back begins level with the waiting key that has used least. A key at its own
//     limit is passed over, if that limit is below Total. One whose limit is Total or more has no limit
//     of its own: it waits for Total alone. A large request whose turn it is keeps what becomes free until it fits.
//   - Priority. With [Options.Priority], a higher level goes before a lower one. The lower
//     one can starve, also while a large request of it collects what becomes free. So give a page
//     1 and its background jobs 0. Let the page [Limiter.Acquire], with a short deadline:
//     [Limiter.TryAcquire] gets only what no waiter of any level takes.
//   - Giving up. A wait that fails holds nothing. A caller leaves the queue in constant time,
//     and what it was given at the same instant goes to the next.
//   - Changes. A lowered limit ends no work that is in flight. A raised one lets waiters in.
//     Waiters who want more than the new bound get an error at once. A changed weight holds from
//     then on.
//   - Release. To release a permit twice does nothing the second time, also after its key was
//     forgotten.
//   - Concurrency. Calls on one key are linearizable: they have the effect of the same calls
//     one after the other.
//   - Memory. At most MaxKeys keys are tracked. A key with something in flight or somebody
//     waiting is never forgotten.
//
// The caller must release each permit, on every path: defer it. Stats shows how long the oldest
// permit has been held.
//
// # Cost
//
// TryAcquire and Done on a known key with a fixed limit take its lock twice, touch one line
// of the processor's cache beside the table, read no clock and allocate nothing. Adaptive limits and Total read the clock twice in addition. With Total
// or MaxWaiting all keys share one lock. A refusal allocates nothing. A key with an adaptive
// limit of its own takes about 3 kB more.
package inflight
