package pace_test

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"math"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/weir-go/ratelimit"
	"github.com/weir-go/ratelimit/internal/pace"
)

// client sends one key's requests as a transport does, and records them.
type client struct {
	pacer   *pace.Pacer[string]
	retries int                        // the maximum number of times that a refused request is sent again
	takes   time.Duration              // a request's duration
	answer  func(n int) pace.Advice    // the answer to the n-th request sent, from 1; nil if all are served
	held    map[string]<-chan struct{} // a slow request ends when its channel is closed
	begin   time.Time

	mu   sync.Mutex
	sent []attempt
}

// attempt is one request, sent once.
type attempt struct {
	request string
	at      time.Duration // since the client's beginning
}

func newClient(l ratelimit.Reserver[string], opts pace.Options[string], answer func(n int) pace.Advice) *client {
	return &client{pacer: pace.New("test", l, opts), answer: answer, begin: time.Now()}
}

// served is an answer without figures.
var served = pace.Advice{Answered: true}

func refused(wait time.Duration) pace.Advice {
	return pace.Advice{Answered: true, Refused: true, Wait: wait}
}

// left returns the answer to a served request: the policy has n units left for span.
func left(policy string, n int64, span time.Duration) pace.Advice {
	return pace.Advice{Answered: true, Budgets: []pace.Budget{{Policy: policy, Left: n, Until: time.Now().Add(span)}}}
}

// once returns a function that answers the first request with first, and serves the others.
func once(first pace.Advice) func(int) pace.Advice {
	return func(n int) pace.Advice {
		if n == 1 {
			return first
		}
		return served
	}
}

// send sends a request. An error means that the request was not sent.
func (c *client) send(ctx context.Context, request string) error {
	p := c.pacer.Arrive(ctx, "key")
	defer c.pacer.Leave(p)
	for retries := 0; ; retries++ {
		if err := c.pacer.Await(p, request); err != nil {
			return err
		}
		a := c.record(request)
		time.Sleep(c.takes)
		if end := c.held[request]; end != nil {
			<-end
		}
		c.pacer.Learn(p, a, time.Now())
		if !a.Refused || retries == c.retries || p.Late() {
			return nil
		}
		c.pacer.Refund(p)
		c.pacer.Again(p)
	}
}

// record records a sent request, and returns the answer.
func (c *client) record(request string) pace.Advice {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.sent = append(c.sent, attempt{request, time.Since(c.begin)})
	if c.answer == nil {
		return served
	}
	return c.answer(len(c.sent))
}

// sendWithin is send with a deadline.
func (c *client) sendWithin(t *testing.T, d time.Duration, request string) error {
	ctx, cancel := context.WithTimeout(t.Context(), d)
	defer cancel()
	return c.send(ctx, request)
}

// start sends requests, one arriving after another. It returns when each has been sent or waits.
func (c *client) start(t *testing.T, requests ...string) (all *sync.WaitGroup) {
	all = new(sync.WaitGroup)
	for _, request := range requests {
		all.Go(func() { assert.NoError(t, c.send(t.Context(), request)) })
		synctest.Wait()
	}
	return all
}

// attempts returns the sent requests. Requests sent at one instant have an
// order, but may be recorded in another one. So attempts sorts them by name.
func (c *client) attempts() []attempt {
	c.mu.Lock()
	defer c.mu.Unlock()
	all := slices.Clone(c.sent)
	slices.SortStableFunc(all, func(a, b attempt) int { return cmp.Or(cmp.Compare(a.at, b.at), cmp.Compare(a.request, b.request)) })
	return all
}

func (c *client) times() (at []time.Duration) {
	for _, a := range c.attempts() {
		at = append(at, a.at)
	}
	return at
}

func (c *client) requests() (names []string) {
	for _, a := range c.attempts() {
		names = append(names, a.request)
	}
	return names
}

// one returns the same key for each request.
func one(string) (string, error) { return "key", nil }

func unlimited(t *testing.T) ratelimit.Reserver[string] {
	return limiter(t, ratelimit.Unlimited(), one)
}

// layers returns a stack of limits. A stack books nothing ahead.
func layers(t *testing.T, limits ...ratelimit.Limit) ratelimit.Reserver[string] {
	var all []ratelimit.Layer[string]
	for _, limit := range limits {
		all = append(all, ratelimit.By(ratelimit.Must(ratelimit.New[string](limit, nil)), one))
	}
	return ratelimit.Must(ratelimit.All(all...))
}

