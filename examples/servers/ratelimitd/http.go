package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"net/netip"
	"net/url"
	"strings"
	"time"

	"github.com/weir-go/ratelimit"
	"github.com/weir-go/ratelimit/httplimit"
	"github.com/weir-go/ratelimit/keyfunc"
	"github.com/weir-go/ratelimit/policy"
	"github.com/weir-go/ratelimit/promlimit"
)

// handler returns the handler of all endpoints. Gateways pass their clients' header fields on, so clients could spoof a
// gateway's fields. Therefore each kind of gateway has its own endpoint, which reads only the fields set by that gateway.
func (s *service) handler(metrics *promlimit.Metrics) (*http.ServeMux, error) {
	mux := http.NewServeMux()
	for path, fields := range map[string]originalFields{
		"/auth/original":  {"X-Original-Method", "X-Original-Uri", "X-Original-Host"},
		"/auth/forwarded": {"X-Forwarded-Method", "X-Forwarded-Uri", "X-Forwarded-Host"},
	} {
		limit, err := httplimit.New(now{s.limiter, fields.attributes}, &httplimit.Options{
			PlainHTTP: true, // otherwise a client with an RPC's content type would be refused with the status 200
			OnDenied:  denied,
		})
		if err != nil {
			return nil, err
		}
		if err := metrics.Register(path[1:], limit); err != nil {
			return nil, err
		}
		mux.Handle(path, limit.Wrap(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusNoContent) })))
	}
	mux.HandleFunc("POST /check", s.check)
	mux.HandleFunc("GET /healthz", func(http.ResponseWriter, *http.Request) {})
	mux.HandleFunc("GET /readyz", func(w http.ResponseWriter, _ *http.Request) {
		if s.draining.Load() {
			http.Error(w, "draining", http.StatusServiceUnavailable)
		}
	})
	return mux, nil
}

// denied answers a request denied for now. NGINX's auth_request accepts only 2xx, 401 and 403.
func denied(w http.ResponseWriter, e httplimit.Event) {
	if e.Request.URL.Query().Get("deny") == "403" {
		w.WriteHeader(http.StatusForbidden)
		return
	}
	w.WriteHeader(http.StatusTooManyRequests)
}

// originalFields names the header fields in which a gateway describes its client's request.
type originalFields struct{ method, uri, host string }

// clientIP returns the last address in X-Forwarded-For: the gateway has written it.
var clientIP = ratelimit.Must(httplimit.ClientIP(httplimit.ClientIPOptions{TrustedHops: 1}))

// attributes returns the attributes of the request made by the gateway's client. If there is no
// original URI, or two, the gateway's configuration differs from those in the folder gateways.
func (f originalFields) attributes(r *http.Request) (policy.Request, error) {
	of := func(field string) (string, error) { return httplimit.Header(field)(r) }
	method, err := of(f.method)
	if err != nil {
		return nil, err
	}
	text, err := of(f.uri)
	if err != nil {
		return nil, err
	}
	uri, err := url.ParseRequestURI(text)
	if err != nil {
		return nil, fmt.Errorf("%w: %s is no request's URI", keyfunc.ErrMalformedKey, f.uri)
	}
	host, err := of(f.host)
	if err != nil {
		return nil, err
	}
	ip, err := clientIP(r)
	if err != nil {
		return nil, err
	}
	original := &http.Request{Method: method, URL: uri, Host: host, Header: r.Header}
	return policy.HTTP(original, policy.Attributes{"ip": ip.String()}), nil
}

// now is a limiter of HTTP requests. It delays none.
type now struct {
	limiter    limiter
	attributes func(*http.Request) (policy.Request, error)
}

func (n now) Allow(r *http.Request, cost int) bool {
	d, _ := n.Take(r.Context(), r, cost)
	return d.Allowed
}

