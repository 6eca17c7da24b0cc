package lease

import (
	"context"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/weir-go/ratelimit"
	"github.com/weir-go/ratelimit/internal/dev/crowd"
)

// lockCheck is a clock. It fails the test if a reader holds one of the limiter's locks.
type lockCheck struct {
	t     *testing.T
	l     *Limiter[string]
	reads atomic.Int64
}

func (c *lockCheck) Now() time.Duration {
	n := c.reads.Add(1)
	if !crowd.Unlocked(&c.l.table.mu) {
		c.t.Error("the table is locked")
		return 0
	}
	for _, h := range c.l.table.all() {
		if !crowd.Unlocked(&h.mu) {
			c.t.Errorf("key %s is locked", h.key)
		}
	}
	return time.Duration(n) * time.Millisecond
}

// slow delays a remote limiter's answers.
type slow struct{ ratelimit.Reserver[string] }

func (s slow) Reserve(ctx context.Context, key string, cost int, maxDelay time.Duration) (*ratelimit.Reservation, error) {
	time.Sleep(time.Millisecond)
	return s.Reserver.Reserve(ctx, key, cost, maxDelay)
}

func TestTheClockIsReadUnderNoLock(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		remote := ratelimit.Must(ratelimit.New[string](ratelimit.TokenBucket(ratelimit.PerHour(1), 60), nil))
		clock := &lockCheck{t: t}
		l, err := New[string](slow{remote}, &Options[string]{MaxBatch: 20, HoldFor: time.Hour, MaxKeys: 2, Clock: clock})
		require.NoError(t, err)
		clock.l = l
		allowed := 0
		for i := range 100 {
			key, cost := []string{"a", "b", "c"}[i/10%3], 1+i%3
			switch i % 5 {
			case 0:
				l.Allow(key, cost)
			case 1, 2:
				d, err := l.Take(context.Background(), key, cost)
				require.NoError(t, err)
				if d.Allowed {
					allowed++
				}
			case 3:
				res, err := l.Reserve(context.Background(), key, cost, 0)
				require.NoError(t, err)
				require.NoError(t, res.Settle(2*cost))
			case 4:
				ctx, cancel := context.WithTimeout(context.Background(), time.Millisecond)
				_ = l.Wait(ctx, key, cost)
				cancel()
			}
			time.Sleep(time.Second) // the batch fetched ahead arrives
		}
		assert.NotZero(t, allowed)
		assert.Less(t, allowed, 40, "some are denied")
		assert.Greater(t, clock.reads.Load(), int64(100))
		require.NoError(t, l.Flush(context.Background()))
	})
}

func TestAReadingThatIsOlderThanTheLastCountsAsThat(t *testing.T) {
	h := &holding[string]{last: -maxReading}
	for _, row := range [][2]time.Duration{ // a reading, and the reading that it counts as
		{-5 * time.Second, -5 * time.Second}, {time.Second, time.Second}, {900 * time.Millisecond, time.Second}, {1, time.Second},
		{2 * time.Second, 2 * time.Second}, {time.Second, time.Second}, {1500 * time.Millisecond, 1500 * time.Millisecond},
		{maxReading, maxReading}, {-maxReading, -maxReading},
	} {
		require.Equal(t, row[1], h.atLocked(row[0]), "%v", row[0])
	}
}
