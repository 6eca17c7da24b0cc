package ratelimit

// algorithm is the contract that the five algorithms meet: arithmetic on one
// key's spending and a time that is given. None holds a lock, reads a clock or
// knows a key. Costs are from 1 to the capacity. Each instant is in nanoseconds, and
// never before the state's last. Questions take the state as it was left, and
// leave it alone; so do the others but for the ledger.
type algorithm interface {
	// earliest returns the first instant, now or later, at which the cost fits
	// behind all that is spent and booked.
	earliest(s state, now, cost int64) int64
	// spend spends at an instant that was earliest, or more as debt.
	spend(s state, at, cost int64) state
	// refund gives back what the cost of a spending exceeds actual by, as far as
	// that has not been regained in the meantime.
	refund(s state, now int64, sp spending, actual int64) state
	// charge spends n at now, into debt if need be.
	charge(s state, now, n int64) state
	// forgive takes n from what is spent, the newest first.
	forgive(s state, now, n int64) state
	// advance drops what now has regained.
	advance(s state, now int64) state
	// remaining returns the largest cost whose earliest is now, 0 if none is.
	remaining(s state, now int64) int64
	// regained returns the first instant at which all is regained, or one that is past.
	regained(s state) int64
	// spent returns how much is spent and not regained, rounded up.
	spent(s state, now int64) int64
}
