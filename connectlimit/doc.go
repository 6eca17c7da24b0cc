// Package connectlimit limits calls to connect-go servers, in the protocols Connect, gRPC and gRPC-Web.
//
//	limit, err := connectlimit.PerIP(ratelimit.TokenBucket(ratelimit.PerSecond(10), 20), nil)
//	...
//	path, handler := greetv1connect.NewGreetServiceHandler(server, connect.WithInterceptors(limit))
//
// A denied call ends with resource_exhausted, a RetryInfo and a QuotaFailure. The middleware of package httplimit can
// deny calls before it reads their bodies. For clients use the transports of httplimit. The package starts no goroutines.
package connectlimit
