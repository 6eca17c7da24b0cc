package httplimit_test

import (
	"net/http"
	"net/http/httptest"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/weir-go/ratelimit"
	"github.com/weir-go/ratelimit/httplimit"
)

// No field has a word for a month: w is the length of the present window, which the next one may
// not have. A bubble's time begins on January 1, 2000.
func TestAPolicysWindowIsThePresentOne(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		limit := ratelimit.Calendar(2, ratelimit.Month("UTC", 1)).Named("quota")
		l := ratelimit.Must(ratelimit.New[string](limit, nil))
		m, err := httplimit.New(ratelimit.Map(l, func(*http.Request) (string, error) { return "k", nil }), nil)
		require.NoError(t, err)
		handler := m.Wrap(http.NotFoundHandler())
		header := func() http.Header {
			w := httptest.NewRecorder()
			handler.ServeHTTP(w, httptest.NewRequest(http.MethodGet, "/", nil))
			return w.Result().Header
		}
		const day = 24 * time.Hour
		time.Sleep(20 * day)
		h := header()
		assert.Equal(t, `"quota";q=2;w=2678400`, h.Get("RateLimit-Policy"), "31 days")
		assert.Equal(t, `"quota";r=1;t=950400`, h.Get("RateLimit"), "11 days are left")
		header()
		h = header()
		assert.Equal(t, "950400", h.Get("Retry-After"))
		time.Sleep(11 * day)
		h = header()
		assert.Equal(t, `"quota";q=2;w=2505600`, h.Get("RateLimit-Policy"), "29 days")
		assert.Equal(t, `"quota";r=1;t=2505600`, h.Get("RateLimit"))
	})
}
