package sqltest

import (
	"bytes"
	"context"
	"crypto/hmac"
	"crypto/sha256"
	"database/sql"
	"encoding/hex"
	"fmt"
	"log/slog"
	"runtime"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/weir-go/ratelimit"
	"github.com/weir-go/ratelimit/policy"
	"github.com/weir-go/ratelimit/policy/audit"
	"github.com/weir-go/ratelimit/policy/sqlsource"
	"github.com/weir-go/ratelimit/sqllimit"
)

// sums returns denials like a query that adds up rows.
func sums(denials ...policy.Denials) (all []audit.Violation) {
	for _, d := range denials {
		all = append(all, audit.Violation{Denials: d})
	}
	return all
}

// audited returns policies and their log. Their one rule denies after 2 requests of a user an hour.
func audited(t *testing.T, db *sql.DB, opts audit.Options) (*policy.Policies, *audit.Log) {
	t.Helper()
	if opts.Logger == nil {
		opts.Logger = slog.New(slog.DiscardHandler)
	}
	if opts.Timeout == 0 {
		opts.Timeout = time.Minute // longer than any busy machine takes
	}
	log, err := audit.New(db, &opts)
	require.NoError(t, err)
	p, err := policy.New(&policy.Set{Rules: []policy.Rule{
		{Name: "api", Key: []string{"user"}, Limit: ratelimit.FixedWindow(ratelimit.PerHour(2))},
		{Name: "quiet", Limit: ratelimit.FixedWindow(ratelimit.PerHour(1)), Shadow: true},
	}}, &policy.Options{OnDecision: log.OnDecision})
	require.NoError(t, err)
	return p, log
}

func request(user string) policy.Attributes {
	return policy.Attributes{"user": user, "ip": "192.0.2.7", "method": "GET", "path": "/a"}
}

// count counts a key's denials in the database.
func count(t *testing.T, db *sql.DB, where string) (n int) {
	t.Helper()
	require.NoError(t, db.QueryRow(`SELECT COALESCE(SUM(count), 0) FROM rate_limit_violation `+where).Scan(&n))
	return n
}

func TestDenialsAreCountedByRuleKeyAndMinute(t *testing.T) {
	for name, d := range databases() {
		t.Run(name, func(t *testing.T) {
			db := d.migrated(t)
			p, log := audited(t, db, audit.Options{Dialect: d.dialect, Every: time.Hour})
			for range 7 {
				p.Allow(request("ann"), 1)
			}
			p.Allow(request("bob"), 3)      // above the capacity, so it can never pass
			p.Allow(policy.Attributes{}, 1) // an error, and no denial
			require.NoError(t, log.Flush(t.Context()))
			for range 3 {
				p.Allow(request("ann"), 1)
			}
			require.NoError(t, log.Close(t.Context()))

			assert.Equal(t, 8, count(t, db, d.sql(`WHERE key = 'ann'`)))
			assert.Equal(t, 1, count(t, db, d.sql(`WHERE key = 'bob'`)))
			assert.Equal(t, 9, count(t, db, `WHERE rule = 'api'`), "shadow rules deny nothing")
			var user, route, ip string
			var cost, remaining int
			var retry float64
			require.NoError(t, db.QueryRow(d.sql(`SELECT "user", route, ip, cost, remaining, retry_after FROM rate_limit_violation WHERE key = 'ann'`)).
				Scan(&user, &route, &ip, &cost, &remaining, &retry))
			assert.Equal(t, []any{"ann", "GET /a", "192.0.2.7", 1, 0}, []any{user, route, ip, cost, remaining})
			assert.InDelta(t, 3600, retry, 60)
			s := log.Stats()
			assert.Equal(t, []uint64{9, 9, 0}, []uint64{s.Denials, s.Written, s.Dropped})
		})
	}
}

