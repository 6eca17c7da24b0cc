package main

import (
	"bytes"
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/weir-go/ratelimit"
	"github.com/weir-go/ratelimit/internal/dev/testsize"
	"github.com/weir-go/ratelimit/policy"
	"github.com/weir-go/ratelimit/policy/admin"
	"github.com/weir-go/ratelimit/policy/internal/byhand"
)

// files writes files into a new folder, the test's working directory from then on.
func files(t *testing.T, texts map[string]string) {
	t.Helper()
	t.Chdir(t.TempDir())
	for name, text := range texts {
		require.NoError(t, os.WriteFile(filepath.Join(".", name), []byte(text), 0o600))
	}
}

const old = `
version: v1
rules:
- name: api
  key: user
  match: {route: ["/v1/"]}
  limit: token-bucket 10/s burst 20
  plans: {pro: token-bucket 100/s burst 200}
  overrides: [{key: acme, limit: unlimited}]
- {name: gone, limit: fixed-window 1/s}
`

const changed = `
version: v2
kill_switch: true
rules:
- {name: added, limit: fixed-window 5/h, match: {attributes: {region: [eu, us]}}}
- name: api
  key: [user]
  match: {route: ["/v1/", "/v2/"]}
  limit: token-bucket 5/s burst 20
  plans: {pro: token-bucket 100/s burst 200, free: blocked}
  overrides: [{key: mallory, limit: blocked}]
  cost: 2
  shadow: true
`

func TestCommands(t *testing.T) {
	for _, test := range []struct {
		name   string
		args   []string
		status int
		out    string
		errs   string
	}{
		{"check of valid files", []string{"check", "old", "new"}, 0,
			"old: valid, 2 rules, version \"v1\"\nnew: valid, 2 rules, version \"v2\"\n", ""},
		{"check of an invalid file", []string{"check", "old", "bad"}, 1,
			"old: valid, 2 rules, version \"v1\"\n", "bad:2:20: policy: line 2: rule \"a\": rules[0].limit: ratelimit: invalid limit: \"often\": unknown algorithm \"often\", want one of token-bucket, leaky-bucket, fixed-window, sliding-log, sliding-counter, unlimited, blocked, calendar, concurrent\n"},
		{"check of a missing file", []string{"check", "none"}, 2, "", "open none: no such file or directory\n"},
		{"diff of equal files", []string{"diff", "old", "old"}, 0, "no difference\n", ""},
		{"diff", []string{"diff", "old", "new"}, 1, `all rules: kill_switch false → true (every request)
rule added: added fixed-window 5/h (with region eu or us)
rule api: match requests to /v1/ → requests to /v1/, /v2/ (who it is for)
rule api: limit token-bucket 10/s burst 20 → token-bucket 5/s burst 20 (requests to /v1/, /v2/, each user, without a plan or an override)
rule api: plan free token-bucket 10/s burst 20 → blocked (plan free)
rule api: override of acme unlimited → none (acme)
rule api: override of mallory none → blocked (mallory)
rule api: cost the caller's → 2 (requests to /v1/, /v2/, each user)
rule api: shadow false → true (requests to /v1/, /v2/, each user)
rule gone: removed; its budgets are kept for ten minutes fixed-window 1/s (every request)
`, ""},
		{"diff of a name that would move the cursor", []string{"diff", "empty", "forged"}, 1,
			"rule a: added blocked (every request; changed by ann\\x1b[2K\\rno difference)\n", ""},
		{"diff with an invalid file", []string{"diff", "old", "bad"}, 2, "", "bad: policy: line 2: rule \"a\": rules[0].limit: ratelimit: invalid limit: \"often\": unknown algorithm \"often\", want one of token-bucket, leaky-bucket, fixed-window, sliding-log, sliding-counter, unlimited, blocked, calendar, concurrent\n"},
		{"explain", []string{"explain", "old", "path=/v1/x", "user=ann", "plan=pro"}, 0,
			"api: token-bucket 100/s burst 200 (from plan pro), key \"ann\", cost 1 of 200\ngone: fixed-window 1/s (from the rule), one budget for all, cost 1 of 1\n", ""},
		{"explain of an override", []string{"explain", "-cost", "3", "new", "path=/v2/", "user=mallory"}, 0,
			"the kill switch is on: every request passes\napi: blocked (from an override), key \"mallory\", cost 2 of 0, a shadow: never denies\n", ""},
		{"explain of a cost above the capacity", []string{"explain", "-cost", "30", "old", "path=/v1/", "user=ann"}, 1,
			"api: token-bucket 10/s burst 20 (from the rule), key \"ann\", cost 30 of 20\ngone: fixed-window 1/s (from the rule), one budget for all, cost 30 of 1\n" +
				"refused: layer 0: ratelimit: cost exceeds the limit \"api\": cost 30 is above 20, the capacity of token-bucket 10/s burst 20\n", ""},
		{"explain of a request that lacks something", []string{"explain", "old", "path=/v1/"}, 1,
			"api: cannot decide: policy: rule \"api\": the request has no \"user\"\ngone: fixed-window 1/s (from the rule), one budget for all, cost 1 of 1\nrefused: policy: rule \"api\": the request has no \"user\"\n", ""},
		{"explain of a request that no rule is for", []string{"explain", "empty"}, 0, "no rule matches: the request passes\n", ""},
	} {
		t.Run(test.name, func(t *testing.T) {
			files(t, map[string]string{"old": old, "new": changed, "bad": "rules:\n- {name: a, limit: often}\n", "empty": "rules: []\n", "forged": `rules: [{name: a, limit: blocked, changed_by: "ann\e[2K\rno difference"}]`})
			var out, errs bytes.Buffer
			assert.Equal(t, test.status, run(test.args, &out, &errs))
			assert.Equal(t, test.out, out.String())
			assert.Equal(t, test.errs, errs.String())
		})
	}
}

