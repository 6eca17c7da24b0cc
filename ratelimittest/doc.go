// Package ratelimittest tests your own implementation of [ratelimit.Limiter], an engine, against the promises
// of this module's limiters: the meaning of every field of a Decision, to the unit of the engine's time, for
// all six algorithms. One test is enough:
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
// The example NewEngine is a complete engine. Begin with Allow and Take. An engine that takes its time from a server
// has no Clock, and gives Advance or TryAdvance instead. Only the suite moves time: limiters under test must not
// share its clock with other tests.
//
// The suite finds methods with and without a context: Peek(key, cost) and Peek(ctx, key, cost),
// Adjust, Reset (with or without an error) and SetLimit likewise. Config.Want makes sure that
// it finds all. The functions of package ratelimit, such as [ratelimit.Peek], find those with a context.
//
// # Promises
//
//  1. RetryAfter is true: if nothing else is spent, the same cost is allowed at RetryAfter, and denied one unit of
//     time before.
//  2. Remaining is true: that cost is allowed at this instant, and one more is denied.
//  3. ResetAfter is true: then the key has its full budget, and one unit
//     of time before it has not. So is NextAfter, if the engine fills it in: then Remaining
//     is above 0, and one unit of time before it is 0.
//  4. A denial charges nothing. Nor do a Peek, a cost of 0 (always allowed, creates no key), a
//     negative cost (ErrNegativeCost), a cost above the capacity (ErrExceedsLimit), a
//     key that is not equal to itself (ErrInvalidKey), and a Wait that fails.
//  5. The bound holds after any reservations and settlements, and for any number of goroutines.
//     Token bucket: at most burst + rate·t over any interval t. Leaky bucket: the same
//     on entry, and work leaves evenly spaced by Delay. Sliding log: at most Units
//     in any window. Fixed window: at most Units per window, which begins with the first
//     spending after the last one's end. Sliding counter: curr + ceil(prev·overlap) + cost
//     is at most Units; windows follow each other until the key is fresh again. Calendar: at most
//     Units in each window of the Period, even if the wall clock is set.
//  6. Exact in integers: a greedy caller gets burst + floor(rate·t), for all figures.
//     New refuses an invalid limit with ErrInvalidLimit.
//  7. Time: a decision reads the clock once, unless its limit is a calendar. A reading below the highest that the key
//     has seen counts as that highest; RetryAfter and ResetAfter include the gap.
//     Readings may be negative. A Peek and a Sweep record nothing.
//  8. Saturation: debt is regained as the algorithm regains, at the rate or as its windows
//     pass. It is capped at 100 years; nothing wraps around.
//
// Each key has its own budget (also the empty key), a Decision names its limit, and no call panics.
//
// The suite also tests these methods, if the limiter has them, by the documentation of [ratelimit.Keyed]: Peek,
// Wait, Adjust, Reset, SetLimit, Sweep, Join (of a [ratelimit.Joinable]), Reserve with Settle and Cancel, and Len,
// the number of tracked keys, which is Len() int or the Keys of Stats(). A Wait books its place and then sleeps,
// in real time. If an engine's Wait retries instead, as [ratelimit.Layered.Wait] does, name Wait in Config.Skip.
//
// An engine may refuse a booking so far ahead that it and the capacity together take
// more than 100 years to regain. Under a calendar it may refuse one after the beginning of the next window.
//
// # Calendars
//
// An engine may refuse calendars with ErrInvalidLimit, or by Config.Accepts. [Run] then skips their subtest, with the
// reason. If the engine must accept them, name Calendar in Config.Want. To leave them out, name it in Config.Skip.
//
// Windows follow the wall time of Config.Clock, [Clock.Wall]. Each history sets it to some date: near the end of a
// window, or near an instant at which the zone's clocks change. An engine with one time for all, such as
// a server's, reads it there. Set and Advance move both times, SetWall the wall time alone: the suite sets it
// forward and back, and an engine has a minute to notice. A key that has spent in a
// window stays in it until the next one begins on the wall clock. Without a Clock the suite leaves calendars out.
//
// # Units in use
//
// An engine may refuse limits of [ratelimit.Concurrent] with ErrInvalidLimit, or by Config.Accepts. If it counts them, it gives
// [ratelimit.NewReservation] a function that extends them, and Take and Allow return an error. The suite compares Reserve, Settle, Cancel, Extend
// and the lapse of units with a counter. [Run] skips their subtest, with the reason, if the engine does not count them. If it must, name
// Concurrent in Config.Want. To leave them out, name it in Config.Skip.
//
// # Engines that do I/O
//
// A call may fail with [ratelimit.ErrUnavailable], if it allows nothing, has no RetryAfter, and has charged all of
// its cost or nothing. A denial is no such failure. With Config.Retries the suite repeats such calls. An engine that
// fails ten times running fails the run. A Wait that is cancelled while it books may fail with
// [ratelimit.ErrUnanswered]. Config.NewPair tests two clients of one store.
//
// The context of Reserve bounds that call alone. Settle and Cancel have no context: they work
// after Reserve's has ended, within the engine's own timeout. The suite ends the
// context of each Reserve before it settles. Every engine's Settle on a token bucket has to count as if the real cost
// had been charged at the beginning. Under a limit lowered by SetLimit, every engine has to count at most the new capacity as
// spent, and debts. The rest counts again if the limit is raised before the old one would have regained it.
//
// # Method
//
// The suite makes its calls one unit of time before each promised instant and at it, and compares all figures with the figures of a model
// in big integers.
//
// It does not test recovery from a lost connection, or bounds of goroutines and memory.
package ratelimittest
