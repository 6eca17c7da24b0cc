package sqltest

import (
	"context"
	"fmt"
	"log/slog"
	"os"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/weir-go/ratelimit"
	"github.com/weir-go/ratelimit/policy"
	"github.com/weir-go/ratelimit/policy/sqlsource"
	"github.com/weir-go/ratelimit/sqllimit"
)

// soon waits until a condition is true. Machines may be slow, so the time does not matter.
func soon(t *testing.T, condition func() bool, what string) {
	t.Helper()
	require.Eventually(t, condition, 30*time.Second, 5*time.Millisecond, what)
}

func TestRulesAreReadFromTheTable(t *testing.T) {
	for name, d := range databases() {
		t.Run(name, func(t *testing.T) {
			db := d.migrated(t)
			for _, statement := range []string{
				`INSERT INTO rate_limit_rule (name, description, match_route, match_attributes, key, "limit", overrides, cost, optional, shadow)
				 VALUES ('api', 'every caller', 'POST /v1/charges
				 /v1/search/', '{"region": ["eu", "us"], "beta": "yes"}', 'user, region', 'token-bucket 100/s burst 200',
				 '[{"key": ["acme", "eu"], "limit": "blocked"}]', 'tokens', true, true)`,
				`INSERT INTO rate_limit_rule (name, plan, "limit") VALUES ('api', 'free', 'token-bucket 10/s burst 20'), ('api', 'pro', 'unlimited')`,
				`INSERT INTO rate_limit_rule (name, plan, "limit", is_active) VALUES ('api', 'old', 'blocked', false)`,
				`INSERT INTO rate_limit_rule (name, "limit", cost, is_active) VALUES ('service', 'fixed-window 5000/h', '2', false)`,
			} {
				_, err := db.Exec(d.sql(statement))
				require.NoError(t, err)
			}
			set, err := sqlsource.New(db, &sqlsource.Options{Dialect: d.dialect, Timeout: time.Minute}).Load(t.Context())
			require.NoError(t, err)
			assert.Equal(t, "sql:5", set.Version)
			set.Version = ""
			assert.Equal(t, &policy.Set{Rules: []policy.Rule{{
				Name: "api", Description: "every caller",
				Match: policy.Match{
					Route:      []string{"POST /v1/charges", "/v1/search/"},
					Attributes: map[string][]string{"region": {"eu", "us"}, "beta": {"yes"}},
				},
				Key:       []string{"user", "region"},
				Limit:     ratelimit.TokenBucket(ratelimit.PerSecond(100), 200),
				Plans:     map[string]ratelimit.Limit{"free": ratelimit.TokenBucket(ratelimit.PerSecond(10), 20), "pro": ratelimit.Unlimited()},
				Overrides: []policy.Override{{Key: []string{"acme", "eu"}, Limit: ratelimit.Blocked()}},
				Cost:      policy.Cost{Attribute: "tokens"}, Optional: true, Shadow: true,
			}, {
				Name: "service", Limit: ratelimit.FixedWindow(ratelimit.PerHour(5000)), Cost: policy.Cost{Number: 2}, Disabled: true,
			}}}, set)
		})
	}
}

