package chain_test

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"math/rand/v2"
	"net/http"
	"net/http/httptest"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/weir-go/ratelimit"
	"github.com/weir-go/ratelimit/ban"
	"github.com/weir-go/ratelimit/chain"
	"github.com/weir-go/ratelimit/httplimit"
	"github.com/weir-go/ratelimit/internal/dev/testsize"
	"github.com/weir-go/ratelimit/ratelimittest"
)

// starts records when work may begin. Many goroutines may use it.
type starts struct {
	mu sync.Mutex
	at []time.Duration
}

func (s *starts) add(at time.Duration) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.at = append(s.at, at)
}

// most returns the largest number of starts within a span. The span excludes its end.
func (s *starts) most(span time.Duration) (most int) {
	for _, from := range s.at {
		n := 0
		for _, at := range s.at {
			if at >= from && at < from+span {
				n++
			}
		}
		most = max(most, n)
	}
	return most
}

// When Wait returns, the request is within every limit at that instant, whichever limiter has delayed it.
func TestRequestsThatAChainAdmitsKeepToEachLimitWhenTheyGo(t *testing.T) {
	window := ratelimit.FixedWindow(ratelimit.Per(100, 10*time.Second))
	for name, book := range map[string]func(ctx context.Context, chain *chain.Limiter[string]) error{
		"Wait": func(ctx context.Context, chain *chain.Limiter[string]) error { return chain.Wait(ctx, "k", 1) },
		"Wait behind Map": func(ctx context.Context, chain *chain.Limiter[string]) error {
			same := ratelimit.Map[string, string](chain, func(k string) (string, error) { return k, nil })
			return ratelimit.Wait(ctx, same, "k", 1)
		},
		"Reserve ahead": func(ctx context.Context, chain *chain.Limiter[string]) error {
			for {
				r, err := chain.Reserve(ctx, "k", 1, time.Hour)
				if err != nil || r.Allowed {
					return errors.Join(err, r.Wait(ctx))
				}
				time.Sleep(r.RetryAfter)
			}
		},
	} {
		for _, limits := range [][]ratelimit.Limit{
			{ratelimit.TokenBucket(ratelimit.PerSecond(10), 10), window},
			{window, ratelimit.TokenBucket(ratelimit.PerSecond(10), 10)},
			{ratelimit.SlidingLog(ratelimit.Per(10, time.Second)), window},
		} {
			t.Run(fmt.Sprintf("%s, %v, %v", name, limits[0], limits[1]), func(t *testing.T) {
				synctest.Test(t, func(t *testing.T) {
					var all []ratelimit.Reserver[string]
					for _, l := range limits {
						k := ratelimit.Must(ratelimit.New[string](l, nil))
						if l == window {
							require.True(t, k.Allow("k", 100))
						}
						all = append(all, k)
					}
					chain := chainOf(t, all...)
					began := time.Now()
					var gone starts
					var wg sync.WaitGroup
					for range 80 {
						wg.Go(func() {
							assert.NoError(t, book(context.Background(), chain))
							gone.add(time.Since(began))
						})
						time.Sleep(50 * time.Millisecond)
					}
					wg.Wait()
					require.Len(t, gone.at, 80)
					require.LessOrEqual(t, gone.most(time.Second), 20, "burst 10 and 10/s, or 10 in any second")
					require.LessOrEqual(t, gone.most(100*time.Millisecond), 11)
				})
			})
		}
	}
}

