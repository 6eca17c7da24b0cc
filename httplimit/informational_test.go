package httplimit_test

import (
	"io"
	"net/http"
	"net/http/httptest"
	"net/http/httptrace"
	"net/http/httputil"
	"net/textproto"
	"net/url"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/weir-go/ratelimit"
	"github.com/weir-go/ratelimit/httplimit"
	"github.com/weir-go/ratelimit/inflight"
)

// hinting is an origin that sends two informational responses before the final one. Each response has fields of its
// own.
func hinting(w http.ResponseWriter, r *http.Request) {
	w.Header().Set("Link", "</style.css>; rel=preload")
	w.Header().Set("RateLimit", `"origin";r=7;t=60`)
	w.Header().Set("X-RateLimit-Remaining", "7")
	w.WriteHeader(http.StatusEarlyHints)
	w.WriteHeader(http.StatusEarlyHints)
	w.Header().Del("Link")
	_, _ = io.Copy(w, r.Body)
}

// reverseProxy returns a proxy for a server of that handler.
func reverseProxy(t *testing.T, origin http.HandlerFunc) *httputil.ReverseProxy {
	server := httptest.NewServer(origin)
	t.Cleanup(server.Close)
	target, err := url.Parse(server.URL)
	require.NoError(t, err)
	return httputil.NewSingleHostReverseProxy(target)
}

// TestTheFinalResponseHasTheFieldsAfterInformationalOnes of an origin behind a ReverseProxy, which clears the header
// after each.
func TestTheFinalResponseHasTheFieldsAfterInformationalOnes(t *testing.T) {
	limit := ratelimit.FixedWindow(ratelimit.PerMinute(100))
	settle := func(_ *http.Request, _, cost int) int { return cost }
	for name, row := range map[string]struct {
		opts   []httplimit.Options // of middlewares, the outer first
		origin http.HandlerFunc
		hints  int
		text   string
		want   map[string][]string
	}{
		"draft 11": {[]httplimit.Options{{}}, hinting, 2, "hello", map[string][]string{
			"Ratelimit-Policy": {`"a";q=100;w=60`}, "Ratelimit": {`"a";r=99;t=60`, `"origin";r=7;t=60`}}},
		"draft 11, settled": {[]httplimit.Options{{Settle: settle}}, hinting, 2, "hello", map[string][]string{
			"Ratelimit-Policy": {`"a";q=100;w=60`}, "Ratelimit": {`"a";r=99;t=60`, `"origin";r=7;t=60`}}},
		"draft 11, nested": {[]httplimit.Options{{}, {Settle: settle}, {}}, hinting, 2, "hello", map[string][]string{
			"Ratelimit-Policy": {`"a";q=100;w=60`, `"a-2";q=100;w=60`, `"a-3";q=100;w=60`},
			"Ratelimit":        {`"a";r=99;t=60`, `"a-2";r=99;t=60`, `"a-3";r=99;t=60`, `"origin";r=7;t=60`}}},
		"an older dialect": {[]httplimit.Options{{Dialect: httplimit.DialectXDelta}}, hinting, 2, "hello", map[string][]string{
			"X-Ratelimit-Limit": {"100"}, "X-Ratelimit-Remaining": {"99", "7"}, "X-Ratelimit-Reset": {"60"}}},
		"no dialect": {[]httplimit.Options{{Dialect: httplimit.DialectNone}}, hinting, 2, "hello", map[string][]string{"X-Ratelimit-Remaining": {"7"}}},
		"no informational response": {[]httplimit.Options{{}}, func(http.ResponseWriter, *http.Request) {}, 0, "", map[string][]string{
			"Ratelimit-Policy": {`"a";q=100;w=60`}, "Ratelimit": {`"a";r=99;t=60`}}},
	} {
		t.Run(name, func(t *testing.T) {
			chains := map[string]http.Handler{} // each protocol has limits of its own
			for _, proto := range []string{"HTTP/1.1", "HTTP/2.0"} {
				chains[proto] = reverseProxy(t, row.origin)
				for _, opts := range slices.Backward(row.opts) {
					chains[proto] = middleware(t, limiterOf(t, nil, limit.Named("a")), opts).Wrap(chains[proto])
				}
			}
			h := http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { chains[r.Proto].ServeHTTP(w, r) })
			overBoth(t, h, func(t *testing.T, client *http.Client, url string) {
				hints := 0
				ctx := httptrace.WithClientTrace(t.Context(), &httptrace.ClientTrace{Got1xxResponse: func(int, textproto.MIMEHeader) error {
					hints++
					return nil
				}})
				req, err := http.NewRequestWithContext(ctx, "POST", url, strings.NewReader("hello"))
				require.NoError(t, err)
				resp, err := client.Do(req)
				require.NoError(t, err)
				assert.Equal(t, row.text, body(t, resp))
				assert.Equal(t, row.hints, hints)
				assert.Empty(t, resp.Header.Get("Link"))
				for name, want := range row.want {
					assert.Equal(t, want, resp.Header[name], name)
				}
			})
		})
	}
}

