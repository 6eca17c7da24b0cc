package httplimit_test

import (
	"bufio"
	"context"
	"errors"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/weir-go/ratelimit"
	"github.com/weir-go/ratelimit/httplimit"
)

// answer is a handler that obeys the path.
var answer = http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
	what := strings.TrimPrefix(r.URL.Path, "/")
	switch what {
	case "panic":
		panic("the handler is broken")
	case "abort":
		panic(http.ErrAbortHandler)
	case "panic-after-200":
		w.WriteHeader(http.StatusOK)
		panic("the handler is broken")
	case "early-hints-500":
		w.WriteHeader(http.StatusEarlyHints)
		w.WriteHeader(http.StatusInternalServerError)
	case "silent":
	case "write":
		_, _ = io.WriteString(w, "ok")
	default:
		status, _ := strconv.Atoi(what)
		w.WriteHeader(status)
	}
})

func sendRecovering(h http.Handler, path string) (recovered any) {
	defer func() { recovered = recover() }()
	send(h, httptest.NewRequest("GET", path, nil))
	return nil
}

func TestSettleChargesByStatus(t *testing.T) {
	failures, ours := httplimit.ChargeOnly(401, 403), httplimit.RefundServerErrors
	for name, row := range map[string]struct {
		rule    func(*http.Request, int, int) int
		path    string
		charged int
	}{
		"failed login counts":                    {failures, "/401", 5},
		"forbidden counts":                       {failures, "/403", 5},
		"login that succeeds is free":            {failures, "/204", 0},
		"handler that writes nothing is a 200":   {failures, "/silent", 0},
		"handler that only writes is a 200":      {ours, "/write", 5},
		"not found counts":                       {ours, "/404", 5},
		"server error is free":                   {ours, "/500", 0},
		"unavailable is free":                    {ours, "/503", 0},
		"panic is a server error":                {ours, "/panic", 0},
		"abort is a server error":                {ours, "/abort", 0},
		"panic after the header is one too":      {ours, "/panic-after-200", 0},
		"informational status is not the last":   {ours, "/early-hints-500", 0},
		"rule may charge more than was reserved": {func(_ *http.Request, _, cost int) int { return 2 * cost }, "/200", 10},
	} {
		t.Run(name, func(t *testing.T) {
			limiter := limiterOf(t, new(fakeClock), ratelimit.TokenBucket(ratelimit.PerMinute(1), 20))
			m := middleware(t, limiter, httplimit.Options{Settle: row.rule, Cost: func(*http.Request) int { return 5 }})
			recovered := sendRecovering(m.Wrap(answer), row.path)
			assert.Equal(t, strings.Contains(row.path, "panic") || row.path == "/abort", recovered != nil, "a panic goes on its way")
			assert.Equal(t, 20-row.charged, left(t, limiter))
		})
	}
}

func TestCostIsChargedWhileTheHandlerRuns(t *testing.T) {
	limiter := limiterOf(t, new(fakeClock), ratelimit.TokenBucket(ratelimit.PerMinute(1), 1))
	m := middleware(t, limiter, httplimit.Options{Settle: httplimit.ChargeOnly(401)})
	var h http.Handler
	h = m.Wrap(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		assert.Equal(t, http.StatusTooManyRequests, get(h).StatusCode, "a second guess at the same time gains nothing")
	}))
	assert.Equal(t, http.StatusOK, get(h).StatusCode)
	assert.Equal(t, httplimit.Stats{Allowed: 1, Denied: 1}, m.Stats())
}

func TestDeniedRequestHasNothingToSettle(t *testing.T) {
	m := middleware(t, limiterOf(t, new(fakeClock), ratelimit.FixedWindow(ratelimit.PerMinute(1))), httplimit.Options{
		Settle: func(_ *http.Request, status, cost int) int {
			assert.Equal(t, 200, status)
			return cost
		},
	})
	h := m.Wrap(ok)
	assert.Equal(t, http.StatusOK, get(h).StatusCode)
	assert.Equal(t, http.StatusTooManyRequests, get(h).StatusCode)
}

func TestShadowModeSettlesToo(t *testing.T) {
	m := middleware(t, limiterOf(t, new(fakeClock), ratelimit.FixedWindow(ratelimit.PerMinute(2))), httplimit.Options{
		Shadow: true, Settle: httplimit.ChargeOnly(401),
	})
	h := m.Wrap(answer)
	for _, path := range []string{"/200", "/200", "/200", "/401", "/401", "/200"} {
		send(h, httptest.NewRequest("GET", path, nil))
	}
	assert.Equal(t, httplimit.Stats{Allowed: 5, Denied: 1}, m.Stats())
}

