package ratelimit_test

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"math"
	"math/rand/v2"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/weir-go/ratelimit"
	"github.com/weir-go/ratelimit/ban"
	"github.com/weir-go/ratelimit/chain"
	"github.com/weir-go/ratelimit/failover"
	"github.com/weir-go/ratelimit/internal/dev/model"
	"github.com/weir-go/ratelimit/internal/dev/testsize"
	"github.com/weir-go/ratelimit/lease"
	"github.com/weir-go/ratelimit/ratelimittest"
)

func TestAReservationOfNothingIsChargedItsSettledCost(t *testing.T) {
	for _, limit := range []ratelimit.Limit{
		ratelimit.TokenBucket(ratelimit.PerHour(1000), 1000),
		ratelimit.LeakyBucket(ratelimit.PerHour(1000), 1000),
		ratelimit.FixedWindow(ratelimit.PerHour(1000)),
		ratelimit.SlidingLog(ratelimit.PerHour(1000)),
		ratelimit.SlidingCounter(ratelimit.PerHour(1000)),
	} {
		t.Run(limit.Algorithm.String(), func(t *testing.T) {
			l, _ := newLimiter(t, limit)
			r, err := l.Reserve(t.Context(), "k", 0, 0)
			require.NoError(t, err)
			assert.True(t, r.Allowed)
			assert.Zero(t, l.Stats().Keys, "nothing is charged yet")
			require.NoError(t, r.Settle(500))
			assert.Equal(t, 500, remaining(t, l, "k"))
			require.NoError(t, r.Settle(500))
			assert.Equal(t, 500, remaining(t, l, "k"), "the second call does not count")

			cancelled, err := l.Reserve(t.Context(), "k", 0, 0)
			require.NoError(t, err)
			require.NoError(t, cancelled.Cancel())
			assert.Equal(t, 500, remaining(t, l, "k"))
		})
	}
}

func TestAReservationOfNothingFailsToSettleAsAdjustFails(t *testing.T) {
	l := newWith(t, ratelimit.FixedWindow(ratelimit.PerHour(10)), ratelimit.Options[string]{
		Clock: new(testClock), MaxKeys: 1, OnFull: ratelimit.RefuseNew,
	})
	require.True(t, l.Allow("other", 1))
	r, err := l.Reserve(t.Context(), "k", 0, 0)
	require.NoError(t, err)
	require.ErrorIs(t, r.Settle(3), ratelimit.ErrTableFull)
	require.NoError(t, r.Settle(3), "only the first call counts")
}

func TestBlockedIsAnErrorOfItsOwn(t *testing.T) {
	assert.ErrorIs(t, ratelimit.ErrBlocked, ratelimit.ErrExceedsLimit)
	assert.NotErrorIs(t, ratelimit.ErrExceedsLimit, ratelimit.ErrBlocked)
	l := newWith(t, ratelimit.Blocked().Named("spam"), ratelimit.Options[string]{Clock: new(testClock)})
	d, err := l.Take(t.Context(), "secret", 1)
	require.ErrorIs(t, err, ratelimit.ErrBlocked)
	require.ErrorIs(t, err, ratelimit.ErrExceedsLimit)
	require.EqualError(t, err, `ratelimit: blocked: the limit "spam" allows no cost above 0`)
	assert.False(t, d.Allowed)
	assert.Zero(t, d.RetryAfter)
	assert.True(t, l.Allow("secret", 0), "a cost of 0 is always allowed")
}

func TestNoErrorContainsAKey(t *testing.T) {
	l := newWith(t, ratelimit.FixedWindow(ratelimit.PerHour(2)), ratelimit.Options[string]{
		LimitFor: func(string) ratelimit.Limit { return ratelimit.TokenBucket(ratelimit.PerHour(1), -1) },
	})
	_, err := l.Take(t.Context(), "secret-token", 1)
	require.ErrorIs(t, err, ratelimit.ErrInvalidLimit)
	assert.NotContains(t, err.Error(), "secret")
}

