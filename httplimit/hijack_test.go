package httplimit_test

import (
	"bufio"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"net/url"
	"runtime"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/weir-go/ratelimit"
	"github.com/weir-go/ratelimit/httplimit"
	"github.com/weir-go/ratelimit/inflight"
)

// upgrade asks a server for another protocol, and returns the connection and the status.
func upgrade(t *testing.T, s *httptest.Server) (net.Conn, int) {
	t.Helper()
	conn, err := net.Dial("tcp", s.Listener.Addr().String())
	require.NoError(t, err)
	t.Cleanup(func() { _ = conn.Close() })
	_, err = io.WriteString(conn, "GET / HTTP/1.1\r\nHost: x\r\nTenant: acme\r\nConnection: Upgrade\r\nUpgrade: echo\r\n\r\n")
	require.NoError(t, err)
	resp, err := http.ReadResponse(bufio.NewReader(conn), nil)
	require.NoError(t, err)
	return conn, resp.StatusCode
}

// echoes hijacks the connection and returns at once, as a WebSocket server does that has a goroutine for each socket.
func echoes(t *testing.T) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		conn, _, err := http.NewResponseController(w).Hijack()
		if !assert.NoError(t, err) {
			return
		}
		_, err = io.WriteString(conn, "HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: echo\r\n\r\n")
		assert.NoError(t, err)
		go func() {
			defer conn.Close()
			_, _ = io.Copy(conn, conn)
		}()
	})
}

func TestAHijackedConnectionKeepsItsPermitUntilItIsClosed(t *testing.T) {
	for name, o := range map[string]*inflightOptions{"fixed": nil, "adaptive": {Adaptive: inflight.Learn(&inflight.LearnOptions{Start: 1000})}} {
		t.Run(name, func(t *testing.T) {
			limit := 2
			if o != nil {
				limit = 1000
			}
			m, l := newInflight(t, limit, o, nil)
			outer, _ := newInflight(t, 1000, nil, nil) // sees the same connection
			s := httptest.NewServer(outer.Wrap(m.Wrap(echoes(t))))
			defer s.Close()
			inFlight := func() int {
				stats, _ := l.Stats("acme")
				return stats.InFlight
			}
			var open []net.Conn
			for i := range 10 {
				conn, status := upgrade(t, s)
				if o == nil && i >= limit {
					assert.Equal(t, http.StatusServiceUnavailable, status)
					continue
				}
				assert.Equal(t, http.StatusSwitchingProtocols, status)
				open = append(open, conn)
			}
			assert.Equal(t, len(open), inFlight())
			for i, conn := range open {
				_, err := io.WriteString(conn, "hello")
				require.NoError(t, err)
				b := make([]byte, 5)
				_, err = io.ReadFull(conn, b)
				require.NoError(t, err)
				require.NoError(t, conn.Close())
				assert.Eventually(t, func() bool { return inFlight() == len(open)-1-i }, time.Minute, time.Millisecond)
			}
		})
	}
}

// A proxy's handler returns when the connection is closed on one side, and copies between the two until then.
func TestAProxiedWebSocketKeepsItsPermitsOnBothSides(t *testing.T) {
	backend := httptest.NewServer(echoes(t))
	defer backend.Close()
	to, err := url.Parse(backend.URL)
	require.NoError(t, err)
	client := ratelimit.Must(inflight.New[string](1, nil))
	transport, err := httplimit.NewTransport(nil, nil, &httplimit.TransportOptions{Inflight: client})
	require.NoError(t, err)
	proxy := httputil.NewSingleHostReverseProxy(to)
	proxy.Transport, proxy.ErrorLog = transport, logOf(quiet)
	m, server := newInflight(t, 2, nil, nil)
	s := httptest.NewServer(m.Wrap(proxy))
	defer s.Close()
	first, status := upgrade(t, s)
	assert.Equal(t, http.StatusSwitchingProtocols, status)
	_, status = upgrade(t, s)
	assert.Equal(t, http.StatusBadGateway, status, "the transport's limit is 1, although the response has no body")
	_, err = io.WriteString(first, "hello")
	require.NoError(t, err)
	require.NoError(t, first.(*net.TCPConn).CloseWrite())
	echoed, err := io.ReadAll(first)
	require.NoError(t, err)
	assert.Equal(t, "hello", string(echoed), "a half-closed connection is served to its end")
	assert.Eventually(t, func() bool {
		stats, _ := server.Stats("acme")
		other, _ := client.Stats(to.Host)
		return stats.InFlight+other.InFlight == 0
	}, time.Minute, time.Millisecond)
	_, status = upgrade(t, s)
	assert.Equal(t, http.StatusSwitchingProtocols, status)
}

