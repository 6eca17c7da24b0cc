package pace_test

import (
	"context"
	"fmt"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/weir-go/ratelimit"
	"github.com/weir-go/ratelimit/internal/pace"
)

// answered sends a request of a key, and passes its answer to the pacer.
func answered(t *testing.T, pc *pace.Pacer[string], key string, a pace.Advice) {
	t.Helper()
	p := pc.Arrive(t.Context(), key)
	defer pc.Leave(p)
	require.NoError(t, pc.Await(p, ""))
	pc.Learn(p, a, time.Now())
}

// silent sends n requests of a key at once, and they are never answered. It returns how long after the start each was sent.
func silent(t *testing.T, pc *pace.Pacer[string], key string, n int) (after []time.Duration) {
	t.Helper()
	begin, sent := time.Now(), make(chan time.Duration, n)
	for range n {
		go func() {
			p := pc.Arrive(t.Context(), key)
			t.Cleanup(func() { pc.Leave(p) })
			assert.NoError(t, pc.Await(p, ""))
			sent <- time.Since(begin)
		}()
	}
	for range n {
		after = append(after, <-sent)
	}
	return after
}

var refusedFor = pace.Advice{Refused: true, Answered: true, Wait: time.Second}

// A refusal would have come within a second. So after each silent second, more requests may be in flight.
func TestSilentRequestsHoldUpTheOthersLessAndLess(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		pc := pace.New("test", limiter(t, ratelimit.Unlimited(), bomb), pace.Options[string]{})
		answered(t, pc, "a", refusedFor)
		assert.Equal(t, []time.Duration{1e9, 2e9, 2e9, 3e9, 3e9, 3e9, 3e9, 4e9}, silent(t, pc, "a", 8))
	})
}

// A request silent for a second widens the window once. Its late answer does not widen it again.
func TestLateAnswerDoesNotWidenTheWindowAgain(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		pc := pace.New("test", limiter(t, ratelimit.Unlimited(), bomb), pace.Options[string]{})
		answered(t, pc, "a", refusedFor)
		late := pc.Arrive(t.Context(), "a")
		require.NoError(t, pc.Await(late, ""))
		time.Sleep(time.Second)
		assert.Equal(t, []time.Duration{0}, silent(t, pc, "a", 1), "one of two")
		pc.Learn(late, pace.Advice{Answered: true}, time.Now())
		pc.Leave(late)
		assert.Equal(t, []time.Duration{0, 1e9}, silent(t, pc, "a", 2), "the other, and one later")
	})
}

func TestWindowOutlivesTheQueueForAMinute(t *testing.T) {
	for name, row := range map[string]struct {
		pause time.Duration
		want  []time.Duration
	}{
		"at once":     {0, []time.Duration{0, 0, 1e9}},
		"soon":        {time.Minute - 1, []time.Duration{0, 0, 1e9}},
		"in a minute": {time.Minute, []time.Duration{0, 0, 0}},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				pc := pace.New("test", limiter(t, ratelimit.Unlimited(), bomb), pace.Options[string]{})
				answered(t, pc, "a", refusedFor)
				answered(t, pc, "a", pace.Advice{Answered: true}) // sent after the wait
				time.Sleep(row.pause)
				assert.Equal(t, row.want, silent(t, pc, "a", 3))
			})
		})
	}
}

func TestKeyIsForgottenWhenItsWindowIsWideOrOld(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		pc := pace.New("test", limiter(t, ratelimit.Unlimited(), bomb), pace.Options[string]{})
		answered(t, pc, "a", refusedFor)
		for range 62 {
			answered(t, pc, "a", pace.Advice{Answered: true})
			assert.Equal(t, 1, pc.Len())
		}
		answered(t, pc, "a", pace.Advice{Answered: true})
		assert.Zero(t, pc.Len(), "wide")
		answered(t, pc, "a", refusedFor)
		time.Sleep(time.Minute + time.Second)
		answered(t, pc, "a", pace.Advice{Answered: true})
		assert.Zero(t, pc.Len(), "old")
	})
}

// A key with only a window is dropped before a key with a wait.
func TestNarrowKeysAreForgottenBeforeKeysThatHaveToWait(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		pc := pace.New("test", limiter(t, ratelimit.Unlimited(), bomb), pace.Options[string]{MaxKeys: 10})
		answered(t, pc, "waits", pace.Advice{Refused: true, Wait: time.Hour})
		begin := time.Now()
		for i := range 100 {
			key := fmt.Sprint(i)
			answered(t, pc, key, pace.Advice{Refused: true, Wait: 1})
			answered(t, pc, key, pace.Advice{Answered: true})
			require.LessOrEqual(t, pc.Len(), 10)
		}
		answered(t, pc, "waits", pace.Advice{Answered: true})
		assert.Equal(t, time.Hour, time.Since(begin))
	})
}

// TestTheRateIsKeptWhicheverRequestsLeave offers requests at a multiple of
// the limit of 20 a second. Callers leave by cancelling their contexts.
func TestTheRateIsKeptWhicheverRequestsLeave(t *testing.T) {
	for _, patience := range []time.Duration{2 * time.Second, 10 * time.Second} {
		for _, offered := range []float64{1.05, 1.5, 2, 10} {
			for _, mixed := range []bool{false, true} {
				long := patience*time.Duration(offered) > 40*time.Second && mixed // the queue is too long to book again
				t.Run(fmt.Sprintf("%v/%v×/mixed=%v", patience, offered, mixed), func(t *testing.T) {
					synctest.Test(t, func(t *testing.T) {
						limiter := ratelimit.Must(ratelimit.New[string](ratelimit.TokenBucket(ratelimit.PerSecond(20), 3), nil))
						pacer := pace.New("test", ratelimit.Reserver[int](ratelimit.Map(limiter, func(int) (string, error) { return "k", nil })),
							pace.Options[int]{Cost: func(cost int) int { return cost }})
						begin := time.Now().Add(patience + 3*time.Second)
						end := begin.Add(20 * time.Second)
						rng := rand.New(rand.NewPCG(1, 1))
						var sent atomic.Int64
						var wg sync.WaitGroup
						for time.Now().Before(end) {
							cost, mean := 1, 1.0
							if mixed {
								cost, mean = 1+rng.IntN(3), 2
							}
							wg.Go(func() {
								ctx, cancel := context.WithCancel(context.Background())
								defer cancel()
								defer time.AfterFunc(patience, cancel).Stop()
								p := pacer.Arrive(ctx, "server")
								defer pacer.Leave(p)
								if pacer.Await(p, cost) != nil {
									return
								}
								if now := time.Now(); !now.Before(begin) && now.Before(end) {
									sent.Add(int64(cost))
								}
								pacer.Learn(p, pace.Advice{Answered: true}, time.Now())
							})
							time.Sleep(time.Duration(mean / (20 * offered) * float64(time.Second)))
						}
						wg.Wait()
						t.Logf("%.1f of 20", float64(sent.Load())/20)
						if !long {
							require.GreaterOrEqual(t, float64(sent.Load())/20, .95*20)
						}
					})
				})
			}
		}
	}
}
