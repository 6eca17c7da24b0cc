package sqllimit_test

import (
	"context"
	"database/sql"
	"fmt"
	"log"
	"strings"
	"time"

	"github.com/weir-go/ratelimit"
	"github.com/weir-go/ratelimit/lease"
	"github.com/weir-go/ratelimit/sqllimit"
)

// open stands for sql.Open with the driver and your database's address. Its clock shows noon of January 30th.
func open() *sql.DB {
	noon := time.Date(2027, 1, 30, 12, 0, 0, 0, time.UTC)
	return sqllimit.OpenFake(noon.UnixMicro)
}

func Example() {
	db := open()
	limit := ratelimit.Calendar(1000, ratelimit.Month("UTC", 1)).Named("calls")
	limiter, err := sqllimit.New(db, limit, nil)
	if err != nil {
		log.Fatal(err)
	}
	ctx := context.Background()
	for _, calls := range []int{900, 200, 100} {
		d, err := limiter.Take(ctx, "customer-42", calls)
		if err != nil {
			log.Fatal(err) // for example ratelimit.ErrUnavailable
		}
		fmt.Println(d.Allowed, d.Remaining, d.RetryAfter)
	}
	// Output:
	// true 100 0s
	// false 100 36h0m0s
	// true 0 0s
}

// A fleet without Redis: each process spends batches that it leases from one table, with few decisions in the database.
func Example_fleet() {
	db := open()
	limit := ratelimit.Calendar(30_000, ratelimit.Day("UTC")).Named("calls")
	var fleet []*lease.Limiter[string]
	for range 3 { // as three processes would
		shared, err := sqllimit.New(db, limit, nil)
		if err != nil {
			log.Fatal(err)
		}
		process, err := lease.New(shared, &lease.Options[string]{MaxBatch: 100})
		if err != nil {
			log.Fatal(err)
		}
		fleet = append(fleet, process)
	}
	granted := 0
	for range 20_000 {
		for _, process := range fleet {
			if process.Allow("customer-42", 1) {
				granted++
			}
		}
	}
	var trips uint64
	for _, process := range fleet {
		trips += process.Stats().RoundTrips
		if err := process.Flush(context.Background()); err != nil { // as at shutdown
			log.Fatal(err)
		}
	}
	fmt.Println(granted, "of 60000 granted, with fewer than 2000 decisions in the database:", trips < 2000)
	// Output: 30000 of 60000 granted, with fewer than 2000 decisions in the database: true
}

// Reserve an estimate, and settle the work's real cost.
func ExampleLimiter_Reserve() {
	limit := ratelimit.Calendar(10_000, ratelimit.Day("UTC")).Named("tokens")
	limiter, err := sqllimit.New(open(), limit, nil)
	if err != nil {
		log.Fatal(err)
	}
	ctx := context.Background()
	r, err := limiter.Reserve(ctx, "customer-42", 4000, 0)
	if err != nil || !r.Allowed {
		log.Fatal(err)
	}
	if err := r.Settle(2600); err != nil {
		log.Fatal(err)
	}
	d, err := limiter.Peek(ctx, "customer-42", 1)
	fmt.Println(d.Remaining, err)
	// Output: 7400 <nil>
}

// Each visits all processes' limited keys.
func ExampleLimiter_Each() {
	limiter, err := sqllimit.New(open(), ratelimit.FixedWindow(ratelimit.PerHour(10)).Named("exports"), nil)
	if err != nil {
		log.Fatal(err)
	}
	limiter.Allow("anna", 10)
	limiter.Allow("ben", 9)
	err = limiter.Each(context.Background(), func(key string, d ratelimit.Decision) bool {
		if !d.Allowed {
			fmt.Println(key, d.RetryAfter)
		}
		return true
	})
	fmt.Println(err)
	// Output:
	// anna 1h0m0s
	// <nil>
}

// Spending stays spent under another limit.
func ExampleLimiter_SetLimit() {
	limiter, err := sqllimit.New(open(), ratelimit.FixedWindow(ratelimit.PerHour(10)), &sqllimit.Options{Name: "exports"})
	if err != nil {
		log.Fatal(err)
	}
	limiter.Allow("anna", 8)
	if err := limiter.SetLimit(ratelimit.FixedWindow(ratelimit.PerHour(20))); err != nil {
		log.Fatal(err)
	}
	d, err := limiter.Peek(context.Background(), "anna", 1)
	fmt.Println(d.Remaining, err)
	// Output: 12 <nil>
}

// The table for a MariaDB database. Its limiters have the same Dialect in their Options.
func ExampleDialect() {
	var dialect sqllimit.Dialect = sqllimit.MySQL
	fmt.Println(strings.Count(sqllimit.Schema(dialect, ""), "INDEX"))
	// Output: 1
}

func ExampleSchema() {
	fmt.Print(strings.ReplaceAll(sqllimit.Schema(sqllimit.PostgreSQL, "billing.budgets"), "\t", "  "))
	// Output:
	// CREATE TABLE billing.budgets (
	//   key     bytea  PRIMARY KEY,
	//   at      bigint NOT NULL,
	//   state   bytea  NOT NULL,
	//   expires bigint NOT NULL
	// );
	// CREATE INDEX budgets_expires ON billing.budgets (expires);
}