// TestAnAnswerToExpectKeepsTheFields: a server that reads the body answers 100, which ReverseProxy passes on.
func TestAnAnswerToExpectKeepsTheFields(t *testing.T) {
	proxy := reverseProxy(t, func(_ http.ResponseWriter, r *http.Request) { _, _ = io.Copy(io.Discard, r.Body) })
	m := middleware(t, limiterOf(t, nil, ratelimit.FixedWindow(ratelimit.PerMinute(9))), httplimit.Options{})
	server := httptest.NewServer(m.Wrap(proxy))
	defer server.Close()
	req, err := http.NewRequest("POST", server.URL, strings.NewReader(strings.Repeat("x", 10_000)))
	require.NoError(t, err)
	req.Header.Set("Expect", "100-continue")
	client := &http.Client{Transport: &http.Transport{ExpectContinueTimeout: 1 << 40}}
	defer client.CloseIdleConnections()
	resp, err := client.Do(req)
	require.NoError(t, err)
	assert.Empty(t, body(t, resp))
	assert.Equal(t, []string{`"default";r=8;t=60`}, resp.Header["Ratelimit"])
}

// TestAHandlerThatKeepsTheHeaderSeesTheFieldsRestored after it has cleared all, but not a field that it has removed.
func TestAHandlerThatKeepsTheHeaderSeesTheFieldsRestored(t *testing.T) {
	for name, row := range map[string]struct {
		handler http.HandlerFunc
		want    []string
	}{
		"removed":                        {func(w http.ResponseWriter, _ *http.Request) { w.Header().Del("RateLimit") }, nil},
		"removed after an informational": {func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(103); w.Header().Del("RateLimit") }, nil},
		"cleared by a map that it keeps": {func(w http.ResponseWriter, _ *http.Request) {
			h := w.Header()
			w.WriteHeader(103)
			clear(h)
			_, _ = w.Write(nil)
		}, []string{`"default";r=8;t=60`}},
		"cleared, and a string follows": {func(w http.ResponseWriter, _ *http.Request) {
			h := w.Header()
			w.WriteHeader(103)
			clear(h)
			_, _ = io.WriteString(w, "")
		}, []string{`"default";r=8;t=60`}},
		"cleared, and a flush follows": {func(w http.ResponseWriter, _ *http.Request) {
			h := w.Header()
			w.WriteHeader(103)
			clear(h)
			w.(http.Flusher).Flush()
		}, []string{`"default";r=8;t=60`}},
		"cleared, and a reader follows": {func(w http.ResponseWriter, _ *http.Request) {
			h := w.Header()
			w.WriteHeader(103)
			clear(h)
			_, _ = io.Copy(w, strings.NewReader("x"))
		}, []string{`"default";r=8;t=60`}},
		"cleared, and a status follows": {func(w http.ResponseWriter, _ *http.Request) {
			h := w.Header()
			w.WriteHeader(103)
			clear(h)
			w.WriteHeader(200)
		}, []string{`"default";r=8;t=60`}},
		"cleared, and nothing else comes": {func(w http.ResponseWriter, _ *http.Request) { h := w.Header(); w.WriteHeader(103); clear(h) }, []string{`"default";r=8;t=60`}},
	} {
		t.Run(name, func(t *testing.T) {
			m := middleware(t, limiterOf(t, nil, ratelimit.FixedWindow(ratelimit.PerMinute(9))), httplimit.Options{})
			server := httptest.NewServer(m.Wrap(row.handler))
			defer server.Close()
			resp, err := http.Get(server.URL)
			require.NoError(t, err)
			body(t, resp)
			assert.Equal(t, row.want, resp.Header["Ratelimit"])
		})
	}
}

// TestTheHandlerFindsTrailersThatWereNotAnnounced, as it does without a limiter.
func TestTheHandlerFindsTrailersThatWereNotAnnounced(t *testing.T) {
	read := func(t *testing.T, r *http.Request) string { return body(t, &http.Response{Body: r.Body}) }
	for name, row := range map[string]struct {
		wrap func(*testing.T, http.Handler) http.Handler
		read func(*testing.T, *http.Request) string
	}{
		"no limiter":                      {func(_ *testing.T, h http.Handler) http.Handler { return h }, read},
		"Settle":                          {settling, read},
		"an adaptive Inflight":            {adaptive, read},
		"both":                            {func(t *testing.T, h http.Handler) http.Handler { return settling(t, adaptive(t, settling(t, h))) }, read},
		"Settle, and a body that is left": {settling, func(t *testing.T, r *http.Request) string { require.NoError(t, r.Body.Close()); return "hello" }},
	} {
		t.Run(name, func(t *testing.T) {
			var got http.Header
			var text string
			h := row.wrap(t, http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
				text = row.read(t, r)
				got = r.Trailer
			}))
			for announced, want := range map[string]http.Header{"": {"X-Sum": {"1"}}, "Trailer: X-Sum\r\n": {"X-Sum": {"1"}}} {
				got, text = nil, ""
				status := raw(t, h, "POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n"+announced+"\r\n5\r\nhello\r\n0\r\nX-Sum: 1\r\n\r\n")
				assert.Equal(t, 200, status)
				assert.Equal(t, "hello", text)
				assert.Equal(t, want, got, "%q", announced)
			}
		})
	}
}

func settling(t *testing.T, h http.Handler) http.Handler {
	m := middleware(t, limiterOf(t, nil, ratelimit.FixedWindow(ratelimit.PerMinute(100))), httplimit.Options{
		Settle: func(_ *http.Request, _, cost int) int { return cost },
	})
	return m.Wrap(h)
}

func adaptive(t *testing.T, h http.Handler) http.Handler {
	l := ratelimit.Must(inflight.New(10, &inflight.Options[string]{Adaptive: inflight.Learn(nil)}))
	m, err := httplimit.NewInflight(l, func(*http.Request) (string, error) { return "", nil }, nil)
	require.NoError(t, err)
	return m.Wrap(h)
}
