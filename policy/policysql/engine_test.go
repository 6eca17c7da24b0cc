package policysql_test

import (
	"cmp"
	"database/sql"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/weir-go/ratelimit"
	"github.com/weir-go/ratelimit/policy"
	"github.com/weir-go/ratelimit/policy/policysql"
	"github.com/weir-go/ratelimit/sqllimit"
)

// TestOptionsAndLimitsThatADatabaseCannotHaveAreErrors checks New and Check. Neither of them calls the database.
func TestOptionsAndLimitsThatADatabaseCannotHaveAreErrors(t *testing.T) {
	db := sql.OpenDB(nowhere{})
	t.Cleanup(func() { db.Close() })
	const good = "rules: [{name: api, key: user, limit: fixed-window 9/d}]"
	for _, c := range []struct {
		rules string
		db    *sql.DB
		opts  *sqllimit.Options
		want  string
	}{
		{good, db, nil, ""},
		{good, db, &sqllimit.Options{Name: "billing", Dialect: sqllimit.MySQL}, ""},
		{good, nil, nil, "db is nil"},
		{good, db, &sqllimit.Options{Name: "a:b"}, `Options.Name is "a:b.api", want no colon in it`},
		{good, db, &sqllimit.Options{Table: "1"}, `Options.Table is "1"`},
		{good, db, &sqllimit.Options{LimitFor: func(string) ratelimit.Limit { return ratelimit.Limit{} }}, "Options.LimitFor is not nil"},
		{"rules: [{name: api, key: user, limit: sliding-log 1000000/d}]", db, nil, "Rate.Units is 1000000"},
		{"rules: [{name: api, key: user, limit: fixed-window 9/d, plans: {pro: sliding-log 1000000/d}}]", db, nil, "Rate.Units is 1000000"},
		{"rules: [{name: up, key: user, limit: token-bucket 9/s burst 9, share: 3}]", db, nil, "rules[0].share: policysql: share is 3"},
	} {
		engine := policysql.New(c.db, c.opts)
		set, all := policy.Check([]byte(c.rules), engine)
		parsed, err := policy.Parse([]byte(c.rules))
		require.NoError(t, err)
		_, err = policy.New(parsed, &policy.Options{Engine: engine})
		if c.want == "" {
			require.NotNil(t, set)
			require.NoError(t, err)
			continue
		}
		require.Nil(t, set)
		assert.ErrorContains(t, all[0], c.want)
		_, text, _ := strings.Cut(c.want, ".share: ")
		assert.ErrorContains(t, err, cmp.Or(text, c.want))
	}
}

func TestADatabaseThatIsDownIsAnError(t *testing.T) {
	db := sql.OpenDB(nowhere{})
	t.Cleanup(func() { db.Close() })
	set, err := policy.Parse([]byte("rules: [{name: api, key: user, limit: fixed-window 9/d}]"))
	require.NoError(t, err)
	p, err := policy.New(set, &policy.Options{Engine: policysql.New(db, nil)})
	require.NoError(t, err, "nothing is sent before the first decision")
	_, err = p.Take(t.Context(), policy.Attributes{"user": "ann"}, 1)
	require.ErrorIs(t, err, ratelimit.ErrUnavailable)
	require.NoError(t, p.Flush(t.Context()), "nothing is held")
}
