package match

import (
	"fmt"
	"math/rand/v2"
	"net/http"
	"net/http/httptest"
	"net/url"
	"path"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/weir-go/ratelimit/internal/dev/testsize"
)

// Attributes is a Request as a map.
type Attributes map[string]string

func (a Attributes) Attribute(name string) (string, bool) {
	v, ok := a[name]
	return v, ok
}

// Match is a rule's condition: its routes, and the values of attributes.
type Match struct {
	Route      []string
	Attributes map[string][]string
}

// rulesFor returns a rule for each match.
func rulesFor(t testing.TB, matches ...Match) (rules []*Rule) {
	t.Helper()
	for _, m := range matches {
		r := new(Rule)
		for _, route := range m.Route {
			p, err := ParsePattern(route)
			require.NoError(t, err)
			r.Patterns = append(r.Patterns, p)
		}
		for name, values := range m.Attributes {
			r.Conditions = append(r.Conditions, NewCondition(OneOf, name, values))
		}
		rules = append(rules, r)
	}
	return rules
}

func TestWhichRulesMatch(t *testing.T) {
	routes := func(patterns ...string) Match { return Match{Route: patterns} }
	with := func(m Match, attributes map[string][]string) Match {
		m.Attributes = attributes
		return m
	}
	rules := rulesFor(t,
		Match{},               // 0
		routes("/"),           // 1
		routes("/v1/search/"), // 2
		routes("POST /v1/charges", "POST /v1/charges/{id}"),                    // 3
		routes("GET /v1/{x}"),                                                  // 4
		routes("api.example.com/"),                                             // 5
		routes("/v1/{$}"),                                                      // 6
		with(routes("/v1/"), map[string][]string{"region": {"eu", "us"}}),      // 7
		with(Match{}, map[string][]string{"plan": {"free"}}),                   // 8
		with(Match{}, map[string][]string{"plan": {"free"}, "region": {"eu"}}), // 9
		routes("/files/{name...}"),                                             // 10
		routes("/v1/search/", "/v1/{rest...}"),                                 // 11
	)
	x := New(rules)
	for _, test := range []struct {
		request Attributes
		want    []int
	}{
		{Attributes{}, []int{0}},
		{Attributes{"path": "/"}, []int{0, 1}},
		{Attributes{"path": "/v1/search/"}, []int{0, 1, 2, 11}},
		{Attributes{"path": "/v1/search/a/b"}, []int{0, 1, 2, 11}},
		{Attributes{"path": "/v1/search"}, []int{0, 1, 11}},
		{Attributes{"path": "//v1/./search//a"}, []int{0, 1, 2, 11}},
		{Attributes{"path": "/x/../v1/search/a"}, []int{0, 1, 2, 11}},
		{Attributes{"path": "/v1/se%61rch/a"}, []int{0, 1, 2, 11}},
		{Attributes{"path": "/v1/charges", "method": "POST"}, []int{0, 1, 3, 11}},
		{Attributes{"path": "/v1/charges/7", "method": "POST"}, []int{0, 1, 3, 11}},
		{Attributes{"path": "/v1/charges", "method": "GET"}, []int{0, 1, 4, 11}},
		{Attributes{"path": "/v1/charges", "method": "HEAD"}, []int{0, 1, 4, 11}},
		{Attributes{"path": "/v1/charges", "method": "get"}, []int{0, 1, 11}},
		{Attributes{"path": "/v1/", "method": "GET"}, []int{0, 1, 6, 11}},
		{Attributes{"path": "/v1", "method": "GET"}, []int{0, 1}},
		{Attributes{"path": "/v1/%2F", "method": "GET"}, []int{0, 1, 6, 11}},
		{Attributes{"path": "/v1/%2f", "method": "GET"}, []int{0, 1, 6, 11}},
		{Attributes{"path": "/a", "host": "API.example.com:8080"}, []int{0, 1, 5}},
		{Attributes{"path": "/a", "host": "api.example.com."}, []int{0, 1, 5}},
		{Attributes{"path": "/a", "host": "other"}, []int{0, 1}},
		{Attributes{"path": "/v1/a", "region": "us"}, []int{0, 1, 7, 11}},
		{Attributes{"path": "/v1/a", "region": "asia"}, []int{0, 1, 11}},
		{Attributes{"plan": "free"}, []int{0, 8}},
		{Attributes{"plan": "free", "region": "eu"}, []int{0, 8, 9}},
		{Attributes{"plan": "pro", "region": "eu"}, []int{0}},
		{Attributes{"path": "/files/"}, []int{0, 1, 10}},
		{Attributes{"path": "/files/a/b/"}, []int{0, 1, 10}},
		{Attributes{"path": "/files"}, []int{0, 1}},
	} {
		assert.Equal(t, test.want, x.Match(test.request), "%v", test.request)
	}
}

