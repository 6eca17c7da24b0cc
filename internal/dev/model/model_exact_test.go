package model

import (
	"context"
	"fmt"
	"math"
	"math/big"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/weir-go/ratelimit"
	"github.com/weir-go/ratelimit/internal/dev/testsize"
)

// greedy spends the whole remaining budget at each step from 0 to the end, and returns the sum.
func greedy(t *testing.T, l ratelimit.Limit, step, end int64) *big.Int {
	r, sum := newRig(t, l), new(big.Int)
	for now := int64(0); ; now = min(now+step, end) {
		r.clock.now.Store(now)
		d, err := r.limiter.Peek(context.Background(), "k", 0)
		require.NoError(t, err)
		require.True(t, r.limiter.Allow("k", d.Remaining))
		sum.Add(sum, big.NewInt(int64(d.Remaining)))
		if now == end {
			return sum
		}
	}
}

// regained returns rate·t, rounded down.
func regained(r ratelimit.Rate, t int64) *big.Int {
	n := mul(int64(r.Units), t)
	return n.Div(n, big.NewInt(int64(r.Per)))
}

func TestGreedyCallerGetsBurstAndRate(t *testing.T) {
	testsize.Arithmetic(t)
	huge := ratelimit.PerSecond(Whole(3_000_000_019))
	for _, l := range []ratelimit.Limit{
		ratelimit.TokenBucket(ratelimit.PerSecond(3), 200),
		ratelimit.TokenBucket(ratelimit.Per(7, 11*time.Second), 70),
		ratelimit.TokenBucket(ratelimit.PerDay(999_983), 999_983),
		ratelimit.TokenBucket(huge, Whole(3600*int64(huge.Units))),
	} {
		t.Run(l.String(), func(t *testing.T) {
			// A step regains the whole burst but one unit, so nothing is lost.
			step := floorDiv(mul(int64(l.Burst-1), int64(l.Rate.Per)), int64(l.Rate.Units))
			for _, end := range []int64{int64(time.Minute), Year} {
				if end/step > 10_000_000 {
					t.Skip("too many steps, where an int has 32 bits")
				}
				want := add(regained(l.Rate, end), big.NewInt(int64(l.Burst)))
				require.Equal(t, want.String(), greedy(t, l, min(step, end/7), end).String(), time.Duration(end))
			}
		})
	}
}

// A burst of 1 cannot keep both the bound and the whole rate,
// because the clock has no thirds of a nanosecond. A burst of 2 can.
func TestGreedyCallerWithASmallBurstLosesNothing(t *testing.T) {
	testsize.Arithmetic(t)
	tests := []struct {
		limit ratelimit.Limit
		step  int64
		want  string // the sum in a minute
	}{
		{ratelimit.TokenBucket(ratelimit.PerSecond(3), 2), 333_333_333, "182"},
		{ratelimit.TokenBucket(ratelimit.Per(7, 11*time.Second), 2), 1_571_428_571, "40"},
		{ratelimit.TokenBucket(ratelimit.PerDay(999_983), 2), 86_401_468, "696"},
	}
	for _, tt := range tests {
		t.Run(tt.limit.String(), func(t *testing.T) {
			require.Equal(t, tt.want, greedy(t, tt.limit, tt.step, int64(time.Minute)).String())
		})
	}
}

func TestGreedyCallerGetsTheUnitsOfEachWindow(t *testing.T) {
	testsize.Arithmetic(t)
	for _, l := range windows(ratelimit.Per(7, 11*time.Second))[:2] {
		t.Run(l.String(), func(t *testing.T) {
			const n = 20_000 // windows
			per := int64(l.Rate.Per)
			require.Equal(t, fmt.Sprint(7*n), greedy(t, l, per/4, n*per-1).String())
			require.Equal(t, fmt.Sprint(7*(n+1)), greedy(t, l, per/4, n*per).String())
		})
	}
}

func TestTheLargestAcceptedLimitsAreExact(t *testing.T) {
	for i, l := range EdgeLimits() {
		t.Run(l.String(), func(t *testing.T) {
			for seed := range Rounds(200) {
				s := &script{data: seeded(uint64(6+i)<<32|seed, 200), limit: l, edge: true}
				s.only = []opKind{opTake, opTake, opAllow, opPeek, opReserve, opReserve, opCancel, opSweep}
				s.run(t, 60)
			}
		})
	}
}

func TestBeyondTheEdgesIsRefused(t *testing.T) {
	over := time.Duration(Century + 1)
	limits := map[string]ratelimit.Limit{
		"capacity regained in a day more": ratelimit.TokenBucket(ratelimit.PerDay(1), 36_526),
		"capacity regained in 1 ns more":  ratelimit.TokenBucket(ratelimit.Per(1, over), 1),
		"queue drained in 1 ns more":      ratelimit.LeakyBucket(ratelimit.Per(2, over), 2),
		"largest figures":                 ratelimit.TokenBucket(ratelimit.Per(1, math.MaxInt64), math.MaxInt),
		"fixed window 1 ns longer":        ratelimit.FixedWindow(ratelimit.Per(5, over)),
		"sliding log 1 ns longer":         ratelimit.SlidingLog(ratelimit.Per(5, over)),
		"sliding counter 1 ns longer":     ratelimit.SlidingCounter(ratelimit.Per(5, over)),
	}
	if n := int64(1<<53 + 1); Whole(n) == math.MaxInt {
		limits["one unit more"] = ratelimit.FixedWindow(ratelimit.PerSecond(Whole(n)))
	} else {
		for _, l := range Five(ratelimit.PerSecond(Whole(n))) {
			limits["one unit more, "+l.Algorithm.String()] = l
		}
	}
	for name, l := range limits {
		t.Run(name, func(t *testing.T) {
			_, err := ratelimit.New[string](l, nil)
			if math.MaxInt == math.MaxInt32 && name == "one unit more" {
				require.NoError(t, err, "every int is counted exactly")
				return
			}
			require.ErrorIs(t, err, ratelimit.ErrInvalidLimit)
		})
	}
}

