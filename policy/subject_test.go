package policy_test

import (
	"bytes"
	"encoding/json"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/weir-go/ratelimit"
	"github.com/weir-go/ratelimit/internal/dev/testsize"
	"github.com/weir-go/ratelimit/keyfunc"
	"github.com/weir-go/ratelimit/policy"
)

// TestErrorsHoldNoKey checks that no error contains a possible key, wherever the key stands in a file.
func TestErrorsHoldNoKey(t *testing.T) {
	for _, text := range []string{
		rule("  key: ip/24\n  overrides: [{key: 203.0.113.7/24, limit: blocked}]\n"),
		rule("  key: ip/24\n  overrides: [{key: 203.0.113.0/25, limit: blocked}]\n"),
		rule("  key: ip/24\n  overrides: [{key: 203.0.113.7, limit: blocked}]\n"),
		rule("  key: ip/24\n  overrides: [{key: \"::ffff:203.0.113.7\", limit: blocked}]\n"),
		rule("  key: ip/24\n  overrides: [{key: mallory, limit: blocked}]\n"),
		rule("  key: user\n  overrides: [{mallory: blocked}]\n"),
		rule("  key: user\n  overrides: [{mallory: blocked, mallory: blocked}]\n"),
		rule("  key: user\n  overrides: {mallory: blocked}\n"),
		rule("  key: user\n  overrides: [mallory]\n"),
		rule("  key: user\n  overrides: [{key: mallory, limit: blocked}, {key: mallory, limit: blocked}]\n"),
		rule("  key: user\n  overrides: [{key: [mallory, mallory], limit: blocked}]\n"),
		rule("  key: user\n  overrides: [{key: {mallory: 1}, limit: blocked}]\n"),
		rule("  key: user\n  overrides: [{key: &mallory mallory, limit: blocked}]\n"),
		rule("  key: user\n  overrides: [{key: !mallory mallory, limit: blocked}]\n"),
		rule("  key: user\n  overrides: [{key: mallory}]\n"),
		"{\"rules\": [{\"name\": \"a\", \"key\": [\"user\"], \"limit\": \"blocked\", \"overrides\": [{\"mallory\": \"blocked\"}]}]}",
	} {
		_, errs := policy.Check([]byte(text))
		require.NotEmpty(t, errs, text)
		for _, err := range errs {
			assert.NotContains(t, err.Error(), "mallory", text)
			assert.NotContains(t, err.Error(), "203.0.113", text)
			assert.Positive(t, err.Line, text)
			assert.Positive(t, err.Column, text)
		}
	}
	_, err := policy.Parse([]byte(rule("  key: user\n  overrides: [{key: *mallory, limit: blocked}]\n")))
	require.ErrorContains(t, err, "an alias, which is not supported")
	assert.NotContains(t, err.Error(), "mallory")
	_, errs := policy.Check([]byte(rule("  key: user\n  overrides: [{kye: mallory, limt: blocked}]\n")))
	require.Len(t, errs, 2)
	assert.ErrorContains(t, errs[0], `"key", maybe`)
	assert.ErrorContains(t, errs[1], `"limit", maybe`)
}

// TestAReportedKeyCanBeNamed checks that support can reset each key listed as denied, whatever its values.
func TestAReportedKeyCanBeNamed(t *testing.T) {
	p, _, _ := inForce(t, "rules:\n- {name: a, key: [user, tenant, ip/24], limit: fixed-window 1/h}\n- {name: b, key: user, limit: fixed-window 1/h}\n- {name: c, limit: fixed-window 1/h}")
	values := map[string][]string{"a": {"3:ann", "12:x\n:4", "192.0.2.0/24"}, "b": {"3:ann"}, "c": nil}
	r := attrs{"user": "3:ann", "tenant": "12:x\n:4", "ip": "192.0.2.7"}
	require.True(t, p.Allow(r, 1))
	require.False(t, p.Allow(r, 1))
	denied := p.Denied(10)
	require.Len(t, denied, 3)
	for _, d := range denied {
		want := values[d.Rule]
		assert.Equal(t, want, policy.ValuesOf(d.Key, len(want)))
		require.NoError(t, p.Reset(t.Context(), policy.Subject{Rule: d.Rule, Key: policy.ValuesOf(d.Key, len(want))}))
	}
	assert.True(t, p.Allow(r, 1), "all are freed")
	assert.Empty(t, policy.ValuesOf("ann", 2), "no key of two values")
}

