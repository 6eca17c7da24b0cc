package httplimit

import (
	"cmp"
	"encoding/json"
	"net/http"
	"strconv"
	"sync/atomic"
	"time"

	"github.com/weir-go/ratelimit/internal/edge"
	"github.com/weir-go/ratelimit/internal/limitfields"
	"github.com/weir-go/ratelimit/internal/outcome"
	"github.com/weir-go/ratelimit/internal/rpcstatus"
)

// refuse answers a request instead of serving it. It sets the header fields,
// and then calls the user's function or answers in the request's protocol.
func (m *Middleware) refuse(w http.ResponseWriter, e *event) {
	outcome.MarkRefused(e.Request.Context())
	edge.MarkRefused(e.Request.Context(), e.Cause())
	if e.Decision.Degraded && m.opts.DegradedHeader != "" {
		w.Header()[m.opts.DegradedHeader] = []string{"true"}
	}
	var (
		h, values = w.Header(), new([7]string)
		wait      = time.Duration(-1) // negative, so there is no Retry-After
		custom    func(http.ResponseWriter, Event)
		body      *problem
		// the request cannot be held until its delay is over
		abandoned = e.Decision.Allowed && (e.Outcome == edge.Denied || e.Outcome == edge.Rejected)
	)
	switch {
	case abandoned:
		if e.Outcome == edge.Denied {
			m.setFields(w, e)
		}
		wait, body = e.Decision.Delay, unavailable
		blameClient(w) // the client has filled the queue
	case e.Outcome == edge.Denied:
		v := m.view(h, e)
		m.setLimits(h, v, &e.Decision, values[:3])
		wait, custom, body = e.Decision.RetryAfter, m.opts.OnDenied, problemFor(&v.Denied, http.StatusTooManyRequests, v.Name, "")
	case e.Outcome == edge.Exceeds:
		custom, body = m.opts.OnExceeds, m.writeNever(h, e, values[:3])
	default:
		reason := e.Cause()
		if reason.Retryable() {
			wait = e.Decision.RetryAfter
		}
		if reason.ByClient() {
			blameClient(w)
		}
		if reason == outcome.CauseKey {
			challenge(h, m.opts.Challenge)
		}
		custom, body = m.opts.OnError, m.problemOf(reason)
	}
	if wait >= 0 {
		m.setRetryAfter(h, e, wait, values[3:4:4])
	}
	set(h, "Cache-Control", "no-store", values[4:5:5])
	protocol := protocolOf(e.Request, m.opts.PlainHTTP)
	switch {
	case custom != nil:
		custom(w, public(*e))
	case protocol == noRPC:
		body.write(w, e.Request, values[5:])
	case abandoned && e.Outcome != edge.Denied: // such a request is denied because its delay would be too long
		writeRPC(w, e.Request, protocol, rpcstatus.Gone(e.Request.Context()))
	default:
		writeRPC(w, e.Request, protocol, m.core.Answer(e, keyCode(m.opts.KeyCode)))
	}
}

// writeNever writes the limit of a request whose cost can never pass, and returns the answer. The decision
// of such a request comes from an error. It has no remaining budget, unless the budget is always zero.
func (m *Middleware) writeNever(h http.Header, e *event, values []string) *problem {
	v := m.view(h, e)
	if v.Limit.Capacity() > 0 {
		m.setPolicy(h, v, values[:1:1])
	} else {
		m.setLimits(h, v, &e.Decision, values)
	}
	if e.Cause() == outcome.CauseBlocked {
		return problemFor(&v.Blocked, http.StatusForbidden, v.Name, rpcstatus.Requests.Blocked)
	}
	return problemFor(&v.Exceeds, http.StatusForbidden, v.Name, rpcstatus.Requests.Exceeds)
}

// setRetryAfter writes a wait in whole seconds, with the client's jitter. The wait is rounded up and is at least
// 1, so the client never comes too early. With Options.RetryAfterMs it also writes the wait in milliseconds.
func (m *Middleware) setRetryAfter(h http.Header, e *event, wait time.Duration, values []string) {
	share := m.core.Share(e.Request, wait)
	set(h, "Retry-After", strconv.FormatInt(max(1, limitfields.Seconds(wait))+int64(share/time.Second), 10), values)
	if m.opts.RetryAfterMs {
		h["Retry-After-Ms"] = []string{strconv.FormatInt(max(1, rpcstatus.Milliseconds(m.core.Spread(e.Request, wait))), 10)}
	}
}

