package ban_test

import (
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
	"github.com/weir-go/ratelimit/ban"
	"github.com/weir-go/ratelimit/internal/dev/model"
	"github.com/weir-go/ratelimit/ratelimittest"
)

// jail is a Limiter on limiters in memory.
type jail struct {
	*ban.Limiter[string]
	limiter, strikes, bans *ratelimit.Keyed[string]
	clock                  *ratelimittest.Clock
}

var (
	jailLimit = ratelimit.FixedWindow(ratelimit.PerMinute(2)).Named("requests")
	banLimit  = ratelimit.FixedWindow(ratelimit.Per(1, time.Hour)).Named("ban")
)

func newJail(t testing.TB, strikes ratelimit.Limit) jail {
	t.Helper()
	clock := new(ratelimittest.Clock)
	j := jail{limiter: onClock(t, clock, jailLimit), strikes: onClock(t, clock, strikes), bans: onClock(t, clock, banLimit), clock: clock}
	j.Limiter = banOf(t, j.limiter, j.strikes, j.bans)
	return j
}

func banOf[K any](t testing.TB, l, strikes, bans ratelimit.Reserver[K]) *ban.Limiter[K] {
	t.Helper()
	b, err := ban.New(l, strikes, bans)
	require.NoError(t, err)
	return b
}

func take(t testing.TB, l ratelimit.Limiter[string], cost int) ratelimit.Decision {
	t.Helper()
	d, err := l.Take(t.Context(), "k", cost)
	require.NoError(t, err)
	return d
}

func TestTheStrikeThatExhaustsStrikesBeginsTheBan(t *testing.T) {
	j := newJail(t, ratelimit.FixedWindow(ratelimit.PerHour(3)))
	own := ratelimit.Decision{Limit: jailLimit, RetryAfter: time.Minute, ResetAfter: time.Minute, NextAfter: time.Minute}
	for range 2 {
		require.True(t, take(t, j, 2).Allowed)
		require.Equal(t, own, take(t, j, 1))
		require.Equal(t, own, take(t, j, 1), "no strike of its own")
		j.clock.Advance(time.Minute)
	}
	require.True(t, take(t, j, 2).Allowed)
	require.Equal(t, bannedFor(time.Hour), take(t, j, 1), "the third strike tells the ban already")
	require.Equal(t, 3, remaining(t, j.strikes, "k"), "strikes begin anew")
	require.True(t, j.Allow("another", 1))
	require.Equal(t, ban.Stats{Begun: 1}, j.Stats())
}

func bannedFor(d time.Duration) ratelimit.Decision {
	return ratelimit.Decision{Limit: banLimit, RetryAfter: d, ResetAfter: d, NextAfter: d}
}

// While a key is banned, no limiter is called or charged, and the ban does not become longer. A cost of 0
// stands for work whose real cost is settled later. A banned key must not do such work, either.
func TestABannedKeyIsDeniedEachCall(t *testing.T) {
	for name, call := range map[string]func(ctx context.Context, j jail, cost int) (ratelimit.Decision, error){
		"Take": func(ctx context.Context, j jail, cost int) (ratelimit.Decision, error) { return j.Take(ctx, "k", cost) },
		"Peek": func(ctx context.Context, j jail, cost int) (ratelimit.Decision, error) { return j.Peek(ctx, "k", cost) },
		"TakeUpTo": func(ctx context.Context, j jail, cost int) (ratelimit.Decision, error) {
			granted, d, err := ratelimit.TakeUpTo[string](ctx, j, "k", cost)
			d.Allowed = granted != 0
			return d, err
		},
		"Reserve, which does not wait for the end": func(ctx context.Context, j jail, cost int) (ratelimit.Decision, error) {
			r, err := j.Reserve(ctx, "k", cost, 24*time.Hour)
			return r.Decision, errors.Join(err, r.Settle(5))
		},
		"Take after more strikes": func(ctx context.Context, j jail, cost int) (ratelimit.Decision, error) {
			return take(t, j, cost), j.Strike(ctx, "k", 5)
		},
	} {
		for _, cost := range []int{0, 1, 99} { // 99 is above the limiter's limit
			t.Run(fmt.Sprint(name, ", ", cost), func(t *testing.T) {
				j := newJail(t, ratelimit.FixedWindow(ratelimit.PerHour(3)))
				require.NoError(t, j.Strike(t.Context(), "k", 3))
				j.clock.Advance(10 * time.Minute)
				d, err := call(t.Context(), j, cost)
				require.NoError(t, err)
				require.Equal(t, bannedFor(50*time.Minute), d)
				require.False(t, j.Allow("k", cost))
				short, cancel := context.WithTimeout(t.Context(), time.Minute)
				defer cancel()
				require.ErrorIs(t, j.Wait(short, "k", cost), context.DeadlineExceeded)
				require.Zero(t, j.limiter.Stats().Keys, "nothing is charged")
				require.Equal(t, 3, remaining(t, j.strikes, "k"))
				j.clock.Advance(50*time.Minute - 1)
				require.False(t, j.Allow("k", cost))
				j.clock.Advance(1)
				require.True(t, j.Allow("k", 2), "RetryAfter was exact")
				require.Equal(t, ban.Stats{Begun: 1}, j.Stats())
			})
		}
	}
}

