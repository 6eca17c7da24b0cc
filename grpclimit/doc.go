// Package grpclimit limits gRPC calls: interceptors for servers, over any
// [ratelimit.Limiter] of calls.
//
// A call that is denied gets RESOURCE_EXHAUSTED, a google.rpc.RetryInfo and the trailer
// grpc-retry-pushback-ms of gRFC A6: a client with a retry policy then waits for as long as
// it should, and no longer. One limit for each client address is one line:
//
//	limit, err := grpclimit.PerIP(ratelimit.TokenBucket(ratelimit.PerSecond(10), 20), nil)
//	...
//	server := grpc.NewServer(
//		grpc.ChainUnaryInterceptor(limit.UnaryServerInterceptor()),
//		grpc.ChainStreamInterceptor(limit.StreamServerInterceptor()),
//	)
//
// For other keys, give [New] a limiter, and a key function such as [APIKey], [SPIFFEID] or
// [keyfunc.Join]:
//
//	perKey, err := ratelimit.New[keyfunc.Hash](ratelimit.FixedWindow(ratelimit.PerHour(5000)), nil)
//	...
//	limit, err := grpclimit.New(ratelimit.Map(perKey, grpclimit.APIKey("x-api-key")), nil)
//
// For several limits on one call, give New a [ratelimit.All] of layers. Keys have the types
// that package httplimit uses for them. So a user's HTTP requests and gRPC calls spend one
// budget, if both limiters are made of the same [ratelimit.Keyed].
//
// [NewInflight] limits how many calls are served at the same time. [NewClient] is for
// clients: interceptors whose calls wait for a limit of the client's own, and for the time that
// a server has told. [NewInflightClient] limits how many calls a client has in flight.
//
// This package starts no goroutine.
package grpclimit
