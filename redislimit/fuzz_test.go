package redislimit

import (
	"context"
	"errors"
	"math/big"
	"math/rand/v2"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/weir-go/ratelimit"
	"github.com/weir-go/ratelimit/internal/meter"
)

// FuzzState stores any bytes in a state's place. If they look like a state, every call returns
// a decision; otherwise it returns errForeignState. A call with an error changes nothing.
func FuzzState(f *testing.F) {
	client := startServer(f).client()
	limits := fiveLimits()
	for i, limit := range limits {
		l, err := New(client, limit, &Options{Name: "seed", Timeout: 10 * time.Second})
		require.NoError(f, err)
		l.store.clock, l.store.grace = func() int64 { return epoch }, outlive
		key := strconv.Itoa(i)
		require.True(f, l.Allow(key, 3))
		f.Add(stored(f, client, l, key), byte(i), byte(1), int64(0))
		_, err = l.Reserve(context.Background(), key, 10, time.Hour)
		require.NoError(f, err)
		require.NoError(f, l.Adjust(context.Background(), key, 45))
		for j := range limits {
			f.Add(stored(f, client, l, key), byte(j), byte(i), int64(70e6))
		}
		for _, state := range correctedStates(f, client, limit) {
			f.Add(state, byte(i), byte(3), int64(1e6))
			f.Add(state, byte(i+1), byte(3), int64(20e6))
			f.Add(state[:len(state)-8], byte(i), byte(3), int64(1e6)) // its end has the length of a note's
		}
	}
	f.Fuzz(func(t *testing.T, state []byte, which, cost byte, later int64) {
		l, err := New(client, limits[int(which)%5], &Options{Name: "fuzz", Timeout: 10 * time.Second})
		require.NoError(t, err)
		l.store.clock, l.store.grace = func() int64 { return max(1, epoch+later%century) }, outlive
		fuzzCalls(t, client, l, state, int(cost)%11)
	})
}

// correctedStates returns stored states with open reservations. One is booked. Some
// states have a debt, or units set aside by a lowered limit, with or without bookings.
func correctedStates(t testing.TB, client *redis.Client, limit ratelimit.Limit) (states [][]byte) {
	ctx := context.Background()
	lower := limit
	lower.Rate.Units, lower.Burst = 2, min(2, limit.Burst)
	for i, change := range []func(l *Limiter, key string) error{
		func(l *Limiter, key string) error { return nil },
		func(l *Limiter, key string) error { _, err := l.Reserve(ctx, key, 5, time.Hour); return err },
		func(l *Limiter, key string) error { return l.Adjust(ctx, key, 30) },
		func(l *Limiter, key string) error { return errors.Join(l.SetLimit(lower), l.Adjust(ctx, key, -1)) },
		func(l *Limiter, key string) error {
			_, err := l.Reserve(ctx, key, 5, time.Hour)
			return errors.Join(err, l.SetLimit(lower), l.Adjust(ctx, key, 1))
		},
	} {
		l, err := New(client, limit, &Options{Name: "corrected" + strconv.Itoa(i), Timeout: 10 * time.Second})
		require.NoError(t, err)
		now := epoch
		l.store.clock, l.store.grace = func() int64 { return now }, outlive
		key := limit.Algorithm.String()
		for _, cost := range []int{4, 3} {
			_, err := l.Reserve(ctx, key, cost, 0)
			require.NoError(t, err)
			now += 1000
		}
		require.NoError(t, change(l, key))
		states = append(states, stored(t, client, l, key))
	}
	return states
}

func stored(t testing.TB, client *redis.Client, l *Limiter, key string) []byte {
	b, err := client.Get(context.Background(), l.space.key(key)).Bytes()
	require.NoError(t, err)
	return b
}

func fuzzCalls(t *testing.T, client *redis.Client, l *Limiter, state []byte, cost int) {
	ctx, key := context.Background(), l.space.key("k")
	calls := []func() error{
		func() error { _, err := l.Peek(ctx, "k", cost); return err },
		func() error { _, err := l.Take(ctx, "k", cost); return err },
		func() error { return l.Adjust(ctx, "k", 2*cost-9) },
		func() error {
			r, err := l.Reserve(ctx, "k", cost, time.Hour)
			if err != nil {
				return err
			}
			state = []byte(client.Get(ctx, key).Val()) // Reserve may accept data as a state, and Settle refuse it
			return r.Settle(cost / 2)
		},
	}
	for _, call := range calls {
		require.NoError(t, client.Set(ctx, key, state, 0).Err())
		err := call()
		if err == nil {
			assert.GreaterOrEqual(t, len(state), 44, "%q was taken for a state", state)
			continue
		}
		assert.ErrorIs(t, err, errForeignState, "%q", state)
		after, _ := client.Get(ctx, key).Bytes()
		assert.Equal(t, state, after)
	}
}