// problem is a problem document (RFC 9457). It is encoded once and sent many times.
type problem struct {
	status int
	body   []byte
	length string
}

// The problem types of draft-ietf-httpapi-ratelimit-headers-11, section 6.
const (
	typeQuotaExceeded   = "https://iana.org/assignments/http-problem-types#quota-exceeded"
	typeReducedCapacity = "https://iana.org/assignments/http-problem-types#temporary-reduced-capacity"
)

// newPlainProblem returns an answer without a type beside its status. The detail may be empty.
func newPlainProblem(status int, detail string) *problem {
	return members{Type: "about:blank", Title: http.StatusText(status), Status: status, Detail: detail}.encode()
}

// newProblem returns the answer to a request beyond the quota of the named policy.
func newProblem(status int, policy, detail string) *problem {
	m := members{Type: typeQuotaExceeded, Title: "Quota exceeded", Status: status, Detail: detail}
	if policy != "" {
		m.Violated = []string{policy}
	}
	return m.encode()
}

// members are the fields of a problem document.
type members struct {
	Type     string   `json:"type"`
	Title    string   `json:"title"`
	Status   int      `json:"status"`
	Detail   string   `json:"detail,omitempty"`
	Violated []string `json:"violated-policies,omitempty"`
}

func (m members) encode() *problem {
	body, _ := json.Marshal(m) // encoding strings and an integer cannot fail
	body = append(body, '\n')
	return &problem{m.Status, body, strconv.Itoa(len(body))}
}

// write sends the document. To HEAD it sends only the header.
func (p *problem) write(w http.ResponseWriter, r *http.Request, values []string) {
	h := w.Header()
	set(h, "Content-Type", "application/problem+json", values[0:1:1])
	set(h, "Content-Length", p.length, values[1:2:2])
	w.WriteHeader(p.status)
	if r.Method != http.MethodHead {
		_, _ = w.Write(p.body) // a client already gone needs no answer
	}
}

// problemFor returns the answer to a request beyond a policy's quota. It
// encodes the answer when it is first sent, because most limits never deny.
func problemFor(sent *atomic.Value, status int, policy, detail string) *problem {
	p, _ := sent.Load().(*problem)
	if p == nil {
		p = newProblem(status, policy, detail)
		sent.Store(p)
	}
	return p
}

// problemOf returns the answer to a request without a possible decision.
func (m *Middleware) problemOf(r outcome.Cause) *problem {
	switch {
	case r == outcome.CauseKey:
		return m.badKey
	case r == outcome.CauseRequest:
		return badRequest
	case r.Retryable():
		return reducedCapacity
	}
	return internalError
}

// challenge sets WWW-Authenticate unless it is set already. A 401 must have it (RFC 9110, section 15.5.2).
func challenge(h http.Header, value string) {
	if value != "" && len(h["Www-Authenticate"]) == 0 {
		h["Www-Authenticate"] = []string{value}
	}
}

// newBadKey returns the answer to a request whose key is missing or malformed. The status defaults to 400.
func newBadKey(status int) *problem {
	return newPlainProblem(cmp.Or(status, http.StatusBadRequest), rpcstatus.Requests.BadKey)
}

var (
	badRequest      = newPlainProblem(http.StatusBadRequest, "")
	internalError   = newPlainProblem(http.StatusInternalServerError, "")
	unavailable     = newPlainProblem(http.StatusServiceUnavailable, "")
	tooLarge        = newPlainProblem(http.StatusForbidden, rpcstatus.Requests.TooLarge)
	blocked         = newPlainProblem(http.StatusForbidden, rpcstatus.Requests.Blocked)
	reducedCapacity = members{
		Type: typeReducedCapacity, Title: "Temporary reduced capacity", Status: http.StatusServiceUnavailable,
	}.encode()
)
