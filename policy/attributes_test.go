package policy_test

import (
	"fmt"
	"net/http/httptest"
	"net/netip"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/weir-go/ratelimit"
	"github.com/weir-go/ratelimit/httplimit"
	"github.com/weir-go/ratelimit/keyfunc"
	"github.com/weir-go/ratelimit/policy"
)

func TestAKeyOfNetworksOfBothFamilies(t *testing.T) {
	p := inForceOf(t, `- {name: a, key: ip/24/56, limit: fixed-window 1/h, overrides: [{key: "2001:DB8:0:ff00::/56", limit: blocked}, {key: 203.0.113.0/24, limit: blocked}]}`)
	for _, test := range []struct {
		ip   string
		want bool
	}{
		{"192.0.2.1", true}, {"192.0.2.200", false}, {"::ffff:192.0.2.3", false}, {"192.0.3.1", true},
		{"2001:db8:0:100::", true}, {"2001:db8:0:1ff::", false}, {"2001:db8:0:1ab:1:2:3:4", false}, {"2001:db8:0:200::", true},
		{"2001:db8:0:ff07::", false}, {"203.0.113.9", false}, {"fe80::1%eth0", true}, {"fe80::2", false},
	} {
		assert.Equal(t, test.want, p.Allow(policy.Attributes{"ip": test.ip}, 1), test.ip)
	}
	_, err := p.Take(t.Context(), policy.Attributes{"ip": "nobody"}, 1)
	require.ErrorIs(t, err, keyfunc.ErrMalformedKey)

	p = inForceOf(t, `- {name: a, key: [ip/32/56, user], limit: fixed-window 1/h, overrides: [{key: [192.0.2.9, ann], limit: blocked}]}`)
	request := func(ip string) bool { return p.Allow(policy.Attributes{"ip": ip, "user": "ann"}, 1) }
	assert.Equal(t, []bool{true, true, false, false}, []bool{request("192.0.2.1"), request("192.0.2.2"), request("::ffff:192.0.2.2"), request("192.0.2.9")}, "IPv4 addresses are whole")
	assert.Equal(t, []bool{true, false}, []bool{request("2001:db8::1"), request("2001:db8:0:ff::")})
	require.NoError(t, p.Reset(t.Context(), policy.Subject{Rule: "a", Key: []string{"2001:db8:0:7::", "ann"}}))
	assert.True(t, request("2001:db8:0:1::"))

	for key, fault := range map[string]string{
		"ip/24/56, limit: blocked, overrides: [{key: \"2001:db8::\", limit: blocked}]":     "want its network of 56 bits",
		"ip/24/56, limit: blocked, overrides: [{key: \"2001:db8::/64\", limit: blocked}]":  "a network of 64 bits, want 56",
		"ip/24/56, limit: blocked, overrides: [{key: \"2001:db8::1/56\", limit: blocked}]": "bits are set behind these",
		"ip/24, limit: blocked, overrides: [{key: \"2001:db8::/56\", limit: blocked}]":     "the key has IPv6 addresses",
		"ip/32/56, limit: blocked, overrides: [{key: 192.0.2.1/32, limit: blocked}]":       "want the address",
		"ip/24/56, limit: blocked, overrides: [{key: office, limit: blocked}]":             "nor an IPv6 network of 56",
		"ip/24/0, limit: blocked": "want ip/1 to ip/32, or with the bits of IPv6 such as ip/24/56",
	} {
		_, err := policy.Parse([]byte("rules:\n- {name: a, key: " + key + "}"))
		require.ErrorContains(t, err, fault, key)
	}
}

