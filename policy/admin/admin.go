// Package admin is a web page for operators of package policy, also as JSON.
//
//	http.Handle("/limits", operatorsOnly(admin.New(policies, nil)))
package admin

import (
	"bytes"
	"cmp"
	"context"
	"crypto/rand"
	_ "embed"
	"encoding/json"
	"errors"
	"fmt"
	"html/template"
	"log/slog"
	"maps"
	"math"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/weir-go/ratelimit"
	"github.com/weir-go/ratelimit/failover"
	"github.com/weir-go/ratelimit/policy"
	"github.com/weir-go/ratelimit/policy/audit"
	"github.com/weir-go/ratelimit/policy/internal/joined"
	"github.com/weir-go/ratelimit/policy/internal/shown"
)

// Options are those of [New]. Nil and the zero Options mean the defaults.
type Options struct {
	// Write allows changes to budgets and failovers.
	Write bool
	// ShowKeys shows keys. Otherwise answers, errors and logs hold codes.
	ShowKeys bool
	// HashKey makes them the codes of an audit.Log with this HashKey. If empty, they are random in each process.
	HashKey []byte
	// Failovers are shown by these names.
	Failovers map[string]Failover
	// By names the operator in the log. If nil, the address is logged.
	By func(*http.Request) string
	// Logger logs each change. If nil, slog.Default().
	Logger *slog.Logger
}

// Failover is a *failover.Limiter with any keys.
type Failover interface {
	Stats() failover.Stats
	Force(failover.State)
}