// TestCheckAgainstAnEngine: each engine has its package's bounds, and no server is called.
func TestCheckAgainstAnEngine(t *testing.T) {
	files(t, map[string]string{"rules": "rules:\n- {name: a, limit: sliding-log 5000/h}\n- {name: b, limit: fixed-window 9/1500ns, plans: {pro: sliding-log 2001/h, free: sliding-log 2000/h}}\n"})
	for engine, want := range map[string][]string{
		"":       nil,
		"memory": nil,
		"redis":  {"rules[0].limit", "rules[1].limit", "rules[1].plans.pro"},
		"sql":    {"rules[1].limit"},
	} {
		args := []string{"check", "-json", "-engine", engine, "rules"}
		if engine == "" {
			args = []string{"check", "-json", "rules"}
		}
		var out, errs bytes.Buffer
		status := run(args, &out, &errs)
		var all []checked
		require.NoError(t, json.Unmarshal(out.Bytes(), &all), errs.String())
		var got []string
		for _, e := range all[0].Errors {
			got = append(got, e.Field)
		}
		assert.Equal(t, want, got, engine)
		assert.Equal(t, min(1, len(want)), status, engine)
	}
	var out, errs bytes.Buffer
	assert.Equal(t, 1, run([]string{"check", "-engine=redis", "rules"}, &out, &errs))
	assert.Contains(t, errs.String(), "rules:2:13: policy: line 2: rule \"a\": rules[0].limit: redislimit: ratelimit: invalid limit: Rate.Units is 5000 for a sliding log, want at most 2000")
	for _, wrong := range [][]string{{"check", "-engine", "mongo", "rules"}, {"diff", "-engine", "redis", "rules", "rules"}} {
		out.Reset()
		assert.Equal(t, 2, run(wrong, &out, &errs))
		assert.Empty(t, out.String())
	}
}

func TestWrongCalls(t *testing.T) {
	files(t, map[string]string{"old": old})
	for _, args := range [][]string{
		nil, {"chek"}, {"check"}, {"diff", "old"}, {"diff", "old", "old", "old"}, {"explain"}, {"explain", "old", "user"},
		{"explain", "old", "=x"}, {"explain", "old", "user=a", "user=b"}, {"check", "-nosuchflag", "old"}, {"explain", "-cost", "-1", "old"}, {"hcheck", "old"},
	} {
		var out, errs bytes.Buffer
		assert.Equal(t, 2, run(args, &out, &errs), "%v", args)
		assert.Empty(t, out.String())
		assert.NotEmpty(t, errs.String())
	}
	var out, errs bytes.Buffer
	assert.Zero(t, run([]string{"--help"}, &out, &errs))
	assert.Zero(t, run([]string{"check", "-h"}, &out, &errs))
}