func TestALimitWithoutANameTakesTheDefaultsName(t *testing.T) {
	limits := map[string]ratelimit.Limit{
		"pro":  ratelimit.FixedWindow(ratelimit.PerHour(9)),
		"team": ratelimit.FixedWindow(ratelimit.PerHour(8)).Named("team"),
	}
	l := newWith(t, ratelimit.FixedWindow(ratelimit.PerHour(2)).Named("plan"), ratelimit.Options[string]{
		LimitFor: func(key string) ratelimit.Limit { return limits[key] },
	})
	for key, want := range map[string]string{"pro": "plan", "team": "team", "free": "plan"} {
		d, err := l.Take(t.Context(), key, 1)
		require.NoError(t, err)
		assert.Equal(t, want, d.Limit.Name, key)
	}
}

func TestEventsContainWhetherTheCostWasSpent(t *testing.T) {
	var events []ratelimit.Event[string]
	l := newWith(t, ratelimit.FixedWindow(ratelimit.PerHour(2)), ratelimit.Options[string]{
		Clock: new(testClock), OnDecision: func(e ratelimit.Event[string]) { events = append(events, e) },
	})
	ctx, cancel := context.WithTimeout(t.Context(), time.Second)
	defer cancel()
	l.Allow("k", 1)
	_, _ = l.Take(ctx, "k", 0)
	_, _ = l.Reserve(ctx, "k", 1, 0)
	_, _ = l.Take(ctx, "k", 1)
	_, _ = l.Take(ctx, "k", 3)
	require.Error(t, l.Wait(ctx, "k", 1))
	require.NoError(t, l.Wait(ctx, "other", 1))
	var spent []bool
	for _, e := range events {
		spent = append(spent, e.Spent)
	}
	assert.Equal(t, []bool{true, false, true, false, false, false, true}, spent)
}

func TestReservationWait(t *testing.T) {
	down := errors.New("down")
	for name, row := range map[string]struct {
		denied     bool
		delay      time.Duration
		settled    int           // the cost settled before Wait, if not zero
		leave      time.Duration // when the context is cancelled, unless zero
		deadline   time.Duration // the context's, unless zero
		wait       time.Duration // when Wait is called
		until      time.Duration // when Wait returns
		settleFail error
		want       []error // Wait's error wraps these
		settles    []int   // all settled costs
	}{
		"the delay counts from the reservation": {delay: 10 * time.Second, wait: 4 * time.Second, until: 10 * time.Second},
		"the delay is over":                     {delay: 10 * time.Second, wait: 10 * time.Second, until: 10 * time.Second},
		"the caller leaves": {delay: 10 * time.Second, leave: time.Second, until: time.Second,
			want: []error{context.Canceled}, settles: []int{0}},
		"the caller leaves, and the cancellation fails": {delay: 10 * time.Second, leave: time.Second, until: time.Second,
			settleFail: down, want: []error{context.Canceled, down}, settles: []int{0}},
		"the caller has left before a call without delay": {leave: time.Second, wait: 2 * time.Second, until: 2 * time.Second,
			want: []error{context.Canceled}, settles: []int{0}},
		"the deadline comes first": {delay: 10 * time.Second, deadline: 9 * time.Second,
			want: []error{context.DeadlineExceeded}, settles: []int{0}},
		"a denial":        {denied: true, want: []error{ratelimit.ErrLimited}},
		"settled already": {delay: 10 * time.Second, settled: 2, settles: []int{2}},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				var settles []int
				r := ratelimit.NewReservation(ratelimit.Decision{Allowed: !row.denied, Delay: row.delay}, func(actual int) error {
					settles = append(settles, actual)
					return row.settleFail
				})
				began := time.Now()
				ctx, cancel := context.WithTimeout(t.Context(), cmp.Or(row.deadline, time.Hour))
				defer cancel()
				if row.leave > 0 {
					time.AfterFunc(row.leave, cancel)
				}
				if row.settled != 0 {
					require.NoError(t, r.Settle(row.settled))
				}
				time.Sleep(row.wait)
				err := r.Wait(ctx)
				assert.Equal(t, row.until, time.Since(began))
				assert.Equal(t, row.want == nil, err == nil)
				for _, want := range row.want {
					assert.ErrorIs(t, err, want)
				}
				assert.Equal(t, row.settles, settles)
			})
		})
	}
	assert.NoError(t, (*ratelimit.Reservation)(nil).Wait(t.Context()))
}

// scripted is an engine of another kind with fixed results.
type scripted struct {
	answers   []ratelimit.Decision
	err       error
	requested []time.Duration // each Reserve's maxDelay
	settled   []int
}

func (s *scripted) Allow(string, int) bool { return false }