func TestClientThatHangsUpIsNotRefunded(t *testing.T) {
	limiter := limiterOf(t, new(fakeClock), ratelimit.TokenBucket(ratelimit.PerMinute(1), 5))
	h := middleware(t, limiter, httplimit.Options{Settle: httplimit.RefundServerErrors})
	ctx, hangUp := context.WithCancel(t.Context())
	send(h.Wrap(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		hangUp()
		http.Error(w, r.Context().Err().Error(), http.StatusInternalServerError)
	})), httptest.NewRequestWithContext(ctx, "GET", "/", nil))
	assert.Equal(t, 4, left(t, limiter))
}

// settled returns a handler behind a rule, and a channel with the statuses passed to the rule.
func settled(t *testing.T, h http.HandlerFunc) (http.Handler, chan int) {
	statuses := make(chan int, 10)
	limiter := limiterOf(t, nil, ratelimit.TokenBucket(ratelimit.PerSecond(1000), 1000))
	return middleware(t, limiter, httplimit.Options{
		Settle: func(_ *http.Request, status, cost int) int { statuses <- status; return cost },
	}).Wrap(h), statuses
}

func TestPanicOverTheWireIsSettled(t *testing.T) {
	h, statuses := settled(t, func(http.ResponseWriter, *http.Request) { panic("the handler is broken") })
	overBoth(t, h, func(t *testing.T, client *http.Client, url string) {
		_, err := client.Post(url, "text/plain", nil)
		require.Error(t, err)
		assert.Equal(t, http.StatusInternalServerError, <-statuses)
	})
}

func TestResponseControllerReachesTheServersWriter(t *testing.T) {
	h, statuses := settled(t, func(w http.ResponseWriter, r *http.Request) {
		c := http.NewResponseController(w)
		assert.NoError(t, c.SetReadDeadline(time.Now().Add(time.Minute)))
		assert.NoError(t, c.SetWriteDeadline(time.Now().Add(time.Minute)))
		if r.ProtoMajor == 1 {
			assert.NoError(t, c.EnableFullDuplex())
		}
		_, err := io.WriteString(w, "first")
		assert.NoError(t, err)
		assert.NoError(t, c.Flush())
		<-r.Context().Done()
	})
	overBoth(t, h, func(t *testing.T, client *http.Client, url string) {
		resp, err := client.Get(url)
		require.NoError(t, err)
		b := make([]byte, 5)
		_, err = io.ReadFull(resp.Body, b)
		require.NoError(t, err, "what is flushed arrives while the handler runs")
		assert.Equal(t, "first", string(b))
		require.NoError(t, resp.Body.Close())
		assert.Equal(t, http.StatusOK, <-statuses)
	})
}

func TestOptionalMethodsOfTheServersWriterAreKept(t *testing.T) {
	h, statuses := settled(t, func(w http.ResponseWriter, r *http.Request) {
		_, flushes := w.(http.Flusher)
		_, hijacks := w.(http.Hijacker)
		_, reads := w.(io.ReaderFrom)
		assert.True(t, flushes)
		assert.Equal(t, r.ProtoMajor == 1, hijacks)
		assert.True(t, reads)
		if r.ProtoMajor == 2 {
			assert.ErrorIs(t, http.NewResponseController(w).EnableFullDuplex(), nil)
			_, _, err := http.NewResponseController(w).Hijack()
			assert.ErrorIs(t, err, errors.ErrUnsupported)
		}
		w.(http.Flusher).Flush()
	})
	overBoth(t, h, func(t *testing.T, client *http.Client, url string) {
		resp, err := client.Get(url)
		require.NoError(t, err)
		body(t, resp)
		assert.Equal(t, http.StatusOK, <-statuses)
	})
}

func TestWriterWithoutOptionalMethodsGainsNone(t *testing.T) {
	h, statuses := settled(t, func(w http.ResponseWriter, _ *http.Request) {
		_, flushes := w.(http.Flusher)
		assert.False(t, flushes)
		assert.ErrorIs(t, http.NewResponseController(w).Flush(), errors.ErrUnsupported)
		w.WriteHeader(http.StatusTeapot)
	})
	plain := struct{ http.ResponseWriter }{httptest.NewRecorder()}
	h.ServeHTTP(plain, with())
	assert.Equal(t, http.StatusTeapot, <-statuses)
}

func TestHijackedConnectionIsSettledAsSwitched(t *testing.T) {
	h, statuses := settled(t, func(w http.ResponseWriter, _ *http.Request) {
		conn, rw, err := http.NewResponseController(w).Hijack()
		if !assert.NoError(t, err) {
			return
		}
		defer conn.Close()
		_, _ = rw.WriteString("HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: echo\r\n\r\n")
		line, _ := rw.ReadString('\n')
		_, _ = rw.WriteString(line)
		assert.NoError(t, rw.Flush())
	})
	s := started(t, h)
	conn, err := net.Dial("tcp", s.Listener.Addr().String())
	require.NoError(t, err)
	defer conn.Close()
	_, err = io.WriteString(conn, "GET / HTTP/1.1\r\nHost: x\r\nConnection: Upgrade\r\nUpgrade: echo\r\n\r\nhello\n")
	require.NoError(t, err)
	r := bufio.NewReader(conn)
	resp, err := http.ReadResponse(r, nil)
	require.NoError(t, err)
	assert.Equal(t, http.StatusSwitchingProtocols, resp.StatusCode)
	echo, err := r.ReadString('\n')
	require.NoError(t, err)
	assert.Equal(t, "hello\n", echo)
	assert.Equal(t, http.StatusSwitchingProtocols, <-statuses)
}