// A leaky bucket at the end delays the work. If the caller gives up in the queue, nothing stays charged.
func TestALeakyBucketAtTheEndOfAChainSpacesWaiters(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		guard := ratelimit.Must(ratelimit.New[string](ratelimit.FixedWindow(ratelimit.PerHour(50)), nil))
		queue := ratelimit.Must(ratelimit.New[string](ratelimit.LeakyBucket(ratelimit.PerSecond(10), 5), nil))
		chain := chainOf(t, guard, queue)
		began := time.Now()
		var gone starts
		var wg sync.WaitGroup
		for range 20 {
			wg.Go(func() {
				assert.NoError(t, chain.Wait(context.Background(), "k", 1))
				gone.add(time.Since(began))
			})
		}
		wg.Wait()
		require.Equal(t, 1, gone.most(100*ms))
		require.Equal(t, 1900*ms, gone.at[19])
		require.Equal(t, 30, remaining(t, guard, "k"))

		require.NoError(t, chain.Wait(t.Context(), "k", 1))
		ctx, cancel := context.WithCancel(t.Context())
		time.AfterFunc(50*ms, cancel)
		require.ErrorIs(t, chain.Wait(ctx, "k", 1), context.Canceled)
		require.Equal(t, 29, remaining(t, guard, "k"))
	})
}

func TestAChainsWaitFailsAtOnceIfTheDeadlineComesFirst(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		local := ratelimit.Must(ratelimit.New[string](ratelimit.TokenBucket(ratelimit.PerSecond(10), 10), nil))
		full := ratelimit.Must(ratelimit.New[string](ratelimit.FixedWindow(ratelimit.PerHour(1)), nil))
		require.True(t, full.Allow("k", 1))
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		defer cancel()
		began := time.Now()
		require.ErrorIs(t, chainOf(t, local, full).Wait(ctx, "k", 1), context.DeadlineExceeded)
		require.ErrorIs(t, chainOf(t, full, local).Wait(ctx, "k", 1), context.DeadlineExceeded)
		require.Zero(t, time.Since(began))
		require.Equal(t, 10, remaining(t, local, "k"))

		never := &engine{Answer: func() (ratelimit.Decision, error) { return ratelimit.Decision{}, nil }}
		require.ErrorIs(t, chainOf(t, local, never).Wait(t.Context(), "k", 1), ratelimit.ErrLimited, "denied without a time to wait for")
		require.ErrorIs(t, chainOf(t, local, full).Wait(ctx, "k", 2), ratelimit.ErrExceedsLimit)
	})
}

// The chain's limiters have no common lock. Still, the chain agrees with one
// exact limiter, the strictest of them, even if a limiter fails to give back.
func TestAChainAgreesWithTheStrictestOfItsLimiters(t *testing.T) {
	denials := 0
	for seed := range uint64(seeds()) {
		r := rand.New(rand.NewPCG(testsize.Seed(seed), 18))
		clock := new(ratelimittest.Clock)
		units := 5 + r.IntN(40)
		strict := ratelimit.TokenBucket(ratelimit.Per(1+r.IntN(20), time.Duration(1+r.IntN(1000))*ms), units)
		wide := ratelimit.TokenBucket(ratelimit.Per(3*strict.Rate.Units, strict.Rate.Per), 3*units)
		model, own := onClock(t, clock, strict), onClock(t, clock, strict)
		failing := &failingSettle{Keyed: onClock(t, clock, wide), fails: func() bool { return r.IntN(4) == 0 }}
		all := []ratelimit.Reserver[string]{failing, own}
		if r.IntN(2) == 0 {
			all = []ratelimit.Reserver[string]{own, failing}
		}
		chain := chainOf(t, all...)
		outer := chain
		if r.IntN(2) == 0 {
			outer = chainOf(t, chain, onClock(t, clock, wide))
		}
		reportedBySettle := 0
		for step := range 200 {
			cost := r.IntN(units + 2)
			if r.IntN(3) > 0 {
				cost = 1 + r.IntN(3)
			}
			want, wantErr := model.Reserve(t.Context(), "k", cost, 0)
			got, err := outer.Reserve(t.Context(), "k", cost, 0)
			at := fmt.Sprintf("seed %d, step %d, cost %d", seed, step, cost)
			require.Equal(t, wantErr == nil, err == nil, "%s: %v and %v", at, wantErr, err)
			require.NotErrorIs(t, err, ratelimit.ErrUnavailable, at)
			require.Equal(t, want.Allowed, got.Allowed, at)
			require.Equal(t, want.RetryAfter, got.RetryAfter, at)
			if !got.Allowed {
				denials++
			}
			if got.Allowed && r.IntN(2) == 0 {
				actual := r.IntN(cost + 2)
				require.NoError(t, want.Settle(actual))
				if got.Settle(actual) != nil {
					reportedBySettle++
				}
			}
			if r.IntN(3) == 0 {
				clock.Advance(time.Duration(r.IntN(500)) * ms)
			}
		}
		reported := chain.Stats().FailedGiveBacks
		if outer != chain {
			reported += outer.Stats().FailedGiveBacks
		}
		require.Equal(t, failing.failed, int(reported)+reportedBySettle, "seed %d: each failure is told once", seed)
	}
	require.NotZero(t, denials)
}

