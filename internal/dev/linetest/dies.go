package linetest

import (
	"context"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/weir-go/ratelimit"
)

// dying are limits under which a call books far ahead. Each has two costs: spent uses the limit up, and cost is the call's.
var dying = map[string]struct {
	limit       ratelimit.Limit
	spent, cost int
}{
	"token bucket":    {ratelimit.TokenBucket(ratelimit.Rate{Units: 1, Per: 10 * time.Second}, 1), 1, 1},
	"large costs":     {ratelimit.TokenBucket(ratelimit.PerSecond(5), 100), 100, 100},
	"fixed window":    {ratelimit.FixedWindow(ratelimit.Rate{Units: 3, Per: 20 * time.Second}), 3, 3},
	"sliding log":     {ratelimit.SlidingLog(ratelimit.Rate{Units: 3, Per: 20 * time.Second}), 3, 3},
	"sliding counter": {ratelimit.SlidingCounter(ratelimit.Rate{Units: 3, Per: 20 * time.Second}), 3, 3},
}

// Dies tests a process that dies while its call waits for an instant far ahead. The dead process
// may bar others for a second at most. Then a call waiting behind it, or another call, is served
// once a unit is free without the dead process's booking. The function kill ends a process's calls.
func (s Bubble) Dies(t *testing.T, kill func(Process)) {
	for name, c := range dying {
		for _, waits := range []bool{true, false} {
			synctest.Test(t, func(t *testing.T) {
				process := s.Open(t, time.Millisecond)
				dead, other := process(c.limit), process(c.limit)
				require.True(t, other.Allow("k", c.spent))
				d, err := other.Peek(t.Context(), "k", 1)
				require.NoError(t, err)
				fits := time.Now().Add(d.RetryAfter)
				died, served := make(chan error, 1), make(chan error, 1)
				ctx, leave := context.WithCancel(context.Background())
				go func() { died <- dead.Wait(ctx, "k", c.cost) }()
				time.Sleep(500 * time.Millisecond)
				require.False(t, other.Allow("k", 1), name)
				if waits {
					go func() { served <- other.Wait(t.Context(), "k", 1) }()
				}
				time.Sleep(1500 * time.Millisecond) // while it lives, it keeps its place
				require.Empty(t, served)
				require.False(t, other.Allow("k", 1), name)
				kill(dead)
				killed := time.Now()
				want := killed.Add(time.Second)
				if fits.After(want) {
					want = fits
				}
				if waits {
					require.NoError(t, <-served)
				} else {
					time.Sleep(time.Until(killed.Add(time.Second)))
					if !other.Allow("k", 1) { // this call gives the booking back
						require.True(t, fits.After(time.Now()), "%s: a second after the end", name)
						time.Sleep(time.Until(fits.Add(20 * time.Millisecond)))
						require.True(t, other.Allow("k", 1), "%s: %v after the end", name, time.Since(killed))
					}
				}
				assert.WithinRange(t, time.Now(), fits.Add(-5*time.Millisecond), want.Add(50*time.Millisecond), "%s, waits: %v", name, waits)
				leave()
				require.Error(t, <-died)
				time.Sleep(time.Minute)
			})
		}
	}
}
