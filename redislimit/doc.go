// Package redislimit keeps a fleet's budgets in Redis 7.0 or later, or Valkey 8 or later.
// Limits, decisions and errors are as in package ratelimit, at 1 µs by the server's clock.
//
//	limit := ratelimit.TokenBucket(ratelimit.PerSecond(10), 20).Named("api")
//	limiter, err := redislimit.New(client, limit, nil)
//	…
//	d, err := limiter.Take(ctx, "user:42", 1)
//
// [All] puts several limits on one request. [NewSemaphore] caps
// calls in flight. Names from package ratelimit mean the same here.
//
// # Errors
//
// [ratelimit.ErrUnavailable] is returned if Redis could not decide: it is down, slow, full, loading or read-only, it
// refuses the client's password, database or command, or a proxy has answered in its place. The text names a missing
// permission. If the error also wraps [ratelimit.ErrUnanswered], the call may have been charged; any other error has
// charged nothing. If the caller's own context has ended, the error is the context's. A script error, keys in
// several slots, a server before Redis 7.0 and a Redis key with another program's value are not ErrUnavailable.
//
// # Clusters
//
// One decision's Redis keys must all be in one slot; on a Ring, on one server. Limiters
// with equal keys share a slot; for others there are [Options.Slot] and [Options.MaxBatch].
package redislimit
