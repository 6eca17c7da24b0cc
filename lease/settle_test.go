package lease_test

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/weir-go/ratelimit"
	"github.com/weir-go/ratelimit/ban"
	"github.com/weir-go/ratelimit/chain"
	"github.com/weir-go/ratelimit/internal/dev/model"
	"github.com/weir-go/ratelimit/lease"
)

// holding makes the limiter hold some units of "k", and returns how many.
func holding(t *testing.T, l *lease.Limiter[string]) int {
	for range 15 {
		require.True(t, l.Allow("k", 1))
		synctest.Wait()
	}
	held := l.Stats().Held
	require.Greater(t, held, 5)
	return held
}

func TestAReservationOfAKeyWithLittleTrafficIsSettledWithTheRemoteLimiter(t *testing.T) {
	bubble(t, func(t *testing.T) {
		s := newServer(t, tight(100))
		l := leased(t, s, lease.Options[string]{MaxBatch: 10})
		r := reserve(t, l, 5)
		time.Sleep(time.Hour) // long after HoldFor
		require.NoError(t, r.Settle(2))
		require.NoError(t, r.Settle(0), "only the first call counts")
		require.Equal(t, 2, s.total())
		s.clock.Advance(time.Hour)
		r = reserve(t, l, 5)
		require.NoError(t, r.Settle(7))
		require.Equal(t, 9, s.total())
		require.Zero(t, l.Stats().Held)
		require.Zero(t, l.Stats().UnitsLost)
	})
}

func TestUnneededUnitsOfAReservationGoBackIntoItsBatch(t *testing.T) {
	bubble(t, func(t *testing.T) {
		s := newServer(t, plenty)
		l := leased(t, s, lease.Options[string]{MaxBatch: 40})
		held := holding(t, l)
		s.received(&s.requested)
		r := reserve(t, l, 3)
		require.Equal(t, held-3, l.Stats().Held)
		require.NoError(t, r.Settle(1))
		require.Equal(t, held-1, l.Stats().Held)
		require.NoError(t, r.Cancel())
		require.Equal(t, held-1, l.Stats().Held, "only the first call counts")
		require.Zero(t, l.Stats().UnitsLost)
		require.Empty(t, s.received(&s.settled), "no round trip")
	})
}

// A batch is kept until its reservations are settled, even if its key is dropped.
func TestABatchIsKeptUntilItsReservationsAreSettled(t *testing.T) {
	for _, row := range []struct {
		name string
		then func(t *testing.T, l *lease.Limiter[string])
	}{
		{"its time is over", func(*testing.T, *lease.Limiter[string]) { time.Sleep(9 * time.Second); synctest.Wait() }},
		{"its key is to be evicted", func(t *testing.T, l *lease.Limiter[string]) {
			require.True(t, l.Allow("other", 1))
			synctest.Wait()
		}},
		{"it is spent", func(t *testing.T, l *lease.Limiter[string]) {
			for range 200 {
				require.True(t, l.Allow("k", 1))
				synctest.Wait()
			}
		}},
		{"it is spent, and its time is over", func(t *testing.T, l *lease.Limiter[string]) {
			for range 200 {
				require.True(t, l.Allow("k", 1))
				synctest.Wait()
			}
			time.Sleep(9 * time.Second)
			synctest.Wait()
		}},
	} {
		t.Run(row.name, func(t *testing.T) {
			bubble(t, func(t *testing.T) {
				s := newServer(t, plenty)
				l := leased(t, s, lease.Options[string]{MaxBatch: 40, MaxKeys: 1})
				holding(t, l)
				r := reserve(t, l, 5)
				row.then(t, l)
				charged := s.total() - l.Stats().Held
				require.NoError(t, r.Settle(1))
				synctest.Wait()
				require.Equal(t, charged-4, s.total()-l.Stats().Held)
				require.Zero(t, l.Stats().UnitsLost)
				require.Zero(t, l.Stats().BatchesForfeited)
				require.NoError(t, l.Flush(context.Background()))
				require.Zero(t, l.Stats().Held)
			})
		})
	}
}