func TestADisabledRuleDoesNotMatch(t *testing.T) {
	rules := rulesFor(t, Match{}, Match{}, Match{Route: []string{"/"}})
	rules[0].Disabled, rules[2].Disabled = true, true
	assert.Equal(t, []int{1}, New(rules).Match(Attributes{"path": "/"}))
}

// TestRoutesMatchEveryReadingOfAPath compares random patterns with net/http on random requests, in any
// spelling. If a request's path is not clean, a mux with only the pattern redirects the client, and then
// serves the clean path. For other servers' readings, the test compares the pattern segment by segment.
func TestRoutesMatchEveryReadingOfAPath(t *testing.T) {
	patterns := testsize.Of(600, 10_000)
	r := rand.New(rand.NewPCG(1, 2))
	pick := func(words ...string) string { return words[r.IntN(len(words))] }
	path := func(words ...string) (p string) {
		for i := range r.IntN(4) {
			p += "/" + strings.ReplaceAll(pick(words...), "#", fmt.Sprint(i))
		}
		return p
	}
	matches, served, others := 0, 0, 0
	for range patterns {
		route := pick("", "", "", "GET ", "POST ", "CONNECT ") + pick("", "", "", "h.example", "h.example:80", "[::1]") +
			path("a", "b", "a%20b", "é", "%2F", "%2f", "%2E%2e", "%61", "a%2Fb", "", ".", "..", "{x#}", "{x#}") + pick("/a", "/", "/{$}", "/{y...}", "/%2F", "/{z}")
		p, err := ParsePattern(route)
		if err != nil {
			continue // net/http refuses the pattern, or it can never match
		}
		x := New(rulesFor(t, Match{Route: []string{route}}))
		mux := http.NewServeMux()
		mux.Handle(route, http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusTeapot) }))
		for range 30 {
			req := httptest.NewRequest(pick("GET", "HEAD", "POST", "PUT", "CONNECT", "CONNECT"), "/", nil)
			req.Host = pick("h.example", "h.example:80", "other", "[::1]", "[::1]:80")
			target := path("a", "b", "a%20b", "a%2Fb", "%2F", "%2f", "%2E%2e", "..", ".", "", "%61", "é", "c", "%C3%A9") + pick("", "", "/", "/a", "/%2F", "//")
			if target == "" {
				target = "/"
			}
			u, err := url.ParseRequestURI("http://h" + target)
			if err != nil {
				continue
			}
			req.URL.Path, req.URL.RawPath = u.Path, u.RawPath
			want := muxServes(t, mux, req.Clone(t.Context()))
			if want {
				served++
			}
			if !want && atTop(route).serves(req) {
				for _, decodedFirst := range []bool{false, true} {
					want = want || serves(route, req.URL.EscapedPath(), decodedFirst, true) || serves(route, req.URL.EscapedPath(), decodedFirst, false)
				}
				others++
			}
			got := len(x.Match(Attributes{"method": req.Method, "host": req.Host, "path": req.URL.EscapedPath()})) == 1
			require.Equal(t, want, got, "%q (%+v) on %s %s %s", route, p, req.Method, req.Host, target)
			matches++
		}
	}
	assert.Greater(t, served, matches/30)
	assert.Greater(t, others, matches/30)
}

// topMux compares the method and the host of a pattern, and matches every path.
type topMux struct{ *http.ServeMux }

func atTop(route string) topMux {
	mux := http.NewServeMux()
	mux.Handle(route[:strings.IndexByte(route, '/')]+"/", http.NotFoundHandler())
	return topMux{mux}
}

func (m topMux) serves(req *http.Request) bool {
	req = req.Clone(req.Context())
	req.URL.Path, req.URL.RawPath = "/", ""
	_, pattern := m.Handler(req)
	return pattern != ""
}

