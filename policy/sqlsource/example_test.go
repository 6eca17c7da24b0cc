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
	"github.com/weir-go/ratelimit/sqllimit"
)

func ExampleNew() {
	db, err := sql.Open("pgx", "postgres://app@db/app") // use your own driver
	if err != nil {
		log.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	rules := sqlsource.New(db, &sqlsource.Options{Dialect: sqllimit.PostgreSQL})
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

func ExampleMigration() {
	for _, statement := range sqlsource.Migration(sqlsource.SQLite) { // pass each to db.ExecContext
		line, _, _ := strings.Cut(statement, "\n")
		fmt.Println(line)
	}
	// Output:
	// CREATE TABLE rate_limit_counter (n INTEGER NOT NULL);
	// INSERT INTO rate_limit_counter VALUES (0);
	// CREATE TABLE rate_limit_rule (
	// CREATE TRIGGER rate_limit_rule_insert AFTER INSERT ON rate_limit_rule BEGIN
	// CREATE TRIGGER rate_limit_rule_update AFTER UPDATE OF name, plan, description, match_route, match_attributes, match_more, allow, key, "limit",
	// CREATE TABLE rate_limit_setting (
	// CREATE TABLE rate_limit_violation (
	// CREATE INDEX rate_limit_violation_last ON rate_limit_violation (last_at);      -- who is being limited now
	// CREATE INDEX rate_limit_violation_key ON rate_limit_violation (key, last_at);  -- what happened to this key
}
