// Package grpclimit limits gRPC calls with interceptors for servers and clients.
//
//	limit, err := grpclimit.PerIP(ratelimit.TokenBucket(ratelimit.PerSecond(10), 20), nil)
//	...
//	server := grpc.NewServer(
//		grpc.ChainUnaryInterceptor(limit.UnaryServerInterceptor()),
//		grpc.ChainStreamInterceptor(limit.StreamServerInterceptor()),
//	)
//
// A denied call ends with RESOURCE_EXHAUSTED, a RetryInfo and the trailer grpc-retry-pushback-ms: clients with a retry policy
// obey it. [New] accepts any limiter, for example a [ratelimit.Map] with [Metadata], or several limits from [ratelimit.All].
// Keys have the same types as in package httplimit, so HTTP requests and gRPC calls can share a user's budget.
//
// [NewInflight] limits how many calls are served at the same time.
// [NewClient] is for clients. The package starts no goroutines.
package grpclimit
