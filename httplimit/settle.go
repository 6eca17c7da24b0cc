package httplimit

import (
	"context"
	"errors"
	"io"
	"net/http"
	"slices"
	"sync/atomic"

	"github.com/weir-go/ratelimit/internal/edge"
)

// Response is what a handler has answered, for [Options].SettleResponse.
type Response struct {
	// Status is the status by which the request is judged: see [Options].Settle.
	Status int
	// Header is the response's header.
	Header http.Header
	// Written is how many bytes of a body the handler has written, whether or not they
	// were sent.
	Written int64
}

// ChargeOnly is for [Options.Settle]: only responses with one of the statuses are
// charged, all others are given back. ChargeOnly(401, 403) counts failed logins. The
// middleware must see the status: see [Middleware.Wrap] about echo.
func ChargeOnly(statuses ...int) func(r *http.Request, status, cost int) int {
	return func(_ *http.Request, status, cost int) int {
		if slices.Contains(statuses, status) {
			return cost
		}
		return 0
	}
}

// RefundServerErrors is for [Options.Settle]: a response with a status of 500 or above
// is given back, since the client is not to blame. A client that hangs up before
// the end pays: otherwise it could have work done for free.
//
// A server error that a client can provoke is free, so handlers should answer what
// is wrong with a request with 4xx. The middleware sees a request body that is malformed,
// ends early or comes too slowly, as it can make [net/http/httputil.ReverseProxy] answer
// 502 and [http.TimeoutHandler] 503: these are charged. It cannot see other causes. An
// example is [http.FileServer], which answers 500 to a name that is too long for the file
// system (255 bytes in most): refuse such paths before it, or write a Settle function
// that gives back 503 only.
func RefundServerErrors(r *http.Request, status, cost int) int {
	gone := errors.Is(r.Context().Err(), context.Canceled)
	if status >= http.StatusInternalServerError && !gone {
		return 0
	}
	return cost
}

// serveAndSettle passes a request on, and settles its charge by the response.
func (m *Middleware) serveAndSettle(w http.ResponseWriter, r *http.Request, charge *edge.Charge[*http.Request], next http.Handler) {
	inner := r
	if hasBody(r) {
		inner = r.WithContext(r.Context()) // a copy
	}
	watched, writer := watch(w, inner)
	status := http.StatusInternalServerError // of a handler that does not return
	defer charge.Settle(func(cost int) int {
		return m.opts.SettleResponse(inner, Response{Status: watched.blame(status), Header: w.Header(), Written: watched.written}, cost)
	})
	defer handBack(r, inner)
	next.ServeHTTP(writer, inner)
	status = watched.final()
}

// blameClient tells the middlewares around this one, if they settle by status, that the
// client has caused the status that follows.
func blameClient(w http.ResponseWriter) {
	eachWriter(w, func(w http.ResponseWriter) bool {
		if x, ok := w.(interface{ blameClient() }); ok {
			x.blameClient()
		}
		return true
	})
}

func (w *watcher) blameClient() { w.clientFault.Store(true) }

// watchedBody is a request's body that notes whether the client failed to send it.
type watchedBody struct {
	io.ReadCloser
	reading atomic.Int32 // calls of Read that have not returned
	failed  atomic.Bool
}

// watchBody puts a watchedBody into a copy of the caller's request, nil if it has no body.
func watchBody(inner *http.Request) *watchedBody {
	if !hasBody(inner) {
		return nil
	}
	b := &watchedBody{ReadCloser: inner.Body}
	inner.Body = b
	return b
}

func hasBody(r *http.Request) bool { return r.Body != nil && r.Body != http.NoBody }

// handBack puts what a handler has found out of a copy of a request into the request: the form, of which the server
// removes the files, and the route.
func handBack(r, inner *http.Request) {
	if r == inner {
		return
	}
	if r.MultipartForm == nil && inner.MultipartForm != nil {
		r.MultipartForm = inner.MultipartForm
	}
	if r.Form == nil && inner.Form != nil {
		r.Form, r.PostForm = inner.Form, inner.PostForm
	}
	if r.Pattern != inner.Pattern {
		r.Pattern = inner.Pattern
	}
}

func (b *watchedBody) Read(p []byte) (int, error) {
	b.reading.Add(1)
	defer b.reading.Add(-1)
	n, err := b.ReadCloser.Read(p)
	if err != nil && err != io.EOF && !errors.Is(err, http.ErrBodyReadAfterClose) {
		b.failed.Store(true)
	}
	return n, err
}

// clientFault reports whether the body could not be read, or is still awaited.
func (b *watchedBody) clientFault() bool {
	return b != nil && (b.failed.Load() || b.reading.Load() > 0)
}
