package sqltest

import (
	"context"
	"crypto/sha256"
	"database/sql"
	"database/sql/driver"
	"encoding/hex"
	"errors"
	"fmt"
	mathrand "math/rand/v2"
	"os"
	"os/exec"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/stdlib"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/weir-go/ratelimit"
	"github.com/weir-go/ratelimit/failover"
	"github.com/weir-go/ratelimit/internal/dev/model"
	"github.com/weir-go/ratelimit/internal/dev/testsize"
	"github.com/weir-go/ratelimit/lease"
	"github.com/weir-go/ratelimit/ratelimittest"
	"github.com/weir-go/ratelimit/sqllimit"
)

// clocked opens connections with a test's clock instead of the server's.
type clocked struct {
	name        string
	now         func() time.Time
	beforeQuery func(query string) error // called before each query, unless nil
}

func (c *clocked) Connect(context.Context) (driver.Conn, error) {
	conn, err := c.Driver().Open(c.name)
	if err != nil {
		return nil, err
	}
	return &clockedConn{conn.(*stdlib.Conn), c}, nil
}

func (c *clocked) Driver() driver.Driver { return stdlib.GetDefaultDriver() }

// openAt opens a database with the test's clock.
func (p *postgres) openAt(t testing.TB, now func() time.Time) *sql.DB {
	t.Helper()
	db := sql.OpenDB(&clocked{p.name("postgres"), now, nil})
	t.Cleanup(func() { require.NoError(t, db.Close()) })
	return db
}

type clockedConn struct {
	*stdlib.Conn
	c *clocked
}

// at adds the test's time to a statement, as another argument.
func (c *clockedConn) at(query string, args []driver.NamedValue) (string, []driver.NamedValue) {
	n := len(args) + 1
	text := strings.ReplaceAll(query, "clock_timestamp()", fmt.Sprintf("(timestamptz 'epoch' + $%d::bigint * interval '1 microsecond')", n))
	if text == query {
		return query, args
	}
	return text, append(args, driver.NamedValue{Ordinal: n, Value: c.c.now().UnixMicro()})
}

func (c *clockedConn) QueryContext(ctx context.Context, query string, args []driver.NamedValue) (driver.Rows, error) {
	if c.c.beforeQuery != nil {
		if err := c.c.beforeQuery(query); err != nil {
			return nil, err
		}
	}
	query, args = c.at(query, args)
	return c.Conn.QueryContext(ctx, query, args)
}

func (c *clockedConn) ExecContext(ctx context.Context, query string, args []driver.NamedValue) (driver.Result, error) {
	query, args = c.at(query, args)
	return c.Conn.ExecContext(ctx, query, args)
}

// budgetTable creates a table of budgets.
func budgetTable(t testing.TB, db *sql.DB) {
	t.Helper()
	_, err := db.Exec(sqllimit.Schema(sqllimit.PostgreSQL, ""))
	require.NoError(t, err)
}

// hashed hashes keys too long for a row, as a user would.
type hashed struct{ *sqllimit.Limiter }

// Join hides the limiter's method, because a stack would not hash
// keys. TestStacksOfSeveralProcessesAreExactAndFree tests stacks.
func (hashed) Join() {}

func short(key string) string {
	if len(key) <= 1024 {
		return key
	}
	sum := sha256.Sum256([]byte(key))
	return "hash " + hex.EncodeToString(sum[:])
}

func (l hashed) Allow(key string, cost int) bool { return l.Limiter.Allow(short(key), cost) }

func (l hashed) Take(ctx context.Context, key string, cost int) (ratelimit.Decision, error) {
	return l.Limiter.Take(ctx, short(key), cost)
}

func (l hashed) Peek(ctx context.Context, key string, cost int) (ratelimit.Decision, error) {
	return l.Limiter.Peek(ctx, short(key), cost)
}