func TestAWaitThatGivesUpIsInTheAudit(t *testing.T) {
	db := database{sqlsource.SQLite, openSQLite}.migrated(t)
	p, log := audited(t, db, audit.Options{Dialect: sqlsource.SQLite, Every: time.Hour})
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	require.NoError(t, p.Wait(ctx, request("ann"), 2))
	require.ErrorIs(t, p.Wait(ctx, request("ann"), 1), context.DeadlineExceeded)
	cancel()
	require.ErrorIs(t, p.Wait(ctx, request("ann"), 1), context.Canceled, "no rule has denied that")
	require.NoError(t, log.Close(t.Context()))
	assert.Equal(t, 1, count(t, db, `WHERE key = 'ann' AND rule = 'api'`))
	assert.Equal(t, 1, count(t, db, ""))
}

// TestTheAuditAnswersQuestions lists the keys limited now, a key's history,
// and each rule's denials. Then time passes, and old rows are deleted.
func TestTheAuditAnswersQuestions(t *testing.T) {
	for name, d := range databases() {
		t.Run(name, func(t *testing.T) {
			db := d.migrated(t)
			secret := []byte("pepper")
			for _, hashed := range [][]byte{nil, secret} {
				_, err := db.Exec(`DELETE FROM rate_limit_violation`)
				require.NoError(t, err)
				p, log := audited(t, db, audit.Options{Dialect: d.dialect, Every: time.Hour, HashKey: hashed, Keep: 24 * time.Hour})
				for i, user := range []string{"ann", "bob", "cleo"} {
					for range 3 + i {
						p.Allow(request(user), 1)
					}
				}
				l := ratelimit.Must(ratelimit.New(ratelimit.FixedWindow(ratelimit.PerHour(1)), &ratelimit.Options[int]{
					OnDecision: audit.Of(log, "exports", func(id int) string { return fmt.Sprint("id", id) }),
				}))
				for range 6 {
					l.Allow(7, 1)
				}
				l.Allow(8, 2)
				require.NoError(t, log.Flush(t.Context()))

				stored := func(key string) string {
					if hashed == nil {
						return key
					}
					return hashOf(hashed, key)
				}
				since := time.Now().Add(-time.Hour)
				top, err := log.Query(t.Context(), audit.Filter{ByKey: true, Since: since, Max: 3})
				require.NoError(t, err)
				assert.Equal(t, sums(policy.Denials{Rule: "exports", Key: stored("id7"), Count: 5}, policy.Denials{Rule: "api", Key: stored("cleo"), Count: 3}, policy.Denials{Rule: "api", Key: stored("bob"), Count: 2}), top)
				rules, err := log.Query(t.Context(), audit.Filter{ByRule: true, Since: since, Until: time.Now().Add(time.Hour)})
				require.NoError(t, err)
				assert.Equal(t, sums(policy.Denials{Rule: "api", Count: 6}, policy.Denials{Rule: "exports", Count: 6}), rules)
				one, err := log.Query(t.Context(), audit.Filter{ByRule: true, Rule: "api"})
				require.NoError(t, err)
				assert.Equal(t, rules[:1], one, "without an instant")
				none, err := log.Query(t.Context(), audit.Filter{Until: since})
				require.NoError(t, err)
				assert.Empty(t, none)
				none, err = log.Query(t.Context(), audit.Filter{Shadows: true})
				require.NoError(t, err)
				assert.Empty(t, none, "none is a shadow")
				rows, err := log.Query(t.Context(), audit.Filter{Key: []string{"bob"}, Since: since})
				require.NoError(t, err)
				require.NotEmpty(t, rows) // two if a minute has begun in between
				assert.Equal(t, "api", rows[0].Rule)
				assert.Equal(t, "GET "+stored("/a"), rows[0].Route)
				assert.Positive(t, rows[0].RetryAfter)
				assert.WithinDuration(t, time.Now(), rows[0].LastAt, time.Minute)
				none, err = log.Query(t.Context(), audit.Filter{Key: []string{"nobody"}, Since: since})
				require.NoError(t, err)
				assert.Empty(t, none)
				latest, err := log.Query(t.Context(), audit.Filter{Max: 1})
				require.NoError(t, err)
				assert.Len(t, latest, 1)
				_, err = log.Query(t.Context(), audit.Filter{Max: -1})
				require.EqualError(t, err, "policy/audit: Filter.Max is -1, want 0 for the default, or more")
				_, err = log.Query(t.Context(), audit.Filter{ByKey: true, ByRule: true})
				require.ErrorContains(t, err, "both ByKey and ByRule")

				for i := range 2100 {
					at := time.Now().Add(-25*time.Hour - time.Duration(i)*time.Second).UTC()
					places := []any{fmt.Sprint("old", i), at, at, at}
					statement := `INSERT INTO rate_limit_violation (rule, key, minute, cost, remaining, retry_after, first_at, last_at, count) VALUES ('api', $1, $2, 1, 0, 1, $3, $4, 1)`
					if hashed == nil && i < 3 || hashed != nil {
						_, err := db.Exec(d.sql(statement), places...)
						require.NoError(t, err)
					}
					if hashed != nil && d.dialect == sqllimit.PostgreSQL && i == 50 {
						break // one batch is enough for this database
					}
				}
				require.NoError(t, log.Close(t.Context()))
				_, sweeping := audited(t, db, audit.Options{Dialect: d.dialect, Every: time.Millisecond, Keep: 24 * time.Hour})
				assert.Eventually(t, func() bool { return count(t, db, d.sql(`WHERE key LIKE 'old%'`)) == 0 }, 30*time.Second, 5*time.Millisecond)
				require.NoError(t, sweeping.Close(t.Context()))
				assert.Equal(t, 12, count(t, db, ""), "what is less than a day old stays")
			}
		})
	}
}

