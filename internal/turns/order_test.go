package turns_test

import (
	"context"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/weir-go/ratelimit"
	"github.com/weir-go/ratelimit/internal/turns"
)

// scripted is a caller. Its calls to a store get a test's answers.
type scripted struct {
	comes, leaves time.Duration // if leaves is above 0, the caller leaves then
	cost          int
	answers       []answer
}

// answer is the answer to one call after a delay.
type answer struct {
	after time.Duration
	turns.Answer[string]
}

func booked(after, delay time.Duration) answer {
	return answer{after, turns.Answer[string]{Allowed: true, Delay: delay}}
}

// scriptedLine holds one line's callers.
type scriptedLine struct {
	lines turns.Lines[string]

	mu     sync.Mutex
	order  []int           // the served callers
	at     []time.Duration // their times
	settle int             // how many calls have given a booking back
}

func (s *scriptedLine) wait(t *testing.T, i int, c scripted) {
	ctx, leave := context.WithCancel(t.Context())
	defer leave()
	if c.leaves > 0 {
		defer time.AfterFunc(c.leaves-c.comes, leave).Stop()
	}
	begin := time.Now().Add(-c.comes)
	calls := 0
	err := s.lines.Wait(ctx, "k", c.cost, func(turns.Request) (turns.Answer[string], error) {
		require.Less(t, calls, len(c.answers), "caller %d calls once more", i)
		a := c.answers[calls]
		calls++
		time.Sleep(a.after)
		if a.Allowed {
			a.Settle = func(int) error {
				time.Sleep(time.Millisecond)
				s.mu.Lock()
				defer s.mu.Unlock()
				s.settle++
				return nil
			}
		}
		return a.Answer, nil
	})
	s.mu.Lock()
	defer s.mu.Unlock()
	if c.leaves > 0 {
		require.ErrorIs(t, err, context.Canceled)
		return
	}
	require.NoError(t, err)
	s.order, s.at = append(s.order, i), append(s.at, time.Since(begin))
}

// play makes the callers wait, and calls do at the given time.
func (s *scriptedLine) play(t *testing.T, callers []scripted, at time.Duration, do func()) {
	var wg sync.WaitGroup
	begin := time.Now()
	for i, c := range callers {
		time.Sleep(c.comes - time.Since(begin))
		wg.Go(func() { s.wait(t, i, c) })
		synctest.Wait()
	}
	if do != nil {
		time.Sleep(at - time.Since(begin))
		do()
	}
	wg.Wait()
	time.Sleep(time.Second) // meanwhile the last booking is given back
}

func TestCallersAreServedInTheirOrderWhateverTheStoreHasBookedFirst(t *testing.T) {
	const ms = time.Millisecond
	denied := answer{20 * ms, turns.Answer[string]{Retry: 500 * ms}}
	for _, c := range []struct {
		name    string
		callers []scripted
		order   []int
		at      []time.Duration
	}{
		{"the calls arrive in another order", []scripted{
			{cost: 1, answers: []answer{booked(20*ms, 800*ms)}},
			{cost: 1, answers: []answer{booked(10*ms, 400*ms)}},
		}, []int{0, 1}, []time.Duration{410 * ms, 820 * ms}},
		{"a large cost is booked behind a small one", []scripted{
			{cost: 4, answers: []answer{booked(20*ms, 800*ms)}},
			{cost: 1, answers: []answer{booked(10*ms, 400*ms)}},
		}, []int{0, 1}, []time.Duration{820 * ms, 820 * ms}},
		{"a large cost is booked far behind a small one, and is due earlier without it", []scripted{
			{cost: 4, answers: []answer{booked(20*ms, 2800*ms), booked(10*ms, 1100*ms)}},
			{cost: 3, answers: []answer{booked(10*ms, 500*ms), booked(10*ms, 900*ms)}},
		}, []int{0, 1}, []time.Duration{1130 * ms, 2020 * ms}},
		{"the first is denied before the next one books", []scripted{
			{cost: 1, answers: []answer{denied}},
			{cost: 1, answers: []answer{booked(40*ms, 400*ms), booked(10*ms, 60*ms)}},
		}, []int{0, 1}, []time.Duration{440 * ms, 590 * ms}},
		{"the first is denied after the next one has booked", []scripted{
			{cost: 1, answers: []answer{denied}},
			{cost: 2, answers: []answer{booked(10*ms, 400*ms), booked(10*ms, 60*ms)}},
		}, []int{0, 1}, []time.Duration{410 * ms, 590 * ms}},
		{"what a leaver had booked goes to the next one", []scripted{
			{cost: 4, leaves: 100 * ms, answers: []answer{booked(10*ms, 500*ms)}},
			{cost: 1, answers: []answer{booked(10*ms, 600*ms)}},
			{cost: 4, comes: 50 * ms},
		}, []int{1, 2}, []time.Duration{510 * ms, 610 * ms}},
		{"what a leaver had booked is too little for the next one", []scripted{
			{cost: 2, leaves: 100 * ms, answers: []answer{booked(10*ms, 300*ms)}},
			{cost: 4, answers: []answer{booked(10*ms, 600*ms)}},
			{cost: 1, comes: 50 * ms},
		}, []int{1, 2}, []time.Duration{610 * ms, 610 * ms}},
	} {
		t.Run(c.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				var line scriptedLine
				line.play(t, c.callers, 0, nil)
				if c.at[0] < c.at[1] { // callers of one instant return in any order
					require.Equal(t, c.order, line.order)
				}
				require.InDeltaSlice(t, c.at, line.at, float64(10*ms))
			})
		})
	}
}