func TestSuiteOnPostgreSQL(t *testing.T) {
	testsize.Sequential(t)
	t.Parallel()
	clock := new(ratelimittest.Clock)
	server := startPostgres(t)
	db := server.openAt(t, clock.Wall)
	db.SetMaxOpenConns(20)
	db.SetMaxIdleConns(20)
	budgetTable(t, db)
	ratelimittest.Run(t, suiteOf(db, sqllimit.PostgreSQL, clock))
	corrections(t, db, sqllimit.PostgreSQL, clock)
}

// corrections settles below estimates, and lowers and raises a limit, on a server.
func corrections(t *testing.T, db *sql.DB, dialect sqllimit.Dialect, clock *ratelimittest.Clock) {
	t.Run("calls that overlap use the whole limit", func(t *testing.T) {
		process := func() ratelimit.Reserver[string] {
			return limiterOn(t, db, model.TokensPerMinute, sqllimit.Options{Dialect: dialect, Name: "overlap"})
		}
		assert.InDelta(t, 100_000, model.Overlap(t, clock, model.InTurn(process(), process(), process()), "tenant"), 5000)
	})
	t.Run("a lowered limit bars a key for its own refill at most", func(t *testing.T) {
		for _, limit := range []ratelimit.Limit{
			ratelimit.TokenBucket(ratelimit.PerDay(1000), 1000), ratelimit.LeakyBucket(ratelimit.PerDay(1000), 1000), ratelimit.FixedWindow(ratelimit.PerDay(1000)),
			ratelimit.SlidingLog(ratelimit.PerDay(1000)), ratelimit.SlidingCounter(ratelimit.PerDay(1000)), ratelimit.Calendar(1000, ratelimit.Day("UTC")),
		} {
			l := limiterOn(t, db, limit, sqllimit.Options{Dialect: dialect, Name: "lowered-" + limit.Algorithm.String()})
			take := func(cost, remaining int) ratelimit.Decision {
				d, err := l.Take(t.Context(), "k", cost)
				require.NoError(t, err)
				require.Equal(t, remaining, d.Remaining, "%v", limit)
				return d
			}
			take(900, 100)
			lower := limit
			lower.Rate.Units, lower.Burst = 10, min(10, limit.Burst)
			require.NoError(t, l.SetLimit(lower))
			require.LessOrEqual(t, take(0, 0).ResetAfter, lower.RefillTime(), "%v", limit)
			require.NoError(t, l.SetLimit(limit))
			take(0, 100)
			require.NoError(t, l.SetLimit(lower))
			clock.Advance(take(0, 0).ResetAfter)
			take(10, 0)
		}
	})
}

// written are the algorithms played by the suite on a server for each change. Statements do not depend on the
// algorithm, and sqllimit's own tests play all. A sliding log has the largest state, and a calendar the largest times.
var written = []ratelimit.Algorithm{ratelimit.AlgorithmTokenBucket, ratelimit.AlgorithmSlidingLog, ratelimit.AlgorithmCalendar}

func suiteOf(db *sql.DB, dialect sqllimit.Dialect, clock *ratelimittest.Clock) ratelimittest.Config {
	made := 0
	return ratelimittest.Config{
		Clock:      clock,
		Resolution: time.Microsecond,
		Histories:  testsize.Of(1, 3),
		Accepts: func(l ratelimit.Limit) bool {
			if !testsize.Long() && !slices.Contains(written, l.Algorithm) {
				return false
			}
			_, err := sqllimit.New(db, l, &sqllimit.Options{Name: "any"})
			return err == nil
		},
		Want: []string{"Peek", "Reserve", "Wait", "Adjust", "Reset", "SetLimit", "Calendar"},
		New: func(limit ratelimit.Limit) (ratelimit.Limiter[string], error) {
			made++
			l, err := sqllimit.New(db, limit, &sqllimit.Options{Dialect: dialect, Name: fmt.Sprint("suite", made), Timeout: time.Minute})
			if err != nil {
				return nil, err
			}
			return hashed{l}, nil
		},
		NewPair: func(limit ratelimit.Limit) (a, b ratelimit.Limiter[string], err error) {
			made++
			o := &sqllimit.Options{Dialect: dialect, Name: fmt.Sprint("pair", made), Timeout: time.Minute}
			one, err := sqllimit.New(db, limit, o)
			if err != nil {
				return nil, nil, err
			}
			other, err := sqllimit.New(db, limit, o)
			return hashed{one}, hashed{other}, err
		},
	}
}

