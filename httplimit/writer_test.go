package httplimit_test

import (
	"bufio"
	"bytes"
	"fmt"
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

// calls are the optional methods of a server's writer that notes what is called.
type calls struct {
	http.ResponseWriter
	made *[]string
}

type (
	flush       struct{ c calls }
	hijack      struct{ c calls }
	push        struct{ c calls }
	closeNotify struct{ c calls }
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
func (n closeNotify) CloseNotify() <-chan bool {
	*n.c.made = append(*n.c.made, "close")
	return nil
}

// writers are server's writers with each set of optional methods: bit 0 is Flush, 1
// Hijack, 2 Push, 3 CloseNotify.
func writers(c calls) []http.ResponseWriter {
	f, h, p, n := flush{c}, hijack{c}, push{c}, closeNotify{c}
	return []http.ResponseWriter{
		struct{ calls }{c},
		struct {
			calls
			flush
		}{c, f},
		struct {
			calls
			hijack
		}{c, h},
		struct {
			calls
			flush
			hijack
		}{c, f, h},
		struct {
			calls
			push
		}{c, p},
		struct {
			calls
			flush
			push
		}{c, f, p},
		struct {
			calls
			hijack
			push
		}{c, h, p},
		struct {
			calls
			flush
			hijack
			push
		}{c, f, h, p},
		struct {
			calls
			closeNotify
		}{c, n},
		struct {
			calls
			flush
			closeNotify
		}{c, f, n},
		struct {
			calls
			hijack
			closeNotify
		}{c, h, n},
		struct {
			calls
			flush
			hijack
			closeNotify
		}{c, f, h, n},
		struct {
			calls
			push
			closeNotify
		}{c, p, n},
		struct {
			calls
			flush
			push
			closeNotify
		}{c, f, p, n},
		struct {
			calls
			hijack
			push
			closeNotify
		}{c, h, p, n},
		struct {
			calls
			flush
			hijack
			push
			closeNotify
		}{c, f, h, p, n},
	}
}

// use calls the optional methods that a writer has, and returns which those are.
func use(w http.ResponseWriter) (set int) {
	if f, ok := w.(http.Flusher); ok {
		f.Flush()
		set |= 1
	}
	if h, ok := w.(http.Hijacker); ok {
		_, _, _ = h.Hijack()
		set |= 2
	}
	if p, ok := w.(http.Pusher); ok {
		_ = p.Push("/style.css", nil)
		set |= 4
	}
	if n, ok := w.(interface{ CloseNotify() <-chan bool }); ok {
		n.CloseNotify()
		set |= 8
	}
	return set
}

func TestEachSetOfOptionalMethodsIsKept(t *testing.T) {
	for set := range 1 << 4 {
		t.Run(fmt.Sprintf("%04b", set), func(t *testing.T) {
			var made []string
			w := writers(calls{httptest.NewRecorder(), &made})[set]
			require.Equal(t, set, use(w), "this test's own table")
			want := made
			made = nil
			h, statuses := settled(t, func(w http.ResponseWriter, _ *http.Request) { assert.Equal(t, set, use(w)) })
			h.ServeHTTP(w, httptest.NewRequest("GET", "/", nil))
			assert.Equal(t, want, made, "each call reaches the server's writer")
			<-statuses
		})
	}
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
	h.ServeHTTP(w, httptest.NewRequest("GET", "/", nil))
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
	send(http.TimeoutHandler(h, time.Minute, ""), httptest.NewRequest("GET", "/", nil))
	assert.Equal(t, 200, <-statuses)
}

// What is written first is what the client gets, whatever comes after.
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

// withServer is a request of a server that logs its errors there.
func withServer(r *http.Request, to io.Writer) *http.Request {
	return withContextValue(r, http.ServerContextKey, &http.Server{ErrorLog: log.New(to, "", 0)})
}

func TestSuperfluousWriteHeaderBlamesTheHandler(t *testing.T) {
	h, statuses := settled(t, func(w http.ResponseWriter, _ *http.Request) {
		w.WriteHeader(http.StatusNotFound)
		w.WriteHeader(http.StatusInternalServerError) // this line is logged
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