func TestRowsWithReplacementsLimitsOfAttributesAndNotices(t *testing.T) {
	for name, d := range databases() {
		t.Run(name, func(t *testing.T) {
			db := d.migrated(t)
			for _, statement := range []string{
				`INSERT INTO rate_limit_rule (name, match_more, key, "limit", instead, limit_from, notify) VALUES ('bulk',
				'{"not": {"region": "eu", "route": ["POST /b/", "/c"], "prefix": {"path": "/x", "host": ["a", "b"]}, "suffix": {"host": ".c"}}}',
				'ip/24/56', 'calendar 5/hour UTC', 'other, third', 'quota', '80%, 100%')`,
				`INSERT INTO rate_limit_rule (name, "limit") VALUES ('other', 'blocked'), ('third', 'blocked')`,
			} {
				_, err := db.Exec(d.sql(statement))
				require.NoError(t, err)
			}
			load := func() (*policy.Set, error) {
				return sqlsource.New(db, &sqlsource.Options{Dialect: d.dialect, Timeout: time.Minute}).Load(t.Context())
			}
			set, err := load()
			require.NoError(t, err)
			file, err := policy.Parse([]byte(`rules:
- {name: bulk, match: {not: {region: eu, route: [POST /b/, /c], prefix: {path: /x, host: [a, b]}, suffix: {host: .c}}}, key: ip/24/56,
  limit: calendar 5/hour UTC, instead: [other, third], limit_from: quota, notify: [80%, 100%]}` + "\n- {name: other, limit: blocked}\n- {name: third, limit: blocked}"))
			require.NoError(t, err)
			assert.Equal(t, file.Rules[0], set.Rules[0], "as a file has it")
			for _, wrong := range []struct{ set, want string }{
				{`match_more = '{"not": {"prefix": "x"}}'`, "match_more"}, {`match_more = '{"not": {"region": {"a": "b"}}}'`, "match_more"},
				{`match_more = '', instead = 'nobody'`, "no rule"}, {`instead = '', notify = '80'`, "want 1%"}, {`notify = '', limit_from = 'header:X'`, "sent by the client"},
			} {
				_, err := db.Exec(d.sql(`UPDATE rate_limit_rule SET ` + wrong.set + ` WHERE name = 'bulk'`))
				require.NoError(t, err)
				_, err = load()
				require.ErrorContains(t, err, wrong.want, wrong.set)
			}
		})
	}
}

func TestRowsWithShares(t *testing.T) {
	for name, d := range databases() {
		t.Run(name, func(t *testing.T) {
			db := d.migrated(t)
			for _, statement := range []string{
				`INSERT INTO rate_limit_rule (name, key, "limit", share, overrides) VALUES ('up', 'tenant', 'token-bucket 9/s burst 9', 1, '[{"key": "acme", "share": 20}, {"key": "mallory", "limit": "blocked"}]')`,
				`INSERT INTO rate_limit_rule (name, plan, share) VALUES ('up', 'pro', 3), ('up', 'team', 5)`,
				`INSERT INTO rate_limit_rule (name, plan, "limit") VALUES ('up', 'banned', 'blocked')`,
			} {
				_, err := db.Exec(d.sql(statement))
				require.NoError(t, err)
			}
			load := func() (*policy.Set, error) {
				return sqlsource.New(db, &sqlsource.Options{Dialect: d.dialect, Timeout: time.Minute}).Load(t.Context())
			}
			set, err := load()
			require.NoError(t, err)
			file, err := policy.Parse([]byte(`rules:
- {name: up, key: tenant, limit: token-bucket 9/s burst 9, share: 1, shares: {pro: 3, team: 5}, plans: {banned: blocked},
  overrides: [{key: acme, share: 20}, {key: mallory, limit: blocked}]}`))
			require.NoError(t, err)
			assert.Equal(t, file.Rules, set.Rules, "as a file has it")
			before := set.Version
			_, err = db.Exec(`UPDATE rate_limit_rule SET share = 4 WHERE plan = 'pro'`)
			require.NoError(t, err)
			set, err = load()
			require.NoError(t, err)
			assert.Equal(t, 4, set.Rules[0].Shares["pro"])
			assert.NotEqual(t, before, set.Version, "readers see the change")
			for _, wrong := range []struct{ set, want string }{
				{`share = -1 WHERE plan = ''`, "rate_limit_rule.share: -1"}, {`share = 2000000 WHERE plan = ''`, "share: 2000000, want a weight from 1 to 1048576"},
				{`share = 0 WHERE plan = ''`, "has no share"}, {`share = 1 WHERE plan = ''`, ""}, {`share = 3 WHERE plan = 'banned'`, `the plan "banned" has both limit blocked and share 3`},
			} {
				_, err := db.Exec(`UPDATE rate_limit_rule SET ` + wrong.set)
				require.NoError(t, err)
				if _, err = load(); wrong.want == "" {
					require.NoError(t, err)
				} else {
					require.ErrorContains(t, err, wrong.want)
				}
			}
		})
	}
}

