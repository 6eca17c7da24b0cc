package audit_test

import (
	"bytes"
	"context"
	"database/sql"
	sqldriver "database/sql/driver"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/weir-go/ratelimit"
	"github.com/weir-go/ratelimit/internal/dev/testsize"
	"github.com/weir-go/ratelimit/policy"
	"github.com/weir-go/ratelimit/policy/audit"
	"github.com/weir-go/ratelimit/policy/internal/joined"
)

// nowhere is a database that is down.
type nowhere struct{ idle }

func (nowhere) Connect(context.Context) (sqldriver.Conn, error) { return nil, errors.New("down") }

// slowRequest is a request that takes long to return its user.
type slowRequest struct {
	policy.Attributes
	takes time.Duration
}

func (r slowRequest) Attribute(name string) (string, bool) {
	if name == "user" {
		time.Sleep(r.takes)
	}
	return r.Attributes.Attribute(name)
}

// TestALateDenialMakesNoRoomForRows reports a denial late, possibly one
// of the previous minute. This must not give further keys their own rows.
func TestALateDenialMakesNoRoomForRows(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		db := sql.OpenDB(nowhere{})
		defer db.Close()
		var out bytes.Buffer
		log, err := audit.New(db, &audit.Options{MaxRows: 3, Every: time.Hour, Logger: slog.New(slog.NewTextHandler(&out, nil))})
		require.NoError(t, err)
		p, err := policy.New(parsed(t, "rules: [{name: api, key: id, limit: blocked}]"), &policy.Options{OnDecision: log.OnDecision})
		require.NoError(t, err)
		deny := func(key string, takes time.Duration) {
			p.Allow(slowRequest{policy.Attributes{"id": key, "user": "ann"}, takes}, 1)
		}
		for i := range 5 {
			go deny(fmt.Sprint("late", i), time.Duration(i+1)*time.Minute+time.Duration(i)*time.Second)
		}
		for minute := range 6 {
			time.Sleep(time.Second)
			for second := range 30 {
				deny(fmt.Sprint("key", minute, second), 0)
				time.Sleep(time.Second)
			}
			time.Sleep(29 * time.Second)
		}
		synctest.Wait()
		s := log.Stats()
		assert.EqualValues(t, 6*30+5, s.Denials)
		assert.LessOrEqual(t, s.Pending, 6*(3+1), "3 keys and all others, each minute")
		require.Error(t, log.Close(t.Context()))
		assert.Contains(t, out.String(), `msg="policy: denials could not be written" error=`)
		s = log.Stats()
		assert.Equal(t, s.Denials, s.Written+s.Dropped)
	})
}

// idle is a database storing nothing. Its transactions succeed, and its queries are refused.
type idle struct{}

func (idle) Driver() sqldriver.Driver                        { return nil }
func (idle) Close() error                                    { return nil }
func (idle) Begin() (sqldriver.Tx, error)                    { return idle{}, nil }
func (idle) Commit() error                                   { return nil }
func (idle) Rollback() error                                 { return nil }
func (idle) NumInput() int                                   { return -1 }
func (idle) Query([]sqldriver.Value) (sqldriver.Rows, error) { return nil, errors.ErrUnsupported }

// paths is a database recording the routes to store.
type paths struct {
	idle
	stored *[]string
}

func (p paths) Connect(context.Context) (sqldriver.Conn, error) { return p, nil }
func (p paths) Prepare(string) (sqldriver.Stmt, error)          { return p, nil }

func (p paths) Exec(args []sqldriver.Value) (sqldriver.Result, error) {
	for _, a := range args {
		*p.stored = append(*p.stored, fmt.Sprint(a))
	}
	return sqldriver.RowsAffected(1), nil
}

func TestAHashKeyKeepsPathsOutOfTheDatabase(t *testing.T) {
	var stored []string
	db := sql.OpenDB(paths{stored: &stored})
	defer db.Close()
	log, err := audit.New(db, &audit.Options{HashKey: []byte("secret"), Every: time.Hour})
	require.NoError(t, err)
	p, err := policy.New(parsed(t, "rules: [{name: api, key: path, limit: blocked}]"), &policy.Options{OnDecision: log.OnDecision})
	require.NoError(t, err)
	p.Allow(policy.Attributes{"method": "GET", "path": "/share/token-1234"}, 1)
	_ = log.Close(t.Context())
	all := fmt.Sprint(stored)
	assert.NotContains(t, all, "token-1234")
	assert.Contains(t, stored, "GET "+joined.Hash([]byte("secret"), "/share/token-1234"))
}

func parsed(t *testing.T, text string) *policy.Set {
	t.Helper()
	set, err := policy.Parse([]byte(text))
	require.NoError(t, err)
	return set
}

func TestFlushAfterItsContextHasEndedBlamesNoOther(t *testing.T) {
	db := sql.OpenDB(nowhere{})
	defer db.Close()
	log, err := audit.New(db, &audit.Options{Every: time.Hour, Logger: slog.New(slog.DiscardHandler)})
	require.NoError(t, err)
	defer log.Close(context.Background())
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	for range 50 {
		require.NoError(t, log.Flush(ctx), "nothing waits")
	}
}

// slowlyDown is a database that is down. Each attempt takes a second to fail.
type slowlyDown struct {
	idle
	attempts *int
}

