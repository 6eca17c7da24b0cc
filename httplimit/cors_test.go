package httplimit_test

import (
	"net/http"
	"net/http/httptest"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/weir-go/ratelimit"
	"github.com/weir-go/ratelimit/httplimit"
)

// The fields of a denial that a page may read are present in every dialect.
func TestExposedFieldsAreTheSentFields(t *testing.T) {
	m := middleware(t, limiterOf(t, new(fakeClock), ratelimit.FixedWindow(ratelimit.PerHour(1))), httplimit.Options{Skip: httplimit.SkipPreflights})
	h := cors("https://app.example", m.Wrap(preflights(http.NotFoundHandler())))
	get := func() *http.Response {
		r := httptest.NewRequest("GET", "/", nil)
		r.Header.Set("Origin", "https://app.example")
		return send(h, r)
	}
	require.Equal(t, http.StatusNotFound, get().StatusCode)
	denied := get()
	require.Equal(t, http.StatusTooManyRequests, denied.StatusCode)
	assert.Equal(t, "https://app.example", denied.Header.Get("Access-Control-Allow-Origin"))
	for _, field := range []string{"RateLimit", "RateLimit-Policy", "Retry-After"} {
		assert.NotEmpty(t, denied.Header.Get(field))
	}
	assert.Equal(t, httplimit.Stats{Allowed: 1, Denied: 1}, m.Stats())
}
