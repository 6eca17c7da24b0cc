package policysql_test

import (
	"context"
	"database/sql"
	"database/sql/driver"
	"errors"
	"fmt"
	"log"

	"github.com/weir-go/ratelimit/policy"
	"github.com/weir-go/ratelimit/policy/policysql"
	"github.com/weir-go/ratelimit/sqllimit"
)

// A monthly quota in PostgreSQL survives a deploy. The database needs the table of sqllimit.Schema.
func Example() {
	db, err := sql.Open("pgx", "postgres://localhost/shop") // with import _ "github.com/jackc/pgx/v5/stdlib"
	if err != nil {
		log.Fatal(err)
	}
	set, err := policy.Parse([]byte("rules:\n- {name: quota, key: user, limit: calendar 10000/month UTC, plans: {pro: calendar 1000000/month UTC}}\n"))
	if err != nil {
		log.Fatal(err)
	}
	policies, err := policy.New(set, &policy.Options{Engine: policysql.New(db, nil)})
	if err != nil {
		log.Fatal(err)
	}
	d, err := policies.Take(context.Background(), policy.Attributes{"user": "ann", "plan": "pro"}, 1)
	fmt.Println(d.Allowed, d.Remaining, err)
}

// nowhere is a database refusing connections.
type nowhere struct{}

func (nowhere) Connect(context.Context) (driver.Conn, error) { return nil, errors.New("no database") }
func (nowhere) Driver() driver.Driver                        { return nil }

// Check finds limits that a database cannot count. It needs no connection.
func ExampleNew_check() {
	db := sql.OpenDB(nowhere{})
	defer db.Close()
	_, errs := policy.Check([]byte("rules:\n- {name: codes, key: user, limit: sliding-log 50000/d}\n"), policysql.New(db, &sqllimit.Options{Dialect: sqllimit.MySQL}))
	for _, err := range errs {
		fmt.Println(err)
	}
	// Output:
	// policy: line 2: rule "codes": rules[0].limit: sqllimit: ratelimit: invalid limit: Rate.Units is 50000, want at most 10000 for a sliding log, which is stored in one row
}
