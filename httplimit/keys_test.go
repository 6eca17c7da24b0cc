package httplimit_test

import (
	"bufio"
	"crypto/sha256"
	"fmt"
	"net/http"
	"net/http/httptest"
	"runtime"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/weir-go/ratelimit"
	"github.com/weir-go/ratelimit/httplimit"
	"github.com/weir-go/ratelimit/internal/dev/testsize"
	"github.com/weir-go/ratelimit/keyfunc"
)

// with is a request with these header lines, each "Name: value".
func with(lines ...string) *http.Request {
	r := httptest.NewRequest("GET", "/", nil)
	for _, line := range lines {
		name, value, _ := strings.Cut(line, ": ")
		r.Header.Add(name, value)
	}
	return r
}

func TestHeaderKeys(t *testing.T) {
	key := httplimit.Header("x-tenant")
	for name, row := range map[string]struct {
		r    *http.Request
		want string
		err  error
	}{
		"one value":                 {with("X-Tenant: acme"), "acme", nil},
		"missing":                   {with(), "", keyfunc.ErrNoKey},
		"empty":                     {with("X-Tenant: "), "", keyfunc.ErrNoKey},
		"as long as may be kept":    {with("X-Tenant: " + strings.Repeat("a", 1024)), strings.Repeat("a", 1024), nil},
		"longer":                    {with("X-Tenant: " + strings.Repeat("a", 1025)), "", keyfunc.ErrMalformedKey},
		"several lines":             {with("X-Tenant: acme", "X-Tenant: other"), "", keyfunc.ErrMalformedKey},
		"an empty and another line": {with("X-Tenant: ", "X-Tenant: other"), "", keyfunc.ErrMalformedKey},
	} {
		t.Run(name, func(t *testing.T) {
			got, err := key(row.r)
			assert.Equal(t, row.want, got)
			assert.ErrorIs(t, err, row.err)
		})
	}
}

func TestSecretsAreKeptAsHashes(t *testing.T) {
	want := keyfunc.Hash(sha256.Sum256([]byte("s3cret")))
	assert.Equal(t, want, keyfunc.HashOf("s3cret"))
	for name, row := range map[string]struct {
		key func(*http.Request) (keyfunc.Hash, error)
		r   *http.Request
		err error
	}{
		"API key":                           {httplimit.APIKey("X-API-Key"), with("X-Api-Key: s3cret"), nil},
		"no API key":                        {httplimit.APIKey("X-API-Key"), with(), keyfunc.ErrNoKey},
		"two API keys":                      {httplimit.APIKey("X-API-Key"), with("X-Api-Key: s3cret", "X-Api-Key: b"), keyfunc.ErrMalformedKey},
		"bearer token":                      {httplimit.BearerToken, with("Authorization: Bearer s3cret"), nil},
		"scheme in another case":            {httplimit.BearerToken, with("Authorization: bEARER s3cret"), nil},
		"more spaces":                       {httplimit.BearerToken, with("Authorization: Bearer   s3cret"), nil},
		"another scheme":                    {httplimit.BearerToken, with("Authorization: Basic s3cret"), keyfunc.ErrNoKey},
		"no scheme":                         {httplimit.BearerToken, with("Authorization: s3cret"), keyfunc.ErrNoKey},
		"no token":                          {httplimit.BearerToken, with("Authorization: Bearer"), keyfunc.ErrNoKey},
		"blank token":                       {httplimit.BearerToken, with("Authorization: Bearer  "), keyfunc.ErrNoKey},
		"no Authorization":                  {httplimit.BearerToken, with(), keyfunc.ErrNoKey},
		"token with a comment of one's own": {httplimit.BearerToken, with("Authorization: Bearer s3cret 1"), keyfunc.ErrMalformedKey},
		"tab after the scheme":              {httplimit.BearerToken, with("Authorization: Bearer\ts3cret"), keyfunc.ErrMalformedKey},
		"token with a comma":                {httplimit.BearerToken, with("Authorization: Bearer s3cret,b"), keyfunc.ErrMalformedKey},
		"two credentials":                   {httplimit.BearerToken, with("Authorization: Bearer s3cret", "Authorization: Bearer b"), keyfunc.ErrMalformedKey},
	} {
		t.Run(name, func(t *testing.T) {
			got, err := row.key(row.r)
			assert.ErrorIs(t, err, row.err)
			if row.err == nil {
				assert.Equal(t, want, got)
				return
			}
			assert.Zero(t, got)
			assert.NotContains(t, err.Error(), "s3cret")
		})
	}
	assert.Regexp(t, "^[0-9a-f]{16}$", want.String())
	assert.NotContains(t, fmt.Sprintf("%v %+v", want, want), "s3cret")
}

