package sqltest

import (
	"context"
	"database/sql"
	"fmt"
	"math/rand/v2"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/weir-go/ratelimit"
	"github.com/weir-go/ratelimit/internal/dev/testsize"
	"github.com/weir-go/ratelimit/sqllimit"
)

// limitServer is a database server for stacks of limits.
type limitServer struct {
	dialect   sqllimit.Dialect
	open      func(t testing.TB) *sql.DB
	deadlocks string // a query for the number of deadlocks
}

var limitServers = map[string]limitServer{
	"postgresql": {sqllimit.PostgreSQL, openPostgres, "SELECT deadlocks FROM pg_stat_database WHERE datname = current_database()"},
	"mariadb":    {sqllimit.MySQL, openMariaDB, "SELECT variable_value FROM information_schema.global_status WHERE variable_name = 'Innodb_deadlocks'"},
}

func (s limitServer) migrated(t testing.TB) *sql.DB {
	t.Helper()
	db := s.open(t)
	_, err := db.Exec(sqllimit.Schema(s.dialect, ""))
	require.NoError(t, err)
	db.SetMaxOpenConns(24)
	return db
}

func (s limitServer) limiter(t testing.TB, db *sql.DB, name string, limit ratelimit.Limit) *sqllimit.Limiter {
	t.Helper()
	l, err := sqllimit.New(db, limit.Named(name), &sqllimit.Options{Name: name, Dialect: s.dialect, Timeout: time.Minute})
	require.NoError(t, err)
	return l
}

// threeKeys is a request. A layer with an empty key does not apply.
type threeKeys [3]string

func keyAt(i int) func(threeKeys) (string, error) {
	return func(r threeKeys) (string, error) {
		if r[i] == "" {
			return "", ratelimit.SkipLayer
		}
		return r[i], nil
	}
}

// Two processes charge pairs and triples of the same keys, in layers not ordered by
// key, while keys are reset. Each key is charged exactly its requests' allowed cost.
func TestStacksOfSeveralProcessesAreExactAndFree(t *testing.T) {
	for name, s := range limitServers {
		t.Run(name, func(t *testing.T) {
			db := s.migrated(t)
			units := []int{40, 60, 50}
			var names = []string{"m", "a", "z"}
			made := func() (*ratelimit.Layered[threeKeys], []*sqllimit.Limiter) {
				var layers []ratelimit.Layer[threeKeys]
				var limiters []*sqllimit.Limiter
				for i, n := range units {
					l := s.limiter(t, db, names[i], ratelimit.FixedWindow(ratelimit.PerDay(n)))
					limiters = append(limiters, l)
					layers = append(layers, ratelimit.By(l, keyAt(i)))
				}
				stack, err := ratelimit.All(layers...)
				require.NoError(t, err)
				return stack, limiters
			}
			var mu sync.Mutex
			spent := map[string]int{}
			var wg sync.WaitGroup
			var limiters []*sqllimit.Limiter
			for p := range 2 {
				stack, of := made()
				limiters = of
				for g := range 6 {
					wg.Go(func() {
						rng := rand.New(rand.NewPCG(uint64(p), uint64(g)))
						for range testsize.Of(20, 100) {
							var r threeKeys
							for i := range r {
								if rng.IntN(4) > 0 {
									r[i] = string(rune('a' + rng.IntN(3)))
								}
							}
							d, err := stack.Take(context.Background(), r, 1)
							if !assert.NoError(t, err) || !d.Allowed {
								continue
							}
							mu.Lock()
							for i, k := range r {
								if k != "" {
									spent[fmt.Sprint(i, k)]++
								}
							}
							mu.Unlock()
						}
					})
				}
				wg.Go(func() { // other programs insert and replace rows
					for i := range testsize.Of(20, 100) {
						assert.NoError(t, of[i%3].Reset(context.Background(), fmt.Sprint("gone", i%5)))
					}
				})
			}
			wg.Wait()
			for i, n := range units {
				for _, k := range []string{"a", "b", "c"} {
					d, err := limiters[i].Peek(t.Context(), k, 1)
					require.NoError(t, err)
					assert.Equal(t, spent[fmt.Sprint(i, k)], n-d.Remaining, "layer %d key %s", i, k)
				}
			}
			if s.dialect == sqllimit.PostgreSQL {
				time.Sleep(1200 * time.Millisecond) // the server updates its figures once a second
			}
			var deadlocks int
			require.NoError(t, db.QueryRow(s.deadlocks).Scan(&deadlocks))
			t.Logf("%d deadlocks", deadlocks)
			if s.dialect == sqllimit.PostgreSQL { // InnoDB may find a deadlock among inserts of one key; the transaction is then repeated
				assert.Zero(t, deadlocks)
			}
		})
	}
}

