// Package waits has the bounds by which waits are counted. It is a package because inflight counts by them, and
// internal/figures, which imports inflight, names them.
package waits

// Buckets are the upper bounds of the buckets, in seconds. One more bucket has all longer waits.
var Buckets = [...]float64{.001, .0025, .005, .01, .025, .05, .1, .25, .5, 1, 2.5, 10}
