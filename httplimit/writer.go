package httplimit

import (
	"bufio"
	"cmp"
	"context"
	"errors"
	"io"
	"log"
	"net"
	"net/http"
	"path"
	"runtime"
	"slices"
	"strings"
	"sync/atomic"
	"time"

	"github.com/weir-go/ratelimit/inflight"
)

// watcher is the handler's ResponseWriter. It keeps the header fields of the middleware
// across informational responses. With [Options].Settle it records the final status. Its
// methods are safe for any writer of the server: each one falls back, or returns an error.
type watcher struct {
	http.ResponseWriter
	request     *http.Request
	body        *watchedBody    // the request's body; nil if there is none, or it is not watched
	status      int             // 0 until it is known
	late        bool            // whether the client had gone when the status became known
	written     int64           // written bytes of the body
	clientFault atomic.Bool     // whether an inner middleware has blamed the client
	informed    bool            // whether an informational response was sent
	tenure      *tenure         // a permit's tenure; nil if the request has none
	permit      inflight.Permit // the permit, to be ignored once the response is a stream
	fields      *fieldNames
	values      [4]string // the values of the fields set by the middleware; "" for others
}

// watch returns a request's watcher, and a ResponseWriter for the handler. This writer has the optional methods of w for
// which handlers test a writer's type. It also has Hijack if only [http.ResponseController] finds one in w, because a hijack
// through Unwrap would bypass the watcher. The method set of a type is fixed, so each combination needs its own type.
func watch(w http.ResponseWriter, r *http.Request) (*watcher, http.ResponseWriter) {
	_, flush := w.(http.Flusher)
	switch hijack := reachesHijacker(w); {
	case flush && hijack:
		x := &flushingHijacker{watcher{ResponseWriter: w, request: r}}
		return &x.watcher, x
	case flush:
		x := &flusher{watcher{ResponseWriter: w, request: r}}
		return &x.watcher, x
	case hijack:
		x := &hijacker{watcher{ResponseWriter: w, request: r}}
		return &x.watcher, x
	}
	x := &watcher{ResponseWriter: w, request: r}
	return x, x
}

type (
	flusher          struct{ watcher }
	hijacker         struct{ watcher }
	flushingHijacker struct{ watcher }
)

// Flush flushes the server's writer. It drops the error, because http.Flusher returns none.
func (w *flusher) Flush() { _ = w.FlushError() }

// Flush flushes the server's writer. It drops the error, because http.Flusher returns none.
func (w *flushingHijacker) Flush() { _ = w.FlushError() }

// Hijack hijacks the server's writer.
func (w *hijacker) Hijack() (net.Conn, *bufio.ReadWriter, error) { return w.hijack() }

// Hijack hijacks the server's writer.
func (w *flushingHijacker) Hijack() (net.Conn, *bufio.ReadWriter, error) { return w.hijack() }

// hijack implements Hijack for writers whose server's writer has it.
func (w *watcher) hijack() (net.Conn, *bufio.ReadWriter, error) {
	conn, rw, err := http.NewResponseController(w.ResponseWriter).Hijack()
	if err != nil {
		return conn, rw, err
	}
	w.note(http.StatusSwitchingProtocols)
	w.permit.Ignore()
	if w.tenure != nil {
		conn = w.tenure.hijacked(conn)
	}
	return conn, rw, nil
}

// Unwrap is for http.ResponseController.
func (w *watcher) Unwrap() http.ResponseWriter { return w.ResponseWriter }

// Header returns the header of the next response.
func (w *watcher) Header() http.Header {
	w.restore()
	return w.ResponseWriter.Header()
}

// restore sets the middleware's fields again if they are gone after an informational
// response. [net/http/httputil.ReverseProxy] clears the header after each of these.
func (w *watcher) restore() {
	if w == nil || !w.informed || w.status != 0 || w.fields == nil {
		return
	}
	h := w.ResponseWriter.Header() // an outer middleware restores its own fields there
	for i, value := range w.values {
		if value != "" && slices.Contains(h[w.fields.names[i]], value) {
			return
		}
	}
	for i, value := range w.values {
		switch name := w.fields.names[i]; {
		case value == "":
		case w.fields.lists:
			h[name] = append(h[name], value)
		default:
			h[name] = []string{value}
		}
	}
}

// note records the final status. Informational statuses precede it.
func (w *watcher) note(status int) {
	if w.status == 0 && isFinal(status) {
		w.status, w.late = status, w.request.Context().Err() != nil
	}
}

func isFinal(status int) bool { return status >= 200 || status == http.StatusSwitchingProtocols }

// final returns the client's status if nothing more is written. A framework
// may write another status later, but the response is judged now.
func (w *watcher) final() int { return cmp.Or(w.status, http.StatusOK) }

// sentOr returns a handler's status after it has returned or panicked. A panic does not change a sent status.
func (w *watcher) sentOr(returned bool) int {
	if !returned {
		return cmp.Or(w.status, http.StatusInternalServerError)
	}
	return w.final()
}

