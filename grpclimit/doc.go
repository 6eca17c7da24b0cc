// Package grpclimit limits gRPC calls, by interceptors for servers and for clients.
//
//	limit, err := grpclimit.PerIP(ratelimit.TokenBucket(ratelimit.PerSecond(10), 20), nil)
//	...
//	server := grpc.NewServer(
//		grpc.ChainUnaryInterceptor(limit.UnaryServerInterceptor()),
//		grpc.ChainStreamInterceptor(limit.StreamServerInterceptor()),
//	)
//
// A denied call gets RESOURCE_EXHAUSTED, a RetryInfo and the trailer grpc-retry-pushback-ms, which a client with a
// retry policy obeys. [New] takes any limiter of calls, such as a [ratelimit.Map] by [Metadata] or a [ratelimit.All] of
// several limits. Keys have the types of package httplimit: an HTTP request and a call of one user can share a
// budget.
//
// [NewInflight] limits the calls served at the same time. [NewClient] is for clients. No
// goroutine is started.
package grpclimit