func (s *scripted) Take(context.Context, string, int) (ratelimit.Decision, error) {
	return ratelimit.Decision{}, s.err
}

func (s *scripted) Reserve(_ context.Context, _ string, _ int, maxDelay time.Duration) (*ratelimit.Reservation, error) {
	s.requested = append(s.requested, maxDelay)
	d := s.answers[0]
	s.answers = s.answers[1:]
	return ratelimit.NewReservation(d, func(actual int) error {
		s.settled = append(s.settled, actual)
		return nil
	}), s.err
}

func TestWaitWorksOnAnyReserver(t *testing.T) {
	later := func(d time.Duration) ratelimit.Decision { return ratelimit.Decision{RetryAfter: d} }
	booked := func(d time.Duration) ratelimit.Decision { return ratelimit.Decision{Allowed: true, Delay: d} }
	const deadline = 10 * time.Second
	for _, test := range []struct {
		name      string
		answers   []ratelimit.Decision
		deadline  time.Duration
		err       error
		takes     time.Duration
		requested []time.Duration
	}{
		{"waits out the delay", []ratelimit.Decision{booked(3 * time.Second)}, deadline, nil, 3 * time.Second, []time.Duration{deadline}},
		{"tries again when it is told to", []ratelimit.Decision{later(4 * time.Second), later(4 * time.Second), booked(time.Second)}, deadline, nil, 5 * time.Second, []time.Duration{deadline, 0, deadline - 4*time.Second}},
		{"gives up at once if it could only be booked after the deadline", []ratelimit.Decision{later(4 * time.Second), later(14 * time.Second)}, deadline, context.DeadlineExceeded, 0, []time.Duration{deadline, 0}},
		{"takes what has become free in between", []ratelimit.Decision{later(4 * time.Second), {Allowed: true}}, deadline, nil, 0, []time.Duration{deadline, 0}},
		{"gives up at once if that is after the deadline", []ratelimit.Decision{later(11 * time.Second)}, deadline, context.DeadlineExceeded, 0, []time.Duration{deadline}},
		{"gives up at once if there is no time to wait for", []ratelimit.Decision{{}}, deadline, context.DeadlineExceeded, 0, []time.Duration{deadline}},
		{"a denial without a deadline is final", []ratelimit.Decision{later(time.Second)}, 0, ratelimit.ErrLimited, 0, []time.Duration{1<<63 - 1}},
	} {
		t.Run(test.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				ctx := t.Context()
				if test.deadline > 0 {
					var cancel context.CancelFunc
					ctx, cancel = context.WithTimeout(ctx, test.deadline)
					defer cancel()
				}
				s, start := &scripted{answers: test.answers}, time.Now()
				err := ratelimit.Wait[string](ctx, s, "k", 1)
				require.ErrorIs(t, err, test.err)
				assert.Equal(t, test.takes, time.Since(start))
				assert.Equal(t, test.requested, s.requested)
				assert.Empty(t, s.settled)
			})
		})
	}
}

func TestWaitCallsTheLimitersOwn(t *testing.T) {
	l, _ := newLimiter(t, ratelimit.FixedWindow(ratelimit.PerHour(2)))
	require.NoError(t, ratelimit.Wait[string](t.Context(), l, "k", 2))
	assert.Zero(t, remaining(t, l, "k"))

	mapped := ratelimit.Map(l, func(n int) (string, error) {
		if n == 0 {
			return "", ratelimit.SkipLayer
		}
		return "other", nil
	})
	require.NoError(t, ratelimit.Wait(t.Context(), mapped, 1, 2))
	assert.Zero(t, remaining(t, l, "other"))
	require.NoError(t, ratelimit.Wait(t.Context(), mapped, 0, 2))
	require.ErrorIs(t, ratelimit.Wait(t.Context(), mapped, 1, 3), ratelimit.ErrExceedsLimit)
}

