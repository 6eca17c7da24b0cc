package sqltest

import (
	"bytes"
	"context"
	"database/sql"
	"database/sql/driver"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"path/filepath"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/weir-go/ratelimit/internal/dev/testsize"
	"github.com/weir-go/ratelimit/policy"
	"github.com/weir-go/ratelimit/policy/audit"
	"github.com/weir-go/ratelimit/policy/sqlsource"
	"github.com/weir-go/ratelimit/sqllimit"
)

var errLost = errors.New("the connection is lost")

// flaky opens connections to a database, and can make them fail: it calls fail before each step, with the step's name.
type flaky struct {
	of   driver.Driver
	name string

	mu   sync.Mutex
	fail func(step string) error
}

// set changes which steps fail. Nil means none.
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

// openFlaky returns an SQLite database with the tables, a second handle
// on it with failing connections, and the control of the failures.
func openFlaky(t testing.TB) (db, lossy *sql.DB, f *flaky) {
	t.Helper()
	name := "file:" + filepath.Join(t.TempDir(), "rules.db") + "?_pragma=busy_timeout(5000)&_pragma=journal_mode(WAL)"
	db, err := sql.Open("sqlite3", name)
	require.NoError(t, err)
	migrate(t, db, sqlsource.SQLite)
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
	st, err := c.Conn.Prepare(query)
	if err != nil {
		return nil, err
	}
	rows, err := st.(driver.StmtQueryContext).QueryContext(ctx, args)
	if err != nil {
		return nil, errors.Join(err, st.Close())
	}
	return &flakyRows{rows, st, c.f}, nil
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
	st driver.Stmt
	f  *flaky
}

func (r *flakyRows) Close() error { return errors.Join(r.Rows.Close(), r.st.Close()) }

func (r *flakyRows) Next(dest []driver.Value) error {
	if err := r.f.at("row"); err != nil {
		return err
	}
	return r.Rows.Next(dest)
}

