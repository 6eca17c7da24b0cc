package sqltest

import (
	"context"
	"database/sql"
	"database/sql/driver"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"path/filepath"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/weir-go/ratelimit/policy"
)

var errLost = errors.New("the connection is lost")

// flaky opens connections to a database that fail where fail says so: it is asked before each
// step, with what the step is.
type flaky struct {
	of   driver.Driver
	name string

	mu   sync.Mutex
	fail func(step string) error
}

// set changes what fails. Nil: nothing does.
func (f *flaky) set(fail func(step string) error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.fail = fail
}

func (f *flaky) at(step string) error {
	f.mu.Lock()
	fail := f.fail
	f.mu.Unlock()
	if fail == nil {
		return nil
	}
	return fail(step)
}

// openFlaky returns an SQLite database with the tables in it, another handle on it whose
// connections fail, and what says when.
func openFlaky(t testing.TB) (db, lossy *sql.DB, f *flaky) {
	t.Helper()
	name := "file:" + filepath.Join(t.TempDir(), "rules.db") + "?_pragma=busy_timeout(5000)&_pragma=journal_mode(WAL)"
	db, err := sql.Open("sqlite", name)
	require.NoError(t, err)
	_, err = db.Exec(policy.SQLite.Migration())
	require.NoError(t, err)
	f = &flaky{of: db.Driver(), name: name}
	lossy = sql.OpenDB(f)
	t.Cleanup(func() {
		require.NoError(t, lossy.Close())
		require.NoError(t, db.Close())
	})
	return db, lossy, f
}

func (f *flaky) Connect(context.Context) (driver.Conn, error) {
	if err := f.at("connect"); err != nil {
		return nil, err
	}
	c, err := f.of.Open(f.name)
	if err != nil {
		return nil, err
	}
	return &flakyConn{c, f}, nil
}

func (f *flaky) Driver() driver.Driver { return f.of }

type flakyConn struct {
	driver.Conn
	f *flaky
}

func (c *flakyConn) Ping(context.Context) error { return c.f.at("ping") }

func (c *flakyConn) BeginTx(ctx context.Context, opts driver.TxOptions) (driver.Tx, error) {
	if err := c.f.at("begin"); err != nil {
		return nil, err
	}
	tx, err := c.Conn.(driver.ConnBeginTx).BeginTx(ctx, opts)
	return &flakyTx{tx, c.f}, err
}

func (c *flakyConn) QueryContext(ctx context.Context, query string, args []driver.NamedValue) (driver.Rows, error) {
	if err := c.f.at("query"); err != nil {
		return nil, err
	}
	rows, err := c.Conn.(driver.QueryerContext).QueryContext(ctx, query, args)
	if err != nil {
		return nil, err
	}
	return &flakyRows{rows, c.f}, nil
}

func (c *flakyConn) Prepare(query string) (driver.Stmt, error) {
	if err := c.f.at("prepare"); err != nil {
		return nil, err
	}
	st, err := c.Conn.Prepare(query)
	return &flakyStmt{st, c.f}, err
}

type flakyStmt struct {
	driver.Stmt
	f *flaky
}

func (s *flakyStmt) ExecContext(ctx context.Context, args []driver.NamedValue) (driver.Result, error) {
	if err := s.f.at("exec " + fmt.Sprint(args[1].Value)); err != nil {
		return nil, err
	}
	return s.Stmt.(driver.StmtExecContext).ExecContext(ctx, args)
}

type flakyTx struct {
	driver.Tx
	f *flaky
}

func (x *flakyTx) Commit() error {
	if err := x.f.at("commit"); err != nil {
		return errors.Join(err, x.Rollback())
	}
	return x.Tx.Commit()
}

type flakyRows struct {
	driver.Rows
	f *flaky
}

func (r *flakyRows) Next(dest []driver.Value) error {
	if err := r.f.at("row"); err != nil {
		return err
	}
	return r.Rows.Next(dest)
}

// TestTheNewestRulesGetInForceWhateverFails makes any step of any transaction fail at random while
// the rules change, and lets each of them fail once after the last change. The newest rules
// come in force all the same, the kill switch among them.
func TestTheNewestRulesGetInForceWhateverFails(t *testing.T) {
	db, lossy, f := openFlaky(t)
	p, err := policy.New(nil, &policy.Options{Logger: slog.New(slog.DiscardHandler)})
	require.NoError(t, err)
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error)
	go func() {
		done <- policy.Follow(ctx, p, policy.SQL(lossy, &policy.SQLOptions{Dialect: policy.SQLite, Poll: 5 * time.Millisecond}))
	}()
	exec := func(statement string) {
		_, err := db.Exec(statement)
		require.NoError(t, err)
	}
	exec(`INSERT INTO rate_limit_rule (name, "limit") VALUES ('api', 'fixed-window 1/h')`)
	exec(`INSERT INTO rate_limit_setting VALUES ('kill_switch', 'false')`)
	inForce := func(n int, kill bool, what string) {
		soon(t, func() bool {
			s := p.Current()
			return len(s.Rules) == 1 && s.Rules[0].Limit.Rate.Units == n && s.KillSwitch == kill
		}, what)
	}
	inForce(1, false, "the first rules")
	n := 1
	for _, step := range []string{"connect", "begin", "query", "row", "commit"} {
		for nth := range 3 { // the 1st to 3rd of that kind after the change is noticed
			n++
			seen := 0
			f.set(func(at string) error {
				if at == step && p.Current().Rules[0].Limit.Rate.Units != n {
					if seen++; seen == nth+2 {
						return errLost
					}
				}
				return nil
			})
			exec(fmt.Sprintf(`UPDATE rate_limit_rule SET "limit" = 'fixed-window %d/h'`, n))
			exec(fmt.Sprintf(`UPDATE rate_limit_setting SET value = '%v'`, n%2 == 0))
			inForce(n, n%2 == 0, fmt.Sprintf("%s fails, the %d. time", step, nth+2))
		}
	}
	exec(`UPDATE rate_limit_setting SET value = 'false'`)
	rnd := rand.New(rand.NewPCG(1, 2))
	var mu sync.Mutex
	for range 10 {
		f.set(func(string) error {
			mu.Lock()
			defer mu.Unlock()
			if rnd.IntN(3) == 0 {
				return errLost
			}
			return nil
		})
		for range 1 + rnd.IntN(5) {
			n++
			exec(fmt.Sprintf(`UPDATE rate_limit_rule SET "limit" = 'fixed-window %d/h'`, n))
			time.Sleep(time.Duration(rnd.IntN(10)) * time.Millisecond)
		}
		f.set(nil)
		inForce(n, false, "after the faults")
	}
	cancel()
	require.ErrorIs(t, <-done, context.Canceled)
}