func TestDecisionsThatAreNoStrike(t *testing.T) {
	j := newJail(t, ratelimit.FixedWindow(ratelimit.PerMinute(1)))
	for range 9 {
		_, err := j.Take(t.Context(), "k", 3)
		require.ErrorIs(t, err, ratelimit.ErrExceedsLimit)
		_, err = j.Take(t.Context(), "k", -1)
		require.ErrorIs(t, err, ratelimit.ErrNegativeCost)
		require.True(t, j.Allow("k", 0))
		_, err = j.Peek(t.Context(), "k", 2)
		require.NoError(t, err)
	}
	require.Equal(t, 1, remaining(t, j.strikes, "k"))

	for name, answer := range map[string]struct {
		d   ratelimit.Decision
		err error
	}{
		"degraded": {d: ratelimit.Decision{Degraded: true, RetryAfter: s}},
		"an error": {err: ratelimit.ErrUnavailable},
	} {
		l := &engine{Answer: func() (ratelimit.Decision, error) { return answer.d, answer.err }}
		b := banOf(t, l, j.strikes, j.bans)
		d, err := b.Take(t.Context(), "k", 1)
		require.ErrorIs(t, err, answer.err, name)
		require.Equal(t, answer.d, d, name)
		_, err = b.Reserve(t.Context(), "k", 1, 0)
		require.ErrorIs(t, err, answer.err, name)
		require.Equal(t, 1, remaining(t, j.strikes, "k"), name)
	}
	// After its denial, this caller stops.
	require.True(t, j.Allow("k", 2))
	ctx, cancel := context.WithTimeout(t.Context(), time.Second)
	defer cancel()
	require.ErrorIs(t, j.Wait(ctx, "k", 1), context.DeadlineExceeded)
	require.Equal(t, 1, remaining(t, j.strikes, "k"))
}

