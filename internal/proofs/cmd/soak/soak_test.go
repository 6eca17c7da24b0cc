package main

import (
	"bytes"
	"context"
	"errors"
	"math"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/weir-go/ratelimit"
	"github.com/weir-go/ratelimit/internal/dev/testsize"
)

// short returns a soak of little more than one check per algorithm.
func short() setup {
	return setup{limit: limits[0], lasts: testsize.Of[time.Duration](100, 200) * time.Millisecond, keys: 10_000, maxKeys: 1 << 10, workers: 4,
		every: 25 * time.Millisecond, calm: 50, out: new(bytes.Buffer), make: ours}
}

func TestOurLimiterSoaks(t *testing.T) {
	s := short()
	require.NoError(t, soak(t.Context(), s))
	for _, l := range limits {
		assert.Contains(t, s.out.(*bytes.Buffer).String(), l.Algorithm.String(), "progress is shown")
	}
}

func TestSoakEndsWithItsContext(t *testing.T) {
	ctx, stop := context.WithCancel(t.Context())
	stop()
	s := short()
	s.lasts = time.Hour
	assert.NoError(t, soak(ctx, s))
}

func TestAnIntervalBeginsWhereTheClockWasSetBackTo(t *testing.T) {
	var c clock
	limit := ratelimit.TokenBucket(ratelimit.PerSecond(30), 20)
	l := ratelimit.Must(ratelimit.New(limit, &ratelimit.Options[uint64]{Clock: &c}))
	a := account{marks: []mark{{}}}
	check := func() error { return a.check(limit, c.lowest(), c.highest()) }
	c.move(10 * time.Second)
	l.Allow(2, 1) // the clock is read, but key 1 is not used
	require.NoError(t, check())

	c.move(-time.Second)
	for range 2 { // once at 9 s and once at 10 s
		require.True(t, l.Allow(1, 20))
		a.spent.Add(20)
		c.move(time.Second)
	}
	c.move(-time.Second)
	require.NoError(t, check(), "50 in the second from 9 s to 10 s")

	a.spent.Add(11)
	assert.ErrorContains(t, check(), "was allowed 51 within 1s")
}

type keyed = *ratelimit.Keyed[uint64]

// forgets gives a key a new budget whenever it is refreshed.
type forgets struct{ keyed }

func (l forgets) Refresh(keys ...uint64) {
	for _, key := range keys {
		l.Reset(context.Background(), key)
	}
}

// doublesUp counts each settlement twice.
type doublesUp struct{ keyed }

func (l doublesUp) Reserve(ctx context.Context, key uint64, cost int, maxDelay time.Duration) (*ratelimit.Reservation, error) {
	r, err := l.keyed.Reserve(ctx, key, cost, maxDelay)
	return ratelimit.NewReservation(r.Decision, func(actual int) error {
		return errors.Join(r.Settle(actual), l.Adjust(context.Background(), key, actual-cost))
	}), err
}

// spawns starts goroutines for every new limit.
type spawns struct {
	keyed
	until <-chan struct{}
}

func (l spawns) SetLimit(limit ratelimit.Limit) error {
	for range 50 {
		go func() { <-l.until }()
	}
	return l.keyed.SetLimit(limit)
}

// early returns a RetryAfter one nanosecond too short.
type early struct{ keyed }

func (l early) Peek(ctx context.Context, key uint64, cost int) (ratelimit.Decision, error) {
	d, err := l.keyed.Peek(context.Background(), key, cost)
	if d.RetryAfter > 0 {
		d.RetryAfter--
	}
	return d, err
}

func TestViolationsEndTheSoak(t *testing.T) {
	until := make(chan struct{})
	t.Cleanup(func() { close(until) })
	for name, test := range map[string]struct {
		put  func(l keyed) limiter
		keys int // as a multiple of MaxKeys
		want string
	}{
		"a budget given back twice":  {func(l keyed) limiter { return doublesUp{l} }, 1, "was allowed"},
		"a key that is forgotten":    {func(l keyed) limiter { return forgets{l} }, 1, "was allowed"},
		"a table without bounds":     {func(l keyed) limiter { return l }, 4, "keys are tracked, of 1024 at most"},
		"goroutines that stay":       {func(l keyed) limiter { return spawns{l, until} }, 1, "goroutines run"},
		"a RetryAfter that is early": {func(l keyed) limiter { return early{l} }, 1, "RetryAfter was"},
	} {
		t.Run(name, func(t *testing.T) {
			s := short()
			s.lasts = time.Hour // the violation ends the soak
			s.make = func(limit ratelimit.Limit, opts *ratelimit.Options[uint64]) (limiter, error) {
				wider := *opts
				wider.MaxKeys *= test.keys
				l, err := ratelimit.New(limit, &wider)
				return test.put(l), err
			}
			assert.ErrorContains(t, run(t.Context(), s), test.want)
		})
	}
}

func TestHeapAndGoroutinesAreGauged(t *testing.T) {
	g := gauge{goroutines: math.MaxInt, heap: heapInUse()}
	require.NoError(t, g.check())
	kept := make([]byte, int(g.slack())+16<<20)
	assert.ErrorContains(t, g.check(), "the heap has grown to")
	assert.NotEmpty(t, kept) // keeps the bytes on the heap until here
	g.goroutines = 0
	assert.ErrorContains(t, g.check(), "goroutines run, and there were 0")
}

func TestFlagsAreChecked(t *testing.T) {
	for _, test := range []struct {
		want  string
		spoil func(s *setup)
	}{
		{"-for and -every", func(s *setup) { s.lasts = 0 }},
		{"-keys is 0", func(s *setup) { s.keys = 0 }},
		{"-max is 8, want at least 128", func(s *setup) { s.maxKeys = 8 }},
		{"-workers is 0", func(s *setup) { s.workers = 0 }},
	} {
		s := short()
		test.spoil(&s)
		assert.ErrorContains(t, soak(t.Context(), s), test.want)
	}
}