var chains = flag.Int("chains", testsize.Of(30, 1000), "random chains that are compared with one limiter")

// seeds returns how many random runs a test makes.
func seeds() int { return *chains }

// failingSettle settles, and sometimes returns an error all the same.
type failingSettle struct {
	*ratelimit.Keyed[string]
	fails  func() bool
	failed int
}

func (f *failingSettle) Reserve(ctx context.Context, key string, cost int, maxDelay time.Duration) (*ratelimit.Reservation, error) {
	res, err := f.Keyed.Reserve(ctx, key, cost, maxDelay)
	return ratelimit.NewReservation(res.Decision, func(actual int) error {
		err := res.Settle(actual)
		if err == nil && f.fails() {
			f.failed++
			return ratelimit.ErrUnavailable
		}
		return err
	}), err
}

// afterLost returns a chain whose first limiter cannot take its charge back.
func afterLost(t testing.TB, second ratelimit.Reserver[string]) *chain.Limiter[string] {
	first := allows(ratelimit.Decision{Remaining: 9})
	first.SettleFail = errLost
	return chainOf(t, first, second)
}

var errLost = fmt.Errorf("connection lost: %w", ratelimit.ErrUnavailable)

// A denial stays a denial for all callers of a chain, even if an earlier limiter could not take its charge back.
func TestADenialStaysADenialIfTheGiveBackFails(t *testing.T) {
	full := onClock(t, new(ratelimittest.Clock), ratelimit.FixedWindow(ratelimit.PerMinute(1)))
	require.True(t, full.Allow("k", 1))
	for name, call := range map[string]func(*chain.Limiter[string]) (ratelimit.Decision, error){
		"Take": func(c *chain.Limiter[string]) (ratelimit.Decision, error) { return c.Take(t.Context(), "k", 1) },
		"Reserve": func(c *chain.Limiter[string]) (ratelimit.Decision, error) {
			r, err := c.Reserve(t.Context(), "k", 1, 0)
			return r.Decision, err
		},
		"a chain in a chain": func(c *chain.Limiter[string]) (ratelimit.Decision, error) {
			return chainOf(t, c, allows(ratelimit.Decision{})).Take(t.Context(), "k", 1)
		},
	} {
		t.Run(name, func(t *testing.T) {
			chain := afterLost(t, full)
			d, err := call(chain)
			require.NoError(t, err)
			assert.False(t, d.Allowed)
			assert.Equal(t, time.Minute, d.RetryAfter)
			assert.EqualValues(t, 1, chain.Stats().FailedGiveBacks)
			require.ErrorIs(t, chain.Stats().LastFailure, errLost)
		})
	}
	t.Run("a server that fails open", func(t *testing.T) {
		chain := afterLost(t, full)
		limit, err := httplimit.New(ratelimit.Map(chain, func(*http.Request) (string, error) { return "k", nil }),
			&httplimit.Options{FailOpen: true})
		require.NoError(t, err)
		w := httptest.NewRecorder()
		limit.Wrap(http.NotFoundHandler()).ServeHTTP(w, httptest.NewRequest(http.MethodGet, "/", nil))
		assert.Equal(t, http.StatusTooManyRequests, w.Code)
		assert.EqualValues(t, 1, chain.Stats().FailedGiveBacks)
	})
}