func TestJSONForScripts(t *testing.T) {
	files(t, map[string]string{"old": old, "new": changed, "bad": "rules:\n- {name: a, limit: often}\n"})
	decode := func(args ...string) any {
		var out, errs bytes.Buffer
		run(args, &out, &errs)
		var v any
		require.NoError(t, json.Unmarshal(out.Bytes(), &v), "%v: %s", args, errs.String())
		return v
	}
	checks := decode("check", "-json", "old", "bad").([]any)
	assert.Equal(t, true, checks[0].(map[string]any)["valid"])
	assert.Equal(t, 2.0, checks[1].(map[string]any)["line"])
	assert.Len(t, decode("diff", "-json", "old", "new").([]any), 10)
	assert.Empty(t, decode("diff", "-json", "old", "old").([]any))
	rules := decode("explain", "-json", "old", "path=/v1/", "user=ann").(map[string]any)["rules"].([]any)
	assert.Equal(t, "ann", rules[0].(map[string]any)["key"])
	assert.Equal(t, 20.0, rules[0].(map[string]any)["capacity"])
}

func TestCheckAndDiffReadTheListsBesideAFile(t *testing.T) {
	const rules = "lists: {bad: %s}\nrules:\n- {name: api, limit: blocked, match: {attributes: {ip: '@bad'}}}\n"
	files(t, map[string]string{"a": fmt.Sprintf(rules, "deny.txt"), "b": fmt.Sprintf(rules, "more.txt"), "c": fmt.Sprintf(rules, "wrong.txt"), "d": "rules: []\n",
		"deny.txt": "10.0.0.1\n10.0.0.2\n", "more.txt": "10.0.0.2\n10.0.0.3 # new\n10.0.0.4\n2001:db8::1\n", "wrong.txt": "\n10.0.0\n"})
	var out, errs bytes.Buffer
	assert.Zero(t, run([]string{"check", "a"}, &out, &errs))
	assert.Equal(t, "a: valid, 1 rules, version \"\"\n", out.String())
	assert.Equal(t, 1, run([]string{"check", "c"}, &out, &errs))
	assert.Equal(t, "c:3:52: policy: line 3: rule \"api\": rules[0].match.attributes.ip[0]: list \"bad\": wrong.txt: line 2: neither an address nor a network\n", errs.String())
	errs.Reset()
	assert.Zero(t, run([]string{"check", "b"}, &out, &errs))
	assert.Contains(t, errs.String(), "list \"bad\": more.txt: line 4: an IPv6 address that is not cut to its /64")
	out.Reset()
	assert.Equal(t, 1, run([]string{"diff", "a", "b"}, &out, &errs))
	assert.Equal(t, "all rules: list bad, 3 values added and 1 removed: 2 values of \"deny.txt\" → 4 values of \"more.txt\" (what matches @bad)\n", out.String())
	out.Reset()
	assert.Equal(t, 1, run([]string{"diff", "d", "a"}, &out, &errs))
	assert.Contains(t, out.String(), "list bad, 2 values added and 0 removed: none → 2 values of \"deny.txt\"")
	assert.Contains(t, out.String(), "rule api: added blocked (with ip @bad)")
	out.Reset()
	assert.Equal(t, 1, run([]string{"explain", "a", "ip=10.0.0.2"}, &out, &errs))
	assert.Contains(t, out.String(), "api: blocked")
}

