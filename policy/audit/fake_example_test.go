package audit_test

import (
	"context"
	"database/sql"
	"fmt"
	"log"
	"time"

	"github.com/weir-go/ratelimit"
	"github.com/weir-go/ratelimit/policy"
	"github.com/weir-go/ratelimit/policy/audit"
)

func ExampleNew() {
	var stored []string
	db := sql.OpenDB(paths{stored: &stored}) // in a service, use sql.Open after sqlsource's Migration
	defer db.Close()
	denials, err := audit.New(db, &audit.Options{Keep: 7 * 24 * time.Hour})
	if err != nil {
		log.Fatal(err)
	}
	set, err := policy.Parse([]byte("rules: [{name: api, key: user, limit: blocked}]"))
	if err != nil {
		log.Fatal(err)
	}
	policies, err := policy.New(set, &policy.Options{OnDecision: denials.OnDecision, ReuseRules: true})
	if err != nil {
		log.Fatal(err)
	}
	// logins has no rules
	logins, err := ratelimit.New(ratelimit.Blocked(), &ratelimit.Options[string]{
		OnDecision: audit.Of(denials, "logins", func(key string) string { return key }),
	})
	if err != nil {
		log.Fatal(err)
	}
	policies.Allow(policy.Attributes{"user": "ann"}, 1)
	policies.Allow(policy.Attributes{"user": "ann"}, 1)
	logins.Allow("bob", 1)

	ctx, cancel := context.WithTimeout(context.Background(), 5*time.Second)
	defer cancel()
	if err := denials.Close(ctx); err != nil { // writes the waiting rows
		log.Fatal(err)
	}
	fmt.Println(denials.Stats().Written, "denials written")
	// Output: 3 denials written
}

// Support can find the limited customers, one customer's history, and the rule with most denials.
func ExampleLog_Query() {
	db, err := sql.Open("pgx", "postgres://app@db/app") // use your own driver
	if err != nil {
		log.Fatal(err)
	}
	denials, err := audit.New(db, &audit.Options{Shadows: true})
	if err != nil {
		log.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	since := time.Now().Add(-24 * time.Hour)
	err = denials.Flush(ctx) // writes this process's denials of the last second
	if err != nil {
		log.Fatal(err)
	}
	keys, err := denials.Query(ctx, audit.Filter{Since: since, ByKey: true, Max: 20})
	if err != nil {
		log.Fatal(err)
	}
	for _, k := range keys {
		fmt.Println(k.Rule, k.Key, k.Count)
	}
	rows, err := denials.Query(ctx, audit.Filter{Since: since, Key: []string{"ann"}, Max: 20})
	if err != nil {
		log.Fatal(err)
	}
	for _, v := range rows {
		fmt.Println(v.Rule, v.Route, v.LastAt, v.Count)
	}
	rules, err := denials.Query(ctx, audit.Filter{Since: since, ByRule: true})
	if err != nil {
		log.Fatal(err)
	}
	would, err := denials.Query(ctx, audit.Filter{Since: since, Rule: "api-tighter", Shadows: true, ByKey: true, Max: 20})
	if err != nil {
		log.Fatal(err)
	}
	fmt.Println(rules, would)
}
