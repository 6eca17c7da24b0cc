package turns_test

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/weir-go/ratelimit"
	"github.com/weir-go/ratelimit/internal/outcome"
	"github.com/weir-go/ratelimit/internal/turns"
)

// remote is a limiter in a store, half a round trip away from each process.
type remote struct {
	limiter *ratelimit.Keyed[string]
	trip    time.Duration
	trips   atomic.Int64
	fails   atomic.Bool // giving a booking back fails
}

func newRemote(limit ratelimit.Limit, trip time.Duration) *remote {
	return &remote{limiter: ratelimit.Must(ratelimit.New[string](limit, nil)), trip: trip}
}

var errUnsettled = errors.New("the booking stays")

func (r *remote) half() { time.Sleep(r.trip / 2) }

// wait waits like a caller of the process.
func (r *remote) wait(ctx context.Context, process *turns.Lines[string], cost int) error {
	_, err := outcome.InLine(ctx, process, "k", cost, func(q turns.Request) (outcome.Made, error) {
		r.trips.Add(1)
		r.half()
		res, err := r.limiter.Reserve(context.Background(), "k", q.Cost, q.Ahead)
		r.half()
		made := outcome.Made{Decision: res.Decision}
		if err == nil {
			made.Settle = func(actual int) error {
				r.trips.Add(1)
				r.half()
				defer r.half()
				if r.fails.Load() {
					return errUnsettled
				}
				return res.Settle(actual)
			}
		}
		return made, err
	})
	return err
}

func (r *remote) peek(t *testing.T) ratelimit.Decision {
	d, err := r.limiter.Peek(context.Background(), "k", 1)
	require.NoError(t, err)
	return d
}

// changed makes one process change the limit.
func (r *remote) changed(t *testing.T, process *turns.Lines[string], limit ratelimit.Limit) {
	require.NoError(t, r.limiter.SetLimit(limit))
	process.Changed(func(string) bool { return true })
}

func TestTheRateIsServedWhicheverCallersLeave(t *testing.T) {
	for _, rate := range []int{20, 300} {
		for _, processes := range []int{1, 5} {
			for _, trip := range []time.Duration{0, 20 * time.Millisecond, 200 * time.Millisecond} {
				for _, most := range []int{1, 8} { // the largest cost
					t.Run(fmt.Sprintf("%d a second/%d processes/%v/costs to %d", rate, processes, trip, most), func(t *testing.T) {
						synctest.Test(t, func(t *testing.T) { ratesOf(t, rate, processes, trip, most) })
					})
				}
			}
		}
	}
}

func ratesOf(t *testing.T, rate, processes int, trip time.Duration, most int) {
	r := newRemote(ratelimit.TokenBucket(ratelimit.PerSecond(rate), max(10, rate/10)), trip)
	lines := make([]turns.Lines[string], processes)
	rng := rand.New(rand.NewPCG(1, 1))
	begin := time.Now().Add(5 * time.Second)
	end := begin.Add(20 * time.Second)
	var served, units atomic.Int64
	var wg sync.WaitGroup
	for time.Now().Before(end) {
		process, cost, patience := &lines[rng.IntN(processes)], 1+rng.IntN(most), time.Duration(rng.Int64N(int64(3*time.Second)))
		wg.Go(func() {
			ctx, cancel := context.WithCancel(context.Background())
			defer cancel()
			defer time.AfterFunc(patience, cancel).Stop()
			if r.wait(ctx, process, cost) != nil {
				return
			}
			served.Add(1)
			if now := time.Now(); !now.Before(begin) && now.Before(end) {
				units.Add(int64(cost))
			}
		})
		time.Sleep(time.Duration(rng.ExpFloat64() * float64(time.Second) / float64(rate) / 3 * float64(1+most) / 2))
	}
	wg.Wait()
	used := float64(units.Load()) / 20 / float64(rate)
	t.Logf("%.1f %% used, %.2f round trips for each caller that was served", 100*used, float64(r.trips.Load())/float64(served.Load()))
	least := .95
	if trip > 100*time.Millisecond && most > 1 && processes > 1 && rate/processes < 10 {
		// Each line has one or two callers. If one of them gives a booking back, a gap stays before other processes'
		// bookings, because these keep their instants. This limiter books behind them: see [turns.Request].
		least = .8
	}
	require.GreaterOrEqual(t, used, least)
	require.LessOrEqual(t, used, 1.03)
	time.Sleep(time.Second)
	require.True(t, r.peek(t).Allowed, "nothing stays booked")
}