// quota returns a limit that regains nothing during a test.
func quota(units int) ratelimit.Limit {
	return ratelimit.FixedWindow(ratelimit.PerDay(units)).Named("calls")
}

func limiterOn(t testing.TB, db *sql.DB, limit ratelimit.Limit, o sqllimit.Options) *sqllimit.Limiter {
	t.Helper()
	if o.Timeout == 0 {
		o.Timeout = time.Minute
	}
	l, err := sqllimit.New(db, limit, &o)
	require.NoError(t, err)
	return l
}

// One server serves all these tests, because starting one takes seconds.
func TestLimitsOnPostgreSQL(t *testing.T) {
	t.Parallel()
	server := startPostgres(t)
	db := server.open(t)
	db.SetMaxOpenConns(20)
	db.SetMaxIdleConns(20)
	budgetTable(t, db)
	t.Run("a denial, a Peek and an error write nothing", func(t *testing.T) { nothingIsWritten(t, db) })
	t.Run("exact over processes", func(t *testing.T) { exactOverProcesses(t, server, db) })
	t.Run("connections that are broken", func(t *testing.T) { brokenConnections(t, server) })
	t.Run("mistakes name the table", func(t *testing.T) { mistakesNameTheTable(t, server, db) })
	t.Run("the clock of another database is behind", func(t *testing.T) { anotherClock(t, server, db) })
	t.Run("rows that are over are deleted", func(t *testing.T) { rowsAreDeleted(t, db) })
	t.Run("any isolation, any key", func(t *testing.T) { anyIsolation(t, server, db) })
	t.Run("behind a lease and a failover", func(t *testing.T) { behindLeaseAndFailover(t, server, db) })
	t.Run("a fleet", func(t *testing.T) {
		f := startFleet(t, server, new(ratelimittest.Clock), 3)
		t.Run("suite", func(t *testing.T) { suiteOverProcesses(t, f) })
		t.Run("histories", func(t *testing.T) { randomHistories(t, f) })
	})
}

// brokenConnections ends a pool's connections before each call, as a restart of the server would.
func brokenConnections(t *testing.T, server *postgres) {
	db := server.open(t)
	db.SetMaxOpenConns(1)
	ended := server.open(t)
	l := limiterOn(t, db, quota(10), sqllimit.Options{Name: "broken"})
	for i, call := range []func() error{
		func() error { _, err := l.Take(t.Context(), "k", 1); return err },
		func() error { return l.Reset(t.Context(), "k") },
		func() error { return l.Each(t.Context(), func(string, ratelimit.Decision) bool { return true }) },
	} {
		var pid int
		require.NoError(t, db.QueryRow("SELECT pg_backend_pid()").Scan(&pid))
		_, err := ended.Exec("SELECT pg_terminate_backend($1, 10000)", pid)
		require.NoError(t, err)
		require.NoError(t, call(), "call %d", i)
	}
}

func nothingIsWritten(t *testing.T, db *sql.DB) {
	l := limiterOn(t, db, quota(10), sqllimit.Options{Name: "denied"})
	ctx := t.Context()
	require.True(t, l.Allow("k", 9))
	position := func() (at string) {
		require.NoError(t, db.QueryRow("SELECT xmin::text || ' ' || xmax::text || ' ' || ctid::text FROM rate_limit WHERE key = 'denied:k'").Scan(&at))
		return at
	}
	var before, after int64
	was := position()
	require.NoError(t, db.QueryRow("SELECT pg_snapshot_xmax(pg_current_snapshot())::text::bigint").Scan(&before))
	for range 50 {
		d, err := l.Take(ctx, "k", 2)
		require.NoError(t, err)
		require.False(t, d.Allowed)
		_, err = l.Peek(ctx, "k", 1)
		require.NoError(t, err)
		_, err = l.Take(ctx, "k", 11)
		require.ErrorIs(t, err, ratelimit.ErrExceedsLimit)
		_, err = l.Take(ctx, "never seen", 0)
		require.NoError(t, err)
	}
	require.NoError(t, l.Each(ctx, func(string, ratelimit.Decision) bool { return true }))
	require.NoError(t, db.QueryRow("SELECT pg_snapshot_xmax(pg_current_snapshot())::text::bigint").Scan(&after))
	require.Equal(t, before, after, "no transaction got a number, so none has written or locked")
	require.Equal(t, was, position())
}

