// Package admin serves a web page to operators who use package policy. It also serves JSON.
//
//	http.Handle("/limits", operatorsOnly(admin.New(policies, nil)))
package admin

import (
	"bytes"
	"crypto/rand"
	_ "embed"
	"encoding/json"
	"errors"
	"fmt"
	"html/template"
	"log/slog"
	"net/http"
	"slices"
	"strings"
	"time"

	"github.com/weir-go/ratelimit"
	"github.com/weir-go/ratelimit/failover"
	"github.com/weir-go/ratelimit/policy"
	"github.com/weir-go/ratelimit/policy/internal/shown"
)

// Options configure [New]. Nil and the zero Options select the defaults.
type Options struct {
	// Write allows changes to budgets, failovers and the kill switch.
	Write bool
	// ShowKeys shows keys. If false, answers, errors and logs have codes instead.
	ShowKeys bool
	// HashKey makes the codes equal to an audit.Log's with this HashKey. If empty, each process has random codes.
	HashKey []byte
	// Failovers are the failovers on the page, by name.
	Failovers map[string]Failover
	// By returns the operator's name for the log. It defaults to the client's address.
	By func(*http.Request) string
	// Logger logs each change. It defaults to slog.Default().
	Logger *slog.Logger
}

// Failover is a *failover.Limiter with any keys.
type Failover interface {
	Stats() failover.Stats
	Force(failover.State)
}

// New returns the page. It has no authentication: put it behind yours. At any path, GET returns
// the page, or JSON for Accept: application/json. POST takes a form with the field "do":
//
//   - key shows a key's state. "key" has its values, one a line; "rule", "plan" and "cost" are optional. Without a plan,
//     the key's last decision gives the limit: the last decision in memory or, if a store has the budgets, in this process.
//   - limited lists at most 50 keys that are denied now, under "rule" or under all rules, by the plans in their last
//     decisions. A store does not record plans: then "without_plans" lists the rules that judge all keys by their own limit.
//   - explain shows each rule's decision on "request", with one ATTRIBUTE=VALUE a line; "cost" is optional.
//   - reset, and adjust by "delta", change the budget for "rule" and "key", or for "code".
//     They need [Options.Write]. A delta that gives back more than was spent is refused.
//   - kill_switch sets the kill switch of the set in force to "state", on or off. Follow
//     leaves the switch until its source has another set. It needs [Options.Write].
//   - force sets "failover" to "state": open, closed or half-open. It needs [Options.Write].
//
// A browser's POST from another origin is refused: see [http.CrossOriginProtection].
func New(p *policy.Policies, opts *Options) http.Handler {
	p.Stats() // panics here, rather than at the first request, if p was not made by policy.New
	a := &admin{p: p}
	if opts != nil {
		a.Options = *opts
	}
	if a.HashKey = slices.Clone(a.HashKey); len(a.HashKey) == 0 {
		a.HashKey = make([]byte, 32)
		_, _ = rand.Read(a.HashKey)
	}
	if a.Logger == nil {
		a.Logger = slog.Default()
	}
	return http.NewCrossOriginProtection().Handler(a)
}

type admin struct {
	Options
	p *policy.Policies
}

//go:embed admin.html
var html string

var page = template.Must(template.New("admin").Funcs(template.FuncMap{
	"ago":     func(t time.Time) string { return time.Since(t).Round(time.Second).String() },
	"at":      func(t time.Time) string { return t.UTC().Format("2006-01-02 15:04:05 UTC") },
	"visible": shown.Visible,
}).Parse(html))

func (a *admin) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	h := w.Header()
	h.Set("Cache-Control", "no-store")
	h.Set("Content-Security-Policy", "default-src 'none'; style-src 'unsafe-inline'; form-action 'self'; frame-ancestors 'none'; base-uri 'none'")
	h.Set("X-Content-Type-Options", "nosniff")
	h.Set("Referrer-Policy", "no-referrer")
	view, status := &view{}, http.StatusOK
	switch r.Method {
	case http.MethodGet, http.MethodHead:
	case http.MethodPost:
		if err := a.post(w, r, view); err != nil {
			view.Failed, status = a.errorText(err, view), statusOf(err)
		}
	default:
		h.Set("Allow", "GET, HEAD, POST")
		http.Error(w, "want GET, HEAD or POST", http.StatusMethodNotAllowed)
		return
	}
	a.look(view)
	var body bytes.Buffer
	if wantsJSON(r) {
		h.Set("Content-Type", "application/json")
		enc := json.NewEncoder(&body)
		enc.SetIndent("", "  ")
		_ = enc.Encode(view)
	} else {
		h.Set("Content-Type", "text/html; charset=utf-8")
		if err := page.Execute(&body, view); err != nil {
			http.Error(w, "the page cannot be made", http.StatusInternalServerError)
			return
		}
	}
	h.Set("Vary", "Accept")
	w.WriteHeader(status)
	_, _ = w.Write(body.Bytes())
}

// wantsJSON reports whether a client accepts JSON and, unlike a browser, no HTML.
func wantsJSON(r *http.Request) bool {
	accept := strings.Join(r.Header.Values("Accept"), ",")
	return strings.Contains(accept, "application/json") && !strings.Contains(accept, "text/html")
}

// refusal is an error with an HTTP status.
type refusal struct {
	status int
	error
}

func refuse(status int, format string, args ...any) error {
	return &refusal{status, fmt.Errorf(format, args...)}
}

func statusOf(err error) int {
	var r *refusal
	switch {
	case errors.As(err, &r):
		return r.status
	case errors.Is(err, ratelimit.ErrUnavailable):
		return http.StatusServiceUnavailable
	case errors.Is(err, errors.ErrUnsupported):
		return http.StatusNotImplemented
	}
	return http.StatusBadRequest
}

// listTime is the maximum time for a search through keys.
const listTime = 5 * time.Second
