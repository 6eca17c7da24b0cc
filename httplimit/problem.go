package httplimit

import (
	"encoding/json"
	"net/http"
	"strconv"
	"sync/atomic"
)

// problem is a problem document (RFC 9457), written once and sent many times.
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

// newPlainProblem returns an answer whose type is its status. The detail may be empty.
func newPlainProblem(status int, detail string) *problem {
	return members{Type: "about:blank", Title: http.StatusText(status), Status: status, Detail: detail}.encode()
}

// newProblem returns the answer to a request beyond the quota of that policy.
func newProblem(status int, policy, detail string) *problem {
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

func (m members) encode() *problem {
	body, _ := json.Marshal(m) // strings and an integer: it cannot fail
	body = append(body, '\n')
	return &problem{m.Status, body, strconv.Itoa(len(body))}
}

// write sends the document; to HEAD, everything except the document.
func (p *problem) write(w http.ResponseWriter, r *http.Request, slots []string) {
	h := w.Header()
	set(h, "Content-Type", "application/problem+json", slots[0:1:1])
	set(h, "Content-Length", p.length, slots[1:2:2])
	w.WriteHeader(p.status)
	if r.Method != http.MethodHead {
		_, _ = w.Write(p.body) // a client that has gone needs no answer
	}
}

// problemFor returns the answer to a request beyond the quota of that policy. It is encoded when
// it is first sent: most limits never deny.
func problemFor(sent *atomic.Value, status int, policy, detail string) *problem {
	p, _ := sent.Load().(*problem)
	if p == nil {
		p = newProblem(status, policy, detail)
		sent.Store(p)
	}
	return p
}
