package httplimit

import (
	"context"
	"net/http"
	"strings"

	"github.com/weir-go/ratelimit/internal/edge"
)

// innerRequest returns the handler's copy of a request. An inner middleware finds
// the outer one in the copy's context. w watches the copy's body unless it is nil.
func innerRequest(ctx context.Context, r *http.Request, w *watcher) *http.Request {
	inner := r.WithContext(edge.Inside(ctx))
	body := watchBody(r, inner)
	if w != nil {
		w.request, w.body = inner, body
	}
	return inner
}

// serveNested passes a request on, and gives its charge back if an inner middleware refuses it.
func (m *Middleware) serveNested(
	ctx context.Context, e *event, watched *watcher, w http.ResponseWriter, charge *edge.Charge[*http.Request], next http.Handler,
) {
	r := e.Request
	inner := innerRequest(ctx, r, watched)
	defer handBack(r, inner)
	next.ServeHTTP(w, inner)
	watched.restore()
	if edge.WasRefused(inner.Context()) {
		charge.Refused(e)
		return
	}
	edge.MarkServed(r.Context())
}

// handBack copies a handler's values from its copy of the request to the request
// itself: the form, whose files the server removes, and the route with its path values.
func handBack(r, inner *http.Request) {
	if r.MultipartForm == nil && inner.MultipartForm != nil {
		r.MultipartForm = inner.MultipartForm
	}
	if r.Form == nil && inner.Form != nil {
		r.Form, r.PostForm = inner.Form, inner.PostForm
	}
	if r.Pattern != inner.Pattern {
		r.Pattern = inner.Pattern
		eachWildcard(r.Pattern, func(name string) { r.SetPathValue(name, inner.PathValue(name)) })
	}
}

// eachWildcard calls do with each wildcard's name in a route's pattern, such as id and rest in "GET /items/{id}/{rest...}".
func eachWildcard(pattern string, do func(name string)) {
	for {
		_, after, found := strings.Cut(pattern, "{")
		name, rest, closed := strings.Cut(after, "}")
		if !found || !closed {
			return
		}
		if name = strings.TrimSuffix(name, "..."); name != "" && name != "$" {
			do(name)
		}
		pattern = rest
	}
}
