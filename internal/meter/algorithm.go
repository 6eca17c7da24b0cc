package meter

// algorithm is the contract that the six algorithms meet: arithmetic on what one key has
// spent, at a time that is given. None holds a lock, reads a clock or knows a key.
//
// Costs are from 1 to the capacity. Instants are in ticks. now is never before
// the state's last instant: a key's time does not go back.
//
// Questions leave the state as it is. The others return a new one; only the detail behind
// its pointer is changed in place, so the old state must not be used again.
type algorithm interface {
	// earliest returns the first instant, now or later, at which the cost fits
	// behind all that is spent and booked.
	earliest(s State, now, cost int64) int64
	// spend spends at an instant that earliest has returned, or more than fits, as debt.
	spend(s State, at, cost int64) State
	// refund gives back what the cost of a spending exceeds actual by, as far as
	// that has not been regained in the meantime. What cannot be known it does not
	// give back: the bound matters more.
	refund(s State, now int64, sp Spending, actual int64) State
	// charge spends n at now, whether it fits or not.
	charge(s State, now, n int64) State
	// forgive takes n from what is spent, the newest first.
	forgive(s State, now, n int64) State
	// advance drops what has been regained by now.
	advance(s State, now int64) State
	// remaining returns the largest cost whose earliest is now, 0 if there is none.
	remaining(s State, now int64) int64
	// regained returns the first instant at which all is regained, which may be past.
	regained(s State) int64
	// spent returns how much is spent and not regained, rounded up.
	spent(s State, now int64) int64
}
