package inflight

// ErrThrownOut is the error of an Acquire that was thrown out of the queue for a higher priority.
var ErrThrownOut error = errThrownOut
