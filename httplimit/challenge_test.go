package httplimit_test

import (
	"net/http"
	"net/http/httptest"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/weir-go/ratelimit"
	"github.com/weir-go/ratelimit/httplimit"
	"github.com/weir-go/ratelimit/inflight"
)

// withoutKey answers a request that has no key.
func withoutKey(t *testing.T, opts httplimit.Options, contentType string) *http.Response {
	m, err := httplimit.PerKey(ratelimit.TokenBucket(ratelimit.PerSecond(1), 1), httplimit.APIKey("X-Api-Key"), &opts)
	require.NoError(t, err)
	w := httptest.NewRecorder()
	r := httptest.NewRequest("POST", "/", nil)
	if contentType != "" {
		r.Header.Set("Content-Type", contentType)
	}
	m.Wrap(http.NotFoundHandler()).ServeHTTP(w, r)
	return w.Result()
}

// TestA401HasAChallenge, as RFC 9110 requires it.
func TestA401HasAChallenge(t *testing.T) {
	for name, row := range map[string]struct {
		opts httplimit.Options
		kind string
		code int
		want []string
	}{
		"by default":         {httplimit.Options{KeyCode: 401}, "", 401, []string{"Bearer"}},
		"another challenge":  {httplimit.Options{KeyCode: 401, Challenge: `Basic realm="api", Bearer`}, "", 401, []string{`Basic realm="api", Bearer`}},
		"another status":     {httplimit.Options{KeyCode: 403}, "", 403, nil},
		"the default status": {httplimit.Options{}, "", 400, nil},
		"an answer of the user": {httplimit.Options{KeyCode: 401, OnError: func(w http.ResponseWriter, e httplimit.Event) { w.WriteHeader(401) }}, "",
			401, []string{"Bearer"}},
		"an answer with another challenge": {httplimit.Options{KeyCode: 401, OnError: func(w http.ResponseWriter, e httplimit.Event) {
			w.Header().Set("WWW-Authenticate", "Digest")
			w.WriteHeader(401)
		}}, "", 401, []string{"Digest"}},
	} {
		t.Run(name, func(t *testing.T) {
			resp := withoutKey(t, row.opts, row.kind)
			assert.Equal(t, row.code, resp.StatusCode)
			assert.Equal(t, row.want, resp.Header.Values("WWW-Authenticate"))
		})
	}
	t.Run("Inflight", func(t *testing.T) {
		for challenge, want := range map[string]string{"": "Bearer", "Digest": "Digest"} {
			m, err := httplimit.NewInflight(ratelimit.Must(inflight.New(1, &inflight.Options[string]{})), httplimit.Header("X-Tenant"),
				&httplimit.InflightOptions{KeyCode: 401, Challenge: challenge})
			require.NoError(t, err)
			w := httptest.NewRecorder()
			m.Wrap(http.NotFoundHandler()).ServeHTTP(w, httptest.NewRequest("GET", "/", nil))
			assert.Equal(t, 401, w.Code)
			assert.Equal(t, []string{want}, w.Result().Header.Values("WWW-Authenticate"))
			assert.Equal(t, httplimit.InflightStats{Rejected: 1}, m.Stats(), "a request without a key is no failure")
		}
	})
}

func TestAChallengeThatCannotBeSentIsRefused(t *testing.T) {
	for want, opts := range map[string]httplimit.Options{
		`Options.Challenge has '\n' at position 6`:                 {KeyCode: 401, Challenge: "Bearer\nX-Evil: 1"},
		"Options.Challenge is given, and KeyCode is 403, want 401": {KeyCode: 403, Challenge: "Bearer"},
		"Options.Challenge is given, and KeyCode is 0, want 401":   {Challenge: "Bearer"},
	} {
		_, err := httplimit.PerIP(ratelimit.Unlimited(), &opts)
		assert.ErrorContains(t, err, "httplimit: "+want)
	}
	_, err := httplimit.NewInflight(ratelimit.Must(inflight.New(1, &inflight.Options[string]{})), httplimit.Header("X-Tenant"),
		&httplimit.InflightOptions{Challenge: "Bearer"})
	assert.ErrorContains(t, err, "httplimit: InflightOptions.Challenge is given, and KeyCode is 0, want 401")
}

// A gateway reads only the status of the answer to a sub-request.
func TestPlainHTTPRefusesRPCsByTheStatus(t *testing.T) {
	serve := func(h http.Handler, method, target string, header http.Header) *http.Response {
		r := httptest.NewRequest(method, target, nil)
		r.Header = header
		w := httptest.NewRecorder()
		h.ServeHTTP(w, r)
		return w.Result()
	}
	passes := http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusNoContent) })
	for name, row := range map[string]struct {
		method, target string
		header         http.Header
	}{
		"gRPC":          {"POST", "/a.B/C", http.Header{"Content-Type": {"application/grpc"}}},
		"gRPC, proto":   {"POST", "/a.B/C", http.Header{"Content-Type": {"application/grpc+proto"}}},
		"gRPC, another": {"PUT", "/", http.Header{"Content-Type": {"Application/GRPC; x=y"}}},
		"gRPC-Web":      {"POST", "/a.B/C", http.Header{"Content-Type": {"application/grpc-web"}}},
		"gRPC-Web text": {"POST", "/a.B/C", http.Header{"Content-Type": {"application/grpc-web-text"}}},
		"Connect":       {"POST", "/a.B/C", http.Header{"Content-Type": {"application/json"}, "Connect-Protocol-Version": {"1"}}},
		"Connect GET":   {"GET", "/a.B/C?connect=v1", http.Header{}},
		"a stream":      {"POST", "/a.B/C", http.Header{"Content-Type": {"application/connect+json"}}},
	} {
		t.Run(name, func(t *testing.T) {
			is := func(resp *http.Response, status int) {
				t.Helper()
				assert.Equal(t, status, resp.StatusCode)
				assert.Equal(t, "application/problem+json", resp.Header.Get("Content-Type"))
				assert.Empty(t, resp.Header.Get("Grpc-Status"))
			}
			m, err := httplimit.PerIP(ratelimit.FixedWindow(ratelimit.PerMinute(1)), &httplimit.Options{PlainHTTP: true})
			require.NoError(t, err)
			assert.Equal(t, 204, serve(m.Wrap(passes), row.method, row.target, row.header).StatusCode)
			denied := serve(m.Wrap(passes), row.method, row.target, row.header)
			is(denied, 429)
			assert.Equal(t, "60", denied.Header.Get("Retry-After"))
			assert.NotEmpty(t, denied.Header.Get("RateLimit"))

			m, err = httplimit.PerIP(ratelimit.Blocked(), &httplimit.Options{PlainHTTP: true})
			require.NoError(t, err)
			is(serve(m.Wrap(passes), row.method, row.target, row.header), 403)
			m, err = httplimit.PerKey(ratelimit.Unlimited(), httplimit.Header("X-Tenant"), &httplimit.Options{PlainHTTP: true})
			require.NoError(t, err)
			is(serve(m.Wrap(passes), row.method, row.target, row.header), 400)

			l := ratelimit.Must(inflight.New(1, &inflight.Options[string]{}))
			busy, err := httplimit.NewInflight(l, func(*http.Request) (string, error) { return "", nil }, &httplimit.InflightOptions{PlainHTTP: true})
			require.NoError(t, err)
			permit, err := l.TryAcquire("", 1)
			require.NoError(t, err)
			defer permit.Release()
			is(serve(busy.Wrap(passes), row.method, row.target, row.header), 503)
		})
	}
}
