package pace_test

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/weir-go/ratelimit"
	"github.com/weir-go/ratelimit/internal/pace"
)

// limiter returns a limiter that calls key for each request.
func limiter(t *testing.T, limit ratelimit.Limit, key func(request string) (string, error)) ratelimit.Reserver[string] {
	t.Helper()
	l, err := ratelimit.New[string](limit, nil)
	require.NoError(t, err)
	return ratelimit.Map(l, key)
}

// bomb is a key function that panics for one request.
func bomb(request string) (string, error) {
	if request == "bomb" {
		panic("in the limiter")
	}
	return "key", nil
}

// send sends a request. The server serves it at once.
func send(ctx context.Context, pc *pace.Pacer[string], request string) error {
	p := pc.Arrive(ctx, "queue")
	defer pc.Leave(p)
	if err := pc.Await(p, request); err != nil {
		return err
	}
	pc.Learn(p, pace.Advice{Answered: true}, time.Now())
	return nil
}

func TestPanicInTheLimiterHoldsUpNoOther(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		pc := pace.New("test", limiter(t, ratelimit.TokenBucket(ratelimit.PerSecond(1), 1), bomb), pace.Options[string]{})
		require.NoError(t, send(t.Context(), pc, "first"))
		assert.PanicsWithValue(t, "in the limiter", func() { _ = send(t.Context(), pc, "bomb") })
		begin := time.Now()
		require.NoError(t, send(t.Context(), pc, "next"))
		assert.Equal(t, time.Second, time.Since(begin))
		assert.Zero(t, pc.Len(), "and the key is forgotten")
	})
}

// While one request calls the limiter, another is refused. Earlier
// bookings are given back when the call returns, even if it panics.
func TestPanicLetsWaitingRequestsGo(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		release := make(chan struct{})
		l := limiter(t, ratelimit.TokenBucket(ratelimit.PerSecond(20), 1), func(request string) (string, error) {
			if request == "bomb" {
				<-release
			}
			return bomb(request)
		})
		pc := pace.New("test", l, pace.Options[string]{})
		refused := pc.Arrive(t.Context(), "queue")
		defer pc.Leave(refused)
		require.NoError(t, pc.Await(refused, "refused"))
		booked := make(chan error)
		go func() { booked <- send(t.Context(), pc, "booked") }() // it may be sent in 50 ms
		synctest.Wait()
		panicked := make(chan any)
		go func() {
			defer func() { panicked <- recover() }()
			_ = send(t.Context(), pc, "bomb")
		}()
		synctest.Wait()
		pc.Learn(refused, pace.Advice{Refused: true, Wait: time.Hour}, time.Now())
		close(release)
		assert.Equal(t, "in the limiter", <-panicked)
		begin := time.Now()
		assert.NoError(t, <-booked)
		assert.Equal(t, time.Hour, time.Since(begin), "it has booked again, when the wait was over")
		assert.Zero(t, pc.Stats().Unsettled)
	})
}

func TestErrorsBeginWithTheNameOfThePackage(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		pc := pace.New("some", limiter(t, ratelimit.LeakyBucket(ratelimit.PerHour(1), 1), bomb), pace.Options[string]{MaxWait: time.Minute})
		require.NoError(t, send(t.Context(), pc, ""))
		err := send(t.Context(), pc, "")
		assert.ErrorIs(t, err, ratelimit.ErrLimited)
		assert.ErrorContains(t, err, "some: ")
		assert.Equal(t, pace.Stats{Sent: 1, Failed: 1}, pc.Stats())
	})
}

// A stream calls Learn twice: when it is served, and when it ends.
func TestOneRequestMayLearnTwice(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		pc := pace.New("test", limiter(t, ratelimit.Unlimited(), bomb), pace.Options[string]{})
		p := pc.Arrive(t.Context(), "queue")
		require.NoError(t, pc.Await(p, ""))
		pc.Learn(p, pace.Advice{Answered: true}, time.Now())
		begin := time.Now()
		require.NoError(t, send(t.Context(), pc, ""))
		assert.Zero(t, time.Since(begin))
		pc.Learn(p, pace.Advice{Refused: true, Wait: time.Minute}, time.Now())
		pc.Leave(p)
		require.NoError(t, send(t.Context(), pc, ""))
		assert.Equal(t, time.Minute, time.Since(begin))
		assert.Equal(t, uint64(1), pc.Stats().Refused)
	})
}

func TestCancelledRequestLeavesNothing(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		pc := pace.New("test", limiter(t, ratelimit.Unlimited(), bomb), pace.Options[string]{})
		ctx, cancel := context.WithCancel(t.Context())
		cancel()
		assert.True(t, errors.Is(send(ctx, pc, ""), context.Canceled))
		assert.Zero(t, pc.Len())
	})
}

