package sqltest

import (
	"context"
	"database/sql"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/weir-go/ratelimit/internal/proofs/internal/callers"
	"github.com/weir-go/ratelimit/sqllimit"
)

// forUpdate decides as programs do by hand: it locks the row, reads it, writes it and commits.
type forUpdate struct {
	db   *sql.DB
	most int
}

func (f *forUpdate) take(ctx context.Context, key string) (allowed bool, err error) {
	tx, err := f.db.BeginTx(ctx, nil)
	if err != nil {
		return false, err
	}
	defer tx.Rollback()
	var spent int
	switch err = tx.QueryRowContext(ctx, "SELECT spent FROM by_hand WHERE key = $1 FOR UPDATE", key).Scan(&spent); {
	case err == sql.ErrNoRows:
		if _, err = tx.ExecContext(ctx, "INSERT INTO by_hand VALUES ($1, 1) ON CONFLICT (key) DO UPDATE SET spent = by_hand.spent + 1", key); err != nil {
			return false, err
		}
		return true, tx.Commit()
	case err != nil:
		return false, err
	case spent >= f.most:
		return false, nil
	}
	if _, err = tx.ExecContext(ctx, "UPDATE by_hand SET spent = spent + 1 WHERE key = $1", key); err != nil {
		return false, err
	}
	return true, tx.Commit()
}

// BenchmarkLimits measures 16 callers on a PostgreSQL server that syncs each commit to the disk, and compares
// a transaction with SELECT … FOR UPDATE. Package benchmarks has a benchmark of the same name for redislimit.
func BenchmarkLimits(b *testing.B) {
	server := startPostgresWith(b, "-c fsync=on")
	db := server.open(b)
	db.SetMaxOpenConns(20)
	db.SetMaxIdleConns(20)
	budgetTable(b, db)
	_, err := db.Exec("CREATE TABLE by_hand (key text PRIMARY KEY, spent bigint NOT NULL)")
	require.NoError(b, err)
	for _, c := range callers.Cases() {
		l := limiterOn(b, db, c.Limit, sqllimit.Options{})
		byHand := &forUpdate{db, c.Limit.Capacity()}
		c.Measure(b, "SELECT FOR UPDATE", func(ctx context.Context, key string) (bool, error) { return byHand.take(ctx, c.Limit.Name+key) })
		c.Measure(b, "sqllimit", func(ctx context.Context, key string) (bool, error) {
			d, err := l.Take(ctx, key, 1)
			return d.Allowed, err
		})
	}
}
