package policy_test

import (
	"encoding/json"
	"fmt"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"go.yaml.in/yaml/v4"

	"github.com/weir-go/ratelimit"
	"github.com/weir-go/ratelimit/policy"
	"github.com/weir-go/ratelimit/policy/internal/byhand"
)

const whole = `# who may do how much
version: "2026-11-21.3"
kill_switch: false
rules:
  - name: api
    description: every caller
    match:
      route: ["POST /v1/charges", "/v1/search/"]
      attributes: {region: [eu, us], beta: yes}
    key: [user]
    limit: token-bucket 100/s burst 200
    plans:
      free: token-bucket 10/s burst 20
      enterprise: unlimited
    overrides:
      - {key: [acme], limit: token-bucket 5000/s burst 5000}
      - {key: mallory, limit: blocked}
    cost: tokens
    optional: true
    shadow: true
    disabled: true
  - name: service
    limit: fixed-window 5000/h
    cost: 2
`

func wholeSet() *policy.Set {
	return &policy.Set{
		Version: "2026-11-21.3",
		Rules: []policy.Rule{{
			Name:        "api",
			Description: "every caller",
			Match: policy.Match{
				Route:      []string{"POST /v1/charges", "/v1/search/"},
				Attributes: map[string][]string{"region": {"eu", "us"}, "beta": {"yes"}},
			},
			Key:   []string{"user"},
			Limit: ratelimit.TokenBucket(ratelimit.PerSecond(100), 200),
			Plans: map[string]ratelimit.Limit{
				"free":       ratelimit.TokenBucket(ratelimit.PerSecond(10), 20),
				"enterprise": ratelimit.Unlimited(),
			},
			Overrides: []policy.Override{
				{Key: []string{"acme"}, Limit: ratelimit.TokenBucket(ratelimit.PerSecond(5000), 5000)},
				{Key: []string{"mallory"}, Limit: ratelimit.Blocked()},
			},
			Cost:     policy.Cost{Attribute: "tokens"},
			Optional: true, Shadow: true, Disabled: true,
		}, {
			Name:  "service",
			Limit: ratelimit.FixedWindow(ratelimit.PerHour(5000)),
			Cost:  policy.Cost{Number: 2},
		}},
	}
}

func TestParseReadsEveryField(t *testing.T) {
	set, err := policy.Parse([]byte(whole))
	require.NoError(t, err)
	assert.Equal(t, wholeSet(), set)
}

func TestASetSurvivesJSONAndYAML(t *testing.T) {
	for name, marshal := range map[string]func(any) ([]byte, error){
		"json":   json.Marshal,
		"indent": func(v any) ([]byte, error) { return json.MarshalIndent(v, "", "\t") },
		"yaml":   yaml.Marshal,
	} {
		t.Run(name, func(t *testing.T) {
			data, err := marshal(wholeSet())
			require.NoError(t, err)
			set, err := policy.Parse(data)
			require.NoError(t, err, "%s", data)
			assert.Equal(t, wholeSet(), set)
		})
	}
}

// Programs writing a part of a file encode its rules alone.
func TestRulesAloneSurviveJSONAndYAML(t *testing.T) {
	for name, marshal := range map[string]func(any) ([]byte, error){"json": json.Marshal, "yaml": yaml.Marshal} {
		data, err := marshal(map[string]any{"version": wholeSet().Version, "rules": wholeSet().Rules})
		require.NoError(t, err, name)
		set, err := policy.Parse(data)
		require.NoError(t, err, "%s", data)
		assert.Equal(t, wholeSet().Rules, set.Rules, name)
	}
}

// Python's yaml, for example, reads a plain yes as true.
func TestTextsThatOtherReadersTakeForAValueAreInQuotes(t *testing.T) {
	data, err := yaml.Marshal(policy.Set{Version: "yes", Attributes: []string{"on", "plain", "12", "0x1F", "~"}})
	require.NoError(t, err)
	assert.Equal(t, "version: \"yes\"\nattributes:\n    - \"on\"\n    - plain\n    - \"12\"\n    - \"0x1F\"\n    - \"~\"\nrules: []\n", string(data))
}

