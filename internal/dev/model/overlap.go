package model

import (
	"cmp"
	"context"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/weir-go/ratelimit"
)

// TokensPerMinute is the limit of Overlap and Hour.
var TokensPerMinute = ratelimit.TokenBucket(ratelimit.PerMinute(100_000), 100_000)

// Clock is a clock that a test sets.
type Clock interface {
	Now() time.Duration
	Advance(time.Duration)
}

// Overlap plays calls to a language model under TokensPerMinute. Each reserves 4,000 tokens, takes 3
// seconds, and settles at 500. As many calls run at once as the limiter admits. Overlap returns the tokens
// used per minute, after a first minute that uses up the burst. No interval may use more than the bound.
func Overlap[K any](t testing.TB, clock Clock, l ratelimit.Reserver[K], key K) (used int) {
	used, over := play(t, clock, l, TokensPerMinute, []K{key}, 4*time.Minute, func() modelCall { return modelCall{4000, 500, 3 * time.Second, 0} })
	require.Zero(t, over, "tokens beyond the bound")
	return used
}

// StreamsPerMinute is Streams' limit. Its burst holds the estimates of 200 streams.
var StreamsPerMinute = ratelimit.TokenBucket(ratelimit.PerMinute(100_000), 800_000)

// Streams is Overlap under StreamsPerMinute, for two hours. Its
// calls take 30 to 90 seconds, so about 200 are open at any time.
func Streams[K any](t testing.TB, clock Clock, l ratelimit.Reserver[K], key K) (used int) {
	rnd := rand.New(rand.NewPCG(67, 4))
	used, over := play(t, clock, l, StreamsPerMinute, []K{key}, 2*time.Hour, func() modelCall {
		return modelCall{4000, 500, 30*time.Second + time.Duration(rnd.Int64N(int64(time.Minute))), 0}
	})
	require.Zero(t, over, "tokens beyond the bound")
	return used
}

// Hour is Overlap for an hour, with several keys sharing the limit. Random calls reserve 1,000 to 8,000 tokens,
// use a quarter of them on average, and take up to 6 seconds. Some are cancelled. If ahead is positive, every
// second call may be booked up to ahead. Over is the largest excess over the bound in any interval, in tokens.
func Hour[K any](t testing.TB, clock Clock, l ratelimit.Reserver[K], keys []K, ahead time.Duration) (used, over int) {
	rnd := rand.New(rand.NewPCG(54, 1))
	return play(t, clock, l, TokensPerMinute, keys, time.Hour, func() modelCall {
		c := modelCall{estimate: 1000 + rnd.IntN(7001), length: time.Duration(rnd.Int64N(int64(6 * time.Second)))}
		if share := rnd.Float64(); share > 0.05 {
			c.actual = int(float64(c.estimate) * share * share * share)
		}
		if ahead > 0 && rnd.IntN(2) == 0 {
			c.ahead = time.Duration(rnd.Int64N(int64(ahead)))
		}
		return c
	})
}

// InTurn returns a limiter calling several processes' limiters in turn.
func InTurn[K any](all ...ratelimit.Reserver[K]) ratelimit.Reserver[K] {
	return &inTurn[K]{Reserver: all[0], all: all}
}

type inTurn[K any] struct {
	ratelimit.Reserver[K]
	all  []ratelimit.Reserver[K]
	next int
}

func (l *inTurn[K]) Reserve(ctx context.Context, key K, cost int, maxDelay time.Duration) (*ratelimit.Reservation, error) {
	l.next = (l.next + 1) % len(l.all)
	return l.all[l.next].Reserve(ctx, key, cost, maxDelay)
}

// modelCall is one call to a language model.
type modelCall struct {
	estimate, actual int
	length, ahead    time.Duration
}

// play runs calls for a time, as many at once as the limiter admits. The limit must be a token bucket.
func play[K any](t testing.TB, clock Clock, l ratelimit.Reserver[K], limit ratelimit.Limit, keys []K, lasts time.Duration, next func() modelCall) (used, over int) {
	type running struct {
		*ratelimit.Reservation
		actual int
		end    time.Duration
	}
	type spent struct {
		at     time.Duration
		tokens int
	}
	var (
		open  []running // sorted by end
		past  []spent
		begin = clock.Now()
		calls = make([]modelCall, len(keys)) // each key's next call
	)
	for i := range calls {
		calls[i] = next()
	}
	for {
		now := clock.Now() - begin
		if now >= lasts {
			break
		}
		for len(open) > 0 && open[0].end <= now {
			require.NoError(t, open[0].Settle(open[0].actual))
			open = open[1:]
		}
		pause := time.Duration(-1)
		for i, key := range keys {
			c := calls[i]
			r, err := l.Reserve(t.Context(), key, c.estimate, c.ahead)
			require.NoError(t, err)
			if !r.Allowed {
				require.Positive(t, r.RetryAfter)
				if pause < 0 || r.RetryAfter < pause {
					pause = r.RetryAfter
				}
				continue
			}
			end := now + r.Delay + c.length
			k, _ := slices.BinarySearchFunc(open, end+1, func(o running, end time.Duration) int { return cmp.Compare(o.end, end) })
			open = slices.Insert(open, k, running{r, c.actual, end})
			past = append(past, spent{now + r.Delay, c.actual})
			calls[i], pause = next(), 0
		}
		if pause > 0 && len(open) > 0 {
			pause = min(pause, open[0].end-now)
		}
		clock.Advance(pause)
	}
	// In each interval, level rises by the tokens used above the rate. So its largest rise is the worst interval's.
	slices.SortStableFunc(past, func(a, b spent) int { return cmp.Compare(a.at, b.at) })
	rate, per := int64(limit.Rate.Units), int64(limit.Rate.Per)
	var sum, worst, least int64 // the tokens up to now; the largest rise of level from its minimum; the minimum
	for _, s := range past {
		level := sum*per - rate*int64(s.at)
		least = min(least, level)
		sum += int64(s.tokens)
		worst = max(worst, sum*per-rate*int64(s.at)-least)
		if s.at >= time.Minute && s.at < lasts {
			used += s.tokens
		}
	}
	if beyond := worst - int64(limit.Burst)*per; beyond > 0 {
		over = int((beyond + per - 1) / per)
	}
	return used / int((lasts-time.Minute)/time.Minute), over
}
