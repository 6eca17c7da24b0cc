// Package conformance tests httplimit with modules that httplimit does not require: a parser of structured
// fields (RFC 9651), the routers gin, echo and chi, and three other middlewares, with which it compares denials.
//
//	go test .
//	go test -run '^$' -bench Denial -count 10 .
package conformance
