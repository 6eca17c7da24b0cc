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
	// Status is the status for [Options].Settle.
	Status int
	Header http.Header
	// Written counts the bytes of the handler's body.
	Written int64
}

// ChargeOnly returns a function for [Options].Settle that charges only responses with
// these statuses. For example, ChargeOnly(401, 403) counts failed logins. If the client
// left before the answer, the request is charged: its answer could have had any status.
func ChargeOnly(statuses ...int) func(r *http.Request, status, cost int) int {
	return func(r *http.Request, status, cost int) int {
		if slices.Contains(statuses, status) || r != nil && unanswered(r, status) {
			return cost
		}
		return 0
	}
}

// RefundServerErrors is a function for [Options].Settle. It does not charge a status of
// 500 or above, unless the client has gone or has caused it by its body. Requests refused
// by an inner middleware are not charged either. Answer other bad requests with 4xx.
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

// ending is the context of a settled request after an unusual end: its client has gone, or its handler has panicked.
type ending struct {
	context.Context
	unanswered bool // whether the client left before the request was answered
	panicked   bool // whether the handler panicked; then the response is incomplete, even after a status of success
}

type endingKey struct{}

// Value returns the ending for the key endingKey.
func (e *ending) Value(k any) any {
	if _, ok := k.(endingKey); ok {
		return e
	}
	return e.Context.Value(k)
}

// endingOf returns a request's ending. It returns nil if the request ended as usual or was not served here.
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

// serveAndSettle passes a request on, and settles its charge by the
// response. watched is the watcher of w, or nil if there is none yet.
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

// blameClient reports to outer middlewares that the client has caused the following status: they may settle by it.
func blameClient(w http.ResponseWriter) {
	eachWriter(w, func(w http.ResponseWriter) bool {
		if x, ok := w.(interface{ blameClient() }); ok {
			x.blameClient()
		}
		return true
	})
}

func (w *watcher) blameClient() { w.clientFault.Store(true) }

// watchedBody is a request's body. It records whether the client failed to send it. net/http stores the trailers after
// a body in the request from which it was read. So watchedBody copies them to the handler's copy of the request.
type watchedBody struct {
	io.ReadCloser
	from    *http.Request // the server's request
	to      *http.Request // the handler's request
	reading atomic.Int32  // open calls to Read
	failed  atomic.Bool
	closed  atomic.Bool // whether the handler has closed it; then an error of a later Read is the handler's fault
}

// watchBody replaces the body in a copy of the caller's request by a watchedBody. It returns nil if the request has no body.
func watchBody(from, to *http.Request) *watchedBody {
	if !hasBody(to) {
		return nil
	}
	b := &watchedBody{ReadCloser: to.Body, from: from, to: to}
	to.Body = b
	return b
}

// handTrailer copies the trailers to the handler's request. They arrive after
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
	err := b.ReadCloser.Close() // Close reads the rest of the body
	b.handTrailer()
	return err
}

// clientFault reports whether the body could not be read, or has not arrived yet.
func (b *watchedBody) clientFault() bool {
	return b != nil && (b.failed.Load() || b.reading.Load() > 0)
}