func TestRefillTime(t *testing.T) {
	for limit, want := range map[ratelimit.Limit]time.Duration{
		ratelimit.TokenBucket(ratelimit.PerSecond(10), 50):            5 * time.Second,
		ratelimit.TokenBucket(ratelimit.PerSecond(3), 1):              333_333_334,
		ratelimit.LeakyBucket(ratelimit.PerMinute(60), 3):             3 * time.Second,
		ratelimit.FixedWindow(ratelimit.PerHour(7)):                   time.Hour,
		ratelimit.SlidingLog(ratelimit.PerHour(7)):                    time.Hour,
		ratelimit.SlidingCounter(ratelimit.PerHour(7)):                2 * time.Hour,
		ratelimit.SlidingCounter(ratelimit.Per(1, 876_600*time.Hour)): 2 * 876_600 * time.Hour,
		ratelimit.TokenBucket(ratelimit.Per(1, 876_600*time.Hour), 1): 876_600 * time.Hour,
		ratelimit.Unlimited():                                         0,
		ratelimit.Blocked():                                           0,
		{}:                                                            0,
		ratelimit.TokenBucket(ratelimit.PerSecond(1), -1):             0,
	} {
		assert.Equal(t, want, limit.RefillTime(), "%+v", limit)
	}
}

func TestAFreshKeyAgainAfterRefillTime(t *testing.T) {
	for _, limit := range []ratelimit.Limit{
		ratelimit.TokenBucket(ratelimit.PerSecond(3), 7),
		ratelimit.LeakyBucket(ratelimit.PerSecond(7), 3),
		ratelimit.FixedWindow(ratelimit.PerSecond(3)),
		ratelimit.SlidingLog(ratelimit.PerSecond(3)),
		ratelimit.SlidingCounter(ratelimit.PerSecond(3)),
	} {
		l, _ := newLimiter(t, limit)
		d, err := l.Take(t.Context(), "k", limit.Capacity())
		require.NoError(t, err)
		assert.Equal(t, limit.RefillTime(), d.ResetAfter, limit)
	}
}

func TestLimitsAreListedBeforeTheFirstDecision(t *testing.T) {
	limit := ratelimit.FixedWindow(ratelimit.PerHour(2)).Named("hourly")
	l, _ := newLimiter(t, limit)
	assert.Equal(t, []ratelimit.Limit{limit}, l.Describe().Limits)
	require.NoError(t, l.SetLimit(limit.Named("new")))
	assert.Equal(t, []ratelimit.Limit{limit.Named("new")}, l.Describe().Limits)

	mapped := ratelimit.Map(l, func(string) (string, error) { return "k", nil })
	assert.Equal(t, l.Describe().Limits, ratelimit.Describe(mapped).Limits)
	mute := ratelimit.Map[string, string](&scripted{}, func(string) (string, error) { return "k", nil })
	assert.Empty(t, ratelimit.Describe(mute).Limits)

	each := newWith(t, limit, ratelimit.Options[string]{LimitFor: func(string) ratelimit.Limit { return limit }})
	assert.Equal(t, []ratelimit.Limit{{}}, each.Describe().Limits, "each key has its own")
}

func TestGlobalIsOneBudgetForAllRequests(t *testing.T) {
	global := ratelimit.Must(ratelimit.New[struct{}](ratelimit.FixedWindow(ratelimit.PerHour(3)), nil))
	l, err := ratelimit.All(ratelimit.Global[string](global))
	require.NoError(t, err)
	for i, request := range []string{"a", "b", "c", "d"} {
		assert.Equal(t, i < 3, l.Allow(request, 1))
	}
	_, err = ratelimit.All(ratelimit.Global[string, struct{}](nil))
	require.Error(t, err)
}