// serves reports whether a server would serve an escaped path under a pattern's path.
func serves(route, escaped string, decodedFirst, clean bool) bool {
	if decodedFirst {
		u, err := url.PathUnescape(escaped)
		if err != nil {
			return false
		}
		escaped = u
	}
	if clean {
		slash := strings.HasSuffix(escaped, "/")
		if escaped = path.Clean(escaped); slash && escaped != "/" {
			escaped += "/"
		}
	}
	pattern := strings.Split(route[strings.IndexByte(route, '/')+1:], "/")
	segments := strings.Split(escaped[1:], "/")
	for i, p := range pattern {
		last := i == len(pattern)-1
		if i == len(segments) {
			return false
		}
		end := segments[i] == "" && i == len(segments)-1 // the path ends with a slash
		segment, _ := url.PathUnescape(segments[i])
		if decodedFirst {
			segment = segments[i]
		}
		if segment == "" && end {
			segment = "/"
		}
		switch {
		case p == "" && last, strings.HasSuffix(p, "...}"):
			return true
		case p == "{$}":
			return segment == "/" && i == len(segments)-1
		case p == "", strings.HasPrefix(p, "{"):
			if segment == "/" {
				return false
			}
		default:
			if literal, err := url.PathUnescape(p); segment != literal || err != nil {
				return false
			}
		}
	}
	return len(pattern) == len(segments)
}

// muxServes reports whether a mux passes a request to a handler. It
// follows a redirect to the clean path, but none that adds a slash.
func muxServes(t *testing.T, mux *http.ServeMux, req *http.Request) bool {
	for range 3 {
		w := httptest.NewRecorder()
		handler, _ := mux.Handler(req)
		handler.ServeHTTP(w, req)
		if w.Code/100 != 3 {
			return w.Code == http.StatusTeapot
		}
		to, err := url.Parse(w.Header().Get("Location"))
		require.NoError(t, err)
		clean := cleanPath(req.URL.EscapedPath())
		if to.EscapedPath() == req.URL.EscapedPath() || req.Method == "CONNECT" || clean == req.URL.EscapedPath() {
			return false // a redirect that adds a slash
		}
		u, err := url.ParseRequestURI("http://h" + clean)
		require.NoError(t, err)
		req.URL.Path, req.URL.RawPath = u.Path, u.RawPath
	}
	t.Fatal("the mux goes round in circles")
	return false
}

// TestTheMergedIndexMatchesAsTheTreeDoes sends the same requests to an index with merged results and to one without.
func TestTheMergedIndexMatchesAsTheTreeDoes(t *testing.T) {
	r := rand.New(rand.NewPCG(3, 4))
	pick := func(words ...string) string { return words[r.IntN(len(words))] }
	path := func(words ...string) (p string) {
		for i := range r.IntN(4) {
			p += "/" + strings.ReplaceAll(pick(words...), "#", fmt.Sprint(i))
		}
		return p
	}
	merged, alone := 0, 0
	for range 300 {
		var matches []Match
		for range r.IntN(40) {
			m := Match{Route: []string{pick("", "", "GET ", "HEAD ", "POST ") + pick("", "", "", "h") + path("a", "b", "a%20b", "%2F", "{x#}") + pick("/a", "/", "/{$}", "/{y...}")}}
			if r.IntN(3) == 0 {
				m.Attributes = map[string][]string{pick("tenant", "plan"): {pick("1", "2"), "3"}}
			}
			if r.IntN(5) == 0 {
				m.Route = nil
			}
			matches = append(matches, m)
		}
		rules := rulesFor(t, matches...)
		x, tree := New(rules), New(rules)
		tree.forget()
		for range 100 {
			request := Attributes{"path": path("a", "b", "a%20b", "a%2", "%2F", "", "..") + pick("/a", "/", "", "/%61"), "method": pick("GET", "HEAD", "POST", "PUT", "CONNECT", ""), "host": pick("h", "h:80", "other")}
			if r.IntN(2) == 0 {
				request["tenant"], request["plan"] = pick("1", "2", "4"), pick("1", "3", "4")
			}
			if x.paths[request["path"]] != nil {
				merged++
			} else if found := x.tree.find(x.tree.ofHost(request), request["method"], request["path"], nil); len(found) == 1 {
				alone++
			}
			require.Equal(t, tree.Match(request), x.Match(request), "%v of %v", request, matches)
		}
	}
	assert.Greater(t, merged, 1000, "requests of which the path was known")
	assert.Greater(t, alone, 1000, "requests that met one place")
}

