package ratelimit

import (
	"time"
)

// An example for one key, with Concurrent(10, time.Minute):
//
//	at     reserve  allowed  in use  remaining
//	0s     4        true     4       6
//	30s    6        true     10      0
//	40s    1        false    10      0
//	50s    the second call ends      6
//	55s    5        true     9       1
//	1m0s   2        true     7       3
//
// At 50s the reservation of 6 units is settled, and they are free at once. The reservation
// of 4 is neither settled nor extended: at 1m its hold is over, its units lapse, and 3 of
// them are free after the next 2. Package meter counts the units, in concurrent.go.

// Concurrent returns a limit of units in use at the same time, for example a user's 8 open streams. A [Reservation]
// holds its units until Settle or Cancel gives them back, or until hold has passed since Reserve or the last
// [Reservation.Extend]. So if a process dies or forgets a reservation, the units are blocked for hold at most.
//
//   - Settle gives all units back and ignores its argument. In a stack the argument corrects the charges of the other
//     layers, and ends this one.
//   - Take, Allow and Wait cannot give the units back when the work ends.
//     They return an error, and charge nothing. Peek answers as Reserve does.
//   - The middleware of packages httplimit, grpclimit and connectlimit reserves, extends, and gives back when the handler has returned
//     or panicked, and any hijacked connection is closed. If units lapse all the same, for example because the store
//     was down or the key was reset, the handler's context ends with the cause [ErrLost].
//   - Nothing is booked ahead. RetryAfter, NextAfter and ResetAfter are estimates: the mean age of the units in use, divided by
//     their number, and between 10 ms and hold. A unit may come back at any time.
//   - A lowered limit ends no call. New calls are denied until fewer units are in use than it allows; Debt is the excess.
//   - A change to or from another algorithm begins with nothing in use and nothing spent, and reservations made before it have
//     nothing to settle.
//   - [Keyed.Saved] and the memory of evicted keys leave units in use out: their calls end with the process.
func Concurrent(units int, hold time.Duration) Limit {
	return Limit{Algorithm: AlgorithmConcurrent, Rate: Rate{units, hold}}
}

// leastRetry is the shortest RetryAfter of Concurrent that is not 0.
const leastRetry = 10 * time.Millisecond

func (l Limit) validateConcurrent() error {
	if err := l.validateUnits(); err != nil {
		return err
	}
	switch {
	case l.Rate.Per <= 0:
		return invalid("hold (Rate.Per) is %v, want more than 0", l.Rate.Per)
	case int64(l.Rate.Per) > century:
		return invalid("hold (Rate.Per) is %v, want at most 100 years", l.Rate.Per)
	case l.Burst != 0:
		return invalid("Burst is %d, want 0 for %v", l.Burst, l.Algorithm)
	}
	return nil
}