func TestRowsWithTheColumnMore(t *testing.T) {
	for name, d := range databases() {
		t.Run(name, func(t *testing.T) {
			db := d.migrated(t)
			_, err := db.Exec(d.sql(`INSERT INTO rate_limit_rule (name, "limit", more) VALUES
				('api', 'fixed-window 9/s', '{"costs": [{"match": {"route": ["/x"], "not": {"prefix": {"a": ["b"]}}}, "cost": 20}], "actual": "tokens"}')`))
			require.NoError(t, err)
			load := func() (*policy.Set, error) {
				return sqlsource.New(db, &sqlsource.Options{Dialect: d.dialect, Timeout: time.Minute}).Load(t.Context())
			}
			set, err := load()
			require.NoError(t, err)
			file, err := policy.Parse([]byte("rules:\n- {name: api, limit: fixed-window 9/s, costs: [{match: {route: [/x], not: {prefix: {a: [b]}}}, cost: 20}], actual: tokens}\n"))
			require.NoError(t, err)
			assert.Equal(t, file.Rules, set.Rules, "as a file has it")
			_, err = db.Exec(d.sql(`INSERT INTO rate_limit_rule (name, key, "limit", more, overrides) VALUES ('dated', 'user', 'fixed-window 9/s',
				'{"from": "2026-01-01T00:00:00Z", "budget": "old"}', '[{"key": "a", "limit": "blocked", "until": "2026-02-01T00:00:00Z"}]')`))
			require.NoError(t, err)
			set, err = load()
			require.NoError(t, err)
			file, err = policy.Parse([]byte("rules:\n- {name: dated, key: user, limit: fixed-window 9/s, from: 2026-01-01T00:00:00Z, budget: old, overrides: [{key: a, limit: blocked, until: 2026-02-01T00:00:00Z}]}\n"))
			require.NoError(t, err)
			assert.Equal(t, file.Rules[0], set.Rules[1])
			_, err = db.Exec(`DELETE FROM rate_limit_rule WHERE name = 'dated'`)
			require.NoError(t, err)
			before := set.Version
			_, err = db.Exec(`UPDATE rate_limit_rule SET more = '{"actual": "total"}'`)
			require.NoError(t, err)
			set, err = load()
			require.NoError(t, err)
			assert.Equal(t, "total", set.Rules[0].Actual)
			assert.NotEqual(t, before, set.Version, "readers see the change")
			for _, wrong := range []struct{ more, want string }{
				{`{"actual": 7}`, "rate_limit_rule.more.actual: 7 is a number"}, {`{"actual": "path"}`, "rate_limit_rule.more.actual: \"path\" is sent by the client"},
				{`{"limit": "blocked"}`, "rate_limit_rule.more: a field that is none of"}, {`{"ACTUAL": "a"}`, "none of budget"}, {`[]`, "not the JSON"},
				{`{"costs": [{"match": {"route": "/x"}, "cost": -1}]}`, "rate_limit_rule.more.costs[0].cost"}, {`{"actual": "a", "actual": "b"}`, "there twice"},
			} {
				_, err := db.Exec(`UPDATE rate_limit_rule SET more = '` + wrong.more + `'`)
				require.NoError(t, err)
				_, err = load()
				require.ErrorContains(t, err, wrong.want)
			}
		})
	}
}

