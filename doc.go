// Package ratelimit limits how much each key may spend, in one process: exactly, and in bounded memory.
//
//	limiter, err := ratelimit.New[string](ratelimit.TokenBucket(ratelimit.PerSecond(10), 20), nil)
//	…
//	if !limiter.Allow("user:42", 1) {
//		// denied
//	}
//
// [New] makes a [Keyed] limiter, which gives each key its own budget. [Keyed.Allow] returns yes or no. [Keyed.Take] also
// returns when to retry. [Keyed.Wait] sleeps until the cost is allowed. [Keyed.Reserve] charges an estimate, to be corrected.
// [All] charges several limits for one request, or none. Everything is safe for concurrent use unless documented otherwise.
//
// # Which limit
//
//   - [TokenBucket], for most uses: a mean rate, and bursts.
//   - [LeakyBucket]: work leaves a bounded queue evenly spaced.
//   - [FixedWindow]: units in a window. Up to twice as many pass around its end.
//   - [SlidingLog]: units in any window, exactly. It remembers each spending.
//   - [SlidingCounter]: about the same, in constant memory.
//   - [Calendar]: a quota of days, weeks or months in a time zone.
//   - [Concurrent]: units in use at the same time, such as open streams. Its calls are Reserve and Settle.
//
// # The meaning of a decision
//
// A key is fresh when it has regained its whole budget. If nothing else is spent:
//
//   - A denied cost is allowed after RetryAfter, and not 1 ns before.
//   - A cost of Remaining is allowed, and one more is denied.
//   - The key is fresh after ResetAfter.
//
// A denial, an error, Peek, a failed Wait and a cost of 0 charge nothing; [Layered.Wait] names one exception.
// [Keyed.Adjust] and [Reservation.Settle] may charge above the capacity: a key regains this debt too.
//
// Each limit's constructor states its bound. Only a grant, [Keyed.Reset] and
// eviction allow more. docs/promises.md in the repository has the exact statements.
//
// # Where the rest is
//
// In this module: httplimit, keyfunc, chain, ban, fair, inflight (calls at once), lease and failover (fleets), sqllimit,
// ratelimittest. In modules of their own: redislimit, policy (rules), grpclimit, connectlimit, promlimit, otellimit.
package ratelimit