func TestACallerThatNeedNotWaitTakesOneRoundTrip(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRemote(ratelimit.TokenBucket(ratelimit.PerSecond(1000), 1000), 20*time.Millisecond)
		var process turns.Lines[string]
		var wg sync.WaitGroup
		begin := time.Now()
		for range 500 {
			wg.Go(func() { require.NoError(t, r.wait(t.Context(), &process, 1)) })
		}
		wg.Wait()
		require.Equal(t, int64(500), r.trips.Load())
		require.LessOrEqual(t, time.Since(begin), 40*time.Millisecond, "once the first has been answered, all others go together")
		r.trips.Store(0)
		begin = time.Now()
		require.NoError(t, r.wait(t.Context(), &process, 1))
		require.Equal(t, 20*time.Millisecond, time.Since(begin))
		require.Equal(t, int64(1), r.trips.Load())
	})
}

// The store has a few bookings for each process, none farther ahead than the horizon.
func TestALongLineHasFewBookings(t *testing.T) {
	for _, rate := range []int{1, 20, 1000} {
		for _, trip := range []time.Duration{time.Millisecond, 100 * time.Millisecond} {
			synctest.Test(t, func(t *testing.T) {
				r := newRemote(ratelimit.TokenBucket(ratelimit.PerSecond(rate), 1), trip)
				var process turns.Lines[string]
				ctx, leave := context.WithCancel(t.Context())
				defer leave()
				var wg sync.WaitGroup
				for range 600 {
					wg.Go(func() { _ = r.wait(ctx, &process, 1) })
				}
				for range 100 {
					time.Sleep(time.Duration(rand.Int64N(int64(50 * time.Millisecond))))
					d := r.peek(t)
					require.LessOrEqual(t, d.RetryAfter, turns.Horizon+4*time.Second/time.Duration(rate), "a killed process bars nobody longer")
					require.LessOrEqual(t, d.Debt, 16)
				}
				leave()
				wg.Wait()
			})
		}
	}
}

func TestALineIsServedInItsOrder(t *testing.T) {
	for _, limit := range []ratelimit.Limit{ratelimit.TokenBucket(ratelimit.PerSecond(20), 10), ratelimit.FixedWindow(ratelimit.PerSecond(20)),
		ratelimit.SlidingLog(ratelimit.PerSecond(20)), ratelimit.SlidingCounter(ratelimit.PerSecond(20)), ratelimit.LeakyBucket(ratelimit.PerSecond(20), 200)} {
		synctest.Test(t, func(t *testing.T) {
			r := newRemote(limit, 3*time.Millisecond)
			var process turns.Lines[string]
			var mu sync.Mutex
			var order []int
			var wg sync.WaitGroup
			for i := range 200 {
				wg.Go(func() {
					require.NoError(t, r.wait(t.Context(), &process, 1+i%7))
					mu.Lock()
					defer mu.Unlock()
					order = append(order, i)
				})
				synctest.Wait()
			}
			wg.Wait()
			late := 0
			for i, n := range order {
				late = max(late, slices.Max(order[:i+1])-n)
			}
			require.LessOrEqual(t, late, 16, "bookings of one instant return in any order: %v", order)
		})
	}
}