func TestRowsOfEveryKindOfMatch(t *testing.T) {
	for name, d := range databases() {
		t.Run(name, func(t *testing.T) {
			db := d.migrated(t)
			_, err := db.Exec(`INSERT INTO rate_limit_rule (name, match_attributes, match_more, allow, changed_by)
				VALUES ('probes', '{"ip": "10.0.0.0/8"}', '{"not": {"user": "root"}, "prefix": {"path": ["/health", "/live"]}, "suffix": {"host": ".example"}, "absent": "tenant"}', true, 'ann')`)
			require.NoError(t, err)
			set, err := sqlsource.New(db, &sqlsource.Options{Dialect: d.dialect, Timeout: time.Minute}).Load(t.Context())
			require.NoError(t, err)
			assert.Equal(t, []policy.Rule{{
				Name: "probes", Allow: true, ChangedBy: "ann",
				Match: policy.Match{
					Attributes: map[string][]string{"ip": {"10.0.0.0/8"}},
					Not:        map[string][]string{"user": {"root"}},
					Prefix:     map[string][]string{"path": {"/health", "/live"}},
					Suffix:     map[string][]string{"host": {".example"}},
					Absent:     []string{"tenant"},
				},
			}}, set.Rules)
			_, err = db.Exec(`UPDATE rate_limit_rule SET match_more = '{"regexp": {"user": ".*"}}'`)
			require.NoError(t, err)
			_, err = sqlsource.New(db, &sqlsource.Options{Dialect: d.dialect, Timeout: time.Minute}).Load(t.Context())
			require.ErrorContains(t, err, "rate_limit_rule.match_more: not the JSON")
			for _, wrong := range []struct{ column, text, want string }{
				{"match_more", `{"prefix": null}`, "null"}, {"match_more", `null`, "null"}, {"match_more", `{"absent": null}`, "null"},
				{"match_attributes", `null`, "null"}, {"match_attributes", `{"region": null}`, ""}, {"match_attributes", `{"region": ["eu", null]}`, ""},
				{"match_more", `{"prefix": {"region": ["us"]}, "PREFIX": {"region": ["e"]}}`, "none of not, prefix, suffix, absent"},
				{"overrides", `null`, "null"}, {"overrides", `[{"key": "ann", "limit": "blocked", "LIMIT": "unlimited"}]`, "none of key, limit"},
			} {
				_, err = db.Exec(`UPDATE rate_limit_rule SET match_more = '', match_attributes = '', overrides = ''`)
				require.NoError(t, err)
				_, err = db.Exec(`UPDATE rate_limit_rule SET ` + wrong.column + ` = '` + wrong.text + `'`)
				require.NoError(t, err)
				_, err = sqlsource.New(db, &sqlsource.Options{Dialect: d.dialect, Timeout: time.Minute}).Load(t.Context())
				require.ErrorContains(t, err, "rate_limit_rule."+wrong.column+": ", wrong.text)
				require.ErrorContains(t, err, wrong.want)
			}
		})
	}
}

func TestASettingDeclaresTheAttributes(t *testing.T) {
	for name, d := range databases() {
		t.Run(name, func(t *testing.T) {
			db := d.migrated(t)
			_, err := db.Exec(d.sql(`INSERT INTO rate_limit_rule (name, key, "limit") VALUES ('api', 'user', 'fixed-window 5/h')`))
			require.NoError(t, err)
			ctx, cancel := context.WithCancel(t.Context())
			defer cancel()
			src := sqlsource.New(db, &sqlsource.Options{Dialect: d.dialect, Timeout: time.Minute, Poll: 10 * time.Millisecond})
			set, err := src.Load(ctx)
			require.NoError(t, err)
			assert.Nil(t, set.Attributes, "tables without the setting")
			changes := src.Changes(ctx)
			_, err = db.Exec(`INSERT INTO rate_limit_setting VALUES ('attributes', 'user,  plan')`)
			require.NoError(t, err)
			select {
			case <-changes:
			case <-time.After(time.Minute):
				t.Fatal("the setting is no change")
			}
			set, err = src.Load(ctx)
			require.NoError(t, err)
			assert.Equal(t, []string{"user", "plan"}, set.Attributes)
		})
	}
}

