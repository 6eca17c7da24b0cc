// Package redislimit holds the keys of a whole fleet to one budget, kept in Redis 7.0 or later, or Valkey 8 or later.
// Limits, answers and errors are those of package ratelimit, at 1 µs instead of 1 ns: the server's clock counts.
//
//	limit := ratelimit.TokenBucket(ratelimit.PerSecond(10), 20).Named("api")
//	limiter, err := redislimit.New(client, limit, nil)
//	…
//	d, err := limiter.Take(ctx, "user:42", 1)
//
// [All] puts several limits on one request, and [NewSemaphore] caps what is in flight.
//
// # Promises
//
//   - A decision is one script call in one round trip, for one limit or several. The script checks everything before it
//     writes anything. Decisions that are under way at once may share a call, in which each is decided by itself.
//   - A denial, a Peek, a cost of 0 and an error write nothing. One exception: the first denial of a key under a limit
//     that regains more slowly than the stored one may make the key live longer.
//   - Every Redis key has a time to live: at least until the key is fresh, at most about twice as long.
//   - A call is charged once, or not at all.
//   - No decision takes longer than [Options.Timeout], or than its context lasts, whatever the options of the client.
//   - If the server's clock steps back, a key waits until the clock has caught up, or for [Limiter.Reset].
//   - The limit travels with each call. What was spent under another limit carries over, rounded up.
//
// # Errors
//
// An error that wraps [ratelimit.ErrUnavailable] says that there was no decision: Redis is down, slow, full, loading, or
// read-only. If it also wraps [ErrUnanswered], the call was sent and may have been charged. If the caller's own context
// has ended, the error is the context's, and not ErrUnavailable. [ErrForeignState], missing permissions and script errors
// are mistakes, and not ErrUnavailable.
//
// # Differences from the limiter in memory
//
//   - A denial does not record the clock's reading.
//   - A calendar's windows are those of the server's clock. Nothing is booked beyond the next window.
//   - A cost that can never pass is answered without asking Redis: the Decision has the limit and no figures.
//   - A key has at most 1,024 bookings ahead, a sliding log 2,000. More are refused with [ratelimit.ErrLimited]. A
//     leaky bucket gives back at its queue's end only.
//   - After the figures of a bucket or of a calendar have changed, reservations made before give back nothing; those of
//     a sliding counter, only what the current window counts.
//   - A reservation settles nothing once the key has expired, some time after it was fresh.
//
// # After a change of limit
//
// SetLimit sends nothing. Until something is spent, a key stays stored under the old limit, and each decision carries it
// over as of one instant. Under the limit of New or SetLimit that is the limiter's first decision under it, for any key, or
// the key's last change if that is later. Under a limit of LimitFor or [WithLimit] it is the key's last change: what an
// idle key has regained since, it regains at the new rate. Spending, Adjust, and a process with another limit change
// what earlier denials have said. A Peek and a cost of 0 do not make a key live longer: it may expire when it would have
// been fresh under the old limit.
//
// # Permissions
//
// An ACL must allow EVAL, EVALSHA, TIME, GET, GETRANGE, STRLEN, SET and APPEND, for Reset also DEL, for [Limiter.Each]
// SCAN, and for a [Semaphore] the commands of sorted sets, PTTL and PEXPIRE. If one is missing, a decision is an error that
// has charged nothing.
//
// # Clusters
//
// All Redis keys of one decision must be in one slot; on a Ring, on one server. Limiters with equal keys share a slot;
// for others there is [Options.Slot]. A limit that is shared by the keys of several slots is [Leased]. Package chain asks
// limits of several servers one after the other.
package redislimit