// Layers book nothing ahead, so the first request in the queue retries, and the others wait behind it.
func TestRequestsAreSentInOrderAtThePaceOfTheOwnLimit(t *testing.T) {
	for name, row := range map[string]struct {
		limiter func(*testing.T) ratelimit.Reserver[string]
		cost    func(string) int
		want    []time.Duration
	}{
		"a bucket": {func(t *testing.T) ratelimit.Reserver[string] {
			return limiter(t, ratelimit.TokenBucket(ratelimit.PerSecond(2), 2), one)
		}, nil, []time.Duration{0, 0, 500e6, 1000e6, 1500e6}},
		"a cost of 2": {func(t *testing.T) ratelimit.Reserver[string] {
			return limiter(t, ratelimit.TokenBucket(ratelimit.PerSecond(2), 2), one)
		}, func(string) int { return 2 }, []time.Duration{0, 1e9, 2e9, 3e9, 4e9}},
		"layers": {func(t *testing.T) ratelimit.Reserver[string] {
			return layers(t, ratelimit.FixedWindow(ratelimit.Per(2, time.Second)), ratelimit.LeakyBucket(ratelimit.PerSecond(4), 2).Named("leaky"))
		}, nil, []time.Duration{0, 250e6, 1000e6, 1250e6, 2000e6}},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				c := newClient(row.limiter(t), pace.Options[string]{Cost: row.cost}, nil)
				c.start(t, "0", "1", "2", "3", "4").Wait()
				assert.Equal(t, row.want, c.times())
				assert.Equal(t, []string{"0", "1", "2", "3", "4"}, c.requests())
				assert.Equal(t, pace.Stats{Sent: 5, Waited: c.pacer.Stats().Waited}, c.pacer.Stats())
			})
		})
	}
}

// A request may not be sent for 10 s. It fails at once if its context's deadline or MaxWait leaves
// it 9 s, and is sent if it has 11 s. Waiting requests without a deadline do not change that.
func TestARequestWithoutTimeFailsAtOnce(t *testing.T) {
	bucket := func(t *testing.T) ratelimit.Reserver[string] {
		return limiter(t, ratelimit.TokenBucket(ratelimit.PerMinute(6), 1), one)
	}
	for name, row := range map[string]struct {
		limiter  func(*testing.T) ratelimit.Reserver[string]
		answer   func() pace.Advice
		patients int // how many requests wait before it
	}{
		"the own limit": {bucket, nil, 0},
		"layers that book nothing": {func(t *testing.T) ratelimit.Reserver[string] {
			return layers(t, ratelimit.FixedWindow(ratelimit.Per(1, 10*time.Second)))
		}, nil, 0},
		"a refusal":                {unlimited, func() pace.Advice { return refused(10 * time.Second) }, 0},
		"a refusal, behind others": {unlimited, func() pace.Advice { return refused(10 * time.Second) }, 5},
		"nothing left":             {unlimited, func() pace.Advice { return left("", 0, 10*time.Second) }, 0},
		"nothing left of one of two": {unlimited, func() pace.Advice {
			a := left("a", 5, 20*time.Second)
			a.Budgets = append(a.Budgets, left("b", 0, 10*time.Second).Budgets...)
			return a
		}, 0},
	} {
		for _, maxWait := range []time.Duration{0, 9 * time.Second} {
			t.Run(fmt.Sprintf("%s/MaxWait %v", name, maxWait), func(t *testing.T) {
				synctest.Test(t, func(t *testing.T) {
					c := newClient(row.limiter(t), pace.Options[string]{MaxWait: maxWait}, nil)
					if row.answer != nil {
						c.answer = once(row.answer())
					}
					require.NoError(t, c.send(t.Context(), "first"))
					within, want := 9*time.Second, context.DeadlineExceeded
					if maxWait > 0 {
						within, want, row.patients = time.Hour, ratelimit.ErrLimited, 0
					}
					patients := c.start(t, slices.Repeat([]string{"patient"}, row.patients)...)
					err := c.sendWithin(t, within, "late")
					assert.ErrorIs(t, err, want)
					assert.Equal(t, want == context.DeadlineExceeded, errors.Is(err, context.DeadlineExceeded))
					var late *ratelimit.LateError
					require.ErrorAs(t, err, &late)
					assert.Equal(t, 10*time.Second, late.RetryAfter())
					assert.Zero(t, time.Since(c.begin), "at once")
					assert.Equal(t, uint64(1), c.pacer.Stats().Failed)
					time.Sleep(time.Second)
					assert.NoError(t, c.sendWithin(t, 10*time.Second, "in time"))
					patients.Wait()
					assert.Equal(t, 10*time.Second, c.times()[1])
				})
			})
		}
	}
}

