package httplimit

import (
	"net/http"
	"strconv"
	"time"

	"github.com/weir-go/ratelimit/internal/edge"
	"github.com/weir-go/ratelimit/internal/refused"
	"github.com/weir-go/ratelimit/internal/rpcstatus"
	"github.com/weir-go/ratelimit/internal/told"
)

// refuse answers a request that is not served: it sets the header fields, and answers as the user wants, or in the protocol
// of the request.
func (m *Middleware) refuse(w http.ResponseWriter, e *event) {
	refused.Mark(e.Request.Context())
	var (
		h, slots  = w.Header(), new([7]string)
		wait      = time.Duration(-1) // no Retry-After
		custom    func(http.ResponseWriter, Event)
		body      *problem
		abandoned = e.Err == nil && e.Decision.Allowed // the client has left while it was held, or would be held for too long
	)
	switch {
	case abandoned:
		if e.Outcome == edge.Denied {
			m.tellLimits(w, e)
		}
		wait, body = e.Decision.Delay, unavailable
		blameClient(w) // who has filled the queue
	case e.Outcome == edge.Denied:
		v := m.view(h, e)
		m.setLimits(h, v, &e.Decision, slots[:3])
		wait, custom, body = e.Decision.RetryAfter, m.opts.OnDenied, problemFor(&v.Denied, http.StatusTooManyRequests, v.Name, "")
	case e.Outcome == edge.Exceeds:
		custom, body = m.opts.OnExceeds, m.tellNever(h, e, slots[:3])
	default:
		reason := e.Reason()
		if reason.Retryable() {
			wait = e.Decision.RetryAfter
		}
		if reason.ByClient() {
			blameClient(w)
		}
		custom, body = m.opts.OnError, m.problemOf(reason)
	}
	if wait >= 0 {
		m.setRetryAfter(h, e, wait, slots[3:4:4])
	}
	set(h, "Cache-Control", "no-store", slots[4:5:5])
	protocol := rpcOf(e.Request)
	switch {
	case custom != nil:
		custom(w, public(*e))
	case protocol == noRPC:
		body.write(w, e.Request, slots[5:])
	case abandoned:
		writeRPC(w, e.Request, protocol, rpcstatus.Gone(e.Request.Context()))
	default:
		writeRPC(w, e.Request, protocol, m.core.Answer(e, keyCode(m.opts.KeyCode)))
	}
}

// tellNever tells of the limit of a request whose cost can never pass, and returns the answer. Such a decision is an error's,
// and does not tell how much is left, except where nothing ever is.
func (m *Middleware) tellNever(h http.Header, e *event, slots []string) *problem {
	v := m.view(h, e)
	if v.Limit.Capacity() > 0 {
		m.setPolicy(h, v, slots[:1:1])
	} else {
		m.setLimits(h, v, &e.Decision, slots)
	}
	if rpcstatus.IsBlocked(e.Err) {
		return problemFor(&v.Blocked, http.StatusForbidden, v.Name, rpcstatus.Requests.Blocked)
	}
	return problemFor(&v.Exceeds, http.StatusForbidden, v.Name, rpcstatus.Requests.Exceeds)
}

// setRetryAfter tells a wait in whole seconds, rounded up and at least 1, so that it is never too early, with the client's
// jitter. With Options.RetryAfterMs it also tells it in milliseconds.
func (m *Middleware) setRetryAfter(h http.Header, e *event, wait time.Duration, slot []string) {
	share := m.core.Share(e.Request, wait)
	set(h, "Retry-After", strconv.FormatInt(max(1, told.Seconds(wait))+int64(share/time.Second), 10), slot)
	if m.opts.RetryAfterMs {
		h["Retry-After-Ms"] = []string{strconv.FormatInt(max(1, rpcstatus.Milliseconds(m.core.Spread(e.Request, wait))), 10)}
	}
}