func TestKeysOfQueriesAndCookies(t *testing.T) {
	p := inForceOf(t, `
- {name: tokens, match: {attributes: {"query:v": ["2"]}}, key: query:token, limit: fixed-window 1/h, overrides: [{key: s3cret-vip, limit: fixed-window 3/h}]}
- {name: sessions, match: {route: /page}, key: "cookie:sid", optional: true, limit: fixed-window 2/h}`)
	request := func(target, cookies string) bool {
		r := httptest.NewRequest("GET", target, nil)
		if cookies != "" {
			r.Header.Set("Cookie", cookies)
		}
		return p.Allow(policy.HTTP(r, nil), 1)
	}
	for _, row := range []struct {
		target, cookies string
		allowed         []bool // each call's expected result, in order
	}{
		{"/x?v=2&token=s3cret-a", "", []bool{true, false}},
		{"/x?token=s3cret%2Da&v=2", "", []bool{false}},    // the same, spelt otherwise
		{"/x?v=1&token=s3cret-a", "", []bool{true, true}}, // another rule's
		{"/x?v=2&token=s3cret-b", "", []bool{true, false}},
		{"/?v=2&token=s3cret-vip", "", []bool{true, true, true, false}},
		{"/x?v=2&token=" + strings.Repeat("long", 1000), "", []bool{true, false}}, // a secret may have any length
		{"/page", "sid=s3cret-1", []bool{true}},
		{"/page", "a=b; sid=s3cret-1", []bool{true, false}},
		{"/page", "sid=s3cret-1; sid=s3cret-2", []bool{true, true}}, // neither of the two cookies counts
	} {
		for _, allowed := range row.allowed {
			assert.Equal(t, allowed, request(row.target, row.cookies), "%.30s %s", row.target, row.cookies)
		}
	}
	for _, target := range []string{"/x?v=2", "/x?v=2&token=", "/x?v=2&token=s3cret-c&token=s3cret-d"} {
		_, err := p.Take(t.Context(), policy.HTTP(httptest.NewRequest("GET", target, nil), nil), 1)
		require.ErrorIs(t, err, keyfunc.ErrNoKey, target)
	}
	ex, err := p.Explain(policy.HTTP(httptest.NewRequest("GET", "/x?v=2&token=s3cret-a", nil), nil), 1)
	require.NoError(t, err)
	assert.NotContains(t, ex.String(), "s3cret")
	denied := p.Denied(10)
	require.NotEmpty(t, denied)
	for _, d := range denied {
		assert.NotContains(t, d.Key, "s3cret")
	}
	long := policy.Subject{Rule: "tokens", Key: []string{strings.Repeat("long", 1000)}}
	d, err := p.Peek(t.Context(), long, 1)
	require.NoError(t, err)
	assert.False(t, d.Allowed, "a secret of any length has its budget")
	for _, key := range []string{"s3cret-a", ex.Rules[0].Key} {
		require.NoError(t, p.Reset(t.Context(), policy.Subject{Rule: "tokens", Key: []string{key}}))
		assert.True(t, request("/x?v=2&token=s3cret-a", ""), "the value, or its hash as it is listed")
		assert.False(t, request("/x?v=2&token=s3cret-a", ""))
	}
}

func TestTheClientsAddressBehindAProxyIsCut(t *testing.T) {
	_, warnings := policy.Check([]byte("rules:\n- {name: a, key: header:CF-Connecting-IP, limit: fixed-window 20/h}"))
	require.Len(t, warnings, 1)
	assert.ErrorContains(t, warnings[0], `"header:CF-Connecting-IP" holds an address`)
	assert.Equal(t, "rules[0].key[0]", warnings[0].Field)

	p := inForceOf(t, `- {name: a, key: ip, limit: fixed-window 20/h}`)
	// the proxies' networks
	address := ratelimit.Must(httplimit.ClientIP(httplimit.ClientIPOptions{Header: "CF-Connecting-IP", TrustedProxies: []netip.Prefix{netip.MustParsePrefix("192.0.2.0/24")}}))
	passed := 0
	for i := range 40 {
		r := httptest.NewRequest("GET", "/", nil)
		r.Header.Set("CF-Connecting-IP", "2001:db8::"+string("0123456789abcdef"[i%16]))
		ip, err := address(r)
		require.NoError(t, err)
		if p.Allow(policy.HTTP(r, policy.Attributes{"ip": ip.String()}), 1) {
			passed++
		}
	}
	assert.Equal(t, 20, passed, "one /64 has one budget")
}