// One limiter drops its keys whenever they are fresh, and the other never does. Settlements have the same
// effect on both. For example, a cost above the estimate is charged even if the key has left the table.
func TestSettlingIsTheSameForKeysThatHaveLeftTheTable(t *testing.T) {
	for seed := range model.Rounds(3000) {
		r := rand.New(rand.NewPCG(testsize.Seed(seed), 83))
		limits := slices.Concat(slowLimits(), fastLimits(), []ratelimit.Limit{ratelimit.Calendar(5, ratelimit.Day("UTC"))})
		limit := limits[r.IntN(len(limits))]
		clock := new(testClock)
		o := ratelimit.Options[string]{Clock: clock, MaxKeys: 100}
		drops := newWith(t, limit, o)
		o.IdleTTL = 100 * 365 * 24 * time.Hour
		keeps := newWith(t, limit, o)
		var a, b ratelimit.Reserver[string] = drops, keeps
		if r.IntN(3) == 0 {
			other := onClock(t, clock, ratelimit.Unlimited())
			inStack := func(l *ratelimit.Keyed[string]) ratelimit.Reserver[string] {
				return ratelimit.Must(ratelimit.All(ratelimit.By(other, itself), ratelimit.By(l, itself),
					model.WithCost(ratelimit.By(l, func(key string) (string, error) { return "of " + key, nil }), func(string) int { return 1 })))
			}
			a, b = inStack(drops), inStack(keeps)
		}
		type pair struct{ a, b *ratelimit.Reservation }
		var open []pair
		for step := range 60 {
			switch r.IntN(6) {
			case 0:
				clock.advance(time.Duration(r.Int64N(int64(time.Minute))))
			case 1:
				clock.advance(time.Duration(r.Int64N(4 * int64(model.Span(limit)))))
				drops.Sweep()
			case 2:
				if r.IntN(4) == 0 {
					drops.Reset(context.Background(), "k")
					keeps.Reset(context.Background(), "k")
					open = nil
				}
			}
			what := fmt.Sprintf("seed %d, step %d: %v", seed, step, limit)
			cost := r.IntN(4)
			if len(open) > 0 && r.IntN(2) == 0 {
				i := r.IntN(len(open))
				p := open[i]
				open = slices.Delete(open, i, i+1)
				require.NoError(t, p.a.Settle(cost*3), what)
				require.NoError(t, p.b.Settle(cost*3), what)
			} else {
				ahead := time.Duration(r.Int64N(int64(time.Hour)))
				x, err := a.Reserve(t.Context(), "k", cost, ahead)
				require.NoError(t, err, what)
				y, err := b.Reserve(t.Context(), "k", cost, ahead)
				require.NoError(t, err, what)
				require.Equal(t, y.Decision, x.Decision, what)
				open = append(open, pair{x, y})
			}
			x, err := drops.Peek(context.Background(), "k", 2)
			require.NoError(t, err, what)
			y, err := keeps.Peek(context.Background(), "k", 2)
			require.NoError(t, err, what)
			require.Equal(t, y, x, what)
		}
	}
}

// docs/promises.md states which cost cannot be charged to a key that has left the table.
func TestSettlingForAKeyThatLeftAFullTable(t *testing.T) {
	for _, full := range []ratelimit.Overflow{ratelimit.Overflow(0), ratelimit.RefuseNew} {
		clock := new(testClock)
		l := newWith(t, ratelimit.TokenBucket(ratelimit.PerSecond(1), 10), ratelimit.Options[string]{Clock: clock, MaxKeys: 1, OnFull: full})
		stack := ratelimit.Must(ratelimit.All(ratelimit.By(l, itself)))
		for _, from := range []ratelimit.Reserver[string]{l, stack} {
			clock.advance(time.Minute)
			r, err := from.Reserve(t.Context(), "k", 2, 0)
			require.NoError(t, err)
			clock.advance(2 * time.Second)
			require.True(t, l.Allow("other", 10), "which takes the place of k, since that is fresh")
			require.NoError(t, r.Settle(7))
			if full == ratelimit.RefuseNew {
				require.Equal(t, 10, remaining(t, l, "k"), "there was no room for it")
				require.Zero(t, remaining(t, l, "other"))
				continue
			}
			require.Equal(t, 5, remaining(t, l, "k"))
			require.NoError(t, r.Settle(9), "only the first counts")
			require.Equal(t, 5, remaining(t, l, "k"))

			r, err = from.Reserve(t.Context(), "k", 2, 0)
			require.NoError(t, err)
			require.True(t, l.Allow("other", 1), "which takes the place of k, although that is not fresh")
			require.NoError(t, r.Settle(7))
			require.Equal(t, 10, remaining(t, l, "k"))
		}
		require.Equal(t, full == ratelimit.RefuseNew, l.Stats().Refused == 2)
	}
}

func TestAReservationOfAKeyThatWasResetIsOver(t *testing.T) {
	l, _ := newLimiter(t, ratelimit.TokenBucket(ratelimit.PerSecond(1), 10))
	stack := ratelimit.Must(ratelimit.All(ratelimit.By(l, itself)))
	for _, from := range []ratelimit.Reserver[string]{l, stack} {
		r, err := from.Reserve(t.Context(), "k", 2, 0)
		require.NoError(t, err)
		l.Reset(context.Background(), "k")
		require.True(t, l.Allow("k", 1))
		require.NoError(t, r.Settle(7))
		require.Equal(t, 9, remaining(t, l, "k"))
		l.Reset(context.Background(), "k")
	}
}

