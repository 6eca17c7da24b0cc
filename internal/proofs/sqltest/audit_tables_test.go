package sqltest

import (
	"context"
	"database/sql"
	"fmt"
	"log/slog"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/weir-go/ratelimit/policy"
	"github.com/weir-go/ratelimit/policy/audit"
	"github.com/weir-go/ratelimit/policy/sqlsource"
	"github.com/weir-go/ratelimit/sqllimit"
)

// In a partitioned table, all partitions' first rows have the same ctid.
func TestTheSweepOfAPartitionedTableKeepsCurrentRows(t *testing.T) {
	db := openPostgres(t)
	migrate(t, db, sqllimit.PostgreSQL)
	for _, statement := range []string{
		`ALTER TABLE rate_limit_violation RENAME TO plain`,
		`CREATE TABLE rate_limit_violation (LIKE plain INCLUDING DEFAULTS, PRIMARY KEY (rule, key, minute)) PARTITION BY RANGE (minute)`,
		`CREATE TABLE old PARTITION OF rate_limit_violation FOR VALUES FROM (MINVALUE) TO ('2020-01-01')`,
		`CREATE TABLE new PARTITION OF rate_limit_violation FOR VALUES FROM ('2020-01-01') TO (MAXVALUE)`,
		`INSERT INTO rate_limit_violation (rule, key, minute, cost, remaining, retry_after, first_at, last_at, count)
			SELECT 'api', 'old' || i, '2019-01-01', 1, 0, 1, '2019-01-01', '2019-01-01', 1 FROM generate_series(1, 1500) i`,
		`INSERT INTO rate_limit_violation (rule, key, minute, cost, remaining, retry_after, first_at, last_at, count)
			SELECT 'api', 'new' || i, now(), 1, 0, 1, now(), now(), 1 FROM generate_series(1, 1500) i`,
	} {
		_, err := db.Exec(statement)
		require.NoError(t, err, statement)
	}
	_, sweeping := audited(t, db, audit.Options{Every: time.Millisecond})
	soon(t, func() bool { return count(t, db, `WHERE key LIKE 'old%'`) == 0 }, "old rows are deleted")
	require.NoError(t, sweeping.Close(t.Context()))
	assert.Equal(t, 1500, count(t, db, ""))
}

// openPlainMariaDB opens a new database with only these options, as a program does, so without several statements at once.
func openPlainMariaDB(t *testing.T, options string) *sql.DB {
	t.Helper()
	m := mariaDB(t)
	name := fmt.Sprint("test", m.databases.Add(1))
	m.client(t, "", "CREATE DATABASE "+name)
	db, err := sql.Open("mysql", "root@unix("+m.socket()+")/"+name+"?parseTime=true"+options)
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, db.Close()) })
	return db
}

func TestTheMigrationForMySQLRunsOneByOneAndInItsClient(t *testing.T) {
	db := openPlainMariaDB(t, "")
	migrate(t, db, sqllimit.MySQL)
	for i := range 3 {
		_, err := db.Exec("INSERT INTO rate_limit_rule (name, `limit`) VALUES (?, 'blocked')", fmt.Sprint("r", i))
		require.NoError(t, err)
	}
	_, err := db.Exec("UPDATE rate_limit_rule SET shadow = true WHERE name <> 'r0'")
	require.NoError(t, err)
	var versions string
	require.NoError(t, db.QueryRow("SELECT GROUP_CONCAT(version ORDER BY name) FROM rate_limit_rule").Scan(&versions))
	assert.Equal(t, "1,4,5", versions)

	m := mariaDB(t)
	m.client(t, "", "CREATE DATABASE by_hand")
	for _, statement := range sqlsource.Migration(sqllimit.MySQL) {
		m.client(t, "by_hand", statement)
	}
}

func TestTextsThatDifferInSpacesAtTheirEndAreTwo(t *testing.T) {
	for name, d := range databases() {
		t.Run(name, func(t *testing.T) {
			db := d.migrated(t)
			p, log := audited(t, db, audit.Options{Dialect: d.dialect, Every: time.Hour})
			for _, user := range []string{"acme", "acme ", "acme  "} {
				for range 3 {
					p.Allow(request(user), 1)
				}
			}
			require.NoError(t, log.Flush(t.Context()))
			for _, user := range []string{"acme", "acme ", "acme  "} {
				rows, err := log.Query(t.Context(), audit.Filter{Key: []string{user}, Since: time.Now().Add(-time.Hour)})
				require.NoError(t, err)
				require.NotEmpty(t, rows)
				assert.Equal(t, user, rows[0].Key)
				assert.Equal(t, user, rows[0].User)
			}
			limited, err := log.Query(t.Context(), audit.Filter{ByKey: true, Since: time.Now().Add(-time.Hour)})
			require.NoError(t, err)
			assert.Len(t, limited, 3)
			require.NoError(t, log.Close(t.Context()))

			for _, plan := range []string{"", "pro", "pro "} {
				_, err := db.Exec(d.sql(`INSERT INTO rate_limit_rule (name, plan, "limit") VALUES ('api', '` + plan + `', 'blocked')`))
				require.NoError(t, err)
			}
			set, err := sqlsource.New(db, &sqlsource.Options{Dialect: d.dialect, Timeout: time.Minute}).Load(t.Context())
			require.NoError(t, err)
			assert.Len(t, set.Rules[0].Plans, 2)
		})
	}
}