func TestALimitFromAnAttribute(t *testing.T) {
	p := inForceOf(t, `- {name: api, key: user, limit: fixed-window 10/h, plans: {pro: fixed-window 20/h}, limit_from: quota, overrides: [{key: mallory, limit: blocked}]}`)
	passed := func(user, plan, quota string) (n int) {
		for range 60 {
			if p.Allow(policy.Attributes{"user": user, "plan": plan, "quota": quota}, 1) {
				n++
			}
		}
		return n
	}
	for _, row := range []struct {
		user, plan, quota string
		want              int
	}{
		{"ann", "", "", 10},
		{"bob", "pro", "", 20},   // without the attribute, the plan's limit
		{"cid", "pro", "30", 30}, // the number replaces the plan's units
		{"dan", "pro", "sliding-log 7/m", 7},
		{"eva", "", "unlimited", 60},
		{"mallory", "", "30", 0}, // an override wins
		{"ann", "", "40", 30},    // earlier spending counts under the new limit
	} {
		assert.Equal(t, row.want, passed(row.user, row.plan, row.quota), "%s with %q", row.user, row.quota)
	}
	assert.Zero(t, p.Stats().BadLimits)
	for i, quota := range []string{"often", "-3", "-0", "1e3", "99999999999999999999", "fixed-window 10", strings.Repeat("9", 2000)} {
		assert.Equal(t, 10, passed("bad"+string(rune('a'+i)), "pro", quota), "the rule's own limit: %.20s", quota)
	}
	assert.EqualValues(t, 7*60, p.Stats().BadLimits)
	ex, err := p.Explain(policy.Attributes{"user": "ann", "quota": "40"}, 1)
	require.NoError(t, err)
	assert.Contains(t, ex.String(), "fixed-window 40/h (from the attribute quota)")
	ex, err = p.Explain(policy.Attributes{"user": "ann", "quota": "no"}, 1)
	require.NoError(t, err)
	assert.Contains(t, ex.String(), "fixed-window 10/h (from the rule)")
	require.NoError(t, p.Each(t.Context(), "api", func(key []string, d ratelimit.Decision) bool {
		if key[0] == "cid" {
			assert.Equal(t, 30, d.Limit.Rate.Units, "its attribute, at its last decision")
		}
		return true
	}))
	_, err = policy.Parse([]byte("rules:\n- {name: a, limit: blocked, limit_from: header:X-Quota}"))
	require.ErrorContains(t, err, "sent by the client")
	bucket := inForceOf(t, `- {name: b, limit: token-bucket 1/s burst 5, limit_from: quota}`)
	d, err := bucket.Take(t.Context(), policy.Attributes{"quota": "3"}, 1)
	require.NoError(t, err)
	assert.Equal(t, "token-bucket 3/s burst 15", d.Limit.Named("").String())
}

// A contract for a hundredth of the rule's rate also has a hundredth of its burst.
func TestANumberInLimitFromScalesTheWholeLimit(t *testing.T) {
	for rule, want := range map[string]map[string]string{
		"token-bucket 100000/m burst 100000": {"1000": "token-bucket 1000/m burst 1000", "1": "token-bucket 1/m burst 1", "200000": "token-bucket 200000/m burst 200000", "0": "blocked"},
		"token-bucket 3/s burst 10":          {"1": "token-bucket 1/s burst 3", "2": "token-bucket 2/s burst 6", "+6": "token-bucket 6/s burst 20", "-0": "token-bucket 3/s burst 10"},
		"token-bucket 100/s burst 5":         {"1": "token-bucket 1/s burst 1"},
		"token-bucket 1/s burst 1000000000":  {"9223372036854775807": "token-bucket 1/s burst 1000000000"},
		"leaky-bucket 10/s queue 20":         {"5": "leaky-bucket 5/s queue 10", "1": "leaky-bucket 1/s queue 2", "00": "blocked"},
		"fixed-window 10/h":                  {"30": "fixed-window 30/h", "0": "blocked"},
		"concurrent 8 hold 1m":               {"4": "concurrent 4 hold 1m", "0": "blocked"},
		"unlimited":                          {"0": "blocked", "5": "unlimited"},
	} {
		p := inForceOf(t, "- {name: api, key: user, limit: "+rule+", limit_from: quota}")
		for quota, limit := range want {
			r, err := p.Reserve(t.Context(), policy.Attributes{"user": quota, "quota": quota}, 1, 0)
			if limit == "blocked" {
				require.ErrorIs(t, err, ratelimit.ErrBlocked, "%s under %s", quota, rule)
				continue
			}
			require.NoError(t, err, "%s under %s", quota, rule)
			assert.Equal(t, limit, r.Decision.Limit.Named("").String(), "%s under %s", quota, rule)
		}
	}
	p := inForceOf(t, "- {name: api, key: user, limit: token-bucket 100000/m burst 100000, limit_from: quota}")
	passed := 0
	for range 5000 {
		if p.Allow(policy.Attributes{"user": "ann", "quota": "1000"}, 1) {
			passed++
		}
	}
	assert.InDelta(t, 1000, passed, 50, "at once")
	assert.Zero(t, p.Stats().BadLimits)
}