// TestWhoChangedARuleLast uses the rule's own row or a plan's, even an inactive one.
func TestWhoChangedARuleLast(t *testing.T) {
	for name, d := range databases() {
		t.Run(name, func(t *testing.T) {
			db := d.migrated(t)
			for _, change := range []struct{ statement, by string }{
				{`INSERT INTO rate_limit_rule (name, plan, "limit", changed_by) VALUES ('api', '', 'fixed-window 5/h', 'ann'), ('zzz', '', 'blocked', 'zoe'), ('aaa', '', 'blocked', '')`, "ann"},
				{`INSERT INTO rate_limit_rule (name, plan, "limit", changed_by) VALUES ('api', 'pro', 'fixed-window 50/h', 'bob')`, "bob"},
				{`INSERT INTO rate_limit_rule (name, plan, "limit") VALUES ('api', 'free', 'fixed-window 5/h')`, "bob"},
				{`UPDATE rate_limit_rule SET shadow = true, changed_by = 'ann' WHERE name = 'api' AND plan = ''`, "ann"},
				{`UPDATE rate_limit_rule SET "limit" = 'fixed-window 60/h' WHERE plan = 'pro'`, "bob"},
				{`UPDATE rate_limit_rule SET is_active = false, changed_by = 'cid' WHERE plan = 'free'`, "cid"},
			} {
				_, err := db.Exec(d.sql(change.statement))
				require.NoError(t, err)
				set, err := sqlsource.New(db, &sqlsource.Options{Dialect: d.dialect, Timeout: time.Minute}).Load(t.Context())
				require.NoError(t, err)
				assert.Equal(t, []string{"", change.by, "zoe"}, []string{set.Rules[0].ChangedBy, set.Rules[1].ChangedBy, set.Rules[2].ChangedBy}, change.statement)
			}
		})
	}
}

func TestABadRowIsRefusedAndNamed(t *testing.T) {
	for name, d := range databases() {
		t.Run(name, func(t *testing.T) {
			db := d.migrated(t)
			src := sqlsource.New(db, &sqlsource.Options{Dialect: d.dialect, Timeout: time.Minute})
			for statement, want := range map[string]string{
				`INSERT INTO rate_limit_rule (name, "limit") VALUES ('api', 'often')`:                                                  `rule "api": rate_limit_rule.limit: ratelimit: invalid limit`,
				`INSERT INTO rate_limit_rule (name, plan, "limit") VALUES ('api', 'free', 'blocked')`:                                  `rule "api": rate_limit_rule.plan: `,
				`INSERT INTO rate_limit_rule (name, "limit", match_attributes) VALUES ('api', 'blocked', '{"secret": 1}')`:             `rate_limit_rule.match_attributes: not the JSON`,
				`INSERT INTO rate_limit_rule (name, "limit", key, overrides) VALUES ('api', 'blocked', 'a', '[{"keys": []}]')`:         `rate_limit_rule.overrides: not the JSON`,
				`INSERT INTO rate_limit_rule (name, "limit", match_attributes) VALUES ('api', 'blocked', '{"a": "secret", "a": "b"}')`: `there twice`,
				`INSERT INTO rate_limit_rule (name, "limit", cost) VALUES ('api', 'blocked', '-3')`:                                    `rate_limit_rule.cost: -3`,
				`INSERT INTO rate_limit_rule (name, "limit", match_route) VALUES ('api', 'blocked', 'nowhere')`:                        `rules[0].match.route[0]`,
				`INSERT INTO rate_limit_rule (name, "limit") VALUES ('api', 'blocked'), ('API', 'blocked')`:                            `the same name`,
				`INSERT INTO rate_limit_setting VALUES ('attributes', 'user, a b')`:                                                    `attributes[1]`,
				`INSERT INTO rate_limit_setting VALUES ('kill_switch', 'maybe')`:                                                       `"maybe", want true or false`,
			} {
				_, err := db.Exec(d.sql(statement))
				require.NoError(t, err, statement)
				set, err := src.Load(t.Context())
				require.ErrorAs(t, err, new(*policy.Error), statement)
				assert.Nil(t, set)
				assert.Contains(t, err.Error(), want)
				assert.NotContains(t, err.Error(), "secret")
				_, err = db.Exec(`DELETE FROM rate_limit_rule; DELETE FROM rate_limit_setting`)
				require.NoError(t, err)
			}
		})
	}
}

