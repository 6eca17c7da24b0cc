package wait

// Buckets are the upper bounds, in seconds, of the histogram buckets for waits. One more bucket counts all longer waits. They
// are in this package because inflight counts the waits, and internal/figures imports inflight and uses the bounds, too.
var Buckets = [...]float64{.001, .0025, .005, .01, .025, .05, .1, .25, .5, 1, 2.5, 10}