// Answers to requests sent before a refusal do not show that the server accepts several requests at a time again.
func TestOnlyRequestsSentAfterARefusalShowThatMoreMayBeInFlight(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		pc := pace.New("test", limiter(t, ratelimit.Unlimited(), bomb), pace.Options[string]{})
		fly := func() *pace.Place {
			p := pc.Arrive(t.Context(), "queue")
			assert.NoError(t, pc.Await(p, ""))
			return p
		}
		served := func(p *pace.Place) {
			pc.Learn(p, pace.Advice{Answered: true}, time.Now())
			pc.Leave(p)
		}
		refused, early := fly(), []*pace.Place{fly(), fly(), fly()}
		pc.Learn(refused, pace.Advice{Refused: true, Wait: time.Second}, time.Now())
		pc.Leave(refused)
		for _, p := range early {
			served(p)
		}
		sent := make(chan *pace.Place, 4)
		for range 4 {
			go func() { sent <- fly() }()
		}
		time.Sleep(time.Second)
		for _, want := range []int{1, 2, 1} { // twice as many each time, as far as requests are left
			synctest.Wait()
			require.Len(t, sent, want)
			for range want {
				served(<-sent)
			}
		}
	})
}

// If a sender panics, its request's result stays unknown. A long-lived stream keeps the line meanwhile.
func TestRequestWhoseSenderPanicsIsNotInFlightAnyMore(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		pc := pace.New("test", limiter(t, ratelimit.Unlimited(), bomb), pace.Options[string]{})
		keep := pc.Arrive(t.Context(), "queue")
		defer pc.Leave(keep)
		require.NoError(t, pc.Await(keep, ""))
		pc.Learn(keep, pace.Advice{Refused: true, Wait: time.Second}, time.Now())
		begin := time.Now()
		for range 10 {
			assert.PanicsWithValue(t, "behind", func() {
				p := pc.Arrive(t.Context(), "queue")
				defer pc.Leave(p)
				assert.NoError(t, pc.Await(p, ""))
				panic("behind")
			})
		}
		assert.Equal(t, time.Second, time.Since(begin), "the wait, and then each at once, though one at a time")
	})
}

// If the announced time was obeyed and proved too short, the next wait is longer.
func TestServerThatNamesNoWaitIsNotCalledAllTheTime(t *testing.T) {
	for name, a := range map[string]pace.Advice{
		"a wait":   {Refused: true, Answered: true, Wait: 1},
		"a busy":   {Answered: true, Wait: 1},
		"a budget": {Refused: true, Answered: true, Budgets: []pace.Budget{{Left: 0}}},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				pc := pace.New("test", limiter(t, ratelimit.Unlimited(), bomb), pace.Options[string]{})
				begin := time.Now()
				var at []time.Duration
				refuse := func() {
					p := pc.Arrive(t.Context(), "queue")
					defer pc.Leave(p)
					require.NoError(t, pc.Await(p, ""))
					at = append(at, time.Since(begin).Round(time.Microsecond))
					if a.Budgets != nil {
						a.Budgets[0].Until = time.Now().Add(1)
					}
					pc.Learn(p, a, time.Now())
				}
				for range 6 {
					refuse()
				}
				assert.Equal(t, []time.Duration{0, 0, 10e6, 30e6, 70e6, 150e6}, at)
				for range 20 {
					refuse()
				}
				assert.Equal(t, time.Minute, at[len(at)-1]-at[len(at)-2], "no longer than a minute")
				answered(t, pc, "queue", pace.Advice{Answered: true})
				at, begin = nil, time.Now()
				refuse()
				refuse()
				assert.Equal(t, []time.Duration{0, 0}, at, "an answer begins anew")
			})
		})
	}
}

// The wait in a refusal is obeyed to the nanosecond.
func TestWaitIsMorePreciseThanABudget(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		pc := pace.New("test", limiter(t, ratelimit.Unlimited(), bomb), pace.Options[string]{})
		begin := time.Now()
		answered(t, pc, "queue", pace.Advice{Refused: true, Answered: true, Wait: 200 * time.Millisecond,
			Budgets: []pace.Budget{{Left: 0, Until: begin.Add(time.Second)}}})
		answered(t, pc, "queue", pace.Advice{Answered: true})
		assert.Equal(t, 200*time.Millisecond, time.Since(begin))
	})
}

