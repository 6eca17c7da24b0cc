// Package conformance tests httplimit with modules that httplimit does not require: a parser of structured fields
// (RFC 9651), the routers gin, echo and chi, and three other middlewares. It compares their denials with httplimit's.
//
//	go test .
//	go test -run '^$' -bench Denial -count 10 .
package conformance
