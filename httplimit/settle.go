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
// the end. Else it could have work done for nothing, by hanging up in the middle. A
// handler must answer what is wrong with a request with 4xx: a 500 that a client can
// provoke is free.
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
// the optional methods that handlers look for by type and that w itself has. Hijack
// counts if it is found by Unwrap alone: else it would pass the watcher by.
func watch(w http.ResponseWriter) (*watcher, http.ResponseWriter) {
	x := &watcher{ResponseWriter: w}
	_, flushes := w.(http.Flusher)
	pusher, pushes := w.(http.Pusher)
	switch hijacks := reachesHijacker(w); {
	case flushes && hijacks: // HTTP/1
		return x, &struct {
			*watcher
			flusher
			hijacker
		}{x, flusher{x}, hijacker{x}}
	case flushes && pushes: // HTTP/2
		return x, &struct {
			*watcher
			flusher
			http.Pusher
		}{x, flusher{x}, pusher}
	case flushes:
		return x, &struct {
			*watcher
			flusher
		}{x, flusher{x}}
	case hijacks:
		return x, &struct {
			*watcher
			hijacker
		}{x, hijacker{x}}
	}
	return x, x
}

// reachesHijacker reports whether http.ResponseController finds one.
func reachesHijacker(w http.ResponseWriter) bool {
	for {
		if _, ok := w.(http.Hijacker); ok {
			return true
		}
		u, ok := w.(interface{ Unwrap() http.ResponseWriter })
		if !ok {
			return false
		}
		w = u.Unwrap()
	}
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

// ReadFrom is what io.Copy calls. It reaches that of the server's writer, if there is one.
func (w *watcher) ReadFrom(r io.Reader) (int64, error) {
	n, err := io.Copy(w.ResponseWriter, r)
	if n > 0 {
		w.note(http.StatusOK)
	}
	return n, err
}

// FlushError is what http.ResponseController calls.
func (w *watcher) FlushError() error {
	err := http.NewResponseController(w.ResponseWriter).Flush()
	if !errors.Is(err, errors.ErrUnsupported) {
		w.note(http.StatusOK)
	}
	return err
}

type flusher struct{ w *watcher }

func (f flusher) Flush() { _ = f.w.FlushError() } // as http.Flusher has it, errors are lost

type hijacker struct{ w *watcher }

func (h hijacker) Hijack() (net.Conn, *bufio.ReadWriter, error) {
	conn, rw, err := http.NewResponseController(h.w.ResponseWriter).Hijack()
	if err == nil {
		h.w.note(http.StatusSwitchingProtocols)
	}
	return conn, rw, err
}