func TestADenialByALimitThatKeysShareIsNoStrike(t *testing.T) {
	own := ratelimit.FixedWindow(ratelimit.PerMinute(2)).Named("own")
	shared := ratelimit.FixedWindow(ratelimit.PerMinute(3)).Named("shared")
	other := func(string) ratelimit.Limit { return ratelimit.FixedWindow(ratelimit.PerMinute(2)).Named("of-its-own") }
	for _, test := range []struct {
		name       string
		first      func(string) ratelimit.Limit // LimitFor of the key's own limit
		second     func(string) ratelimit.Limit // LimitFor of the limit shared by all keys
		ownStrikes bool                         // whether a denial by the key's own limit is a strike
	}{
		{name: "both are known", ownStrikes: true},
		{name: "the first is each key's own", first: other, ownStrikes: true},
		{name: "the second is", second: func(string) ratelimit.Limit { return shared }, ownStrikes: true},
		{name: "both are", first: other, second: func(string) ratelimit.Limit { return shared }},
	} {
		clock := new(ratelimittest.Clock)
		users := limiterWith(t, own, ratelimit.Options[string]{Clock: clock, LimitFor: test.first})
		all := limiterWith(t, shared, ratelimit.Options[string]{Clock: clock, LimitFor: test.second})
		strikes, bans := onClock(t, clock, ratelimit.FixedWindow(ratelimit.PerMinute(9))), onClock(t, clock, banLimit)
		one := func(string) (string, error) { return "all", nil }
		stack, err := ratelimit.All(ratelimit.By(users, itself), ratelimit.By(all, one))
		require.NoError(t, err)
		for kind, l := range map[string]ratelimit.Reserver[string]{
			"stack": stack, "chain": chainOf(t, users, ratelimit.Map[string, string](all, one)),
			"map": ratelimit.Map[string, string](stack, itself),
		} {
			for _, k := range []string{"k", "all", "other"} {
				users.Reset(context.Background(), k)
				all.Reset(context.Background(), k)
				strikes.Reset(context.Background(), k)
			}
			b := banOf(t, l, strikes, bans)
			require.True(t, b.Allow("k", 2), test.name)
			d := take(t, b, 1)
			require.False(t, d.Allowed)
			want := 9
			if test.ownStrikes {
				want = 8
			}
			require.Equal(t, want, remaining(t, strikes, "k"), "%s: %s", test.name, kind)
			require.True(t, b.Allow("other", 1))
			users.Reset(context.Background(), "k")
			d = take(t, b, 1)
			require.Equal(t, shared, d.Limit)
			require.False(t, d.Allowed)
			require.Equal(t, want, remaining(t, strikes, "k"), "%s: %s", test.name, kind)
		}
	}
}

// New refuses a limiter if its first limit equals another one, because denials by either would look the same.
func TestNewWantsTheFirstLimitToBeKnownFromTheOthers(t *testing.T) {
	clock := new(ratelimittest.Clock)
	a, b := onClock(t, clock, jailLimit), onClock(t, clock, jailLimit)
	bans := onClock(t, clock, banLimit)
	_, err := ban.New[string](chainOf(t, a, b), bans, bans)
	require.EqualError(t, err, "ban: limiter has two limits of "+jailLimit.String()+": give them names, so that a denial identifies its limit")

	// SetLimit can also make the limits equal later.
	require.NoError(t, b.SetLimit(jailLimit.Named("shared")))
	strikes := onClock(t, clock, ratelimit.FixedWindow(ratelimit.PerMinute(1)))
	l := banOf(t, chainOf(t, a, b), strikes, bans)
	require.NoError(t, b.SetLimit(jailLimit))
	require.True(t, l.Allow("k", 2))
	require.False(t, l.Allow("k", 1))
	require.Equal(t, 1, remaining(t, strikes, "k"))
}

func TestStrikesAreReportedByTheCaller(t *testing.T) {
	j := newJail(t, ratelimit.FixedWindow(ratelimit.PerMinute(5)))
	ctx := t.Context()
	require.ErrorIs(t, j.Strike(ctx, "k", -1), ratelimit.ErrNegativeCost)
	require.ErrorIs(t, j.Strike(ctx, "k", math.MinInt), ratelimit.ErrNegativeCost)
	require.NoError(t, j.Strike(ctx, "k", 0))
	require.Zero(t, j.strikes.Stats().Keys)
	require.NoError(t, j.Strike(ctx, "k", 4))
	require.True(t, j.Allow("k", 1))
	require.NoError(t, j.Strike(ctx, "k", 1))
	require.False(t, j.Allow("k", 1))
	require.Equal(t, time.Hour, take(t, j, 1).RetryAfter)

	// A number above the remaining strikes, or above their capacity, exhausts them, too.
	for _, n := range []int{3, 6, math.MaxInt} {
		require.NoError(t, j.Reset(ctx, "k"))
		require.True(t, take(t, j, 0).Allowed)
		require.NoError(t, j.Strike(ctx, "k", 3))
		require.True(t, j.Allow("other", 0))
		require.Equal(t, 2, remaining(t, j.strikes, "k"))
		require.NoError(t, j.Strike(ctx, "k", n))
		require.Equal(t, banLimit, take(t, j, 1).Limit, "%d strikes", n)
	}
	require.Equal(t, uint64(4), j.Stats().Begun)
	require.NoError(t, j.Reset(ctx, "k"))
	strict := banOf(t, j.limiter, onClock(t, j.clock, ratelimit.Blocked()), j.bans)
	require.NoError(t, strict.Strike(ctx, "k", 1))
	require.Equal(t, banLimit, take(t, strict, 1).Limit, "zero tolerance")
}

