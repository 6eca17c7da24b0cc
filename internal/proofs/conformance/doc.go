// Package conformance tests httplimit with what its own module does not require: a
// parser of structured fields (RFC 9651), the routers gin, echo and chi, and three other
// rate limiting middlewares to measure a denial beside.
//
//	go test .
//	go test -run '^$' -bench Denial -count 10 .
package conformance
