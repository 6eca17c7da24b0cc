// Package redislimit holds the keys of a whole fleet to one budget. It is what package
// ratelimit is, for any number of processes: the same limits, the same answers and the
// same errors, with the budgets kept in Redis 7.0 or later, or Valkey 8 or later.
//
//	limit := ratelimit.TokenBucket(ratelimit.PerSecond(10), 20).Named("api")
//	limiter, err := redislimit.New(client, limit, nil)
//	…
//	d, err := limiter.Take(ctx, "user:42", 1)
//
// [All] puts several limits on one request: one call decides, all or nothing.
//
// # What is promised
//
// All that the documentation of package ratelimit says about answers holds, with 1 µs in
// the place of 1 ns: Redis tells the time. New refuses limits whose figures a script
// cannot count in whole numbers (2^52 at most).
//
//   - A decision is one script call, for one limit or several, and so one round trip. The
//     script reads and checks everything before it writes anything. Decisions that are
//     under way at once may share a call, in which each is decided by itself.
//   - A denial, a Peek, a cost of 0 and an error write nothing, so nothing of them is
//     replicated or logged. There is one exception: the first denial of a key under a limit
//     that regains more slowly than the stored one may write, to make the key live longer.
//   - Every Redis key has a time to live: at least until the key is fresh, and at most
//     about twice as long.
//   - A call is charged once, or not at all. go-redis repeats commands that were not
//     answered; it does not repeat these.
//   - No decision takes longer than [Options.Timeout], or than its context lasts, whatever the
//     options of the client.
//   - If the server's clock steps back, after a failover to another machine, nothing is
//     minted: a key waits until the clock has caught up, or for [Limiter.Reset].
//   - The limit travels with each call, and what was spent under another one carries over:
//     after SetLimit, by LimitFor, and while two versions of a program run side by side.
//     Carrying over rounds up, so keys that two versions use by turns lose a little.
//
// # Errors
//
// An error that wraps [ratelimit.ErrUnavailable] says that there was no decision: Redis
// is down, slow, full, loading, or read-only. If it also wraps [ErrUnanswered], the call
// was sent and may have been charged, or booked. If the caller's own context has ended,
// the error is the context's, and not ErrUnavailable. Package failover decides what to do
// while Redis is unavailable. [ErrForeignState], missing permissions and script errors are
// mistakes, and not ErrUnavailable.
//
// # What differs from the limiter in memory
//
//   - A denial does not record the clock's reading, since it writes nothing.
//   - A calendar's windows are those of the server's clock. Nothing is booked beyond the next window: that
//     is denied, with the boundary as its RetryAfter. If a call's idea of the time is wrong by more than a window, the
//     server answers its time, and the call is made again.
//   - A cost that can never pass is answered without asking Redis: the Decision has the
//     limit and no figures.
//   - A key has at most 1,024 bookings ahead, a sliding log 2,000. More are refused with
//     [ratelimit.ErrLimited]. A leaky bucket gives back at its queue's end only, and never in the middle.
//   - After the figures of a bucket or of a calendar have changed, reservations made before give back
//     nothing; those of a sliding counter, only what the current window counts. What they
//     have cost beyond their estimate is charged as ever.
//   - A reservation settles nothing once the key has expired, which it does some time
//     after it was fresh.
//
// # After a change of limit
//
// SetLimit sends nothing, and a denial writes nothing: until something is spent, the key
// stays stored under the old limit, and each call carries it over again. All calls of a
// limiter do so as of one instant, so a denial's RetryAfter is exact to the microsecond:
//
//   - After SetLimit, and for the limit of New, the instant is the first decision that the
//     limiter has made under that limit, for whatever key, or the last change of the key
//     if that is later. Before it the key regains at the old rate, after it at the new one.
//     Decisions that were under way together with the first one may each take their own.
//   - For a limit of LimitFor or [WithLimit], it is the last change of the key: since when
//     such a limit holds is not known. What an idle key has regained since, at the rate of
//     the limit before, it regains at the rate of the new one instead.
//   - Whatever writes the key changes what was told: spending, Adjust, and a process with
//     another limit. To settle writes it too. After SetLimit that changes nothing else; of
//     keys whose limit is LimitFor's or WithLimit's, it moves the instant.
//   - While the server's clock is behind that instant, each decision is an instant of its own.
//   - A denial makes the key live until it is fresh under the new limit, so that what it has
//     told holds. A Peek and a cost of 0 cannot: if nothing else is decided on the key before
//     it would have been fresh under the old limit, it may expire then.
//
// # Permissions
//
// Where an ACL restricts the user of the client, it must allow EVAL, EVALSHA, TIME, GET,
// GETRANGE, STRLEN, SET and APPEND, for Reset also DEL, and each of them for all keys of the
// limiter alike. If one is missing, a decision is an error that has charged nothing. [Limiter.Each] also needs SCAN.
//
// # Clusters
//
// All Redis keys of one decision must be in one slot. Limiters with equal keys share a
// slot; for others there is [Options.Slot], which puts a tenant's keys on one server. A limit for all
// tenants, or for a route, is spent from leases, in the same decision: see [Leased]. A Ring, which has no
// slots, is checked in each call. Decisions of several callers share calls whatever the slots of their keys: such
// calls declare no keys, unless [Options.DeclareKeys] is set. Limits of servers that have nothing to do with each other are asked one
// after the other with package chain.
package redislimit