// FuzzLimits compares the script's verdicts with Go's, for any figures.
func FuzzLimits(f *testing.F) {
	client := startServer(f).client()
	f.Add(byte(0), int64(10), int64(1e9), int64(20), int64(3), int64(5e6), int64(0))
	f.Add(byte(3), int64(10), int64(1e9), int64(20), int64(3), int64(5e6), int64(20e6))
	f.Add(byte(0), int64(1)<<52, int64(3600e9), int64(1)<<52, int64(1)<<51, int64(17), int64(2e6))
	f.Add(byte(4), int64(1)<<51, int64(49*365*24*3600)*int64(1e9), int64(1), int64(1)<<50, int64(1e15), int64(2e14))
	f.Fuzz(func(t *testing.T, algorithm byte, units, per, burst, cost, step, ahead int64) {
		limit := ratelimit.Limit{Algorithm: ratelimit.AlgorithmTokenBucket + ratelimit.Algorithm(algorithm%5), Rate: ratelimit.Per(int(units), time.Duration(per))}
		if limit.Algorithm <= ratelimit.AlgorithmLeakyBucket {
			limit.Burst = int(burst)
		}
		l, err := New(client, limit, &Options{Name: "limits", Timeout: 10 * time.Second})
		if err != nil {
			assert.ErrorIs(t, err, ratelimit.ErrInvalidLimit)
			return
		}
		verdicts(t)
		now := int64(1_750_000_000_000_000)
		l.store.clock, l.store.grace = func() int64 { return now }, outlive
		key := strconv.FormatUint(rand.Uint64(), 36)
		defer client.Del(context.Background(), l.space.key(key))
		for range 6 {
			fuzzStep(t, l, key, cost, ahead)
			now = max(1, min(now+step%(century/8), 3_000_000_000_000_000))
		}
	})
}

func fuzzStep(t *testing.T, l *Limiter, key string, cost, ahead int64) {
	ctx := context.Background()
	capacity := int64(l.Describe().Limits[0].Capacity())
	c := int(max(1, (cost&(1<<62-1))%capacity))
	d, err := l.Take(ctx, key, c)
	require.NoError(t, err)
	peek, err := l.Peek(ctx, key, 0)
	require.NoError(t, err)
	assert.Equal(t, d.Remaining, peek.Remaining)
	assert.Equal(t, d.ResetAfter, peek.ResetAfter)
	assert.LessOrEqual(t, int64(d.Remaining), capacity)
	r, err := l.Reserve(ctx, key, c, time.Duration(ahead&(1<<62-1)))
	require.NoError(t, err)
	require.NoError(t, r.Settle(int(cost&1)*c))
	require.NoError(t, l.Adjust(ctx, key, int(cost%(2*capacity))))
}

// TestScriptsDivideExactly compares the scripts' long multiplication with big integers,
// where doubles round.
func TestScriptsDivideExactly(t *testing.T) {
	client := startServer(t).client()
	rng := rand.New(rand.NewPCG(3, 4))
	program := "#!lua\n" + blocks{luaFiles}.lua("arith") + "\nlocal q, r = muldiv(tonumber(ARGV[1]), tonumber(ARGV[2]), tonumber(ARGV[3]))\nreturn string.format('%.0f %.0f', q, r)"
	figure := func() int64 { return rng.Int64N(1<<uint(1+rng.IntN(52))) + 1 }
	figures := []int64{1, 2, 3, most, most - 1, most / 3, century, century - 1}
	pick := func() int64 {
		if rng.IntN(4) == 0 {
			return figures[rng.IntN(len(figures))]
		}
		return figure()
	}
	for range 3000 {
		a, b, d := pick(), pick(), pick()
		q, r := new(big.Int).QuoRem(new(big.Int).Mul(big.NewInt(a), big.NewInt(b)), big.NewInt(d), new(big.Int))
		if q.Cmp(big.NewInt(2*most)) > 0 {
			continue
		}
		got, err := client.Eval(t.Context(), program, nil, a, b, d).Text()
		require.NoError(t, err)
		require.Equal(t, strings.Join([]string{q.String(), r.String()}, " "), got, "%d·%d/%d", a, b, d)
		gq, gr := meter.MulDiv(a, b, d)
		assert.Equal(t, []int64{q.Int64(), r.Int64()}, []int64{gq, gr})
	}
}