func TestTheZeroSetIsAWholeFile(t *testing.T) {
	for name, marshal := range map[string]func(any) ([]byte, error){"json": json.Marshal, "yaml": yaml.Marshal} {
		data, err := marshal(policy.Set{})
		require.NoError(t, err, name)
		_, err = policy.Parse(data)
		require.NoError(t, err, "%s", data)
	}
}

func TestASetWithAnInvalidLimitCannotBeEncoded(t *testing.T) {
	for name, marshal := range map[string]func(any) ([]byte, error){"json": json.Marshal, "yaml": yaml.Marshal} {
		_, err := marshal(policy.Set{Rules: []policy.Rule{{Name: "a", Limit: ratelimit.FixedWindow(ratelimit.PerDay(0))}}})
		require.ErrorIs(t, err, ratelimit.ErrInvalidLimit, name)
	}
}

func TestHalfAFileIsNotASetThatLimitsNothing(t *testing.T) {
	for _, text := range []string{"", "\n", "# nothing yet\n", "---\n", "{}", "version: 1\n", "version: 1\nrules:\n", "null", "[]"} {
		set, err := policy.Parse([]byte(text))
		require.ErrorAs(t, err, new(*policy.Error), "%q", text)
		assert.Nil(t, set)
	}
	for _, text := range []string{"rules: []\n", `{"rules": []}`, `{"rules": null}`} {
		set, err := policy.Parse([]byte(text))
		require.NoError(t, err)
		assert.Empty(t, set.Rules)
	}
}

// rule returns a file with one valid rule after several lines. more adds lines to this rule.
func rule(more string) string {
	return "version: 1\nrules:\n- name: api\n  limit: fixed-window 5/s\n" + more
}

func shared(more string) string {
	return "version: 1\nrules:\n- name: up\n  limit: token-bucket 10/s burst 20\n  key: user\n" + more
}

