package httplimit_test

import (
	"bufio"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"net/http/httptrace"
	"net/http/httputil"
	"net/textproto"
	"net/url"
	"runtime"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/weir-go/ratelimit"
	"github.com/weir-go/ratelimit/httplimit"
	"github.com/weir-go/ratelimit/inflight"
)

// upgrade requests another protocol, and returns the connection and the response's status.
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

// echoes hijacks the connection and returns at once. WebSocket servers with a goroutine for each socket do the same.
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
			outer, _ := newInflight(t, 1000, nil, nil) // hijacks the same connection
			s := started(t, outer.Wrap(m.Wrap(echoes(t))))
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

// A proxy's handler copies between its two connections, and returns when one of them is closed.
func TestAProxiedWebSocketKeepsItsPermitsOnBothSides(t *testing.T) {
	backend := started(t, echoes(t))
	to := ratelimit.Must(url.Parse(backend.URL))
	client := ratelimit.Must(inflight.New[string](1, nil))
	transport := ratelimit.Must(httplimit.NewTransport(nil, nil, &httplimit.TransportOptions{Inflight: client}))
	proxy := httputil.NewSingleHostReverseProxy(to)
	proxy.Transport, proxy.ErrorLog = transport, logOf(quiet)
	m, server := newInflight(t, 2, nil, nil)
	s := started(t, m.Wrap(proxy))
	first, status := upgrade(t, s)
	assert.Equal(t, http.StatusSwitchingProtocols, status)
	_, status = upgrade(t, s)
	assert.Equal(t, http.StatusBadGateway, status, "the transport's limit is 1, although the response has no body")
	_, err := io.WriteString(first, "hello")
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

// hijackable is a writer whose Hijack returns conn.
type hijackable struct {
	*httptest.ResponseRecorder
	conn net.Conn
}

func (h hijackable) Hijack() (net.Conn, *bufio.ReadWriter, error) { return h.conn, nil, nil }

// hijackOf returns what a handler gets if it hijacks the connection server, and how many connections have a permit.
func hijackOf(t *testing.T, server net.Conn) (conn net.Conn, inFlight func() int) {
	t.Helper()
	m, l := newInflight(t, 1, nil, nil)
	m.Wrap(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		var err error
		conn, _, err = w.(http.Hijacker).Hijack()
		assert.NoError(t, err)
	})).ServeHTTP(hijackable{httptest.NewRecorder(), server}, tenantRequest("acme"))
	return conn, func() int {
		stats, _ := l.Stats("acme")
		return stats.InFlight
	}
}

func TestAHijackedConnectionHasTheMethodsThatCodeLooksFor(t *testing.T) {
	lis := ratelimit.Must(net.Listen("tcp", "127.0.0.1:0"))
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
	conn, inFlight := hijackOf(t, server)
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
}

func TestAHijackedConnectionNamesTheMethodsThatItsKindLacks(t *testing.T) {
	pipe, _ := net.Pipe()
	conn, _ := hijackOf(t, pipe)
	defer conn.Close()
	assert.ErrorContains(t, conn.(interface{ CloseWrite() error }).CloseWrite(), "*net.pipe has no CloseWrite")
	_, err := conn.(syscall.Conn).SyscallConn()
	assert.ErrorContains(t, err, "*net.pipe has no SyscallConn")
}

// A connection may be dropped without being closed, as after a panic.
func TestAHijackedConnectionThatIsDroppedReturnsItsPermit(t *testing.T) {
	pipe, _ := net.Pipe()
	conn, inFlight := hijackOf(t, pipe)
	assert.Equal(t, 1, inFlight())
	runtime.KeepAlive(conn)
	assert.Eventually(t, func() bool {
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
		assert.NoError(t, conn.Close(), "a second Close ends nothing more")
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
			s := started(t, m.Wrap(events))
			transport := ratelimit.Must(httplimit.NewTransport(nil, nil, &httplimit.TransportOptions{Inflight: ratelimit.Must(inflight.New(10, one))}))
			client := &http.Client{Transport: transport}
			for range 3 {
				if hijacks {
					conn, status := upgrade(t, s)
					require.Equal(t, http.StatusSwitchingProtocols, status)
					defer conn.Close()
					continue
				}
				r := ratelimit.Must(http.NewRequest("GET", s.URL, nil))
				r.Header.Set("Tenant", "acme")
				resp, err := client.Do(r)
				require.NoError(t, err)
				defer resp.Body.Close()
				require.Equal(t, http.StatusOK, resp.StatusCode)
			}
		})
	}
}

// hinting is an origin. It sends two informational responses before the final one, each with its own fields.
func hinting(w http.ResponseWriter, r *http.Request) {
	w.Header().Set("Link", "</style.css>; rel=preload")
	w.Header().Set("RateLimit", `"origin";r=7;t=60`)
	w.Header().Set("X-RateLimit-Remaining", "7")
	w.WriteHeader(http.StatusEarlyHints)
	w.WriteHeader(http.StatusEarlyHints)
	w.Header().Del("Link")
	_, _ = io.Copy(w, r.Body)
}

