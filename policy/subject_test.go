package policy_test

import (
	"bytes"
	"encoding/json"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/weir-go/ratelimit/internal/dev/testsize"
	"github.com/weir-go/ratelimit/policy"
)

// TestErrorsHoldNoKey checks that no error contains a value that may be a key, wherever the value is in a file.
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

// TestAReportedKeyCanBeNamed checks that support can reset each key that is listed as denied, whatever its values.
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

// TestASubjectOfIPv4Networks uses a rule whose keys are networks. An address stands for its network.
// A text that cannot be a key of the rule is an error, and is not taken for a key without spending.
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

// TestALongLineOfJSON checks that a file without line breaks is read
// about as fast as the same file with them, however long it is.
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
