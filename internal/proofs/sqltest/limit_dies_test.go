package sqltest

import (
	"context"
	"database/sql"
	"database/sql/driver"
	"fmt"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/weir-go/ratelimit"
	"github.com/weir-go/ratelimit/internal/dev/testsize"
	"github.com/weir-go/ratelimit/sqllimit"
)

// mortal opens a process's connections. The process dies after a number of statements, and sends no more.
type mortal struct {
	of   driver.Driver
	name string
	left atomic.Int64
	died chan struct{}
}

func (m *mortal) Connect(context.Context) (driver.Conn, error) {
	c, err := m.of.Open(m.name)
	return &mortalConn{c, m}, err
}

func (m *mortal) Driver() driver.Driver { return m.of }

// step counts a statement, and reports whether the process has died before it.
func (m *mortal) step() error {
	switch left := m.left.Add(-1); {
	case left == -1:
		close(m.died)
		return errLost
	case left < 0:
		return errLost
	}
	return nil
}

// mortalConn is a connection. The server learns of the process's death when the connection is closed.
type mortalConn struct {
	driver.Conn
	m *mortal
}

func (c *mortalConn) CheckNamedValue(v *driver.NamedValue) error {
	return c.Conn.(driver.NamedValueChecker).CheckNamedValue(v)
}

func (c *mortalConn) QueryContext(ctx context.Context, query string, args []driver.NamedValue) (driver.Rows, error) {
	if err := c.m.step(); err != nil {
		return nil, err
	}
	return c.Conn.(driver.QueryerContext).QueryContext(ctx, query, args)
}

func (c *mortalConn) ExecContext(ctx context.Context, query string, args []driver.NamedValue) (driver.Result, error) {
	if err := c.m.step(); err != nil {
		return nil, err
	}
	return c.Conn.(driver.ExecerContext).ExecContext(ctx, query, args)
}

func (c *mortalConn) BeginTx(ctx context.Context, o driver.TxOptions) (driver.Tx, error) {
	if err := c.m.step(); err != nil {
		return nil, err
	}
	tx, err := c.Conn.(driver.ConnBeginTx).BeginTx(ctx, o)
	return &mortalTx{tx, c.m}, err
}

type mortalTx struct {
	driver.Tx
	m *mortal
}

func (x *mortalTx) Commit() error {
	if err := x.m.step(); err != nil {
		_ = x.Tx.Rollback()
		return err
	}
	return x.Tx.Commit()
}

// Whichever statement a dead process has sent last, its booking bars
// others for about a second, and not until the booking's instant.
func TestAProcessMayDieBetweenAnyTwoStatementsOfABooking(t *testing.T) {
	testsize.Extra(t)
	testsize.Alone(t)
	limit := ratelimit.TokenBucket(ratelimit.Rate{Units: 1, Per: 20 * time.Second}, 1).Named("dies")
	for name, r := range reachable(t) {
		t.Run(name, func(t *testing.T) {
			db, err := r.open()
			require.NoError(t, err)
			defer db.Close()
			o := &sqllimit.Options{Dialect: r.dialect(), Timeout: 10 * time.Second}
			other, err := sqllimit.New(db, limit, o)
			require.NoError(t, err)
			var all sync.WaitGroup
			for n := range 16 {
				m := &mortal{of: db.Driver(), name: r.dsn, died: make(chan struct{})}
				m.left.Store(int64(n))
				short := sql.OpenDB(m)
				defer short.Close()
				dies, err := sqllimit.New(short, limit, o)
				require.NoError(t, err)
				all.Go(func() {
					key := fmt.Sprint("k", n)
					assert.True(t, other.Allow(key, 1))
					free := time.Now().Add(20 * time.Second)
					ctx, leave := context.WithCancel(t.Context())
					defer leave()
					all.Go(func() { assert.Error(t, dies.Wait(ctx, key, 1)) })
					<-m.died
					died := time.Now()
					assert.Eventually(t, func() bool {
						d, err := other.Take(t.Context(), key, 1)
						return err == nil && !d.Allowed && d.RetryAfter <= time.Until(free)+time.Second && time.Since(died) > 500*time.Millisecond
					}, 4*time.Second, 50*time.Millisecond, "dead after %d statements", n)
					t.Logf("dead after %d statements: free %v later", n, time.Since(died).Round(time.Millisecond))
				})
			}
			all.Wait()
		})
	}
}
