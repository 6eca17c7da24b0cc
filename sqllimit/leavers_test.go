package sqllimit

import (
	"context"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/weir-go/ratelimit"
	"github.com/weir-go/ratelimit/internal/dev/linetest"
	"github.com/weir-go/ratelimit/internal/dev/testsize"
)

// Each process has one or two callers in line, most of whom hang up while they have a booking: other processes book in the gaps.
func TestCallersOfMixedCostsThatHangUpUseTheRateOfADatabase(t *testing.T) {
	testsize.Sequential(t)
	for _, c := range []struct {
		rate  int
		takes time.Duration
		least float64
	}{{20, time.Millisecond, .98}, {20, 10 * time.Millisecond, .95}, {5, time.Millisecond, .9}} {
		l := linetest.Leavers{Rate: c.rate, Burst: 10, Processes: 5, Most: 8, Takes: c.takes, For: 3 * time.Minute, Seed: testsize.Seed(1)}
		used := fakeStore.Leavers(t, l)
		t.Logf("%v: %.1f %% used", l, 100*used)
		assert.GreaterOrEqual(t, used, c.least, l)
		assert.LessOrEqual(t, used, 1.03, l)
	}
}

func TestACallThatIsServedByTheBookingOfOneThatLeavesIsReportedAsAllowed(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		_, db := newFake(t, func() int64 { return time.Now().UnixMicro() })
		var mu sync.Mutex // guards events
		var events []ratelimit.Event[string]
		limit := ratelimit.TokenBucket(ratelimit.PerSecond(1), 1).Named("calls")
		l := newLimiter(t, db, limit, &Options{OnDecision: func(e ratelimit.Event[string]) {
			mu.Lock()
			defer mu.Unlock()
			events = append(events, e)
		}})
		require.NoError(t, l.Wait(t.Context(), "k", 1))
		ctx, leave := context.WithCancel(t.Context())
		go func() { _ = l.Wait(ctx, "k", 1) }()
		time.Sleep(100 * time.Millisecond)
		time.AfterFunc(100*time.Millisecond, leave)
		require.NoError(t, l.Wait(t.Context(), "k", 1))
		mu.Lock()
		defer mu.Unlock()
		require.Len(t, events, 3)
		require.True(t, events[2].Decision.Allowed)
		require.True(t, events[2].Spent)
		require.Equal(t, limit, events[2].Decision.Limit)
	})
}
