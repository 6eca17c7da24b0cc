package lease_test

import (
	"context"
	"errors"
	"math"
	"net/netip"
	"slices"
	"strconv"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/weir-go/ratelimit"
	"github.com/weir-go/ratelimit/internal/dev/model"
	"github.com/weir-go/ratelimit/lease"
	"github.com/weir-go/ratelimit/ratelimittest"
)

// plenty is a limit that no test reaches.
var plenty = ratelimit.TokenBucket(ratelimit.PerSecond(1_000_000), 1_000_000)

// tight returns a limit that regains nothing while a test runs.
func tight(burst int) ratelimit.Limit { return ratelimit.TokenBucket(ratelimit.PerDay(1), burst) }

func TestNewNamesTheInvalidOption(t *testing.T) {
	s := newServer(t, plenty)
	for _, row := range []struct {
		name string
		opts *lease.Options[string]
		want string
	}{
		{"no options", nil, "lease: Options.MaxBatch is 0, want at least 1"},
		{"no batch", &lease.Options[string]{}, "lease: Options.MaxBatch is 0, want at least 1"},
		{"negative batch", &lease.Options[string]{MaxBatch: -1}, "lease: Options.MaxBatch is -1, want at least 1"},
		{"negative HoldFor", &lease.Options[string]{MaxBatch: 1, HoldFor: -1}, "lease: Options.HoldFor is -1ns, want 0 for the default, or more"},
		{"negative BatchFor", &lease.Options[string]{MaxBatch: 1, BatchFor: -1}, "lease: Options.BatchFor is -1ns, want 0 for the default, or more"},
		{"BatchFor beyond HoldFor", &lease.Options[string]{MaxBatch: 1, BatchFor: 2 * time.Second}, "lease: Options.BatchFor is 2s, want at most HoldFor, 1s"},
		{"negative Timeout", &lease.Options[string]{MaxBatch: 1, Timeout: -1}, "lease: Options.Timeout is -1ns, want 0 for the default, or more"},
		{"a clock that is nil", &lease.Options[string]{MaxBatch: 1, Clock: (*ratelimittest.Clock)(nil)}, "lease: Options.Clock holds a nil *ratelimittest.Clock: give nil itself for none"},
		{"negative MaxKeys", &lease.Options[string]{MaxBatch: 1, MaxKeys: -1}, "lease: Options.MaxKeys is -1, want 0 for the default, or more"},
	} {
		t.Run(row.name, func(t *testing.T) {
			_, err := lease.New[string](s, row.opts)
			require.EqualError(t, err, row.want)
		})
	}
	_, err := lease.New[string](nil, &lease.Options[string]{MaxBatch: 1})
	require.EqualError(t, err, "lease: New: remoteLimiter is nil")
	_, err = lease.New[string]((*ratelimit.Keyed[string])(nil), &lease.Options[string]{MaxBatch: 1})
	require.EqualError(t, err, "lease: New: remoteLimiter is nil")
}

// bubble runs a test in a synctest bubble. In it, synctest.Wait waits until all fetches have arrived.
func bubble(t *testing.T, f func(t *testing.T)) { synctest.Test(t, f) }

func TestABatchDoublesWhileItLastsLessThanBatchFor(t *testing.T) {
	bubble(t, func(t *testing.T) {
		s := newServer(t, plenty)
		l := leased(t, s, lease.Options[string]{MaxBatch: 20})
		for range 60 {
			require.True(t, l.Allow("k", 1))
			synctest.Wait()
		}
		// Batches begin with 1 unit and double. From 2 on, a batch is fetched ahead of need, once half of the last one
		// is spent. At most MaxBatch units are held, so the batches after 16 leave room for the rest of the last one.
		require.Equal(t, []int{1, 2, 4, 8, 16, 12, 14, 13}, s.received(&s.requested))
	})
}