// These are writers put by other middleware around the server's writer.
type (
	flushHijacker struct {
		http.ResponseWriter
		http.Flusher
		http.Hijacker
	}
	onlyHijacker struct {
		http.ResponseWriter
		http.Hijacker
	}
	unwrapper struct{ http.ResponseWriter }
)

func (u unwrapper) Unwrap() http.ResponseWriter { return u.ResponseWriter }

func TestHijackerIsKeptWithAnyOtherMethods(t *testing.T) {
	for name, wrap := range map[string]func(http.ResponseWriter) http.ResponseWriter{
		"with Flush and no ReadFrom": func(w http.ResponseWriter) http.ResponseWriter {
			return flushHijacker{w, w.(http.Flusher), w.(http.Hijacker)}
		},
		"alone":           func(w http.ResponseWriter) http.ResponseWriter { return onlyHijacker{w, w.(http.Hijacker)} },
		"found by Unwrap": func(w http.ResponseWriter) http.ResponseWriter { return unwrapper{w} },
	} {
		t.Run(name, func(t *testing.T) {
			h, statuses := settled(t, func(w http.ResponseWriter, _ *http.Request) {
				hijacker, ok := w.(http.Hijacker)
				if assert.True(t, ok) {
					conn, _, err := hijacker.Hijack()
					assert.NoError(t, err)
					assert.NoError(t, conn.Close())
				}
			})
			s := started(t, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { h.ServeHTTP(wrap(w), r) }))
			_, err := s.Client().Post(s.URL, "text/plain", nil)
			assert.Error(t, err)
			assert.Equal(t, http.StatusSwitchingProtocols, <-statuses)
		})
	}
}

func TestFlushFoundByUnwrapSendsTheStatus(t *testing.T) {
	h, statuses := settled(t, func(w http.ResponseWriter, _ *http.Request) {
		assert.NoError(t, http.NewResponseController(w).Flush())
		w.WriteHeader(http.StatusInternalServerError) // too late
	})
	w := httptest.NewRecorder()
	h.ServeHTTP(unwrapper{w}, withServer(httptest.NewRequest("GET", "/", nil), io.Discard))
	assert.Equal(t, http.StatusOK, w.Code)
	assert.Equal(t, http.StatusOK, <-statuses)
}

func TestNothingReadFromLeavesTheStatusOpen(t *testing.T) {
	h, statuses := settled(t, func(w http.ResponseWriter, _ *http.Request) {
		_, err := io.Copy(w, struct{ io.Reader }{http.NoBody})
		assert.NoError(t, err)
		w.WriteHeader(http.StatusNotFound)
	})
	assert.Equal(t, http.StatusNotFound, send(h, with()).StatusCode)
	assert.Equal(t, http.StatusNotFound, <-statuses)
}

func TestFileIsServedThroughTheServersReadFrom(t *testing.T) {
	path := t.TempDir() + "/file"
	require.NoError(t, os.WriteFile(path, []byte(strings.Repeat("0123456789", 10_000)), 0o600))
	h, statuses := settled(t, func(w http.ResponseWriter, r *http.Request) { http.ServeFile(w, r, path) })
	overBoth(t, h, func(t *testing.T, client *http.Client, url string) {
		resp, err := client.Get(url)
		require.NoError(t, err)
		assert.Len(t, body(t, resp), 100_000)
		assert.Equal(t, http.StatusOK, <-statuses)
	})
}

// Here, the writer is not one of net/http's.
func TestWithoutSettleTheHandlerGetsTheServersOwnWriter(t *testing.T) {
	m := middleware(t, limiterOf(t, nil, ratelimit.FixedWindow(ratelimit.PerMinute(1))), httplimit.Options{})
	w := httptest.NewRecorder()
	m.Wrap(http.HandlerFunc(func(got http.ResponseWriter, _ *http.Request) { assert.Same(t, w, got) })).
		ServeHTTP(w, with())
}

// Some frameworks write the response after their middleware has returned.
func TestStatusThatIsWrittenLateReachesTheClient(t *testing.T) {
	var late http.ResponseWriter
	h, statuses := settled(t, func(w http.ResponseWriter, _ *http.Request) { late = w })
	w := httptest.NewRecorder()
	h.ServeHTTP(w, with())
	late.WriteHeader(http.StatusUnauthorized)
	assert.Equal(t, http.StatusUnauthorized, w.Code)
	assert.Equal(t, http.StatusOK, <-statuses, "all that was known")
}