func TestAnErrorStaysThatErrorIfTheGiveBackFails(t *testing.T) {
	full := onClock(t, new(ratelimittest.Clock), ratelimit.FixedWindow(ratelimit.PerMinute(1)))
	require.True(t, full.Allow("k", 1))
	bomb := errors.New("bomb")
	for name, row := range map[string]struct {
		second ratelimit.Reserver[string]
		call   func(context.Context, *chain.Limiter[string]) error
		want   error
	}{
		"the deadline of Wait": {full, func(ctx context.Context, c *chain.Limiter[string]) error { return c.Wait(ctx, "k", 1) }, context.DeadlineExceeded},
		"a cost above a limit": {full, func(ctx context.Context, c *chain.Limiter[string]) error {
			_, err := c.Take(ctx, "k", 2)
			return err
		}, ratelimit.ErrExceedsLimit},
		"a panic": {&engine{Answer: func() (ratelimit.Decision, error) { panic(bomb) }}, func(_ context.Context, c *chain.Limiter[string]) (err error) {
			defer func() { err, _ = recover().(error) }()
			c.Allow("k", 1)
			return nil
		}, bomb},
	} {
		t.Run(name, func(t *testing.T) {
			ctx, cancel := context.WithTimeout(t.Context(), time.Second)
			defer cancel()
			chain := afterLost(t, row.second)
			err := row.call(ctx, chain)
			require.ErrorIs(t, err, row.want)
			require.NotErrorIs(t, err, ratelimit.ErrUnavailable)
			assert.EqualValues(t, 1, chain.Stats().FailedGiveBacks)
		})
	}
}

// A leaky bucket before the end denies requests that it would delay. Peek denies them, too.
func TestPeekOfAChainAgreesWithTake(t *testing.T) {
	clock := new(ratelimittest.Clock)
	leaky := ratelimit.Must(ratelimit.New(ratelimit.LeakyBucket(ratelimit.PerSecond(1), 5), &ratelimit.Options[string]{Clock: clock}))
	bucket := ratelimit.Must(ratelimit.New(ratelimit.TokenBucket(ratelimit.PerSecond(100), 100), &ratelimit.Options[string]{Clock: clock}))
	chain, err := chain.New[string](leaky, bucket)
	require.NoError(t, err)
	for range 3 {
		for _, cost := range []int{1, 2, 5} {
			peek, err := chain.Peek(t.Context(), "a", cost)
			require.NoError(t, err)
			take, err := chain.Take(t.Context(), "a", cost)
			require.NoError(t, err)
			assert.Equal(t, take.Allowed, peek.Allowed)
			assert.Equal(t, take.RetryAfter, peek.RetryAfter)
			assert.Equal(t, take.Limit, peek.Limit)
			if !take.Allowed {
				assert.Equal(t, take, peek)
			}
		}
		clock.Advance(700 * time.Millisecond)
	}
}