func TestAKeyWithLittleTrafficIsExact(t *testing.T) {
	for _, cost := range []int{1, 7} {
		t.Run(strconv.Itoa(cost), func(t *testing.T) {
			bubble(t, func(t *testing.T) {
				s := newServer(t, ratelimit.TokenBucket(ratelimit.PerSecond(cost), 3*cost))
				l := leased(t, s, lease.Options[string]{MaxBatch: 100})
				for range 20 {
					d := take(t, l, cost)
					require.True(t, d.Allowed)
					require.Equal(t, 2*cost, d.Remaining)
					require.Equal(t, time.Second, d.ResetAfter)
					synctest.Wait()
					s.clock.Advance(time.Second)
				}
				requested := s.received(&s.requested)
				require.Len(t, requested, 20)
				require.Equal(t, cost, slices.Max(requested))
				require.Empty(t, s.received(&s.settled), "nothing was ever left over")
			})
		})
	}
}

func TestABatchShrinksAgainWhenTheKeySlowsDown(t *testing.T) {
	bubble(t, func(t *testing.T) {
		s := newServer(t, plenty)
		l := leased(t, s, lease.Options[string]{MaxBatch: 64, BatchFor: 50 * time.Millisecond})
		for range 200 { // all at one instant
			require.True(t, l.Allow("k", 1))
			synctest.Wait()
		}
		s.received(&s.requested)
		for range 300 { // a batch of 5 lasts for BatchFor
			s.clock.Advance(10 * time.Millisecond)
			require.True(t, l.Allow("k", 1))
			synctest.Wait()
		}
		requested := s.received(&s.requested)
		require.LessOrEqual(t, requested[len(requested)-1], 10, "%v", requested)
		require.GreaterOrEqual(t, requested[len(requested)-1], 3, "%v", requested)
	})
}

func TestTheLastPartOfABudgetIsHandedOutInOnes(t *testing.T) {
	bubble(t, func(t *testing.T) {
		s := newServer(t, tight(40))
		l := leased(t, s, lease.Options[string]{MaxBatch: 100})
		for range 40 {
			require.True(t, l.Allow("k", 1))
			synctest.Wait()
		}
		require.False(t, l.Allow("k", 1))
		requested := s.received(&s.requested)
		left := 40
		for _, n := range requested[:len(requested)-1] {
			require.LessOrEqual(t, n, max(1, (left+3)/4), "%d left: %v", left, requested)
			left -= n
		}
		require.Equal(t, []int{1, 1, 1, 1, 1}, requested[len(requested)-5:])
		require.Zero(t, left)
	})
}

func TestADeniedBatchIsFollowedByACallForTheCostAlone(t *testing.T) {
	bubble(t, func(t *testing.T) {
		s := newServer(t, tight(100))
		l := leased(t, s, lease.Options[string]{MaxBatch: 64})
		require.True(t, l.Allow("k", 1))
		require.NoError(t, s.Adjust(context.Background(), "k", 98)) // another process leaves one unit
		d := take(t, l, 1)
		require.True(t, d.Allowed)
		require.Zero(t, d.Remaining)
		require.Equal(t, []int{1, 2, 1}, s.received(&s.requested))
	})
}

func TestALimitThatBecameSmallerThanABatchDoesNotDenyTheCaller(t *testing.T) {
	bubble(t, func(t *testing.T) {
		s := newServer(t, ratelimit.TokenBucket(ratelimit.PerSecond(1), 1000))
		l := leased(t, s, lease.Options[string]{MaxBatch: 500})
		for range 15 {
			require.True(t, l.Allow("k", 1))
			synctest.Wait()
		}
		require.NoError(t, s.SetLimit(ratelimit.TokenBucket(ratelimit.PerSecond(1), 10)))
		s.clock.Advance(time.Hour)
		require.NoError(t, l.Flush(context.Background()))
		s.clock.Advance(time.Hour)
		for range 10 {
			require.True(t, l.Allow("k", 1))
			synctest.Wait()
		}
		require.False(t, l.Allow("k", 1))
	})
}

