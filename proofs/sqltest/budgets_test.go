package sqltest

import (
	"context"
	"crypto/rand"
	"database/sql"
	"fmt"
	"maps"
	mathrand "math/rand/v2"
	"os"
	"regexp"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/weir-go/ratelimit"
	"github.com/weir-go/ratelimit/proofs/internal/redisserver"
	"github.com/weir-go/ratelimit/ratelimittest"
	"github.com/weir-go/ratelimit/redislimit"
)

var sqlBlock = regexp.MustCompile("(?s)```sql\n-- ([^\n]*)\n(.*?)```")

// statement returns the statement of docs/sql.md whose first line begins so.
func statement(t testing.TB, begins string) string {
	t.Helper()
	page, err := os.ReadFile("../../docs/sql.md")
	require.NoError(t, err)
	for _, block := range sqlBlock.FindAllStringSubmatch(string(page), -1) {
		if strings.HasPrefix(block[1], begins) {
			return block[2]
		}
	}
	require.Fail(t, "docs/sql.md has no such statement", begins)
	return ""
}

// budgets returns a database with the tables and the function of the page.
func budgets(t testing.TB, p *postgres) *sql.DB {
	t.Helper()
	db := p.open(t)
	db.SetMaxOpenConns(20)
	for _, begins := range []string{"table of token", "table of fixed", "function that takes", "tables of the books"} {
		_, err := db.Exec(statement(t, begins))
		require.NoError(t, err, begins)
	}
	return db
}

// One server serves all of these, because to start one takes seconds.
func TestBudgetsInSQL(t *testing.T) {
	server := startPostgres(t)
	db := budgets(t, server)
	t.Run("answers as the limiters in memory do", func(t *testing.T) { answersAsInMemory(t, db) })
	t.Run("a denial writes nothing", func(t *testing.T) { denialWritesNothing(t, db) })
	t.Run("exact under concurrency", func(t *testing.T) { exactUnderConcurrency(t, db) })
	t.Run("several limits are all or none", func(t *testing.T) { severalAreAllOrNone(t, db) })
	t.Run("the books lose what the page says", func(t *testing.T) { booksLoseWhatThePageSays(t, server, db) })
}

type querier interface {
	QueryRowContext(ctx context.Context, query string, args ...any) *sql.Row
}

// asked runs a statement that takes, and returns its answer.
func asked(t testing.TB, db querier, query string, args ...any) (allowed bool, retry time.Duration) {
	var micros int64
	row := db.QueryRowContext(context.Background(), query, args...)
	if err := row.Scan(&allowed, &micros); !assert.NoError(t, err) {
		return false, time.Hour // ends whoever goes on until there is nothing left
	}
	return allowed, time.Duration(micros) * time.Microsecond
}

// The statements beside our limiters in memory, at instants that the test chooses.
func answersAsInMemory(t *testing.T, db *sql.DB) {
	bucket := strings.ReplaceAll(statement(t, "take from a token"), "statement_timestamp()", "$6::timestamptz")
	window := strings.ReplaceAll(statement(t, "take from a fixed"), "statement_timestamp()", "$5::timestamptz")
	origin := time.Date(2027, 1, 1, 0, 0, 0, 0, time.UTC)
	rng := mathrand.New(mathrand.NewPCG(1, 2))
	for history := range 20 {
		units := []int{1, 2, 4, 5, 10}[rng.IntN(5)] // by which a microsecond is divided exactly
		per := time.Duration(1+rng.IntN(100)) * 100 * time.Millisecond
		burst := 1 + rng.IntN(20)
		clock := new(ratelimittest.Clock)
		opts := &ratelimit.Options[string]{Clock: clock}
		buckets := ratelimit.Must(ratelimit.New(ratelimit.TokenBucket(ratelimit.Per(units, per), burst), opts))
		windows := ratelimit.Must(ratelimit.New(ratelimit.FixedWindow(ratelimit.Per(burst, per)), opts))
		key := fmt.Sprint("history", history)
		for range 40 {
			clock.Advance(time.Duration(rng.Int64N(int64(per/time.Microsecond))) * time.Microsecond / time.Duration(1+rng.IntN(20)))
			clock.Set(clock.Now().Truncate(time.Microsecond))
			cost := 1 + rng.IntN(burst)
			now := origin.Add(clock.Now())
			want, err := buckets.Take(t.Context(), key, cost)
			require.NoError(t, err)
			allowed, retry := asked(t, db, bucket, key, cost, units, per.Microseconds(), burst, now)
			require.Equal(t, want.Allowed, allowed)
			require.Equal(t, want.RetryAfter, retry)
			want, err = windows.Take(t.Context(), key, cost)
			require.NoError(t, err)
			allowed, retry = asked(t, db, window, key, cost, burst, per.Microseconds(), now)
			require.Equal(t, want.Allowed, allowed)
			require.Equal(t, want.RetryAfter, retry)
		}
	}
}

