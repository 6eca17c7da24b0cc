package httplimit

import (
	"bufio"
	"context"
	"errors"
	"io"
	"net"
	"net/http"
	"slices"

	"github.com/weir-go/ratelimit"
)

// ChargeOnly is for [Options.Settle]: only responses with one of the statuses are
// charged, all others given back. ChargeOnly(401, 403) counts failed logins.
func ChargeOnly(statuses ...int) func(r *http.Request, status, cost int) int {
	return func(_ *http.Request, status, cost int) int {
		if slices.Contains(statuses, status) {
			return cost
		}
		return 0
	}
}

// RefundServerErrors is for [Options.Settle]: what ends with a status of 500 or above
// is given back, since it is not the client's doing; unless the client has gone before
// the end. Else it could have work done for nothing, by hanging up in the middle.
func RefundServerErrors(r *http.Request, status, cost int) int {
	gone := errors.Is(r.Context().Err(), context.Canceled)
	if status >= http.StatusInternalServerError && !gone {
		return 0
	}
	return cost
}

// serveAndSettle passes the request on, and settles whatever becomes of it. A panic
// goes on its way untouched.
func (m *Middleware) serveAndSettle(w http.ResponseWriter, e *Event, res *ratelimit.Reservation, next http.Handler) {
	watched, writer := watch(w)
	status := http.StatusInternalServerError // of a handler that does not return
	defer func() { res.Settle(m.opts.Settle(e.Request, status, e.Cost)) }()
	next.ServeHTTP(writer, e.Request)
	status = watched.final()
}

// watcher notes the status that is written through it. What it does not have itself,
// http.ResponseController finds with Unwrap.
type watcher struct {
	http.ResponseWriter
	status int // 0 until it is known
}

// watch returns a watcher, and the writer to give to a handler: the watcher, with
// the optional methods that handlers look for by type and that w itself has.
func watch(w http.ResponseWriter) (*watcher, http.ResponseWriter) {
	x := &watcher{ResponseWriter: w}
	f, flushes := w.(http.Flusher)
	h, hijacks := w.(http.Hijacker)
	from, reads := w.(io.ReaderFrom)
	switch {
	case flushes && hijacks && reads:
		return x, &watcherHTTP1{watcherFlusher{x, f}, h, from}
	case flushes:
		return x, &watcherFlusher{x, f}
	}
	return x, x
}

// Unwrap is what http.ResponseController goes by.
func (w *watcher) Unwrap() http.ResponseWriter { return w.ResponseWriter }

// note keeps the final status; informational ones come before it.
func (w *watcher) note(status int) {
	if w.status == 0 && (status >= 200 || status == http.StatusSwitchingProtocols) {
		w.status = status
	}
}

func (w *watcher) final() int {
	w.note(http.StatusOK)
	return w.status
}

func (w *watcher) WriteHeader(status int) {
	w.note(status)
	w.ResponseWriter.WriteHeader(status)
}

func (w *watcher) Write(b []byte) (int, error) {
	w.note(http.StatusOK)
	return w.ResponseWriter.Write(b)
}

// watcherFlusher is for HTTP/2, among others.
type watcherFlusher struct {
	*watcher
	flusher http.Flusher
}

func (w *watcherFlusher) Flush() {
	w.note(http.StatusOK)
	w.flusher.Flush()
}

// FlushError is what http.ResponseController calls.
func (w *watcherFlusher) FlushError() error {
	w.note(http.StatusOK)
	return http.NewResponseController(w.ResponseWriter).Flush()
}

// watcherHTTP1 is for HTTP/1.
type watcherHTTP1 struct {
	watcherFlusher
	hijacker http.Hijacker
	from     io.ReaderFrom
}

func (w *watcherHTTP1) Hijack() (net.Conn, *bufio.ReadWriter, error) {
	conn, rw, err := w.hijacker.Hijack()
	if err == nil {
		w.note(http.StatusSwitchingProtocols)
	}
	return conn, rw, err
}

func (w *watcherHTTP1) ReadFrom(r io.Reader) (int64, error) {
	w.note(http.StatusOK)
	return w.from.ReadFrom(r)
}
