package pace_test

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/weir-go/ratelimit"
	"github.com/weir-go/ratelimit/internal/pace"
)

// limiter is one whose key function is run for each request.
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

// send sends a request that is served at once.
func send(ctx context.Context, pc *pace.Pacer[string], request string) error {
	p := pc.Arrive(ctx, "queue")
	defer pc.Leave(p)
	if err := pc.Await(p, request); err != nil {
		return err
	}
	pc.Learn(p, pace.Advice{Answered: true}, time.Now())
	return nil
}

func TestPanicInTheLimiterHoldsUpNobody(t *testing.T) {
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

// A request is asking the limiter when another is refused: what was booked before is given
// back when the first one is back, even if it panics.
func TestPanicGivesBackWhatWaitedForIt(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		release := make(chan struct{})
		l := limiter(t, ratelimit.TokenBucket(ratelimit.PerMinute(1), 1), func(request string) (string, error) {
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
		go func() { booked <- send(t.Context(), pc, "booked") }() // for in a minute
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

// A stream learns twice: when it is served, and when it ends.
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

// Answers to requests that were on their way before a refusal do not tell that the server
// takes several at a time again.
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
		for _, want := range []int{1, 2, 1} { // twice as many each time, as long as there are any
			synctest.Wait()
			require.Len(t, sent, want)
			for range want {
				served(<-sent)
			}
		}
	})
}

// What is behind the pacer may panic: nobody learns what became of the request. A long-lived
// stream keeps the line meanwhile.
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