// However many sessions ask, what is granted is what there is, and nothing is granted at a retry_after of 0 by mistake.
func exactUnderConcurrency(t *testing.T, db *sql.DB) {
	const units = 300
	day := (24 * time.Hour).Microseconds()
	for name, take := range map[string]func(cost int) (bool, time.Duration){
		"bucket": func(cost int) (bool, time.Duration) {
			return asked(t, db, statement(t, "take from a token"), "hot", cost, 1, day, units)
		},
		"window": func(cost int) (bool, time.Duration) {
			return asked(t, db, statement(t, "take from a fixed"), "hot", cost, units, day)
		},
		"several": func(cost int) (bool, time.Duration) {
			return asked(t, db, "SELECT allowed, retry_after_us FROM take_all($1, '{hot2,hot3}', '{300,100000}', '{1 day,1 day}')", cost)
		},
	} {
		var granted, quicker atomic.Int64
		var wg sync.WaitGroup
		for i := range 16 {
			wg.Go(func() {
				for cost := 1 + i%4; cost > 0; {
					allowed, retry := take(cost)
					switch {
					case allowed:
						granted.Add(int64(cost))
					case retry == 0:
						quicker.Add(1)
					default:
						cost--
					}
				}
			})
		}
		wg.Wait()
		require.Equal(t, int64(units), granted.Load(), name)
		allowed, retry := take(1)
		require.False(t, allowed, name)
		require.Greater(t, retry, time.Hour, name)
	}
}

// A denial writes nothing: its transaction needs no number.
func denialWritesNothing(t *testing.T, db *sql.DB) {
	day := (24 * time.Hour).Microseconds()
	for name, take := range map[string]func(db querier) bool{
		"bucket": func(db querier) bool {
			ok, _ := asked(t, db, statement(t, "take from a token"), "k", 2, 1, day, 3)
			return ok
		},
		"window": func(db querier) bool {
			ok, _ := asked(t, db, statement(t, "take from a fixed"), "k", 2, 3, day)
			return ok
		},
		"several": func(db querier) bool {
			ok, _ := asked(t, db, "SELECT allowed, retry_after_us FROM take_all(2, '{s,other}', '{3,9}', '{1 day,1 day}')")
			return ok
		},
	} {
		require.True(t, take(db), name)
		tx, err := db.Begin()
		require.NoError(t, err)
		require.False(t, take(tx), name)
		var written bool
		require.NoError(t, tx.QueryRow("SELECT pg_current_xact_id_if_assigned() IS NOT NULL").Scan(&written))
		require.False(t, written, name)
		var locks int
		require.NoError(t, tx.QueryRow("SELECT count(*) FROM pg_locks WHERE pid = pg_backend_pid() AND mode LIKE 'Row%'").Scan(&locks))
		if name != "several" { // a function opens its UPDATE's table only when it gets there
			require.LessOrEqual(t, locks, 2, name)
		}
		require.NoError(t, tx.Rollback())
	}
	var spent int
	require.NoError(t, db.QueryRow("SELECT count(*) FROM windows WHERE key IN ('other') AND spent = 2").Scan(&spent))
	require.Equal(t, 1, spent, "and no other limit was charged")
}

