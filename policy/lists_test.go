package policy_test

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"go.yaml.in/yaml/v4"

	"github.com/weir-go/ratelimit"
	"github.com/weir-go/ratelimit/policy"
	"github.com/weir-go/ratelimit/policy/internal/byhand"
)

// denyList has four lists: addresses, a partner's networks, keys, and prefixes of agents.
const denyList = `version: v1
lists: {bad: deny.txt, partner: lists/partner.txt, leaked: leaked.txt, bots: [curl/, "@bot"]}
rules:
- {name: bad, match: {attributes: {ip: "@bad"}}, limit: blocked}
- {name: leaked, match: {attributes: {api_key: ["@leaked", old]}}, limit: blocked}
- {name: bots, match: {prefix: {agent: ["@bots", "@@me"]}}, limit: blocked}
- {name: others, match: {not: {ip: ["@partner", 203.0.113.9]}}, limit: fixed-window 1/h, key: ip}
`

// listed writes the files of denyList into a folder.
func listed(t testing.TB) (rules string) {
	t.Helper()
	dir := t.TempDir()
	require.NoError(t, os.Mkdir(filepath.Join(dir, "lists"), 0o700))
	write(t, filepath.Join(dir, "rules.yaml"), denyList)
	write(t, filepath.Join(dir, "deny.txt"), "\ufeff# abuse desk\r\n\r\n198.51.100.0/24 # a whole network\r\n  192.0.2.7\t\n2001:db8:bad::/48\n192.0.2.7\n")
	write(t, filepath.Join(dir, "lists", "partner.txt"), "10.0.0.0/8")
	write(t, filepath.Join(dir, "leaked.txt"), "k-1\nk#2\n#k-3\n@k\n")
	return filepath.Join(dir, "rules.yaml")
}

func TestAMatchNamesTheValuesOfAList(t *testing.T) {
	set, err := policy.File(listed(t)).Load(t.Context())
	require.NoError(t, err)
	p := ratelimit.Must(policy.New(set, nil))
	for _, test := range []struct {
		request attrs
		allowed bool
	}{
		{attrs{"ip": "198.51.100.77"}, false},
		{attrs{"ip": "::ffff:192.0.2.7"}, false},
		{attrs{"ip": "2001:db8:bad:1::"}, false},
		{attrs{"ip": "192.0.2.8"}, true},
		{attrs{"ip": "192.0.2.8"}, false}, // the rule others is used up
		{attrs{"ip": "10.1.2.3"}, true},
		{attrs{"ip": "10.1.2.3"}, true},
		{attrs{"ip": "203.0.113.9"}, true},
		{attrs{"ip": "203.0.113.9"}, true},
		{attrs{"ip": "10.0.0.1", "api_key": "k-1"}, false},
		{attrs{"ip": "10.0.0.1", "api_key": "k#2"}, false},
		{attrs{"ip": "10.0.0.1", "api_key": "k-3"}, true},
		{attrs{"ip": "10.0.0.1", "api_key": "@k"}, false},
		{attrs{"ip": "10.0.0.1", "api_key": "old"}, false},
		{attrs{"ip": "10.0.0.1", "api_key": "@leaked"}, true},
		{attrs{"ip": "10.0.0.1", "agent": "curl/8"}, false},
		{attrs{"ip": "10.0.0.1", "agent": "@bot 1"}, false},
		{attrs{"ip": "10.0.0.1", "agent": "@me"}, false},
		{attrs{"ip": "10.0.0.1", "agent": "@@me"}, true},
	} {
		assert.Equal(t, test.allowed, p.Allow(test.request, 1), "%v", test.request)
	}
	for name, marshal := range map[string]func(any) ([]byte, error){"json": json.Marshal, "yaml": yaml.Marshal} {
		data, err := marshal(set)
		require.NoError(t, err)
		again, err := policy.Parse(data)
		require.NoError(t, err, "%s", data)
		assert.Equal(t, "deny.txt", again.Lists["bad"].File, name)
		assert.Equal(t, []string{"curl/", "@bot"}, again.Lists["bots"].Values, name)
	}
}