func TestErrorsNameTheFieldAndTheCause(t *testing.T) {
	for _, test := range []struct {
		name, text string
		line       int
		rule       string
		fault      string
	}{
		{"an unknown field of the file", "version: 1\nlimits: []\n", 2, "", `unknown field "limits"`},
		{"an unknown field of a rule", rule("  burst: 5\n"), 5, "api", `unknown field "burst"`},
		{"an unknown field of match", rule("  match: {\n    path: /x}\n"), 6, "api", `rules[0].match: unknown field "path"`},
		{"an unknown field of an override", rule("  key: user\n  overrides:\n  - {key: a, limit: blocked, why: x}\n"), 7, "api", `unknown field "why"`},
		{"a field twice", rule("  shadow: true\n  shadow: false\n"), 6, "api", `"shadow" is there twice`},
		{"a rule without a name", "rules:\n- limit: fixed-window 5/s\n", 2, "", "rules[0].name: 0 bytes, want 1 to 128"},
		{"a name that no header can carry", "rules:\n- limit: fixed-window 5/s\n  name: my api\n", 3, "", `rules[0].name: "my api"`},
		{"two rules of one name, ignoring case", rule("- name: API\n  limit: unlimited\n"), 5, "API", "rules[0] has the same name"},
		{"a rule without a limit", "rules:\n- name: api\n", 2, "api", "rules[0].limit: ratelimit: invalid limit"},
		{"a limit that cannot be read", "rules:\n- name: api\n  limit: token-bucket 5/s\n", 3, "api", `rules[0].limit: ratelimit: invalid limit: "token-bucket 5/s"`},
		{"a limit that cannot be counted", rule("  plans:\n    free: fixed-window 0/s\n"), 6, "api", `rules[0].plans.free: ratelimit: invalid limit`},
		{"a plan without a name", rule("  plans: {\"\": blocked}\n"), 5, "api", "a plan's name of 0 bytes"},
		{"a route that net/http refuses", rule("  match:\n    route:\n    - /a\n    - /{x}y\n"), 8, "api", `rules[0].match.route[1]: `},
		{"a route without a path", rule("  match: {route: [example.com]}\n"), 5, "api", `missing /`},
		{"a route with two methods", rule("  match: {route: [GET POST /a]}\n"), 5, "api", `the host "POST " has a space`},
		{"a route that cannot match", rule("  match: {route: [/a//b]}\n"), 5, "api", `can never match`},
		{"a list of no routes", rule("  match: {route: []}\n"), 5, "api", "an empty list"},
		{"a list of no values", rule("  match: {attributes: {region: []}}\n"), 5, "api", "an empty list"},
		{"a key that is there twice", rule("  key: [user, user]\n"), 5, "api", `"user" is there twice`},
		{"an attribute with a space", rule("  key: [the user]\n"), 5, "api", `has ' '`},
		{"an override of a rule without a key", rule("  overrides: [{key: a, limit: blocked}]\n"), 5, "api", "the rule has no key"},
		{"an override of another length", rule("  key: [user, region]\n  overrides:\n  - {key: [secret], limit: blocked}\n"), 7, "api", "a key of 1 values, want 2: user, region"},
		{"an override that is there twice", rule("  key: user\n  overrides:\n  - {key: secret, limit: blocked}\n  - {key: secret, limit: unlimited}\n"), 8, "api", "overrides[0] has the same key"},
		{"a cost below 1", rule("  cost: -1\n"), 5, "api", "-1, want at least 1"},
		{"a cost of 0", rule("  cost: 0\n"), 5, "api", "want at least 1"},
		{"a cost in half units", rule("  cost: 0.5\n"), 5, "api", `"0.5", want a whole number from 1`},
		{"a share of 0", shared("  share: 0\n"), 6, "up", "rules[0].share: 0, want a weight from 1 to 1048576"},
		{"a share below 0", shared("  share: -3\n"), 6, "up", "rules[0].share: -3, want a weight from 1 to 1048576"},
		{"a share that is too heavy", shared("  share: 1048577\n"), 6, "up", "rules[0].share: 1048577, want a weight"},
		{"a share that is a word", shared("  share: half\n"), 6, "up", `rules[0].share: "half", want a weight: a whole number`},
		{"a share in percent", shared("  share: 50%\n"), 6, "up", `rules[0].share: "50%", want a weight: a whole number`},
		{"a share of parts", shared("  share: 1.5\n"), 6, "up", `rules[0].share: "1.5", want a weight: a whole number`},
		{"a share in quotes", shared("  share: '2'\n"), 6, "up", `rules[0].share: "2", want a weight: a whole number`},
		{"a share of a plan of 0", shared("  share: 1\n  shares: {free: 1,\n    pro: 0}\n"), 8, "up", "rules[0].shares.pro: 0, want a weight"},
		{"a share of a plan without a name", shared("  share: 1\n  shares: {'': 2}\n"), 7, "up", "rules[0].shares: a plan's name of 0 bytes"},
		{"shares without a share", shared("  shares: {pro: 3}\n"), 6, "up", "rules[0].shares: weights of plans, and the rule has no share"},
		{"a share without a key", "rules:\n- name: up\n  limit: token-bucket 10/s burst 20\n  share: 2\n", 4, "up", "rules[0].share: 2, and the rule has no key"},
		{"a share of a window", rule("  key: user\n  share: 2\n"), 4, "api", "rules[0].limit: ratelimit: invalid limit: fixed-window 5/s, and the rule has share 2: want a token bucket"},
		{"a share and limits from an attribute", shared("  share: 2\n  limit_from: quota\n"), 7, "up", `rules[0].limit_from: "quota", and the rule has share 2`},
		{"a share and thresholds", shared("  share: 2\n  notify: 80%\n"), 7, "up", `rules[0].notify: 80%, and the rule has share 2`},
		{"a share and a plan's limit", shared("  share: 2\n  plans: {pro: fixed-window 9/s}\n"), 7, "up", "rules[0].plans.pro: fixed-window 9/s, and the rule has share 2"},
		{"a plan's limit and share", shared("  share: 2\n  plans: {pro: blocked}\n  shares: {pro: 3}\n"), 8, "up", "rules[0].shares.pro: the plan has the limit blocked in plans"},
		{"a share and an override's limit", shared("  share: 2\n  overrides: [{key: secret, limit: fixed-window 9/s}]\n"), 7, "up", "rules[0].overrides[0]: limit is fixed-window 9/s, and the rule has share 2"},
		{"an override with a share and a limit", shared("  share: 2\n  overrides: [{key: secret, limit: blocked, share: 3}]\n"), 7, "up", "rules[0].overrides[0]: both limit blocked and share 3"},
		{"an override with nothing", shared("  share: 2\n  overrides: [{key: secret}]\n"), 7, "up", "rules[0].overrides[0]: neither share nor limit"},
		{"an override's share in another rule", rule("  key: user\n  overrides: [{key: secret, share: 3}]\n"), 6, "api", "rules[0].overrides[0]: share is 3, and the rule has no share"},
		{"a share of an exemption", "rules:\n- name: up\n  allow: true\n  share: 2\n", 4, "up", "rules[0].share: the rule allows the requests"},
		{"a flag that is a word", rule("  shadow: yes\n"), 5, "api", `"yes", want true or false`},
		{"a flag in quotes", rule("  shadow: \"true\"\n"), 5, "api", `want true or false`},
		{"a mapping in place of a list", rule("  key: {user: 1}\n"), 5, "api", "a mapping, want a list"},
		{"a list in place of a mapping", rule("  match: [a]\n"), 5, "api", "a list, want a mapping"},
		{"a list in place of a value", rule("  limit2: x\n"), 5, "api", "unknown field"},
		{"nothing in place of a value", "rules:\n- name: api\n  limit:\n", 3, "api", "nothing, want a value"},
		{"a list in place of the file", "- name: api\n", 1, "", "a list, want a mapping"},
		{"a text in place of the file", "hello\n", 1, "", "a value, want a mapping"},
		{"a second document", rule("---\nversion: 2\n"), 5, "", "a second document"},
		{"an alias", "rules:\n- &r {name: api, limit: blocked}\n- *r\n", 3, "", "alias"},
		{"an alias that holds itself", "rules: &r\n- *r\n", 1, "", "anchor"},
		{"a merge key", rule("  <<: {shadow: true}\n"), 5, "api", "merge"},
		{"a cost that is true", rule("  cost: true\n"), 5, "api", "rules[0].cost: true is true or false, want a text"},
		{"a name that is true", "rules:\n- {name: true, limit: blocked}\n", 2, "", "rules[0].name: true is true or false, want a text"},
		{"a name that is a number", "rules:\n- {name: 7, limit: blocked}\n", 2, "", "rules[0].name: 7 is a number, want a text"},
		{"a key that is true", rule("  key: [true]\n"), 5, "api", "rules[0].key[0]: true is true or false, want a text"},
		{"a key that is a number", rule("  key: 1.5\n"), 5, "api", "want a text"},
		{"a route that is a number", rule("  match: {route: 5}\n"), 5, "api", "want a text"},
		{"a limit that is a number", rule("  plans: {a: 5}\n"), 5, "api", "5 is a number, want a text"},
		{"a description that is false", rule("  description: false\n"), 5, "api", "want a text"},
		{"a version that is true", "version: true\nrules: []\n", 1, "", "version: true is true or false, want a text"},
		{"a name that is true in JSON", "{\"rules\": [{\"name\": true, \"limit\": \"blocked\"}]}", 1, "", "want a text"},
		{"a key that is true in JSON", "{\"rules\": [{\"name\": \"api\", \"limit\": \"blocked\", \"key\": [true]}]}", 1, "api", "want a text"},
		{"an anchor on the file", "&a\nrules: []\n", 1, "", "an anchor"},
		{"an anchor on a rule", "rules:\n- &r {name: api, limit: blocked}\n", 2, "api", "an anchor"},
		{"an anchor on a mapping", rule("  match: &m {route: /}\n"), 5, "api", "an anchor"},
		{"an anchor on plans", rule("  plans: &p\n    a: blocked\n"), 5, "api", "an anchor"},
		{"an anchor on a list", rule("  key: &k [user]\n"), 5, "api", "an anchor"},
		{"an anchor on a value", rule("  key: &k user\n"), 5, "api", "an anchor"},
		{"an anchor on a field's name", rule("  &k key: user\n"), 5, "api", "an anchor"},
		{"an anchor on an override", rule("  key: user\n  overrides:\n  - &o {key: a, limit: blocked}\n"), 7, "api", "an anchor"},
		{"a tag on a mapping", rule("  match: !!set {route}\n"), 5, "api", "a tag"},
		{"a tag on a list", rule("  key: !my [user]\n"), 5, "api", "a tag"},
		{"a tag on a value", rule("  key: !my user\n"), 5, "api", "a tag"},
		{"binary data", rule("  description: !!binary aGk=\n"), 5, "api", "a tag"},
		{"a NUL byte", "version: \"a\x00b\"\n", 0, "", "control characters"},
		{"no YAML", "rules: [\n", 0, "", "line"},
		{"broken JSON", "{\"rules\": [}", 1, "", "line"},
		{"a wrong field in JSON", "{\n\"version\": \"1\",\n\"rules\": [\n{\"name\": \"api\",\n\"limit\": \"blocked\",\n\"burst\": 5}]}", 6, "api", `unknown field "burst"`},
		{"a field twice in JSON", "{\"version\": \"1\",\n\"version\": \"2\"}", 2, "", "there twice"},
	} {
		t.Run(test.name, func(t *testing.T) {
			set, err := policy.Parse([]byte(test.text))
			require.ErrorAs(t, err, new(*policy.Error))
			assert.Nil(t, set)
			var e *policy.Error
			require.ErrorAs(t, err, &e)
			if test.line > 0 {
				assert.Equal(t, test.line, e.Line, err)
			}
			assert.Equal(t, test.rule, e.Rule, err)
			assert.Contains(t, err.Error(), test.fault)
			assert.NotContains(t, err.Error(), "secret", "a key is not told")
			assert.True(t, strings.HasPrefix(err.Error(), "policy: "))
			assert.LessOrEqual(t, strings.Count(err.Error(), "line "), 1, err)
		})
	}
}

