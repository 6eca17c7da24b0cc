package httplimit

import (
	"net/http"
	"time"
)

// hold holds a request until its delay is over. Then it restarts the server's
// timeouts: they are meant for the handler's work, not for the wait.
func (m *Middleware) hold(w http.ResponseWriter, e *event) {
	if !m.core.Holds(e) {
		return
	}
	// If a timeout ended during the wait, a server of HTTP/1 would cancel the context, and a server of HTTP/2 the stream.
	renewTimeouts(w, e.Request, e.Decision.Delay)
	m.core.Hold(e)
	renewTimeouts(w, e.Request, 0)
}

// renewTimeouts restarts the server's ReadTimeout and WriteTimeout, as if the time were later by ahead.
func renewTimeouts(w http.ResponseWriter, r *http.Request, ahead time.Duration) {
	s := serverOf(r)
	if s == nil || s.ReadTimeout <= 0 && s.WriteTimeout <= 0 {
		return
	}
	from, c := time.Now().Add(ahead), http.NewResponseController(w)
	if s.ReadTimeout > 0 {
		_ = c.SetReadDeadline(from.Add(s.ReadTimeout)) // a writer without SetReadDeadline has no deadline to restart
	}
	if s.WriteTimeout > 0 {
		_ = c.SetWriteDeadline(from.Add(s.WriteTimeout))
	}
}

// tooLate reports whether a request can no longer be answered after a delay.
func tooLate(r *http.Request, delay time.Duration) bool {
	s := serverOf(r)
	return s != nil && s.WriteTimeout > 0 && delay >= s.WriteTimeout
}

// RefuseHeld refuses the held requests, and each later request instead of holding it. They get 503 with
// Retry-After at once, and their charges are given back. Requests are still served if they can pass at
// once. Pass RefuseHeld to [http.Server.RegisterOnShutdown], because [http.Server.Shutdown] waits for
// held requests. If several servers share a Middleware, it holds no more requests for any of them.
func (m *Middleware) RefuseHeld() {
	if m != nil && m.core != nil {
		m.core.RefuseHeld()
	}
}