// Routes, costs' matches and the defaults may name lists, too.
func TestListsOfRoutesCostsAndDefaults(t *testing.T) {
	set, err := policy.Parse([]byte(`
lists: {dear: [POST /export, /search/], eu: [de, fr]}
defaults: {match: {attributes: {region: "@eu"}}}
rules:
- {name: api, limit: fixed-window 10/h, cost: 1, costs: [{match: {route: "@dear"}, cost: 7}]}
- {name: free, match: {not: {route: ["@dear"]}}, limit: blocked}
- {name: paid, match: {route: "@dear"}, limit: unlimited}
`))
	require.NoError(t, err)
	p := ratelimit.Must(policy.New(set, nil))
	ex, err := p.Explain(attrs{"region": "de", "method": "POST", "path": "/export"}, 1)
	require.NoError(t, err)
	require.Len(t, ex.Rules, 2)
	assert.Equal(t, 7, ex.Rules[0].Cost)
	assert.Equal(t, "paid", ex.Rules[1].Rule)
	ex, err = p.Explain(attrs{"region": "us", "method": "GET", "path": "/export"}, 1)
	require.NoError(t, err)
	require.Len(t, ex.Rules, 1)
	assert.Equal(t, "free", ex.Rules[0].Rule)
	ex, err = p.Explain(attrs{"region": "us", "method": "POST", "path": "/export"}, 1)
	require.NoError(t, err)
	require.Len(t, ex.Rules, 1)
	assert.Equal(t, "paid", ex.Rules[0].Rule)
}

func TestAWrongListIsAnErrorThatNamesListFileAndLine(t *testing.T) {
	const api = "lists: {bad: deny.txt}\nrules:\n- {name: api, limit: blocked, match: {attributes: {ip: '@bad'}}}\n"
	for name, test := range map[string]struct{ rules, list, want string }{
		"no file":            {api, "", `lists.bad: list "bad": policy: stat `},
		"a bad network":      {api, "10.0.0.0/8\n\n10.0.0.0/33\n", `rules[0].match.attributes.ip[0]: list "bad": deny.txt: line 3: not a network such as 10.0.0.0/8`},
		"bits behind":        {api, "# x\n10.1.0.0/8 # y\n", `list "bad": deny.txt: line 2: bits are set behind the first 8: the network is 10.0.0.0/8`},
		"no address":         {api, "10.0.0.300\n", `list "bad": deny.txt: line 1: neither an address nor a network`},
		"another comment":    {api, "10.0.0.1 ; spam\n", `list "bad": deny.txt: line 1: neither an address nor a network`},
		"a long line":        {api, "10.0.0.1\n" + strings.Repeat("1", 2000), `lists.bad: list "bad": deny.txt: line 2: 2000 bytes, want at most 1024`},
		"bytes":              {api, "10.0.0.1\n\xff\n", `lists.bad: list "bad": deny.txt: line 2: text that is not UTF-8`},
		"control characters": {api, "10.0.0.1\n\n10.0.0\x00.2\n", `lists.bad: list "bad": deny.txt: line 3: a control character`},
		"an unknown list":    {strings.Replace(api, "@bad", "@bat", 1), "10.0.0.1\n", `rules[0].match.attributes.ip[0]: no list "bat"; "bad", maybe`},
		"no name":            {strings.Replace(api, "@bad", "@", 1), "10.0.0.1\n", `rules[0].match.attributes.ip[0]: an "@" at the beginning, which names a list`},
		"a bad route":        {"lists: {bad: deny.txt}\nrules:\n- {name: api, limit: blocked, match: {route: '@bad'}}\n", "/a\nb\n", `rules[0].match.route[0]: list "bad": deny.txt: line 2: `},
		"outside":            {strings.Replace(api, "deny.txt", "../deny.txt", 1), "10.0.0.1\n", `lists.bad: "../deny.txt", want the path of a file beside the rules, without .. and not absolute`},
		"absolute":           {strings.Replace(api, "deny.txt", "/etc/passwd", 1), "10.0.0.1\n", `lists.bad: "/etc/passwd", want the path of a file beside the rules`},
		"a folder":           {strings.Replace(api, "deny.txt", "folder", 1), "10.0.0.1\n", `lists.bad: list "bad": policy: `},
		"too many values":    {api, strings.Repeat("10.0.0.1\n", 100_001), `lists.bad: list "bad": 100001 values, want at most 100000`},
		"too large":          {api, strings.Repeat("10.0.0.1"+strings.Repeat(" ", 1000)+"\n", 4200), `lists.bad: list "bad": policy: deny.txt has more than 4194304 bytes`},
	} {
		t.Run(name, func(t *testing.T) {
			dir := t.TempDir()
			require.NoError(t, os.Mkdir(filepath.Join(dir, "folder"), 0o700))
			write(t, filepath.Join(dir, "rules.yaml"), test.rules)
			if test.list != "" {
				write(t, filepath.Join(dir, "deny.txt"), test.list)
			}
			_, err := policy.File(filepath.Join(dir, "rules.yaml")).Load(t.Context())
			require.ErrorContains(t, err, test.want)
			var e *policy.Error
			require.ErrorAs(t, err, &e)
			assert.Positive(t, e.Line)
			if strings.HasPrefix(test.want, "lists.bad") {
				assert.Equal(t, "lists.bad", e.Field)
			}
			assert.NotContains(t, err.Error(), "10.0.0.1", "a value may be a key")
		})
	}
}