// forget drops an index's merged groups.
func (x *Index) forget() {
	x.paths = nil
	x.tree.allHosts.forget()
	for _, n := range x.tree.hosts {
		n.forget()
	}
}

func (n *node) forget() {
	if n == nil {
		return
	}
	for _, m := range []*place{n.end, n.rest} {
		if m != nil {
			m.alone = nil
		}
	}
	n.wild.forget()
	for _, c := range n.next.list {
		c.node.forget()
	}
	for _, c := range n.next.many {
		c.forget()
	}
}

func TestTheMergedIndexIsBounded(t *testing.T) {
	matches := []Match{{Route: []string{"/a"}}}
	for range mostForOne {
		matches = append(matches, Match{})
	}
	x := New(rulesFor(t, matches...))
	assert.Nil(t, x.paths["/a"], "too many rules on one path")
	assert.Nil(t, x.tree.find(nil, "", "/a", nil)[0].alone)
	assert.Len(t, x.Match(Attributes{"path": "/a"}), len(matches))

	matches = nil
	for i := range 50 {
		matches = append(matches, Match{Route: []string{fmt.Sprintf("M%d /", i)}})
	}
	for i := range 100 {
		routes := make([]string, 100)
		for j := range routes {
			routes[j] = fmt.Sprintf("/%d/%d", i, j)
		}
		matches = append(matches, Match{Route: routes})
	}
	x = New(rulesFor(t, matches...))
	merged, groups := 0, 0
	for _, m := range x.paths {
		if m != nil {
			merged, groups = merged+1, groups+1+len(m.by)
		}
	}
	assert.Greater(t, merged, 1000)
	assert.Less(t, merged, 10_000, "not all")
	assert.Less(t, groups*groupWords, mostForAll)
	for _, i := range []int{0, 99} {
		assert.Equal(t, []int{7, 50 + i}, x.Match(Attributes{"path": fmt.Sprintf("/%d/%d", i, i), "method": "M7"}))
	}
}

func TestAPathThroughManyPlacesAllocatesNothing(t *testing.T) {
	var matches []Match
	path := "/"
	for range 3 * mostPlaces {
		matches = append(matches, Match{Route: []string{path}})
		path += "a/"
	}
	x, memory, request := New(rulesFor(t, matches...)), new(Memory), Request(Attributes{"path": path})
	assert.Len(t, x.Candidates(request, memory), len(matches))
	assert.Zero(t, testing.AllocsPerRun(100, func() { x.Candidates(request, memory) }))
}

func TestManySegmentsBesideEachOther(t *testing.T) {
	var matches []Match
	for i := range 3 * fewChildren {
		matches = append(matches, Match{Route: []string{fmt.Sprintf("/a/%d/", i)}})
	}
	x := New(rulesFor(t, matches...))
	for i := range matches {
		assert.Equal(t, []int{i}, x.Match(Attributes{"path": fmt.Sprintf("/a/%d/b", i)}))
	}
	assert.Empty(t, x.Match(Attributes{"path": "/a/x/b"}))
}

func TestMatchingCostsNoMoreThanTheMatchingRules(t *testing.T) {
	var matches []Match
	for i := range 1000 {
		matches = append(matches, Match{Route: []string{fmt.Sprintf("/r%d/", i)}}, Match{Attributes: map[string][]string{"tenant": {fmt.Sprint(i)}}})
	}
	x := New(rulesFor(t, matches...))
	looked := 0
	request := counting{Attributes{"path": "/r7/x", "tenant": "9"}, &looked}
	found := x.Match(request)
	assert.Equal(t, []int{14, 19}, found)
	assert.LessOrEqual(t, looked, 6, "attributes read")
	memory := new(Memory)
	boxed := Request(Attributes{"path": "/r7/x", "tenant": "9"})
	assert.Zero(t, testing.AllocsPerRun(100, func() { found = x.Candidates(boxed, memory) }))
	assert.True(t, slices.Equal(found, []int{14, 19}))
}

type counting struct {
	Attributes
	n *int
}

func (c counting) Attribute(name string) (string, bool) {
	*c.n++
	return c.Attributes.Attribute(name)
}