func TestABatchIsForfeitedAfterTenTimesHoldForAndByFlush(t *testing.T) {
	for name, forfeit := range map[string]func(t *testing.T, l *lease.Limiter[string]){
		"after 10 × HoldFor": func(t *testing.T, l *lease.Limiter[string]) {
			time.Sleep(10*time.Second - 1)
			synctest.Wait()
			require.Zero(t, l.Stats().BatchesForfeited)
			require.NotZero(t, l.Stats().Held)
			time.Sleep(time.Nanosecond)
			synctest.Wait()
		},
		"flushed": func(t *testing.T, l *lease.Limiter[string]) { require.NoError(t, l.Flush(context.Background())) },
	} {
		t.Run(name, func(t *testing.T) {
			bubble(t, func(t *testing.T) {
				s := newServer(t, plenty)
				l := leased(t, s, lease.Options[string]{MaxBatch: 40})
				holding(t, l)
				r := reserve(t, l, 5)
				forfeit(t, l)
				require.Zero(t, l.Stats().Held)
				require.Equal(t, 20, s.total(), "the reservation counts as spent")
				require.EqualValues(t, 1, l.Stats().BatchesForfeited)
				require.NoError(t, r.Settle(1))
				require.EqualValues(t, 4, l.Stats().UnitsLost)
				require.Equal(t, 20, s.total())
			})
		})
	}
}

// The second limiter of a chain denies after some time, so the chain cancels each
// of the lease's reservations. They must spend nothing of the shared budget.
func TestALeaseBeforeALimiterThatDeniesSpendsNothing(t *testing.T) {
	bubble(t, func(t *testing.T) {
		s := newServer(t, ratelimit.TokenBucket(ratelimit.PerHour(1), 50_000))
		l := leased(t, s, lease.Options[string]{MaxBatch: 20})
		chain, err := chain.New[string](l, denier{})
		require.NoError(t, err)
		var wg sync.WaitGroup
		for range 15 * 5000 {
			wg.Go(func() { require.False(t, chain.Allow("k", 1)) })
			time.Sleep(200 * time.Microsecond)
			s.clock.Advance(200 * time.Microsecond)
		}
		wg.Wait()
		require.NoError(t, l.Flush(context.Background()))
		require.Zero(t, s.total())
		require.Zero(t, l.Stats().UnitsLost)
	})
}

// denier denies each call after some time.
type denier struct{}

func (denier) Allow(string, int) bool { return false }

func (denier) Take(context.Context, string, int) (decision, error) {
	time.Sleep(5 * time.Millisecond)
	return decision{RetryAfter: time.Second}, nil
}

func (d denier) Reserve(ctx context.Context, key string, cost int, _ time.Duration) (*reservation, error) {
	dec, err := d.Take(ctx, key, cost)
	return ratelimit.NewReservation(dec, nil), err
}

func TestUnitsThatAReservationNeedsBeyondItsCostAreSpentOfTheBatchThenOfTheRemoteLimiter(t *testing.T) {
	bubble(t, func(t *testing.T) {
		s := newServer(t, plenty)
		l := leased(t, s, lease.Options[string]{MaxBatch: 40})
		held := holding(t, l)
		spent := s.total() - held
		require.NoError(t, reserve(t, l, 1).Settle(3))
		synctest.Wait()
		require.Equal(t, spent+3, s.total()-l.Stats().Held)

		require.NoError(t, reserve(t, l, 1).Settle(1004))
		synctest.Wait()
		require.Equal(t, spent+1007, s.total()-l.Stats().Held)

		r := reserve(t, l, 1)
		require.NoError(t, l.Flush(context.Background()))
		require.NoError(t, r.Settle(10), "after Flush")
		require.Equal(t, spent+1017, s.total())
	})
}

func TestAnExcessThatCannotBeChargedIsAnError(t *testing.T) {
	bubble(t, func(t *testing.T) {
		s := newServer(t, plenty)
		l := leased(t, s, lease.Options[string]{MaxBatch: 40})
		holding(t, l)
		r := reserve(t, l, 1)
		s.fail(func(context.Context) error { return errDown })
		err := r.Settle(1000)
		require.ErrorIs(t, err, errDown)
		require.Contains(t, err.Error(), "lease: ")
		require.Contains(t, err.Error(), "units above the reserved cost could not be charged")
	})
}

