package redislimit

import "sync/atomic"

// batch is what goes to a server at once, in one round trip. Its calls are written, or they are taken back: whichever
// comes first excludes the other. So it is known of a caller who leaves whether the server may
// have received the call, now or later.
type batch struct {
	calls   []*call
	staying int  // of the calls, those whose callers still wait; the lane's lock guards it
	stuck   bool // nobody waits, and the lane does not count it any more; the lane's lock guards it
	state   atomic.Uint32
}

const (
	batchPending uint32 = iota
	batchWritten
	batchTakenBack
)

// write reports whether the calls may be written, and takes note that they are.
func (b *batch) write() bool {
	return b.state.CompareAndSwap(batchPending, batchWritten) || b.written()
}

// written reports whether calls may have reached the server.
func (b *batch) written() bool { return b.state.Load() == batchWritten }

// mayArrive reports whether the server may receive the calls, or have received them. While
// somebody waits for them it may. When nobody does they are taken back, if there is still time.
// The lane's lock guards it. A call without a batch has not been sent.
func (b *batch) mayArrive() bool { return b != nil && (b.staying > 0 || !b.takeBack()) }

// takeBack reports whether the calls have not been written, and never will be.
func (b *batch) takeBack() bool {
	return b.state.CompareAndSwap(batchPending, batchTakenBack) || b.state.Load() == batchTakenBack
}