func TestResetForgetsBanStrikesAndBudget(t *testing.T) {
	j := newJail(t, ratelimit.FixedWindow(ratelimit.PerMinute(2)))
	ctx := t.Context()
	require.True(t, j.Allow("k", 2))
	require.NoError(t, j.Strike(ctx, "k", 1))
	require.NoError(t, j.Reset(ctx, "k"))
	require.Equal(t, 2, remaining(t, j.strikes, "k"))
	require.NoError(t, j.Strike(ctx, "k", 2))
	require.NoError(t, j.Reset(ctx, "k"))
	d := take(t, j, 2)
	require.Equal(t, jailLimit, d.Limit)
	require.True(t, d.Allowed)
	require.NoError(t, j.Strike(ctx, "k", 2))
	require.NoError(t, ratelimit.Reset(ctx, ratelimit.Limiter[string](j), "k"))
	require.True(t, j.Allow("k", 2))
	require.NoError(t, j.Reset(ctx, "never seen"))
	require.NoError(t, ratelimit.Adjust(ctx, ratelimit.Limiter[string](j), "k", -1))
	require.True(t, j.Allow("k", 1))
	require.Equal(t, []ratelimit.Limit{jailLimit, banLimit}, j.Describe().Limits)
}

func TestAWaitOnABannedKeyWaitsForTheBansEnd(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		limiter := ratelimit.Must(ratelimit.New[string](jailLimit, nil))
		strikes := ratelimit.Must(ratelimit.New[string](ratelimit.FixedWindow(ratelimit.PerMinute(1)), nil))
		bans := ratelimit.Must(ratelimit.New[string](banLimit, nil))
		b := banOf(t, limiter, strikes, bans)
		require.NoError(t, b.Strike(t.Context(), "k", 1))
		start := time.Now()
		ctx, cancel := context.WithTimeout(t.Context(), time.Hour-1)
		defer cancel()
		var late *ratelimit.LateError
		err := b.Wait(ctx, "k", 1)
		require.ErrorIs(t, err, context.DeadlineExceeded)
		require.ErrorAs(t, err, &late)
		require.Equal(t, time.Hour, late.RetryAfter())
		require.Zero(t, time.Since(start), "at once")
		require.ErrorIs(t, b.Wait(t.Context(), "k", -1), ratelimit.ErrNegativeCost)
		require.NoError(t, ratelimit.Wait(t.Context(), ratelimit.Reserver[string](b), "k", 2))
		require.Equal(t, time.Hour, time.Since(start))
		require.NoError(t, b.Wait(t.Context(), "k", 1))
		require.Equal(t, time.Hour+time.Minute, time.Since(start), "then the limit's own time")

		require.NoError(t, b.Strike(t.Context(), "k", 1))
		cancelled, cancel := context.WithCancel(t.Context())
		go func() {
			time.Sleep(time.Minute)
			cancel()
		}()
		require.ErrorIs(t, b.Wait(cancelled, "k", 1), context.Canceled)
		require.ErrorIs(t, b.Wait(cancelled, "k", 1), context.Canceled)
		require.Equal(t, time.Hour+2*time.Minute, time.Since(start))
	})
}