func TestADenialIsRememberedForItsCostAndByAllowForLargerOnes(t *testing.T) {
	bubble(t, func(t *testing.T) {
		s := newServer(t, ratelimit.TokenBucket(ratelimit.PerSecond(1), 5))
		l := leased(t, s, lease.Options[string]{MaxBatch: 10})
		require.True(t, l.Allow("k", 1))
		require.True(t, l.Allow("k", 1))
		d := take(t, l, 4)
		require.False(t, d.Allowed)
		require.Equal(t, time.Second, d.RetryAfter)
		require.Equal(t, 3, d.Remaining)
		s.received(&s.requested)

		s.clock.Advance(-time.Millisecond)
		d = take(t, l, 4)
		require.False(t, d.Allowed)
		require.Equal(t, time.Second, d.RetryAfter, "a reading that is older than the last counts as that")
		require.Empty(t, s.received(&s.requested), "remembered")
		s.clock.Advance(time.Millisecond)

		s.clock.Advance(99 * time.Millisecond)
		d = take(t, l, 4)
		require.False(t, d.Allowed)
		require.Equal(t, 901*time.Millisecond, d.RetryAfter)
		require.Equal(t, 1901*time.Millisecond, d.ResetAfter)
		require.False(t, l.Allow("k", 5))
		require.Empty(t, s.received(&s.requested), "remembered")

		require.True(t, l.Allow("k", 3))
		require.Equal(t, []int{3}, s.received(&s.requested), "a smaller cost is asked for")

		s.clock.Advance(time.Millisecond)
		require.False(t, l.Allow("k", 4))
		require.Equal(t, []int{4}, s.received(&s.requested), "forgotten after DenyFor")

		s.clock.Advance(-time.Hour)
		require.False(t, l.Allow("k", 4))
		require.Equal(t, []int{4}, s.received(&s.requested), "a clock that steps back remembers nothing")
	})
}

func TestADenialIsForgottenAtItsRetryAfter(t *testing.T) {
	bubble(t, func(t *testing.T) {
		s := newServer(t, ratelimit.TokenBucket(ratelimit.PerSecond(100), 1))
		l := leased(t, s, lease.Options[string]{MaxBatch: 10, DenyFor: time.Hour})
		require.True(t, l.Allow("k", 1))
		d := take(t, l, 1)
		require.Equal(t, 10*time.Millisecond, d.RetryAfter)
		s.clock.Advance(d.RetryAfter - 1)
		require.False(t, l.Allow("k", 1))
		s.clock.Advance(1)
		require.True(t, l.Allow("k", 1))
	})
}

func TestNoDenialIsRememberedIfDenyForIsBelowZero(t *testing.T) {
	bubble(t, func(t *testing.T) {
		s := newServer(t, tight(1))
		l := leased(t, s, lease.Options[string]{MaxBatch: 10, DenyFor: -1})
		require.True(t, l.Allow("k", 1))
		for range 3 {
			require.False(t, l.Allow("k", 1))
		}
		require.Equal(t, []int{1, 1, 1, 1}, s.received(&s.requested))
	})
}

func TestHeldAndFetchedUnitsOfAProcessAreNeverAboveMaxBatch(t *testing.T) {
	bubble(t, func(t *testing.T) {
		s := newServer(t, plenty)
		l := leased(t, s, lease.Options[string]{MaxBatch: 10})
		used := 0
		for i := range 1000 {
			cost := 1 + i*i%10
			require.True(t, l.Allow("k", cost))
			used += cost
			require.LessOrEqual(t, s.total()-used, 10)
			synctest.Wait()
			require.LessOrEqual(t, s.total()-used, 10)
		}
		require.Equal(t, s.total()-used, l.Stats().Held)
	})
}