func TestFollowASQLTable(t *testing.T) {
	for name, d := range databases() {
		t.Run(name, func(t *testing.T) {
			db := d.migrated(t)
			exec := func(statement string) {
				_, err := db.Exec(d.sql(statement))
				require.NoError(t, err)
			}
			exec(`INSERT INTO rate_limit_rule (name, key, "limit") VALUES ('api', 'user', 'fixed-window 5/h')`)
			p, err := policy.New(nil, &policy.Options{Logger: slog.New(slog.DiscardHandler)})
			require.NoError(t, err)
			ctx, cancel := context.WithCancel(t.Context())
			done := make(chan error)
			go func() {
				done <- policy.Follow(ctx, p, sqlsource.New(db, &sqlsource.Options{Dialect: d.dialect, Poll: 20 * time.Millisecond}))
			}()
			remaining := func() int {
				d, err := p.Take(t.Context(), policy.Attributes{"user": "ann"}, 0)
				require.NoError(t, err)
				return d.Remaining
			}
			soon(t, func() bool { return remaining() == 5 }, "the rule is in force")
			require.True(t, p.Allow(policy.Attributes{"user": "ann"}, 4))

			exec(`UPDATE rate_limit_rule SET "limit" = 'fixed-window 50/h'`)
			soon(t, func() bool { return remaining() == 46 }, "the limit is raised, and the spending stays")

			exec(`UPDATE rate_limit_rule SET "limit" = 'often'`)
			soon(t, func() bool { return p.Stats().LastError != nil }, "a bad row is reported")
			assert.Equal(t, 46, remaining(), "the last good rules stay")
			exec(`UPDATE rate_limit_rule SET "limit" = 'fixed-window 60/h'`)
			soon(t, func() bool { return remaining() == 56 && p.Stats().LastError == nil }, "the row is mended")

			exec(`INSERT INTO rate_limit_setting VALUES ('kill_switch', 'true')`)
			soon(t, func() bool { return p.Stats().KillSwitch && p.Allow(policy.Attributes{}, 1) }, "the kill switch is on")
			exec(`UPDATE rate_limit_setting SET value = 'false'`)
			soon(t, func() bool { return !p.Stats().KillSwitch && remaining() == 56 }, "the kill switch is off")

			exec(`UPDATE rate_limit_rule SET "limit" = 'often'`)
			soon(t, func() bool { return p.Stats().LastError != nil }, "a bad row is reported")
			exec(`UPDATE rate_limit_setting SET value = 'true'`)
			soon(t, func() bool { return p.Stats().KillSwitch && p.Allow(policy.Attributes{}, 1) }, "the kill switch is on beside a bad row")
			exec(`UPDATE rate_limit_setting SET value = 'false'`)
			soon(t, func() bool { return !p.Stats().KillSwitch && remaining() == 56 }, "the kill switch is off beside a bad row")

			exec(`DELETE FROM rate_limit_rule`)
			soon(t, func() bool { return len(p.Current().Rules) == 0 }, "the rule is gone")
			exec(`INSERT INTO rate_limit_rule (name, key, "limit") VALUES ('api', 'user', 'fixed-window 5/h')`)
			soon(t, func() bool { return len(p.Current().Rules) == 1 }, "the rule is back")
			assert.Equal(t, 1, remaining(), "it finds its budgets")
			cancel()
			require.ErrorIs(t, <-done, context.Canceled)
		})
	}
}