// If many strikes come at once, exactly one begins the ban, whichever algorithm counts them.
func TestABanBeginsOnce(t *testing.T) {
	for _, algorithm := range []func(ratelimit.Rate) ratelimit.Limit{
		ratelimit.FixedWindow, ratelimit.SlidingLog, ratelimit.SlidingCounter,
		func(r ratelimit.Rate) ratelimit.Limit { return ratelimit.TokenBucket(r, r.Units) },
		func(r ratelimit.Rate) ratelimit.Limit { return ratelimit.LeakyBucket(r, r.Units) },
	} {
		for range 20 {
			clock := new(ratelimittest.Clock)
			strikes := onClock(t, clock, algorithm(ratelimit.PerMinute(3)))
			begun := 0
			bans := limiterWith(t, algorithm(ratelimit.Per(1, time.Hour)), ratelimit.Options[string]{Clock: clock, OnDecision: func(e ratelimit.Event[string]) {
				if e.Spent {
					begun++ // calls come one at a time, so no lock is needed; the race detector checks this
				}
			}})
			b := banOf(t, onClock(t, clock, jailLimit), strikes, bans)
			require.True(t, b.Allow("k", 2))
			var wg sync.WaitGroup
			for i := range 16 {
				wg.Go(func() {
					for range 4 {
						if i%2 == 0 {
							assert.NoError(t, b.Strike(context.Background(), "k", 1))
						} else {
							assert.False(t, b.Allow("k", 1))
						}
					}
				})
			}
			wg.Wait()
			require.Equal(t, 1, begun)
			require.Equal(t, ban.Stats{Begun: 1}, b.Stats())
			d := take(t, b, 1)
			require.Equal(t, bans.Describe().Limits[0], d.Limit)
			clock.Advance(d.RetryAfter - 1)
			require.False(t, b.Allow("k", 1))
			clock.Advance(1)
			require.True(t, b.Allow("k", 1))
		}
	}
}

// If a strike cannot be counted, the denial stays as it is.
func TestADenialStaysADenialIfTheStrikeFails(t *testing.T) {
	j := newJail(t, ratelimit.FixedWindow(ratelimit.PerMinute(1)))
	b := banOf(t, j.limiter, &resettable{engine: fails(ratelimit.ErrUnavailable)}, j.bans)
	require.True(t, b.Allow("k", 2))
	d := take(t, b, 1)
	require.Equal(t, jailLimit, d.Limit)
	require.False(t, d.Allowed)
	require.Equal(t, uint64(1), b.Stats().Failed)
	require.ErrorIs(t, b.Stats().LastFailure, ratelimit.ErrUnavailable)
	require.ErrorIs(t, b.Strike(t.Context(), "k", 1), ratelimit.ErrUnavailable)
	require.Equal(t, uint64(1), b.Stats().Failed, "the caller has the error")
}

func TestIfBansFailsTheLimiterIsNotCalled(t *testing.T) {
	j := newJail(t, ratelimit.FixedWindow(ratelimit.PerMinute(1)))
	b := banOf(t, j.limiter, j.strikes, &resettable{engine: fails(ratelimit.ErrUnavailable)})
	d, err := b.Take(t.Context(), "k", 1)
	require.ErrorIs(t, err, ratelimit.ErrUnavailable)
	require.False(t, d.Allowed)
	require.False(t, b.Allow("k", 1))
	r, err := b.Reserve(t.Context(), "k", 1, 0)
	require.ErrorIs(t, err, ratelimit.ErrUnavailable)
	require.NoError(t, r.Cancel())
	require.ErrorIs(t, b.Wait(t.Context(), "k", 1), ratelimit.ErrUnavailable)
	require.Equal(t, []int{2, 1}, []int{remaining(t, j.limiter, "k"), remaining(t, j.strikes, "k")})
}

func TestABanThatFailsToBeginBeginsWithTheNextStrike(t *testing.T) {
	j := newJail(t, ratelimit.FixedWindow(ratelimit.PerMinute(1)))
	flaky := &flakyBans{Keyed: j.bans, err: ratelimit.ErrUnavailable}
	b := banOf[string](t, j.limiter, j.strikes, flaky)
	require.True(t, b.Allow("k", 2))
	require.Equal(t, jailLimit, take(t, b, 1).Limit)
	require.Equal(t, uint64(1), b.Stats().Failed)
	flaky.err = nil
	require.Equal(t, banLimit, take(t, b, 1).Limit)
}

func TestResetResetsBansAlthoughStrikesFail(t *testing.T) {
	j := newJail(t, ratelimit.FixedWindow(ratelimit.PerMinute(1)))
	require.True(t, j.bans.Allow("k", 1))
	strikes := &resettable{engine: allows(ratelimit.Decision{Remaining: 1}), err: errors.New("down")}
	require.ErrorContains(t, banOf[string](t, j.limiter, strikes, j.bans).Reset(t.Context(), "k"), "down")
	require.Equal(t, 1, remaining(t, j.bans, "k"))
}