func TestDiffListsTheWordsOfARule(t *testing.T) {
	const api = "rules:\n- {name: api, limit: fixed-window 9/s%s}\n"
	files(t, map[string]string{"old": fmt.Sprintf(api, ", actual: tokens"), "new": fmt.Sprintf(api, ", costs: [{match: {route: /x}, cost: 3}], actual: total"), "empty": "rules: []"})
	var out, errs bytes.Buffer
	assert.Equal(t, 1, run([]string{"diff", "old", "new"}, &out, &errs), errs.String())
	assert.Equal(t, "rule api: costs none → 3 for /x (every request)\nrule api: actual tokens → total (every request)\n", out.String())
	out.Reset()
	files(t, map[string]string{
		"a": "rules:\n- {name: api, key: user, limit: fixed-window 9/s, until: 2026-01-01T00:00:00Z}\n",
		"b": "rules:\n- {name: api, key: user, limit: fixed-window 9/s, overrides: [{key: ann, limit: blocked, until: 2026-01-01T00:00:00Z}]}\n",
	})
	assert.Equal(t, 1, run([]string{"diff", "a", "b"}, &out, &errs), errs.String())
	assert.Equal(t, "rule api: override of ann until 2026-01-01T00:00:00Z none → blocked (ann until 2026-01-01T00:00:00Z)\n"+
		"rule api: until 2026-01-01T00:00:00Z → none (every request, each user)\n", out.String())
	files(t, map[string]string{"empty": "rules: []", "old": fmt.Sprintf(api, ", actual: tokens")})
	out.Reset()
	assert.Equal(t, 1, run([]string{"diff", "empty", "old"}, &out, &errs), errs.String())
	assert.Equal(t, "rule api: added fixed-window 9/s (every request)\nrule api: actual none → tokens (every request)\n", out.String())
}

// TestDiffListsChangedDecisions draws pairs of similar sets. If diff finds no difference, both decide alike on every request.
func TestDiffListsChangedDecisions(t *testing.T) {
	r := rand.New(rand.NewPCG(35, 1))
	pick := func(words ...string) string { return words[r.IntN(len(words))] }
	word := func() string {
		return pick("a", "b", "a, b", "b, c", "a or b", "a and b", "c", `"a"`, "a b", "") + pick("", "", "x")
	}
	words := func() (list []string) {
		for range 1 + r.IntN(2) {
			list = append(list, word())
		}
		return list
	}
	limits := []ratelimit.Limit{ratelimit.Unlimited(), ratelimit.Blocked()}
	set := func() *policy.Set {
		s := &policy.Set{KillSwitch: r.IntN(20) == 0}
		for _, name := range []string{"one", "two"} {
			if r.IntN(4) == 0 {
				continue
			}
			rule := policy.Rule{Name: name, Limit: limits[r.IntN(2)], Disabled: r.IntN(6) == 0, Shadow: r.IntN(6) == 0, Optional: r.IntN(2) == 0}
			if r.IntN(2) == 0 {
				rule.Match.Attributes = map[string][]string{pick("p", "q"): words()}
			}
			if r.IntN(3) == 0 {
				rule.Plans = map[string]ratelimit.Limit{pick("x", "y"): limits[r.IntN(2)]}
			}
			if r.IntN(2) == 0 {
				rule.Key = []string{"p", "q"}
				seen := map[string]bool{}
				for range r.IntN(3) {
					o := policy.Override{Key: []string{"a" + word(), "b" + word()}, Limit: limits[r.IntN(2)]}
					if id := fmt.Sprintf("%q", o.Key); !seen[id] {
						rule.Overrides, seen[id] = append(rule.Overrides, o), true
					}
				}
			}
			s.Rules = append(s.Rules, rule)
		}
		return s
	}
	same, pairs := 0, testsize.Of(2000, 20_000)
	for range pairs {
		a := set()
		b := set()
		if r.IntN(2) == 0 && len(a.Rules) > 0 { // the sets are almost the same
			copied := *a
			copied.Rules = slices.Clone(a.Rules)
			rule := &copied.Rules[r.IntN(len(a.Rules))]
			if len(rule.Overrides) > 0 {
				rule.Overrides = slices.Clone(rule.Overrides)
				rule.Overrides[0].Key = []string{"a" + word(), "b" + word()}
			} else if rule.Match.Attributes != nil {
				rule.Match.Attributes = map[string][]string{"p": words()}
			}
			b = &copied
		}
		if byhand.Validate(a) != nil || byhand.Validate(b) != nil || len(compare(a, b)) > 0 {
			continue
		}
		same++
		p, err := policy.New(a, nil)
		require.NoError(t, err)
		q, err := policy.New(b, nil)
		require.NoError(t, err)
		for range 50 {
			request := policy.Attributes{"p": pick("a", "") + word(), "q": pick("b", "") + word(), "plan": pick("x", "y", "z")}
			if r.IntN(4) == 0 {
				delete(request, "q")
			}
			require.Equal(t, p.Allow(request, 1), q.Allow(request, 1), "%v\n%+v\n%+v", request, a, b)
		}
	}
	assert.Greater(t, same, pairs/100)
}

