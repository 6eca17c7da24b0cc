package sqllimit

import (
	"context"
	"fmt"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/weir-go/ratelimit"
	"github.com/weir-go/ratelimit/internal/dev/testsize"
	"github.com/weir-go/ratelimit/ratelimittest"
)

func identity(key string) (string, error) { return key, nil }

type stackOfOne struct {
	*ratelimit.Layered[string]
	l *Limiter
}

func (s stackOfOne) Reset(ctx context.Context, key string) error { return s.l.Reset(ctx, key) }
func (s stackOfOne) SetLimit(limit ratelimit.Limit) error        { return s.l.SetLimit(limit) }

func TestSuiteThroughAStack(t *testing.T) {
	testsize.Sequential(t)
	clock := new(ratelimittest.Clock)
	_, db := newFake(t, func() int64 { return clock.Wall().UnixMicro() })
	made := 0
	ratelimittest.Run(t, ratelimittest.Config{
		Clock: clock, Resolution: time.Microsecond, Histories: 3, Skip: []string{"Reserve", "Wait"},
		Accepts: func(l ratelimit.Limit) bool { _, err := newPlan(l); return err == nil },
		Want:    []string{"Peek", "Adjust", "Reset", "SetLimit", "Calendar"},
		New: func(limit ratelimit.Limit) (ratelimit.Limiter[string], error) {
			made++
			l, err := New(db, limit, &Options{Name: fmt.Sprint("suite", made), Timeout: 20 * time.Second})
			if err != nil {
				return nil, err
			}
			stack, err := ratelimit.All(ratelimit.By(l, func(key string) (string, error) { return short(key), nil }))
			return stackOfOne{stack, l}, err
		},
	})
}

func TestStacksAnswerAsStacksInMemory(t *testing.T) {
	calls := 0
	for seed := range uint64(150) {
		clock := new(ratelimittest.Clock)
		_, db := newFake(t, func() int64 { return clock.Wall().UnixMicro() })
		rng := rand.New(rand.NewPCG(seed, 3))
		pool := []ratelimit.Limit{
			ratelimit.FixedWindow(ratelimit.PerSecond(9)), ratelimit.SlidingLog(ratelimit.PerMinute(20)), ratelimit.TokenBucket(ratelimit.PerSecond(1), 40),
			ratelimit.TokenBucket(ratelimit.PerSecond(2), 7), ratelimit.LeakyBucket(ratelimit.PerSecond(1), 12), ratelimit.FixedWindow(ratelimit.PerMinute(11)),
			ratelimit.Unlimited(), ratelimit.Blocked(),
		}
		var memory, remote []ratelimit.Layer[string]
		events := [2]map[int]ratelimit.Event[string]{{}, {}}
		add := func(m, r ratelimit.Layer[string]) {
			i := len(memory)
			m.Observe = func(e ratelimit.Event[string]) { events[0][i] = e }
			r.Observe = func(e ratelimit.Event[string]) { events[1][i] = e }
			memory, remote = append(memory, m), append(remote, r)
		}
		for i := range 1 + rng.IntN(4) {
			n := len(pool)
			if rng.IntN(6) > 0 {
				n -= 2
			}
			limit := pool[rng.IntN(n)].Named(fmt.Sprint("l", i))
			ml := ratelimit.Must(ratelimit.New(limit, &ratelimit.Options[string]{Clock: clock}))
			rl, err := New(db, limit, &Options{Timeout: 20 * time.Second})
			require.NoError(t, err)
			m, r := ratelimit.By(ml, identity), ratelimit.By(rl, identity)
			if rng.IntN(4) == 0 {
				own := func(string) int { return 2 }
				m.Cost, r.Cost = own, own
			}
			if rng.IntN(5) == 0 {
				other := pool[rng.IntN(4)]
				of := func(string) ratelimit.Limit { return other }
				m.Limit, r.Limit = of, of
			}
			add(m, r)
			if rng.IntN(5) == 0 {
				add(m, r)
			}
			if rng.IntN(4) == 0 {
				m.Shadow, r.Shadow = true, true
				add(m, r)
			}
		}
		a, err := ratelimit.All(memory...)
		require.NoError(t, err)
		b, err := ratelimit.All(remote...)
		require.NoError(t, err)
		assert.Equal(t, a.Describe().Limits, b.Describe().Limits)
		var open [][2]*ratelimit.Reservation
		log := ""
		for range 40 {
			clock.Advance(time.Duration(rng.IntN(3)) * time.Duration(rng.IntN(4000)) * time.Millisecond)
			key, cost := string(rune('a'+rng.IntN(2))), rng.IntN(4)
			clear(events[0])
			clear(events[1])
			calls++
			var x, y ratelimit.Decision
			var ex, ey error
			what := rng.IntN(6)
			switch what {
			case 0:
				x, ex = a.Peek(t.Context(), key, cost)
				y, ey = b.Peek(t.Context(), key, cost)
			case 1, 2:
				delay := time.Duration(rng.IntN(5)) * time.Second
				rx, e1 := a.Reserve(t.Context(), key, cost, delay)
				ry, e2 := b.Reserve(t.Context(), key, cost, delay)
				x, ex, y, ey = rx.Decision, e1, ry.Decision, e2
				open = append(open, [2]*ratelimit.Reservation{rx, ry})
			case 3:
				if len(open) > 0 {
					i, actual := rng.IntN(len(open)), rng.IntN(6)
					require.NoError(t, open[i][0].Settle(actual))
					require.NoError(t, open[i][1].Settle(actual))
				}
			default:
				x, ex = a.Take(t.Context(), key, cost)
				y, ey = b.Take(t.Context(), key, cost)
			}
			log += fmt.Sprintf("%v %d(%s, %d): %v %v\n", clock.Now(), what, key, cost, x, ex)
			require.Equal(t, ex == nil, ey == nil, "seed %d: %v, %v\n%s", seed, ex, ey, log)
			if ex != nil {
				require.Equal(t, ex.Error(), ey.Error())
				x.Remaining, x.ResetAfter, x.RetryAfter, x.Limit = y.Remaining, y.ResetAfter, y.RetryAfter, y.Limit
			}
			if y.NextAfter == 0 { // unknown if a layer's own cost, or several layers of one key, leave no room for a unit
				x.NextAfter = 0
			}
			require.Equal(t, x, y, "seed %d %v\n%s", seed, a.Describe().Limits, log)
			for i := range events[0] {
				if ex == nil {
					require.Equal(t, events[0][i], events[1][i], "seed %d layer %d\n%s", seed, i, log)
				}
			}
			if ex == nil {
				require.Len(t, events[1], len(events[0]), "seed %d %v\n%s", seed, events, log)
			}
		}
	}
	t.Log(calls, "calls")
}

func TestTwoLayersOfOtherStoresNameChain(t *testing.T) {
	clock := new(ratelimittest.Clock)
	_, db := newFake(t, func() int64 { return clock.Wall().UnixMicro() })
	l, err := New(db, ratelimit.FixedWindow(ratelimit.PerSecond(9)), &Options{Name: "x"})
	require.NoError(t, err)
	m := ratelimit.Must(ratelimit.New[string](ratelimit.FixedWindow(ratelimit.PerSecond(9)), nil))
	_, err = ratelimit.All(ratelimit.By(l, identity), ratelimit.By(m, identity))
	require.ErrorContains(t, err, "chain")
}