// TestAFloodOfKeysMakesFewRows denies more keys in a minute than the table may have rows.
func TestAFloodOfKeysMakesFewRows(t *testing.T) {
	db := database{sqlsource.SQLite, openSQLite}.migrated(t)
	p, log := audited(t, db, audit.Options{Dialect: sqlsource.SQLite, Every: time.Hour, MaxRows: 5})
	for i := range 100 {
		for range 4 {
			p.Allow(request(fmt.Sprint("user", i)), 1)
		}
		if i%10 == 0 {
			require.NoError(t, log.Flush(t.Context()))
		}
	}
	require.NoError(t, log.Close(t.Context()))
	assert.Equal(t, 200, count(t, db, ""), "all are counted")
	var rows int
	require.NoError(t, db.QueryRow(`SELECT COUNT(*) FROM rate_limit_violation`).Scan(&rows))
	assert.LessOrEqual(t, rows, 2*(5+1), "in one minute, or two")
	assert.GreaterOrEqual(t, count(t, db, `WHERE key = ''`), 180)
}

func TestKeysOfAnyKindAreWritten(t *testing.T) {
	for name, d := range databases() {
		t.Run(name, func(t *testing.T) {
			db := d.migrated(t)
			p, log := audited(t, db, audit.Options{Dialect: d.dialect, Every: time.Hour})
			for _, user := range []string{"a\x00b", "\xff\xfe", strings.Repeat("é", 500), "'; DROP TABLE rate_limit_rule; --", "日本"} {
				r := request(user)
				r["ip"] = strings.Repeat(user, 96) // the program may have put any text there
				for range 3 {
					p.Allow(r, 1)
				}
			}
			require.NoError(t, log.Close(t.Context()))
			assert.Zero(t, log.Stats().Dropped)
			assert.Equal(t, 5, count(t, db, ""))
			assert.Equal(t, 1, count(t, db, d.sql(`WHERE key LIKE 'sha256:%'`)))
		})
	}
}