// resettable is an engine with a Peek and a Reset.
type resettable struct {
	*engine
	err error
}

func (r *resettable) Peek(context.Context, string, int) (ratelimit.Decision, error) {
	return r.Answer()
}
func (r *resettable) Reset(context.Context, string) error { return r.err }

// flakyBans returns an error from Take.
type flakyBans struct {
	*ratelimit.Keyed[string]
	err error
}

func (f *flakyBans) Take(ctx context.Context, key string, cost int) (ratelimit.Decision, error) {
	if f.err != nil {
		return ratelimit.Decision{}, f.err
	}
	return f.Keyed.Take(ctx, key, cost)
}

func TestNewRefusesLimitersThatCannotBan(t *testing.T) {
	l := onClock(t, new(ratelimittest.Clock), jailLimit)
	stack, err := ratelimit.All(ratelimit.By(l, itself))
	require.NoError(t, err)
	var none *ratelimit.Keyed[string]
	for _, test := range []struct {
		l, strikes, bans ratelimit.Reserver[string]
		want             string
	}{
		{none, l, l, "ban: New: limiter holds a nil *ratelimit.Keyed[string]: give nil itself for none"},
		{l, nil, l, "ban: New: strikes is nil"},
		{l, &struck{&engine{}}, l, "ban: strikes: *ban_test.struck has no Peek: unsupported operation"},
		{l, l, none, "ban: New: bans is nil"},
		{l, stack, l, "ban: strikes: *ratelimit.Layered[string] has no Reset: unsupported operation"},
		{l, l, stack, "ban: bans: *ratelimit.Layered[string] has no Reset: unsupported operation"},
		{l, l, &engine{}, "ban: bans: *model.Engine has no Reset: unsupported operation"},
		{l, l, &struck{&engine{}}, "ban: bans: *ban_test.struck has no Peek: unsupported operation"},
	} {
		_, err := ban.New(test.l, test.strikes, test.bans)
		require.EqualError(t, err, test.want)
	}
	var zero ban.Limiter[string]
	for name, call := range map[string]func(){
		"Take":     func() { _, _ = zero.Take(t.Context(), "k", 1) },
		"Strike":   func() { _ = zero.Strike(t.Context(), "k", 1) },
		"Reset":    func() { _ = zero.Reset(t.Context(), "k") },
		"Describe": func() { zero.Describe() },
		"Stats":    func() { zero.Stats() },
	} {
		require.PanicsWithError(t, "ban: this Limiter is nil or zero: make one with New or NewGrowing", call, name)
	}
	var noContext context.Context
	b := banOf[string](t, l, onClock(t, new(ratelimittest.Clock), jailLimit), onClock(t, new(ratelimittest.Clock), banLimit))
	require.NoError(t, b.Strike(noContext, "k", 1))
	require.NoError(t, b.Wait(noContext, "k", 1))
	require.NoError(t, b.Reset(noContext, "k"))
}

// struck is an engine with a Reset and no Peek.
type struck struct{ *engine }

func (*struck) Reset(context.Context, string) error { return nil }

// An outer limiter bans clients often banned by an inner one. A denial by the inner ban itself is not a strike.
func TestABanInABanCountsOnlyTheLimitersDenials(t *testing.T) {
	j := newJail(t, ratelimit.FixedWindow(ratelimit.PerMinute(1)))
	strikes := onClock(t, j.clock, ratelimit.FixedWindow(ratelimit.PerDay(2)))
	outer := banOf[string](t, j.Limiter, strikes, onClock(t, j.clock, ratelimit.FixedWindow(ratelimit.PerDay(1)).Named("long-ban")))
	require.True(t, outer.Allow("k", 2))
	for range 5 {
		require.Equal(t, banLimit, take(t, outer, 1).Limit)
	}
	require.Equal(t, 2, remaining(t, strikes, "k"))
}

