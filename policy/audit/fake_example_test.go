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
	db := sql.OpenDB(paths{stored: &stored}) // in a service: sql.Open, after sqlsource's Migration
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
	// A limiter without rules.
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
	if err := denials.Close(ctx); err != nil { // writes what waits
		log.Fatal(err)
	}
	fmt.Println(denials.Stats().Written, "denials written")
	// Output: 3 denials written
}
