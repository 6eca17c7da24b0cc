package conformance

import (
	"context"
	"crypto/tls"
	"errors"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"testing"

	"github.com/gin-gonic/gin"
	"github.com/gofiber/fiber/v2"
	"github.com/gofiber/fiber/v2/middleware/adaptor"
	"github.com/grpc-ecosystem/grpc-gateway/v2/runtime"
	"github.com/labstack/echo/v4"
	"github.com/quic-go/quic-go/http3"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/weir-go/ratelimit"
	"github.com/weir-go/ratelimit/httplimit"
)

// ginLimit returns httplimit as gin's middleware for a group of routes. It decides before
// the handler runs, and does not see the response. To settle by the status, wrap the engine.
func ginLimit(m *httplimit.Middleware) gin.HandlerFunc {
	return func(c *gin.Context) {
		served := false
		m.Wrap(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
			served = true
			c.Request = r
			c.Next()
		})).ServeHTTP(c.Writer, c.Request)
		if !served {
			c.Abort()
		}
	}
}

// writeErrors makes echo write the response for an error at once, so that outer middleware sees the status.
func writeErrors(next echo.HandlerFunc) echo.HandlerFunc {
	return func(c echo.Context) error {
		if err := next(c); err != nil {
			c.Error(err)
		}
		return nil
	}
}

// once returns middleware that allows one request an hour.
func once(t *testing.T) *httplimit.Middleware {
	m, err := httplimit.PerIP(ratelimit.FixedWindow(ratelimit.PerHour(1)), nil)
	require.NoError(t, err)
	return m
}

// allowsOne sends two requests, and expects the statuses 200 and 429.
func allowsOne(t *testing.T, client *http.Client, url string) {
	for _, want := range []int{http.StatusOK, http.StatusTooManyRequests} {
		resp, err := client.Get(url)
		require.NoError(t, err)
		_, err = io.Copy(io.Discard, resp.Body)
		require.NoError(t, err)
		resp.Body.Close()
		assert.Equal(t, want, resp.StatusCode)
		assert.Equal(t, want == http.StatusTooManyRequests, resp.Header.Get("Retry-After") != "")
		assert.NotEmpty(t, resp.Header.Get("RateLimit-Policy"))
	}
}

func TestAGroupOfGin(t *testing.T) {
	gin.SetMode(gin.ReleaseMode)
	e := gin.New()
	handled := 0
	api := e.Group("/api", ginLimit(once(t)))
	api.GET("/hello", func(c *gin.Context) { handled++; c.String(http.StatusOK, "hello") })
	e.GET("/free", func(c *gin.Context) { c.String(http.StatusOK, "free") })
	s := httptest.NewServer(e)
	defer s.Close()
	allowsOne(t, s.Client(), s.URL+"/api/hello")
	assert.Equal(t, 1, handled, "a denied request does not reach its handler")
	resp, text := get(t, e, "/free")
	assert.Equal(t, http.StatusOK, resp.StatusCode)
	assert.Equal(t, "free", text)
}

func TestEchoWritesErrorsInsideTheLimiter(t *testing.T) {
	m, left := failures(t)
	e := echo.New()
	e.Use(echo.WrapMiddleware(m.Wrap), writeErrors)
	e.GET("/login", func(echo.Context) error {
		return echo.NewHTTPError(http.StatusUnauthorized, errors.New("wrong password"))
	})
	resp, _ := get(t, e, "/login")
	assert.Equal(t, http.StatusUnauthorized, resp.StatusCode)
	assert.Equal(t, 4, left(), "the failed login is charged")
}

// fiber runs its handler after the middleware has returned. So the middleware decides, but cannot settle.
func TestFiber(t *testing.T) {
	app := fiber.New(fiber.Config{DisableStartupMessage: true})
	app.Use(adaptor.HTTPMiddleware(once(t).Wrap))
	handled := 0
	app.Get("/", func(c *fiber.Ctx) error { handled++; return c.SendString("hello") })
	l, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	served := make(chan error, 1)
	go func() { served <- app.Listener(l) }()
	allowsOne(t, http.DefaultClient, "http://"+l.Addr().String())
	assert.Equal(t, 1, handled)
	http.DefaultClient.CloseIdleConnections()
	require.NoError(t, app.Shutdown())
	require.NoError(t, <-served)
}

func TestGRPCGateway(t *testing.T) {
	gateway := runtime.NewServeMux()
	require.NoError(t, gateway.HandlePath(http.MethodGet, "/v1/hello", func(w http.ResponseWriter, _ *http.Request, _ map[string]string) {
		_, _ = io.WriteString(w, "{}")
	}))
	s := httptest.NewServer(once(t).Wrap(gateway))
	defer s.Close()
	allowsOne(t, s.Client(), s.URL+"/v1/hello")
}

func TestHTTP2WithoutTLS(t *testing.T) {
	h := once(t).Wrap(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { _, _ = io.WriteString(w, r.Proto) }))
	allowsOne(t, rpcClient(t), "http://"+rpcServer(t, h))
}

func TestHTTP3(t *testing.T) {
	local := httptest.NewTLSServer(nil) // only its certificate is used
	defer local.Close()
	conn, err := net.ListenPacket("udp", "127.0.0.1:0")
	require.NoError(t, err)
	server := &http3.Server{
		TLSConfig: http3.ConfigureTLSConfig(&tls.Config{Certificates: local.TLS.Certificates}),
		Handler:   once(t).Wrap(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { _, _ = io.WriteString(w, r.Proto) })),
	}
	served := make(chan error, 1)
	go func() { served <- server.Serve(conn) }()
	transport := &http3.Transport{TLSClientConfig: local.Client().Transport.(*http.Transport).TLSClientConfig.Clone()}
	defer transport.Close()
	transport.TLSClientConfig.ServerName = "example.com"
	allowsOne(t, &http.Client{Transport: transport}, "https://"+conn.LocalAddr().String())
	require.NoError(t, server.Shutdown(context.Background()))
	require.ErrorIs(t, <-served, http.ErrServerClosed)
}
