package policy

import (
	"net/http"
	"strings"

	"github.com/weir-go/ratelimit/httplimit"
	"github.com/weir-go/ratelimit/internal/keytext"
	"github.com/weir-go/ratelimit/keyfunc"
	"github.com/weir-go/ratelimit/policy/internal/match"
)

// Request is a request's attributes. Attribute returns false for a missing attribute. In a
// key, an empty attribute counts as missing. The values must not change during a decision.
type Request interface {
	Attribute(name string) (value string, ok bool)
}

// Attributes is a [Request] as a map.
type Attributes map[string]string

// Attribute returns the value in the map.
func (a Attributes) Attribute(name string) (string, bool) {
	v, ok := a[name]
	return v, ok
}

// plan is a [Request] with only the attribute plan.
type plan string

func (p plan) Attribute(name string) (string, bool) { return string(p), name == attrPlan && p != "" }

// HTTP returns an HTTP request's attributes. Those in more have precedence. More may be nil.
//
//   - method, and host (in lower case; the port for CONNECT only);
//   - path, escaped as it was sent. Servers read a path in several ways: they split it before or
//     after decoding it, and clean it or not. A limiting rule matches a route if any of these
//     readings does. A rule with Allow matches only if all of them do. Conditions and keys use the
//     decoded and cleaned path. A target without a path, such as "x:y", is [keyfunc.ErrMalformedKey];
//   - route: the pattern of a mux in front of the limiter. If the mux is behind, give "route" in more, by its Handler method;
//   - ip: the other end of the connection, an IPv6 address cut to its /64. Behind a proxy, give "ip"
//     in more, by [httplimit.ClientIP]. Every "ip" is read so, also from [Attributes]: with or without
//     a port, brackets or a zone, in any spelling. A key "ip/32/128" keeps IPv6 addresses whole.
//     Another text is a value like others, but [keyfunc.ErrMalformedKey] for a key such as "ip/24";
//   - header:NAME: a header field that occurs once and is not empty. In a key, its [keyfunc.Hash] stands for the value of a field with
//     credentials, such as Authorization or X-API-Key;
//   - wildcard:NAME: in a rule with routes, the text of their wildcard {NAME}. It never comes from more;
//   - query:NAME and cookie:NAME: a parameter of the URL's query or a cookie, as header:NAME. In a key, its [keyfunc.Hash] stands
//     for the value, which may be a secret.
func HTTP(r *http.Request, more Request) Request { return &httpRequest{r: r, more: more} }

type httpRequest struct {
	r    *http.Request
	more Request
}

func (h *httpRequest) Attribute(name string) (string, bool) {
	if h.more != nil {
		if v, ok := h.more.Attribute(name); ok {
			return v, true
		}
	}
	switch name {
	case attrMethod:
		return h.r.Method, h.r.Method != ""
	case attrHost:
		return match.Host(h.r.Method, h.r.Host), h.r.Host != ""
	case attrPath:
		return h.r.URL.EscapedPath(), true
	case attrRoute:
		return h.r.Pattern, h.r.Pattern != ""
	case attrIP:
		return h.ip()
	}
	if field, ok := strings.CutPrefix(name, attrHeader); ok {
		return h.header(field)
	}
	if field, ok := strings.CutPrefix(name, attrQuery); ok {
		return h.query(field)
	}
	if field, ok := strings.CutPrefix(name, attrCookie); ok {
		return h.cookie(field)
	}
	return "", false
}

// errOpaque is the error for a request whose target is a URI without a path, such as "x:y:/v1/charges". A server would
// read an empty path, but a proxy passes "y:/v1/charges" on. So the next server would read a path unchecked by any rule.
var errOpaque = &requestError{keyfunc.ErrMalformedKey, "the target of the request is a URI without a path"}

// unreadable returns errOpaque if a request has no path to compare with rules.
func unreadable(r Request) error {
	h, ok := r.(*httpRequest)
	if !ok || h.r.URL.Opaque == "" {
		return nil
	}
	if h.more != nil {
		if _, ok := h.more.Attribute(attrPath); ok {
			return nil
		}
	}
	return errOpaque
}

// query returns a parameter's value in the URL's query if there is
// exactly one. It ignores malformed pairs, as [net/url.URL.Query] does.
func (h *httpRequest) query(name string) (string, bool) {
	if !strings.Contains(h.r.URL.RawQuery, "=") {
		return "", false
	}
	v, err := keytext.Raw(h.r.URL.Query()[name], name)
	return v, err == nil
}

// cookie returns a cookie's value if there is exactly one.
func (h *httpRequest) cookie(name string) (string, bool) {
	cookies := h.r.CookiesNamed(name)
	if len(cookies) != 1 || cookies[0].Value == "" {
		return "", false
	}
	return cookies[0].Value, true
}

func (h *httpRequest) ip() (string, bool) {
	addr, err := httplimit.RemoteIP(h.r)
	if err != nil {
		return "", false
	}
	return addr.String(), true
}

// header returns a field's value if there is exactly one. If a client sends a field
// twice, there is none, because different parts of a program could use different values.
func (h *httpRequest) header(field string) (string, bool) {
	v, err := keytext.Single(h.r.Header.Values(field), field)
	return v, err == nil
}