func TestHashedKeysCanBeLookedUp(t *testing.T) {
	for name, d := range databases() {
		t.Run(name, func(t *testing.T) {
			db := d.migrated(t)
			secret := []byte("pepper")
			p, log := audited(t, db, audit.Options{Dialect: d.dialect, Every: time.Hour, HashKey: secret})
			for range 3 {
				p.Allow(request("ann"), 1)
			}
			require.NoError(t, log.Close(t.Context()))
			assert.Zero(t, count(t, db, d.sql(`WHERE key = 'ann' OR "user" = 'ann' OR ip LIKE '192%'`)))
			assert.Equal(t, 1, count(t, db, d.sql(`WHERE key = '`+hashOf(secret, "ann")+`'`)))
		})
	}
}

// TestAFloodWhileTheDatabaseStopsAndStarts denies many keys from many goroutines while the server
// is killed and comes back. No decision fails, and every denial is written or counted as dropped.
func TestAFloodWhileTheDatabaseStopsAndStarts(t *testing.T) {
	server := startPostgres(t)
	db := server.open(t)
	migrate(t, db, sqllimit.PostgreSQL)
	var logged bytes.Buffer
	p, log := audited(t, db, audit.Options{
		Every: 20 * time.Millisecond, MaxPending: 50, Timeout: 20 * time.Second, Logger: slog.New(slog.NewTextHandler(&logged, nil)),
	})
	var wg sync.WaitGroup
	stop := make(chan struct{})
	for g := range 16 {
		wg.Go(func() {
			for i := 0; ; i++ {
				select {
				case <-stop:
					return
				default:
					p.Allow(request(fmt.Sprint((i+g)%100)), 1)
					if i%100 == 99 {
						runtime.Gosched()
					}
				}
			}
		})
	}
	soon(t, func() bool { return log.Stats().Written > 0 }, "denials are written")
	server.stop(t)
	soon(t, func() bool { return log.Stats().LastError != nil && log.Stats().Dropped > 0 }, "the queue is full, and what comes beyond is dropped")
	assert.LessOrEqual(t, log.Stats().Pending, 50)
	server.start(t)
	before := log.Stats().Written
	soon(t, func() bool { return log.Stats().Written > before && log.Stats().LastError == nil }, "denials are written again")
	close(stop)
	wg.Wait()
	require.NoError(t, log.Close(t.Context()))
	s := log.Stats()
	assert.Equal(t, s.Denials, s.Written+s.Dropped, "nothing is lost without being counted")
	assert.GreaterOrEqual(t, count(t, server.open(t), ""), int(s.Written), "a commit whose answer was lost may count twice")
	assert.Contains(t, logged.String(), "denials could not be written")
}

func TestARowThatIsRefusedDoesNotHoldUpTheOthers(t *testing.T) {
	db := openPostgres(t)
	migrate(t, db, sqllimit.PostgreSQL)
	_, err := db.Exec(`ALTER TABLE rate_limit_violation ADD CHECK (key <> 'mallory')`)
	require.NoError(t, err)
	p, log := audited(t, db, audit.Options{Every: time.Hour})
	for _, user := range []string{"ann", "mallory", "zoe"} {
		for range 3 {
			p.Allow(request(user), 1)
		}
	}
	require.NoError(t, log.Close(t.Context()))
	assert.Equal(t, 2, count(t, db, ""))
	s := log.Stats()
	assert.Equal(t, []uint64{3, 2, 1}, []uint64{s.Denials, s.Written, s.Dropped})
}

func TestNothingIsDroppedWhileTheTableIsMissing(t *testing.T) {
	db := openPostgres(t)
	p, log := audited(t, db, audit.Options{Every: time.Hour})
	for _, user := range []string{"ann", "bob"} {
		for range 3 {
			p.Allow(request(user), 1)
		}
	}
	require.Error(t, log.Flush(t.Context()))
	assert.Equal(t, 2, log.Stats().Pending)
	migrate(t, db, sqllimit.PostgreSQL)
	require.NoError(t, log.Close(t.Context()))
	assert.Equal(t, 2, count(t, db, ""))
}