func TestDiffOfAddedRulesListsAllOfThem(t *testing.T) {
	files(t, map[string]string{"old": "rules: []\n", "new": `
rules:
- {name: plans, key: user, limit: unlimited, plans: {free: blocked}, overrides: [{key: "a, b", limit: fixed-window 1/s}], cost: 2, shadow: true}
- {name: off, limit: blocked, disabled: true}
- {name: up, key: user, limit: token-bucket 9/s burst 9, share: 2, shares: {pro: 5}, overrides: [{key: ann, share: 7}]}
`})
	var out, errs bytes.Buffer
	assert.Equal(t, 1, run([]string{"diff", "old", "new"}, &out, &errs))
	assert.Equal(t, `rule plans: added unlimited (every request, each user)
rule plans: plan free unlimited → blocked (plan free)
rule plans: override of "a, b" none → fixed-window 1/s ("a, b")
rule plans: cost the caller's → 2 (every request, each user)
rule plans: shadow false → true (every request, each user)
rule off: added, but disabled: blocked (every request)
rule up: added token-bucket 9/s burst 9, shared by all keys, share 2 (every request, each user)
rule up: share of plan pro 2 → 5 (plan pro)
rule up: override of ann none → share 7 (ann)
`, out.String())
}

func TestDiffAndCheckKnowShares(t *testing.T) {
	const up = "rules: [{name: up, key: user, limit: token-bucket 9/s burst 9%s}]"
	files(t, map[string]string{
		"none": fmt.Sprintf(up, ""), "two": fmt.Sprintf(up, ", share: 2, shares: {pro: 5}"), "three": fmt.Sprintf(up, ", share: 3, overrides: [{key: ann, limit: blocked}]"),
		"large": "rules:\n- name: up\n  key: user\n  share: 1\n  limit: token-bucket 9/s burst 2000000000\n",
	})
	var out, errs bytes.Buffer
	assert.Equal(t, 1, run([]string{"diff", "none", "two"}, &out, &errs))
	assert.Equal(t, 1, run([]string{"diff", "two", "three"}, &out, &errs))
	assert.Equal(t, `rule up: share; budgets start anew a budget for each key → 2 (every request, each user, without a plan or an override)
rule up: share of plan pro a budget for each key → 5 (plan pro)
rule up: share 2 → 3 (every request, each user, without a plan or an override)
rule up: share of plan pro 5 → 3 (plan pro)
rule up: override of ann none → blocked (ann)
`, out.String())
	for engine, want := range map[string]string{"memory": "", "redis": "large:5:3: policy: line 5: rule \"up\": rules[0].limit: redislimit: ratelimit: invalid limit: Burst is 2000000000, want at most 2^30",
		"sql": `large:4:3: policy: line 4: rule "up": rules[0].share: policysql: share is 1`} {
		out.Reset()
		errs.Reset()
		status := run([]string{"check", "-engine", engine, "large"}, &out, &errs)
		assert.Equal(t, want != "", status == 1, errs.String())
		assert.Contains(t, errs.String(), want)
	}
	out.Reset()
	assert.Equal(t, 0, run([]string{"explain", "two", "user=ann", "plan=pro"}, &out, &errs))
	assert.Equal(t, "up: a share of weight 5 (from plan pro) of token-bucket 9/s burst 9, key \"ann\", cost 1 of 9\n", out.String())
}