func TestABatchIsGivenBackAfterHoldFor(t *testing.T) {
	bubble(t, func(t *testing.T) {
		s := newServer(t, tight(1000))
		l := leased(t, s, lease.Options[string]{MaxBatch: 100, HoldFor: 3 * time.Second})
		for range 20 {
			require.True(t, l.Allow("k", 1))
			synctest.Wait()
		}
		require.Greater(t, s.total(), 20)
		time.Sleep(3*time.Second - 1)
		synctest.Wait()
		require.Greater(t, s.total(), 20)
		time.Sleep(time.Nanosecond)
		synctest.Wait()
		require.Equal(t, 20, s.total())
		left, err := s.Peek(context.Background(), "k", 1)
		require.NoError(t, err)
		require.Equal(t, 980, left.Remaining)

		st := l.Stats()
		require.Zero(t, st.Held)
		require.EqualValues(t, 20, st.Decisions)
		require.Equal(t, uint64(len(s.received(&s.requested))+len(s.received(&s.settled))), st.RoundTrips)
		require.NotZero(t, st.BatchesGivenBack)
		require.NotZero(t, st.UnitsGivenBack)
		require.Zero(t, st.UnitsLost)

		require.True(t, l.Allow("k", 1))
		require.Equal(t, []int{1}, s.received(&s.requested), "the next batch starts small")
	})
}

func TestAFullTableGivesBackTheBatchOfAKeyThatWasNotUsedLately(t *testing.T) {
	bubble(t, func(t *testing.T) {
		s := newServer(t, plenty)
		l := leased(t, s, lease.Options[string]{MaxBatch: 100, MaxKeys: 2})
		warmUp := func(key string) {
			for range 15 {
				require.True(t, l.Allow(key, 1))
				synctest.Wait()
			}
		}
		warmUp("a")
		warmUp("b")
		held := l.Stats().Held
		require.Equal(t, s.total()-30, held)
		require.True(t, l.Allow("c", 1))
		synctest.Wait()
		st := l.Stats()
		require.Equal(t, 2, st.Keys)
		require.EqualValues(t, 1, st.BatchesGivenBack)
		require.Equal(t, held/2, st.Held)
		require.EqualValues(t, 31, st.Decisions, "those of keys that have left are counted")
	})
}

func TestADroppedKeyIsTheOneUsedLeastRecently(t *testing.T) {
	bubble(t, func(t *testing.T) {
		s := newServer(t, plenty)
		l := leased(t, s, lease.Options[string]{MaxBatch: 100, MaxKeys: 3})
		for _, key := range []string{"a", "b", "c", "d"} { // d forces a out, and clears all marks of use
			require.True(t, l.Allow(key, 7))
			synctest.Wait()
		}
		require.True(t, l.Allow("b", 7))
		require.True(t, l.Allow("e", 7))
		synctest.Wait()
		s.received(&s.requested)
		require.True(t, l.Allow("b", 1))
		require.Empty(t, s.received(&s.requested), "b has kept its batch")
	})
}

func TestOnlyTheRemoteLimiterDecides(t *testing.T) {
	for _, row := range []struct {
		name  string
		limit ratelimit.Limit
		cost  int
	}{
		{"a cost above MaxBatch", plenty, 11},
		{"a cost of 0", plenty, 0},
		{"a cost above the capacity", tight(5), 6},
		{"a leaky bucket", ratelimit.LeakyBucket(ratelimit.PerSecond(10), 100), 1},
	} {
		t.Run(row.name, func(t *testing.T) {
			bubble(t, func(t *testing.T) {
				s := newServer(t, row.limit)
				l := leased(t, s, lease.Options[string]{MaxBatch: 10})
				alone := newServer(t, row.limit)
				for _, r := range []ratelimit.Reserver[string]{l, alone} {
					require.True(t, r.Allow("k", 1))
				}
				for range 3 {
					want, wantErr := alone.Take(context.Background(), "k", row.cost)
					got, err := l.Take(context.Background(), "k", row.cost)
					require.Equal(t, want, got)
					require.Equal(t, wantErr, err)
				}
				require.GreaterOrEqual(t, len(s.received(&s.taken)), 3)
			})
		})
	}
}

func TestALeakyBucketKeepsItsQueue(t *testing.T) {
	bubble(t, func(t *testing.T) {
		s := newServer(t, ratelimit.LeakyBucket(ratelimit.PerSecond(10), 3))
		l := leased(t, s, lease.Options[string]{MaxBatch: 10})
		for i := range 3 {
			require.Equal(t, time.Duration(i)*100*time.Millisecond, take(t, l, 1).Delay)
		}
		r, err := l.Reserve(context.Background(), "k", 1, 0)
		require.NoError(t, err)
		require.False(t, r.Allowed)
	})
}

