package turns_test

import (
	"context"
	"math"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/weir-go/ratelimit"
	"github.com/weir-go/ratelimit/internal/dev/testsize"
	"github.com/weir-go/ratelimit/internal/meter"
	"github.com/weir-go/ratelimit/internal/outcome"
	"github.com/weir-go/ratelimit/internal/turns"
)

// shop is a store with one key, half a round trip away from each process.
type shop struct {
	trip  time.Duration
	trips atomic.Int64
	fails atomic.Bool // giving a booking back fails
	loses atomic.Bool // the answers to calls that move bookings are lost

	mu      sync.Mutex // guards the fields below
	limit   ratelimit.Limit
	meter   meter.Meter
	state   meter.State
	changes int
	life    uint64
}

const year = 365 * 24 * time.Hour

func meterOf(l ratelimit.Limit) (m meter.Meter) {
	if l.Algorithm != ratelimit.AlgorithmTokenBucket {
		return m
	}
	return meter.New(meter.Limit{Kind: meter.TokenBucket, Units: int64(l.Rate.Units), Per: int64(l.Rate.Per), Burst: int64(l.Burst), Horizon: int64(year), Most: 1 << 40})
}

// visit makes a round trip to the store.
func (s *shop) visit(do func(now int64)) {
	s.trips.Add(1)
	time.Sleep(s.trip / 2)
	defer time.Sleep(s.trip / 2)
	s.mu.Lock()
	defer s.mu.Unlock()
	now := time.Now().UnixNano()
	if s.meter.Counts() {
		s.meter.Advance(&s.state, now)
	}
	do(now)
}

// set changes the limit in the store and in each process.
func (s *shop) set(limit ratelimit.Limit) {
	s.mu.Lock()
	defer s.mu.Unlock()
	now, next := time.Now().UnixNano(), meterOf(limit)
	if s.meter.Counts() && next.Counts() {
		s.meter.Advance(&s.state, now)
		s.state = next.Migrate(&s.meter, s.state, now)
		s.changes++
	}
	if s.limit = limit; next.Counts() {
		s.meter = next
	}
}

func (s *shop) check(cost int) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if cost > s.limit.Capacity() {
		return outcome.Never(outcome.Exceeding(s.limit, int64(cost)))
	}
	return nil
}

// spending is a booking as the store keeps it.
type spending struct {
	meter.Spending
	changes int
	life    uint64
}

// book books in the store.
func (s *shop) book(cost int, ahead time.Duration, instead any) (d outcome.Made, err error) {
	s.visit(func(now int64) {
		if d.Limit, d.Allowed = s.limit, true; s.limit.Algorithm == ratelimit.AlgorithmUnlimited {
			return
		}
		d.Life = s.life + 1
		state, tight := &s.state, false
		if old, moves := instead.(spending); moves {
			if old.life == s.life {
				c, _, err := s.meter.ReadState(s.meter.AppendOpen(nil, s.state, now), now, 0)
				if err != nil {
					panic(err)
				}
				state, old.Changed = &c, old.changes != s.changes
				s.meter.Settle(state, now, old.Spending, 0)
				s.meter.Advance(state, now)
			}
			tight = s.meter.Loosen(state, now)
		}
		o := s.meter.Offer(*state, meter.Moment{Reading: now, Now: now}, int64(cost), int64(min(ahead, year)))
		if d.Allowed = !o.Denied(now); d.Allowed {
			s.state = *state
			s.meter.Accept(&s.state, now, o, int64(cost), meter.Open)
			d.Delay = time.Duration(o.At - now)
			sp := spending{o.Spending(int64(cost)), s.changes, s.life}
			sp.Open = true
			d.Ref, d.Settle = sp, func(actual int) (err error) {
				s.visit(func(now int64) {
					sp.Changed = sp.changes != s.changes
					switch {
					case s.fails.Load():
						err = errUnsettled
					case sp.life == s.life && s.meter.Counts():
						s.meter.Settle(&s.state, now, sp.Spending, int64(actual))
					}
				})
				return err
			}
		}
		d.RetryAfter = time.Duration(o.Retry - now)
		if tight {
			s.meter.Tighten(&s.state)
		}
	})
	if instead != nil && s.loses.Load() {
		err = ratelimit.ErrUnanswered
	}
	return d, err
}

// spent returns the spending and the debt in the store.
func (s *shop) spent() (n, debt int64) {
	s.visit(func(now int64) {
		remaining, owed, _ := s.meter.Standing(s.state, now)
		n, debt = int64(s.limit.Capacity())-remaining, owed
	})
	return n, debt
}