func TestCheckReportsAllErrors(t *testing.T) {
	const wrong = "vesion: x\nrules:\n- {name: a, limit: often}\n- name: A\n  limit: fixed-window 1/s\n  route: /x\n  overides: []\n  match: {attributes: {ip: [10.0.0.1/8, 11.0.0.1/8]}}\n"
	files(t, map[string]string{"bad": wrong, "bad.json": "{\"rules\": [\n  {\"name\": \"a\",  \"limit\": \"often\"},\n  {\"name\": \"1\", \"limit\": \"blocked\", \"kye\": \"user\"}]}"})
	var out, errs bytes.Buffer
	assert.Equal(t, 1, run([]string{"check", "bad"}, &out, &errs))
	lines := strings.Split(strings.TrimSpace(errs.String()), "\n")
	want := []string{
		`bad:1:1: policy: line 1: unknown field "vesion"; "version", maybe`, `bad:3:20: policy: line 3: rule "a": rules[0].limit: ratelimit: invalid limit`,
		`bad:4:3: policy: line 4: rule "A": rules[1].name: rules[0] has the same name`,
		`bad:6:3: policy: line 6: rule "A": rules[1]: unknown field "route"; "match.route", maybe`, `bad:7:3: policy: line 7: rule "A": rules[1]: unknown field "overides"; "overrides", maybe`,
		`bad:8:29: policy: line 8: rule "A": rules[1].match.attributes.ip[0]: bits are set`, `bad:8:41: policy: line 8: rule "A": rules[1].match.attributes.ip[1]: bits are set`,
	}
	require.Len(t, lines, len(want), errs.String())
	for i := range want {
		assert.True(t, strings.HasPrefix(lines[i], want[i]), lines[i])
	}
	out.Reset()
	run([]string{"check", "-json", "bad.json"}, &out, &errs)
	var v []struct{ Errors []struct{ Line, Column int } }
	require.NoError(t, json.Unmarshal(out.Bytes(), &v))
	assert.Equal(t, []struct{ Line, Column int }{{2, 27}, {3, 4}, {3, 37}}, v[0].Errors)
}

func TestExplainCallsARunningService(t *testing.T) {
	set, err := policy.Parse([]byte(old))
	require.NoError(t, err)
	p, err := policy.New(set, nil)
	require.NoError(t, err)
	ann := policy.Attributes{"path": "/v1/x", "user": "ann"}
	assert.True(t, p.Allow(ann, 1))
	for _, show := range []bool{false, true} {
		page := admin.New(p, &admin.Options{ShowKeys: show})
		server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			if r.Header.Get("Authorization") != "Bearer x" {
				w.WriteHeader(http.StatusUnauthorized)
				return
			}
			page.ServeHTTP(w, r)
		}))
		defer server.Close()
		var out, errs bytes.Buffer
		args := []string{"explain", "-service", server.URL + "/admin", "-header", "Authorization: Bearer x", "path=/v1/x", "user=ann"}
		assert.Equal(t, 0, run(args, &out, &errs), errs.String())
		assert.Contains(t, out.String(), "cost 1 of 20; now: allows it, ")
		assert.Contains(t, out.String(), "cost 1 of 1; now: denies it, 0 left, retry in ")
		assert.Equal(t, show, strings.Contains(out.String(), `key "ann"`))
		out.Reset()
		assert.Equal(t, 0, run(append([]string{"explain", "-json"}, args[1:]...), &out, &errs))
		assert.Contains(t, out.String(), `"retry_after"`)
		assert.Equal(t, 1, run([]string{"explain", "-service", server.URL, "-header", "Authorization: Bearer x", "path=/v1/x"}, &out, &errs))
		assert.Equal(t, 2, run([]string{"explain", "-service", server.URL, "path=/v1/x"}, &out, &errs))
		assert.Equal(t, 2, run([]string{"explain", "-service", "http://127.0.0.1:1/", "path=/v1/x"}, &out, &errs))
		moved := httptest.NewServer(http.RedirectHandler(server.URL, http.StatusFound))
		defer moved.Close()
		errs.Reset()
		assert.Equal(t, 2, run([]string{"explain", "-service", moved.URL, "-header", "Authorization: Bearer x", "path=/v1/x"}, &out, &errs))
		assert.Contains(t, errs.String(), "status 200 OK, and no explanation: GET "+server.URL)
	}
}