func TestACallThatAChangeFindsUnderWayDoesNotOvertakeThoseThatBookAnew(t *testing.T) {
	const ms = time.Millisecond
	synctest.Test(t, func(t *testing.T) {
		var line scriptedLine
		line.play(t, []scripted{
			{cost: 1, answers: []answer{booked(10*ms, 900*ms), booked(20*ms, 0)}},
			{cost: 1, answers: []answer{booked(30*ms, 0), booked(10*ms, 0)}},
		}, 29*ms, func() { line.lines.Changed(func(string) bool { return true }) })
		require.Equal(t, []int{0, 1}, line.order)
		require.Equal(t, 2, line.settle, "both have given back what was booked before")
	})
}

func TestBookingsThatTheStoreHasForgottenAreMadeAgain(t *testing.T) {
	const ms = time.Millisecond
	in := func(life uint64, a answer) answer {
		a.Life = life
		return a
	}
	synctest.Test(t, func(t *testing.T) {
		var line scriptedLine
		line.play(t, []scripted{
			{cost: 1, answers: []answer{in(1, booked(10*ms, 100*ms))}},
			{cost: 1, comes: 20 * ms, answers: []answer{in(2, booked(2*ms, 0)), in(2, booked(2*ms, 0))}},
		}, 0, nil)
		require.Equal(t, []int{0, 1}, line.order, "the first takes what the next one has booked")
		require.Less(t, line.at[1], 110*ms)
		require.Zero(t, line.settle, "nothing is given back that is another one's now")
	})
	synctest.Test(t, func(t *testing.T) {
		var line scriptedLine
		line.play(t, []scripted{
			{cost: 1, answers: []answer{in(1, booked(10*ms, 100*ms)), in(2, booked(10*ms, 70*ms))}},
			{cost: 1, comes: 20 * ms, answers: []answer{{2 * ms, turns.Answer[string]{Retry: 70 * ms, Life: 2}}, in(2, booked(10*ms, 50*ms))}},
		}, 0, nil)
		require.Equal(t, []int{0, 1}, line.order)
		require.Greater(t, line.at[0], 120*ms, "it is served by its second booking")
	})
}

func TestASmallCostIsServedAtOnceWhenALargeOneBeforeItLeaves(t *testing.T) {
	for _, limit := range []ratelimit.Limit{ratelimit.TokenBucket(ratelimit.PerMinute(6), 6), ratelimit.FixedWindow(ratelimit.PerMinute(6)),
		ratelimit.SlidingLog(ratelimit.PerMinute(6)), ratelimit.SlidingCounter(ratelimit.PerMinute(6))} {
		synctest.Test(t, func(t *testing.T) {
			r := newRemote(limit, time.Millisecond)
			require.True(t, r.limiter.Allow("k", 3))
			var process turns.Lines[string]
			ctx, leave := context.WithCancel(t.Context())
			var wg sync.WaitGroup
			wg.Go(func() { require.ErrorIs(t, r.wait(ctx, &process, 4), context.Canceled) })
			synctest.Wait()
			time.Sleep(5 * time.Millisecond)
			begin := time.Now()
			wg.Go(func() {
				require.NoError(t, r.wait(t.Context(), &process, 1))
				require.Equal(t, 7*time.Millisecond, time.Since(begin), "it gives back what the leaver had booked, and books")
			})
			time.Sleep(5 * time.Millisecond)
			leave()
			wg.Wait()
			require.Equal(t, 2, r.peek(t).Remaining)
		})
	}
}