func TestASetWhoseListWasNotReadIsRefused(t *testing.T) {
	set, err := policy.Parse([]byte(denyList))
	require.NoError(t, err, "the text of the rules is right")
	_, err = policy.New(set, nil)
	require.ErrorContains(t, err, `lists.bad: list "bad": the file "deny.txt" was not read`)
	set, found := policy.Check([]byte(denyList))
	require.NotNil(t, set)
	assert.Empty(t, found)
	set = &policy.Set{Lists: map[string]policy.List{"bad": {Values: []string{"a"}}, "none": {}}}
	require.ErrorContains(t, byhand.Validate(set), "lists.none: neither a file nor values")
	delete(set.Lists, "none")
	require.NoError(t, byhand.Validate(set))
}

func TestAnEmptyListIsNobodyAndWarns(t *testing.T) {
	rules := listed(t)
	write(t, filepath.Join(filepath.Dir(rules), "deny.txt"), "# nobody today\n")
	p, out := followed(t, policy.File(rules))
	becomes(t, p, "v1")
	assert.True(t, p.Allow(attrs{"ip": "192.0.2.7"}, 1))
	require.Eventually(t, func() bool { return strings.Contains(out.String(), `list \"bad\": deny.txt has no values`) }, 20*time.Second, time.Millisecond)
}

