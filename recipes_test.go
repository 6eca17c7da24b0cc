package ratelimit_test

import (
	"context"
	"fmt"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"

	"github.com/weir-go/ratelimit"
)

// aboveReserve spends one unit of a key, but leaves the last 40 units to others.
func aboveReserve(ctx context.Context, limiter ratelimit.Reserver[string], key string) (bool, error) {
	r, err := limiter.Reserve(ctx, key, 41, 0)
	if err != nil || !r.Allowed {
		return false, err
	}
	return true, r.Settle(1)
}

// For five minutes, each second brings five important calls, and a flood of others.
func TestAReserveIsLeftToTheImportant(t *testing.T) {
	for _, reserves := range []bool{true, false} {
		synctest.Test(t, func(t *testing.T) {
			limiter := ratelimit.Must(ratelimit.New[string](ratelimit.TokenBucket(ratelimit.PerSecond(10), 60), nil))
			important, others := 0, 0
			for tick := range 5 * 60 * 100 {
				if reserves {
					if ok, err := aboveReserve(t.Context(), limiter, "api"); ok && err == nil {
						others++
					}
				} else if limiter.Allow("api", 1) {
					others++
				}
				if tick%20 == 0 && limiter.Allow("api", 1) {
					important++
				}
				time.Sleep(10 * time.Millisecond)
			}
			t.Logf("reserve: %v, important calls served: %d of 1500, others: %d", reserves, important, others)
			if reserves {
				assert.Equal(t, 1500, important)
				assert.InDelta(t, 1500, others, 50, "the others have the rest of 10 a second")
			} else {
				assert.Less(t, important, 150)
			}
		})
	}
}

// quieter writes a flood's first lines, and the number of suppressed lines.
type quieter struct {
	limit      *ratelimit.Single
	suppressed atomic.Int64
}

func (q *quieter) Println(line string) {
	if !q.limit.Allow(1) {
		q.suppressed.Add(1)
		return
	}
	if n := q.suppressed.Swap(0); n > 0 {
		line = fmt.Sprintf("%s (%d suppressed)", line, n)
	}
	fmt.Println(line)
}

func Example_logLines() {
	now := time.Duration(0)
	log := quieter{limit: ratelimit.Must(ratelimit.NewSingle(ratelimit.TokenBucket(ratelimit.PerMinute(1), 2), &ratelimit.Options[struct{}]{
		Clock: clockFunc(func() time.Duration { return now }),
	}))}
	for range 100 {
		log.Println("the disk is full")
	}
	now += time.Minute
	log.Println("the disk is full")
	// Output:
	// the disk is full
	// the disk is full
	// the disk is full (98 suppressed)
}