// Without strikes, a Limiter keeps each promise of its limiter.
func TestALimiterThatNeverBansKeepsTheWholeContract(t *testing.T) {
	clock := new(ratelimittest.Clock)
	ratelimittest.Run(t, ratelimittest.Config{Clock: clock, Seed: 7, Histories: 3, Want: []string{"Calendar"},
		New: func(limit ratelimit.Limit) (ratelimit.Limiter[string], error) {
			l, err := ratelimit.New(limit, &ratelimit.Options[string]{Clock: clock})
			if err != nil {
				return nil, err
			}
			return ban.New[string](l,
				ratelimit.Must(ratelimit.New[string](ratelimit.Unlimited(), nil)),
				ratelimit.Must(ratelimit.New[string](banLimit, nil)))
		},
	})
}

// While the store of strikes is down and the stand-in denies, no ban begins.
func TestDegradedStrikesBeginNoBan(t *testing.T) {
	clock := new(ratelimittest.Clock)
	bans := onClock(t, clock, banLimit)
	b := banOf(t, ratelimit.Reserver[string](onClock(t, clock, jailLimit)), denying{onClock(t, clock, jailLimit)}, bans)
	require.True(t, take(t, b, 2).Allowed)
	for range 3 {
		require.Equal(t, jailLimit, take(t, b, 1).Limit)
	}
	require.EqualValues(t, 0, b.Stats().Begun)
	require.EqualValues(t, 3, b.Stats().Failed)
	require.ErrorIs(t, b.Stats().LastFailure, ratelimit.ErrUnavailable)
	require.True(t, bans.Allow("k", 1), "nothing was written to bans")
}

// denying returns degraded denials, as failover.DenyAll does while its store is down.
type denying struct{ *ratelimit.Keyed[string] }

func (denying) Take(context.Context, string, int) (ratelimit.Decision, error) {
	return ratelimit.Decision{Degraded: true, RetryAfter: time.Second}, nil
}

// If the stand-in for bans allows the banned key, there is no ban: the strikes stay, and the failure is counted.
func TestABanThatIsNotKeptIsNone(t *testing.T) {
	clock := new(ratelimittest.Clock)
	strikes := onClock(t, clock, ratelimit.FixedWindow(ratelimit.PerHour(2)))
	b := banOf(t, ratelimit.Reserver[string](onClock(t, clock, jailLimit)), strikes, onClock(t, clock, ratelimit.Unlimited()))
	require.True(t, take(t, b, 2).Allowed)
	require.Equal(t, jailLimit, take(t, b, 1).Limit)
	clock.Advance(time.Minute)
	require.True(t, take(t, b, 2).Allowed)
	for range 3 {
		require.Equal(t, jailLimit, take(t, b, 1).Limit)
	}
	require.EqualValues(t, 0, b.Stats().Begun)
	require.EqualValues(t, 3, b.Stats().Failed)
	require.False(t, strikes.Allow("k", 1), "the strikes are not forgotten")
}

// A shadow never denies. So every denial comes from one of the other limits.
func TestAShadowBesideTheLimitsLeavesDenialsStrikes(t *testing.T) {
	own := ratelimit.FixedWindow(ratelimit.PerMinute(2)).Named("own")
	shared := ratelimit.FixedWindow(ratelimit.PerMinute(3)).Named("shared")
	one := func(string) (string, error) { return "all", nil }
	for _, tried := range []ratelimit.Limit{ratelimit.FixedWindow(ratelimit.PerMinute(1)).Named("tried"), own, shared} {
		for at := range 3 {
			for _, twice := range []bool{false, true} {
				clock := new(ratelimittest.Clock)
				users, all, trial := onClock(t, clock, own), onClock(t, clock, shared), onClock(t, clock, tried)
				layers := []ratelimit.Layer[string]{ratelimit.By(users, itself), ratelimit.By(all, one)}
				shadow := ratelimit.By(trial, itself)
				shadow.Shadow = true
				layers = slices.Insert(layers, at, shadow)
				if twice {
					observed := shadow
					observed.Observe = func(ratelimit.Event[string]) {}
					layers = slices.Insert(layers, 0, observed)
				}
				stack := ratelimit.Must(ratelimit.All(layers...))
				require.Equal(t, []ratelimit.Limit{own, shared}, stack.Describe().Limits, "a shadow's limit is none that the stack enforces")
				onlyShadows := ratelimit.Must(ratelimit.All(shadow))
				require.Empty(t, onlyShadows.Describe().Limits)
				for kind, l := range map[string]ratelimit.Reserver[string]{
					"stack": stack, "chain": chainOf(t, onlyShadows, stack), "map": ratelimit.Map[string, string](stack, itself),
				} {
					what := fmt.Sprintf("%s, %s at %d, twice %v", kind, tried.Name, at, twice)
					for _, k := range []string{"k", "all", "other"} {
						users.Reset(context.Background(), k)
						all.Reset(context.Background(), k)
					}
					strikes, bans := onClock(t, clock, ratelimit.FixedWindow(ratelimit.PerMinute(9))), onClock(t, clock, banLimit)
					b := banOf(t, l, strikes, bans)
					require.True(t, b.Allow("k", 2), what)
					require.False(t, b.Allow("k", 1), what)
					require.Equal(t, 8, remaining(t, strikes, "k"), what)
					require.True(t, b.Allow("other", 1), what)
					users.Reset(context.Background(), "k")
					require.Equal(t, shared, take(t, b, 1).Limit, what)
					require.Equal(t, 8, remaining(t, strikes, "k"), "%s: a denial by the limit that keys share is no strike", what)
				}
			}
		}
	}
}

