package conformance

import (
	"bufio"
	"fmt"
	"net"
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"net/url"
	"os"
	"path/filepath"
	"sync/atomic"
	"testing"
	"time"

	"github.com/gin-gonic/gin"
	"github.com/go-chi/chi/v5"
	"github.com/gofiber/fiber/v2"
	"github.com/gofiber/fiber/v2/middleware/adaptor"
	"github.com/gorilla/mux"
	"github.com/julienschmidt/httprouter"
	"github.com/labstack/echo/v4"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/weir-go/ratelimit"
	"github.com/weir-go/ratelimit/httplimit"
	"github.com/weir-go/ratelimit/policy"
)

// guardedRules blocks the routes to guarded handlers, and exempts public files.
const guardedRules = `rules:
- {name: public, allow: true, match: {route: /files/public/}}
- {name: guarded, match: {route: [/v1/charges, /search/, /files/big/]}, limit: blocked}
`

// spellings are request targets that some server may route to a guarded handler.
var spellings = []string{
	"/v1/charges", "/v1%2Fcharges", "/v1%2fcharges", "/%76%31/charges", "//v1/charges", "/v1//charges", "/v1/./charges", "/v1/x/../charges",
	"/v1/x/%2e%2e/charges", "/v1/x%2F..%2Fcharges", "/v1%2F%2Fcharges", "/v1/%2Fcharges", "/%2Fv1/charges", "/%2e/v1/charges", "/v1/charge%73?x=1",
	"/search/x", "/search%2Fx", "/search/../x", "/search/%2e%2e/x", "/search/..%2Fx", "/sear%63h/a/b", "//search/x", "/./search/x", "/search//../../x",
	"/files/big/a.iso", "/files/big%2Fa.iso", "/files/x/%2e%2e/big/a.iso", "/files/x/../big/a.iso", "/files/public/%2e%2e/big/a.iso", "/files/public/../big/a.iso",
	"/files/public%2F..%2Fbig/a.iso", "/files/%62ig/a.iso", "/files//big/a.iso", "/files/big/%61.iso", "/files%2Fbig%2Fa.iso", "/files/public/x%2F..%2F..%2Fbig%2Fa.iso",
	"/files/big/../public/a.iso", "/files/big/%2e%2e/public/a.iso", "/%66iles/public/%2E%2E/big/a.iso",
	"http://h/v1/charges", "http:/v1/charges", "x:y:/v1/charges", "x:y://h/search/x", "x:y:z:/v1/charges", "x:v1/charges",
}