// Units that reservations may put back count as held. Otherwise a process
// could admit them, and a full batch fetched meanwhile, within one interval.
func TestClaimsOfReservationsCountAsHeld(t *testing.T) {
	bubble(t, func(t *testing.T) {
		s := newServer(t, plenty)
		l := leased(t, s, lease.Options[string]{MaxBatch: 16})
		for range 100 {
			require.True(t, l.Allow("k", 1))
			synctest.Wait()
		}
		var open []func() error
		spent := 100
		for range 30 {
			open = append(open, reserve(t, l, 1).Cancel)
			spent++
			synctest.Wait()
		}
		for _, cancel := range open {
			require.NoError(t, cancel())
			require.LessOrEqual(t, l.Stats().Held, 16)
		}
		st := l.Stats()
		require.Equal(t, s.total(), spent-30+st.Held+int(st.UnitsLost))
	})
}

func TestACostThatDoesNotFitTakesTheRestAlong(t *testing.T) {
	bubble(t, func(t *testing.T) {
		s := newServer(t, tight(1000))
		l := leased(t, s, lease.Options[string]{MaxBatch: 20})
		for range 15 {
			require.True(t, l.Allow("k", 1))
			synctest.Wait()
		}
		held := l.Stats().Held
		require.NoError(t, s.Adjust(context.Background(), "k", 1000-s.total()-4)) // leaves 4 units
		require.True(t, l.Allow("k", held+3))
		d := take(t, l, 2)
		require.False(t, d.Allowed)
		require.Equal(t, 1, d.Remaining, "all or nothing")
		require.True(t, l.Allow("k", 1))
		require.Zero(t, s.received(&s.settled), "nothing was given back on the way")
	})
}

func TestAFailureToGiveBackIsCountedAndReported(t *testing.T) {
	bubble(t, func(t *testing.T) {
		s := newServer(t, plenty)
		l := leased(t, s, lease.Options[string]{MaxBatch: 40})
		held := holding(t, l)
		s.fail(func(context.Context) error { return errDown })
		err := l.Flush(context.Background())
		require.ErrorIs(t, err, errDown)
		require.Contains(t, err.Error(), "lease: Flush: ")
		require.EqualValues(t, held, l.Stats().UnitsLost)
		require.NoError(t, l.Flush(context.Background()), "there is nothing left to give back")

		s.fail(func(context.Context) error { panic("secret key") })
		_, err = l.Take(context.Background(), "k", 1)
		require.True(t, errors.Is(err, errUnavailable))
		require.NotContains(t, err.Error(), "secret")
	})
}

// Flush reports a failure even if the failure comes while Flush waits for another batch.
func TestFlushReportsAFailureThatCameEarly(t *testing.T) {
	bubble(t, func(t *testing.T) {
		s := newServer(t, plenty)
		l := leased(t, s, lease.Options[string]{MaxBatch: 40})
		held := holding(t, l)
		answer := make(chan struct{})
		s.fail(func(context.Context) error { <-answer; return nil })
		go l.Allow("other", 1)
		synctest.Wait()
		s.fail(func(context.Context) error { return errDown })
		flushed := make(chan error)
		go func() { flushed <- l.Flush(context.Background()) }()
		synctest.Wait()
		require.EqualValues(t, held, l.Stats().UnitsLost)
		s.fail(nil)
		close(answer)
		err := <-flushed
		require.ErrorIs(t, err, errDown)
		require.ErrorContains(t, err, "lease: Flush: 1 of ")
	})
}

// Reservations fetch ahead of need, as other decisions do. After the last one, the next batch has arrived.
func TestReservationsFetchAheadOfNeed(t *testing.T) {
	bubble(t, func(t *testing.T) {
		s := newServer(t, plenty)
		l := leased(t, s, lease.Options[string]{MaxBatch: 40})
		for l.Stats().Held < 10 {
			require.True(t, l.Allow("k", 1))
			synctest.Wait()
		}
		s.received(&s.requested)
		for range l.Stats().Held { // spends at least half the batch, and at most all
			r := reserve(t, l, 1)
			require.NoError(t, r.Settle(1))
			synctest.Wait()
		}
		require.Len(t, s.received(&s.requested), 1, "while units were held")
		require.Positive(t, l.Stats().Held)
	})
}