// BenchmarkSQL measures the time until a change of the table is in force, with the default of SQLOptions.Poll.
func BenchmarkSQL(b *testing.B) {
	for name, d := range databases() {
		b.Run("database="+name, func(b *testing.B) {
			db := d.migrated(b)
			_, err := db.Exec(d.sql(`INSERT INTO rate_limit_rule (name, "limit") VALUES ('api', 'fixed-window 1/h')`))
			require.NoError(b, err)
			p, err := policy.New(nil, &policy.Options{Logger: slog.New(slog.DiscardHandler)})
			require.NoError(b, err)
			ctx, cancel := context.WithCancel(context.Background())
			done := make(chan error)
			go func() { done <- policy.Follow(ctx, p, sqlsource.New(db, &sqlsource.Options{Dialect: d.dialect})) }()
			inForce := func(limit string) {
				for rules := p.Current().Rules; len(rules) == 0 || rules[0].Limit.String() != limit; rules = p.Current().Rules {
					time.Sleep(100 * time.Microsecond)
				}
			}
			inForce("fixed-window 1/h")
			var longest time.Duration
			for i := 2; b.Loop(); i++ {
				limit, begin := fmt.Sprintf("fixed-window %d/h", i), time.Now()
				_, err := db.Exec(d.sql(`UPDATE rate_limit_rule SET "limit" = '` + limit + `'`))
				require.NoError(b, err)
				inForce(limit)
				longest = max(longest, time.Since(begin))
			}
			b.ReportMetric(float64(longest)/1e6, "longest-ms")
			cancel()
			require.ErrorIs(b, <-done, context.Canceled)
		})
	}
}

func TestRulesStayWhileTheDatabaseIsDown(t *testing.T) {
	server := startPostgres(t)
	db := server.open(t)
	migrate(t, db, sqllimit.PostgreSQL)
	_, err := db.Exec(`INSERT INTO rate_limit_rule (name, key, "limit") VALUES ('api', 'user', 'fixed-window 5/h')`)
	require.NoError(t, err)
	p, err := policy.New(nil, &policy.Options{Logger: slog.New(slog.DiscardHandler)})
	require.NoError(t, err)
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error)
	go func() {
		done <- policy.Follow(ctx, p, sqlsource.New(db, &sqlsource.Options{Poll: 20 * time.Millisecond, Timeout: time.Second}))
	}()
	soon(t, func() bool { return len(p.Current().Rules) == 1 }, "the rule is in force")
	server.stop(t)
	soon(t, func() bool { return p.Stats().LastError != nil }, "the fault is reported")
	for i := range 6 {
		assert.Equal(t, i < 5, p.Allow(policy.Attributes{"user": "ann"}, 1), "decisions go on by the last good rules")
	}
	server.start(t)
	_, err = server.open(t).Exec(`UPDATE rate_limit_rule SET "limit" = 'fixed-window 6/h'`)
	require.NoError(t, err)
	soon(t, func() bool { return p.Stats().LastError == nil && p.Current().Rules[0].Limit.Rate.Units == 6 }, "the new rules are read")
	assert.True(t, p.Allow(policy.Attributes{"user": "ann"}, 1))
	assert.False(t, p.Allow(policy.Attributes{"user": "ann"}, 1))
	cancel()
	require.ErrorIs(t, <-done, context.Canceled)
}

func TestSQLWithoutADatabaseOrADialectIsAnError(t *testing.T) {
	_, err := sqlsource.New(nil, nil).Load(t.Context())
	require.ErrorContains(t, err, "db is nil")
	for want, o := range map[string]sqlsource.Options{
		"policy/sqlsource: Options.Dialect is 9, want PostgreSQL, MySQL or SQLite":   {Dialect: 9},
		"policy/sqlsource: Options.Poll is -1s, want 0 for the default, or more":     {Dialect: sqlsource.SQLite, Poll: -time.Second},
		"policy/sqlsource: Options.Timeout is -1ns, want 0 for the default, or more": {Dialect: sqlsource.SQLite, Timeout: -1},
	} {
		_, err = sqlsource.New(openSQLite(t), &o).Load(t.Context())
		require.EqualError(t, err, want)
	}
	_, err = sqlsource.New(openSQLite(t), &sqlsource.Options{Dialect: sqlsource.SQLite}).Load(t.Context())
	require.ErrorContains(t, err, "rate_limit", "a table is missing")
	assert.Empty(t, sqlsource.Migration(9))
}