// TestASubjectOfIPv4Networks uses a rule whose keys are networks. An address stands for its
// network. A text unfit for a key of the rule is an error, and not a key without spending.
func TestASubjectOfIPv4Networks(t *testing.T) {
	p, _, _ := inForce(t, "rules:\n- {name: a, key: [ip/24], limit: fixed-window 5/h}")
	require.True(t, p.Allow(attrs{"ip": "192.0.2.7"}, 2))
	require.True(t, p.Allow(attrs{"ip": "2001:db8::"}, 1))
	for key, want := range map[string]int{"192.0.2.7": 3, "192.0.2.200": 3, "192.0.2.0/24": 3, "::ffff:192.0.2.1": 3, "2001:db8::": 4, "192.0.3.0/24": 5} {
		d, err := p.Peek(t.Context(), policy.Subject{Rule: "a", Key: []string{key}}, 1)
		require.NoError(t, err, key)
		assert.Equal(t, want, d.Remaining, key)
	}
	for _, key := range []string{"192.0.2.0/25", "192.0.2.7/24", "192.0.0.0/16", "mallory", "2001:db8::/64"} {
		_, err := p.Peek(t.Context(), policy.Subject{Rule: "a", Key: []string{key}}, 1)
		require.Error(t, err, key)
		assert.NotContains(t, err.Error(), key)
		require.Error(t, p.Reset(t.Context(), policy.Subject{Rule: "a", Key: []string{key}}), key)
		require.Error(t, p.Adjust(t.Context(), policy.Subject{Rule: "a", Key: []string{key}}, 1), key)
	}
	_, err := policy.Parse([]byte(rule("  key: ip/24\n  overrides: [{key: 192.0.2.0/24, limit: blocked}, {key: \"2001:db8::\", limit: blocked}]\n")))
	require.NoError(t, err)
}

// TestColumnsAreCharacters checks that columns in YAML and in JSON are counted as editors do.
func TestColumnsAreCharacters(t *testing.T) {
	for _, text := range []string{
		"rules:\n- {description: \"ééé\", limt: unlimited, name: a}\n",
		"{\"rules\": [\n{\"description\": \"ééé\", \"limt\": \"unlimited\", \"name\": \"a\"}]}",
	} {
		_, errs := policy.Check([]byte(text))
		require.Len(t, errs, 2)
		assert.Equal(t, []int{2, 24}, []int{errs[1].Line, errs[1].Column}, text)
	}
}

// TestALongLineOfJSON checks that a file without line breaks is read about as fast as the same file with them, at any length.
func TestALongLineOfJSON(t *testing.T) {
	testsize.Alone(t)
	line, err := json.Marshal(parsed(t, many(2000, "POST /v1/charges")))
	require.NoError(t, err)
	var lines bytes.Buffer
	require.NoError(t, json.Indent(&lines, line, "", " "))
	took := func(data []byte) time.Duration {
		begin := time.Now()
		set, err := policy.Parse(data)
		require.NoError(t, err)
		require.Len(t, set.Rules, 2000)
		return time.Since(begin)
	}
	for range 20 { // the machine may delay a single reading
		if took(line) < 5*took(lines.Bytes()) {
			return
		}
	}
	t.Error("a long line takes five times as long, each time")
}

func TestAKeyIsShownByItsValues(t *testing.T) {
	assert.Equal(t, []string{"a:b", "", "3:x"}, policy.ValuesOf("3:a:b0:3:3:x", 3))
	assert.Equal(t, []string{"7:a"}, policy.ValuesOf("7:a", 1))
	assert.Empty(t, policy.ValuesOf("", 0))
	for _, garbage := range []string{"", "x", "9:a", "-1:a", "1:a"} {
		assert.Less(t, len(policy.ValuesOf(garbage, 3)), 3, garbage)
	}
}

