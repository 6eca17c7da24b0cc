package model

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/weir-go/ratelimit"
)

// TokensPerMinute is the limit of Overlap.
var TokensPerMinute = ratelimit.TokenBucket(ratelimit.PerMinute(100_000), 100_000)

// Overlap plays calls of a language model under TokensPerMinute: each reserves 4,000 tokens, takes 3 seconds, and
// settles at 500. As many calls run at once as the limiter admits. It returns the tokens used in a minute, after the
// first one, in which the burst is used up.
func Overlap[K any](t testing.TB, clock interface {
	Now() time.Duration
	Advance(time.Duration)
}, l ratelimit.Reserver[K], key K) (used int) {
	const estimate, actual, length, minutes = 4000, 500, 3 * time.Second, 3
	type call struct {
		*ratelimit.Reservation
		end time.Duration
	}
	var running []call
	begin := clock.Now()
	for {
		now := clock.Now() - begin
		if now >= (1+minutes)*time.Minute {
			return used / minutes
		}
		for len(running) > 0 && running[0].end <= now {
			require.NoError(t, running[0].Settle(actual))
			running = running[1:]
		}
		r, err := l.Reserve(t.Context(), key, estimate, 0)
		require.NoError(t, err)
		if r.Allowed {
			running = append(running, call{r, now + length})
			if now >= time.Minute {
				used += actual
			}
			continue
		}
		pause := r.RetryAfter
		if len(running) > 0 {
			pause = min(pause, running[0].end-now)
		}
		require.Positive(t, pause)
		clock.Advance(pause)
	}
}