func TestReserveAheadOfTimeIsBookedWithTheRemoteLimiter(t *testing.T) {
	bubble(t, func(t *testing.T) {
		s := newServer(t, ratelimit.TokenBucket(ratelimit.PerSecond(1), 1))
		l := leased(t, s, lease.Options[string]{MaxBatch: 10})
		r, err := l.Reserve(context.Background(), "k", 1, time.Minute)
		require.NoError(t, err)
		require.True(t, r.Allowed)
		require.Zero(t, r.Delay)
		r, err = l.Reserve(context.Background(), "k", 1, time.Minute)
		require.NoError(t, err)
		require.True(t, r.Allowed)
		require.Equal(t, time.Second, r.Delay)
		require.NoError(t, r.Cancel())
		r, err = l.Reserve(context.Background(), "k", 1, time.Minute)
		require.NoError(t, err)
		require.Equal(t, time.Second, r.Delay, "what was cancelled was given back")
	})
}

func TestWaitSpendsOfTheBatchElseItWaitsForTheRemoteLimiter(t *testing.T) {
	bubble(t, func(t *testing.T) {
		s := newServer(t, ratelimit.TokenBucket(ratelimit.PerSecond(1), 20))
		l := leased(t, s, lease.Options[string]{MaxBatch: 10})
		began := time.Now()
		for range 20 {
			require.NoError(t, l.Wait(context.Background(), "k", 1))
		}
		require.Zero(t, time.Since(began))
		require.NoError(t, ratelimit.Wait(context.Background(), l, "k", 1))
		require.Equal(t, time.Second, time.Since(began))

		ctx, cancel := context.WithTimeout(context.Background(), time.Second)
		defer cancel()
		require.ErrorIs(t, l.Wait(ctx, "k", 1), context.DeadlineExceeded)
		cancel()
		require.ErrorIs(t, l.Wait(ctx, "k", 1), context.Canceled)
		require.ErrorIs(t, l.Wait(context.Background(), "k", -1), ratelimit.ErrNegativeCost)
		require.ErrorIs(t, l.Wait(context.Background(), "k", 21), ratelimit.ErrExceedsLimit)
		for _, want := range []int{0, 1} { // the first second pays for the Wait that slept
			s.clock.Advance(time.Second)
			d, err := s.Peek(context.Background(), "k", 1)
			require.NoError(t, err)
			require.Equal(t, want, d.Remaining, "a Wait that fails has spent nothing")
		}
	})
}

func TestBadInputIsRefusedAndChargesNothing(t *testing.T) {
	s := newServer(t, plenty)
	l := leased(t, s, lease.Options[string]{MaxBatch: 10})
	_, err := l.Take(context.Background(), "k", -1)
	require.ErrorIs(t, err, ratelimit.ErrNegativeCost)
	require.False(t, l.Allow("k", math.MinInt))
	require.False(t, l.Allow("k", math.MaxInt))
	require.True(t, l.Allow("k", 0))
	require.True(t, l.Allow("", 1))
	//lint:ignore SA1012 a nil context is what is tested
	_, err = l.Take(nil, "k", 1)
	require.NoError(t, err)
	require.Equal(t, 2, s.total())
}

func TestKeysThatCannotBeFoundAgainAreRefused(t *testing.T) {
	floats := ratelimit.Must(ratelimit.New[float64](plenty, nil))
	l, err := lease.New[float64](floats, &lease.Options[float64]{MaxBatch: 10})
	require.NoError(t, err)
	_, err = l.Take(context.Background(), math.NaN(), 1)
	require.ErrorIs(t, err, ratelimit.ErrInvalidKey)
	require.Zero(t, l.Stats().Keys)

	anys := ratelimit.Must(ratelimit.New[any](plenty, nil))
	a, err := lease.New[any](anys, &lease.Options[any]{MaxBatch: 10})
	require.NoError(t, err)
	_, err = a.Take(context.Background(), []string{"secret"}, 1)
	require.ErrorIs(t, err, ratelimit.ErrInvalidKey)
	require.NotContains(t, err.Error(), "secret")
	require.True(t, a.Allow("k", 1))
}