// When there is more room, the waiting callers call one after the
// other: two concurrent calls could be answered in another order.
func TestALineThatMovesUpKeepsItsOrder(t *testing.T) {
	for range 30 {
		synctest.Test(t, func(t *testing.T) {
			r := newRemote(second(1, 10), 20*time.Millisecond)
			spent, err := r.limiter.Reserve(t.Context(), "k", 10, 0)
			require.NoError(t, err)
			var process turns.Lines[string]
			var mu sync.Mutex
			var order []int
			var wg sync.WaitGroup
			for _, cost := range []int{3, 4} {
				wg.Go(func() {
					assert.NoError(t, r.wait(t.Context(), &process, cost))
					mu.Lock()
					defer mu.Unlock()
					order = append(order, cost)
				})
				time.Sleep(100 * time.Millisecond)
			}
			require.NoError(t, spent.Settle(6))
			process.Moved("k")
			wg.Wait()
			require.Equal(t, []int{3, 4}, order)
		})
	}
}

func TestALineFollowsALimitThatChanges(t *testing.T) {
	for _, trip := range []time.Duration{0, 20 * time.Millisecond, 200 * time.Millisecond} {
		line := func(t *testing.T, rate, waiters int, then func(r *remote, process *turns.Lines[string])) (served []time.Duration, errs []error) {
			synctest.Test(t, func(t *testing.T) {
				r := newRemote(ratelimit.TokenBucket(ratelimit.PerSecond(rate), 1), trip)
				var process turns.Lines[string]
				var mu sync.Mutex
				var wg sync.WaitGroup
				var changed time.Time
				for range waiters {
					wg.Go(func() {
						err := r.wait(t.Context(), &process, 1)
						mu.Lock()
						defer mu.Unlock()
						if err != nil {
							errs = append(errs, err)
						} else if !changed.IsZero() {
							served = append(served, time.Since(changed))
						}
					})
				}
				time.Sleep(1100 * time.Millisecond)
				mu.Lock()
				changed = time.Now()
				mu.Unlock()
				then(r, &process)
				wg.Wait()
			})
			return served, errs
		}
		t.Run(fmt.Sprint("raised/", trip), func(t *testing.T) {
			served, errs := line(t, 1, 300, func(r *remote, p *turns.Lines[string]) {
				r.changed(t, p, ratelimit.TokenBucket(ratelimit.PerSecond(50), 10))
			})
			require.Empty(t, errs)
			require.Less(t, slices.Max(served), 7*time.Second+4*trip)
		})
		t.Run(fmt.Sprint("unlimited/", trip), func(t *testing.T) {
			served, errs := line(t, 1, 300, func(r *remote, p *turns.Lines[string]) { r.changed(t, p, ratelimit.Unlimited()) })
			require.Empty(t, errs)
			require.LessOrEqual(t, slices.Max(served), 4*trip)
		})
		t.Run(fmt.Sprint("blocked/", trip), func(t *testing.T) {
			served, errs := line(t, 20, 300, func(r *remote, p *turns.Lines[string]) { r.changed(t, p, ratelimit.Blocked()) })
			require.Greater(t, len(errs), 270)
			require.LessOrEqual(t, len(served), 1+int(trip/(50*time.Millisecond)), "those whose time came while their bookings were given back")
			for _, err := range errs {
				require.ErrorIs(t, err, ratelimit.ErrBlocked)
			}
		})
		t.Run(fmt.Sprint("lowered/", trip), func(t *testing.T) {
			served, _ := line(t, 100, 400, func(r *remote, p *turns.Lines[string]) {
				r.changed(t, p, ratelimit.TokenBucket(ratelimit.PerSecond(10), 1))
			})
			slices.Sort(served)
			require.LessOrEqual(t, served[0], 2*trip+turns.Horizon, "nothing stalls")
			in := slices.IndexFunc(served, func(d time.Duration) bool { return d > 10*time.Second })
			require.InDelta(t, 100, in, 20, "it brakes")
		})
		t.Run(fmt.Sprint("granted/", trip), func(t *testing.T) {
			served, errs := line(t, 1, 60, func(r *remote, p *turns.Lines[string]) {
				require.NoError(t, r.limiter.Adjust(context.Background(), "k", -1))
				require.NoError(t, r.limiter.SetLimit(ratelimit.TokenBucket(ratelimit.PerSecond(1), 50)))
				p.Changed(func(string) bool { return true })
				require.NoError(t, r.limiter.Adjust(context.Background(), "k", -50))
				p.Moved("k")
			})
			require.Empty(t, errs)
			slices.Sort(served)
			require.LessOrEqual(t, served[40], turns.Horizon+6*trip)
		})
	}
}