func TestCheckWarnsOfAttributesThatNothingSupplies(t *testing.T) {
	warningsOf := func(text string) (all []string) {
		set, warnings := policy.Check([]byte(text))
		require.NotNil(t, set, "%v", warnings)
		for _, w := range warnings {
			all = append(all, w.Field+": "+w.Err.Error())
			assert.Contains(t, w.Err.Error(), "policy.HTTP supplies method, host, path, route, ip, header:NAME, query:NAME and cookie:NAME")
		}
		return all
	}
	for name, meant := range map[string]string{
		"Path": "path", "hosts": "host", "methd": "method", "routes": "route", "IP": "ip",
		"headers:X-Key": "header:X-Key", "Header:X-Key": "header:X-Key", "param:token": "query:token", "query.token": "query:token", "cookies:sid": "cookie:sid",
	} {
		got := warningsOf("rules:\n- {name: a, key: [\"" + name + "\"], limit: unlimited}")
		require.Len(t, got, 1, name)
		assert.Contains(t, got[0], `"`+meant+`", maybe`)
	}
	fine := `rules: [{name: a, match: {attributes: {tenant: acme, "header:X": y}, not: {route: /x, prefix: {path: /y}}, absent: [post]}, key: [user, "query:token", "cookie:sid", ip/24/56, "jwt:sub"], cost: tokens, limit: fixed-window 5/h, plans: {free: blocked}, limit_from: quota}]`
	assert.Empty(t, warningsOf(fine))
	got := warningsOf("attributes: [user, \"jwt:sub\"]\n" + fine)
	assert.Len(t, got, 5, "%v", got)
	for i, field := range []string{"match.attributes.tenant", "match.absent[0]", "plans", "cost", "limit_from"} {
		assert.Contains(t, strings.Join(got, "\n"), "rules[0]."+field+": ", i)
	}
	assert.Empty(t, warningsOf("attributes: [user, \"jwt:sub\", tenant, post, tokens, plan, quota]\n"+fine))
}

func TestAnAttributeOfTheRequestNeedsAName(t *testing.T) {
	for _, rule := range []string{`key: ["query:"]`, `key: ["user", "cookie:"]`, `match: {attributes: {"header:": x}}`, `match: {absent: ["query:"]}`, `cost: "header:"`} {
		_, err := policy.Parse([]byte("rules:\n- {name: a, limit: blocked, " + rule + "}"))
		assert.ErrorContains(t, err, "has no name behind the colon", rule)
	}
	_, err := policy.Parse([]byte("rules:\n- {name: a, limit: blocked, key: [header:x-tenant, header:X-Tenant]}"))
	require.ErrorContains(t, err, `rules[0].key[1]: the attribute "header:X-Tenant" is there twice`)
	_, err = policy.Parse([]byte("rules:\n- {name: a, limit: blocked, key: [query:t, query:T, cookie:t, cookie:T]}"))
	require.NoError(t, err, "parameters and cookies differ by case")
}

// A token may contain such values because of a bug, or because a customer has chosen them in a form.
func TestAttributesOfLimitFromThatAreNoLimitsMeanTheRulesOwn(t *testing.T) {
	p := inForceOf(t, `- {name: api, key: user, limit: fixed-window 10/h, limit_from: quota}`)
	for i, quota := range []string{"9999999999999/s", " 30", "30 ", "-0", "\u0663\u0660", "30\x00", "fixed-window 5/0s", "Unlimited", "token-bucket 5/s burst 99999999999999999999",
		"fixed-window 5/999999999h", "\xff", "fixed-window -5/h", "calendar 5/hour Mars/Phobos"} {
		d, err := p.Take(t.Context(), policy.Attributes{"user": fmt.Sprint(i), "quota": quota}, 1)
		require.NoError(t, err)
		assert.Equal(t, "fixed-window 10/h", d.Limit.Named("").String(), "%q", quota)
		assert.EqualValues(t, i+1, p.Stats().BadLimits, "%q", quota)
	}
	d, err := p.Take(t.Context(), policy.Attributes{"user": "none", "quota": ""}, 1)
	require.NoError(t, err)
	assert.Equal(t, 9, d.Remaining, "an empty value is none, and not counted")
	assert.EqualValues(t, 13, p.Stats().BadLimits)
}
