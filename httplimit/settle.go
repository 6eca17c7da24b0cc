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

// Response is a handler's response, for [Options].SettleResponse.
type Response struct {
	// Status is the status that [Options].Settle gets.
	Status int
	Header http.Header
	// Written is the number of bytes of the body that the handler has written.
	Written int64
}

// ChargeOnly is for [Options].Settle: only responses with these statuses are charged. ChargeOnly(401, 403) counts
// failed logins.
func ChargeOnly(statuses ...int) func(r *http.Request, status, cost int) int {
	return func(_ *http.Request, status, cost int) int {
		if slices.Contains(statuses, status) {
			return cost
		}
		return 0
	}
}

// RefundServerErrors is for [Options].Settle: a status of 500 or above is not charged, unless the client has gone or
// caused it by its body. Answer other bad requests with 4xx.
func RefundServerErrors(r *http.Request, status, cost int) int {
	gone := errors.Is(r.Context().Err(), context.Canceled)
	if status >= http.StatusInternalServerError && !gone {
		return 0
	}
	return cost
}

// serveAndSettle passes a request on, and settles its charge by the response. The watcher is of w, nil if there is none
// yet.
func (m *Middleware) serveAndSettle(watched *watcher, w http.ResponseWriter, r *http.Request, charge *edge.Charge[*http.Request], next http.Handler) {
	inner := r
	if hasBody(r) {
		inner = r.WithContext(r.Context()) // a copy
	}
	if watched == nil {
		watched, w = watch(w, inner)
	}
	watched.request, watched.body = inner, watchBody(r, inner)
	status := http.StatusInternalServerError // of a handler that does not return
	defer charge.Settle(func(cost int) int {
		return m.opts.SettleResponse(inner, Response{Status: watched.blame(status), Header: w.Header(), Written: watched.written}, cost)
	})
	defer handBack(r, inner)
	next.ServeHTTP(w, inner)
	watched.restore()
	status = watched.final()
}

// blameClient informs the outer middlewares, if they settle by status, that the client has caused the status that follows.
func blameClient(w http.ResponseWriter) {
	eachWriter(w, func(w http.ResponseWriter) bool {
		if x, ok := w.(interface{ blameClient() }); ok {
			x.blameClient()
		}
		return true
	})
}

func (w *watcher) blameClient() { w.clientFault.Store(true) }

// watchedBody is a request's body that notes whether the client failed to send it. Since net/http puts the trailers that
// come after a body into the request that it was read from, the body hands them to the handler's copy.
type watchedBody struct {
	io.ReadCloser
	from    *http.Request // of the server
	to      *http.Request // of the handler
	reading atomic.Int32  // calls of Read that have not returned
	failed  atomic.Bool
	closed  atomic.Bool // by the handler, whose own fault it is if it reads on
}

// watchBody puts a watchedBody into a copy of the caller's request, and returns it, nil if the request has no body.
func watchBody(from, to *http.Request) *watchedBody {
	if !hasBody(to) {
		return nil
	}
	b := &watchedBody{ReadCloser: to.Body, from: from, to: to}
	to.Body = b
	return b
}

// handTrailer gives the handler the trailers, which are there at the end of the body. If the client has announced them,
// both requests have one map.
func (b *watchedBody) handTrailer() {
	if b.to.Trailer == nil {
		b.to.Trailer = b.from.Trailer
	}
}

func hasBody(r *http.Request) bool { return r.Body != nil && r.Body != http.NoBody }

// handBack copies the findings of a handler about a copy of the request to the request itself: the form, of which the server removes the
// files, and the route.
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
	switch {
	case err == io.EOF:
		b.handTrailer()
	case err != nil && !b.closed.Load():
		b.failed.Store(true)
	}
	return n, err
}

func (b *watchedBody) Close() error {
	b.closed.Store(true)
	err := b.ReadCloser.Close() // which reads the rest
	b.handTrailer()
	return err
}

// clientFault reports whether the body could not be read, or is still awaited.
func (b *watchedBody) clientFault() bool {
	return b != nil && (b.failed.Load() || b.reading.Load() > 0)
}