func TestCallsThatOverlapUseTheWholeLimit(t *testing.T) {
	clock := new(ratelimittest.Clock)
	used := func(l ratelimit.Reserver[string]) int { return model.Overlap(t, clock, l, "tenant") }
	keyed := func() *ratelimit.Keyed[string] {
		return newWith(t, model.TokensPerMinute, ratelimit.Options[string]{Clock: clock})
	}
	assert.InDelta(t, 100_000, used(keyed()), 5000)

	l := keyed()
	layered, err := ratelimit.All(ratelimit.By(l, func(r string) (string, error) { return r, nil }))
	require.NoError(t, err)
	assert.InDelta(t, 100_000, used(layered), 5000, "Layered")
}

// With estimates e, real costs a and calls of length d at the rate r, the whole rate needs a burst of e·r·d/a − r·d + e.
func TestTheBurstLimitsTheCallsThatOverlap(t *testing.T) {
	for burst, used := range map[int]int{20_000: 60_000, 35_000: 90_000, 39_000: 100_000} {
		clock := new(ratelimittest.Clock)
		l := newWith(t, ratelimit.TokenBucket(ratelimit.PerMinute(100_000), burst), ratelimit.Options[string]{Clock: clock})
		assert.InDelta(t, used, model.Overlap(t, clock, l, "tenant"), 500, "a burst of %d", burst)
	}
}

// Two hundred streams of one key are open at the same time, and each keeps its refund.
func TestTwoHundredStreamsAtOnceUseTheWholeLimit(t *testing.T) {
	clock := new(ratelimittest.Clock)
	l := newWith(t, model.StreamsPerMinute, ratelimit.Options[string]{Clock: clock})
	assert.InDelta(t, 100_000, model.Streams(t, clock, l, "tenant"), 1000)
}

// In an hour of calls, real costs are a quarter of the estimates, and some calls are booked
// ahead. At least 95 % of the limit is used, and no interval uses more than the bound.
func TestAnHourOfCallsUsesTheWholeLimitAndNoMore(t *testing.T) {
	testsize.Sequential(t)
	for _, ahead := range []time.Duration{0, 3 * time.Second} {
		clock := new(ratelimittest.Clock)
		_, all := wrapped(t, clock, model.TokensPerMinute)
		for name, from := range all {
			used, over := model.Hour(t, clock, from, []string{name}, ahead)
			assert.InDelta(t, 100_000, used, 5000, "%s, %v ahead", name, ahead)
			if name == "lease" {
				over = max(0, over-leasedUnits)
			}
			assert.Zero(t, over, "%s, %v ahead", name, ahead)
		}
	}
}

func TestOpenReservationsLeaveNothingBehind(t *testing.T) {
	clock := new(testClock)
	l := newWith(t, ratelimit.TokenBucket(ratelimit.PerSecond(10), 10), ratelimit.Options[string]{Clock: clock})
	for range 100 { // none of these reservations is ever settled
		r, err := l.Reserve(t.Context(), "k", 1, 0)
		require.NoError(t, err)
		require.True(t, r.Allowed)
		clock.advance(100 * time.Millisecond)
	}
	assert.Equal(t, 10, remaining(t, l, "k"))
	require.True(t, l.Allow("k", 1))
	assert.Zero(t, testing.AllocsPerRun(100, func() {
		clock.advance(100 * time.Millisecond)
		l.Allow("k", 1)
	}))
}

func TestAReservationIsSettledAsIfItsRealCostHadBeenCharged(t *testing.T) {
	clock := new(testClock)
	limit := ratelimit.TokenBucket(ratelimit.PerSecond(10), 100)
	a := newWith(t, limit, ratelimit.Options[string]{Clock: clock})
	b := newWith(t, limit, ratelimit.Options[string]{Clock: clock})
	reserve := func(cost int) *ratelimit.Reservation {
		r, err := a.Reserve(t.Context(), "k", cost, 0)
		require.NoError(t, err)
		require.True(t, r.Allowed)
		return r
	}
	r := reserve(50)
	require.True(t, b.Allow("k", 10))
	clock.advance(2 * time.Second) // 20 of one cost are regained, and 10 of the other
	require.True(t, a.Allow("k", 40))
	require.True(t, b.Allow("k", 40))
	clock.advance(3 * time.Second)
	require.Equal(t, 60, remaining(t, a, "k"))
	require.NoError(t, r.Settle(10))
	assert.Equal(t, 90, remaining(t, a, "k"))
	assert.Equal(t, remaining(t, b, "k"), remaining(t, a, "k"))

	// All of it was regained meanwhile, so nothing is left to give back.
	r = reserve(50)
	clock.advance(time.Minute)
	require.True(t, a.Allow("k", 30))
	require.NoError(t, r.Settle(0))
	assert.Equal(t, 70, remaining(t, a, "k"))
}

