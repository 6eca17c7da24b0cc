package sqltest

import (
	"context"
	"database/sql"
	"database/sql/driver"
	"fmt"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/go-sql-driver/mysql"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/weir-go/ratelimit"
	"github.com/weir-go/ratelimit/internal/dev/testsize"
	"github.com/weir-go/ratelimit/ratelimittest"
	"github.com/weir-go/ratelimit/sqllimit"
)

// mariaClocked opens connections with a test's clock instead of the server's.
type mariaClocked struct {
	driver.Connector
	now func() time.Time
}

func (c *mariaClocked) Connect(ctx context.Context) (driver.Conn, error) {
	conn, err := c.Connector.Connect(ctx)
	if err != nil {
		return nil, err
	}
	return &mariaConn{conn.(mysqlConn), c.now}, nil
}

// mysqlConn lists the methods of the driver's connections.
type mysqlConn interface {
	driver.Conn
	driver.ConnBeginTx
	driver.ConnPrepareContext
	driver.ExecerContext
	driver.NamedValueChecker
	driver.Pinger
	driver.QueryerContext
	driver.SessionResetter
	driver.Validator
}

type mariaConn struct {
	mysqlConn
	now func() time.Time
}

// at inserts the test's time into a statement.
func (c *mariaConn) at(query string) string {
	const now = "UTC_TIMESTAMP(6)"
	if !strings.Contains(query, now) {
		return query
	}
	return strings.ReplaceAll(query, now, c.now().UTC().Format("TIMESTAMP'2006-01-02 15:04:05.000000'"))
}

func (c *mariaConn) QueryContext(ctx context.Context, query string, args []driver.NamedValue) (driver.Rows, error) {
	return c.mysqlConn.QueryContext(ctx, c.at(query), args)
}

func (c *mariaConn) ExecContext(ctx context.Context, query string, args []driver.NamedValue) (driver.Result, error) {
	return c.mysqlConn.ExecContext(ctx, c.at(query), args)
}

func TestSuiteOnMariaDB(t *testing.T) {
	testsize.Sequential(t)
	t.Parallel()
	plain := openMariaDB(t)
	_, err := plain.Exec(sqllimit.Schema(sqllimit.MySQL, ""))
	require.NoError(t, err)
	var name string
	require.NoError(t, plain.QueryRow("SELECT DATABASE()").Scan(&name))
	config, err := mysql.ParseDSN(mariaDB(t).dsn(name))
	require.NoError(t, err)
	config.InterpolateParams = true // takes a third of the round trips; the other tests on MariaDB prepare each statement
	connector, err := mysql.NewConnector(config)
	require.NoError(t, err)
	clock := new(ratelimittest.Clock)
	db := sql.OpenDB(&mariaClocked{connector, clock.Wall})
	t.Cleanup(func() { require.NoError(t, db.Close()) })
	db.SetMaxOpenConns(20)
	db.SetMaxIdleConns(20)
	c := suiteOf(db, sqllimit.MySQL, clock)
	if accepts := c.Accepts; !testsize.Long() {
		c.Accepts = func(l ratelimit.Limit) bool { return l.Algorithm == ratelimit.AlgorithmCalendar && accepts(l) }
	}
	ratelimittest.Run(t, c)
	corrections(t, db, sqllimit.MySQL, clock)
}

// limitsOnMariaDB returns a database with the table of limits.
func limitsOnMariaDB(t *testing.T) *sql.DB {
	t.Helper()
	db := openMariaDB(t)
	db.SetMaxOpenConns(20)
	db.SetMaxIdleConns(20)
	_, err := db.Exec(sqllimit.Schema(sqllimit.MySQL, ""))
	require.NoError(t, err)
	return db
}

// Each algorithm plays a history with bookings, settlements, adjustments, resets and lists.
func TestEachAlgorithmOnMariaDB(t *testing.T) {
	testsize.Sequential(t)
	t.Parallel()
	db := limitsOnMariaDB(t)
	for _, limit := range []ratelimit.Limit{
		ratelimit.TokenBucket(ratelimit.PerDay(10), 10), ratelimit.LeakyBucket(ratelimit.PerDay(10), 10), ratelimit.FixedWindow(ratelimit.PerDay(10)),
		ratelimit.SlidingLog(ratelimit.PerDay(10)), ratelimit.SlidingCounter(ratelimit.PerDay(10)), ratelimit.Calendar(10, ratelimit.Month("UTC", 1)),
	} {
		t.Run(limit.Algorithm.String(), func(t *testing.T) {
			ctx := t.Context()
			l := limiterOn(t, db, limit, sqllimit.Options{Dialect: sqllimit.MySQL, Name: limit.Algorithm.String()})
			r, err := l.Reserve(ctx, "k", 7, 0)
			require.NoError(t, err)
			require.True(t, r.Allowed)
			require.NoError(t, r.Settle(5))
			require.NoError(t, l.Adjust(ctx, "k", 2))
			require.NoError(t, l.Reset(ctx, "other"))
			d, err := l.Peek(ctx, "k", 1)
			require.NoError(t, err)
			require.Equal(t, 3, d.Remaining)
			require.False(t, l.Allow("k", 4))
			require.True(t, l.Allow("k", 3))
			var keys []string
			require.NoError(t, l.Each(ctx, func(key string, d ratelimit.Decision) bool {
				keys = append(keys, fmt.Sprint(key, d.Allowed))
				return true
			}))
			require.Equal(t, []string{"kfalse", "othertrue"}, keys)
			require.NoError(t, l.Reset(ctx, "k"))
			require.True(t, l.Allow("k", 10))
		})
	}
}

