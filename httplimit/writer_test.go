package httplimit_test

import (
	"bufio"
	"bytes"
	"context"
	"io"
	"log"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// calls records the calls of a writer's optional methods.
type calls struct {
	http.ResponseWriter
	made *[]string
}

type (
	flush  struct{ c calls }
	hijack struct{ c calls }
	push   struct{ c calls }
)

func (f flush) Flush() { *f.c.made = append(*f.c.made, "flush") }
func (h hijack) Hijack() (net.Conn, *bufio.ReadWriter, error) {
	*h.c.made = append(*h.c.made, "hijack")
	return nil, nil, nil
}
func (p push) Push(target string, _ *http.PushOptions) error {
	*p.c.made = append(*p.c.made, "push "+target)
	return nil
}

// use calls Flush and Hijack if the writer has them, and reports whether it has each.
func use(w http.ResponseWriter) (flushes, hijacks bool) {
	f, flushes := w.(http.Flusher)
	if flushes {
		f.Flush()
	}
	h, hijacks := w.(http.Hijacker)
	if hijacks {
		_, _, _ = h.Hijack()
	}
	return flushes, hijacks
}

func TestEachSetOfOptionalMethodsIsKept(t *testing.T) {
	var made []string
	c := calls{httptest.NewRecorder(), &made}
	for name, w := range map[string]http.ResponseWriter{
		"none": struct{ calls }{c},
		"flush": struct {
			calls
			flush
		}{c, flush{c}},
		"hijack": struct {
			calls
			hijack
		}{c, hijack{c}},
		"both": struct {
			calls
			flush
			hijack
		}{c, flush{c}, hijack{c}},
	} {
		t.Run(name, func(t *testing.T) {
			made = nil
			flushes, hijacks := use(w)
			want := made
			made = nil
			h, statuses := settled(t, func(w http.ResponseWriter, _ *http.Request) {
				gotFlushes, gotHijacks := use(w)
				assert.Equal(t, []bool{flushes, hijacks}, []bool{gotFlushes, gotHijacks})
			})
			h.ServeHTTP(w, with())
			assert.Equal(t, want, made, "each call reaches the server's writer")
			<-statuses
		})
	}
}

// If the server can push, a handler can, too. gin's Context.Stream needs CloseNotify with any writer.
func TestPushAndCloseNotifyAreAlwaysThere(t *testing.T) {
	var made []string
	c := calls{httptest.NewRecorder(), &made}
	pushes := struct {
		calls
		push
	}{c, push{c}}
	for want, w := range map[error]http.ResponseWriter{nil: pushes, http.ErrNotSupported: httptest.NewRecorder()} {
		ctx, leave := context.WithCancel(t.Context())
		h, statuses := settled(t, func(w http.ResponseWriter, _ *http.Request) {
			assert.Equal(t, want, w.(http.Pusher).Push("/style.css", nil))
			gone := w.(interface{ CloseNotify() <-chan bool }).CloseNotify()
			assert.Empty(t, gone)
			leave()
			assert.True(t, <-gone)
		})
		h.ServeHTTP(w, httptest.NewRequest("GET", "/", nil).WithContext(ctx))
		<-statuses
	}
	assert.Equal(t, []string{"push /style.css"}, made)
}

func TestMethodsThatFallBackAreAlwaysThere(t *testing.T) {
	h, statuses := settled(t, func(w http.ResponseWriter, _ *http.Request) {
		assert.Implements(t, (*io.ReaderFrom)(nil), w)
		_, err := w.(io.StringWriter).WriteString("ok")
		assert.NoError(t, err)
		assert.ErrorIs(t, w.(interface{ SetReadDeadline(time.Time) error }).SetReadDeadline(time.Time{}), http.ErrNotSupported)
		assert.ErrorIs(t, w.(interface{ SetWriteDeadline(time.Time) error }).SetWriteDeadline(time.Time{}), http.ErrNotSupported)
		assert.ErrorIs(t, w.(interface{ EnableFullDuplex() error }).EnableFullDuplex(), http.ErrNotSupported)
	})
	w := httptest.NewRecorder()
	h.ServeHTTP(w, with())
	assert.Equal(t, "ok", w.Body.String())
	assert.Equal(t, 200, <-statuses)
}

// The timeout handler's writer has Push and no Flush.
func TestWriterOfTheTimeoutHandlerIsKept(t *testing.T) {
	h, statuses := settled(t, func(w http.ResponseWriter, _ *http.Request) {
		_, flushes := w.(http.Flusher)
		assert.False(t, flushes)
		pusher, pushes := w.(http.Pusher)
		if assert.True(t, pushes) {
			assert.ErrorIs(t, pusher.Push("/x", nil), http.ErrNotSupported)
		}
	})
	send(http.TimeoutHandler(h, time.Minute, ""), with())
	assert.Equal(t, 200, <-statuses)
}

// The client gets the first status. Later ones change nothing.
func TestFirstStatusCounts(t *testing.T) {
	for name, first := range map[string]func(w http.ResponseWriter) error{
		"write":        func(w http.ResponseWriter) error { _, err := w.Write([]byte("x")); return err },
		"write string": func(w http.ResponseWriter) error { _, err := io.WriteString(w, "x"); return err },
		"copy": func(w http.ResponseWriter) error {
			_, err := io.Copy(w, struct{ io.Reader }{strings.NewReader("x")})
			return err
		},
		"flush": func(w http.ResponseWriter) error { return http.NewResponseController(w).Flush() },
	} {
		t.Run(name, func(t *testing.T) {
			h, statuses := settled(t, func(w http.ResponseWriter, _ *http.Request) {
				assert.NoError(t, first(w))
				w.WriteHeader(http.StatusInternalServerError)
			})
			r := httptest.NewRequest("GET", "/", nil)
			assert.Equal(t, http.StatusOK, send(h, withServer(r, new(bytes.Buffer))).StatusCode)
			assert.Equal(t, http.StatusOK, <-statuses)
		})
	}
}

// withServer returns a request to a server with this error log.
func withServer(r *http.Request, to io.Writer) *http.Request {
	return withContextValue(r, http.ServerContextKey, &http.Server{ErrorLog: log.New(to, "", 0)})
}

func TestSuperfluousWriteHeaderBlamesTheHandler(t *testing.T) {
	h, statuses := settled(t, func(w http.ResponseWriter, _ *http.Request) {
		w.WriteHeader(http.StatusNotFound)
		w.WriteHeader(http.StatusInternalServerError) // logged with this line as its caller
	})
	logged := new(bytes.Buffer)
	s := httptest.NewUnstartedServer(h)
	s.Config.ErrorLog = log.New(logged, "", 0)
	s.Start()
	resp, err := s.Client().Get(s.URL)
	require.NoError(t, err)
	body(t, resp)
	s.Close()
	assert.Equal(t, http.StatusNotFound, resp.StatusCode)
	assert.Equal(t, http.StatusNotFound, <-statuses)
	assert.Contains(t, logged.String(), "superfluous response.WriteHeader call")
	assert.Contains(t, logged.String(), "TestSuperfluousWriteHeaderBlamesTheHandler")
	assert.Contains(t, logged.String(), "writer_test.go:")
	assert.NotContains(t, logged.String(), "(writer.go:")
}
