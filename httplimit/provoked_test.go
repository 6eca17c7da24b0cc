package httplimit_test

import (
	"bufio"
	"context"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/weir-go/ratelimit"
	"github.com/weir-go/ratelimit/httplimit"
	"github.com/weir-go/ratelimit/inflight"
	"github.com/weir-go/ratelimit/keyfunc"
)

// refunding returns a middleware with a limit of 5 an hour, and its limiter. The middleware refunds server errors.
func refunding(t *testing.T) (*httplimit.Middleware, *ratelimit.Layered[*http.Request]) {
	limiter := limiterOf(t, new(fakeClock), ratelimit.FixedWindow(ratelimit.PerHour(5)))
	return middleware(t, limiter, httplimit.Options{Settle: httplimit.RefundServerErrors}), limiter
}

func left(t *testing.T, l *ratelimit.Layered[*http.Request]) int {
	d, err := l.Peek(context.Background(), nil, 1)
	require.NoError(t, err)
	return d.Remaining
}

// raw sends bytes to the handler over its own connection, and returns the status.
func raw(t *testing.T, h http.Handler, request string) int {
	s := httptest.NewUnstartedServer(h)
	s.Config.ErrorLog = slog.NewLogLogger(slog.DiscardHandler, slog.LevelError)
	s.Start()
	defer s.Close()
	conn, err := net.Dial("tcp", s.Listener.Addr().String())
	require.NoError(t, err)
	defer conn.Close()
	_, err = io.WriteString(conn, request)
	require.NoError(t, err)
	resp, err := http.ReadResponse(bufio.NewReader(conn), nil)
	require.NoError(t, err)
	return resp.StatusCode
}

func TestServerErrorsThatAClientProvokesAreCharged(t *testing.T) {
	proxy := reverseProxy(t, func(_ http.ResponseWriter, r *http.Request) { _, _ = io.Copy(io.Discard, r.Body) })
	reads := http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if _, err := io.ReadAll(r.Body); err != nil {
			http.Error(w, "", http.StatusInternalServerError)
		}
	})
	const post = "POST / HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n"
	for name, row := range map[string]struct {
		h       http.Handler
		request string
		status  int
	}{
		"proxy with a malformed chunk":       {proxy, post + "zz\r\n", 502},
		"handler with a malformed chunk":     {reads, post + "zz\r\n", 500},
		"body above the limit of the server": {reads, post + "5\r\nabcde\r\n0\r\n\r\n", 500},
	} {
		t.Run(name, func(t *testing.T) {
			m, limiter := refunding(t)
			assert.Equal(t, row.status, raw(t, http.MaxBytesHandler(m.Wrap(row.h), 4), row.request))
			assert.Equal(t, 4, left(t, limiter))
		})
	}
}

// One client's broken requests must not lower everyone's limit.
func TestAnAdaptiveLimitLearnsNothingFromProvokedErrors(t *testing.T) {
	proxy := reverseProxy(t, func(_ http.ResponseWriter, r *http.Request) { _, _ = io.Copy(io.Discard, r.Body) })
	failing := http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		_, _ = io.ReadAll(r.Body)
		w.WriteHeader(http.StatusBadGateway)
	})
	full := http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		inner := ratelimit.Must(inflight.New(1, &inflight.Options[string]{MaxKeys: 1}))
		_, err := inner.TryAcquire("other", 1)
		require.NoError(t, err)
		m := ratelimit.Must(httplimit.NewInflight(inner, func(*http.Request) (string, error) { return "key", nil }, nil))
		m.Wrap(unreachable(t)).ServeHTTP(w, r)
	})
	const post = "POST / HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n"
	for name, row := range map[string]struct {
		h       http.Handler
		request string
		status  int
		learned int
	}{
		"proxy with a malformed chunk":   {proxy, post + "zz\r\n", 502, 400},
		"handler with a malformed chunk": {failing, post + "zz\r\n", 502, 400},
		"handler that fails":             {failing, post + "2\r\nok\r\n0\r\n\r\n", 502, 502},
		"an inner table that is full":    {full, post + "0\r\n\r\n", 503, 400},
	} {
		t.Run(name, func(t *testing.T) {
			statuses := make(chan int, 1)
			l := ratelimit.Must(inflight.New[string](1, nil))
			m := ratelimit.Must(httplimit.NewInflight(l, func(*http.Request) (string, error) { return "all", nil }, &httplimit.InflightOptions{
				Outcome: func(_ *http.Request, status int, usual inflight.Outcome) inflight.Outcome {
					statuses <- status
					assert.Equal(t, status == 400, usual == inflight.Ignored, "what a client provokes says nothing about the load")
					return inflight.Ignored
				},
			}))
			assert.Equal(t, row.status, raw(t, m.Wrap(row.h), row.request))
			assert.Equal(t, row.learned, <-statuses)
		})
	}
}

