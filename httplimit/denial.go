package httplimit

import (
	"net/http"
	"strconv"
	"time"

	"github.com/weir-go/ratelimit/internal/rpcstatus"
	"github.com/weir-go/ratelimit/internal/told"
)

// deny answers a request that is denied for now.
func (m *Middleware) deny(w http.ResponseWriter, e *event) {
	h, slots := w.Header(), new([7]string)
	v := m.view(h, e)
	m.setLimits(h, v, &e.Decision, slots[:3])
	set(h, "Retry-After", strconv.FormatInt(m.retryAfter(e, e.Decision.RetryAfter), 10), slots[3:4:4])
	set(h, "Cache-Control", "no-store", slots[4:5:5])
	if m.opts.OnDenied != nil {
		m.opts.OnDenied(w, public(*e))
		return
	}
	if protocol := rpcOf(e.Request); protocol != noRPC {
		writeRPC(w, e.Request, protocol, m.core.Answer(e, keyCode(m.opts.KeyCode)))
		return
	}
	problemFor(&v.Denied, http.StatusTooManyRequests, v.Name, "").write(w, e.Request, slots[5:])
}

// exceed answers a request whose cost can never pass. Its decision is an error's, and
// does not tell how much is left, except where nothing ever is.
func (m *Middleware) exceed(w http.ResponseWriter, e *event) {
	h := w.Header()
	v := m.view(h, e)
	if v.Limit.Capacity() > 0 {
		m.setPolicy(h, v, new([1]string)[:])
	} else {
		m.setLimits(h, v, &e.Decision, new([3]string)[:])
	}
	h.Set("Cache-Control", "no-store")
	if m.opts.OnExceeds != nil {
		m.opts.OnExceeds(w, public(*e))
		return
	}
	if protocol := rpcOf(e.Request); protocol != noRPC {
		writeRPC(w, e.Request, protocol, m.core.Answer(e, keyCode(m.opts.KeyCode)))
		return
	}
	sent, detail := &v.Exceeds, rpcstatus.Requests.Exceeds
	if rpcstatus.IsBlocked(e.Err) {
		sent, detail = &v.Blocked, rpcstatus.Requests.Blocked
	}
	problemFor(sent, http.StatusForbidden, v.Name, detail).write(w, e.Request, new([2]string)[:])
}

// fail answers a request that could not be decided.
func (m *Middleware) fail(w http.ResponseWriter, e *event) {
	h, reason := w.Header(), e.Reason()
	h.Set("Cache-Control", "no-store")
	if reason.Retryable() {
		h.Set("Retry-After", strconv.FormatInt(m.retryAfter(e, e.Decision.RetryAfter), 10))
	}
	if reason.ByClient() {
		blameClient(w)
	}
	if m.opts.OnError != nil {
		m.opts.OnError(w, public(*e))
		return
	}
	if protocol := rpcOf(e.Request); protocol != noRPC {
		writeRPC(w, e.Request, protocol, m.core.Answer(e, keyCode(m.opts.KeyCode)))
		return
	}
	m.problemOf(reason).write(w, e.Request, new([2]string)[:])
}

// abandon answers a request that was not held until its delay was over. Without an answer
// it would be a 200.
func (m *Middleware) abandon(w http.ResponseWriter, e *event) {
	h := w.Header()
	h.Set("Cache-Control", "no-store")
	h.Set("Retry-After", strconv.FormatInt(m.retryAfter(e, e.Decision.Delay), 10))
	blameClient(w) // who has filled the queue
	if protocol := rpcOf(e.Request); protocol != noRPC {
		writeRPC(w, e.Request, protocol, rpcstatus.Gone(e.Request.Context()))
		return
	}
	unavailable.write(w, e.Request, new([2]string)[:])
}

// retryAfter is a wait in whole seconds, rounded up and at least 1, so that it is
// never too early; and the client's jitter.
func (m *Middleware) retryAfter(e *event, wait time.Duration) int64 {
	return max(1, told.Seconds(wait)) + int64(m.core.Share(e.Request, wait)/time.Second)
}