func TestRouteKeysAreThePatternOfTheMux(t *testing.T) {
	var pattern, tenant string
	var err, err2 error
	mux := http.NewServeMux()
	mux.HandleFunc("GET /tenants/{tenant}/items", func(_ http.ResponseWriter, r *http.Request) {
		pattern, err = httplimit.Pattern(r)
		tenant, err2 = httplimit.PathValue("tenant")(r)
	})
	send(mux, httptest.NewRequest("GET", "/tenants/acme/items", nil))
	require.NoError(t, err)
	require.NoError(t, err2)
	assert.Equal(t, "GET /tenants/{tenant}/items", pattern)
	assert.Equal(t, "acme", tenant)

	outside := httptest.NewRequest("GET", "/tenants/acme/items", nil)
	_, err = httplimit.Pattern(outside)
	assert.ErrorIs(t, err, keyfunc.ErrNoKey)
	assert.ErrorIs(t, err, keyfunc.ErrMisconfigured)
	_, err = httplimit.PathValue("tenant")(outside)
	assert.ErrorIs(t, err, keyfunc.ErrNoKey)
	assert.ErrorIs(t, err, keyfunc.ErrMisconfigured)
	outside.Pattern = "/tenants/{tenant...}"
	_, err = httplimit.PathValue("tenant")(outside)
	assert.ErrorIs(t, err, keyfunc.ErrNoKey)
	assert.NotErrorIs(t, err, keyfunc.ErrMisconfigured, "the client has left it empty")
}

// A missing key is an error or a layer left out, and never one bucket for all.
func TestMissingKeyIsAnErrorOrASkippedLayer(t *testing.T) {
	limits := func(key func(*http.Request) (keyfunc.Hash, error)) http.Handler {
		perKey, err := ratelimit.New(ratelimit.FixedWindow(ratelimit.PerMinute(1)).Named("key"), &ratelimit.Options[keyfunc.Hash]{Clock: new(fakeClock)})
		require.NoError(t, err)
		return middleware(t, ratelimit.Map(perKey, key), httplimit.Options{}).Wrap(ok)
	}
	required := limits(httplimit.APIKey("X-API-Key"))
	optional := limits(keyfunc.Optional(httplimit.APIKey("X-API-Key")))
	for range 3 {
		assert.Equal(t, http.StatusBadRequest, send(required, with()).StatusCode)
		resp := send(optional, with())
		assert.Equal(t, http.StatusOK, resp.StatusCode)
		assert.Empty(t, resp.Header.Get("RateLimit"), "there is nothing to tell")
	}
	for _, h := range []http.Handler{required, optional} {
		assert.Equal(t, http.StatusOK, send(h, with("X-Api-Key: a")).StatusCode)
		assert.Equal(t, http.StatusTooManyRequests, send(h, with("X-Api-Key: a")).StatusCode)
		assert.Equal(t, http.StatusOK, send(h, with("X-Api-Key: b")).StatusCode)
	}
}

// A key is kept for as long as its budget; the rest of the request must not be.
func TestKeysKeepNothingElseOfTheRequestInMemory(t *testing.T) {
	junk := strings.Repeat("x", 100<<10)
	for name, key := range map[string]func(*http.Request) (string, error){
		"path value": httplimit.PathValue("t"), "header": httplimit.Header("X-Tenant"),
	} {
		t.Run(name, func(t *testing.T) {
			before := testsize.Heap()
			var keys []string
			for range 100 {
				raw := "GET /items?" + junk + " HTTP/1.1\r\nHost: x\r\nX-Tenant: acme\r\n\r\n"
				r, err := http.ReadRequest(bufio.NewReader(strings.NewReader(raw)))
				require.NoError(t, err)
				r.SetPathValue("t", r.URL.Path[1:])
				k, err := key(r)
				require.NoError(t, err)
				keys = append(keys, k)
			}
			assert.Less(t, testsize.Heap(), before+1<<20, "10 MiB of requests have passed")
			runtime.KeepAlive(keys)
		})
	}
}