// An editor jumps to file:line:column, whether there is one error or many.
func TestCheckAlwaysReportsLineAndColumn(t *testing.T) {
	for name, row := range map[string]struct{ text, at string }{
		"a limit":                  {"rules:\n- name: a\n  limit: often\n", "3:10"},
		"a field":                  {"rules:\n- name: a\n  limti: blocked\n  limit: blocked\n", "3:3"},
		"a missing limit":          {"rules:\n- name: a\n", "2:3"},
		"a list that is not ended": {"rules:\n- {name: a, limit: [}", "2:21"},
		"two colons":               {"rules:\n- name: a\n   limit: blocked", "3:9"},
		"a second document":        {"rules: []\n---\nrules: []\n", "2:1"},
		"an alias":                 {"rules: *x", "1:8"},
		"a byte that is not text":  {"rules:\n- name: é\xff", "2:10"},
		"nothing":                  {"", "1:1"},
		"no rules":                 {"version: v1", "1:1"},
		"too large":                {strings.Repeat("#", 4<<20+1), "1:1"},
		"JSON":                     {"{\"rules\": [\n  {\"name\": \"a\", \"limit\": \"often\"}]}", "2:26"},
		"half of JSON":             {"{\"rules\": [", "2:1"},
	} {
		t.Run(name, func(t *testing.T) {
			files(t, map[string]string{"f": row.text})
			var out, errs bytes.Buffer
			assert.Equal(t, 1, run([]string{"check", "f"}, &out, &errs))
			assert.True(t, strings.HasPrefix(errs.String(), "f:"+row.at+": policy: "), errs.String())
			assert.Equal(t, 1, strings.Count(errs.String(), "\n"))
			out.Reset()
			run([]string{"check", "-json", "f"}, &out, &errs)
			var v []struct{ Line, Column int }
			require.NoError(t, json.Unmarshal(out.Bytes(), &v))
			assert.Equal(t, row.at, fmt.Sprintf("%d:%d", v[0].Line, v[0].Column))
		})
	}
}

func TestCheckWarnsOfRulesThatNothingCanPass(t *testing.T) {
	files(t, map[string]string{"f": `defaults: {key: user, cost: 3}
rules:
- name: never
  limit: fixed-window 4/h
  cost: 5
- name: just
  limit: fixed-window 3/h
- name: plans
  limit: unlimited
  plans:
    free: token-bucket 10/s burst 2
    banned: blocked
    pro: unlimited
  overrides:
  - {key: a, limit: unlimited}
  - {key: secret, limit: calendar 2/day UTC}
- {name: default, limit: leaky-bucket 9/s queue 2}
- {name: declared, cost: tokens, limit: fixed-window 1/h}
- {name: off, disabled: true, limit: fixed-window 1/h}
- {name: barred, limit: blocked}
- {name: free, allow: true, match: {route: /x}}
`})
	var out, errs bytes.Buffer
	assert.Equal(t, 0, run([]string{"check", "f"}, &out, &errs))
	assert.Equal(t, "f: valid, 8 rules, version \"\"\n", out.String())
	assert.Equal(t, `f:5:3: warning: policy: line 5: rule "never": rules[0].cost: the rule's cost of 5 is above 4, the capacity of fixed-window 4/h: no request can ever pass
f:11:5: warning: policy: line 11: rule "plans": rules[2].plans.free: the rule's cost of 3 is above 2, the capacity of token-bucket 10/s burst 2: no request can ever pass
f:16:5: warning: policy: line 16: rule "plans": rules[2].overrides[1]: the rule's cost of 3 is above 2, the capacity of calendar 2/day UTC: no request can ever pass
f:17:3: warning: policy: line 17: rule "default": rules[3].cost: the rule's cost of 3 is above 2, the capacity of leaky-bucket 9/s queue 2: no request can ever pass
`, errs.String())

	out.Reset()
	run([]string{"check", "-json", "f"}, &out, &errs)
	var v []struct {
		Valid    bool
		Warnings []struct{ Line, Column int }
	}
	require.NoError(t, json.Unmarshal(out.Bytes(), &v))
	assert.True(t, v[0].Valid)
	assert.Equal(t, []struct{ Line, Column int }{{5, 3}, {11, 5}, {16, 5}, {17, 3}}, v[0].Warnings)

	files(t, map[string]string{"bad": "rules:\n- {name: never, limit: fixed-window 4/h, cost: 5}\n- {name: b}\n"})
	errs.Reset()
	run([]string{"check", "bad"}, &out, &errs)
	assert.NotContains(t, errs.String(), "warning", "a file that is not valid is mended first")
}