// TestBudgetProcess runs a process started by TestLimitsOnPostgreSQL.
// It spends until ten keys deny, and prints its spending from each.
func TestBudgetProcess(t *testing.T) {
	name := os.Getenv("RATELIMIT_BUDGETS")
	if name == "" {
		t.Skip("run by TestLimitsOnPostgreSQL")
	}
	db, err := sql.Open("pgx", name)
	require.NoError(t, err)
	db.SetMaxOpenConns(10)
	db.SetMaxIdleConns(10)
	l := limiterOn(t, db, quota(processUnits), sqllimit.Options{})
	var spent [10]atomic.Int64
	var wg sync.WaitGroup
	for caller := range 8 {
		rng := mathrand.New(mathrand.NewPCG(uint64(os.Getpid()), uint64(caller)))
		wg.Go(func() {
			for left := mathrand.Perm(len(spent)); len(left) > 0; {
				i, cost := rng.IntN(len(left)), 1+rng.IntN(3)
				r, err := l.Reserve(t.Context(), fmt.Sprint(left[i]), cost, 0)
				switch {
				case err != nil:
					t.Error(err)
					return
				case r.Allowed:
					spent[left[i]].Add(int64(cost))
					if rng.IntN(8) == 0 && r.Cancel() == nil {
						spent[left[i]].Add(-int64(cost))
					}
				case cost == 1:
					left = append(left[:i], left[i+1:]...)
				}
			}
		})
	}
	wg.Wait()
	for i := range spent {
		fmt.Println("spent", i, spent[i].Load())
	}
}

const processUnits = 200

func exactOverProcesses(t *testing.T, server *postgres, db *sql.DB) {
	var spent [10]int64
	var mu sync.Mutex
	var wg sync.WaitGroup
	for range 4 {
		wg.Go(func() {
			cmd := exec.Command(os.Args[0], "-test.run=^TestBudgetProcess$")
			cmd.Env = append(os.Environ(), "RATELIMIT_BUDGETS="+server.name("postgres"))
			out, err := cmd.CombinedOutput()
			if !assert.NoError(t, err, string(out)) {
				return
			}
			mu.Lock()
			defer mu.Unlock()
			for line := range strings.Lines(string(out)) {
				var key, n int64
				if read, _ := fmt.Sscanf(line, "spent %d %d", &key, &n); read == 2 {
					spent[key] += n
				}
			}
		})
	}
	wg.Wait()
	l := limiterOn(t, db, quota(processUnits), sqllimit.Options{})
	for key := range spent {
		for l.Allow(fmt.Sprint(key), 1) { // units were refunded after the other processes had ended
			spent[key]++
		}
		require.Equal(t, int64(processUnits), spent[key])
	}
}