// Requests that share some keys in any order: all or none, and no two ever wait for each other.
func severalAreAllOrNone(t *testing.T, db *sql.DB) {
	names := []string{"b", "a", "d", "c", "E", "f"}
	most := map[string]int64{"a": 50, "b": 70, "c": 60, "d": 200, "E": 90, "f": 1000}
	var mu sync.Mutex
	granted := map[string]int64{}
	var wg sync.WaitGroup
	for i := range 12 {
		rng := mathrand.New(mathrand.NewPCG(3, uint64(i)))
		wg.Go(func() {
			for range 60 {
				keys := slices.Clone(names)
				rng.Shuffle(len(keys), func(a, b int) { keys[a], keys[b] = keys[b], keys[a] })
				keys = keys[:1+rng.IntN(4)]
				units := make([]int64, len(keys))
				for i, key := range keys {
					units[i] = most[key]
				}
				cost := 1 + rng.Int64N(3)
				var allowed bool
				err := db.QueryRow("SELECT allowed FROM take_all($1, $2, $3, array_fill(interval '1 day', ARRAY[$4::int]))",
					cost, keys, units, len(keys)).Scan(&allowed)
				if !assert.NoError(t, err, "a deadlock?") {
					return
				}
				if allowed {
					mu.Lock()
					for _, key := range keys {
						granted[key] += cost
					}
					mu.Unlock()
				}
			}
		})
	}
	wg.Wait()
	for _, name := range names {
		var spent int64
		require.NoError(t, db.QueryRow("SELECT spent FROM windows WHERE key = $1", name).Scan(&spent))
		require.Equal(t, granted[name], spent, name)
		require.LessOrEqual(t, spent, most[name], name)
	}
	require.Equal(t, most["a"], granted["a"], "there was enough asked for")
	var allowed bool
	var by string
	var retry sql.NullInt64
	require.NoError(t, db.QueryRow("SELECT * FROM take_all(3, '{a,never}', '{50,2}', '{1 day,1 day}')").Scan(&allowed, &by, &retry))
	require.False(t, allowed)
	require.Equal(t, "never", by)
	require.False(t, retry.Valid, "a cost above the units is never allowed")
}

// The code of docs/sql.md.

// books decides on Redis, and posts to PostgreSQL what was spent.
type books struct {
	limiter *redislimit.Limiter
	db      *sql.DB

	mu    sync.Mutex
	spent map[string]int64 // and not in a batch yet
	batch map[string]int64 // that is being posted, nil if none is
	id    string
}

func (b *books) Take(ctx context.Context, key string, cost int) (bool, error) {
	d, err := b.limiter.Take(ctx, key, cost)
	if err == nil && d.Allowed {
		b.mu.Lock()
		b.spent[key] += int64(cost)
		b.mu.Unlock()
	}
	return d.Allowed, err
}

// Post posts what was spent. One goroutine calls it, every second and at the end. After an error, the
// next call posts the same batch again, under the same id.
func (b *books) Post(ctx context.Context) error {
	b.mu.Lock()
	if b.batch == nil {
		b.batch, b.spent, b.id = b.spent, map[string]int64{}, rand.Text()
	}
	b.mu.Unlock()
	keys := slices.Sorted(maps.Keys(b.batch)) // rows are locked in one order
	units := make([]int64, len(keys))
	for i, key := range keys {
		units[i] = b.batch[key]
	}
	_, err := b.db.ExecContext(ctx, postBatch, b.id, keys, units)
	if err == nil {
		b.mu.Lock()
		b.batch = nil
		b.mu.Unlock()
	}
	return err
}

var postBatch string