func TestARouteWithoutItsSlashIsAnError(t *testing.T) {
	for route, instead := range map[string]string{
		"v1/": "/v1/", "v1": "/v1", "GET v1/": "GET /v1/", "POST\tv1/x": "POST\t/v1/x", "v1/{id}/x": "/v1/{id}/x", "{id}/": "/{id}/", "api-v1/{$}": "/api-v1/{$}",
		"/v1/": "", "GET /v1/": "", "api.example.com/v1/": "", "GET api.example.com/": "", "localhost/v1/": "", "CONNECT proxy:80/": "",
	} {
		files(t, map[string]string{"f": "rules:\n- name: a\n  limit: blocked\n  match: {route: " + fmt.Sprintf("%q", route) + "}\n"})
		var out, errs bytes.Buffer
		status := run([]string{"check", "f"}, &out, &errs)
		if instead == "" {
			assert.Equal(t, 0, status, "%s: %s", route, errs.String())
			continue
		}
		assert.Equal(t, 1, status, route)
		assert.True(t, strings.HasPrefix(errs.String(), "f:4:"), errs.String())
		assert.Contains(t, errs.String(), fmt.Sprintf("%q", instead))
	}
}

func TestDiffAndExplainKnowWhatReplacesAndReadsAndNotifies(t *testing.T) {
	files(t, map[string]string{
		"old": "rules:\n- {name: api, key: ip/24, limit: calendar 100/hour UTC}\n- {name: bulk, match: {route: /bulk/}, key: user, limit: fixed-window 5/h}\n",
		"new": `attributes: [user, quota]
rules:
- {name: api, key: ip/24/56, limit: calendar 100/minute UTC, limit_from: quota, notify: [80%, 100%]}
- {name: bulk, match: {route: /bulk/, not: {route: /bulk/free/}}, key: ["query:session", "cookie:id"], optional: true, limit: fixed-window 5/h, instead: [api]}
`,
	})
	var out, errs bytes.Buffer
	assert.Equal(t, 1, run([]string{"diff", "old", "new"}, &out, &errs), errs.String())
	for _, line := range []string{
		"all rules: attributes user, quota (no request: only check compares them)\n",
		"rule api: limit calendar 100/hour UTC → calendar 100/minute UTC ",
		"rule api: limit_from no attribute → quota ",
		"rule api: notify never → 80%, 100% ",
		"rule bulk: instead of no rule → api ",
		"ip/24 → ip/24/56", "user → query:session and cookie:id", "with route not /bulk/free/",
	} {
		assert.Contains(t, out.String(), line)
	}
	out.Reset()
	assert.Equal(t, 0, run([]string{"explain", "new", "route=/bulk/", "path=/bulk/x", "ip=192.0.2.7", "quota=7", "query:session=s", "cookie:id=c"}, &out, &errs), errs.String())
	assert.Contains(t, out.String(), "bulk")
	out.Reset()
	assert.Equal(t, 0, run([]string{"explain", "new", "path=/x", "ip=2001:db8:0:1::7", "quota=calendar 7/hour UTC"}, &out, &errs), errs.String())
	assert.Contains(t, out.String(), "calendar 7/hour UTC")
	assert.Contains(t, out.String(), "the attribute quota")
	assert.Contains(t, out.String(), "2001:db8::/56")
}