// TestTheNewestRulesGetInForceWhateverFails makes any step of any transaction fail at random while the rules change.
// After the last change each step fails once. The newest rules still come into force, including the kill switch.
func TestTheNewestRulesGetInForceWhateverFails(t *testing.T) {
	db, lossy, f := openFlaky(t)
	p, err := policy.New(nil, &policy.Options{Logger: slog.New(slog.DiscardHandler)})
	require.NoError(t, err)
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error)
	go func() {
		done <- policy.Follow(ctx, p, sqlsource.New(lossy, &sqlsource.Options{Dialect: sqlsource.SQLite, Poll: 5 * time.Millisecond}))
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
		for nth := range 3 { // the 1st, 2nd or 3rd time of this step after the change is noticed
			n++
			var seen atomic.Int64
			want := n
			f.set(func(at string) error {
				if at == step && p.Current().Rules[0].Limit.Rate.Units != want && seen.Add(1) == int64(nth+2) {
					return errLost
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
	for range 10 {
		f.set(func(string) error {
			if rand.IntN(3) == 0 { // a random choice, because several goroutines call it
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

// lossyLog returns a log with rows of the users u00, u01 and so on, over failing connections.
func lossyLog(t *testing.T, users int) (*sql.DB, *audit.Log, *flaky) {
	t.Helper()
	db, lossy, f := openFlaky(t)
	p, log := audited(t, lossy, audit.Options{Dialect: sqlsource.SQLite, Every: time.Hour})
	for u := range users {
		for range 3 {
			p.Allow(request(fmt.Sprintf("u%02d", u)), 1)
		}
	}
	return db, log, f
}

// TestADatabaseThatIsLostHalfWayLosesNoRow loses the database while the log writes rows one by one, at each row in
// turn. Pings may still be answered, and one row may be refused. When the database is back, every other row is written.
func TestADatabaseThatIsLostHalfWayLosesNoRow(t *testing.T) {
	const users = 6
	for at := range users {
		if !testsize.Long() && at%2 == 0 {
			continue
		}
		for _, answers := range []bool{false, true} { // whether a ping is still answered
			for _, bad := range []string{"", "u00", "u03", "u05"} {
				name := fmt.Sprintf("lost at %d, answers %v, refuses %q", at, answers, bad)
				db, log, f := lossyLog(t, users)
				singly, lost := false, false
				f.set(func(step string) error {
					switch {
					case step == "exec u00" && !singly && !lost:
						singly = true // after this failure rows are written one by one
						return errLost
					case step == fmt.Sprintf("exec u%02d", at):
						lost = true
					}
					if lost && (step != "ping" && step != "connect" || !answers) || bad != "" && step == "exec "+bad {
						return errLost
					}
					return nil
				})
				require.Error(t, log.Flush(t.Context()), name)
				if bad == "" {
					require.Zero(t, log.Stats().Dropped, name)
				}
				f.set(func(step string) error {
					if bad != "" && step == "exec "+bad {
						return errLost
					}
					return nil
				})
				want := uint64(users)
				if bad != "" {
					want--
				}
				if err := log.Close(t.Context()); bad == "" { // otherwise Close may return the error of the lost row
					require.NoError(t, err, name)
				}
				s := log.Stats()
				require.Equal(t, []uint64{users, want, users - want}, []uint64{s.Denials, s.Written, s.Dropped}, name)
				require.Equal(t, int(want), count(t, db, ""), name)
			}
		}
	}
}

// TestNothingIsLostWithoutBeingCounted makes random steps fail for some time.
// Afterwards all rows are written, except those refused by the database.
func TestNothingIsLostWithoutBeingCounted(t *testing.T) {
	for seed := range testsize.Of(6, 100) {
		rnd := rand.New(rand.NewPCG(uint64(seed), 33))
		db, log, f := lossyLog(t, 1+rnd.IntN(30))
		often, lost := 1+rnd.IntN(20), 0
		f.set(func(step string) error {
			if lost > 0 { // then nothing works for some steps
				lost--
				return errLost
			}
			if rnd.IntN(often) == 0 {
				lost = rnd.IntN(10)
				return errLost
			}
			return nil
		})
		for range 5 {
			_ = log.Flush(t.Context())
			s := log.Stats()
			require.Equal(t, s.Denials, s.Written+s.Dropped+uint64(s.Pending), "seed %d", seed)
		}
		f.set(nil)
		require.NoError(t, log.Close(t.Context()), "seed %d", seed)
		s := log.Stats()
		require.Equal(t, s.Denials, s.Written+s.Dropped, "seed %d", seed)
		require.Equal(t, int(s.Written), count(t, db, ""), "seed %d", seed)
	}
}

// TestALockedTableHoldsUpAFlushForOneTimeout locks the table. A Flush returns
// the reason after one Timeout. Until then its rows count as pending.
func TestALockedTableHoldsUpAFlushForOneTimeout(t *testing.T) {
	testsize.Extra(t)
	testsize.Alone(t)
	db := openPostgres(t)
	migrate(t, db, sqllimit.PostgreSQL)
	const timeout = time.Second
	var logged bytes.Buffer
	p, log := audited(t, db, audit.Options{Every: time.Hour, Timeout: timeout, Logger: slog.New(slog.NewTextHandler(&logged, nil))})
	for u := range 30 {
		for range 3 {
			p.Allow(request(fmt.Sprint(u)), 1)
		}
	}
	tx, err := db.Begin()
	require.NoError(t, err)
	_, err = tx.Exec(`LOCK TABLE rate_limit_violation IN ACCESS EXCLUSIVE MODE`)
	require.NoError(t, err)
	begin, ended := time.Now(), make(chan error)
	for range 2 { // the second Flush waits for the first, within its own Timeout
		go func() { ended <- log.Flush(t.Context()) }()
	}
	for range 2 {
		var err error
		for waiting := true; waiting; {
			select {
			case err = <-ended:
				waiting = false
			default:
				require.Equal(t, 30, log.Stats().Pending)
				time.Sleep(time.Millisecond)
			}
		}
		require.ErrorIs(t, err, context.DeadlineExceeded)
	}
	require.Less(t, time.Since(begin), 9*timeout, "it took one for each of ten rows before")
	require.Error(t, log.Stats().LastError)
	require.Contains(t, logged.String(), "denials could not be written")
	require.NoError(t, tx.Rollback())
	soon(t, func() bool { return log.Flush(t.Context()) == nil }, "the table is free")
	require.NoError(t, log.Close(t.Context()))
	require.Equal(t, 30, count(t, db, ""))
}