func TestCallersThatAllLeaveGiveEverythingBackBeforeTheLastReturns(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRemote(ratelimit.TokenBucket(ratelimit.PerHour(1), 1), time.Millisecond)
		var process turns.Lines[string]
		ctx, leave := context.WithCancel(t.Context())
		defer leave()
		var wg sync.WaitGroup
		require.NoError(t, r.wait(t.Context(), &process, 1))
		for range 200 {
			wg.Go(func() { _ = r.wait(ctx, &process, 1) })
		}
		time.Sleep(time.Second)
		leave()
		wg.Wait()
		require.LessOrEqual(t, r.peek(t).RetryAfter, time.Hour, "only the first one's cost is spent")
	})
}

func TestABookingThatCannotBeGivenBackIsInTheError(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRemote(ratelimit.TokenBucket(ratelimit.PerSecond(1), 1), time.Millisecond)
		var process turns.Lines[string]
		require.NoError(t, r.wait(t.Context(), &process, 1))
		r.fails.Store(true)
		ctx, leave := context.WithCancel(t.Context())
		defer leave()
		time.AfterFunc(time.Second/2, leave)
		err := r.wait(ctx, &process, 1)
		require.ErrorIs(t, err, context.Canceled)
		require.ErrorIs(t, err, errUnsettled)
	})
}

func TestAContextThatEndsAtTheInstantOfTheTurnWasInTime(t *testing.T) {
	for range 50 { // select chooses one of two ready cases at random
		synctest.Test(t, func(t *testing.T) {
			r := newRemote(ratelimit.TokenBucket(ratelimit.PerSecond(1), 1), time.Millisecond)
			var process turns.Lines[string]
			require.NoError(t, r.wait(t.Context(), &process, 1))
			ctx, leave := context.WithCancel(t.Context())
			time.AfterFunc(time.Second, leave)
			require.NoError(t, r.wait(ctx, &process, 1))
		})
	}
}

func TestALineThatIsTooLongForTheDeadlineRefusesAtOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRemote(ratelimit.TokenBucket(ratelimit.PerSecond(10), 1), 10*time.Millisecond)
		var process turns.Lines[string]
		all, leave := context.WithCancel(t.Context())
		defer leave()
		for range 100 {
			go func() { _ = r.wait(all, &process, 1) }()
		}
		time.Sleep(time.Second)
		trips, begin := r.trips.Load(), time.Now()
		ctx, cancel := context.WithTimeout(t.Context(), 8*time.Second)
		defer cancel()
		require.ErrorIs(t, r.wait(ctx, &process, 1), context.DeadlineExceeded)
		require.Equal(t, begin, time.Now())
		require.Equal(t, trips, r.trips.Load())
		in := process.Expected("k", 1)
		require.InDelta(t, 9*time.Second, in, float64(200*time.Millisecond))
		ctx, cancel = context.WithTimeout(t.Context(), in+time.Second)
		defer cancel()
		require.NoError(t, r.wait(ctx, &process, 1))
		leave()
	})
}

func TestWaitersLeaveALongLineInConstantTime(t *testing.T) {
	const waiters = 20_000
	r := newRemote(ratelimit.TokenBucket(ratelimit.PerHour(1), 1), 0)
	var process turns.Lines[string]
	require.NoError(t, r.wait(t.Context(), &process, 1))
	ctx, leave := context.WithCancel(t.Context())
	var wg sync.WaitGroup
	for range waiters {
		wg.Go(func() { _ = r.wait(ctx, &process, 1) })
	}
	leave()
	wg.Wait() // with a search of the line this would take minutes
	require.Zero(t, process.Expected("k", 1))
}

