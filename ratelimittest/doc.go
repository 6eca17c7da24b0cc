// Package ratelimittest tests implementations of [ratelimit.Limiter] against the contract
// that the limiters of this module keep: the meaning of every field of a Decision, to
// the unit of the engine's time, for all six algorithms.
//
// It is for whoever writes another engine, on Redis, say. One test is enough:
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
// The example NewEngine is a whole engine, written against the public API alone. Begin with Allow and
// Take; the suite tests whatever else the limiter has, and [Run] logs what it has found.
// An engine that takes its time from a server has no Clock, and gives Advance or TryAdvance
// instead. In either case time stands still, except where the suite moves it. So limiters
// under test must not share the suite's clock with other tests.
//
// Methods are found with and without a context: Peek(key, cost) and Peek(ctx, key, cost),
// Adjust, Reset (with or without an error) and SetLimit likewise. Config.Want makes sure that
// none was missed because of its signature.
//
// # What is promised
//
//  1. RetryAfter is true: if nothing else is spent, the same cost is denied one unit of
//     time before RetryAfter and allowed at it.
//  2. Remaining is true: that cost is allowed at this instant, one more is not.
//  3. ResetAfter is true: then the key has its full budget, and one unit
//     of time before it has not.
//  4. A denial charges nothing. Nor do a Peek, a cost of 0 (always allowed, creates no key), a
//     negative cost (ErrNegativeCost), a cost above the capacity (ErrExceedsLimit), a
//     key that is not equal to itself (ErrInvalidKey), and a Wait that fails.
//  5. The bound holds, whatever is reserved and settled, and for any number of goroutines.
//     Token bucket: at most burst + rate·t over any interval t. Leaky bucket: the same
//     on entry, and what leaves by Delay is spaced evenly. Sliding log: at most Units
//     in any window. Fixed window: at most Units per window, which begins with the first
//     spending after the last one's end. Sliding counter: curr + ceil(prev·overlap) + cost
//     is at most Units; windows follow each other until the key is fresh again. Calendar: at most
//     Units in each window of the Period, whatever becomes of the wall clock.
//  6. Exact in integers: a greedy caller gets burst + floor(rate·t), whatever the figures.
//     New refuses, with ErrInvalidLimit, a limit that makes no sense.
//  7. Time: a decision reads the clock once, unless its limit is a calendar. A reading below the highest that the key
//     has seen counts as that highest; RetryAfter and ResetAfter include the gap.
//     Readings may be negative. A Peek and a Sweep record nothing.
//  8. Saturation: debt is regained as the algorithm regains, at the rate or as its windows
//     pass. It is capped at 100 years; nothing wraps around.
//
// For Reserve, Settle, Wait, SetLimit and Sweep the documentation of [ratelimit.Keyed] is the
// contract. A Wait, for one, books its place and then sleeps, in real time: an engine
// whose Wait asks again and again, as that of [ratelimit.Layered] does, is tried with
// Config.Skip naming it.
//
// Beside these, each key has a budget of its own (the empty key is a key like any other), a
// Decision names its limit, and no call panics. What a limiter has of the following methods, with the signatures of
// [ratelimit.Keyed], is tested too: Peek, Wait, Adjust, Reset, SetLimit, Sweep, Len, and Reserve
// (see [ratelimit.Reserver]) with Settle and Cancel.
//
// A booking may be refused if it lies so far ahead that it and the capacity together take
// more than 100 years to regain, and one of a calendar if it lies beyond the beginning of the next window.
//
// # Calendars
//
// An engine need not count by calendars. If its New refuses them with ErrInvalidLimit, or Config.Accepts
// does, they are left out, and the subtest of [Run] that is skipped says why. Name Calendar in
// Config.Want if the engine counts by them, so that this is a failure, and in Config.Skip if they shall not be
// tried.
//
// Windows go by the wall time of Config.Clock, [Clock.Wall], which each history sets to some date: near the end of a
// window, or near an instant at which the zone's clocks are set. An engine that has one time for all, as
// a server does, reads it there. Set and Advance move both times, and SetWall the wall time alone: the suite sets it
// forward and back, and an engine has a minute to notice. A key that has spent something in a
// window stays in it until the next one begins on the wall. Without a Clock nobody
// knows the wall time, and calendars are left out.
//
// # Engines that do I/O
//
// A call that answers [ratelimit.ErrUnavailable] breaks no promise, as long as it says nothing
// else: it allows nothing and has no RetryAfter, and it has charged all of its cost or nothing.
// A denial is not such an answer, whatever else has failed. Config.Retries tells the suite
// to make such calls again by themselves. An engine that fails ten times in a row
// fails the run. Config.NewPair tests two clients of one store.
//
// The context of Reserve bounds that call alone. Settle and Cancel have no context: they work
// after Reserve's has ended, and are bounded by the engine's own timeout. The suite ends the
// context of each Reserve before it settles.
//
// # How it is tested
//
// The figures are probed: the suite goes to one unit before the instant that was named and
// asks, and asks again at it. They are also compared with those of a plain model, in
// big integers, of what was spent. The limits are random ones and those at which
// limiters have been seen to fail; calls, costs and pauses are random. Every failure
// names the promise, the limit, the calls and answers that led there, and the seed that
// repeats them.
//
// The suite cannot prove what it does not see: that a remote engine recovers from a lost
// connection, or that goroutines and memory stay bounded.
package ratelimittest