func TestTheLimitsAreTheRemoteLimiters(t *testing.T) {
	l := leased(t, newServer(t, plenty), lease.Options[string]{MaxBatch: 10})
	require.Equal(t, []ratelimit.Limit{plenty}, l.Describe().Limits)
	none, err := lease.New[string](struct{ ratelimit.Reserver[string] }{newServer(t, plenty)}, &lease.Options[string]{MaxBatch: 1})
	require.NoError(t, err)
	require.Empty(t, none.Describe().Limits)
}

// With MaxBatch 1 and no memory of denials, a lease behaves like the remote limiter.
func TestALeaseOfOneKeepsTheWholeContract(t *testing.T) {
	clock := new(ratelimittest.Clock)
	ratelimittest.Run(t, ratelimittest.Config{
		Clock:     clock,
		Histories: 4,
		Want:      []string{"Calendar"},
		New: func(limit ratelimit.Limit) (ratelimit.Limiter[string], error) {
			remote, err := ratelimit.New(limit, &ratelimit.Options[string]{Clock: clock})
			if err != nil {
				return nil, err
			}
			return lease.New[string](remote, &lease.Options[string]{MaxBatch: 1, DenyFor: -1, Clock: new(ratelimittest.Clock), Timeout: time.Minute})
		},
	})
}

func TestAKnownKeyWithABatchAllocatesNothing(t *testing.T) {
	t.Run("text", func(t *testing.T) { allocatesNothing(t, "user:42") })
	t.Run("address", func(t *testing.T) { allocatesNothing(t, netip.MustParseAddr("2001:db8::1")) })
}

func allocatesNothing[K comparable](t *testing.T, key K) {
	l := held(t, key)
	require.Zero(t, testing.AllocsPerRun(1000, func() { l.Allow(key, 1) }))
	ctx := context.Background()
	require.Zero(t, testing.AllocsPerRun(1000, func() { _, _ = l.Take(ctx, key, 1) }))
}

// held returns a limiter holding a batch of the key. The batch is so large that no test spends half of it.
func held[K comparable](t testing.TB, key K) *lease.Limiter[K] {
	const most = 1 << 30
	remote := ratelimit.Must(ratelimit.New[K](ratelimit.TokenBucket(ratelimit.PerSecond(most), most), nil))
	l, err := lease.New[K](remote, &lease.Options[K]{MaxBatch: most, HoldFor: time.Hour})
	require.NoError(t, err)
	for l.Stats().Held < most/16 {
		require.True(t, l.Allow(key, max(1, l.Stats().Held)))
	}
	return l
}

var errDown = errors.Join(errors.New("connection refused"), ratelimit.ErrUnavailable)

// A lease reserves units before calls need them. Later calls spend the units given back by earlier ones.
func TestCallsThatOverlapUseTheWholeLimitThroughALease(t *testing.T) {
	for _, batch := range []int{1, 10_000} {
		clock := new(ratelimittest.Clock)
		remote := ratelimit.Must(ratelimit.New(model.TokensPerMinute, &ratelimit.Options[string]{Clock: clock}))
		l := ratelimit.Must(lease.New[string](remote, &lease.Options[string]{MaxBatch: batch, DenyFor: -1, Clock: clock, Timeout: time.Minute}))
		require.InDelta(t, 100_000, model.Overlap(t, clock, l, "tenant"), 5000, "MaxBatch %d", batch)
		used, over := model.Hour(t, clock, l, []string{"hour"}, 0)
		require.InDelta(t, 100_000, used, 5000, "MaxBatch %d", batch)
		require.LessOrEqual(t, over, batch, "MaxBatch %d", batch)
	}
}
