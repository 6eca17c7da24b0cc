package conformance

import (
	"context"
	"errors"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"testing"

	"github.com/gin-gonic/gin"
	"github.com/go-chi/chi/v5"
	"github.com/labstack/echo/v4"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/weir-go/ratelimit"
	"github.com/weir-go/ratelimit/httplimit"
	"github.com/weir-go/ratelimit/keyfunc"
)

// failures returns middleware that counts only failed logins, 5 an hour. left returns the remaining budget.
func failures(t *testing.T) (m *httplimit.Middleware, left func() int) {
	l, err := ratelimit.New[string](ratelimit.FixedWindow(ratelimit.PerHour(5)), nil)
	require.NoError(t, err)
	m, err = httplimit.New(ratelimit.Map(l, func(*http.Request) (string, error) { return "k", nil }),
		&httplimit.Options{Settle: httplimit.ChargeOnly(http.StatusUnauthorized), Logger: slog.New(slog.DiscardHandler)})
	require.NoError(t, err)
	return m, func() int {
		d, err := l.Peek(context.Background(), "k", 1)
		require.NoError(t, err)
		return d.Remaining
	}
}

func get(t *testing.T, h http.Handler, path string) (*http.Response, string) {
	s := httptest.NewServer(h)
	defer s.Close()
	resp, err := s.Client().Get(s.URL + path)
	require.NoError(t, err)
	defer resp.Body.Close()
	text, err := io.ReadAll(resp.Body)
	require.NoError(t, err)
	return resp, string(text)
}

// gin's Stream uses http.CloseNotifier, and does not check whether the writer implements it.
func TestGinStreamsInsideTheMiddleware(t *testing.T) {
	gin.SetMode(gin.ReleaseMode)
	m, left := failures(t)
	e := gin.New()
	e.GET("/stream", func(c *gin.Context) {
		n := 0
		c.Stream(func(w io.Writer) bool {
			n++
			_, _ = io.WriteString(w, "part;")
			return n < 3
		})
	})
	e.GET("/login", func(c *gin.Context) { c.AbortWithStatus(http.StatusUnauthorized) })
	resp, text := get(t, m.Wrap(e), "/stream")
	assert.Equal(t, http.StatusOK, resp.StatusCode)
	assert.Equal(t, "part;part;part;", text)
	assert.Equal(t, 5, left())
	get(t, m.Wrap(e), "/login")
	assert.Equal(t, 4, left())
}

// echo writes the response for a handler's error after all its middleware
// has returned. So only middleware around echo sees the status.
func TestErrorsOfEchoAreSeenAroundItOnly(t *testing.T) {
	login := func(echo.Context) error {
		return echo.NewHTTPError(http.StatusUnauthorized, errors.New("wrong password"))
	}
	for name, row := range map[string]struct {
		around bool
		left   int
	}{"around": {true, 4}, "inside": {false, 5}} {
		t.Run(name, func(t *testing.T) {
			m, left := failures(t)
			e := echo.New()
			e.GET("/login", login)
			h := http.Handler(e)
			if row.around {
				h = m.Wrap(e)
			} else {
				e.Use(echo.WrapMiddleware(m.Wrap))
			}
			resp, _ := get(t, h, "/login")
			assert.Equal(t, http.StatusUnauthorized, resp.StatusCode)
			assert.Equal(t, row.left, left())
		})
	}
}

func TestChiUsesTheMiddleware(t *testing.T) {
	m, left := failures(t)
	r := chi.NewRouter()
	r.Use(m.Wrap)
	r.Get("/login", func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusUnauthorized) })
	get(t, r, "/login")
	assert.Equal(t, 4, left())
}

// chi returns its pattern and its path values within the routes, as net/http does.
func TestChisPatternIsFound(t *testing.T) {
	l := ratelimit.Must(ratelimit.New[keyfunc.Pair[string, string]](ratelimit.FixedWindow(ratelimit.PerHour(1)), nil))
	m, err := httplimit.New(ratelimit.Map(l, keyfunc.Join(httplimit.Pattern, httplimit.PathValue("tenant"))), nil)
	require.NoError(t, err)
	r := chi.NewRouter()
	r.With(m.Wrap).Get("/tenants/{tenant}", func(http.ResponseWriter, *http.Request) {})
	for path, want := range map[string]int{"/tenants/a": 200, "/tenants/b": 200} {
		resp, _ := get(t, r, path)
		assert.Equal(t, want, resp.StatusCode)
		resp, _ = get(t, r, path)
		assert.Equal(t, http.StatusTooManyRequests, resp.StatusCode)
	}
}