// reserve reserves in one process.
func (s *shop) reserve(t *testing.T, process *turns.Bookings[string], cost int, ahead time.Duration) *ratelimit.Reservation {
	res, err := outcome.Booked(context.Background(), process, "k", cost, ahead, outcome.Booker{
		Book: func(_ context.Context, ahead time.Duration, instead any) (outcome.Made, error) {
			return s.book(cost, ahead, instead)
		},
		Check: func() error { return s.check(cost) },
	})
	require.NoError(t, err)
	require.True(t, res.Allowed)
	return res
}

// reset makes the key fresh.
func (s *shop) reset() {
	s.visit(func(now int64) { s.state, s.life = meter.State{At: now}, s.life+1 })
}

// crew is a group of waiting reservations.
type crew struct {
	*testing.T
	*shop
	ctx      context.Context // the calls' context
	bookings turns.Bookings[string]
	first    *ratelimit.Reservation // the earlier spending
	all      []*ratelimit.Reservation
	wg       sync.WaitGroup

	mu     sync.Mutex // guards the fields below
	begin  time.Time
	served []int
	at     []time.Duration
	errs   []error
}

// comes adds reservations. They begin to wait.
func (c *crew) comes(ctx context.Context, n, cost int) {
	trip := c.trip
	defer func() { c.trip = trip }()
	c.trip = 0 // they come at the same time
	for range n {
		i, r := len(c.all), c.reserve(c.T, &c.bookings, cost, math.MaxInt64)
		c.all = append(c.all, r)
		c.wg.Go(func() {
			err := r.Wait(ctx)
			c.mu.Lock()
			defer c.mu.Unlock()
			if err != nil {
				c.errs = append(c.errs, err)
				return
			}
			c.served, c.at = append(c.served, i), append(c.at, time.Since(c.begin))
		})
	}
	synctest.Wait()
}

// change changes the limit, in this process or in another one, and restarts the time.
func (c *crew) change(limit ratelimit.Limit, here bool) {
	c.set(limit)
	if c.restart(); here {
		c.bookings.Changed()
	}
}

// restart makes the time count from now.
func (c *crew) restart() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.begin = time.Now()
}

// requireFailed checks that n calls have failed, all with the given error.
func (c *crew) requireFailed(n int, target error) {
	c.Helper()
	synctest.Wait()
	c.mu.Lock()
	defer c.mu.Unlock()
	require.Len(c, c.errs, n)
	for _, err := range c.errs {
		require.ErrorIs(c, err, target)
	}
}

// requireServed checks that n calls were served in order since the last check, and when the last one was served.
func (c *crew) requireServed(n int, last time.Duration) {
	c.Helper()
	synctest.Wait()
	c.mu.Lock()
	defer c.mu.Unlock()
	require.Len(c, c.served, n)
	for i := range c.served {
		for j := range i {
			require.True(c, c.served[j] < c.served[i] || c.at[j] == c.at[i], "%v at %v", c.served, c.at)
		}
	}
	if n > 0 {
		require.InDelta(c, last.Seconds(), c.at[n-1].Seconds(), .05)
	}
	c.served, c.at = nil, nil
}

func second(n, burst int) ratelimit.Limit {
	return ratelimit.TokenBucket(ratelimit.PerSecond(n), burst)
}

