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
	// Written is the number of body bytes that the handler has written.
	Written int64
}

// ChargeOnly is for [Options].Settle: only responses with these statuses are charged. ChargeOnly(401, 403) counts
// failed logins. A request whose client left before it was answered is charged: it could have become any of them.
func ChargeOnly(statuses ...int) func(r *http.Request, status, cost int) int {
	return func(r *http.Request, status, cost int) int {
		if slices.Contains(statuses, status) || r != nil && unanswered(r, status) {
			return cost
		}
		return 0
	}
}

// RefundServerErrors is for [Options].Settle: a status of 500 or above is not charged, unless the client has gone or
// caused it by its body, and a request that a middleware inside has refused is not either. Answer other bad requests with 4xx.
func RefundServerErrors(r *http.Request, status, cost int) int {
	failed := status >= http.StatusInternalServerError
	if e := endingOf(r); e != nil {
		failed = failed || e.panicked
	}
	if edge.WasRefused(r.Context()) || failed && !gone(r) {
		return 0
	}
	return cost
}

// gone reports whether the client has gone.
func gone(r *http.Request) bool { return errors.Is(r.Context().Err(), context.Canceled) }

// ending is the context of a settled request that did not end as usual: its client has gone, or its handler has panicked.
type ending struct {
	context.Context
	unanswered bool // the client has gone before the request was answered
	panicked   bool // also after a status of success, whose response is incomplete
}

type endingKey struct{}

// Value finds the ending itself.
func (e *ending) Value(k any) any {
	if _, ok := k.(endingKey); ok {
		return e
	}
	return e.Context.Value(k)
}

// endingOf returns the ending of a request, nil if it ended as usual, or was not served here.
func endingOf(r *http.Request) *ending {
	e, _ := r.Context().Value(endingKey{}).(*ending)
	return e
}

// unanswered reports whether the client has left before its request was answered.
func unanswered(r *http.Request, status int) bool {
	if e := endingOf(r); e != nil {
		return e.unanswered
	}
	return status >= http.StatusInternalServerError && gone(r)
}

// serveAndSettle passes a request on, and settles its charge by the response. The watcher is of w, nil if there is none
// yet.
func (m *Middleware) serveAndSettle(ctx context.Context, watched *watcher, w http.ResponseWriter, r *http.Request, charge *edge.Charge[*http.Request], next http.Handler) {
	if watched == nil {
		watched, w = watch(w, r)
	}
	inner, returned := innerRequest(ctx, r, watched), false
	defer charge.Settle(func(cost int) int {
		settled := inner
		if left := gone(inner); left || !returned {
			settled = inner.WithContext(&ending{inner.Context(), left && !watched.answered(), !returned})
		}
		return m.opts.SettleResponse(settled, Response{Status: watched.blame(watched.sentOr(returned)), Header: w.Header(), Written: watched.written}, cost)
	})
	defer handBack(r, inner)
	next.ServeHTTP(w, inner)
	watched.restore()
	returned = true
	if !edge.WasRefused(inner.Context()) {
		edge.MarkServed(r.Context())
	}
}

// blameClient informs outer middlewares that settle by status that the client has caused the following status.
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

// handTrailer gives the handler the trailers, which arrive at the end of
// the body. If the client has announced them, both requests share one map.
func (b *watchedBody) handTrailer() {
	if b.to.Trailer == nil {
		b.to.Trailer = b.from.Trailer
	}
}

func hasBody(r *http.Request) bool { return r.Body != nil && r.Body != http.NoBody }

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