// A call waiting for several limiters notices any change within two seconds.
func TestAWaitOfAChainFollowsEachChange(t *testing.T) {
	hour := ratelimit.TokenBucket(ratelimit.PerHour(1), 10)
	type fixture struct {
		*testing.T
		wide, narrow *ratelimit.Keyed[string]
		open         *ratelimit.Reservation
	}
	for name, test := range map[string]struct {
		change func(f fixture) error
		want   error
	}{
		"raise":      {change: func(f fixture) error { return f.narrow.SetLimit(ratelimit.TokenBucket(ratelimit.PerSecond(10), 20)) }},
		"unlimited":  {change: func(f fixture) error { return f.narrow.SetLimit(ratelimit.Unlimited()) }},
		"grant":      {change: func(f fixture) error { return f.narrow.Adjust(f.Context(), "k", -5) }},
		"settlement": {change: func(f fixture) error { return f.open.Settle(1) }},
		"reset":      {change: func(f fixture) error { return f.narrow.Reset(f.Context(), "k") }},
		"blocked":    {change: func(f fixture) error { return f.narrow.SetLimit(ratelimit.Blocked()) }, want: ratelimit.ErrBlocked},
		"a cost above the capacity": {change: func(f fixture) error {
			return f.narrow.SetLimit(ratelimit.TokenBucket(ratelimit.PerHour(1), 1))
		}, want: ratelimit.ErrExceedsLimit},
		"brake": {change: func(f fixture) error { return f.narrow.SetLimit(ratelimit.TokenBucket(ratelimit.PerDay(1), 10)) }, want: context.DeadlineExceeded},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				f := fixture{T: t, wide: ratelimit.Must(ratelimit.New[string](ratelimit.TokenBucket(ratelimit.PerHour(1000), 1000), nil)),
					narrow: ratelimit.Must(ratelimit.New[string](hour, nil))}
				c := ratelimit.Must(chain.New[string](f.wide, f.narrow))
				var err error
				f.open, err = f.narrow.Reserve(t.Context(), "k", 10, 0)
				require.NoError(t, err)
				ctx, cancel := context.WithTimeout(t.Context(), 3*time.Hour)
				defer cancel()
				done := make(chan error, 1)
				go func() { done <- c.Wait(ctx, "k", 2) }()
				time.Sleep(10 * time.Minute)
				synctest.Wait()
				require.Empty(t, done)
				require.NoError(t, test.change(f))
				begin := time.Now()
				err = <-done
				require.LessOrEqual(t, time.Since(begin), 2*time.Second)
				if test.want == nil {
					require.NoError(t, err)
				} else {
					require.ErrorIs(t, err, test.want)
				}
				d, peeked := f.wide.Peek(t.Context(), "k", 1)
				require.NoError(t, peeked)
				if test.want != nil {
					require.Equal(t, 1000, d.Remaining, "a wait that fails charges nothing")
				} else {
					require.Equal(t, 998, d.Remaining)
				}
			})
		})
	}
}

// When a ban begins, waiting calls with deadlines before its end fail.
func TestABanEndsTheWaitsOfAChainThatAreTooShortForIt(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		behind := ratelimit.Must(ratelimit.New[string](ratelimit.TokenBucket(ratelimit.PerHour(10), 1), nil))
		guarded := ratelimit.Must(ratelimit.New[string](ratelimit.TokenBucket(ratelimit.PerHour(10), 10), nil))
		strikes := ratelimit.Must(ratelimit.New[string](ratelimit.FixedWindow(ratelimit.PerHour(3)), nil))
		bans := ratelimit.Must(ratelimit.New[string](ratelimit.FixedWindow(ratelimit.Per(1, 2*time.Hour)), nil))
		banned := ratelimit.Must(ban.New(guarded, strikes, bans))
		c := ratelimit.Must(chain.New[string](banned, behind))
		require.True(t, behind.Allow("k", 1))
		ctx, cancel := context.WithTimeout(t.Context(), 20*time.Minute)
		defer cancel()
		done := make(chan error, 1)
		go func() { done <- c.Wait(ctx, "k", 1) }()
		time.Sleep(time.Minute)
		synctest.Wait()
		require.True(t, bans.Allow("k", 1), "as a strike too many does")
		d, err := banned.Peek(t.Context(), "k", 1)
		require.NoError(t, err)
		require.Equal(t, 2*time.Hour, d.RetryAfter)
		begin := time.Now()
		require.ErrorIs(t, <-done, context.DeadlineExceeded)
		require.LessOrEqual(t, time.Since(begin), 2*time.Second)
	})
}