func TestAFieldThatWasMeantIsSuggested(t *testing.T) {
	for wrong, meant := range map[string]string{
		"limt": "limit", "limits": "limit", "Limit": "limit", "liimt": "limit", "limut": "limit", "plan": "plans", "override": "overrides", "desc": "description", "keys": "key",
	} {
		_, err := policy.Parse([]byte(rule("  " + wrong + ": x\n")))
		assert.ErrorContains(t, err, fmt.Sprintf(`unknown field %q; %q, maybe`, wrong, meant))
		var e *policy.Error
		require.ErrorAs(t, err, &e)
		assert.Equal(t, []int{5, 3}, []int{e.Line, e.Column})
	}
	_, err := policy.Parse([]byte("groups: []\n"))
	assert.ErrorContains(t, err, `unknown field "groups", want one of attributes, defaults, kill_switch, lists, rules, version`)
}

func TestLargeAndHostileFilesAreRefused(t *testing.T) {
	var many strings.Builder
	many.WriteString("rules:\n")
	for i := range 10_001 {
		fmt.Fprintf(&many, "- {name: r%d, limit: unlimited}\n", i)
	}
	bomb := "a: &a [x,x,x,x,x,x,x,x,x]\n"
	for c := 'b'; c <= 'j'; c++ {
		bomb += fmt.Sprintf("%c: &%c [%s]\n", c, c, strings.Repeat("*"+string(c-1)+",", 9))
	}
	for name, text := range map[string]string{
		"10 001 rules":         many.String(),
		"10 MB":                strings.Repeat("# a comment\n", 10<<20/12),
		"an alias bomb":        bomb,
		"a deep list":          "rules: " + strings.Repeat("[", 1<<20),
		"a deep mapping":       strings.Repeat("{a: ", 1<<18),
		"a deep list in JSON":  `{"rules":` + strings.Repeat("[", 9000) + strings.Repeat("]", 9000) + `}`,
		"bytes that are noise": "\xff\xfe\x00\x01rules",
		"a long version":       "version: " + strings.Repeat("x", 257),
		"a long name":          "rules:\n- {name: " + strings.Repeat("x", 129) + ", limit: blocked}\n",
		"a long value":         rule("  match: {attributes: {a: " + strings.Repeat("x", 1025) + "}}\n"),
	} {
		t.Run(name, func(t *testing.T) {
			_, err := policy.Parse([]byte(text))
			require.ErrorAs(t, err, new(*policy.Error))
			assert.Less(t, len(err.Error()), 2000)
		})
	}
}

