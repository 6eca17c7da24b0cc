package httplimit

import (
	"encoding/json"
	"hash/maphash"
	"math/bits"
	"net/http"
	"strconv"
	"strings"
	"time"
)

// deny answers a request that is denied for now.
func (m *Middleware) deny(w http.ResponseWriter, e *Event) {
	h, v, slots := w.Header(), m.view(e.Decision.Limit), new([7]string)
	m.setLimits(h, v, &e.Decision, slots[:3])
	set(h, "Retry-After", strconv.FormatInt(m.retryAfter(e), 10), slots[3:4:4])
	set(h, "Cache-Control", "no-store", slots[4:5:5])
	if m.opts.OnDenied != nil {
		m.opts.OnDenied(w, *e)
		return
	}
	v.denied.write(w, e.Request, slots[5:])
}

// exceed answers a request whose cost can never pass. Its decision is an error's, and
// does not tell how much is left, unless there never is anything.
func (m *Middleware) exceed(w http.ResponseWriter, e *Event) {
	h, v := w.Header(), m.view(e.Decision.Limit)
	if v.limit.Capacity() > 0 {
		m.setPolicy(h, v, new([1]string)[:])
	} else {
		m.setLimits(h, v, &e.Decision, new([3]string)[:])
	}
	h.Set("Cache-Control", "no-store")
	if m.opts.OnExceeds != nil {
		m.opts.OnExceeds(w, *e)
		return
	}
	v.exceeds.write(w, e.Request, new([2]string)[:])
}

// fail answers a request that could not be decided.
func (m *Middleware) fail(w http.ResponseWriter, e *Event) {
	w.Header().Set("Cache-Control", "no-store")
	if m.opts.OnError != nil {
		m.opts.OnError(w, *e)
		return
	}
	failed.write(w, e.Request, new([2]string)[:])
}

// abandon answers a request whose context has ended before its turn came. To write
// nothing would be a 200.
func (m *Middleware) abandon(w http.ResponseWriter, e *Event) {
	w.Header().Set("Cache-Control", "no-store")
	abandoned.write(w, e.Request, new([2]string)[:])
}

// retryAfter is the wait in whole seconds, rounded up and at least 1, so that it is
// never earlier than the truth; and the client's jitter.
func (m *Middleware) retryAfter(e *Event) int64 {
	wait := e.Decision.RetryAfter
	s := max(1, seconds(wait))
	if span := min(m.opts.Jitter, wait/10); span >= time.Second {
		s += int64(share(m.identity(e.Request, wait), span) / time.Second)
	}
	return s
}

// share maps a hash evenly onto [0, span).
func share(hash uint64, span time.Duration) time.Duration {
	hi, _ := bits.Mul64(hash, uint64(span))
	return time.Duration(hi)
}

// jitterPeriod is how long a client's share of the jitter stays the same. It changes
// at last, so that nobody is the last one for ever.
const jitterPeriod = 10 * time.Minute

// identity hashes the client, and the period that the end of its wait is in: that
// instant stands still while the client waits.
func (m *Middleware) identity(r *http.Request, wait time.Duration) uint64 {
	period := m.opts.Now().Add(wait).UnixNano() / int64(jitterPeriod)
	return maphash.Comparable(m.seed, struct {
		client string
		period int64
	}{m.opts.JitterBy(r), period})
}

// peerAndCredentials tells clients apart well enough to spread them. It need not be
// safe from spoofing: who invents another identity waits as long as before, or
// longer.
func peerAndCredentials(r *http.Request) string {
	host := r.RemoteAddr
	if i := strings.LastIndexByte(host, ':'); i >= 0 {
		host = host[:i] // the port changes with each connection
	}
	parts := []string{host}
	for _, name := range []string{"X-Forwarded-For", "Forwarded", "Authorization"} {
		parts = append(parts, r.Header[name]...)
	}
	return strings.Join(parts, "\n")
}

// problem is a problem document (RFC 9457), written once and sent many times.
type problem struct {
	status int
	body   []byte
	length string
}

const (
	typeQuotaExceeded = "https://iana.org/assignments/http-problem-types#quota-exceeded"
	exceedsDetail     = "The request costs more than its quota ever holds. Do not retry it."
)

var (
	failed    = newPlainProblem(http.StatusInternalServerError)
	abandoned = newPlainProblem(http.StatusServiceUnavailable)
)

// newPlainProblem returns an answer that says no more than its status.
func newPlainProblem(status int) problem {
	return members{Type: "about:blank", Title: http.StatusText(status), Status: status}.encode()
}

// newProblem returns the answer to a request beyond the quota of that policy.
func newProblem(status int, policy, detail string) problem {
	m := members{Type: typeQuotaExceeded, Title: "Quota exceeded", Status: status, Detail: detail}
	if policy != "" {
		m.Violated = []string{policy}
	}
	return m.encode()
}

// members are what a problem document says.
type members struct {
	Type     string   `json:"type"`
	Title    string   `json:"title"`
	Status   int      `json:"status"`
	Detail   string   `json:"detail,omitempty"`
	Violated []string `json:"violated-policies,omitempty"`
}

func (m members) encode() problem {
	body, _ := json.Marshal(m) // strings and an integer: it cannot fail
	body = append(body, '\n')
	return problem{m.Status, body, strconv.Itoa(len(body))}
}

// write sends the document; to HEAD, all but the document.
func (p *problem) write(w http.ResponseWriter, r *http.Request, slots []string) {
	h := w.Header()
	set(h, "Content-Type", "application/problem+json", slots[0:1:1])
	set(h, "Content-Length", p.length, slots[1:2:2])
	w.WriteHeader(p.status)
	if r.Method != http.MethodHead {
		_, _ = w.Write(p.body) // a client that has gone needs no answer
	}
}