func TestProcessesTakeTurns(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRemote(ratelimit.TokenBucket(ratelimit.PerSecond(100), 1), 2*time.Millisecond)
		var lines [2]turns.Lines[string]
		var served [2]atomic.Int64
		ctx, leave := context.WithCancel(t.Context())
		var wg sync.WaitGroup
		for i, callers := range []int{100, 10} {
			for range callers {
				wg.Go(func() {
					for r.wait(ctx, &lines[i], 1) == nil {
						served[i].Add(1)
					}
				})
			}
		}
		time.Sleep(20 * time.Second)
		leave()
		wg.Wait()
		require.InDelta(t, 2000, served[0].Load()+served[1].Load(), 40)
		require.InDelta(t, 1, float64(served[0].Load())/float64(served[1].Load()), .3, "of %d and %d", served[0].Load(), served[1].Load())
	})
}

// stub is a store. It returns a test's answers in order, and records the requests.
type stub struct {
	pace    turns.Pace
	answers []turns.Answer[string]

	mu       sync.Mutex // guards the fields below
	requests []turns.Request
	back     map[int64]int // the remaining cost of each booking given back, by the booking's instant
}

func (s *stub) call(q turns.Request) (turns.Answer[string], error) {
	s.mu.Lock()
	a := s.answers[len(s.requests)]
	s.requests = append(s.requests, q)
	s.mu.Unlock()
	a.Pace = s.pace
	a.Settle = func(actual int) error {
		s.mu.Lock()
		defer s.mu.Unlock()
		s.back[a.At] = actual
		return nil
	}
	time.Sleep(20 * time.Millisecond)
	return a, nil
}

// comes starts a caller. It leaves if it is not served within its patience.
func (s *stub) comes(line *turns.Lines[string], cost int, patience time.Duration) <-chan error {
	done := make(chan error, 1)
	go func() {
		ctx, leave := context.WithCancel(context.Background())
		defer leave()
		defer time.AfterFunc(patience, leave).Stop()
		done <- line.Wait(ctx, "k", cost, s.call)
	}()
	synctest.Wait()
	return done
}

// received returns the requests so far.
func (s *stub) received() []turns.Request {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.Clone(s.requests)
}

// returned returns the remaining cost of the booking at an instant, and whether the booking was given back.
func (s *stub) returned(at int64) (left int, ok bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	left, ok = s.back[at]
	return left, ok
}

func bookedAt(at int64, delay time.Duration) turns.Answer[string] {
	return turns.Answer[string]{Allowed: true, At: at, Delay: delay}
}

// Bookings of one process keep their order. So a call books before others only
// if the process knows the instants of its own bookings, and then behind these.
func TestACallGoesBeforeBookingsOfOtherProcessesAlone(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := &stub{pace: turns.Pace{Units: 20, Per: time.Second}, answers: []turns.Answer[string]{bookedAt(5, 50*time.Millisecond), bookedAt(9, 40*time.Millisecond), bookedAt(7, 0)}}
		var line turns.Lines[string]
		first, second := s.comes(&line, 1, time.Minute), s.comes(&line, 1, time.Minute)
		time.Sleep(10 * time.Millisecond)
		requests := s.received()
		require.Len(t, requests, 2)
		require.Equal(t, turns.Request{Cost: 1, Ahead: requests[0].Ahead, Between: true}, requests[0])
		require.Equal(t, turns.Request{Cost: 1, Ahead: turns.Horizon}, requests[1])
		time.Sleep(30 * time.Millisecond)
		third := s.comes(&line, 1, time.Minute)
		require.NoError(t, <-first)
		require.NoError(t, <-second)
		require.NoError(t, <-third)
		require.Equal(t, turns.Request{Cost: 1, Ahead: turns.Horizon, Between: true, After: 9}, s.received()[2])
	})
}

