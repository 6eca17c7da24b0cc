package policy_test

import (
	"fmt"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/weir-go/ratelimit"
	"github.com/weir-go/ratelimit/policy"
)

// A pattern in another program's form does not match the intended request. The warning contains a pattern that does.
func TestRoutesOfOtherProgramsAreWarningsWithTheRightForm(t *testing.T) {
	for _, test := range []struct{ route, request, want, better string }{
		{"post /login", "POST /login", `route "post /login" matches the method "post", and requests have it in capital letters: write "POST /login"`, "POST /login"},
		{"/v1/*", "GET /v1/x", `route "/v1/*" matches the path "/v1/*" alone: write "/v1/"`, "/v1/"},
		{"/v1/**", "GET /v1/x/y", `route "/v1/**" matches the path "/v1/**" alone: write "/v1/"`, "/v1/"},
		{"POST /v1/:id", "POST /v1/7", `route "POST /v1/:id" matches the path "/v1/:id" alone: write "POST /v1/{id}"`, "POST /v1/{id}"},
		{"/search?q=1", "GET /search?q=1", `a condition on the query is attributes: {"query:q": "1"}): write "/search"`, "/search"},
		{"/search?", "GET /search?q=1", `write "/search"`, "/search"},
		{"/a#b", "GET /a", `a fragment, which no client sends: write "/a"`, "/a"},
		{"PSOT /x", "POST /x", `the method "PSOT", which HTTP does not have: write "POST /x"`, "POST /x"},
		{"Any /x", "PUT /x", `and not every method: write "/x"`, "/x"},
		{"* /x", "PUT /x", `write "/x"`, "/x"},
		{"GET|POST /x", "GET /x", `write "GET /x" and "POST /x"`, "GET /x"},
		{"get api.example.com:8080/v1/*", "GET api.example.com/v1/x", `write "GET api.example.com/v1/"`, "GET api.example.com/v1/"},
		{"/v1/*/x", "GET /v1/7/x", `write "/v1/{any}/x"`, "/v1/{any}/x"},
		{"/v1/:id/x/:id", "GET /v1/7/x/8", `write "/v1/{id}/x/{id2}"`, "/v1/{id}/x/{id2}"},
		{"/v1/:id?", "GET /v1/7", `write "/v1/{id}"`, "/v1/{id}"},
		{`/v1/:id(\d+)`, "GET /v1/7", `write "/v1/{id}"`, "/v1/{id}"},
		{"/v1/<int:id>", "GET /v1/7", `write "/v1/{id}"`, "/v1/{id}"},
		{"/v1/<path:rest>", "GET /v1/7/8", `write "/v1/{rest...}"`, "/v1/{rest...}"},
		{"/v1/<id>/x", "GET /v1/7/x", `write "/v1/{id}/x"`, "/v1/{id}/x"},
		{"/v1/[id]", "GET /v1/7", `write "/v1/{id}"`, "/v1/{id}"},
		{"/v1/[...slug]", "GET /v1/7/8", `write "/v1/{slug...}"`, "/v1/{slug...}"},
		{"/v1/*path", "GET /v1/7/8", `write "/v1/{path...}"`, "/v1/{path...}"},
		{"/v1/.*", "GET /v1/7/8", `write "/v1/"`, "/v1/"},
		{"/v1/(.*)", "GET /v1/7/8", `write "/v1/"`, "/v1/"},
		{"/v1/[0-9]+", "GET /v1/7", `write "/v1/{any}"`, "/v1/{any}"},
		{`/v1/\d+/x`, "GET /v1/7/x", `write "/v1/{any}/x"`, "/v1/{any}/x"},
		{"/v1/$", "GET /v1/", `write "/v1/{$}"`, "/v1/{$}"},
		{"/v1$", "GET /v1", `write "/v1"`, "/v1"},
		{"/files/*.json", "GET /files/a.json", `use a condition such as prefix: {path: /files/} or suffix: {path: .json}`, ""},
		{"/v1*", "GET /v1x", `use a condition such as prefix: {path: /files/}`, ""},
		{"*.example.com/", "GET a.example.com/", `suffix: {host: .example.com}`, ""},
		{"bücher.example/", "GET xn--bcher-kva.example/", `xn--…`, ""},
	} {
		for _, not := range []bool{false, true} {
			rule, field := "match: {route: [%q]}", "rules[0].match.route[0]"
			if not {
				rule, field = "match: {not: {route: [%q]}}", "rules[0].match.not.route[0]"
			}
			set, all := policy.Check(fmt.Appendf(nil, "rules: [{name: a, limit: blocked, "+rule+"}]", test.route))
			require.NotNil(t, set, "%s: %v", test.route, all)
			require.Len(t, all, 1, test.route)
			assert.Equal(t, field, all[0].Field)
			require.ErrorContains(t, all[0], test.want)
		}
		assert.True(t, passes(t, test.route, test.request), "%s does not match %s", test.route, test.request)
		if test.better != "" {
			assert.False(t, passes(t, test.better, test.request), "%s matches %s", test.better, test.request)
			assert.Contains(t, test.want, test.better)
		}
	}
}