// After the first request, the server leaves 2 units for 10 s. Two more
// requests are sent. Those behind them would be too late, so they fail at once.
func TestRequestsBeyondTheRemainingBudgetFailAtOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newClient(limiter(t, ratelimit.TokenBucket(ratelimit.PerSecond(1), 1), one), pace.Options[string]{}, nil)
		c.answer = func(n int) pace.Advice { return left("x", int64(max(0, 3-n)), 10*time.Second) }
		require.NoError(t, c.send(t.Context(), ""))
		errs := make(chan error, 5)
		for range 5 {
			go func() { errs <- c.sendWithin(t, 9*time.Second, "") }()
			synctest.Wait()
		}
		assert.Len(t, errs, 3)
		for range 3 {
			assert.ErrorIs(t, <-errs, context.DeadlineExceeded)
		}
		assert.NoError(t, <-errs)
		assert.NoError(t, <-errs)
	})
}

func TestMaxWaitIsAMinuteUnlessItIsSet(t *testing.T) {
	for maxWait, want := range map[time.Duration]time.Duration{0: time.Minute, 1: 1, 78 * time.Hour: 78 * time.Hour, -1: 0, math.MinInt64: 0} {
		assert.Equal(t, want, pace.Bound(maxWait))
	}
}

// The limiter takes long for the first request. The second one waits behind it for MaxWait and no longer.
func TestMaxWaitEndsForRequestsThatWaitForAnother(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		release := make(chan struct{})
		c := newClient(limiter(t, ratelimit.Unlimited(), func(string) (string, error) { <-release; return "", nil }), pace.Options[string]{MaxWait: time.Second}, nil)
		first := make(chan error)
		go func() { first <- c.send(t.Context(), "first") }()
		synctest.Wait()
		assert.ErrorIs(t, c.send(t.Context(), "second"), ratelimit.ErrLimited)
		assert.Equal(t, time.Second+1, time.Since(c.begin))
		close(release)
		assert.ErrorIs(t, <-first, ratelimit.ErrLimited)
		assert.Empty(t, c.times())
	})
}

// After each answer, the next requests are sent at the expected instants.
func TestAnswersDelayTheNextRequests(t *testing.T) {
	two := func(first, second int64, of, and time.Duration) pace.Advice {
		a := left("a", first, of)
		a.Budgets = append(a.Budgets, left("a", second, and).Budgets...)
		return a
	}
	for name, row := range map[string]struct {
		answer func() pace.Advice // the answer to the first request
		opts   pace.Options[string]
		want   []time.Duration
	}{
		"a refusal":                          {func() pace.Advice { return refused(7 * time.Second) }, pace.Options[string]{}, []time.Duration{0, 7e9, 7e9}},
		"a wait of a request that is served": {func() pace.Advice { return pace.Advice{Answered: true, Wait: 7 * time.Second} }, pace.Options[string]{}, []time.Duration{0, 7e9, 7e9}},
		"nothing left":                       {func() pace.Advice { return left("", 0, 7*time.Second) }, pace.Options[string]{}, []time.Duration{0, 7e9, 7e9}},
		"one left, as far as is known":       {func() pace.Advice { return left("", 1, 7*time.Second) }, pace.Options[string]{}, []time.Duration{0, 0, 7e9}},
		"two budgets of one name":            {func() pace.Advice { return two(0, 1, time.Second, time.Minute) }, pace.Options[string]{}, []time.Duration{0, 1e9, 60e9}},
		"two of one name, the longer first":  {func() pace.Advice { return two(1, 0, time.Minute, time.Second) }, pace.Options[string]{}, []time.Duration{0, 1e9, 60e9}},
		"a century that is not believed":     {func() pace.Advice { return refused(math.MaxInt64) }, pace.Options[string]{Longest: time.Hour}, []time.Duration{0, 3600e9, 3600e9}},
		"a window that is not believed":      {func() pace.Advice { return left("", 0, math.MaxInt64) }, pace.Options[string]{Longest: time.Hour}, []time.Duration{0, 3600e9, 3600e9}},
		"ten years at most":                  {func() pace.Advice { return refused(math.MaxInt64) }, pace.Options[string]{}, []time.Duration{0, pace.MaxWait, pace.MaxWait}},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				c := newClient(unlimited(t), row.opts, once(row.answer()))
				for range 3 {
					require.NoError(t, c.send(t.Context(), ""))
				}
				assert.Equal(t, row.want, c.times())
			})
		})
	}
}