func TestReservationsThatWaitMoveUp(t *testing.T) {
	for _, c := range []struct {
		name  string
		limit ratelimit.Limit
		test  func(c *crew)
	}{
		{"a raise", second(1, 1), func(c *crew) {
			c.comes(c.ctx, 100, 1)
			c.change(second(100, 1), true)
			time.Sleep(2 * time.Second)
			c.requireServed(100, time.Second)
		}},
		{"another process's raise", second(1, 1), func(c *crew) {
			c.comes(c.ctx, 100, 1)
			c.change(second(100, 1), false)
			time.Sleep(3 * time.Second)
			c.requireServed(100, 2*time.Second)
		}},
		{"a brake", second(100, 1), func(c *crew) {
			c.comes(c.ctx, 120, 1)
			c.change(second(10, 1), true)
			time.Sleep(2 * time.Second)
			c.requireServed(120, 1200*time.Millisecond)
		}},
		{"a blocked key", second(1, 1), func(c *crew) {
			c.comes(c.ctx, 20, 1)
			c.change(ratelimit.Blocked(), true)
			c.wg.Wait()
			require.Zero(c, time.Since(c.begin)-c.trip)
			c.requireFailed(20, ratelimit.ErrBlocked)
		}},
		{"no limit", second(1, 1), func(c *crew) {
			c.comes(c.ctx, 20, 1)
			c.change(ratelimit.Unlimited(), true)
			time.Sleep(time.Second)
			c.requireServed(20, 0)
			c.change(second(1, 1), true)
			require.Zero(c, first(c.spent()), "nothing stays booked")
		}},
		{"a limit below a cost", second(1, 10), func(c *crew) {
			c.comes(c.ctx, 1, 5)
			c.comes(c.ctx, 1, 10)
			c.comes(c.ctx, 1, 5)
			c.change(second(1, 9), true)
			time.Sleep(c.trip + time.Second)
			c.requireFailed(1, ratelimit.ErrExceedsLimit)
		}},
		{"a grant", second(1, 10), func(c *crew) {
			c.comes(c.ctx, 20, 1)
			c.visit(func(now int64) { c.meter.Adjust(&c.state, now, -5) })
			c.restart()
			c.bookings.Moved("k")
			time.Sleep(500 * time.Millisecond)
			c.requireServed(5, 0)
			time.Sleep(20 * time.Second)
			c.requireServed(15, 15*time.Second)
		}},
		{"a reset", second(1, 10), func(c *crew) {
			c.comes(c.ctx, 20, 1)
			c.reset()
			c.restart()
			c.bookings.Moved("k")
			time.Sleep(500 * time.Millisecond)
			c.requireServed(10, 0)
			time.Sleep(9600 * time.Millisecond)
			c.requireServed(10, 10*time.Second)
			spent, debt := c.spent()
			require.Equal(c, int64(10), spent)
			require.Zero(c, debt)
		}},
		{"another process's reset", ratelimit.TokenBucket(ratelimit.PerMinute(30), 10), func(c *crew) {
			c.comes(c.ctx, 20, 1)
			c.restart()
			c.reset()
			time.Sleep(1100 * time.Millisecond)
			c.requireServed(10, time.Second)
			time.Sleep(20 * time.Second)
			c.requireServed(10, 21*time.Second)
			spent, debt := c.spent()
			require.Equal(c, int64(10), spent, "each is charged once")
			require.Zero(c, debt)
		}},
		{"another process's reset that a newcomer finds", second(1, 10), func(c *crew) {
			c.comes(c.ctx, 20, 1)
			c.restart()
			c.reset()
			c.reserve(c.T, &c.bookings, 2, 0)
			time.Sleep(500 * time.Millisecond)
			c.requireServed(8, 0)
		}},
		{"another process's reset, and newcomers there", ratelimit.TokenBucket(ratelimit.PerMinute(30), 10), func(c *crew) {
			c.comes(c.ctx, 20, 1)
			c.restart()
			c.reset()
			var there turns.Bookings[string]
			c.reserve(c.T, &there, 10, 0)
			c.reserve(c.T, &there, 5, 10*time.Second)
			time.Sleep(51 * time.Second)
			c.requireServed(20, 50*time.Second) // by then 35 units were served: 10 and 5 in the other process, 20 in this one
			_, debt := c.spent()
			require.Zero(c, debt)
		}},
		{"a lost answer", second(1, 10), func(c *crew) {
			gone, leave := context.WithCancel(c.ctx)
			c.comes(gone, 1, 2)
			c.visit(func(now int64) { c.meter.Adjust(&c.state, now, 2) }) // the store gets a new debt at the booking's instant
			c.loses.Store(true)
			require.NoError(c, c.first.Settle(9))
			time.Sleep(100 * time.Millisecond)
			c.loses.Store(false)
			_, debt := c.spent()
			leave()
			time.Sleep(time.Millisecond)
			c.requireFailed(1, context.Canceled)
			_, after := c.spent()
			require.Equal(c, debt, after, "what may be gone returns nothing")
		}},
		{"leavers", second(1, 1), func(c *crew) {
			gone, leave := context.WithCancel(c.ctx)
			c.comes(gone, 5, 1)
			c.comes(c.ctx, 10, 1)
			c.restart()
			before := c.trips.Load()
			leave()
			time.Sleep(500 * time.Millisecond)
			require.Equal(c, int64(5), c.trips.Load()-before, "a call for each of them")
			c.requireFailed(5, context.Canceled)
			time.Sleep(20 * time.Second)
			c.requireServed(10, 10*time.Second)
		}},
		{"leavers of other costs", second(1, 5), func(c *crew) {
			gone, leave := context.WithCancel(c.ctx)
			c.comes(gone, 5, 5)
			c.comes(c.ctx, 10, 1)
			c.restart()
			leave()
			time.Sleep(time.Minute)
			c.requireServed(10, 10*time.Second)
		}},
		{"a settlement", second(1, 10), func(c *crew) {
			c.comes(c.ctx, 10, 1)
			c.restart()
			before := c.trips.Load()
			require.NoError(c, c.first.Settle(4)) // 6 of the 10 units come back
			time.Sleep(500 * time.Millisecond)
			c.requireServed(6, 0)
			require.Equal(c, int64(1+10), c.trips.Load()-before, "a call for each of them")
			require.NoError(c, c.all[0].Settle(0)) // its units come back later, because nothing was left at its instant
			time.Sleep(10 * time.Second)
			c.requireServed(4, 3*time.Second)
		}},
		{"a settlement of less than a cost", second(1, 10), func(c *crew) {
			c.comes(c.ctx, 10, 2)
			c.restart()
			before := c.trips.Load()
			require.NoError(c, c.first.Settle(9))
			time.Sleep(100 * time.Millisecond)
			require.LessOrEqual(c, c.trips.Load()-before, int64(5), "the first two move")
			time.Sleep(time.Second)
			c.requireServed(1, time.Second)
		}},
	} {
		for _, trip := range []time.Duration{0, time.Millisecond} {
			t.Run(c.name+"/"+trip.String(), func(t *testing.T) {
				synctest.Test(t, func(t *testing.T) {
					s := &shop{trip: trip, limit: c.limit, meter: meterOf(c.limit), state: meter.State{At: time.Now().UnixNano()}}
					ctx, end := context.WithCancel(t.Context())
					w := &crew{T: t, shop: s, ctx: ctx}
					w.first = s.reserve(t, &w.bookings, c.limit.Capacity(), 0)
					w.restart()
					c.test(w)
					end()
					time.Sleep(time.Second)
					w.wg.Wait()
				})
			})
		}
	}
}