// The callers share one booking, so otherwise they would be let out at the same instant.
func TestCallersOfAQueueThatShareABookingAreLetOutOneAfterTheOther(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRemote(ratelimit.LeakyBucket(ratelimit.PerSecond(10), 100), time.Millisecond)
		require.True(t, r.limiter.Allow("k", 1))
		var process turns.Lines[string]
		ctx, leave := context.WithCancel(t.Context())
		var wg sync.WaitGroup
		begin := time.Now()
		wg.Go(func() { require.ErrorIs(t, r.wait(ctx, &process, 4), context.Canceled) })
		var mu sync.Mutex // guards at
		var at []time.Duration
		for range 2 {
			time.Sleep(10 * time.Millisecond)
			wg.Go(func() {
				require.NoError(t, r.wait(t.Context(), &process, 2))
				mu.Lock()
				defer mu.Unlock()
				at = append(at, time.Since(begin))
			})
		}
		time.Sleep(10 * time.Millisecond)
		leave()
		wg.Wait()
		require.InDeltaSlice(t, []time.Duration{100 * time.Millisecond, 300 * time.Millisecond}, at, float64(3*time.Millisecond))
		require.LessOrEqual(t, r.peek(t).ResetAfter, 200*time.Millisecond)
	})
}

// Otherwise calls would begin the next window although this one still has room for them.
func TestRoomInAWindowServesACallThatHasBookedTheNextOne(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRemote(ratelimit.FixedWindow(ratelimit.PerSecond(4)), time.Millisecond)
		spent, err := r.limiter.Reserve(t.Context(), "k", 4, 0)
		require.NoError(t, err)
		var process turns.Lines[string]
		begin := time.Now()
		var wg sync.WaitGroup
		wg.Go(func() {
			require.NoError(t, r.wait(t.Context(), &process, 2))
			require.Equal(t, 102*time.Millisecond, time.Since(begin))
		})
		time.Sleep(100 * time.Millisecond)
		require.NoError(t, spent.Settle(1))
		process.Moved("k")
		wg.Wait()
	})
}

// Two answers may arrive in another order than the store's decisions. The earlier decision then
// reports more room than is left. A small cost must not use this room to overtake a large one.
func TestAnAnswerThatIsLateMakesNoRoom(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var line turns.Lines[string]
		pace := turns.Pace{Units: 12, Per: time.Minute, AtOnce: true}
		remaining := 12
		var mu sync.Mutex // guards remaining, answers and served
		var served []int
		answers := 0
		comes := func(cost int) {
			go func() {
				err := line.Wait(t.Context(), "k", cost, func(q turns.Request) (turns.Answer[string], error) {
					mu.Lock()
					a := turns.Answer[string]{Pace: pace, Allowed: q.Cost <= remaining}
					if a.Allowed {
						remaining -= q.Cost
					} else if a.Retry = time.Minute; q.Ahead > a.Retry {
						a.Allowed, a.Delay, a.Retry = true, time.Minute, 0
					}
					a.Remaining = remaining
					late := answers == 1 // the second call, decided before the third one
					answers++
					mu.Unlock()
					time.Sleep(time.Millisecond)
					if late {
						time.Sleep(time.Millisecond)
					}
					return a, nil
				})
				mu.Lock()
				defer mu.Unlock()
				if err == nil {
					served = append(served, cost)
				}
			}()
			time.Sleep(100 * time.Microsecond)
		}
		for _, cost := range []int{4, 1, 5, 3, 2} {
			comes(cost)
		}
		time.Sleep(30 * time.Second)
		mu.Lock()
		defer mu.Unlock()
		require.Equal(t, 2, remaining, "the cost of 2 stays behind the one of 3")
		require.ElementsMatch(t, []int{4, 1, 5}, served)
	})
}