func mistakesNameTheTable(t *testing.T, server *postgres, db *sql.DB) {
	for _, statement := range []string{
		"CREATE TABLE no_index (LIKE rate_limit)",
		"CREATE TABLE twice (LIKE rate_limit)",
		"INSERT INTO twice VALUES ('calls:k', 0, '', 0), ('calls:k', 0, '', 0)",
		"CREATE TABLE other (key bytea PRIMARY KEY, at bigint)",
		"CREATE ROLE reader LOGIN",
		"GRANT SELECT ON rate_limit TO reader",
		"INSERT INTO rate_limit VALUES ('foreign:k', 0, 'something', 0)",
	} {
		_, err := db.Exec(statement)
		require.NoError(t, err)
	}
	reader, err := sql.Open("pgx", strings.Replace(server.name("postgres"), "user=test", "user=reader", 1))
	require.NoError(t, err)
	defer reader.Close()
	for want, test := range map[string]struct {
		db *sql.DB
		o  sqllimit.Options
	}{
		`table missing, which Schema describes: ERROR: relation "missing" does not exist`: {db, sqllimit.Options{Table: "missing"}},
		`table no_index, which Schema describes: ERROR: there is no unique`:               {db, sqllimit.Options{Table: "no_index"}},
		`table twice: one key has several rows: the table lacks its primary key`:          {db, sqllimit.Options{Table: "twice"}},
		`table other, which Schema describes: ERROR: column`:                              {db, sqllimit.Options{Table: "other"}},
		`table rate_limit: the row's state is not one of this package and version`:        {db, sqllimit.Options{Name: "foreign"}},
	} {
		l := limiterOn(t, test.db, quota(10), test.o)
		d, err := l.Take(t.Context(), "k", 1)
		require.ErrorContains(t, err, want)
		require.False(t, d.Allowed)
		require.NotErrorIs(t, err, ratelimit.ErrUnavailable)
		require.NotErrorIs(t, err, ratelimit.ErrUnanswered)
		require.NotContains(t, err.Error(), "something")
	}

	// A missing right may be granted later. Until then a stand-in decides.
	_, err = limiterOn(t, reader, quota(10), sqllimit.Options{Name: "unread"}).Take(t.Context(), "k", 1)
	require.ErrorIs(t, err, ratelimit.ErrUnavailable)
	require.NotErrorIs(t, err, ratelimit.ErrUnanswered)
	require.ErrorContains(t, err, "permission denied")
	require.ErrorContains(t, err, "the user needs SELECT, INSERT, UPDATE and DELETE on table rate_limit")
}

// anotherClock uses the clocks of two databases. After a failover the new one may be behind.
func anotherClock(t *testing.T, server *postgres, db *sql.DB) {
	now := func() time.Time { return time.Now().Add(-40 * time.Minute) }
	behind := limiterOn(t, server.openAt(t, now), ratelimit.TokenBucket(ratelimit.PerHour(60), 10).Named("behind"), sqllimit.Options{})
	ahead := limiterOn(t, db, ratelimit.TokenBucket(ratelimit.PerHour(60), 10).Named("behind"), sqllimit.Options{})
	require.True(t, ahead.Allow("k", 7))
	d, err := behind.Take(t.Context(), "k", 4)
	require.NoError(t, err)
	require.False(t, d.Allowed)
	require.Equal(t, 3, d.Remaining)
	require.Greater(t, d.RetryAfter, 40*time.Minute)
	require.True(t, behind.Allow("k", 3))
	require.False(t, ahead.Allow("k", 1), "what was spent by the slow clock is spent")
}

func rowsAreDeleted(t *testing.T, db *sql.DB) {
	l := limiterOn(t, db, ratelimit.TokenBucket(ratelimit.PerSecond(1000), 1000).Named("swept"), sqllimit.Options{})
	var wg sync.WaitGroup
	for i := range testsize.Of(150, 450) {
		wg.Go(func() { assert.True(t, l.Allow(fmt.Sprint(i), 1)) })
	}
	wg.Wait()
	require.NoError(t, l.Adjust(t.Context(), "debtor", 10_000_000))
	require.Eventually(t, func() bool {
		assert.True(t, l.Allow("hot", 1))
		var n int
		assert.NoError(t, db.QueryRow("SELECT count(*) FROM rate_limit WHERE key >= 'swept:' AND key < 'swept;'").Scan(&n))
		return n == 2
	}, time.Minute, 200*time.Millisecond)
}