// TestAnExcessIsReportedOnce checks that an excess is one error, and not
// an error for each rule. The rule's other errors are reported, too.
func TestAnExcessIsReportedOnce(t *testing.T) {
	_, errs := policy.Check([]byte("rules:\n" + strings.Repeat("- {name: a}\n", 10_050)))
	require.Len(t, errs, 1)
	assert.ErrorContains(t, errs[0], "line 10002: rules: 10050 rules, want at most 10000")
	_, errs = policy.Check([]byte(rule("  match: {route: [" + strings.Repeat("/a,", 10_001) + "], attributes: {a: []}}\n")))
	require.Len(t, errs, 2)
}

func TestTenThousandRulesAreRead(t *testing.T) {
	var many strings.Builder
	many.WriteString("rules:\n")
	for i := range 10_000 {
		fmt.Fprintf(&many, "- {name: r%d, limit: unlimited, match: {route: [/r%d/]}}\n", i, i)
	}
	set, err := policy.Parse([]byte(many.String()))
	require.NoError(t, err)
	assert.Len(t, set.Rules, 10_000)
}

func TestValidateChecksSetsMadeByHand(t *testing.T) {
	require.NoError(t, byhand.Validate(new(policy.Set)))
	require.ErrorAs(t, byhand.Validate((*policy.Set)(nil)), new(*policy.Error))
	require.NoError(t, byhand.Validate(wholeSet()))
	for name, spoil := range map[string]func(*policy.Rule){
		"a cost of both kinds":    func(r *policy.Rule) { r.Cost = policy.Cost{Number: 1, Attribute: "x"} },
		"a negative cost":         func(r *policy.Rule) { r.Cost = policy.Cost{Number: -1} },
		"the zero Limit":          func(r *policy.Rule) { r.Limit = ratelimit.Limit{} },
		"the zero Limit in plans": func(r *policy.Rule) { r.Plans = map[string]ratelimit.Limit{"free": {}} },
		"an empty override":       func(r *policy.Rule) { r.Overrides = []policy.Override{{}} },
		"an empty key in one":     func(r *policy.Rule) { r.Overrides[0].Key = []string{""} },
	} {
		set := wholeSet()
		spoil(&set.Rules[0])
		err := byhand.Validate(set)
		require.ErrorAs(t, err, new(*policy.Error), name)
		assert.Contains(t, err.Error(), "rules[0].", name)
	}
	named := wholeSet()
	named.Rules[0].Limit = named.Rules[0].Limit.Named("other")
	require.NoError(t, byhand.Validate(named), "a limit's own name does not matter")
}