func (n now) Take(ctx context.Context, r *http.Request, cost int) (ratelimit.Decision, error) {
	request, err := n.attributes(r)
	if err != nil {
		return ratelimit.Decision{}, err
	}
	res, err := n.limiter.Reserve(ctx, request, cost, 0)
	if res == nil {
		return ratelimit.Decision{}, err
	}
	return res.Decision, err
}

// question is the body of POST /check, and answer the response's body. Times are in seconds.
type question struct {
	Attributes policy.Attributes `json:"attributes"`
	Cost       *int              `json:"cost"` // if missing, 1
}

type answer struct {
	Allowed    bool    `json:"allowed"`
	Never      bool    `json:"never,omitempty"` // the cost exceeds the limit, or the key is blocked
	Limit      string  `json:"limit,omitempty"` // that denies, or that leaves the least
	Remaining  int     `json:"remaining"`
	RetryAfter float64 `json:"retry_after,omitempty"`
	ResetAfter float64 `json:"reset_after,omitempty"`
	Degraded   bool    `json:"degraded,omitempty"` // decided by this process alone
}

// check decides on attributes in JSON. The status is 200 for each decision, even for a denial.
func (s *service) check(w http.ResponseWriter, r *http.Request) {
	var q question
	body := json.NewDecoder(http.MaxBytesReader(w, r.Body, 64<<10))
	body.DisallowUnknownFields()
	if err := body.Decode(&q); err != nil {
		http.Error(w, "want a JSON object with attributes and a cost: "+err.Error(), http.StatusBadRequest)
		return
	}
	cost := 1
	if q.Cost != nil {
		cost = *q.Cost
	}
	if path, ok := q.Attributes["path"]; ok { // the path of a request line includes the query
		q.Attributes["path"], _, _ = strings.Cut(path, "?")
	}
	if err := cutAddress(q.Attributes, "ip"); err != nil {
		http.Error(w, err.Error(), http.StatusBadRequest)
		return
	}
	res, err := s.limiter.Reserve(r.Context(), q.Attributes, cost, 0)
	if res == nil {
		res = new(ratelimit.Reservation)
	}
	never := errors.Is(err, ratelimit.ErrExceedsLimit)
	switch {
	case err == nil || never:
	case errors.Is(err, ratelimit.ErrUnavailable) || errors.Is(err, ratelimit.ErrTableFull):
		http.Error(w, "unavailable", http.StatusServiceUnavailable)
		return
	case errors.Is(err, keyfunc.ErrNoKey) || errors.Is(err, keyfunc.ErrMalformedKey) || errors.Is(err, ratelimit.ErrNegativeCost):
		http.Error(w, err.Error(), http.StatusBadRequest)
		return
	default:
		http.Error(w, "not decided", http.StatusInternalServerError)
		return
	}
	a := answer{
		Allowed: res.Allowed, Never: never, Remaining: res.Remaining, Degraded: res.Degraded,
		RetryAfter: seconds(res.RetryAfter), ResetAfter: seconds(res.ResetAfter),
	}
	if res.Limit.Algorithm != ratelimit.AlgorithmUnlimited {
		a.Limit = res.Limit.Name
	}
	w.Header().Set("Content-Type", "application/json")
	_ = json.NewEncoder(w).Encode(a) // an error means that the client has gone
}

func seconds(d time.Duration) float64 { return d.Seconds() }

// cutAddress cuts an IPv6 address to its /64, as package policy does for HTTP requests.
func cutAddress(a policy.Attributes, name string) error {
	text, ok := a[name]
	if !ok {
		return nil
	}
	addr, err := netip.ParseAddr(text)
	if err != nil {
		return fmt.Errorf("%w: the attribute %s is no IP address", keyfunc.ErrMalformedKey, name)
	}
	cut, err := httplimit.RemoteIP(&http.Request{RemoteAddr: netip.AddrPortFrom(addr, 1).String()})
	if err != nil {
		return err
	}
	a[name] = cut.String()
	return nil
}