func TestRefusalsWithoutATimeAreWaitedForTwiceAsLongEachTime(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newClient(unlimited(t), pace.Options[string]{}, func(n int) pace.Advice {
			if n == 9 {
				return served
			}
			return refused(0)
		})
		for range 11 {
			require.NoError(t, c.send(t.Context(), ""))
		}
		var gaps []int
		for i, at := range c.times()[1:] {
			gaps = append(gaps, int((at-c.times()[i])/time.Second))
		}
		assert.Equal(t, []int{1, 2, 4, 8, 16, 32, 60, 60, 0, 1}, gaps)
	})
}

// Fifty goroutines share one key. The server takes some time for each request, and refuses the tenth. Nothing is sent before
// the refusal's time has passed. Then all waiting requests are sent in order, one at a time, beginning with the refused one.
func TestAfterARefusalNothingIsSentBeforeItsTimeAndOrderIsKept(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newClient(limiter(t, ratelimit.TokenBucket(ratelimit.PerSecond(100), 5), one), pace.Options[string]{}, func(n int) pace.Advice {
			if n == 10 {
				return refused(10 * time.Second)
			}
			return served
		})
		c.retries, c.takes = 1, 30*time.Millisecond
		var names []string
		for i := range 50 {
			names = append(names, fmt.Sprintf("%02d", i))
		}
		c.start(t, names...).Wait()
		times := c.times()
		require.Len(t, times, 51)
		announced, early := times[9]+c.takes, 0
		for early < 51 && times[early] <= announced {
			early++
		}
		assert.Less(t, early, 20)
		assert.Equal(t, slices.Concat(names[:early], []string{"09"}, names[early:]), c.requests())
		assert.Equal(t, announced+10*time.Second, times[early])
		assert.Greater(t, times[early+1], times[early], "one at a time")
		for i := early + 1; i < len(times); i++ {
			assert.LessOrEqual(t, times[i]-times[i-1], 1100*time.Millisecond, "at a pace that is learnt")
		}
		assert.Equal(t, pace.Stats{Sent: 51, Waited: c.pacer.Stats().Waited, Refused: 1, Retried: 1}, c.pacer.Stats())
	})
}

// Bookings within the server's wait are given back, so the whole burst is available after it.
func TestBookingsAreGivenBackWhileTheServerWantsNothing(t *testing.T) {
	for _, limit := range []ratelimit.Limit{
		ratelimit.TokenBucket(ratelimit.PerSecond(1), 4), ratelimit.LeakyBucket(ratelimit.PerSecond(1), 10),
		ratelimit.FixedWindow(ratelimit.PerSecond(1)), ratelimit.SlidingLog(ratelimit.PerSecond(1)),
	} {
		t.Run(limit.Algorithm.String(), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				l := ratelimit.Must(ratelimit.New[string](limit, nil))
				c := newClient(ratelimit.Map(l, one), pace.Options[string]{}, func(n int) pace.Advice {
					if n == 5 {
						return refused(100 * time.Second)
					}
					return served
				})
				names := []string{"0", "1", "2", "3", "4", "5", "6", "7", "8"}
				all := c.start(t, names...)
				for len(c.times()) < 5 {
					time.Sleep(time.Second)
				}
				time.Sleep(50 * time.Second)
				d, err := l.Peek(t.Context(), "key", 1)
				require.NoError(t, err)
				assert.Zero(t, d.ResetAfter, "fresh: nothing is booked")
				all.Wait()
				assert.Equal(t, names, c.requests())
				assert.GreaterOrEqual(t, c.times()[5], 100*time.Second)
			})
		})
	}
}

