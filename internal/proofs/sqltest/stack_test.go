package sqltest

import (
	"context"
	"fmt"
	"math/rand/v2"
	"sort"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/weir-go/ratelimit"
	"github.com/weir-go/ratelimit/chain"
	"github.com/weir-go/ratelimit/sqllimit"
)

// TestAStackInSQLIsExactAndWithoutDeadlocks has callers of two processes charge random pairs and triples of keys.
func TestAStackInSQLIsExactAndWithoutDeadlocks(t *testing.T) {
	db := openPostgres(t)
	_, err := db.Exec(sqllimit.Schema(sqllimit.PostgreSQL, ""))
	require.NoError(t, err)
	db.SetMaxOpenConns(24)
	type req [3]string
	made := func() (*ratelimit.Layered[req], *chain.Limiter[req], []*sqllimit.Limiter) {
		var layers []ratelimit.Layer[req]
		var one []ratelimit.Reserver[req]
		var limiters []*sqllimit.Limiter
		for i, n := range []int{40, 60, 50} {
			l, err := sqllimit.New(db, ratelimit.FixedWindow(ratelimit.PerDay(n)), &sqllimit.Options{Name: fmt.Sprint("l", (i*2)%3), Timeout: 30 * time.Second})
			require.NoError(t, err)
			limiters = append(limiters, l)
			key := func(r req) (string, error) {
				if r[i] == "" {
					return "", ratelimit.SkipLayer
				}
				return r[i], nil
			}
			layers = append(layers, ratelimit.By(l, key))
			x, err := ratelimit.All(ratelimit.By(l, key))
			require.NoError(t, err)
			one = append(one, x)
		}
		a, err := ratelimit.All(layers...)
		require.NoError(t, err)
		b, err := chain.New(one...)
		require.NoError(t, err)
		return a, b, limiters
	}
	var mu sync.Mutex
	spent := map[string]int{}
	var denied, failed atomic.Int64
	var wg sync.WaitGroup
	begin := time.Now()
	for p := range 2 {
		stack, _, _ := made()
		for g := range 8 {
			wg.Go(func() {
				rng := rand.New(rand.NewPCG(uint64(p), uint64(g)))
				for range 60 {
					var r req
					for i := range r {
						if rng.IntN(4) > 0 {
							r[i] = string(rune('a' + rng.IntN(3)))
						}
					}
					d, err := stack.Take(context.Background(), r, 1)
					switch {
					case err != nil:
						failed.Add(1)
						t.Log(err)
					case d.Allowed:
						mu.Lock()
						for i, k := range r {
							if k != "" {
								spent[fmt.Sprint(i, k)]++
							}
						}
						mu.Unlock()
					default:
						denied.Add(1)
					}
				}
			})
		}
	}
	wg.Wait()
	took := time.Since(begin)
	_, _, limiters := made()
	for i, n := range []int{40, 60, 50} {
		for _, k := range []string{"a", "b", "c"} {
			d, err := limiters[i].Peek(t.Context(), k, 1)
			require.NoError(t, err)
			require.Equal(t, spent[fmt.Sprint(i, k)], n-d.Remaining, "layer %d key %s", i, k)
		}
	}
	var deadlocks int
	time.Sleep(1500 * time.Millisecond)
	require.NoError(t, db.QueryRow("SELECT deadlocks FROM pg_stat_database WHERE datname = current_database()").Scan(&deadlocks))
	t.Logf("960 decisions in %v, %d denied, %d failed, %d deadlocks", took, denied.Load(), failed.Load(), deadlocks)
	require.Zero(t, deadlocks)
	require.Zero(t, failed.Load())
}

func TestAStackInSQLBesideAChain(t *testing.T) {
	db := openPostgres(t)
	_, err := db.Exec(sqllimit.Schema(sqllimit.PostgreSQL, ""))
	require.NoError(t, err)
	db.SetMaxOpenConns(24)
	id := func(k string) (string, error) { return k, nil }
	total := func(string) (string, error) { return "", nil }
	limiter := func(name string, n int) *sqllimit.Limiter {
		l, err := sqllimit.New(db, ratelimit.TokenBucket(ratelimit.PerSecond(n), n), &sqllimit.Options{Name: name, Timeout: 30 * time.Second})
		require.NoError(t, err)
		return l
	}
	for _, second := range []string{"own", "global"} {
		of := id
		if second == "global" {
			of = total
		}
		a, b := limiter("a"+second, 1000000), limiter("b"+second, 1000000)
		stack, err := ratelimit.All(ratelimit.By(a, id), ratelimit.By(b, of))
		require.NoError(t, err)
		one, err := ratelimit.All(ratelimit.By(a, id))
		require.NoError(t, err)
		type byOf struct{ ratelimit.Reserver[string] }
		var two ratelimit.Reserver[string] = b
		if second == "global" {
			two, err = ratelimit.All(ratelimit.By(b, of))
			require.NoError(t, err)
		}
		inTurn, err := chain.New[string](a, two)
		require.NoError(t, err)
		_ = byOf{}
		_ = one
		for _, c := range []struct {
			name string
			l    ratelimit.Limiter[string]
		}{{"stack", stack}, {"chain", inTurn}, {"single", a}} {
			for _, callers := range []int{1, 16} {
				var wg sync.WaitGroup
				times := make([][]time.Duration, callers)
				begin := time.Now()
				const each = 150
				for g := range callers {
					wg.Go(func() {
						for i := range each {
							at := time.Now()
							d, err := c.l.Take(t.Context(), fmt.Sprint(g, "-", i%10), 1)
							times[g] = append(times[g], time.Since(at))
							if err != nil || !d.Allowed {
								t.Error(err, d)
								return
							}
						}
					})
				}
				wg.Wait()
				took := time.Since(begin)
				var all []time.Duration
				for _, x := range times {
					all = append(all, x...)
				}
				sort.Slice(all, func(i, j int) bool { return all[i] < all[j] })
				t.Logf("%s %s callers=%d: %.0f/s, p50 %v, p99 %v", second, c.name, callers, float64(len(all))/took.Seconds(), all[len(all)/2].Round(10*time.Microsecond), all[len(all)*99/100].Round(10*time.Microsecond))
			}
		}
	}
}
