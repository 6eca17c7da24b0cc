package sqllimit

import (
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/weir-go/ratelimit"
)

// When a stack gives units back, its calls in line follow at once. Otherwise they would wait for hours.
func TestAStacksLineFollowsWhatItGivesBackAtOnce(t *testing.T) {
	for name, change := range map[string]func(t *testing.T, stack *ratelimit.Layered[pair], open *ratelimit.Reservation){
		"settlement": func(t *testing.T, _ *ratelimit.Layered[pair], open *ratelimit.Reservation) {
			require.NoError(t, open.Settle(40))
		},
		"grant": func(t *testing.T, stack *ratelimit.Layered[pair], _ *ratelimit.Reservation) {
			require.NoError(t, stack.Adjust(t.Context(), pair{"ann", "all"}, -20))
		},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				begin := time.Now()
				_, db := newFake(t, func() int64 { return 1e15 + time.Since(begin).Microseconds() })
				stack, _, _ := stackOfTwo(t, db, ratelimit.TokenBucket(ratelimit.PerDay(60), 60))
				open, err := stack.Reserve(t.Context(), pair{"ann", "all"}, 60, 0)
				require.NoError(t, err)
				var waiting sync.WaitGroup
				for range 3 {
					waiting.Go(func() { assert.NoError(t, stack.Wait(t.Context(), pair{"ann", "all"}, 5)) })
				}
				time.Sleep(5*time.Second + time.Second/3)
				changed := time.Now()
				change(t, stack, open)
				waiting.Wait()
				assert.Zero(t, time.Since(changed))
			})
		})
	}
}
