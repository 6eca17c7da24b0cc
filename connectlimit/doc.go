// Package connectlimit limits the calls of servers that are made with connect-go, by an interceptor
// that decides with any [ratelimit.Limiter] of calls. It serves the three protocols of such
// servers alike: Connect, gRPC and gRPC-Web.
//
//	limit, err := connectlimit.PerIP(ratelimit.TokenBucket(ratelimit.PerSecond(10), 20), nil)
//	...
//	path, handler := greetv1connect.NewGreetServiceHandler(server, connect.WithInterceptors(limit))
//
// A call that is denied gets resource_exhausted with a google.rpc.RetryInfo and a
// google.rpc.QuotaFailure, the answer that packages grpclimit and httplimit give; with the header
// field Retry-After in a unary call of the Connect protocol, and with the trailer
// grpc-retry-pushback-ms in gRPC.
//
// [NewInflight] limits how many calls are served at the same time. Nothing is decided for clients:
// a client of the Connect protocol keeps to the limits of a server by an [http.Client] with a
// Transport or an InflightTransport of package httplimit, whose WithCost works with it. A client
// of connect-go that speaks gRPC is told in trailers, which these do not read.
//
// The interceptor and httplimit's middleware do nearly the same. Take the interceptor where limits
// depend on the message, or on what other interceptors have found out, such as who
// calls. Take the middleware to deny a request before its body is read and decoded.
//
// This package starts no goroutine.
package connectlimit