func TestCloseEndsTheGoroutineAndIsBounded(t *testing.T) {
	db := openSQLite(t)
	before := runtime.NumGoroutine()
	for range 20 {
		p, log := audited(t, db, audit.Options{Dialect: sqlsource.SQLite})
		for range 3 {
			p.Allow(request("ann"), 1)
		}
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		require.Error(t, log.Close(ctx), "there are no tables")
		cancel()
		p.Allow(request("ann"), 1)
		s := log.Stats()
		assert.Equal(t, []any{uint64(2), uint64(2), 0}, []any{s.Denials, s.Dropped, s.Pending})
		require.NoError(t, log.Close(t.Context()), "to close twice does nothing")
	}
	soon(t, func() bool { return runtime.NumGoroutine() < before+10 }, "no goroutine is left")
}

func TestBadAuditOptions(t *testing.T) {
	_, err := audit.New(nil, nil)
	require.ErrorContains(t, err, "db is nil")
	for want, o := range map[string]audit.Options{
		"policy/audit: Options.Dialect is 7, want PostgreSQL, MySQL or SQLite":    {Dialect: 7},
		"policy/audit: Options.MaxPending is -1, want 0 for the default, or more": {MaxPending: -1},
		"policy/audit: Options.MaxRows is -1, want 0 for the default, or more":    {MaxRows: -1},
		"policy/audit: Options.Every is -1s, want 0 for the default, or more":     {Every: -time.Second},
		"policy/audit: Options.Timeout is -1ns, want 0 for the default, or more":  {Timeout: -1},
	} {
		_, err = audit.New(openSQLite(t), &o)
		require.EqualError(t, err, want)
	}
}

func TestWhomAShadowWouldHaveDenied(t *testing.T) {
	for name, d := range databases() {
		t.Run(name, func(t *testing.T) {
			db := d.migrated(t)
			p, log := audited(t, db, audit.Options{Dialect: d.dialect, Every: time.Hour, Shadows: true})
			set := *p.Current()
			set.Rules = append(set.Rules, policy.Rule{Name: "trial", Key: []string{"user"}, Limit: ratelimit.FixedWindow(ratelimit.PerHour(1)), Shadow: true})
			require.NoError(t, p.Update(&set))
			since := time.Now().Add(-time.Minute)
			for range 4 {
				p.Allow(request("ann"), 1) // two are allowed; the trial denies the second one, and then all
			}
			p.Allow(request("bob"), 1)
			require.NoError(t, log.Close(t.Context()))
			would, err := log.Query(t.Context(), audit.Filter{Rule: "trial", Shadows: true, ByKey: true, Since: since})
			require.NoError(t, err)
			assert.Equal(t, sums(policy.Denials{Rule: "trial", Key: "ann", Count: 3, Shadow: true}), would)
			all, err := log.Query(t.Context(), audit.Filter{Shadows: true, ByKey: true})
			require.NoError(t, err)
			assert.Subset(t, all, would)
			for _, v := range all {
				assert.True(t, v.Shadow, v.Rule)
			}
			limited, err := log.Query(t.Context(), audit.Filter{ByKey: true, Since: since})
			require.NoError(t, err)
			assert.Subset(t, limited, sums(policy.Denials{Rule: "api", Key: "ann", Count: 2}))
			assert.Subset(t, limited, would)
			rules, err := log.Query(t.Context(), audit.Filter{ByRule: true, Since: since})
			require.NoError(t, err)
			assert.Subset(t, rules, sums(policy.Denials{Rule: "quiet", Count: 4, Shadow: true}))
			assert.Equal(t, 3, count(t, db, `WHERE rule = 'shadow:trial'`))
		})
	}
}

// hashOf returns the text stored by the audit for a key under a HashKey.
func hashOf(hashKey []byte, key string) string {
	h := hmac.New(sha256.New, hashKey)
	h.Write([]byte(key))
	return hex.EncodeToString(h.Sum(nil))[:32]
}