// If the first caller of a batch spends half of it, the next batch is fetched at once.
func TestACallerThatSpendsHalfOfItsBatchFetchesAhead(t *testing.T) {
	bubble(t, func(t *testing.T) {
		s := newServer(t, plenty)
		l := leased(t, s, lease.Options[string]{MaxBatch: 40})
		for range 2 {
			require.True(t, l.Allow("k", 3))
			synctest.Wait()
		}
		require.Equal(t, []int{3, 6, 12}, s.received(&s.requested), "the last one ahead of need")
	})
}

// The last unit is not fetched ahead of need: it would lie unused in one process while another one is denied.
func TestTheLastUnitsAreNotFetchedAhead(t *testing.T) {
	for budget := 8; budget < 60; budget++ {
		bubble(t, func(t *testing.T) {
			s := newServer(t, tight(budget))
			l := leased(t, s, lease.Options[string]{MaxBatch: 40})
			for range budget {
				require.True(t, l.Allow("k", 1))
				synctest.Wait()
				if requested := s.received(&s.requested); len(requested) > 0 && requested[len(requested)-1] == 1 {
					require.Zero(t, l.Stats().Held, "of %d", budget)
				}
			}
		})
	}
}

// A fetch ahead of need runs in its own goroutine, and no caller waits
// for it. At most 256 run at a time, however many keys need one.
func TestFetchesAheadOfNeedAreBounded(t *testing.T) {
	bubble(t, func(t *testing.T) {
		s := newServer(t, plenty)
		l := leased(t, s, lease.Options[string]{MaxBatch: 40})
		for round := range 2 {
			spend := func(times int) {
				for i := range 300 * times {
					require.True(t, l.Allow(fmt.Sprint(round, i/times), 3))
					synctest.Wait()
				}
			}
			spend(2) // leaves 15 units of each key
			s.received(&s.requested)
			s.fail(func(context.Context) error { time.Sleep(100 * time.Millisecond); return nil })
			spend(3)
			require.Len(t, s.received(&s.requested), 256)
			time.Sleep(200 * time.Millisecond)
			s.fail(nil)
		}
		flushed(t, l)
	})
}

// A key may be banned before its reservation is settled. The excess cost is charged all the same.
func TestABannedKeyIsChargedTheUnitsAboveItsBatch(t *testing.T) {
	bubble(t, func(t *testing.T) {
		limit := func(l ratelimit.Limit) *ratelimit.Keyed[string] {
			return ratelimit.Must(ratelimit.New[string](l, nil))
		}
		remote, bans := limit(ratelimit.FixedWindow(ratelimit.PerHour(1000))), limit(ratelimit.FixedWindow(ratelimit.PerHour(1)))
		b, err := ban.New[string](remote, limit(ratelimit.FixedWindow(ratelimit.PerHour(1))), bans)
		require.NoError(t, err)
		l, err := lease.New[string](b, &lease.Options[string]{MaxBatch: 40})
		require.NoError(t, err)
		defer func() { require.NoError(t, l.Flush(t.Context())) }()
		held := holding(t, l)
		r := reserve(t, l, 3)
		require.Equal(t, held-3, l.Stats().Held, "it is a part of a batch")
		require.NoError(t, b.Strike(t.Context(), "k", 1))
		before, err := remote.Peek(context.Background(), "k", 1)
		require.NoError(t, err)
		require.NoError(t, r.Settle(103))
		require.NoError(t, l.Flush(t.Context()))
		synctest.Wait()
		after, err := remote.Peek(context.Background(), "k", 1)
		require.NoError(t, err)
		require.Equal(t, before.Remaining-100+held-3, after.Remaining)
	})
}

// bubbleClock reads the bubble's time. The limiter measures HoldFor by the same time.
type bubbleClock struct{ begin time.Time }

func (c bubbleClock) Now() time.Duration    { return time.Since(c.begin) }
func (bubbleClock) Advance(d time.Duration) { time.Sleep(d); synctest.Wait() }

// Each call takes 3 s.
func TestCallsOfNineTimesHoldForLoseNoRefund(t *testing.T) {
	for hold, lost := range map[time.Duration]bool{3*time.Second/9 + 1: false, 100 * time.Millisecond: true} {
		bubble(t, func(t *testing.T) {
			remote := ratelimit.Must(ratelimit.New[string](model.TokensPerMinute, nil))
			l := ratelimit.Must(lease.New[string](remote, &lease.Options[string]{MaxBatch: 20_000, HoldFor: hold}))
			used := model.Overlap(t, bubbleClock{time.Now()}, l, "k")
			require.Equal(t, lost, l.Stats().UnitsLost > 0)
			require.Equal(t, lost, l.Stats().BatchesForfeited > 0)
			if !lost {
				require.InDelta(t, 100_000, used, 5000)
				require.NotZero(t, l.Stats().UnitsGivenBack)
			}
			require.NoError(t, l.Flush(context.Background()))
		})
	}
}