func TestProcessesOnMariaDBAreExactTogetherWithKeysOfAnyBytes(t *testing.T) {
	testsize.Sequential(t)
	t.Parallel()
	db := limitsOnMariaDB(t)
	for _, key := range []string{"hot", "", "caf\xe9 \x00\xff'`"} {
		t.Run(fmt.Sprintf("%q", key), func(t *testing.T) {
			var granted atomic.Int64
			var wg sync.WaitGroup
			for range 4 {
				l := limiterOn(t, db, quota(80), sqllimit.Options{Dialect: sqllimit.MySQL})
				for range 4 {
					wg.Go(func() {
						for {
							d, err := l.Take(t.Context(), key, 1)
							if !assert.NoError(t, err) || !d.Allowed {
								return
							}
							granted.Add(1)
						}
					})
				}
			}
			wg.Wait()
			require.Equal(t, int64(80), granted.Load())
		})
	}
}

func TestAMissingTableOnMariaDBIsAnError(t *testing.T) {
	testsize.Sequential(t)
	t.Parallel()
	l := limiterOn(t, limitsOnMariaDB(t), quota(10), sqllimit.Options{Dialect: sqllimit.MySQL, Table: "missing"})
	_, err := l.Take(t.Context(), "k", 1)
	require.ErrorContains(t, err, "table missing, which Schema describes")
	require.NotErrorIs(t, err, ratelimit.ErrUnavailable)
}

func TestExpiredRowsOnMariaDBAreDeleted(t *testing.T) {
	testsize.Sequential(t)
	t.Parallel()
	db := limitsOnMariaDB(t)
	l := limiterOn(t, db, ratelimit.TokenBucket(ratelimit.PerSecond(1000), 1000).Named("swept"), sqllimit.Options{Dialect: sqllimit.MySQL})
	for i := range 120 {
		require.True(t, l.Allow(fmt.Sprint(i), 1))
	}
	require.Eventually(t, func() bool {
		assert.True(t, l.Allow("hot", 1))
		var n int
		assert.NoError(t, db.QueryRow("SELECT count(*) FROM rate_limit WHERE `key` >= 'swept:' AND `key` < 'swept;'").Scan(&n))
		return n == 1
	}, 5*time.Minute, 200*time.Millisecond)
}

// A server with a binary log of statements refuses READ COMMITTED. On other
// servers, contended decisions and the sweep use this isolation level.
func TestContendedDecisionsPassWithABinaryLogOfStatements(t *testing.T) {
	db := openPlainMariaDB(t, "&binlog_format=%27STATEMENT%27")
	db.SetMaxOpenConns(20)
	_, err := db.Exec(sqllimit.Schema(sqllimit.MySQL, ""))
	require.NoError(t, err)
	var granted atomic.Int64
	var wg sync.WaitGroup
	for range 4 {
		l := limiterOn(t, db, quota(100), sqllimit.Options{Dialect: sqllimit.MySQL})
		for range 4 {
			wg.Go(func() {
				for {
					d, err := l.Take(t.Context(), "hot", 1)
					if !assert.NoError(t, err) || !d.Allowed {
						return
					}
					granted.Add(1)
				}
			})
		}
	}
	wg.Wait()
	require.Equal(t, int64(100), granted.Load())
}

func TestWithoutAutocommitDecisionsFailAtOnce(t *testing.T) {
	_, err := openPlainMariaDB(t, "").Exec("SELECT 1") // the server does answer
	require.NoError(t, err)
	db := openPlainMariaDB(t, "&autocommit=0")
	_, err = db.Exec(sqllimit.Schema(sqllimit.MySQL, ""))
	require.NoError(t, err)
	l := limiterOn(t, db, quota(10), sqllimit.Options{Dialect: sqllimit.MySQL})
	_, err = l.Take(t.Context(), "k", 1)
	require.ErrorContains(t, err, "autocommit is 0, want 1")
	require.NotErrorIs(t, err, ratelimit.ErrUnavailable, "it will not pass")
	require.ErrorContains(t, l.Reset(t.Context(), "k"), "autocommit")
}

func TestAColumnThatIsTooShortForAKeyIsNamedAtOnce(t *testing.T) {
	for _, mode := range []string{"", "&sql_mode=%27%27"} { // by default MariaDB refuses texts that do not fit; with this mode it cuts them
		db := openPlainMariaDB(t, mode)
		_, err := db.Exec(strings.Replace(sqllimit.Schema(sqllimit.MySQL, ""), "varbinary(1280)", "varbinary(64)", 1))
		require.NoError(t, err)
		l := limiterOn(t, db, quota(10), sqllimit.Options{Dialect: sqllimit.MySQL})
		require.True(t, l.Allow("short", 1))
		long := strings.Repeat("k", 100)
		_, err = l.Take(t.Context(), long, 1)
		if mode != "" {
			_, err = l.Take(t.Context(), long, 1) // the first call wrote another key
		}
		require.ErrorContains(t, err, "key")
		require.NotErrorIs(t, err, ratelimit.ErrUnavailable, "it will not pass")
	}
}