func anyIsolation(t *testing.T, server *postgres, db *sql.DB) {
	strict, err := sql.Open("pgx", server.name("postgres")+" default_transaction_isolation=serializable")
	require.NoError(t, err)
	defer strict.Close()
	strict.SetMaxOpenConns(20)
	var granted atomic.Int64
	var wg sync.WaitGroup
	for range 4 {
		l := limiterOn(t, strict, quota(60), sqllimit.Options{Name: "strict"})
		for range 4 {
			wg.Go(func() {
				for {
					d, err := l.Take(t.Context(), "caf\xe9 \x00\xff'", 1)
					if !assert.NoError(t, err) || !d.Allowed {
						return
					}
					granted.Add(1)
				}
			})
		}
	}
	wg.Wait()
	require.Equal(t, int64(60), granted.Load())
	var keys []string
	require.NoError(t, limiterOn(t, db, quota(60), sqllimit.Options{Name: "strict"}).Each(t.Context(), func(key string, d ratelimit.Decision) bool {
		keys = append(keys, key)
		return !assert.False(t, d.Allowed)
	}))
	require.Equal(t, []string{"caf\xe9 \x00\xff'"}, keys)
}

func behindLeaseAndFailover(t *testing.T, server *postgres, db *sql.DB) {
	l := limiterOn(t, db, quota(1000), sqllimit.Options{Name: "leased"})
	leased, err := lease.New(l, &lease.Options[string]{MaxBatch: 50, Timeout: time.Minute})
	require.NoError(t, err)
	for range 600 {
		require.True(t, leased.Allow("k", 1))
	}
	require.NoError(t, leased.Flush(t.Context()))
	d, err := l.Peek(t.Context(), "k", 1)
	require.NoError(t, err)
	require.Equal(t, 400, d.Remaining)

	down, err := sql.Open("pgx", strings.Replace(server.name("postgres"), "user=test", "port=1 user=test", 1))
	require.NoError(t, err)
	defer down.Close()
	local, err := ratelimit.New[string](quota(5), nil)
	require.NoError(t, err)
	over, err := failover.New(limiterOn(t, down, quota(1000), sqllimit.Options{}), local, nil)
	require.NoError(t, err)
	d, err = over.Take(t.Context(), "k", 1)
	require.NoError(t, err)
	require.True(t, d.Allowed)
	require.True(t, d.Degraded)
	require.Equal(t, 4, d.Remaining)
}

// The server is killed while callers spend. An answered call is charged, and an unanswered one is charged once or not at all.
func TestNothingThatWasAnsweredIsLost(t *testing.T) {
	t.Parallel()
	server := startPostgresWith(t, "-c fsync=on")
	db := server.open(t)
	db.SetMaxOpenConns(10)
	db.SetMaxIdleConns(10)
	budgetTable(t, db)
	const units = 1_000_000
	l := limiterOn(t, db, quota(units), sqllimit.Options{Timeout: 10 * time.Second})
	var answered, unanswered [4]atomic.Int64
	stop := make(chan struct{})
	var wg sync.WaitGroup
	for key := range answered {
		for range 4 {
			wg.Go(func() {
				for {
					select {
					case <-stop:
						return
					default:
					}
					d, err := l.Take(context.Background(), fmt.Sprint(key), 1)
					switch {
					case err == nil && d.Allowed:
						answered[key].Add(1)
					case errors.Is(err, ratelimit.ErrUnanswered):
						unanswered[key].Add(1)
					case !errors.Is(err, ratelimit.ErrUnavailable):
						assert.NoError(t, err)
					}
				}
			})
		}
	}
	total := func() (n int64) {
		for key := range answered {
			n += answered[key].Load()
		}
		return n
	}
	for range 3 {
		before := total()
		soon(t, func() bool { return total() > before+200 }, "callers spend")
		server.stop(t)
		server.start(t)
	}
	before := total()
	soon(t, func() bool { return total() > before+200 }, "callers spend again")
	close(stop)
	wg.Wait()
	for key := range answered {
		d, err := l.Peek(t.Context(), fmt.Sprint(key), 1)
		require.NoError(t, err)
		spent := int64(units - d.Remaining)
		t.Logf("key %d: %d answered, %d charged, %d not answered", key, answered[key].Load(), spent, unanswered[key].Load())
		require.GreaterOrEqual(t, spent, answered[key].Load())
		require.LessOrEqual(t, spent, answered[key].Load()+unanswered[key].Load())
	}
}
