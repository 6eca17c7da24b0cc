package fair_test

import (
	"container/heap"
	"context"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/weir-go/ratelimit"
	"github.com/weir-go/ratelimit/fair"
	"github.com/weir-go/ratelimit/ratelimittest"
)

// play runs the callers' actions in the order of time, on a clock set by hand.
type play struct {
	clock *ratelimittest.Clock
	calls calls
}

// call is an action at an instant. The action returns the time until it is repeated, or 0 for never.
type call struct {
	at time.Duration
	do func() time.Duration
}

type calls []call

func (c calls) Len() int           { return len(c) }
func (c calls) Less(i, j int) bool { return c[i].at < c[j].at }
func (c calls) Swap(i, j int)      { c[i], c[j] = c[j], c[i] }
func (c *calls) Push(x any)        { *c = append(*c, x.(call)) }
func (c *calls) Pop() any {
	last := len(*c) - 1
	x := (*c)[last]
	*c = (*c)[:last]
	return x
}

func (p *play) add(at time.Duration, do func() time.Duration) { heap.Push(&p.calls, call{at, do}) }

func (p *play) until(end time.Duration) {
	for len(p.calls) > 0 && p.calls[0].at < end {
		c := heap.Pop(&p.calls).(call)
		p.clock.Set(c.at)
		if again := c.do(); again > 0 {
			p.add(c.at+again, c.do)
		}
	}
	p.clock.Set(end)
}

// caller counts a tenant's calls by their results.
type caller struct{ requested, denied, spent int }

func (c *caller) count(d ratelimit.Decision, cost int) {
	if c.requested++; d.Allowed {
		c.spent += cost
	} else {
		c.denied++
	}
}

// polls makes a tenant try about every 10 ms, without regard to RetryAfter.
func (p *play) polls(t *testing.T, r *rand.Rand, l ratelimit.Limiter[int], key, cost int, c *caller) {
	p.add(p.clock.Now()+time.Duration(r.Int64N(10e6)), func() time.Duration {
		d, err := l.Take(context.Background(), key, cost)
		require.NoError(t, err)
		c.count(d, cost)
		return time.Duration((0.5 + r.Float64()) * 10e6)
	})
}

// requests makes a tenant call at random. often is the mean number of calls per second.
func (p *play) requests(t *testing.T, r *rand.Rand, l ratelimit.Limiter[int], key, cost int, often float64, c *caller) {
	pause := func() time.Duration { return 1 + time.Duration(r.ExpFloat64()/often*1e9) }
	p.add(p.clock.Now()+pause(), func() time.Duration {
		d, err := l.Take(context.Background(), key, cost)
		require.NoError(t, err)
		c.count(d, cost)
		return pause()
	})
}

func take(t *testing.T, l ratelimit.Limiter[int], key, cost int) ratelimit.Decision {
	t.Helper()
	d, err := l.Take(context.Background(), key, cost)
	require.NoError(t, err)
	return d
}

func newFair(t *testing.T, limit ratelimit.Limit, opts *fair.Options[int]) *fair.Limiter[int] {
	t.Helper()
	l, err := fair.New(limit, opts)
	require.NoError(t, err)
	return l
}

func perSecond(rate, burst int) ratelimit.Limit {
	return ratelimit.TokenBucket(ratelimit.PerSecond(rate), burst)
}
