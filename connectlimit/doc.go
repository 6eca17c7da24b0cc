// Package connectlimit limits the calls of connect-go servers, in the Connect, gRPC and gRPC-Web protocols.
//
//	limit, err := connectlimit.PerIP(ratelimit.TokenBucket(ratelimit.PerSecond(10), 20), nil)
//	...
//	path, handler := greetv1connect.NewGreetServiceHandler(server, connect.WithInterceptors(limit))
//
// A denied call gets resource_exhausted with RetryInfo and QuotaFailure. The middleware of package httplimit denies
// calls before their bodies are read; clients use its transports. No goroutine is started.
package connectlimit