// TestNoSpellingOfAPathReachesAGuardedHandler sends each spelling to routers with different ways to decode,
// clean and split paths. The policy receives the request first, so the guarded handler must never run.
func TestNoSpellingOfAPathReachesAGuardedHandler(t *testing.T) {
	gin.SetMode(gin.ReleaseMode)
	folder := t.TempDir()
	for _, name := range []string{"big", "public", "x"} {
		require.NoError(t, os.MkdirAll(filepath.Join(folder, name), 0o700))
		require.NoError(t, os.WriteFile(filepath.Join(folder, name, "a.iso"), []byte(name), 0o600))
	}
	for name, server := range map[string]func(guarded, files http.Handler) http.Handler{
		"a switch on the path": func(guarded, files http.Handler) http.Handler {
			return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				switch p := r.URL.Path; {
				case p == "/v1/charges", len(p) > 8 && p[:8] == "/search/":
					guarded.ServeHTTP(w, r)
				default:
					files.ServeHTTP(w, r)
				}
			})
		},
		"ServeMux": func(guarded, files http.Handler) http.Handler {
			m := http.NewServeMux()
			m.Handle("/v1/charges", guarded)
			m.Handle("/search/", guarded)
			m.Handle("/files/", files)
			return m
		},
		"ReverseProxy": func(guarded, files http.Handler) http.Handler {
			backend := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				m := http.NewServeMux()
				m.Handle("/v1/charges", guarded)
				m.Handle("/search/", guarded)
				m.Handle("/files/", files)
				r.URL.RawPath = "" // some servers decode before they route
				m.ServeHTTP(w, r)
			}))
			t.Cleanup(backend.Close)
			to, err := url.Parse(backend.URL)
			require.NoError(t, err)
			return &httputil.ReverseProxy{Rewrite: func(r *httputil.ProxyRequest) { r.SetURL(to) }}
		},
		"gin": func(guarded, files http.Handler) http.Handler {
			e := gin.New()
			e.Any("/v1/charges", gin.WrapH(guarded))
			e.Any("/search/*rest", gin.WrapH(guarded))
			e.Any("/files/*rest", gin.WrapH(files))
			return e
		},
		"gin by the raw path": func(guarded, files http.Handler) http.Handler {
			e := gin.New()
			e.UseRawPath, e.RemoveExtraSlash = true, true
			e.Any("/v1/charges", gin.WrapH(guarded))
			e.Any("/search/*rest", gin.WrapH(guarded))
			e.Any("/files/*rest", gin.WrapH(files))
			return e
		},
		"chi": func(guarded, files http.Handler) http.Handler {
			m := chi.NewRouter()
			m.Handle("/v1/charges", guarded)
			m.Handle("/search/*", guarded)
			m.Handle("/files/*", files)
			return m
		},
		"echo": func(guarded, files http.Handler) http.Handler {
			e := echo.New()
			e.Any("/v1/charges", echo.WrapHandler(guarded))
			e.Any("/search/*", echo.WrapHandler(guarded))
			e.Any("/files/*", echo.WrapHandler(files))
			return e
		},
		"gorilla": func(guarded, files http.Handler) http.Handler {
			m := mux.NewRouter()
			m.Handle("/v1/charges", guarded)
			m.PathPrefix("/search/").Handler(guarded)
			m.PathPrefix("/files/").Handler(files)
			return m
		},
		"gorilla by the encoded path": func(guarded, files http.Handler) http.Handler {
			m := mux.NewRouter().UseEncodedPath().SkipClean(true)
			m.Handle("/v1/charges", guarded)
			m.PathPrefix("/search/").Handler(guarded)
			m.PathPrefix("/files/").Handler(files)
			return m
		},
		"httprouter": func(guarded, files http.Handler) http.Handler {
			m := httprouter.New()
			m.Handler("GET", "/v1/charges", guarded)
			m.Handler("GET", "/search/*rest", guarded)
			m.Handler("GET", "/files/*rest", files)
			return m
		},
	} {
		t.Run(name, func(t *testing.T) {
			var reached atomic.Int64
			guarded := http.HandlerFunc(func(http.ResponseWriter, *http.Request) { reached.Add(1) })
			served := http.FileServer(http.Dir(folder))
			files := http.StripPrefix("/files", http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				inner := httptest.NewRecorder()
				served.ServeHTTP(inner, r)
				if inner.Body.String() == "big" {
					reached.Add(1)
				}
				w.WriteHeader(inner.Code)
			}))
			router := server(guarded, files)
			p := ratelimit.Must(policy.New(ratelimit.Must(policy.Parse([]byte(guardedRules))), nil))
			limit := ratelimit.Must(httplimit.New(ratelimit.Map(p, func(r *http.Request) (policy.Request, error) { return policy.HTTP(r, nil), nil }), nil))
			open, shut := httptest.NewServer(router), httptest.NewServer(limit.Wrap(router))
			defer open.Close()
			defer shut.Close()
			found := int64(0)
			for _, target := range spellings {
				reached.Store(0)
				send(t, open.Listener.Addr().String(), target)
				found += reached.Swap(0)
				send(t, shut.Listener.Addr().String(), target)
				assert.Zero(t, reached.Load(), "%s reaches a guarded handler", target)
			}
			assert.GreaterOrEqual(t, found, int64(5), "spellings that reach one without the policy")
			assert.Equal(t, http.StatusOK, send(t, shut.Listener.Addr().String(), "/files/public/a.iso"))
			t.Logf("%d of %d spellings reach a guarded handler without the policy, none with it", found, len(spellings))
		})
	}
}

// fiber routes the path as sent, with letters of any case. Upper case
// letters evade a rule for lower case ones, unless fiber is case-sensitive.
func TestNoSpellingOfAPathReachesAGuardedHandlerOfFiber(t *testing.T) {
	p := ratelimit.Must(policy.New(ratelimit.Must(policy.Parse([]byte(guardedRules))), nil))
	limit := ratelimit.Must(httplimit.New(ratelimit.Map(p, func(r *http.Request) (policy.Request, error) { return policy.HTTP(r, nil), nil }), nil))
	app := fiber.New(fiber.Config{DisableStartupMessage: true, CaseSensitive: true, StrictRouting: true})
	var reached atomic.Int64
	app.Use(adaptor.HTTPMiddleware(limit.Wrap))
	handler := func(*fiber.Ctx) error { reached.Add(1); return nil }
	app.All("/v1/charges", handler)
	app.All("/search/*", handler)
	app.All("/files/big/*", handler)
	l, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	go func() { _ = app.Listener(l) }()
	defer func() { _ = app.Shutdown() }()
	for _, target := range spellings {
		send(t, l.Addr().String(), target)
		assert.Zero(t, reached.Swap(0), "%s reaches a guarded handler", target)
	}
}

// send writes a target unchanged to a connection, and returns the status.
func send(t *testing.T, addr, target string) int {
	t.Helper()
	c, err := net.Dial("tcp", addr)
	require.NoError(t, err)
	defer c.Close()
	_ = c.SetDeadline(time.Now().Add(10 * time.Second))
	_, err = fmt.Fprintf(c, "GET %s HTTP/1.1\r\nHost: example.com\r\nConnection: close\r\n\r\n", target)
	require.NoError(t, err)
	resp, err := http.ReadResponse(bufio.NewReader(c), nil)
	require.NoError(t, err, target)
	defer resp.Body.Close()
	return resp.StatusCode
}