// With a nil limiter, only strikes reported by the caller ban a key.
func TestWithoutALimitOnlyBansDeny(t *testing.T) {
	clock := new(ratelimittest.Clock)
	strikes, bans := onClock(t, clock, ratelimit.FixedWindow(ratelimit.Per(5, 15*time.Minute))), onClock(t, clock, banLimit)
	b, err := ban.New(nil, strikes, bans)
	require.NoError(t, err)
	ctx := t.Context()
	allowed := ratelimit.Decision{Allowed: true, Limit: ratelimit.Unlimited(), Remaining: ratelimit.Unlimited().Capacity()}
	for range 100 {
		require.True(t, b.Allow("k", math.MaxInt))
	}
	require.False(t, b.Allow("k", -1))
	_, err = b.Take(ctx, "k", -1)
	require.ErrorIs(t, err, ratelimit.ErrNegativeCost)
	for range 4 {
		require.NoError(t, b.Strike(ctx, "k", 1))
		require.Equal(t, allowed, take(t, b, 1))
		d, err := b.Peek(ctx, "k", 1)
		require.NoError(t, err)
		require.Equal(t, allowed, d)
		r, err := b.Reserve(ctx, "k", 1, 0)
		require.NoError(t, err)
		require.Equal(t, allowed, r.Decision)
		require.NoError(t, r.Settle(3))
		require.NoError(t, b.Wait(ctx, "k", 1))
	}
	require.NoError(t, b.Strike(ctx, "k", 1))
	banned := ratelimit.Decision{Limit: banLimit, RetryAfter: time.Hour, ResetAfter: time.Hour, NextAfter: time.Hour}
	require.Equal(t, banned, take(t, b, 1))
	require.True(t, b.Allow("other", 1))
	require.NoError(t, b.Adjust(ctx, "k", 9))
	require.Equal(t, []ratelimit.Limit{banLimit}, b.Describe().Limits)
	require.False(t, b.Describe().BooksAhead)
	require.False(t, b.Describe().ReplacesCost)
	require.NoError(t, b.Reset(ctx, "k"))
	require.True(t, b.Allow("k", 1))
}

// The limit of strikes is too high to be reached, so no key is banned.
func TestCallsThatOverlapUseTheWholeLimitWhereNoKeyIsBanned(t *testing.T) {
	clock := new(ratelimittest.Clock)
	onClock := func(limit ratelimit.Limit) *ratelimit.Keyed[string] {
		return ratelimit.Must(ratelimit.New(limit, &ratelimit.Options[string]{Clock: clock}))
	}
	l := ratelimit.Must(ban.New[string](onClock(model.TokensPerMinute), onClock(ratelimit.FixedWindow(ratelimit.PerHour(1_000_000))), onClock(banLimit)))
	require.InDelta(t, 100_000, model.Overlap(t, clock, l, "tenant"), 5000)
}
