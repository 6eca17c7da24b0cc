package httplimit

import (
	"net/http"
	"time"
)

// hold holds a request until its delay is over. The server's timeouts
// begin anew then: they bound the handler's work, not the wait for it.
func (m *Middleware) hold(w http.ResponseWriter, e *event) {
	if !m.core.Holds(e) {
		return
	}
	// If a timeout ended during the wait, a server of HTTP/1 would cancel the context, and one of HTTP/2 the stream.
	renewTimeouts(w, e.Request, e.Decision.Delay)
	m.core.Hold(e)
	renewTimeouts(w, e.Request, 0)
}

// renewTimeouts restarts the server's ReadTimeout and WriteTimeout, at an instant ahead.
func renewTimeouts(w http.ResponseWriter, r *http.Request, ahead time.Duration) {
	s := serverOf(r)
	if s == nil || s.ReadTimeout <= 0 && s.WriteTimeout <= 0 {
		return
	}
	from, c := time.Now().Add(ahead), http.NewResponseController(w)
	if s.ReadTimeout > 0 {
		_ = c.SetReadDeadline(from.Add(s.ReadTimeout)) // a writer without SetReadDeadline has no deadline to renew
	}
	if s.WriteTimeout > 0 {
		_ = c.SetWriteDeadline(from.Add(s.WriteTimeout))
	}
}

// tooLate reports whether the request can no longer be answered when its delay is over.
func tooLate(r *http.Request, delay time.Duration) bool {
	s := serverOf(r)
	return s != nil && s.WriteTimeout > 0 && delay >= s.WriteTimeout
}

// RefuseHeld refuses the requests that are held now, and from now on each request that would have to be
// held. They get 503 with Retry-After at once, and their charges are given back. Requests that can pass
// at once are served. Pass it to [http.Server.RegisterOnShutdown], because [http.Server.Shutdown] waits
// for held requests. If several servers share a Middleware, it stops holding requests for all of them.
func (m *Middleware) RefuseHeld() {
	if m != nil && m.core != nil {
		m.core.RefuseHeld()
	}
}
