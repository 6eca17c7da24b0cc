package sqltest

import (
	"context"
	"database/sql"
	"fmt"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/weir-go/ratelimit"
	"github.com/weir-go/ratelimit/internal/proofs/internal/redisserver"
	"github.com/weir-go/ratelimit/redislimit"
	"github.com/weir-go/ratelimit/sqllimit"
)

// forUpdate decides as it is done by hand: the row is locked, read, written and committed.
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

// BenchmarkLimits measures 16 callers on a PostgreSQL server that syncs each commit to the disk, and on a Redis
// server, beside a transaction with SELECT … FOR UPDATE.
func BenchmarkLimits(b *testing.B) {
	server := startPostgresWith(b, "-c fsync=on")
	db := server.open(b)
	db.SetMaxOpenConns(20)
	db.SetMaxIdleConns(20)
	budgetTable(b, db)
	_, err := db.Exec("CREATE TABLE by_hand (key text PRIMARY KEY, spent bigint NOT NULL)")
	require.NoError(b, err)
	client := redisserver.Start(b)
	for _, test := range []struct {
		name string
		most int
		keys int64
	}{
		{"one key, allowed", 1 << 30, 1},
		{"1000 keys, allowed", 1 << 30, 1000},
		{"one key, denied", 1, 1},
	} {
		limit := ratelimit.TokenBucket(ratelimit.Per(test.most, 24*time.Hour), test.most).Named(fmt.Sprintf("b%d-%d", test.most, test.keys))
		sqlLimiter := limiterOn(b, db, limit, sqllimit.Options{})
		redisLimiter, err := redislimit.New(client, limit, &redislimit.Options{Timeout: time.Minute})
		require.NoError(b, err)
		byHand := &forUpdate{db, test.most}
		for _, engine := range []struct {
			name string
			take func(ctx context.Context, key string) (bool, error)
		}{
			{"SELECT FOR UPDATE", func(ctx context.Context, key string) (bool, error) { return byHand.take(ctx, limit.Name+key) }},
			{"sqllimit", func(ctx context.Context, key string) (bool, error) {
				d, err := sqlLimiter.Take(ctx, key, 1)
				return d.Allowed, err
			}},
			{"redislimit", func(ctx context.Context, key string) (bool, error) {
				d, err := redisLimiter.Take(ctx, key, 1)
				return d.Allowed, err
			}},
		} {
			b.Run(test.name+"/"+engine.name, func(b *testing.B) {
				var n, allowed atomic.Int64
				var wg sync.WaitGroup
				for range 16 {
					wg.Go(func() {
						for i := n.Add(1); i <= int64(b.N); i = n.Add(1) {
							ok, err := engine.take(context.Background(), fmt.Sprint(i%test.keys))
							if err != nil {
								b.Error(err)
								return
							}
							if ok {
								allowed.Add(1)
							}
						}
					})
				}
				wg.Wait()
				if test.most > 1 && allowed.Load() < int64(b.N) {
					b.Errorf("%d of %d were allowed", allowed.Load(), b.N)
				}
				b.ReportMetric(float64(b.N)/b.Elapsed().Seconds(), "decisions/s")
			})
		}
	}
}