// Without autocommit, a session reads one state of the database until its transaction ends.
func TestWithoutAutocommitRulesAreFollowedAndOldRowsDeleted(t *testing.T) {
	db := openPlainMariaDB(t, "&autocommit=0")
	migrate(t, db, sqllimit.MySQL)
	write := func(statement string) {
		tx, err := db.Begin()
		require.NoError(t, err)
		_, err = tx.Exec(statement)
		require.NoError(t, err)
		require.NoError(t, tx.Commit())
	}
	write("INSERT INTO rate_limit_rule (name, `limit`) VALUES ('api', 'fixed-window 1/h')")
	p, err := policy.New(nil, &policy.Options{Logger: slog.New(slog.DiscardHandler)})
	require.NoError(t, err)
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error)
	go func() {
		done <- policy.Follow(ctx, p, sqlsource.New(db, &sqlsource.Options{Dialect: sqllimit.MySQL, Poll: 10 * time.Millisecond, Timeout: time.Minute}))
	}()
	for units := 2; units < 6; units++ {
		write(fmt.Sprintf("UPDATE rate_limit_rule SET `limit` = 'fixed-window %d/h'", units))
		soon(t, func() bool { r := p.Current().Rules; return len(r) == 1 && r[0].Limit.Rate.Units == units }, "the change is in force")
	}
	cancel()
	require.ErrorIs(t, <-done, context.Canceled)

	write("INSERT INTO rate_limit_violation (rule, `key`, minute, cost, remaining, retry_after, first_at, last_at, count) VALUES ('api', 'old', '2019-01-01', 1, 0, 1, '2019-01-01', '2019-01-01', 1)")
	_, log := audited(t, db, audit.Options{Dialect: sqllimit.MySQL, Every: 10 * time.Millisecond})
	var name string
	require.NoError(t, db.QueryRow("SELECT DATABASE()").Scan(&name))
	other, err := sql.Open("mysql", mariaDB(t).dsn(name))
	require.NoError(t, err)
	defer other.Close()
	soon(t, func() bool { return count(t, other, "") == 0 }, "the deletion is committed")
	require.NoError(t, log.Close(t.Context()))
}

// A server with a binary log of statements accepts writes at
// REPEATABLE READ, its default, and refuses them at READ COMMITTED.
func TestWithABinaryLogOfStatementsTheAuditWritesOrNamesTheSetting(t *testing.T) {
	db := openPlainMariaDB(t, "&binlog_format=%27STATEMENT%27")
	migrate(t, db, sqllimit.MySQL)
	_, err := db.Exec("INSERT INTO rate_limit_violation (rule, `key`, minute, cost, remaining, retry_after, first_at, last_at, count) VALUES ('api', 'old', '2019-01-01', 1, 0, 1, '2019-01-01', '2019-01-01', 1)")
	require.NoError(t, err)
	p, log := audited(t, db, audit.Options{Dialect: sqllimit.MySQL, Every: 10 * time.Millisecond})
	for range 5 {
		p.Allow(request("ann"), 1)
	}
	require.NoError(t, log.Flush(t.Context()))
	soon(t, func() bool { return count(t, db, "WHERE `key` = 'old'") == 0 }, "the old row is deleted")
	assert.Equal(t, 3, count(t, db, "WHERE `key` = 'ann'"))
	require.NoError(t, log.Close(t.Context()))

	var name string
	require.NoError(t, db.QueryRow("SELECT DATABASE()").Scan(&name))
	refusing, err := sql.Open("mysql", mariaDB(t).dsn(name)+"&binlog_format=%27STATEMENT%27&tx_isolation=%27READ-COMMITTED%27")
	require.NoError(t, err)
	defer refusing.Close()
	p, log = audited(t, refusing, audit.Options{Dialect: sqllimit.MySQL, Every: time.Hour})
	for range 5 {
		p.Allow(request("bob"), 1)
	}
	err = log.Flush(t.Context())
	require.ErrorContains(t, err, "BINLOG_FORMAT = STATEMENT")
	assert.ErrorContains(t, err, "READ COMMITTED")
	assert.ErrorContains(t, log.Close(t.Context()), "BINLOG_FORMAT = STATEMENT")
}