// What is lost when each part dies: what the table in docs/sql.md says.
func booksLoseWhatThePageSays(t *testing.T, server *postgres, db *sql.DB) {
	client := redisserver.Start(t)
	postBatch = statement(t, "post a batch")
	limiter, err := redislimit.New(client, ratelimit.FixedWindow(ratelimit.PerDay(1000)), &redislimit.Options{Name: "quota", Timeout: 10 * time.Second})
	require.NoError(t, err)
	process := func() *books { return &books{limiter: limiter, db: db, spent: map[string]int64{}} }
	used := func() (units int64) {
		require.NoError(t, db.QueryRow("SELECT coalesce(sum(units), 0) FROM used").Scan(&units))
		return units
	}
	spend := func(b *books, n int) {
		for range n {
			ok, err := b.Take(t.Context(), "acme", 1)
			require.NoError(t, err)
			require.True(t, ok)
		}
	}
	one, two := process(), process()
	spend(one, 100)
	spend(two, 50)
	require.NoError(t, one.Post(t.Context()))
	require.NoError(t, two.Post(t.Context()))
	require.Equal(t, int64(150), used())

	// PostgreSQL dies: what is spent meanwhile waits.
	server.stop(t)
	spend(one, 30)
	require.Error(t, one.Post(t.Context()))
	spend(one, 7)
	require.Error(t, one.Post(t.Context()))
	server.start(t)
	require.NoError(t, one.Post(t.Context()))
	require.NoError(t, one.Post(t.Context()))
	require.Equal(t, int64(187), used())

	// The answer to a commit dies: the batch is posted again, and counts once.
	spend(one, 5)
	ctx, cancel := context.WithCancel(t.Context())
	require.NoError(t, one.Post(ctx))
	one.batch = map[string]int64{"acme": 5} // as if the answer had not come
	cancel()
	require.Error(t, one.Post(ctx))
	require.NoError(t, one.Post(t.Context()))
	require.Equal(t, int64(192), used())

	// A process dies: what it has not posted is used, and not billed.
	spend(two, 20)
	two = process()
	require.NoError(t, two.Post(t.Context()))
	require.Equal(t, int64(192), used())
	d, err := limiter.Peek(t.Context(), "acme", 1)
	require.NoError(t, err)
	require.Equal(t, 1000-192-20, d.Remaining)

	// Redis dies, and begins anew: the books say what was spent.
	require.NoError(t, client.FlushAll(t.Context()).Err())
	require.NoError(t, limiter.Adjust(t.Context(), "acme", int(used())))
	d, err = limiter.Peek(t.Context(), "acme", 1)
	require.NoError(t, err)
	require.Equal(t, 1000-192, d.Remaining)
}

// What a decision takes: 16 sessions on one key, or on many.
func BenchmarkBudgets(b *testing.B) {
	for _, fsync := range []string{"off", "on"} {
		p := startPostgresWith(b, "-c fsync="+fsync)
		db := budgets(b, p)
		db.SetMaxIdleConns(20)
		day := (24 * time.Hour).Microseconds()
		bucket, window := statement(b, "take from a token"), statement(b, "take from a fixed")
		for _, test := range []struct {
			name, query string
			args        func(i int64) []any
		}{
			{"bucket, one key, allowed", bucket, func(int64) []any { return []any{"hot", 1, 1_000_000_000, day, 1_000_000_000} }},
			{"bucket, many keys, allowed", bucket, func(i int64) []any { return []any{fmt.Sprint(i % 10_000), 1, 1_000_000_000, day, 1_000_000_000} }},
			{"bucket, one key, denied", bucket, func(int64) []any { return []any{"denied", 1, 1, day, 1} }},
			{"window, one key, allowed", window, func(int64) []any { return []any{"hot", 1, 1_000_000_000, day} }},
			{"window, one key, denied", window, func(int64) []any { return []any{"denied", 1, 1, day} }},
			{"several, allowed", "SELECT allowed, retry_after_us FROM take_all(1, $1, '{1000000000,1000000000}', '{1 day,1 day}')", func(i int64) []any { return []any{[]string{fmt.Sprint("u", i%1000), "tenant"}} }},
		} {
			b.Run("fsync "+fsync+"/"+test.name, func(b *testing.B) {
				var n atomic.Int64
				var wg sync.WaitGroup
				for range 16 {
					wg.Go(func() {
						for {
							i := n.Add(1)
							if i > int64(b.N) {
								return
							}
							var allowed bool
							var retry int64
							row := db.QueryRow(test.query, test.args(i)...)
							assert.NoError(b, row.Scan(&allowed, &retry))
						}
					})
				}
				wg.Wait()
				b.ReportMetric(float64(b.N)/b.Elapsed().Seconds(), "decisions/s")
			})
		}
		p.stop(b)
	}
}