func FuzzParse(f *testing.F) {
	f.Add([]byte(whole))
	data, _ := json.Marshal(wholeSet())
	f.Add(data)
	for _, seed := range []string{"", "{", "rules: [*a]", rule("  cost: x\n"), "---\n---\n", "{\"rules\":[null]}", "rules:\n- ", "&a a: *a"} {
		f.Add([]byte(seed))
	}
	f.Fuzz(func(t *testing.T, data []byte) {
		set, err := policy.Parse(data)
		if err != nil {
			require.ErrorAs(t, err, new(*policy.Error))
			return
		}
		require.NoError(t, byhand.Validate(set))
		again, err := json.Marshal(set)
		require.NoError(t, err)
		back, err := policy.Parse(again)
		require.NoError(t, err, "%s", again)
		first, _ := json.Marshal(back)
		require.Equal(t, string(again), string(first))
		asYAML, err := yaml.Marshal(set)
		require.NoError(t, err)
		back, err = policy.Parse(asYAML)
		require.NoError(t, err, "%s", asYAML)
		second, _ := json.Marshal(back)
		require.Equal(t, string(again), string(second))
	})
}

func TestAtMostAHundredErrorsAreReported(t *testing.T) {
	for _, format := range []string{"{name: a%d, x: 1}", "{name: a%d, limit: 1}", "{name: a%d, limit: 1/s, key: {}}"} {
		var rules []string
		for i := range 300 {
			rules = append(rules, fmt.Sprintf(format, i))
		}
		_, all := policy.Check([]byte("rules: [" + strings.Join(rules, ",") + "]"))
		assert.Len(t, all, 100, format)
	}
}

