package sqltest

import (
	"context"
	"crypto/sha256"
	"database/sql"
	"database/sql/driver"
	"encoding/hex"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/stdlib"
	"github.com/stretchr/testify/require"

	"github.com/weir-go/ratelimit"
	"github.com/weir-go/ratelimit/ratelimittest"
	"github.com/weir-go/ratelimit/sqllimit"
)

// clocked opens connections on which a clock of the test stands in for the server's.
type clocked struct {
	name string
	now  func() time.Time
}

func (c *clocked) Connect(context.Context) (driver.Conn, error) {
	conn, err := c.Driver().Open(c.name)
	if err != nil {
		return nil, err
	}
	return &clockedConn{conn.(*stdlib.Conn), c}, nil
}

func (c *clocked) Driver() driver.Driver { return stdlib.GetDefaultDriver() }

// openAt opens a database whose clock is the test's.
func (p *postgres) openAt(t testing.TB, now func() time.Time) *sql.DB {
	t.Helper()
	db := sql.OpenDB(&clocked{p.name(), now})
	t.Cleanup(func() { require.NoError(t, db.Close()) })
	return db
}

type clockedConn struct {
	*stdlib.Conn
	c *clocked
}

// at puts the test's time into a statement, as one more argument.
func (c *clockedConn) at(query string, args []driver.NamedValue) (string, []driver.NamedValue) {
	n := len(args) + 1
	text := strings.ReplaceAll(query, "clock_timestamp()", fmt.Sprintf("(timestamptz 'epoch' + $%d::bigint * interval '1 microsecond')", n))
	if text == query {
		return query, args
	}
	return text, append(args, driver.NamedValue{Ordinal: n, Value: c.c.now().UnixMicro()})
}

func (c *clockedConn) QueryContext(ctx context.Context, query string, args []driver.NamedValue) (driver.Rows, error) {
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

// hashed has the keys that are too long for a row hashed, as a user would.
type hashed struct{ *sqllimit.Limiter }

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
	clock := new(ratelimittest.Clock)
	server := startPostgres(t)
	db := server.openAt(t, clock.Wall)
	db.SetMaxOpenConns(20)
	db.SetMaxIdleConns(20)
	budgetTable(t, db)
	ratelimittest.Run(t, suiteOf(db, sqllimit.PostgreSQL, clock))
}

func suiteOf(db *sql.DB, dialect sqllimit.Dialect, clock *ratelimittest.Clock) ratelimittest.Config {
	made := 0
	return ratelimittest.Config{
		Clock:      clock,
		Resolution: time.Microsecond,
		Histories:  6,
		Accepts: func(l ratelimit.Limit) bool {
			_, err := sqllimit.New(db, l, &sqllimit.Options{Name: "any"})
			return err == nil
		},
		Want: []string{"Peek", "Reserve", "Wait", "Adjust", "Reset", "SetLimit", "Calendar"},
		New: func(limit ratelimit.Limit) (ratelimit.Limiter[string], error) {
			made++
			l, err := sqllimit.New(db, limit, &sqllimit.Options{Dialect: dialect, Name: fmt.Sprint("suite", made), Timeout: 20 * time.Second})
			if err != nil {
				return nil, err
			}
			return hashed{l}, nil
		},
		NewPair: func(limit ratelimit.Limit) (a, b ratelimit.Limiter[string], err error) {
			made++
			o := &sqllimit.Options{Dialect: dialect, Name: fmt.Sprint("pair", made), Timeout: 20 * time.Second}
			one, err := sqllimit.New(db, limit, o)
			if err != nil {
				return nil, nil, err
			}
			other, err := sqllimit.New(db, limit, o)
			return hashed{one}, hashed{other}, err
		},
	}
}