// A flood of keys fills the table. Its senders pay for the refusals, because these are not failures of the server.
func TestRefusalsOfAnInflightThatClientsCauseAreCharged(t *testing.T) {
	one := func() *inflight.Limiter[string] {
		l := ratelimit.Must(inflight.New(1, &inflight.Options[string]{MaxKeys: 1}))
		_, err := l.TryAcquire("held", 1)
		require.NoError(t, err)
		return l
	}
	for name, row := range map[string]struct {
		key    string
		units  int
		status int
		left   int
	}{
		"a key that has no room in the table": {"other", 1, 503, 4},
		"a cost below zero":                   {"other", -1, 500, 4},
		"no room for anybody":                 {"held", 1, 503, 5},
	} {
		t.Run(name, func(t *testing.T) {
			m, limiter := refunding(t)
			inner := ratelimit.Must(httplimit.NewInflight(one(), func(*http.Request) (string, error) { return row.key, nil }, &httplimit.InflightOptions{
				Units: func(*http.Request) int { return row.units },
			}))
			assert.Equal(t, row.status, send(m.Wrap(inner.Wrap(unreachable(t))), with()).StatusCode)
			assert.Equal(t, row.left, left(t, limiter))
		})
	}
}

func TestTimeoutWhileTheBodyIsAwaitedIsTheClientsDoing(t *testing.T) {
	h, statuses := settled(t, http.TimeoutHandler(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		_, _ = io.ReadAll(r.Body)
	}), 50*time.Millisecond, "").ServeHTTP)
	s := started(t, h)
	conn, err := net.Dial("tcp", s.Listener.Addr().String())
	require.NoError(t, err)
	_, err = io.WriteString(conn, "POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 100\r\n\r\nslow")
	require.NoError(t, err)
	assert.Equal(t, http.StatusBadRequest, <-statuses)
	require.NoError(t, conn.Close())
}

func TestServerErrorsOfTheServerAreRefundedWhateverTheBody(t *testing.T) {
	m, limiter := refunding(t)
	h := m.Wrap(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		_, err := io.ReadFull(r.Body, make([]byte, 1))
		assert.NoError(t, err)
		_ = r.Body.Close()
		_, err = r.Body.Read(make([]byte, 1))
		assert.Error(t, err, "this handler's own mistake")
		w.WriteHeader(http.StatusInternalServerError)
	}))
	for _, http2 := range []bool{false, true} {
		s := httptest.NewUnstartedServer(h)
		s.EnableHTTP2 = http2
		s.StartTLS()
		defer s.Close()
		resp, err := s.Client().Post(s.URL, "text/plain", strings.NewReader("hello"))
		require.NoError(t, err)
		assert.Equal(t, http2, resp.ProtoMajor == 2)
		body(t, resp)
		assert.Equal(t, 5, left(t, limiter), http2)
	}
}

// An impossible status causes a panic, and nothing is sent. The function that recovers from it can still answer.
func TestAHandlersPanicForItsStatusCanBeAnswered(t *testing.T) {
	m, limiter := refunding(t)
	w := send(m.Wrap(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		defer func() {
			assert.NotNil(t, recover())
			w.WriteHeader(http.StatusInternalServerError)
		}()
		w.WriteHeader(1000)
	})), with())
	assert.Equal(t, 500, w.StatusCode)
	assert.Equal(t, 5, left(t, limiter))
}

func TestBodilessRequestsKeepTheirBody(t *testing.T) {
	m, _ := refunding(t)
	send(m.Wrap(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		assert.Equal(t, http.NoBody, r.Body)
	})), httptest.NewRequest("GET", "/", http.NoBody))
}