// TestAChangeOfAListAloneComesIntoForce replaces a list, writes it in place, breaks, repairs and removes it, and
// moves it to another file. While the list is wrong, the last good set stays in force and the kill switch is read.
func TestAChangeOfAListAloneComesIntoForce(t *testing.T) {
	t.Parallel()
	const denyList = "version: v1\nlists: {bad: deny.txt}\nrules:\n- {name: bad, match: {attributes: {ip: '@bad'}}, limit: blocked}\n"
	rules := filepath.Join(t.TempDir(), "rules.yaml")
	write(t, filepath.Join(filepath.Dir(rules), "deny.txt"), "192.0.2.7\n")
	write(t, rules, denyList)
	require.NoError(t, os.Mkdir(filepath.Join(filepath.Dir(rules), "lists"), 0o700))
	deny := filepath.Join(filepath.Dir(rules), "deny.txt")
	p, _ := followed(t, policy.File(rules))
	becomes(t, p, "v1")
	blocks := func(ip string, want bool) {
		t.Helper()
		require.Eventually(t, func() bool { return p.Allow(attrs{"ip": ip}, 1) != want }, 20*time.Second, time.Millisecond, "%s", ip)
	}
	replace := func(path, text string) {
		t.Helper()
		write(t, path+".tmp", text)
		require.NoError(t, os.Rename(path+".tmp", path))
	}
	blocks("192.0.2.7", true)
	replace(deny, "192.0.2.8\n")
	blocks("192.0.2.8", true)
	blocks("192.0.2.7", false)
	write(t, deny, "192.0.2.9\n")
	blocks("192.0.2.9", true)

	replace(deny, "192.0.2.10\nnonsense\n")
	require.Eventually(t, func() bool { return p.Stats().LastError != nil }, 20*time.Second, time.Millisecond)
	assert.ErrorContains(t, p.Stats().LastError, `list "bad": deny.txt: line 2: neither an address nor a network`)
	blocks("192.0.2.9", true)
	blocks("192.0.2.10", false)
	replace(rules, "kill_switch: true\n"+denyList)
	require.Eventually(t, func() bool { return p.Stats().KillSwitch }, 20*time.Second, time.Millisecond)
	replace(rules, "kill_switch: false\n"+denyList)
	require.Eventually(t, func() bool { return !p.Stats().KillSwitch }, 20*time.Second, time.Millisecond)

	require.NoError(t, os.Remove(deny))
	require.Eventually(t, func() bool { return errors.Is(p.Stats().LastError, os.ErrNotExist) }, 20*time.Second, time.Millisecond)
	blocks("192.0.2.9", true)
	write(t, deny, "192.0.2.11\n")
	blocks("192.0.2.11", true)
	require.Eventually(t, func() bool { return p.Stats().LastError == nil }, 20*time.Second, time.Millisecond)

	other := filepath.Join(filepath.Dir(rules), "lists", "other.txt")
	replace(rules, strings.Replace(denyList, "deny.txt", "lists/other.txt", 1)) // the new file does not exist yet
	require.Eventually(t, func() bool { return p.Stats().LastError != nil }, 20*time.Second, time.Millisecond)
	write(t, other, "192.0.2.12\n")
	blocks("192.0.2.12", true)
	blocks("192.0.2.11", false)
}

// A ConfigMap contains links to the rules and to the list. They move together.
func TestAListInAConfigMapMovesWithItsRules(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	move := func(v, ip string) {
		t.Helper()
		require.NoError(t, os.Mkdir(filepath.Join(dir, "..2026_"+v), 0o700))
		write(t, filepath.Join(dir, "..2026_"+v, "rules.yaml"), "lists: {bad: deny.txt}\nversion: x\nrules:\n- {name: bad, match: {attributes: {ip: '@bad'}}, limit: blocked}\n")
		write(t, filepath.Join(dir, "..2026_"+v, "deny.txt"), ip)
		linkTo(t, "..2026_"+v, filepath.Join(dir, "..data"))
	}
	move("1", "192.0.2.1")
	for _, name := range []string{"rules.yaml", "deny.txt"} {
		require.NoError(t, os.Symlink("..data/"+name, filepath.Join(dir, name)))
	}
	p, _ := followed(t, policy.File(filepath.Join(dir, "rules.yaml")))
	becomes(t, p, "x")
	assert.False(t, p.Allow(attrs{"ip": "192.0.2.1"}, 1))
	move("2", "192.0.2.2")
	require.Eventually(t, func() bool { return !p.Allow(attrs{"ip": "192.0.2.2"}, 1) }, 20*time.Second, time.Millisecond)
	assert.True(t, p.Allow(attrs{"ip": "192.0.2.1"}, 1))
}

// BenchmarkDenyList decides on an address outside all of a list's 10,000 networks.
func BenchmarkDenyList(b *testing.B) {
	values := make([]string, 10_000)
	for i := range values {
		values[i] = fmt.Sprintf("11.%d.%d.0/25", i/250, i%250)
	}
	set := &policy.Set{Lists: map[string]policy.List{"bad": {Values: values}}, Rules: []policy.Rule{
		{Name: "bad", Match: policy.Match{Attributes: map[string][]string{"ip": {"@bad"}}}, Limit: ratelimit.Blocked()},
		{Name: "api", Key: []string{"ip"}, Limit: ratelimit.Unlimited()},
	}}
	p := ratelimit.Must(policy.New(set, nil))
	request := attrs{"ip": "11.20.30.200"}
	require.True(b, p.Allow(request, 1))
	require.False(b, p.Allow(attrs{"ip": "11.20.30.100"}, 1))
	b.ReportAllocs()
	for b.Loop() {
		p.Allow(request, 1)
	}
}