// reverseProxy returns a proxy to a server with this handler.
func reverseProxy(t *testing.T, origin http.HandlerFunc) *httputil.ReverseProxy {
	server := httptest.NewServer(origin)
	t.Cleanup(server.Close)
	proxy := httputil.NewSingleHostReverseProxy(ratelimit.Must(url.Parse(server.URL)))
	proxy.ErrorLog = logOf(quiet)
	return proxy
}

// hintOnly is an origin whose final response is the server's own.
func hintOnly(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusEarlyHints) }

// An origin behind a ReverseProxy sends informational responses. ReverseProxy clears the header after each.
func TestTheFinalResponseHasTheFieldsAfterInformationalOnes(t *testing.T) {
	limit := ratelimit.FixedWindow(ratelimit.PerMinute(100))
	settle := func(_ *http.Request, _, cost int) int { return cost }
	for name, row := range map[string]struct {
		opts   []httplimit.Options // the middlewares' options, the outer first
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
		"nothing after an informational response": {[]httplimit.Options{{}}, hintOnly, 1, "", map[string][]string{
			"Ratelimit-Policy": {`"a";q=100;w=60`}, "Ratelimit": {`"a";r=99;t=60`}}},
		"nothing after an informational response, settled": {[]httplimit.Options{{Settle: settle}}, hintOnly, 1, "", map[string][]string{
			"Ratelimit-Policy": {`"a";q=100;w=60`}, "Ratelimit": {`"a";r=99;t=60`}}},
		"no informational response": {[]httplimit.Options{{}}, func(http.ResponseWriter, *http.Request) {}, 0, "", map[string][]string{
			"Ratelimit-Policy": {`"a";q=100;w=60`}, "Ratelimit": {`"a";r=99;t=60`}}},
	} {
		t.Run(name, func(t *testing.T) {
			chains := map[string]http.Handler{} // each protocol has its own limits
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
				req := ratelimit.Must(http.NewRequestWithContext(ctx, "POST", url, strings.NewReader("hello")))
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

// A server reads the body, and therefore answers 100. ReverseProxy passes this answer on.
func TestAnAnswerToExpectKeepsTheFields(t *testing.T) {
	proxy := reverseProxy(t, func(_ http.ResponseWriter, r *http.Request) { _, _ = io.Copy(io.Discard, r.Body) })
	m := middleware(t, limiterOf(t, nil, ratelimit.FixedWindow(ratelimit.PerMinute(9))), httplimit.Options{})
	server := started(t, m.Wrap(proxy))
	req := ratelimit.Must(http.NewRequest("POST", server.URL, strings.NewReader(strings.Repeat("x", 10_000))))
	req.Header.Set("Expect", "100-continue")
	client := &http.Client{Transport: &http.Transport{ExpectContinueTimeout: 1 << 40}}
	defer client.CloseIdleConnections()
	resp, err := client.Do(req)
	require.NoError(t, err)
	assert.Empty(t, body(t, resp))
	assert.Equal(t, []string{`"default";r=8;t=60`}, resp.Header["Ratelimit"])
}

// A handler keeps the header's map and clears it: the fields are restored. If it removes one field, the field stays removed.
func TestAHandlerThatKeepsTheHeaderSeesTheFieldsRestored(t *testing.T) {
	cleared := func(then func(w http.ResponseWriter)) http.HandlerFunc {
		return func(w http.ResponseWriter, _ *http.Request) {
			h := w.Header()
			w.WriteHeader(103)
			clear(h)
			then(w)
		}
	}
	field := []string{`"default";r=8;t=60`}
	for name, row := range map[string]struct {
		handler http.HandlerFunc
		want    []string
	}{
		"removed":                        {func(w http.ResponseWriter, _ *http.Request) { w.Header().Del("RateLimit") }, nil},
		"removed after an informational": {func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(103); w.Header().Del("RateLimit") }, nil},
		"cleared by a map that it keeps": {cleared(func(w http.ResponseWriter) { _, _ = w.Write(nil) }), field},
		"cleared, and a string follows":  {cleared(func(w http.ResponseWriter) { _, _ = io.WriteString(w, "") }), field},
		"cleared, and a flush follows":   {cleared(func(w http.ResponseWriter) { w.(http.Flusher).Flush() }), field},
		"cleared, and a reader follows":  {cleared(func(w http.ResponseWriter) { _, _ = io.Copy(w, strings.NewReader("x")) }), field},
		"cleared, and a status follows":  {cleared(func(w http.ResponseWriter) { w.WriteHeader(200) }), field},
		"cleared, and nothing follows":   {cleared(func(http.ResponseWriter) {}), field},
	} {
		t.Run(name, func(t *testing.T) {
			m := middleware(t, limiterOf(t, nil, ratelimit.FixedWindow(ratelimit.PerMinute(9))), httplimit.Options{})
			server := started(t, m.Wrap(row.handler))
			resp, err := http.Get(server.URL)
			require.NoError(t, err)
			body(t, resp)
			assert.Equal(t, row.want, resp.Header["Ratelimit"])
		})
	}
}

// A handler finds unannounced trailers, as it does without a limiter.
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
	m := ratelimit.Must(httplimit.NewInflight(l, func(*http.Request) (string, error) { return "", nil }, nil))
	return m.Wrap(h)
}