// passes reports whether a rule blocking a route lets a request pass.
func passes(t *testing.T, route, request string) bool {
	t.Helper()
	p, err := policy.New(&policy.Set{Rules: []policy.Rule{{Name: "a", Limit: ratelimit.Blocked(), Match: policy.Match{Route: []string{route}}}}}, nil)
	require.NoError(t, err)
	method, target, _ := strings.Cut(request, " ")
	if target[0] != '/' {
		target = "http://" + target
	}
	return p.Allow(policy.HTTP(httptest.NewRequest(method, target, nil), nil), 1)
}

// TestErrorsAboutRoutesNameTheRightForm uses patterns refused by ServeMux. The error must contain the intended pattern.
func TestErrorsAboutRoutesNameTheRightForm(t *testing.T) {
	for route, want := range map[string]string{
		"https://api.example.com/v1/":      `"api.example.com/v1/", maybe`,
		"https://api.example.com":          `"api.example.com/", maybe`,
		"GET https://api.example.com/v1/*": `"GET api.example.com/v1/", maybe`,
		"api.example.com":                  `"api.example.com/", maybe`,
		"GET,POST /x":                      `"GET /x" and "POST /x", maybe`,
		"login":                            `"/login", maybe`,
		"login/x":                          `write "/login/x" for the path`,
		"GET/login":                        `write "GET /login" for the path`,
		"v1/*":                             `write "/v1/" for the path`,
		"GET login":                        `"GET /login", maybe`,
		"^/v1/.*$":                         `write "/v1/" for the path`,
		"/v1/{id:[0-9]+}":                  `"/v1/{id}", maybe`,
		"/v1/{id:[0-9]{3}}/x":              `"/v1/{id}/x", maybe`,
		"/v1/{user-id}":                    `"/v1/{user_id}", maybe`,
		"/v1/{}":                           `"/v1/{any}", maybe`,
		"/v1/{*path}":                      `"/v1/{path...}", maybe`,
		"/v1/{proxy+}":                     `"/v1/{proxy...}", maybe`,
		"/v1/{id?}":                        `"/v1/{id}", maybe`,
		"/v1/{{id}}":                       `"/v1/{id}", maybe`,
		"/v1/{id}.json":                    `"/v1/{id}", maybe`,
		"/v1/{id}/{id}":                    `"/v1/{id}/{id2}", maybe`,
		"/v1/{p...}/x":                     `{...} wildcard not at end`,
		"{tenant}.example.com/":            `suffix: {host: .example.com}`,
		"/a b":                             `"/a%20b", maybe`,
	} {
		set, all := policy.Check(fmt.Appendf(nil, "rules: [{name: a, limit: blocked, match: {route: [%q]}}]", route))
		assert.Nil(t, set, route)
		require.Len(t, all, 1, route)
		assert.ErrorContains(t, all[0], want)
	}
}

// TestOrdinaryRulesHaveNoWarning uses paths with colons, dollars, brackets and parentheses.
func TestOrdinaryRulesHaveNoWarning(t *testing.T) {
	for _, route := range []string{
		"/", "/v1/", "/v1/{id}", "GET /v1/{id}/{$}", "/v1/{id...}", "example.com/", "GET example.com/x", "/Products(1)", "/$metadata", "/v1/projects:batch", "/a/:", "PROPFIND /", "/café",
		"/x/[a]b", "POST  /x", "/v1/%2A", "CONNECT example.com:443/", "localhost/x", "/a.b/c", "/a-b_c~d", "/v1/{user_id}/{order_id}", "/@user", "/a+b", "/a=b;c",
	} {
		set, all := policy.Check(fmt.Appendf(nil, "rules: [{name: a, limit: blocked, match: {route: [%q]}}]", route))
		assert.NotNil(t, set, route)
		assert.Empty(t, all, route)
	}
	for _, rule := range []string{
		"key: user", "key: [ip/24/56, header:X-Tenant]", "key: header:authorization", "key: header:X-Forwarded-Host", "key: query:path", "key: cookie:host",
		"match: {suffix: {path: .json}}", "match: {attributes: {host: [a.example, localhost, '[::1]']}}", "match: {suffix: {host: .example.com}}", "match: {attributes: {method: [PURGE]}}",
		"match: {route: ['POST /x', '/y'], attributes: {method: [GET]}}", "match: {route: ['GET /x'], attributes: {method: [HEAD]}}", "key: path, overrides: [{key: /a, limit: unlimited}]",
	} {
		set, all := policy.Check(fmt.Appendf(nil, "rules: [{name: a, limit: blocked, %s}]", rule))
		assert.NotNil(t, set, rule)
		assert.Empty(t, all, rule)
	}
	files, err := filepath.Glob("../examples/servers/*/rules.yaml")
	require.NoError(t, err)
	require.NotEmpty(t, files)
	for _, file := range files {
		data, err := os.ReadFile(file)
		require.NoError(t, err)
		_, all := policy.Check(data)
		assert.Empty(t, all, file)
	}
}

