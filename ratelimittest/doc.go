// Package ratelimittest tests your own implementation of [ratelimit.Limiter], an engine. It checks
// whether the engine keeps the same promises as this module's limiters. For the six algorithms of spending
// it checks every field of a Decision, to the engine's unit of time; for [ratelimit.Concurrent], see below.
// One test is enough:
//
//	func TestEngine(t *testing.T) {
//		clock := new(ratelimittest.Clock)
//		ratelimittest.Run(t, ratelimittest.Config{
//			Clock:      clock,
//			Resolution: time.Microsecond,
//			New: func(limit ratelimit.Limit) (ratelimit.Limiter[string], error) {
//				return NewEngine(client, limit, clock)
//			},
//		})
//	}
//
// The example NewEngine is a complete engine. Begin with Allow and Take. If an engine
// takes its time from a server, set Advance or TryAdvance instead of Clock. Only the
// suite may move time: limiters under test must share its clock with no other test.
//
// The suite finds methods with and without a context: Peek(key, cost) and Peek(ctx, key, cost), and the same
// for Adjust, Reset (with or without an error) and SetLimit. The run fails if a method named in Config.Want is
// not found. Package ratelimit's functions, for example [ratelimit.Peek], find only methods with a context.
//
// # Promises
//
//  1. RetryAfter is true: unless something else is spent, the same cost is
//     allowed once RetryAfter has passed, and denied one unit of time earlier.
//  2. Remaining is true: a cost of Remaining is allowed at this instant, and a cost of one more is denied.
//  3. ResetAfter is true: once it has passed the key has its full budget, and one unit of time earlier it has not. NextAfter
//     is true, too, if the engine fills it in: once it has passed Remaining is above 0, and one unit of time earlier it is 0.
//  4. A denial charges nothing. Nor do a Peek, a cost of 0 (always allowed, creates
//     no key), a negative cost (ErrNegativeCost), a cost above the capacity
//     (ErrExceedsLimit), a key unequal to itself (ErrInvalidKey), and a failed Wait.
//  5. The bound holds after any reservations and settlements, and for any number of goroutines. Token bucket: at most burst
//     + rate·t over any interval t. Leaky bucket: the same on entry, and work leaves evenly spaced by Delay. Sliding log:
//     at most Units in any window. Fixed window: at most Units per window; a window begins with the first spending after
//     the last window's end. Sliding counter: curr + ceil(prev·overlap) + cost is at most Units; windows follow each other
//     until the key is fresh again. Calendar: at most Units in each window of the Period, even if the wall clock is set.
//  6. Exact in integers: a greedy caller gets burst + floor(rate·t), for all figures.
//     New refuses an invalid limit with ErrInvalidLimit.
//  7. Time: a decision reads the clock once, unless its limit is a calendar. A reading below the key's highest counts as
//     the highest; RetryAfter and ResetAfter include the gap. Readings may be negative. A Peek and a Sweep record nothing.
//  8. Saturation: debt is regained like other spending, at the rate or
//     as windows pass. It is capped at 100 years; nothing wraps around.
//
// Each key has its own budget, even the empty key. A Decision contains its limit. No call panics.
//
// The suite also tests the methods Peek, Wait, Adjust, Reset, SetLimit, Sweep, Join (of a [ratelimit.Joinable]),
// Reserve with Settle and Cancel, and Len, if the limiter has them. They must behave as documented for
// [ratelimit.Keyed]. Len counts the tracked keys: Len() int, or the Keys of Stats(). Wait must book its place and then
// sleep, in real time. If an engine's Wait retries instead, as [ratelimit.Layered.Wait] does, add Wait to Config.Skip.
//
// An engine may refuse a booking if it and the capacity together take more than 100 years to
// regain. Under a calendar an engine may refuse bookings beyond the beginning of the next window.
//
// # Calendars
//
// An engine may refuse calendars with ErrInvalidLimit, or by Config.Accepts. [Run] then skips their subtest, with
// the reason. If the engine must accept them, add Calendar to Config.Want. To leave them out, add it to Config.Skip.
//
// Windows follow the wall time of Config.Clock, [Clock.Wall]. Each history sets it to some date, often near a
// window's end or near an instant when the zone's clocks change. An engine with a single time, for example a
// server's, reads it from Wall. Set and Advance move both times, and SetWall moves only the wall time. The suite
// sets it forward and back, and an engine must notice it within a minute. After a key has spent in a window, it
// stays in the window until the next one begins on the wall clock. Without a Clock the suite leaves calendars out.
//
// # Units in use
//
// An engine may refuse [ratelimit.Concurrent] limits with ErrInvalidLimit, or by Config.Accepts. If it supports them, it
// passes [ratelimit.NewReservation] a function to extend units; Take returns an error, and Allow false. The suite compares
// Reserve, Settle, Cancel, Extend and lapsing units with a counter. If the engine does not support them, [Run] skips their
// subtest, with the reason. If it must, add Concurrent to Config.Want. To leave them out, add it to Config.Skip.
//
// # Engines that do I/O
//
// A call may fail with [ratelimit.ErrUnavailable] if it allows nothing, has no RetryAfter, and has charged
// either its whole cost or nothing. A denial is not such a failure. With Config.Retries the suite repeats
// such calls. An engine that fails ten times in a row fails the run. A Wait cancelled while it books may
// fail with [ratelimit.ErrUnanswered]. With Config.NewPair the suite tests two clients of one store.
//
// Reserve's context applies to that call only. Settle and Cancel have no context. They must work after Reserve's context has
// ended, within the engine's own timeout. The suite ends each Reserve's context before it settles. Settle on a token bucket
// must count as if the real cost had been charged at the beginning. When SetLimit lowers a limit, at most the new capacity,
// and debts, may count as spent. The rest counts again if the limit is raised before the old one would have regained it.
//
// # Method
//
// The suite makes its calls at each promised instant and one unit of time
// before it. It compares all figures with a model's in big integers.
//
// It does not test recovery from a lost connection, nor how many goroutines and how much memory an engine uses.
package ratelimittest
