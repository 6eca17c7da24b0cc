package pace_test

import (
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/weir-go/ratelimit"
	"github.com/weir-go/ratelimit/internal/pace"
)

// answered sends a request of a key and takes note of an answer.
func answered(t *testing.T, pc *pace.Pacer[string], key string, a pace.Advice) {
	t.Helper()
	p := pc.Arrive(t.Context(), key)
	defer pc.Leave(p)
	require.NoError(t, pc.Await(p, ""))
	pc.Learn(p, a, time.Now())
}

// silent sends n requests of a key at once, which are never answered, and returns when they
// were sent.
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

// A refusal of theirs would have come within a second.
func TestSilentRequestsHoldUpTheOthersLessAndLess(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		pc := pace.New("test", limiter(t, ratelimit.Unlimited(), bomb), pace.Options[string]{})
		answered(t, pc, "a", refusedFor)
		assert.Equal(t, []time.Duration{1e9, 2e9, 2e9, 3e9, 3e9, 3e9, 3e9, 4e9}, silent(t, pc, "a", 8))
	})
}

// A request that was silent for a second widens the window once, and not again when its
// answer comes.
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
				answered(t, pc, "a", pace.Advice{Answered: true}) // when the wait is over
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

// A window is worth less than a wait, and has to go first.
func TestNarrowKeysAreForgottenBeforeThoseThatHaveToWait(t *testing.T) {
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