// The longer a booking has been due, the less of it a bucket takes back. So units
// already due stay a second for the next caller: they would soon be worth nothing.
func TestWhatIsDueStaysForTheNextCaller(t *testing.T) {
	for _, c := range []struct {
		name  string
		pace  turns.Pace
		next  time.Duration // the time until another caller comes
		cost  int           // its call's cost
		stays bool
	}{
		{"soon", turns.Pace{Units: 20, Per: time.Second}, 100 * time.Millisecond, 1, true},
		{"late", turns.Pace{Units: 20, Per: time.Second}, 3 * time.Second, 4, true},
		{"slow", turns.Pace{Units: 2, Per: time.Second}, 100 * time.Millisecond, 4, false},
		{"hardly late", turns.Pace{Units: 5, Per: time.Second}, 100 * time.Millisecond, 4, false},
		{"windows", turns.Pace{Units: 20, Per: time.Second, AtOnce: true}, 100 * time.Millisecond, 4, false},
	} {
		t.Run(c.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				s := &stub{pace: c.pace, back: map[int64]int{}, answers: []turns.Answer[string]{bookedAt(1, 300*time.Millisecond), bookedAt(2, 900*time.Millisecond), bookedAt(3, 0)}}
				var line turns.Lines[string]
				first := s.comes(&line, 3, 200*time.Millisecond)
				time.Sleep(100 * time.Millisecond)
				second := s.comes(&line, 5, 400*time.Millisecond) // it takes the first one's units, and books the rest
				require.ErrorIs(t, <-first, context.Canceled)
				require.ErrorIs(t, <-second, context.Canceled)
				time.Sleep(50 * time.Millisecond)
				require.Equal(t, 2, s.received()[1].Cost)
				left, back := s.returned(1)
				require.Equal(t, !c.stays, back, "of what is due %d is left", left)
				_, early := s.returned(2)
				require.True(t, early, "what is not due goes back")
				time.Sleep(c.next)
				require.NoError(t, <-s.comes(&line, 4, time.Minute))
				require.Equal(t, c.cost, s.received()[2].Cost)
				_, back = s.returned(1)
				require.Equal(t, !c.stays, back, "there is nothing to give back after a second")
			})
		})
	}
}

// If a caller leaves during its call, it does not wait for the answer.
// The next caller takes the call's booking, or the booking goes back.
func TestTheNextCallerTakesWhatTheCallOfALeaverBooks(t *testing.T) {
	for _, c := range []struct {
		name   string
		answer turns.Answer[string]
		err    error
		stays  bool // the second caller
		calls  int
	}{
		{"booked", bookedAt(1, 50*time.Millisecond), nil, true, 2},
		{"nobody waits", bookedAt(1, 50*time.Millisecond), nil, false, 2},
		{"denied", turns.Answer[string]{Retry: 30 * time.Millisecond}, nil, true, 3},
		{"failed", turns.Answer[string]{}, errUnsettled, true, 3},
	} {
		t.Run(c.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				s := &stub{pace: turns.Pace{Units: 1, Per: time.Second, AtOnce: true}, back: map[int64]int{}, answers: []turns.Answer[string]{{Retry: 10 * time.Millisecond}, c.answer, bookedAt(2, 0)}}
				var line turns.Lines[string]
				ctx, leave := context.WithCancel(t.Context())
				err := make(chan error, 1)
				go func() {
					err <- line.Wait(ctx, "k", 1, func(q turns.Request) (turns.Answer[string], error) {
						if len(s.received()) == 0 { // after a denial the next callers wait for the answer
							return s.call(q)
						}
						<-ctx.Done()
						return turns.Answer[string]{}, &turns.Unfinished[string]{Err: ctx.Err(), Answer: func() (turns.Answer[string], error) {
							time.Sleep(100 * time.Millisecond)
							a, _ := s.call(q)
							return a, c.err
						}}
					})
				}()
				time.Sleep(60 * time.Millisecond)
				begin, patience := time.Now(), time.Minute
				if !c.stays {
					patience = 10 * time.Millisecond
				}
				second := s.comes(&line, 1, patience)
				leave()
				require.Equal(t, context.Canceled, <-err)
				require.Equal(t, begin, time.Now())
				if served := <-second; c.stays {
					require.NoError(t, served)
				} else {
					require.ErrorIs(t, served, context.Canceled)
				}
				time.Sleep(time.Second)
				require.Len(t, s.received(), c.calls)
				_, back := s.returned(1)
				require.Equal(t, !c.stays, back)
			})
		})
	}
}