func TestTheStatementsForMySQLAreComplete(t *testing.T) {
	for _, d := range []sqllimit.Dialect{sqllimit.PostgreSQL, sqllimit.MySQL, sqlsource.SQLite} {
		for _, table := range []string{"rate_limit_rule", "rate_limit_setting", "rate_limit_violation"} {
			assert.Contains(t, strings.Join(sqlsource.Migration(d), "\n"), "CREATE TABLE "+table, d)
		}
	}
}

// A table from before the column more can be read after the statements
// at the migration's end. A change of the column is a new version.
func TestATableOfBeforeGetsTheColumnMore(t *testing.T) {
	for name, file := range map[string]string{"postgresql": "postgresql", "mysql": "mysql", "sqlite": "sqlite"} {
		d := databases()[name]
		t.Run(name, func(t *testing.T) {
			text, err := os.ReadFile("../../../policy/sqlsource/migrations/" + file + ".sql")
			require.NoError(t, err)
			var upgrade []string
			for line := range strings.Lines(string(text)) {
				if statement, ok := strings.CutPrefix(line, "--   "); ok {
					upgrade = append(upgrade, strings.TrimSuffix(strings.TrimSpace(statement), ";"))
				}
			}
			require.NotEmpty(t, upgrade)
			db := d.open(t)
			column := regexp.MustCompile(`(?m)^\s+more .*\n`)
			for _, statement := range sqlsource.Migration(d.dialect) {
				if strings.HasPrefix(statement, "CREATE TABLE rate_limit_rule") {
					require.Regexp(t, column, statement)
					statement = column.ReplaceAllString(statement, "")
				}
				_, err := db.Exec(strings.Replace(statement, "cost, more,", "cost,", 1))
				require.NoError(t, err)
			}
			_, err = db.Exec(d.sql(`INSERT INTO rate_limit_rule (name, "limit") VALUES ('api', 'fixed-window 9/s')`))
			require.NoError(t, err)
			source := sqlsource.New(db, &sqlsource.Options{Dialect: d.dialect, Timeout: time.Minute})
			_, err = source.Load(t.Context())
			require.ErrorContains(t, err, "more")
			for _, statement := range upgrade {
				_, err := db.Exec(statement)
				require.NoError(t, err, statement)
			}
			for _, statement := range sqlsource.Migration(d.dialect) {
				if len(upgrade) > 1 && strings.HasPrefix(statement, "CREATE TRIGGER rate_limit_rule_update ") {
					_, err := db.Exec(statement)
					require.NoError(t, err)
				}
			}
			set, err := source.Load(t.Context())
			require.NoError(t, err)
			before := set.Version
			_, err = db.Exec(`UPDATE rate_limit_rule SET more = '{"charge": "always", "grace": "10%"}'`)
			require.NoError(t, err)
			set, err = source.Load(t.Context())
			require.NoError(t, err)
			assert.NotEqual(t, before, set.Version)
			assert.Equal(t, []string{"always", "10%"}, []string{set.Rules[0].Charge, set.Rules[0].Grace})
			_, err = db.Exec(`UPDATE rate_limit_rule SET match_attributes = '{"ip": "@bad"}'`)
			require.NoError(t, err)
			_, err = source.Load(t.Context())
			require.ErrorContains(t, err, `rules[0].match.attributes.ip[0]: no list "bad"`)
		})
	}
}