// Answers report how many units are left. No more requests are sent, those under way included. That holds after the reset, too.
func TestNoMoreIsSentThanIsLeft(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const quota, window = 7, 10 * time.Second
		used, denied, current := 0, 0, time.Duration(0)
		c := newClient(unlimited(t), pace.Options[string]{}, nil)
		c.takes = 100 * time.Millisecond
		c.answer = func(int) pace.Advice { // a fixed window that begins with the test
			since := time.Since(c.begin)
			if n := since / window; n > current {
				used, current = 0, n
			}
			rest := window - since%window
			if used++; used > quota {
				denied++
				return refused(rest)
			}
			return left("w", int64(quota-used), rest)
		}
		require.NoError(t, c.send(t.Context(), "")) // the client learns the rest from the answer
		c.start(t, make([]string, 20)...).Wait()
		assert.Zero(t, denied)
		assert.GreaterOrEqual(t, time.Since(c.begin), 2*window, "three windows of seven")
		assert.Less(t, time.Since(c.begin), 3*window)
	})
}

// A budget ends. If some of it was left, the next requests are sent at once. If it was used up, one request is sent first.
func TestAfterTheEndOfABudgetTheNextRequestsAreSentAtOnceIfSomeWasLeft(t *testing.T) {
	for n, want := range map[int64][]time.Duration{
		5: {0, 11 * time.Second, 11 * time.Second, 11 * time.Second},
		0: {0, 11 * time.Second, 12 * time.Second, 12 * time.Second},
	} {
		synctest.Test(t, func(t *testing.T) {
			c := newClient(unlimited(t), pace.Options[string]{}, func(sent int) pace.Advice {
				if sent == 1 {
					return left("w", n, 10*time.Second)
				}
				return left("w", 100, time.Hour)
			})
			require.NoError(t, c.send(t.Context(), ""))
			time.Sleep(11 * time.Second)
			c.takes = time.Second
			c.start(t, make([]string, 3)...).Wait()
			assert.Equal(t, want, c.times(), "%d left", n)
		})
	}
}

// The server counted a slow request long ago, so it does not delay others.
func TestSlowRequestsDoNotUseUpTheRemainingBudget(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		release := make(chan struct{})
		c := newClient(unlimited(t), pace.Options[string]{}, func(int) pace.Advice { return left("w", 1, time.Hour) })
		c.held = map[string]<-chan struct{}{"slow": release}
		slow := c.start(t, "slow")
		time.Sleep(2 * time.Second)
		for range 5 {
			require.NoError(t, c.send(t.Context(), ""))
		}
		assert.Equal(t, 2*time.Second, time.Since(c.begin))
		close(release)
		slow.Wait()
	})
}

// A request that leaves the queue passes its booking to the next one.
func TestCancelledRequestLeavesTheQueueAndItsBooking(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newClient(limiter(t, ratelimit.TokenBucket(ratelimit.PerSecond(1), 1), one), pace.Options[string]{}, nil)
		all := c.start(t, "0", "1")
		ctx, cancel := context.WithCancel(t.Context())
		failed := make(chan error)
		go func() { failed <- c.send(ctx, "2") }()
		synctest.Wait()
		cancel()
		assert.ErrorIs(t, <-failed, context.Canceled)
		require.NoError(t, c.send(t.Context(), "3"))
		all.Wait()
		assert.Equal(t, []attempt{{"0", 0}, {"1", 1e9}, {"3", 2e9}}, c.attempts())
		assert.Equal(t, uint64(1), c.pacer.Stats().Failed)
		assert.Zero(t, c.pacer.Len())
	})
}

// failing is a limiter that returns an error for each call.
type failing struct {
	ratelimit.Reserver[string]
	err error
}

func (f failing) Reserve(context.Context, string, int, time.Duration) (*ratelimit.Reservation, error) {
	return nil, f.err
}

func TestErrorsOfTheLimiterAreReturned(t *testing.T) {
	broken := errors.New("store down")
	for name, row := range map[string]struct {
		l    ratelimit.Reserver[string]
		want error
	}{
		"the limiter fails": {failing{err: broken}, broken},
		"a blocked key":     {limiter(t, ratelimit.Blocked(), one), ratelimit.ErrExceedsLimit},
		"no reservation":    {failing{}, ratelimit.ErrLimited},
	} {
		t.Run(name, func(t *testing.T) {
			c := newClient(row.l, pace.Options[string]{}, nil)
			for range 2 {
				assert.ErrorIs(t, c.send(t.Context(), ""), row.want)
			}
			assert.Empty(t, c.times())
			assert.Equal(t, pace.Stats{Failed: 2}, c.pacer.Stats())
			assert.Zero(t, c.pacer.Len())
		})
	}
}

// lost is a limiter. Its bookings last an hour, and cannot be given back.
type lost struct {
	ratelimit.Reserver[string]
	settled []int
}