// The outer limits, by address, refund server errors. A client can
// provoke refusals by the inner limit, so they must not be refunded.
func TestRefusalsOfAnInnerMiddlewareAreNotRefunded(t *testing.T) {
	keyed := func(opts *ratelimit.Options[keyfunc.Hash]) ratelimit.Limiter[*http.Request] {
		l := ratelimit.Must(ratelimit.New(ratelimit.FixedWindow(ratelimit.PerMinute(100)), opts))
		return ratelimit.Map(l, httplimit.APIKey("X-Key"))
	}
	full := keyed(&ratelimit.Options[keyfunc.Hash]{MaxKeys: 1, OnFull: ratelimit.RefuseNew})
	send(middleware(t, full, httplimit.Options{}).Wrap(ok), with("X-Key: other"))
	for name, row := range map[string]struct {
		inner  ratelimit.Limiter[*http.Request]
		cost   int
		r      *http.Request
		status int
		left   int
	}{
		"key left out":              {keyed(nil), 1, with(), 400, 4},
		"table filled with keys":    {full, 1, with("X-Key: mine"), 503, 4},
		"cost below zero":           {keyed(nil), -1, with("X-Key: mine"), 400, 4},
		"store down, not by client": {&stub{err: ratelimit.ErrUnavailable}, 1, with(), 503, 5},
	} {
		t.Run(name, func(t *testing.T) {
			outer, limiter := refunding(t)
			inner := middleware(t, row.inner, httplimit.Options{Cost: func(*http.Request) int { return row.cost }})
			between := http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { inner.Wrap(ok).ServeHTTP(unwrapper{w}, r) })
			assert.Equal(t, row.status, send(outer.Wrap(between), row.r).StatusCode)
			assert.Equal(t, row.left, left(t, limiter))
		})
	}
}

// A client sends 100 requests without a key. Its limit by address is 3.
func TestLeavingTheKeyOutIsNoWayPastTheLimitByAddress(t *testing.T) {
	perIP := ratelimit.Must(httplimit.PerIP(ratelimit.FixedWindow(ratelimit.PerHour(3)), &httplimit.Options{Settle: httplimit.RefundServerErrors}))
	perKey := ratelimit.Must(ratelimit.New[keyfunc.Hash](ratelimit.FixedWindow(ratelimit.PerHour(1000)), nil))
	h := perIP.Wrap(middleware(t, ratelimit.Map(perKey, httplimit.APIKey("X-Key")), httplimit.Options{}).Wrap(ok))
	statuses := map[int]int{}
	for range 100 {
		r := httptest.NewRequest("GET", "/", nil)
		r.RemoteAddr = netip.MustParseAddrPort("192.0.2.1:1").String()
		statuses[send(h, r).StatusCode]++
	}
	assert.Equal(t, map[int]int{400: 3, 429: 97}, statuses)
}

// A denied login reads no more of a large upload than MaxBytesHandler allows.
func TestDeniedUploadIsNotReadToItsEnd(t *testing.T) {
	attempts := ratelimit.Must(ratelimit.New[string](ratelimit.FixedWindow(ratelimit.PerHour(1)), nil))
	name := func(r *http.Request) (string, error) {
		if name := r.PostFormValue("name"); name != "" {
			return name, nil
		}
		return "", keyfunc.ErrNoKey
	}
	m := middleware(t, ratelimit.Map(attempts, name), httplimit.Options{Settle: httplimit.ChargeOnly(401)})
	h := http.MaxBytesHandler(m.Wrap(ok), 4<<10)
	read := &countingReader{r: io.LimitReader(zeros{}, 64<<20)}
	r := httptest.NewRequest("POST", "/", read)
	r.Header.Set("Content-Type", "application/x-www-form-urlencoded")
	assert.Equal(t, http.StatusBadRequest, send(h, r).StatusCode)
	assert.Less(t, read.n, 16<<10)
}

type countingReader struct {
	r io.Reader
	n int
}

func (c *countingReader) Read(b []byte) (int, error) {
	n, err := c.r.Read(b)
	c.n += n
	return n, err
}

// guarded puts a limit of three failed logins an hour around a handler.
// It also returns a channel with a value for each ended request.
func guarded(t *testing.T, h http.Handler, charged ...int) (http.Handler, chan struct{}) {
	limiter := limiterOf(t, new(fakeClock), ratelimit.FixedWindow(ratelimit.PerHour(3)))
	m := middleware(t, limiter, httplimit.Options{Settle: httplimit.ChargeOnly(charged...)}).Wrap(h)
	ended := make(chan struct{}, 100)
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		defer func() { ended <- struct{}{} }()
		m.ServeHTTP(w, r)
	}), ended
}