func TestDebtWithoutEndIsCapped(t *testing.T) {
	tests := map[string][]op{
		"charged once":             {{kind: opAdjust, n: math.MaxInt}},
		"charged again and again":  {{kind: opAdjust, n: math.MaxInt}, {kind: opAdjust, n: math.MaxInt}, {kind: opAdjust, n: math.MaxInt}},
		"charged after spending":   {{kind: opTake, n: 1}, {kind: opAdjust, n: math.MaxInt}},
		"charged again later":      {{kind: opAdjust, n: math.MaxInt}, {kind: opAdjust, raw: Year, n: math.MaxInt}, {kind: opAdjust, raw: Year, n: 1}},
		"settled":                  {{kind: opReserve, n: 1}, {kind: opSettle, n: math.MaxInt}},
		"charged behind a booking": {{kind: opTake, n: 1}, {kind: opReserve, n: 1, ahead: time.Hour, id: 1}, {kind: opAdjust, n: math.MaxInt}},
		"booked behind":            {{kind: opAdjust, n: math.MaxInt}, {kind: opReserve, n: 1, ahead: math.MaxInt64}},
		"booked behind by a Year":  {{kind: opAdjust, n: math.MaxInt}, {kind: opReserve, n: 1, ahead: time.Duration(Year)}},
	}
	for name, ops := range tests {
		t.Run(name, func(t *testing.T) {
			for _, l := range Saturated() {
				checkDebt(t, l, ops)
			}
		})
	}
}

func checkDebt(t *testing.T, l ratelimit.Limit, ops []op) {
	peek := op{kind: opPeek, raw: ops[len(ops)-1].raw, n: 1}
	ops = append(ops[:len(ops):len(ops)], peek)
	p := &probe{T: t, limit: l, ops: ops, last: peek, d: replay(t, l, ops).do(peek).d}
	most := add(big.NewInt(Century), mul(2, int64(l.Rate.Per))) // a debt ends only at a window's end
	require.GreaterOrEqual(t, p.d.RetryAfter, time.Duration(0), p)
	require.Positive(t, p.d.ResetAfter, p)
	require.Zero(t, p.d.Remaining, p)
	require.LessOrEqual(t, big.NewInt(int64(p.d.ResetAfter)).Cmp(most), 0, p)
	p.retryAfter()
	p.remaining()
	p.resetAfter()
}

func TestGrantWithoutEndIsAFreshKey(t *testing.T) {
	for _, l := range Saturated() {
		r := newRig(t, l)
		r.do(op{kind: opAdjust, n: math.MaxInt})
		for range 4 {
			r.do(op{kind: opAdjust, n: math.MinInt})
			r.do(op{kind: opAdjust, n: math.MinInt + 1})
		}
		d, err := r.limiter.Peek(context.Background(), "k", 1)
		require.NoError(t, err)
		require.Equal(t, ratelimit.Decision{Allowed: true, Limit: l, Remaining: l.Capacity()}, d)
	}
}

func TestAnyReadingOfTheClockWillDo(t *testing.T) {
	readings := []int64{math.MinInt64, math.MinInt64 + 1, -1 << 62, -Century, -1, 0, 1, Century, 1<<62 - 1, 1 << 62, math.MaxInt64 - 1, math.MaxInt64}
	for _, l := range Saturated() {
		for _, raw := range readings {
			r := newRig(t, l)
			r.clock.now.Store(raw)
			spendAll(t, r, fmt.Sprintf("%v at %d", l, raw))
			for _, other := range readings {
				shake(r, other)
			}
		}
	}
}

// spendAll spends a fresh key's capacity, and then compares the limiter's times with exact ones.
func spendAll(t *testing.T, r *rig, text string) {
	ctx := context.Background()
	d, err := r.limiter.Peek(context.Background(), "k", 1)
	require.NoError(t, err, text)
	require.True(t, d.Allowed, text)
	require.True(t, r.limiter.Allow("k", d.Remaining), text)
	d, err = r.limiter.Take(ctx, "k", 1)
	require.NoError(t, err, text)
	require.False(t, d.Allowed, text)
	require.Positive(t, d.RetryAfter, text)
	require.GreaterOrEqual(t, d.ResetAfter, d.RetryAfter, text)
	require.Zero(t, r.limiter.Sweep(), text)
}

// shake makes every kind of call at one reading, however far away.
func shake(r *rig, raw int64) {
	for kind := opTake; kind <= opSweep; kind++ {
		if kind == opSettle || kind == opCancel {
			r.do(op{kind: opReserve, raw: raw, n: 1, ahead: math.MaxInt64})
		}
		r.do(op{kind: kind, raw: raw, n: 1, ahead: time.Hour})
	}
}