func (l *lost) Reserve(context.Context, string, int, time.Duration) (*ratelimit.Reservation, error) {
	return ratelimit.NewReservation(ratelimit.Decision{Allowed: true, Delay: time.Hour}, func(actual int) error {
		l.settled = append(l.settled, actual)
		return errors.New("timed out")
	}), nil
}

func TestBookingsThatCannotBeCancelledAreCounted(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := new(lost)
		c := newClient(l, pace.Options[string]{}, nil)
		ctx, cancel := context.WithCancel(t.Context())
		time.AfterFunc(time.Second, cancel)
		assert.ErrorIs(t, c.send(ctx, ""), context.Canceled)
		assert.Equal(t, uint64(1), c.pacer.Stats().Unsettled)
		assert.Equal(t, []int{0}, l.settled)
	})
}

// Reset revokes a server's wait. All waiting requests are sent at once, in order.
func TestResetForgetsTheServersAdvice(t *testing.T) {
	for name, answer := range map[string]func() pace.Advice{
		"a refusal":    func() pace.Advice { return refused(24 * time.Hour) },
		"nothing left": func() pace.Advice { return left("", 0, 24*time.Hour) },
		"no figure":    func() pace.Advice { return pace.Advice{Answered: true, Refused: true} },
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				c := newClient(unlimited(t), pace.Options[string]{}, once(answer()))
				require.NoError(t, c.send(t.Context(), "first"))
				waiting := c.start(t, "0", "1", "2")
				time.Sleep(time.Second / 2)
				c.pacer.Reset("another key")
				synctest.Wait()
				assert.Len(t, c.times(), 1)
				c.pacer.ResetAll("ke")
				waiting.Wait()
				assert.Equal(t, []attempt{{"first", 0}, {"0", 5e8}, {"1", 5e8}, {"2", 5e8}}, c.attempts())
			})
		})
	}
}

// A server stalls, and 40 callers wait. When it answers again, all slots come back at once.
// But the requests go on at the limiter's pace, and never more than its burst at one instant.
func TestSlotsThatComeBackAfterAStallSendNoBurstAboveTheRate(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const slots, stall = 20, 10 * time.Second
		c := newClient(limiter(t, ratelimit.TokenBucket(ratelimit.PerSecond(10), 1), one), pace.Options[string]{MaxInFlight: slots}, nil)
		stalled := make(chan struct{})
		time.AfterFunc(stall, func() { close(stalled) })
		c.held = map[string]<-chan struct{}{"": stalled}
		all := c.start(t, make([]string, 40)...)
		time.Sleep(stall / 2)
		synctest.Wait()
		assert.EqualValues(t, slots, c.pacer.Stats().InFlight)
		all.Wait()
		sent := c.times()
		require.Len(t, sent, 40)
		assert.Equal(t, 1900*time.Millisecond, sent[slots-1])
		for i := slots; i < len(sent); i++ {
			assert.Equal(t, stall+time.Duration(i-slots)*100*time.Millisecond, sent[i], "at the rate, from the end of the stall")
		}
		assert.Zero(t, c.pacer.Stats().InFlight)
	})
}

func TestARequestWaitsForASlotAsLongAsItMay(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newClient(limiter(t, ratelimit.TokenBucket(ratelimit.PerMinute(100), 100), one), pace.Options[string]{MaxInFlight: 1, MaxWait: 3 * time.Second}, nil)
		release := make(chan struct{})
		c.held = map[string]<-chan struct{}{"held": release}
		all := c.start(t, "held")
		err := c.send(t.Context(), "patient")
		require.ErrorIs(t, err, ratelimit.ErrLimited)
		assert.ErrorContains(t, err, "MaxInFlight is 1, and so many are in flight")
		assert.Equal(t, 3*time.Second, time.Since(c.begin).Truncate(time.Millisecond))

		ctx, cancel := context.WithCancel(t.Context())
		leaves := make(chan error)
		go func() { leaves <- c.send(ctx, "leaves") }()
		synctest.Wait()
		last := c.start(t, "last")
		cancel()
		require.ErrorIs(t, <-leaves, context.Canceled)
		close(release)
		all.Wait()
		last.Wait()
		assert.Equal(t, []string{"held", "last"}, c.requests(), "a request that has left holds up no other")
		assert.Zero(t, c.pacer.Stats().InFlight)
	})
}
