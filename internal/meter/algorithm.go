package meter

// algorithm is one algorithm's arithmetic on one key's spending at a given
// time. It holds no lock, reads no clock and does not depend on the key.
//
// Costs are from 1 to the capacity. Instants are in ticks. now is never before the state's last instant: a key's time does not
// go back.
//
// Questions leave the state as it is. The other methods return a new state. They may change
// the detail behind the old state's pointer, so the old state must not be used again.
type algorithm interface {
	// earliest returns the first instant, from now on, when the cost fits after all spending and bookings.
	earliest(s State, now, cost int64) int64
	// spend spends at earliest's instant. If the cost does not fit, the excess is a debt.
	spend(s State, at, cost int64) State
	// refund refunds the difference between a spending's cost and its real cost, as far as it has not
	// been regained since. It does not refund undeterminable parts, because the bound matters more.
	refund(s State, now int64, sp Spending, actual int64) State
	// charge spends n at now, whether it fits or not.
	charge(s State, now, n int64) State
	// forgive takes n from the spending, the newest first.
	forgive(s State, now, n int64) State
	// advance drops the spending regained by now.
	advance(s State, now int64) State
	// remaining returns the largest cost whose earliest is now, or 0 if there is none.
	// In the second case it also returns the debt: the spending above the capacity.
	remaining(s State, now int64) (n, debt int64)
	// regained returns the first instant when all is regained. It may be past.
	regained(s State) int64
	// spent returns the unregained spending, rounded up.
	spent(s State, now int64) int64
}

// family is the kind of figures in a meter's state. Within a family, spending carries over from one limit to another exactly.
type family int

const (
	familyBucket family = iota // the time until all is regained
	familyWindow               // the spending since a window's beginning
	familyLog                  // each spending
)
