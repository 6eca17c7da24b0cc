package match

import (
	"math/rand/v2"
	"net/http"
	"net/http/httptest"
	"net/url"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/weir-go/ratelimit/internal/dev/testsize"
)

// TestAWildcardStandsForTheTextOfPathValue draws patterns that a
// mux accepts together, and paths with escaped letters and slashes.
func TestAWildcardStandsForTheTextOfPathValue(t *testing.T) {
	r := rand.New(rand.NewPCG(74, 15))
	pick := func(words ...string) string { return words[r.IntN(len(words))] }
	found := 0
	for range testsize.Of(8_000, 100_000) {
		var patterns []string
		mux := http.NewServeMux()
		got := map[string]string{}
		served := ""
		for range 1 + r.IntN(4) {
			text := pick("", "", "GET ", "POST ", "HEAD ") + pick("", "", "", "a.example")
			names := []string{"id", "path", "ip", "host"}
			for range 1 + r.IntN(3) {
				i := r.IntN(len(names))
				text += pick("/a", "/b", "/b%2Fc", "/{"+names[i]+"}")
				if strings.HasSuffix(text, "}") {
					names = append(names[:i:i], names[i+1:]...)
				}
			}
			text += pick("", "", "/", "/{$}", "/{"+names[0]+"...}")
			func() {
				defer func() { _ = recover() }() // the patterns conflict
				mux.HandleFunc(text, func(_ http.ResponseWriter, req *http.Request) {
					served = text
					for _, name := range []string{"id", "path", "ip", "host"} {
						got[name] = req.PathValue(name)
					}
				})
				patterns = append(patterns, text)
			}()
		}
		path := ""
		for range 1 + r.IntN(4) {
			path += pick("/a", "/b", "/b%2Fc", "/%61", "/x%20y", "/%zz", "/%2f", "/") + pick("", "", "%41")
		}
		if path != cleanPath(path) {
			continue // a mux redirects the request
		}
		u := &url.URL{Scheme: "http", Host: "a.example"}
		decoded, err := url.PathUnescape(path)
		if err != nil {
			continue
		}
		u.Path, u.RawPath = decoded, path
		req := &http.Request{Method: pick("GET", "POST", "HEAD"), URL: u, Host: pick("a.example", "b.example:80"), Header: http.Header{}}
		served = ""
		mux.ServeHTTP(httptest.NewRecorder(), req)
		if served == "" {
			continue
		}
		var all []Pattern
		for _, text := range patterns {
			p, err := ParsePattern(text)
			require.NoError(t, err)
			all = append(all, p)
		}
		w := NewWildcards(all)
		of, err := ParsePattern(served)
		require.NoError(t, err)
		names, _ := of.Wildcards()
		a := Attributes{"method": req.Method, "host": req.Host, "path": path}
		for _, name := range names {
			value, ok := w.Value(a, name)
			assert.True(t, ok)
			assert.Equal(t, got[name], value, "{%s} of %s among %q, for %v", name, served, patterns, a)
			found++
		}
	}
	assert.Greater(t, found, 300)
}

func TestAConditionOnAWildcardHoldsByAnyReadingOrByAll(t *testing.T) {
	p, err := ParsePattern("/users/{id}/")
	require.NoError(t, err)
	rule := func(kind Kind, exempts bool) *Rule {
		c := NewCondition(kind, "wildcard:id", []string{"42"}).Of(NewWildcards([]Pattern{p}), "id")
		return &Rule{Patterns: []Pattern{p}, Conditions: []Condition{c}, Exempts: exempts}
	}
	x := New([]*Rule{rule(OneOf, false), rule(OneOf, true), rule(NoneOf, false), rule(NoneOf, true), rule(Absent, false)})
	for path, want := range map[string][]int{
		"/users/42/":      {0, 1},
		"/users/%34%32/":  {0, 1},
		"/users/7/":       {2, 3},
		"/users/42%2Fx/":  {0, 2}, // 42/x for a server splitting first, and 42 for one decoding first
		"/users/42%2Fx":   {0},    // for a server splitting first, this path does not match
		"/users/x/../42/": {0, 2}, // x for a server without cleaning
		"/others/42/":     nil,
	} {
		assert.Equal(t, want, x.Match(Attributes{"path": path}), path)
	}
}