// For the remote limiter, a batch is an open reservation. So the batch's
// rest is given back even after the limit's figures have changed.
func TestTheRestOfABatchIsGivenBackAfterAChangeOfFigures(t *testing.T) {
	bubble(t, func(t *testing.T) {
		remote := ratelimit.Must(ratelimit.New[string](ratelimit.TokenBucket(ratelimit.PerHour(1000), 1000), nil))
		l := ratelimit.Must(lease.New[string](remote, &lease.Options[string]{MaxBatch: 100}))
		held := holding(t, l)
		require.NoError(t, remote.SetLimit(ratelimit.TokenBucket(ratelimit.PerHour(1001), 1001)))
		require.NoError(t, l.Flush(context.Background()))
		d, err := remote.Peek(context.Background(), "k", 1)
		require.NoError(t, err)
		require.Equal(t, 1001-15, d.Remaining)
		require.EqualValues(t, held, l.Stats().UnitsGivenBack)
		require.Zero(t, l.Stats().UnitsLost)
	})
}

// After a change of algorithm, some stores give back nothing of a batch. Its units count as lost, not as given back.
func TestTheRestOfABatchThatOutlivesItsAlgorithmIsCountedAsLost(t *testing.T) {
	limits := []ratelimit.Limit{
		ratelimit.TokenBucket(ratelimit.PerHour(1000), 1000),
		ratelimit.FixedWindow(ratelimit.PerHour(1000)),
		ratelimit.SlidingLog(ratelimit.PerHour(1000)),
		ratelimit.SlidingCounter(ratelimit.PerHour(1000)),
		ratelimit.LeakyBucket(ratelimit.PerHour(1000), 1000), // it is leased without batches
	}
	for i, from := range limits[:4] {
		for j, to := range limits {
			bubble(t, func(t *testing.T) {
				remote := ratelimit.Must(ratelimit.New[string](from, nil))
				l := ratelimit.Must(lease.New[string](remote, &lease.Options[string]{MaxBatch: 100}))
				held := holding(t, l)
				require.NoError(t, remote.SetLimit(to))
				require.True(t, remote.Allow("k", 1))
				before, err := remote.Peek(context.Background(), "k", 1)
				require.NoError(t, err)
				require.NoError(t, l.Flush(context.Background()))
				after, err := remote.Peek(context.Background(), "k", 1)
				require.NoError(t, err)
				gone, st, at := held-(after.Remaining-before.Remaining), l.Stats(), fmt.Sprintf("%v, then %v", from, to)
				require.EqualValues(t, held, st.UnitsGivenBack+st.UnitsLost, at)
				require.GreaterOrEqual(t, int(st.UnitsLost), gone, at)
				require.Equal(t, i != j, st.UnitsLost > 0, at)
			})
		}
	}
}

// With LimitFor, the remote limiter's answers show the change of algorithm.
func TestUnitsPutBackIntoABatchOfAnotherAlgorithmAreCountedAsLost(t *testing.T) {
	bubble(t, func(t *testing.T) {
		limit := ratelimit.FixedWindow(ratelimit.PerHour(1000))
		remote := ratelimit.Must(ratelimit.New(limit, &ratelimit.Options[string]{LimitFor: func(string) ratelimit.Limit { return limit }}))
		l := ratelimit.Must(lease.New[string](remote, &lease.Options[string]{MaxBatch: 100}))
		holding(t, l)
		r := reserve(t, l, 3)
		synctest.Wait()
		limit = ratelimit.TokenBucket(ratelimit.PerHour(1000), 1000)
		remote.Refresh("k")
		for range 60 {
			require.True(t, l.Allow("k", 1))
			synctest.Wait()
		}
		require.NoError(t, r.Cancel())
		require.NoError(t, l.Flush(context.Background()))
		require.EqualValues(t, 3, l.Stats().UnitsLost)
	})
}