// TestSupportFreesAndFinanceCharges reads, charges and resets single budgets, with and without OnDecision.
func TestSupportFreesAndFinanceCharges(t *testing.T) {
	const text = `
rules:
- {name: api, key: [user, region], limit: unlimited, plans: {pro: fixed-window 100/h}, overrides: [{key: [acme, eu], limit: token-bucket 50/h burst 50}]}
- {name: nets, key: ip/24, limit: sliding-log 10/h, cost: 3, shadow: true, optional: true}
- {name: all, limit: fixed-window 1000/h}
- {name: probes, allow: true, match: {route: /health}}
`
	ann, acme := policy.Subject{Rule: "API", Key: []string{"ann", "eu"}, Plan: "pro"}, policy.Subject{Rule: "api", Key: []string{"acme", "eu"}}
	net, all := policy.Subject{Rule: "nets", Key: []string{"192.0.2.7"}}, policy.Subject{Rule: "all"}
	request := policy.Attributes{"user": "ann", "region": "eu", "plan": "pro", "ip": "192.0.2.9"}
	for name, hook := range map[string]func(policy.Decision){"without": nil, "with": func(policy.Decision) {}} {
		p := ratelimit.Must(policy.New(parsed(t, text), &policy.Options{OnDecision: hook}))
		adjust := func(r policy.Request, delta int) { require.NoError(t, p.Adjust(t.Context(), r, delta), name) }
		reset := func(r policy.Request) { require.NoError(t, p.Reset(t.Context(), r), name) }
		look := func(r policy.Request, cost int) ratelimit.Decision {
			d, err := p.Peek(t.Context(), r, cost)
			require.NoError(t, err)
			return d
		}
		standing := func(want ...int) {
			t.Helper()
			assert.Equal(t, want, []int{look(ann, 1).Remaining, look(acme, 1).Remaining, look(net, 1).Remaining, look(all, 1).Remaining}, name)
		}
		require.True(t, p.Allow(request, 40))
		standing(60, 50, 7, 960)
		for s, remaining := range map[*policy.Subject]int{&ann: 60, &net: 7, &acme: 50} {
			d, err := p.Peek(t.Context(), s, 101)
			require.ErrorIs(t, err, ratelimit.ErrExceedsLimit, name)
			assert.Equal(t, []any{false, remaining}, []any{d.Allowed, d.Remaining}, "%d: what is left, although the cost can never pass", name)
		}
		ex, err := p.Explain(request, 101)
		require.NoError(t, err)
		assert.Equal(t, []int{60, 7, 960}, []int{ex.Rules[0].Decision.Remaining, ex.Rules[1].Decision.Remaining, ex.Rules[2].Decision.Remaining}, name)
		adjust(ann, 70)
		standing(0, 50, 7, 960)
		assert.False(t, look(ann, 1).Allowed)
		adjust(ann, -20)
		standing(10, 50, 7, 960)
		reset(ann)
		adjust(acme, 45)
		adjust(policy.Subject{Rule: "nets", Key: []string{"192.0.2.0/24"}}, -3)
		standing(100, 5, 10, 960)
		for _, bad := range []policy.Subject{{Rule: "none"}, {Rule: "probes"}, {Rule: "api", Key: []string{"ann"}}, {Rule: "api", Key: []string{"ann", ""}}, {Rule: "all", Key: []string{"x"}}} {
			_, err := p.Peek(t.Context(), bad, 1)
			for _, err := range []error{err, p.Reset(t.Context(), bad), p.Adjust(t.Context(), bad, 1)} {
				require.Error(t, err)
				assert.NotContains(t, err.Error(), "ann")
			}
		}
		adjust(request, 30)
		standing(70, 5, 10, 930) // the shadow has its own cost
		d := look(request, 60)
		assert.Equal(t, []any{true, 70}, []any{d.Allowed, d.Remaining}, name)
		reset(request)
		standing(100, 5, 10, 1000)
		assert.True(t, look(policy.Attributes{"path": "/health"}, 5).Allowed, name)
		_, err = p.Peek(t.Context(), policy.Attributes{}, 5)
		require.ErrorIs(t, err, keyfunc.ErrNoKey)
		_, err = p.Peek(t.Context(), all, -1)
		require.ErrorIs(t, err, ratelimit.ErrNegativeCost)
		assert.True(t, p.Describe().ReplacesCost)
	}
}
