// Package conformance tests httplimit together with modules that it does not itself require: a parser of structured fields (RFC
// 9651), the routers gin, echo and chi, and three other rate limiting middlewares whose denials are measured beside its own.
//
//	go test .
//	go test -run '^$' -bench Denial -count 10 .
package conformance