func (d slowlyDown) Connect(context.Context) (sqldriver.Conn, error) {
	*d.attempts++
	time.Sleep(time.Second)
	return nil, errors.New("down")
}

// Denials continue while the log is closed. Most are dropped.
func TestCloseGivesUpWhileDenialsGoOn(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		attempts := 0
		db := sql.OpenDB(slowlyDown{attempts: &attempts})
		defer db.Close()
		log, err := audit.New(db, &audit.Options{MaxPending: 1, Every: time.Hour, Logger: slog.New(slog.DiscardHandler)})
		require.NoError(t, err)
		limiter, err := ratelimit.New(ratelimit.Blocked(), &ratelimit.Options[string]{OnDecision: audit.Of(log, "logins", func(key string) string { return key })})
		require.NoError(t, err)
		closed := make(chan struct{})
		go func() {
			for i := range 600 {
				select {
				case <-closed:
					return
				case <-time.After(100 * time.Millisecond):
				}
				limiter.Allow(fmt.Sprint(i), 1)
			}
		}()
		time.Sleep(time.Second)
		require.Error(t, log.Close(context.Background()))
		close(closed)
		require.Equal(t, 1, attempts)
	})
}

// choosy is a database refusing the key "bad". It has old rows, and takes 100 ms to delete a thousand of them.
type choosy struct {
	idle
	old       *int
	statement string
}

func (c choosy) Connect(context.Context) (sqldriver.Conn, error) { return c, nil }
func (c choosy) Prepare(statement string) (sqldriver.Stmt, error) {
	return choosy{old: c.old, statement: statement}, nil
}

func (c choosy) Exec(args []sqldriver.Value) (sqldriver.Result, error) {
	switch {
	case strings.HasPrefix(c.statement, "DELETE"):
		time.Sleep(100 * time.Millisecond)
		n := min(*c.old, 1000)
		*c.old -= n
		return sqldriver.RowsAffected(n), nil
	case slices.Contains(args, sqldriver.Value("bad")):
		return nil, errors.New("value out of range")
	}
	return sqldriver.RowsAffected(1), nil
}

func TestRowsAreWrittenWhileOldOnesAreDeleted(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		old := 10_000_000
		db := sql.OpenDB(choosy{old: &old})
		defer db.Close()
		log, err := audit.New(db, &audit.Options{Logger: slog.New(slog.DiscardHandler)})
		require.NoError(t, err)
		limiter, err := ratelimit.New(ratelimit.Blocked(), &ratelimit.Options[string]{OnDecision: audit.Of(log, "logins", func(key string) string { return key })})
		require.NoError(t, err)
		time.Sleep(2 * time.Second)
		limiter.Allow("ann", 1)
		time.Sleep(3 * time.Second)
		require.Positive(t, log.Stats().Written)
		require.NoError(t, log.Close(t.Context()))
	})
}

func TestTheCauseOfADroppedRowIsReported(t *testing.T) {
	db := sql.OpenDB(choosy{old: new(int)})
	defer db.Close()
	var out bytes.Buffer
	log, err := audit.New(db, &audit.Options{Every: time.Hour, Logger: slog.New(slog.NewTextHandler(&out, nil))})
	require.NoError(t, err)
	limiter, err := ratelimit.New(ratelimit.Blocked(), &ratelimit.Options[string]{OnDecision: audit.Of(log, "logins", func(key string) string { return key })})
	require.NoError(t, err)
	for _, key := range []string{"ann", "bad", "bob"} {
		limiter.Allow(key, 1)
	}
	require.NoError(t, log.Flush(t.Context()), "the others are written")
	stats := log.Stats()
	require.EqualValues(t, 2, stats.Written)
	require.EqualValues(t, 1, stats.Dropped)
	require.ErrorContains(t, stats.LastError, "value out of range")
	//lint:ignore SA1012 a nil context never ends
	require.NoError(t, log.Close(nil))
	require.Contains(t, out.String(), "value out of range")
}

func TestPendingRowsKeepNoneOfTheirRequests(t *testing.T) {
	part := func(text string) string { // cut from a request line of a megabyte
		line := make([]byte, 1<<20)
		n := copy(line, text)
		return string(line)[:n]
	}
	db := sql.OpenDB(nowhere{})
	defer db.Close()
	log, err := audit.New(db, &audit.Options{Every: time.Hour, Logger: slog.New(slog.DiscardHandler)})
	require.NoError(t, err)
	p, err := policy.New(parsed(t, "rules: [{name: api, key: tenant, limit: blocked}]"), &policy.Options{OnDecision: log.OnDecision})
	require.NoError(t, err)
	of := audit.Of(log, "search", func(key string) string { return key })
	before := testsize.Heap()
	for range 2 {
		for i := range 100 {
			tenant := fmt.Sprint("tenant", i)
			p.Allow(policy.Attributes{"tenant": part(tenant), "user": part("ann"), "route": part("/v1"), "ip": part("192.0.2.1")}, 1)
			of(ratelimit.Event[string]{Key: part(tenant)})
		}
	}
	assert.Less(t, testsize.Heap()-before, int64(20<<20), "bytes for 200 rows")
	assert.GreaterOrEqual(t, log.Stats().Pending, 200) // more if a minute has begun in between
	require.Error(t, log.Close(t.Context()))
}