func TestTheDebtAfterASettlementIsReadByEachCall(t *testing.T) {
	rate := ratelimit.PerHour(10)
	for _, limit := range []ratelimit.Limit{ratelimit.TokenBucket(rate, 10), ratelimit.LeakyBucket(rate, 10), ratelimit.FixedWindow(rate),
		ratelimit.SlidingLog(rate), ratelimit.SlidingCounter(rate), ratelimit.Calendar(10, ratelimit.Day("UTC"))} {
		l, clock := newLimiter(t, limit)
		of := func(key string) func(call) (string, error) { return func(call) (string, error) { return key, nil } }
		stack := stackOf(t, ratelimit.By(onClock(t, clock, limit), of("k")), ratelimit.By(l, of("k")))
		r, err := l.Reserve(t.Context(), "k", 4, 0)
		require.NoError(t, err)
		assert.Zero(t, r.Debt)
		require.NoError(t, r.Settle(13))
		for name, try := range map[string]func() (ratelimit.Decision, error){
			"Take":       func() (ratelimit.Decision, error) { return l.Take(t.Context(), "k", 1) },
			"Take 0":     func() (ratelimit.Decision, error) { return l.Take(t.Context(), "k", 0) },
			"Peek":       func() (ratelimit.Decision, error) { return l.Peek(context.Background(), "k", 1) },
			"All":        func() (ratelimit.Decision, error) { return stack.Take(t.Context(), call{}, 1) },
			"All's Peek": func() (ratelimit.Decision, error) { return stack.Peek(context.Background(), call{}, 1) },
		} {
			d, err := try()
			require.NoError(t, err)
			assert.Equal(t, 3, d.Debt, "%s of %v", name, limit)
			assert.Zero(t, d.Remaining)
		}
	}
}

// leasedUnits is how many units wrapped's lease may hold.
const leasedUnits = 50

// wrapped returns a limiter, alone and inside the limiters of other packages.
func wrapped(t testing.TB, clock ratelimit.Clock, limit ratelimit.Limit) (l *ratelimit.Keyed[string], all map[string]ratelimit.Reserver[string]) {
	opts := ratelimit.Options[string]{Clock: clock}
	l = newWith(t, limit, opts)
	wide := func() *ratelimit.Keyed[string] { return newWith(t, limit, opts) }
	all = map[string]ratelimit.Reserver[string]{
		"alone":    l,
		"layered":  ratelimit.Must(ratelimit.All(ratelimit.By(l, itself), ratelimit.By(wide(), itself))),
		"chain":    ratelimit.Must(chain.New[string](l, wide())),
		"failover": ratelimit.Must(failover.New(l, failover.DenyAll[string](), &failover.Options{Timeout: -1})),
		"ban":      ratelimit.Must(ban.New[string](l, wide(), wide())),
		"lease":    ratelimit.Must(lease.New[string](l, &lease.Options[string]{MaxBatch: leasedUnits, DenyFor: -1, Clock: clock})),
	}
	return l, all
}

func TestOneOfAThousandSettlementsAtOnceCounts(t *testing.T) {
	clock := new(testClock)
	l, all := wrapped(t, clock, ratelimit.TokenBucket(ratelimit.PerDay(100_000), 100_000))
	for name, from := range all {
		before := remaining(t, l, "k")
		one, err := from.Reserve(t.Context(), "k", 1000, 0)
		require.NoError(t, err)
		storm(1000, func(i int) {
			r, err := from.Reserve(context.Background(), "k", 5, 0)
			assert.NoError(t, err)
			assert.NoError(t, one.Settle(3))
			assert.NoError(t, r.Settle(2))
			assert.NoError(t, r.Cancel())
		})
		if leased, ok := from.(*lease.Limiter[string]); ok {
			require.NoError(t, leased.Flush(t.Context()))
		}
		assert.Equal(t, 1000*2+3, before-remaining(t, l, "k"), name)
		l.Reset(context.Background(), "k")
	}
}