// A proxy panics with ErrAbortHandler when its client leaves during the response. The status read by the client still counts.
func TestAGuesserThatReadsItsStatusAndHangsUpIsCharged(t *testing.T) {
	proxy := reverseProxy(t, func(w http.ResponseWriter, _ *http.Request) {
		w.WriteHeader(http.StatusUnauthorized)
		w.(http.Flusher).Flush()
		_, _ = io.Copy(w, zeros{})
	})
	proxy.FlushInterval = -1
	for _, other := range []string{"", "/panics"} {
		h, ended := guarded(t, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			if r.URL.Path == "/panics" {
				w.WriteHeader(http.StatusUnauthorized)
				panic(http.ErrAbortHandler)
			}
			proxy.ServeHTTP(w, r)
		}), 401)
		served := 0
		overBoth(t, h, func(t *testing.T, client *http.Client, url string) {
			for range 15 {
				ctx, hangUp := context.WithCancel(t.Context())
				resp, err := client.Do(ratelimit.Must(http.NewRequestWithContext(ctx, "GET", url+other, nil)))
				if err == nil && resp.StatusCode == http.StatusUnauthorized {
					served++
				}
				hangUp()
				if err == nil {
					_ = resp.Body.Close()
				}
				<-ended
			}
		})
		assert.LessOrEqual(t, served, 3, "of 30 guesses")
	}
}

func TestAClientThatLeavesBeforeTheAnswerIsChargedWhateverIsCounted(t *testing.T) {
	for name, h := range map[string]http.HandlerFunc{
		"a server error":   func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusBadGateway) },
		"a client error":   func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusNotFound) },
		"a panic":          func(http.ResponseWriter, *http.Request) { panic(http.ErrAbortHandler) },
		"nothing":          func(http.ResponseWriter, *http.Request) {},
		"a guess's status": func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusUnauthorized) },
	} {
		for _, charged := range []int{200, 401} {
			t.Run(name, func(t *testing.T) {
				began := make(chan struct{}, 1)
				guard, ended := guarded(t, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
					began <- struct{}{}
					<-r.Context().Done()
					h(w, r)
				}), charged)
				overBoth(t, guard, func(t *testing.T, client *http.Client, url string) {
					for i := range 4 {
						ctx, hangUp := context.WithCancel(t.Context())
						r := ratelimit.Must(http.NewRequestWithContext(ctx, "GET", url, nil))
						answered := make(chan int, 1)
						go func() {
							resp, err := client.Do(r)
							if err != nil {
								answered <- 0
								return
							}
							_ = resp.Body.Close()
							answered <- resp.StatusCode
						}()
						select {
						case <-began:
							assert.Less(t, i, 3, "the fourth is served")
							hangUp()
							<-answered
						case status := <-answered:
							assert.Equal(t, http.StatusTooManyRequests, status)
							assert.True(t, i == 3 || len(began) == 0)
						case <-time.After(time.Minute):
							t.Error("neither served nor answered")
						}
						hangUp()
						<-ended
					}
				})
			})
		}
	}
}

// The answer is known even if the client leaves during the rest of the response, or the server notices it late.
func TestAKnownAnswerIsSettledAsSuchAlthoughTheClientHasGone(t *testing.T) {
	for name, row := range map[string]struct {
		before, after int // the statuses written before and after the client leaves
		charged       int
		want          int
	}{
		"a success before":      {200, 0, 401, 0},
		"a success in any case": {0, 200, 401, 0},
		"counted before":        {401, 0, 401, 1},
		"counted in any case":   {0, 401, 401, 1},
		"a server error before": {503, 0, 401, 0},
		"not found before":      {404, 0, 200, 0},
	} {
		t.Run(name, func(t *testing.T) {
			limiter := limiterOf(t, new(fakeClock), ratelimit.FixedWindow(ratelimit.PerHour(3)))
			m := middleware(t, limiter, httplimit.Options{Settle: httplimit.ChargeOnly(row.charged)})
			ctx, hangUp := context.WithCancel(t.Context())
			m.Wrap(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
				if row.before > 0 {
					w.WriteHeader(row.before)
				}
				hangUp()
				if row.after > 0 {
					w.WriteHeader(row.after)
				}
			})).ServeHTTP(httptest.NewRecorder(), httptest.NewRequestWithContext(ctx, "GET", "/", nil))
			assert.Equal(t, 3-row.want, left(t, limiter))
		})
	}
}