// New returns the page. It has no authentication: put it behind yours. At any path, GET returns it, or JSON for Accept:
// application/json. POST takes a form with the field "do":
//
//   - key: how a key stands. "key" holds its values, one in a line; "rule", "plan" and "cost" are optional.
//   - limited: the keys denied now, as without plans, of "rule" or all, 50 at most.
//   - explain: what the rules say about "request", with ATTRIBUTE=VALUE in each line; "cost" is optional.
//   - reset, adjust (by "delta"): of "rule" and "key", or of "code". Only with [Options.Write].
//   - force: "failover" to "state": open, closed or half-open. Only with [Options.Write].
//
// A browser's POST from another origin is refused: see [http.CrossOriginProtection].
func New(p *policy.Policies, opts *Options) http.Handler {
	p.Stats() // panics here, not at the first request, if p was not made
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

// view is what is shown: the answer as JSON, and what the page is made of.
type view struct {
	Version     string             `json:"version"`
	Generation  uint64             `json:"generation"`
	LoadedAt    time.Time          `json:"loaded_at"`
	CheckedAt   time.Time          `json:"checked_at"`
	KillSwitch  bool               `json:"kill_switch"`
	Killed      uint64             `json:"killed"`
	Exempt      uint64             `json:"exempt"`
	Error       string             `json:"error,omitempty"` // why the newest rules are not in force
	ErrorAt     *time.Time         `json:"error_at,omitempty"`
	Rules       []rule             `json:"rules"`
	Denied      []denied           `json:"denied"`
	Failovers   []failoverRow      `json:"failovers"`
	Write       bool               `json:"write"`
	KeysHidden  bool               `json:"keys_hidden"`
	Limited     []limited          `json:"limited,omitempty"`     // the answer to do=limited
	Standing    []standing         `json:"standing,omitempty"`    // the answer to do=key
	Explanation *shown.Explanation `json:"explanation,omitempty"` // the answer to do=explain
	Done        string             `json:"done,omitempty"`        // what has been changed
	Failed      string             `json:"failed,omitempty"`      // why a POST has failed

	form fields
	sent []string // what may be keys in a POST, and what a code stands for
}

// Listed reports whether keys were looked through.
func (v *view) Listed() bool { return v.Limited != nil }

// Form returns what was sent, so that the page keeps it: nothing if keys are hidden.
func (v *view) Form() fields { return v.form }

type fields struct{ Rule, Key, Plan, Cost, Request, Delta string }

type rule struct {
	Name        string   `json:"name"`
	Description string   `json:"description,omitempty"`
	For         []string `json:"for,omitempty"` // which requests; none: all
	Key         []string `json:"key,omitempty"`
	Limit       string   `json:"limit,omitempty"`
	Plans       []string `json:"plans,omitempty"`
	Overrides   int      `json:"overrides,omitempty"`
	State       string   `json:"state"` // enforcing, shadow, disabled or allow
	ChangedBy   string   `json:"changed_by,omitempty"`
}

type denied struct {
	Rule   string `json:"rule"`
	Key    string `json:"key,omitempty"`
	Code   string `json:"code,omitempty"`
	Shadow bool   `json:"shadow,omitempty"`
	Count  int64  `json:"count"`
	Error  int64  `json:"error"`
}

// limited is a key that a rule denies now.
type limited struct {
	Rule  string          `json:"rule"`
	Key   string          `json:"key,omitempty"`
	Code  string          `json:"code,omitempty"`
	Limit string          `json:"limit"`
	Now   *shown.Standing `json:"now"`
}

// AtLeast returns the count without what may be too much.
func (d denied) AtLeast() int64 { return d.Count - d.Error }

type failoverRow struct {
	Name          string     `json:"name"`
	State         string     `json:"state"`
	Forced        bool       `json:"forced"`
	DegradedSince *time.Time `json:"degraded_since,omitempty"`
}

type standing struct {
	Rule  string          `json:"rule"`
	Limit string          `json:"limit"`
	Now   *shown.Standing `json:"now,omitempty"`
	Error string          `json:"error,omitempty"`
}

// top is how many keys are shown.
const top = 50

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
			view.Failed, status = a.told(err, view), statusOf(err)
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

// wantsJSON reports whether a client names JSON and no HTML, as browsers do.
func wantsJSON(r *http.Request) bool {
	accept := strings.Join(r.Header.Values("Accept"), ",")
	return strings.Contains(accept, "application/json") && !strings.Contains(accept, "text/html")
}

// refusal is an error with a status.
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

// look fills in how all stands.
func (a *admin) look(v *view) {
	s := a.p.Stats()
	v.Version, v.Generation, v.LoadedAt, v.CheckedAt = s.Version, s.Generation, s.LoadedAt, s.CheckedAt
	v.KillSwitch, v.Killed, v.Exempt = s.KillSwitch, s.Killed, s.Exempt
	v.Write, v.KeysHidden = a.Write, !a.ShowKeys
	if s.LastError != nil {
		v.Error, v.ErrorAt = s.LastError.Error(), &s.LastErrorAt
	}
	v.Rules, v.Denied, v.Failovers = []rule{}, []denied{}, []failoverRow{}
	for _, r := range a.p.Current().Complete() {
		v.Rules = append(v.Rules, a.rule(&r))
	}
	for _, d := range a.p.Denied(top) {
		v.Denied = append(v.Denied, denied{Rule: d.Rule, Key: a.shown(d.Key), Code: a.code(d.Key), Shadow: d.Shadow, Count: d.Count, Error: d.Error})
	}
	for _, name := range slices.Sorted(maps.Keys(a.Failovers)) {
		f := a.Failovers[name].Stats()
		each := failoverRow{Name: name, State: f.State.String(), Forced: f.Forced}
		if !f.DegradedSince.IsZero() {
			each.DegradedSince = &f.DegradedSince
		}
		v.Failovers = append(v.Failovers, each)
	}
}

// rule returns how a rule is shown. Values that it asks for may be keys, and are counted only.
func (a *admin) rule(r *policy.Rule) rule {
	v := rule{
		Name: r.Name, Description: r.Description, Key: r.Key, Overrides: len(r.Overrides), ChangedBy: r.ChangedBy, State: "enforcing",
	}
	switch {
	case r.Disabled:
		v.State = "disabled"
	case r.Allow:
		v.State = "allow"
	case r.Shadow:
		v.State = "shadow"
	}
	if !r.Allow {
		v.Limit = r.Limit.Named("").String()
	}
	for _, plan := range slices.Sorted(maps.Keys(r.Plans)) {
		v.Plans = append(v.Plans, plan+": "+r.Plans[plan].Named("").String())
	}
	v.For = append(v.For, r.Match.Route...)
	for _, asked := range []struct {
		what   string
		values map[string]policy.Values
	}{{"", r.Match.Attributes}, {"not ", r.Match.Not}, {"prefix of ", r.Match.Prefix}, {"suffix of ", r.Match.Suffix}} {
		for _, name := range slices.Sorted(maps.Keys(asked.values)) {
			values := strings.Join(asked.values[name], ", ")
			if !a.ShowKeys {
				values = fmt.Sprintf("%d values", len(asked.values[name]))
			}
			v.For = append(v.For, asked.what+name+": "+values)
		}
	}
	for _, name := range r.Match.Absent {
		v.For = append(v.For, "without "+name)
	}
	return v
}

// code returns what stands for a key.
func (a *admin) code(key string) string {
	if key == "" {
		return ""
	}
	return audit.Hash(a.HashKey, key)
}

// told returns an error's text. An engine's may hold what was sent as a key: if keys are hidden, that is taken out. Of one
// or two letters nobody learns a key.
func (a *admin) told(err error, v *view) string {
	text := err.Error()
	if a.ShowKeys {
		return text
	}
	slices.SortFunc(v.sent, func(s, t string) int { return len(t) - len(s) }) // one may be a part of another
	for _, s := range v.sent {
		if len(s) > 2 {
			text = strings.ReplaceAll(text, s, "…")
		}
	}
	return text
}

// shown returns a key, if it may be seen.
func (a *admin) shown(key string) string {
	if a.ShowKeys {
		return key
	}
	return ""
}

// maxForm is how many bytes a POST may have.
const maxForm = 64 << 10

// post does what a POST asks for.
func (a *admin) post(w http.ResponseWriter, r *http.Request, v *view) error {
	r.Body = http.MaxBytesReader(w, r.Body, maxForm)
	err := r.ParseForm()
	if err == nil {
		if err = r.ParseMultipartForm(maxForm); errors.Is(err, http.ErrNotMultipart) {
			err = nil
		}
	}
	if large := new(http.MaxBytesError); errors.As(err, &large) {
		return refuse(http.StatusRequestEntityTooLarge, "the form has more than %d bytes", maxForm)
	} else if err != nil {
		return refuse(http.StatusBadRequest, "the form cannot be read")
	}
	form := r.PostForm // never the URL's values
	if a.ShowKeys {    // else something that is a key may stand in a wrong field
		v.form = fields{
			Rule: form.Get("rule"), Key: form.Get("key"), Plan: form.Get("plan"), Cost: form.Get("cost"),
			Delta: form.Get("delta"), Request: form.Get("request"),
		}
	}
	do := form.Get("do")
	switch do {
	case "key":
		return a.standing(r, v)
	case "explain":
		return a.explain(r, v)
	case "limited":
		return a.limited(r, v)
	case "reset", "adjust", "force":
	default:
		return refuse(http.StatusBadRequest, `the field "do" is none of key, limited, explain, reset, adjust and force`)
	}
	if !a.Write {
		return refuse(http.StatusForbidden, "read-only: nothing is changed here")
	}
	if do == "force" {
		return a.force(r, v)
	}
	return a.change(r, v, do)
}

// number reads a whole number, or returns what holds without one.
func number(r *http.Request, field string, without int) (int, error) {
	text := strings.TrimSpace(r.PostForm.Get(field))
	if text == "" {
		return without, nil
	}
	n, err := strconv.Atoi(text)
	if err != nil {
		return 0, refuse(http.StatusBadRequest, "%s: not a whole number", field)
	}
	return n, nil
}

// lines returns the lines of a field that are not empty.
func lines(r *http.Request, field string) (all []string) {
	for line := range strings.Lines(r.PostForm.Get(field)) {
		if line = strings.TrimRight(line, "\r\n"); line != "" {
			all = append(all, line)
		}
	}
	return all
}

// subject returns the budget that a form names.
func (a *admin) subject(r *http.Request, v *view) (policy.Subject, error) {
	s := policy.Subject{Key: lines(r, "key"), Plan: r.PostForm.Get("plan")}
	v.sent = slices.Clone(s.Key)
	names := a.p.Stats().Names
	i := slices.IndexFunc(names, func(name string) bool { return strings.EqualFold(name, r.PostForm.Get("rule")) })
	if i < 0 {
		return s, refuse(http.StatusNotFound, "rule: none in force has this name")
	}
	s.Rule = names[i]
	code := r.PostForm.Get("code")
	if code == "" {
		return s, nil
	}
	for _, c := range a.p.Denied(math.MaxInt) {
		if !strings.EqualFold(c.Rule, s.Rule) || a.code(c.Key) != code {
			continue
		}
		if values := policy.ValuesOf(c.Key, a.parts(s.Rule)); joined.Key(values) == c.Key { // else the rule had another Key then
			s.Key, v.sent = values, append(slices.Clone(values), c.Key)
			return s, nil
		}
	}
	ctx, cancel := context.WithTimeout(r.Context(), listTime)
	defer cancel()
	found := false
	err := a.p.Each(ctx, s.Rule, func(key []string, _ ratelimit.Decision) bool {
		if found = a.code(joined.Key(key)) == code; found {
			s.Key, v.sent = key, append(slices.Clone(key), joined.Key(key))
		}
		return !found
	})
	switch {
	case found:
		return s, nil
	case err != nil && !errors.Is(err, errors.ErrUnsupported):
		return s, err
	}
	return s, refuse(http.StatusNotFound, "code: no such key is held or has been denied of late")
}

// listTime bounds how long keys are looked through.
const listTime = 5 * time.Second

// limited answers which keys are denied now, of one rule or of all: those that wait longest, top of them at most.
func (a *admin) limited(r *http.Request, v *view) error {
	ctx, cancel := context.WithTimeout(r.Context(), listTime)
	defer cancel()
	name, found := r.PostForm.Get("rule"), false
	v.Limited = []limited{}
	for _, c := range a.p.Current().Complete() {
		if c.Allow || c.Disabled && name == "" || name != "" && !strings.EqualFold(name, c.Name) {
			continue
		}
		found = true
		err := a.p.Each(ctx, c.Name, func(key []string, d ratelimit.Decision) bool {
			if d.Allowed {
				return true
			}
			text := joined.Key(key)
			v.sent = append(v.sent, text)
			v.Limited = append(v.Limited, limited{c.Name, a.shown(text), a.code(text), d.Limit.Named("").String(),
				&shown.Standing{Remaining: d.Remaining, RetryAfter: d.RetryAfter.Seconds(), ResetAfter: d.ResetAfter.Seconds()}})
			if len(v.Limited) >= 2*top {
				longest(v)
			}
			return true
		})
		if err != nil {
			longest(v)
			return err
		}
	}
	longest(v)
	if !found {
		return refuse(http.StatusNotFound, "rule: none in force has this name")
	}
	return nil
}

// longest keeps the keys that wait longest. One that can never pass, such as a blocked key, is last: it is known.
func longest(v *view) {
	slices.SortStableFunc(v.Limited, func(a, b limited) int { return cmp.Compare(b.Now.RetryAfter, a.Now.RetryAfter) })
	v.Limited = v.Limited[:min(len(v.Limited), top)]
}

// parts returns of how many attributes a rule's key consists.
func (a *admin) parts(name string) int {
	for _, r := range a.p.Current().Complete() {
		if strings.EqualFold(r.Name, name) {
			return len(r.Key)
		}
	}
	return 0
}

// standing answers how a key stands, under one rule or under all whose key has as many values.
func (a *admin) standing(r *http.Request, v *view) error {
	cost, err := number(r, "cost", 1)
	if err != nil {
		return err
	}
	key, name := lines(r, "key"), r.PostForm.Get("rule")
	v.sent = slices.Clone(key)
	v.Standing = []standing{}
	for _, c := range a.p.Current().Complete() {
		if c.Allow || c.Disabled && name == "" || name == "" && (len(c.Key) != len(key) || len(key) == 0) || name != "" && !strings.EqualFold(name, c.Name) {
			continue
		}
		s := policy.Subject{Rule: c.Name, Key: key, Plan: r.PostForm.Get("plan")}
		d, err := a.p.Peek(r.Context(), s, cost)
		row := standing{Rule: c.Name, Limit: d.Limit.Named("").String()}
		if err != nil && !errors.Is(err, ratelimit.ErrExceedsLimit) {
			row.Limit, row.Error = c.Limit.Named("").String(), a.told(err, v)
		} else {
			row.Now = &shown.Standing{Allowed: d.Allowed && err == nil, Remaining: d.Remaining, RetryAfter: d.RetryAfter.Seconds(), ResetAfter: d.ResetAfter.Seconds()}
		}
		v.Standing = append(v.Standing, row)
	}
	if len(v.Standing) == 0 {
		return refuse(http.StatusNotFound, "no rule in force has such a key")
	}
	return nil
}

func (a *admin) explain(r *http.Request, v *view) error {
	cost, err := number(r, "cost", 1)
	if err != nil {
		return err
	}
	request := policy.Attributes{}
	for i, line := range lines(r, "request") {
		name, value, ok := strings.Cut(line, "=")
		if !ok || name == "" {
			return refuse(http.StatusBadRequest, "request: line %d is not ATTRIBUTE=VALUE", i+1)
		}
		if _, twice := request[name]; twice {
			return refuse(http.StatusBadRequest, "request: line %d gives an attribute twice", i+1)
		}
		request[name] = value
		v.sent = append(v.sent, value)
	}
	ex, err := a.p.Explain(request, cost)
	if err != nil {
		return err
	}
	var out shown.Explanation
	if text, err := json.Marshal(ex); err != nil {
		return err
	} else if err := json.Unmarshal(text, &out); err != nil {
		return err
	}
	if ex.Err != nil {
		out.Error = a.told(ex.Err, v)
	}
	for i := range out.Rules {
		if each := &out.Rules[i]; !a.ShowKeys && each.Key != "" {
			each.Key, each.Hidden = "", true
		}
	}
	v.Explanation = &out
	return nil
}

// change resets or adjusts a budget.
func (a *admin) change(r *http.Request, v *view, do string) error {
	s, err := a.subject(r, v)
	if err != nil {
		return err
	}
	delta, err := number(r, "delta", 0)
	if err != nil {
		return err
	}
	if do == "adjust" && delta == 0 {
		return refuse(http.StatusBadRequest, "delta: missing, or 0")
	}
	before, err := a.p.Peek(r.Context(), s, 1)
	looks := !errors.Is(err, errors.ErrUnsupported)
	if err != nil && looks && !errors.Is(err, ratelimit.ErrExceedsLimit) {
		return err
	}
	if do == "reset" {
		err = a.p.Reset(r.Context(), s)
	} else {
		err = a.p.Adjust(r.Context(), s, delta)
	}
	key := joined.Key(s.Key)
	if !a.ShowKeys {
		key = a.code(key)
	}
	what := []slog.Attr{slog.String("rule", s.Rule), slog.String("key", key), slog.Int("delta", delta)}
	v.Done = fmt.Sprintf("%s of rule %s", do, s.Rule)
	if looks {
		what = append(what, slog.Int("remaining_before", before.Remaining), slog.Duration("reset_after_before", before.ResetAfter))
		v.Done += fmt.Sprintf(": %d left before", before.Remaining)
		after, failed := a.p.Peek(r.Context(), s, 1)
		if failed == nil || errors.Is(failed, ratelimit.ErrExceedsLimit) {
			what = append(what, slog.Int("remaining", after.Remaining))
			v.Done += fmt.Sprintf(", %d now", after.Remaining)
		}
	}
	if err != nil {
		v.Done = ""
		what = append(what, slog.String("error", a.told(err, v)))
	}
	a.log(r, do, what...)
	return err
}

// force sets a failover's state.
func (a *admin) force(r *http.Request, v *view) error {
	name, text := r.PostForm.Get("failover"), r.PostForm.Get("state")
	f, ok := a.Failovers[name]
	if !ok {
		return refuse(http.StatusNotFound, "failover: none has this name")
	}
	states := []failover.State{failover.StateClosed, failover.StateHalfOpen, failover.StateOpen}
	i := slices.IndexFunc(states, func(s failover.State) bool { return s.String() == text })
	if i < 0 {
		return refuse(http.StatusBadRequest, "state: none of open, closed and half-open")
	}
	before := f.Stats()
	f.Force(states[i])
	a.log(r, "force", slog.String("failover", name), slog.String("state", text),
		slog.String("state_before", before.State.String()), slog.Bool("forced_before", before.Forced))
	v.Done = fmt.Sprintf("%s: %s before, %s now", name, before.State, f.Stats().State)
	return nil
}

// log tells of a change.
func (a *admin) log(r *http.Request, do string, what ...slog.Attr) {
	who := r.RemoteAddr
	if a.By != nil {
		who = cmp.Or(a.By(r), who)
	}
	attrs := append([]slog.Attr{slog.String("do", do), slog.String("by", who)}, what...)
	a.Logger.LogAttrs(r.Context(), slog.LevelWarn, "policy: changed by hand", attrs...)
}