// answered reports whether a client got its answer before it left, or whether its request was served nevertheless.
func (w *watcher) answered() bool {
	return w.status != 0 && (!w.late || w.status < http.StatusBadRequest)
}

// blame returns the status by which a response is judged. If the client caused a server error, it is a client error.
func (w *watcher) blame(status int) int {
	if status >= http.StatusInternalServerError && (w.clientFault.Load() || w.body.clientFault()) {
		return http.StatusBadRequest
	}
	return status
}

// WriteHeader passes on the first final status. net/http ignores a
// second one, too, but it would log a line of this file as its caller.
func (w *watcher) WriteHeader(status int) {
	if w.status != 0 {
		w.logSuperfluous()
		return
	}
	w.restore()
	w.ResponseWriter.WriteHeader(status) // panics if there is no such status, and then nothing was sent
	w.note(status)
	w.informed = w.informed || !isFinal(status)
}

func (w *watcher) logSuperfluous() {
	printf := log.Printf
	if server := serverOf(w.request); server != nil && server.ErrorLog != nil {
		printf = server.ErrorLog.Printf
	}
	f := handlerFrame()
	printf("http: superfluous response.WriteHeader call from %s (%s:%d)", f.Function, path.Base(f.File), f.Line)
}

// handlerFrame returns the innermost caller outside net/http and outside the writers in this file.
func handlerFrame() (f runtime.Frame) {
	var callers [32]uintptr
	frames := runtime.CallersFrames(callers[:runtime.Callers(2, callers[:])])
	for more := true; more; {
		f, more = frames.Next()
		if !strings.HasPrefix(f.Function, "net/http.") && !isWriter(f.Function) && f.File != "<autogenerated>" {
			return f
		}
	}
	return f
}

// isWriter reports whether a function is a method of the writers in this file.
func isWriter(function string) bool {
	return strings.Contains(function, "httplimit.(*watcher).") || strings.Contains(function, "httplimit.(*flusher).") ||
		strings.Contains(function, "httplimit.(*hijacker).") || strings.Contains(function, "httplimit.(*flushingHijacker).")
}

func (w *watcher) Write(b []byte) (int, error) {
	w.restore()
	w.note(http.StatusOK)
	n, err := w.ResponseWriter.Write(b)
	w.written += int64(n)
	return n, err
}

// WriteString is called by io.WriteString.
func (w *watcher) WriteString(s string) (int, error) {
	w.restore()
	w.note(http.StatusOK)
	n, err := io.WriteString(w.ResponseWriter, s)
	w.written += int64(n)
	return n, err
}

// ReadFrom is called by io.Copy. It uses the ReadFrom of the server's writer if there is one.
func (w *watcher) ReadFrom(r io.Reader) (int64, error) {
	w.restore()
	n, err := io.Copy(w.ResponseWriter, r)
	if n > 0 {
		w.note(http.StatusOK)
	}
	w.written += n
	return n, err
}

// FlushError is called by http.ResponseController.
func (w *watcher) FlushError() error {
	w.restore()
	if isEventStream(w.ResponseWriter.Header()) {
		w.permit.Ignore()
	}
	err := http.NewResponseController(w.ResponseWriter).Flush()
	if !errors.Is(err, errors.ErrUnsupported) {
		w.note(http.StatusOK)
	}
	return err
}

// SetReadDeadline sets the deadline of the server's writer.
func (w *watcher) SetReadDeadline(t time.Time) error {
	return http.NewResponseController(w.ResponseWriter).SetReadDeadline(t)
}

// SetWriteDeadline sets the deadline of the server's writer.
func (w *watcher) SetWriteDeadline(t time.Time) error {
	return http.NewResponseController(w.ResponseWriter).SetWriteDeadline(t)
}

// EnableFullDuplex enables full duplex in the server's writer.
func (w *watcher) EnableFullDuplex() error {
	return http.NewResponseController(w.ResponseWriter).EnableFullDuplex()
}

// Push calls the Push of the server's writer.
func (w *watcher) Push(target string, opts *http.PushOptions) error {
	if p, ok := w.ResponseWriter.(http.Pusher); ok {
		return p.Push(target, opts)
	}
	return http.ErrNotSupported
}

// CloseNotify exists because gin's Context.Stream calls it without a check.
func (w *watcher) CloseNotify() <-chan bool {
	gone := make(chan bool, 1)
	context.AfterFunc(w.request.Context(), func() { gone <- true })
	return gone
}

// reachesHijacker reports whether http.ResponseController finds a Hijack in w.
func reachesHijacker(w http.ResponseWriter) (found bool) {
	if _, found = w.(http.Hijacker); found {
		return true
	}
	eachWriter(w, func(w http.ResponseWriter) bool {
		_, found = w.(http.Hijacker)
		return !found
	})
	return found
}

// eachWriter calls visit with w and its wrapped writers, until visit returns false.
func eachWriter(w http.ResponseWriter, visit func(http.ResponseWriter) bool) {
	for visit(w) {
		u, ok := w.(interface{ Unwrap() http.ResponseWriter })
		if !ok {
			return
		}
		w = u.Unwrap()
	}
}