// hijackable is a writer that hands out a connection of a kind.
type hijackable struct {
	*httptest.ResponseRecorder
	conn net.Conn
}

func (h hijackable) Hijack() (net.Conn, *bufio.ReadWriter, error) { return h.conn, nil, nil }

func TestAHijackedConnectionHasTheMethodsThatCodeLooksFor(t *testing.T) {
	m, l := newInflight(t, 1, nil, nil)
	inFlight := func() int {
		stats, _ := l.Stats("acme")
		return stats.InFlight
	}
	hijackOf := func(server net.Conn) (conn net.Conn) {
		m.Wrap(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
			var err error
			conn, _, err = w.(http.Hijacker).Hijack()
			assert.NoError(t, err)
		})).ServeHTTP(hijackable{httptest.NewRecorder(), server}, tenantRequest("acme"))
		return conn
	}
	lis, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	defer lis.Close()
	accepted := make(chan net.Conn, 1)
	go func() {
		c, _ := lis.Accept()
		accepted <- c
	}()
	far, err := net.Dial("tcp", lis.Addr().String())
	require.NoError(t, err)
	defer far.Close()
	server := <-accepted
	conn := hijackOf(server)
	assert.Same(t, server, conn.(interface{ NetConn() net.Conn }).NetConn())
	_, err = conn.(syscall.Conn).SyscallConn()
	assert.NoError(t, err)
	require.NoError(t, conn.(interface{ CloseWrite() error }).CloseWrite())
	_, err = far.Read(make([]byte, 1))
	assert.Equal(t, io.EOF, err)
	assert.Equal(t, 1, inFlight())
	require.NoError(t, conn.Close())
	assert.Error(t, conn.Close(), "the second time")
	assert.Zero(t, inFlight())

	pipe, _ := net.Pipe()
	conn = hijackOf(pipe)
	assert.ErrorContains(t, conn.(interface{ CloseWrite() error }).CloseWrite(), "*net.pipe has no CloseWrite")
	_, err = conn.(syscall.Conn).SyscallConn()
	assert.ErrorContains(t, err, "*net.pipe has no SyscallConn")
	assert.Equal(t, 1, inFlight())
	conn = nil
	assert.Eventually(t, func() bool { // dropped without being closed, as after a panic
		runtime.GC()
		return inFlight() == 0
	}, time.Minute, time.Millisecond)
}

func TestAHandlerKeepsItsPermitAfterItClosesTheConnection(t *testing.T) {
	var m *httplimit.Inflight[string]
	var l *inflight.Limiter[string]
	var during int
	m, l = newInflight(t, 1, nil, nil)
	h := m.Wrap(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		conn, _, err := w.(http.Hijacker).Hijack()
		assert.NoError(t, err)
		assert.NoError(t, conn.Close())
		stats, _ := l.Stats("acme")
		during = stats.InFlight
	}))
	near, _ := net.Pipe()
	h.ServeHTTP(hijackable{httptest.NewRecorder(), near}, tenantRequest("acme"))
	stats, _ := l.Stats("acme")
	assert.Equal(t, "1 0", fmt.Sprint(during, stats.InFlight))
}

// Open WebSockets and event streams leave the learnt limit to other requests, at the server and at the client.
func TestOpenStreamsLeaveTheLearntLimitToOthers(t *testing.T) {
	for name, hijacks := range map[string]bool{"hijacked": true, "event stream": false} {
		t.Run(name, func(t *testing.T) {
			one := &inflightOptions{Adaptive: inflight.Learn(&inflight.LearnOptions{Start: 1})}
			m, _ := newInflight(t, 10, one, nil)
			end := make(chan struct{})
			defer close(end)
			var events http.Handler = http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				w.Header().Set("Content-Type", "text/event-stream; charset=utf-8")
				_ = http.NewResponseController(w).Flush()
				select {
				case <-end:
				case <-r.Context().Done():
				}
			})
			if hijacks {
				events = echoes(t)
			}
			s := httptest.NewServer(m.Wrap(events))
			defer s.Close()
			transport, err := httplimit.NewTransport(nil, nil, &httplimit.TransportOptions{Inflight: ratelimit.Must(inflight.New(10, one))})
			require.NoError(t, err)
			client := &http.Client{Transport: transport}
			for range 3 {
				if hijacks {
					conn, status := upgrade(t, s)
					require.Equal(t, http.StatusSwitchingProtocols, status)
					defer conn.Close()
					continue
				}
				r, err := http.NewRequest("GET", s.URL, nil)
				require.NoError(t, err)
				r.Header.Set("Tenant", "acme")
				resp, err := client.Do(r)
				require.NoError(t, err)
				defer resp.Body.Close()
				require.Equal(t, http.StatusOK, resp.StatusCode)
			}
		})
	}
}