// Calls come, leave, settle, change the limit and reset the key at random. No waiting reservation is served later
// than booked, unless the key was reset. No more is served than the bound allows, and nothing stays booked.
func TestNoReservationThatWaitsIsLate(t *testing.T) {
	for seed := range uint64(testsize.Of(30, 300)) {
		synctest.Test(t, func(t *testing.T) {
			rng := rand.New(rand.NewPCG(seed, 1))
			rate, largest, resets := 1+rng.IntN(20), 1+rng.IntN(5), int(seed%2)
			const burst = 5
			s := &shop{trip: time.Duration(rng.IntN(3)) * 5 * time.Millisecond, limit: second(rate, burst), meter: meterOf(second(rate, burst)),
				state: meter.State{At: time.Now().UnixNano()}}
			var here, there turns.Bookings[string]
			var wg sync.WaitGroup
			var mu sync.Mutex
			var passed, most float64
			most = burst
			for range 100 {
				step := time.Duration(rng.IntN(200)) * time.Millisecond
				time.Sleep(step)
				process := &here
				if rng.IntN(3) == 0 {
					process = &there
				}
				mu.Lock()
				most += step.Seconds() * float64(rate)
				mu.Unlock()
				switch rng.IntN(12 + resets) {
				case 12: // the other process notices it within a second
					s.reset()
					process.Moved("k")
					mu.Lock()
					most += burst + float64(rate+largest)
					mu.Unlock()
				case 0:
					rate += rng.IntN(20)
					s.set(second(rate, burst))
					here.Changed()
				case 1:
					n := 1 + rng.IntN(5)
					s.visit(func(now int64) { s.meter.Adjust(&s.state, now, -int64(n)) })
					mu.Lock()
					most += float64(n)
					mu.Unlock()
					process.Moved("k")
				default:
					cost := 1 + rng.IntN(largest)
					begin, r := time.Now(), s.reserve(t, process, cost, time.Hour)
					due := time.Now().Add(r.Delay)
					ctx, leave := context.WithCancel(t.Context())
					patience, settles := time.Duration(rng.Int64N(int64(20*time.Second))), rng.IntN(3) == 0
					wg.Go(func() {
						defer leave()
						defer time.AfterFunc(patience, leave).Stop()
						if r.Wait(ctx) != nil {
							return
						}
						assert.False(t, resets == 0 && time.Now().After(due), "booked after %v", due.Sub(begin))
						if settles {
							assert.NoError(t, r.Settle(cost-1))
							cost--
						}
						mu.Lock()
						defer mu.Unlock()
						passed += float64(cost)
					})
				}
				mu.Lock()
				most += 2 * s.trip.Seconds() * float64(rate) // the budget regains during the call
				mu.Unlock()
			}
			begin := time.Now()
			wg.Wait()
			most += time.Since(begin).Seconds() * float64(rate)
			require.LessOrEqual(t, passed, most)
			time.Sleep(time.Second)
			spent, debt := s.spent()
			require.Zero(t, debt)
			require.LessOrEqual(t, spent, int64(burst))
			time.Sleep(burst * time.Second)
			require.Zero(t, first(s.spent()), "nothing stays booked")
		})
	}
}

func first(n, _ int64) int64 { return n }