// Costs, delays and clocks are at their ranges' ends. Contexts have ended, and settlements come after a reset,
// a change of limit and a restore. No figure leaves its range, and a grant of everything makes the key fresh.
func TestMisusedReservationsLeaveAllFiguresInTheirRanges(t *testing.T) {
	testsize.Sequential(t)
	ended, end := context.WithCancel(t.Context())
	end()
	limits := append(model.Five(ratelimit.PerMinute(100)), ratelimit.Calendar(100, ratelimit.Day("UTC")),
		ratelimit.TokenBucket(ratelimit.Per(1, 30*24*time.Hour), 1000), ratelimit.TokenBucket(ratelimit.PerSecond(math.MaxInt32), math.MaxInt32))
	jumps := []time.Duration{0, 1, time.Millisecond, time.Minute, 24 * time.Hour, 10 * time.Duration(model.Year)}
	for i, limit := range limits {
		for seed := range uint64(testsize.Of(8, 1000)) {
			rnd := rand.New(rand.NewPCG(seed, uint64(i)))
			number := func() int {
				switch n := rnd.IntN(200); n % 8 {
				case 0:
					return math.MaxInt - n
				case 1:
					return math.MinInt + n/100
				case 2, 3:
					return 1 - n%3
				default:
					return n
				}
			}
			clock := new(testClock)
			l, all := wrapped(t, clock, limit)
			for _, name := range slices.Sorted(maps.Keys(all)) {
				from := all[name]
				var open []*ratelimit.Reservation
				for range 30 {
					switch rnd.IntN(8) {
					case 0:
						if by := jumps[rnd.IntN(len(jumps))] * time.Duration(1-2*rnd.IntN(2)); (clock.Now() + by).Abs() < time.Duration(model.Century) {
							clock.advance(by)
						}
					case 1, 2, 3:
						ctx := t.Context()
						if rnd.IntN(5) == 0 {
							ctx = ended
						}
						r, err := from.Reserve(ctx, "k", number(), time.Duration(number()))
						if err == nil {
							open = append(open, r)
						}
						require.False(t, err != nil && r != nil && r.Allowed, "%s: an error, and a reservation", name)
					case 4, 5:
						if len(open) > 0 {
							r := open[rnd.IntN(len(open))]
							require.NoError(t, r.Settle(number()), name)
							require.NoError(t, r.Cancel(), name)
							require.Equal(t, r.Allowed, r.Wait(ended) == nil, "%s: settled", name)
						}
					case 6:
						from.Allow("k", number())
						_ = l.Adjust(context.Background(), "k", number())
					case 7:
						switch rnd.IntN(3) {
						case 0:
							l.Reset(context.Background(), "k")
						case 1:
							require.NoError(t, l.SetLimit(limits[rnd.IntN(len(limits))]))
							l.Refresh("k")
							require.NoError(t, l.SetLimit(limit))
						case 2:
							require.NoError(t, l.Restore(maps.All(maps.Collect(l.Saved())), time.Duration(rnd.Int64N(1e9))))
						}
					}
					d, err := l.Peek(context.Background(), "k", 0)
					require.NoError(t, err)
					require.True(t, d.Remaining >= 0 && d.Remaining <= limit.Capacity() && d.Debt >= 0 &&
						d.ResetAfter >= 0 && d.ResetAfter <= 2*time.Duration(model.Century), "%v, %s, seed %d: %+v", limit, name, seed, d)
				}
				for _, r := range open {
					require.NoError(t, r.Cancel())
				}
				if leased, ok := from.(*lease.Limiter[string]); ok {
					require.NoError(t, leased.Flush(t.Context()))
				}
				// repeated, because the charges may exceed an int of 32 bits,
				// and the units set aside and the bookings must go, too
				for range 60 {
					require.NoError(t, l.Adjust(context.Background(), "k", math.MinInt))
				}
				require.Equal(t, limit.Capacity(), remaining(t, l, "k"), "%v, %s, seed %d", limit, name, seed)
			}
		}
	}
}