// A reservation of three layers is settled at three costs, beside a shadow.
func TestAStackSettlesOnTheServers(t *testing.T) {
	for name, s := range limitServers {
		t.Run(name, func(t *testing.T) {
			db := s.migrated(t)
			var layers []ratelimit.Layer[*threeKeys]
			var limiters []*sqllimit.Limiter
			for i, limit := range []ratelimit.Limit{ratelimit.TokenBucket(ratelimit.PerDay(100), 100), ratelimit.SlidingLog(ratelimit.PerDay(100)), ratelimit.FixedWindow(ratelimit.PerDay(100))} {
				l := s.limiter(t, db, fmt.Sprint("settled", i), limit)
				limiters = append(limiters, l)
				y := ratelimit.By(l, func(r *threeKeys) (string, error) { return r[i], nil })
				y.Actual, y.Shadow = func(*threeKeys) int { return 10 * (1 + i) }, i == 2
				layers = append(layers, y)
			}
			stack, err := ratelimit.All(layers...)
			require.NoError(t, err)
			r := &threeKeys{"x", "y", "z"}
			res, err := stack.Reserve(t.Context(), r, 50, 0)
			require.NoError(t, err)
			require.True(t, res.Allowed)
			require.NoError(t, res.Settle(1))
			each, err := stack.PeekEach(t.Context(), r, 1)
			require.NoError(t, err)
			assert.Equal(t, 90, each[0].Remaining)
			assert.Equal(t, 80, each[1].Remaining)
			assert.Equal(t, 70, each[2].Remaining)
			require.NoError(t, stack.Adjust(t.Context(), r, 5))
			d, err := limiters[0].Peek(t.Context(), "x", 1)
			require.NoError(t, err)
			assert.Equal(t, 85, d.Remaining)
		})
	}
}

// BenchmarkStack measures decisions of 32 callers with a limit for each user and one for all.
func BenchmarkStack(b *testing.B) {
	for name, s := range limitServers {
		b.Run(name, func(b *testing.B) {
			db := s.migrated(b)
			limit := ratelimit.TokenBucket(ratelimit.PerSecond(1e6), 1e6)
			users, all := s.limiter(b, db, "users", limit), s.limiter(b, db, "all", limit)
			for kind, of := range map[string]func(int) string{"hot-and-users": func(i int) string { return fmt.Sprint("user", i) }, "two-hot": func(int) string { return "one" }} {
				b.Run(kind, func(b *testing.B) {
					stack, err := ratelimit.All(ratelimit.By(users, func(u string) (string, error) { return u, nil }), ratelimit.Global[string](all))
					require.NoError(b, err)
					const callers = 32
					var mu sync.Mutex
					var took []time.Duration
					var wg sync.WaitGroup
					b.ResetTimer()
					for c := range callers {
						wg.Go(func() {
							for range b.N/callers + 1 {
								begin := time.Now()
								d, err := stack.Take(context.Background(), of(c), 1)
								if err != nil || !d.Allowed {
									b.Error(err, d)
									return
								}
								mu.Lock()
								took = append(took, time.Since(begin))
								mu.Unlock()
							}
						})
					}
					wg.Wait()
					slices.Sort(took)
					b.ReportMetric(float64(len(took))/b.Elapsed().Seconds(), "decisions/s")
					b.ReportMetric(float64(took[len(took)/2].Microseconds()), "p50-µs")
				})
			}
		})
	}
}