// A slow answer, or a stream opened an hour ago, reports the budget as it was before other requests were answered.
func TestAnswerToAnEarlierRequestDoesNotReplaceThatToALaterOne(t *testing.T) {
	left := func(policy string, n int64, span time.Duration) pace.Advice {
		return pace.Advice{Answered: true, Budgets: []pace.Budget{{Policy: policy, Left: n, Until: time.Now().Add(span)}}}
	}
	for name, row := range map[string]struct {
		slow  time.Duration // from the later answer to the earlier one
		early func() pace.Advice
		want  time.Duration
	}{
		"while it holds":       {0, func() pace.Advice { return left("", 0, time.Minute) }, 0},
		"when it is over":      {2 * time.Second, func() pace.Advice { return left("", 0, time.Minute) }, 0},
		"of another policy":    {0, func() pace.Advice { return left("other", 0, time.Minute) }, time.Minute},
		"a refusal for a time": {0, func() pace.Advice { return pace.Advice{Refused: true, Wait: time.Minute} }, time.Minute},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				pc := pace.New("test", limiter(t, ratelimit.Unlimited(), bomb), pace.Options[string]{})
				early := pc.Arrive(t.Context(), "queue")
				defer pc.Leave(early)
				require.NoError(t, pc.Await(early, ""))
				answered(t, pc, "queue", left("", 50, time.Second))
				time.Sleep(row.slow)
				pc.Learn(early, row.early(), time.Now())
				begin := time.Now()
				answered(t, pc, "queue", pace.Advice{Answered: true})
				assert.Equal(t, row.want, time.Since(begin))
			})
		})
	}
}

// The server counts the earlier of two requests last.
func TestAnswerToAnEarlierRequestCountsThatRequest(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		pc := pace.New("test", limiter(t, ratelimit.Unlimited(), bomb), pace.Options[string]{})
		left := func(n int64) pace.Advice {
			return pace.Advice{Answered: true, Budgets: []pace.Budget{{Left: n, Until: time.Now().Add(time.Minute)}}}
		}
		early := pc.Arrive(t.Context(), "queue")
		defer pc.Leave(early)
		require.NoError(t, pc.Await(early, ""))
		answered(t, pc, "queue", left(1))
		pc.Learn(early, left(0), time.Now())
		begin := time.Now()
		answered(t, pc, "queue", left(1))
		assert.Equal(t, time.Minute, time.Since(begin))
	})
}

// A later request's answer has reported a budget. A refusal of an earlier request does not end it.
func TestRefusalOfAnEarlierRequestLeavesLaterAdvice(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		pc := pace.New("test", limiter(t, ratelimit.Unlimited(), bomb), pace.Options[string]{})
		early := pc.Arrive(t.Context(), "queue")
		defer pc.Leave(early)
		require.NoError(t, pc.Await(early, ""))
		begin := time.Now()
		answered(t, pc, "queue", pace.Advice{Answered: true, Budgets: []pace.Budget{{Left: 0, Until: begin.Add(time.Hour)}}})
		pc.Learn(early, pace.Advice{Refused: true, Wait: time.Second}, begin)
		answered(t, pc, "queue", pace.Advice{Answered: true})
		assert.Equal(t, time.Hour, time.Since(begin))
	})
}

func TestNewKeyTouchesNoOtherKeyThanTheOneItReplaces(t *testing.T) {
	pc := pace.New("test", limiter(t, ratelimit.Unlimited(), bomb), pace.Options[string]{MaxKeys: 100})
	for i := range 100 {
		answered(t, pc, fmt.Sprint(i), pace.Advice{Refused: true, Wait: time.Hour - time.Duration(i)*time.Minute/10})
	}
	var others []string
	for i := range 99 {
		others = append(others, fmt.Sprint(i))
	}
	defer pc.Lock(others...)()
	done := make(chan struct{})
	go func() {
		defer close(done)
		pc.Leave(pc.Arrive(context.Background(), "new"))
	}()
	select {
	case <-done:
	case <-time.After(10 * time.Second):
		t.Fatal("it waits for the lock of another key")
	}
	assert.Equal(t, 99, pc.Len(), "the one whose wait ends soonest is forgotten, and the new one has nothing to remember")
}

func TestKeysThatWereAllInUseAreForgottenWhenTheyAreNot(t *testing.T) {
	pc := pace.New("test", limiter(t, ratelimit.Unlimited(), bomb), pace.Options[string]{MaxKeys: 10})
	var places []*pace.Place
	for i := range 50 {
		p := pc.Arrive(t.Context(), fmt.Sprint(i))
		require.NoError(t, pc.Await(p, ""))
		places = append(places, p)
	}
	assert.Equal(t, 50, pc.Len())
	for _, p := range places {
		pc.Learn(p, pace.Advice{Refused: true, Wait: time.Hour}, time.Now())
		pc.Leave(p)
	}
	assert.Equal(t, 10, pc.Len())
	pc.Reset("0")
	for i := range 50 {
		pc.Reset(fmt.Sprint(i))
	}
	assert.Zero(t, pc.Len())
}