func TestErrorsAreShortAndShowInvisibleCharacters(t *testing.T) {
	long := strings.Repeat("x", 1<<20)
	for _, text := range []string{
		long + ": 1", "rules: []\n" + long + ": 1", "rules: [{name: a, limit: " + long + "}]",
		"rules: [{name: a, limit: 1/s, shadow: " + long + "}]", "rules: [{name: a, plans: {" + long + ": " + long + "}}]",
		"rules: [{name: a, limit: 1/s, key: [ip/" + long + "]}]", "rules: [{name: a, limit: 1/s, description: " + strings.Repeat("1", 1<<20) + "}]",
		`{"rules": [{"name": "a", "` + long + `": 1}]}`,
	} {
		_, all := policy.Check([]byte(text))
		require.NotEmpty(t, all)
		for _, err := range all {
			assert.Less(t, len(err.Error()), 5000)
		}
	}
	_, all := policy.Check([]byte("rules: [{name: a, limit: fixed-window 9/s, plans: {\"a\u202eb\": none}}]"))
	require.NotEmpty(t, all)
	assert.Contains(t, all[0].Error(), `rules[0].plans.a\u202eb: `)
}

func TestWhereACharacterIsThatAFileMayNotHave(t *testing.T) {
	_, err := policy.Parse([]byte("version: \"1\"\nrules: [\n  {name: \x00}]"))
	var e *policy.Error
	require.ErrorAs(t, err, &e)
	assert.Equal(t, 3, e.Line)
	assert.Equal(t, 10, e.Column)
}

func TestACostThatBeginsAsANumberIsNotTakenForAnAttribute(t *testing.T) {
	for _, cost := range []string{"1_000", "0x10", "1e3", "1.5", "99999999999999999999", "+5.", "-x"} {
		_, err := policy.Parse([]byte("rules: [{name: a, limit: fixed-window 9/s, cost: " + cost + "}]"))
		assert.ErrorContains(t, err, fmt.Sprintf("rules[0].cost: %q, want a whole number from 1 to ", cost))
	}
}

func TestACheckOfAValidFileReturnsItsSetAndWarnings(t *testing.T) {
	set, warnings := policy.Check([]byte("rules:\n- {name: a, limit: fixed-window 9/s}\n- {name: b, limit: fixed-window 9/s, cost: 10}\n"))
	require.Len(t, set.Rules, 2)
	require.Len(t, warnings, 1)
	assert.Equal(t, []any{3, "b", "rules[1].cost"}, []any{warnings[0].Line, warnings[0].Rule, warnings[0].Field})
	set, warnings = policy.Check([]byte(`rules:
- {name: a, limit: blocked, match: {attributes: {ip: [192.0.2.1, 192.0.2.0/24, 300.1.1.1, "2001:db8::", "2001:db8::5", "2001:db8::/32", "::ffff:1.2.3.4", "1:2", unknown, 10.0.0]}}}
- {name: b, limit: fixed-window 9/s, match: {not: {ip: ["2001:db8:0:1:2::"]}}, key: [user, ip], overrides: [{key: [ann, "fe80::1"], limit: unlimited}]}
`))
	require.NotNil(t, set)
	var fields []string
	for _, w := range warnings {
		fields = append(fields, w.Field)
	}
	assert.Equal(t, []string{"rules[0].match.attributes.ip[2]", "rules[0].match.attributes.ip[4]", "rules[0].match.attributes.ip[7]",
		"rules[0].match.attributes.ip[9]", "rules[1].match.not.ip[0]", "rules[1].overrides[0]"}, fields)
	_, warnings = policy.Check([]byte("rules:\n- {name: a, limit: unlimited, key: ip, overrides: [{key: 192.0.2.0/24, limit: blocked}]}\n" +
		"- {name: b, limit: unlimited, key: ip/24, overrides: [{key: 192.0.2.0/24, limit: blocked}, {key: \"2001:db8::5\", limit: blocked}]}"))
	require.Len(t, warnings, 2)
	assert.ErrorContains(t, warnings[0], "a network, and the key is a single ip")
	assert.Equal(t, "rules[1].overrides[1]", warnings[1].Field)
	set, warnings = policy.Check([]byte("rules: []"))
	assert.NotNil(t, set)
	assert.Empty(t, warnings)
}
