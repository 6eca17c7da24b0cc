package keytext_test

import (
	"fmt"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"

	"github.com/weir-go/ratelimit/internal/keytext"
	"github.com/weir-go/ratelimit/keyfunc"
)

func TestThereIsOneValueOrNone(t *testing.T) {
	for name, row := range map[string]struct {
		values      []string
		raw, single string
		rawErr, err error
	}{
		"one":              {[]string{"k"}, "k", "k", nil, nil},
		"white space":      {[]string{" \tk k\t"}, " \tk k\t", "k k", nil, nil},
		"other space":      {[]string{"\nk\u00a0"}, "\nk\u00a0", "\nk\u00a0", nil, nil},
		"white space only": {[]string{" \t"}, " \t", "", nil, keyfunc.ErrNoKey},
		"empty":            {[]string{""}, "", "", keyfunc.ErrNoKey, keyfunc.ErrNoKey},
		"none":             {nil, "", "", keyfunc.ErrNoKey, keyfunc.ErrNoKey},
		"two":              {[]string{"s3cret", "s3cret"}, "", "", keyfunc.ErrMalformedKey, keyfunc.ErrMalformedKey},
		"empty, and one":   {[]string{"", "s3cret"}, "", "", keyfunc.ErrMalformedKey, keyfunc.ErrMalformedKey},
	} {
		t.Run(name, func(t *testing.T) {
			got, err := keytext.Raw(row.values, "field")
			assert.Equal(t, row.raw, got)
			check(t, row.rawErr, err)
			got, err = keytext.Single(row.values, "field")
			assert.Equal(t, row.single, got)
			check(t, row.err, err)
		})
	}
}

// check compares an error with the wanted one. Its text must name the field and contain no part of a value.
func check(t *testing.T, want, err error) {
	t.Helper()
	if want == nil {
		assert.NoError(t, err)
		return
	}
	assert.ErrorIs(t, err, want)
	assert.ErrorContains(t, err, "field")
	assert.NotContains(t, err.Error(), "s3cret")
}

func TestLongTextsAreNotKept(t *testing.T) {
	for _, n := range []int{0, 1, 1024} {
		got, err := keytext.Short(strings.Repeat("k", n), "field")
		assert.NoError(t, err)
		assert.Len(t, got, n)
	}
	got, err := keytext.Short(strings.Repeat("s3cret", 171), "field") // 1026 bytes
	assert.Empty(t, got)
	check(t, keyfunc.ErrMalformedKey, err)
	assert.ErrorContains(t, err, "1026 bytes")
	for _, verb := range []string{"%v", "%+v", "%#v", "%q", "%x"} {
		assert.NotContains(t, fmt.Sprintf(verb, err), "s3cret", verb)
	}
}

func TestTokensAreNamesOfFields(t *testing.T) {
	const others = "!#$%&'*+-.^_`|~"
	for c := range 256 {
		letter := 'a' <= c && c <= 'z' || 'A' <= c && c <= 'Z' || '0' <= c && c <= '9'
		want := letter || strings.ContainsRune(others, rune(c)) && c < 128
		s := string([]byte{byte(c)})
		assert.Equal(t, want, keytext.IsToken(s), "%q", s)
		assert.Equal(t, want, keytext.IsToken("a"+s+"b"), "%q", s)
	}
	assert.False(t, keytext.IsToken(""))
}

func TestHostHasOneSpelling(t *testing.T) {
	for _, host := range []string{"api.example", "API.Example", "api.example.", "api.example:80", "API.example.:443", "api.example:"} {
		assert.Equal(t, "api.example", keytext.Host(host))
	}
	for host, want := range map[string]string{"[2001:DB8::1]:80": "2001:db8::1", "[::1]": "[::1]", "::1": "::1", "": "", ".": "", "a:b:c": "a:b:c"} {
		assert.Equal(t, want, keytext.Host(host), host)
	}
}
