package sqlsource_test

import (
	"context"
	"database/sql"
	"fmt"
	"log"
	"strings"
	"time"

	"github.com/weir-go/ratelimit/policy"
	"github.com/weir-go/ratelimit/policy/sqlsource"
)

func ExampleNew() {
	db, err := sql.Open("pgx", "postgres://app@db/app") // with your driver
	if err != nil {
		log.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	rules := sqlsource.New(db, &sqlsource.Options{Dialect: sqlsource.PostgreSQL})
	set, err := rules.Load(ctx) // a service without rules should not start
	if err != nil {
		log.Fatal(err)
	}
	policies, err := policy.New(set, nil)
	if err != nil {
		log.Fatal(err)
	}
	go policy.Follow(ctx, policies, rules)
}

func ExampleDialect_Migration() {
	for line := range strings.Lines(sqlsource.SQLite.Migration()) {
		if strings.HasPrefix(line, "CREATE TABLE") {
			fmt.Print(line)
		}
	}
	// Output:
	// CREATE TABLE rate_limit_counter (n INTEGER NOT NULL);
	// CREATE TABLE rate_limit_rule (
	// CREATE TABLE rate_limit_setting (
	// CREATE TABLE rate_limit_violation (
}