// TestKeysAndValuesThatNoRequestHasAreWarnings uses rules whose attributes come from HTTP.
func TestKeysAndValuesThatNoRequestHasAreWarnings(t *testing.T) {
	for rule, want := range map[string]string{
		"key: path:id":                                       `key[0]: the attribute "path:id": no request has it, as the wildcards of a route are no attributes. Write "path"`,
		"key: route:id":                                      `the wildcards of a route are no attributes`,
		"key: 'ip:24'":                                       `"ip/24" for networks`,
		"key: host:name":                                     `"host", maybe`,
		"key: header:Host":                                   `which net/http takes out of the header: write "host"`,
		"key: 'header::authority'":                           `net/http has no such header field`,
		"key: header:a:b":                                    `no header field has a colon`,
		"key: header:Authorisation":                          `"header:Authorization", maybe`,
		"key: header:Referrer":                               `"header:Referer", maybe`,
		"key: remote_addr":                                   `"ip", maybe`,
		"key: uri":                                           `"path", maybe`,
		"match: {absent: [path:id]}":                         `match.absent[0]: the attribute "path:id"`,
		"match: {attributes: {method: [GET, post]}}":         `match.attributes.method[1]: "post" is a method in small letters`,
		"match: {attributes: {method: [GTE]}}":               `"GTE" is a method that HTTP does not have`,
		"match: {prefix: {path: v1}}":                        `match.prefix.path[0]: "v1" is a path without a slash at its beginning`,
		"match: {prefix: {path: /v1/*}}":                     `a path with a wildcard`,
		"match: {attributes: {path: ['/x?y=1']}}":            `compare the attribute query:NAME`,
		"match: {not: {path: ['/a/:id']}}":                   `match.not.path[0]: "/a/:id" is a path with a wildcard`,
		"match: {not: {prefix: {path: status}}}":             `match.not.prefix.path[0]`,
		"match: {attributes: {host: ['https://a.example']}}": `write the host alone`,
		"match: {attributes: {host: ['a.example:8080']}}":    `a host with a port`,
		"match: {attributes: {host: ['*.example']}}":         `suffix: {host: .example.com}`,
		"match: {route: ['POST /x', 'PUT /x'], attributes: {method: [GET]}}":       `no route of the rule is for one of these methods`,
		"key: path, overrides: [{key: secret, limit: unlimited}]":                  `overrides[0]: key[0] is a path without a slash`,
		"key: [user, method], overrides: [{key: [secret, get], limit: unlimited}]": `key[1] is a method in small letters`,
	} {
		set, all := policy.Check(fmt.Appendf(nil, "rules: [{name: a, limit: fixed-window 9/h, %s}]", rule))
		require.NotNil(t, set, "%s: %v", rule, all)
		require.Len(t, all, 1, rule)
		require.ErrorContains(t, all[0], want)
		assert.NotContains(t, all[0].Error(), "secret", "a key")
	}
	for _, name := range []string{"path:id", "header:Authorisation", "url"} {
		_, all := policy.Check(fmt.Appendf(nil, "attributes: [%q]\nrules: [{name: a, limit: blocked, key: %q}]", name, name))
		assert.Empty(t, all, "%s is declared", name)
	}
	_, all := policy.Check([]byte("attributes: [user]\nrules: [{name: a, limit: blocked, key: usr}]"))
	require.Len(t, all, 1)
	require.ErrorContains(t, all[0], `not among the attributes of the set; "user", maybe`)
	for key, want := range map[string]string{"header:X API Key": "header:X-API-Key", "header: X-API-Key": "header:X-API-Key", " user": "user"} {
		_, all := policy.Check(fmt.Appendf(nil, "rules: [{name: a, limit: blocked, key: %q}]", key))
		require.Len(t, all, 1)
		require.ErrorContains(t, all[0], fmt.Sprintf("%q, maybe", want))
	}
}
