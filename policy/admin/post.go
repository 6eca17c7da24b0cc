package admin

import (
	"cmp"
	"context"
	_ "embed"
	"errors"
	"fmt"
	"log/slog"
	"math"
	"net/http"
	"slices"
	"strconv"
	"strings"

	"github.com/weir-go/ratelimit"
	"github.com/weir-go/ratelimit/failover"
	"github.com/weir-go/ratelimit/policy"
	"github.com/weir-go/ratelimit/policy/internal/byhand"
	"github.com/weir-go/ratelimit/policy/internal/joined"
	"github.com/weir-go/ratelimit/policy/internal/shown"
)

// maxForm is the maximum size of a POST's body, in bytes.
const maxForm = 64 << 10

// post performs the action in a form's field "do".
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
	form := r.PostForm // without the values in the URL
	if a.ShowKeys {    // otherwise a key in a wrong field might be shown
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
	case "reset", "adjust", "force", "kill_switch":
	default:
		return refuse(http.StatusBadRequest, `the field "do" is none of key, limited, explain, reset, adjust, force and kill_switch`)
	}
	if !a.Write {
		return refuse(http.StatusForbidden, "read-only: nothing is changed here")
	}
	switch do {
	case "force":
		return a.force(r, v)
	case "kill_switch":
		return a.turn(r, v)
	}
	return a.change(r, v, do)
}

// number returns the whole number in a field, or without if the field is empty.
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

// lines returns a field's non-empty lines.
func lines(r *http.Request, field string) (all []string) {
	for line := range strings.Lines(r.PostForm.Get(field)) {
		if line = strings.TrimRight(line, "\r\n"); line != "" {
			all = append(all, line)
		}
	}
	return all
}

// subject returns the budget named by a form.
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
		// otherwise the rule's Key has changed since the denial
		if values := policy.ValuesOf(c.Key, a.parts(s.Rule)); joined.Key(values) == c.Key {
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

// limited lists denied keys under one rule or all rules, the longest waits first, at most top keys.
func (a *admin) limited(r *http.Request, v *view) error {
	ctx, cancel := context.WithTimeout(r.Context(), listTime)
	defer cancel()
	name, found := r.PostForm.Get("rule"), false
	for _, c := range complete(a.p.Current()) {
		found = found || !c.Allow && (name == "" && !c.Disabled || strings.EqualFold(name, c.Name))
	}
	v.Limited = []limited{}
	if !found {
		return refuse(http.StatusNotFound, "rule: none in force has this name")
	}
	err := a.p.Each(ctx, name, func(key []string, d ratelimit.Decision) bool {
		if d.Allowed {
			return true
		}
		text := joined.Key(key)
		v.sent = append(v.sent, text)
		v.Limited = append(v.Limited, limited{d.Limit.Name, a.shown(text), a.code(text), d.Limit.Named("").String(), shown.StandingOf(&d, false)})
		if len(v.Limited) >= 2*top {
			longest(v)
		}
		return true
	})
	longest(v)
	return err
}

// longest keeps the keys with the longest waits. A key that can never pass,
// for example a blocked one, comes last, because operators expect it.
func longest(v *view) {
	slices.SortStableFunc(v.Limited, func(a, b limited) int { return cmp.Compare(b.Now.RetryAfter, a.Now.RetryAfter) })
	v.Limited = v.Limited[:min(len(v.Limited), top)]
}

// parts counts the attributes in a rule's key.
func (a *admin) parts(name string) int {
	for _, r := range complete(a.p.Current()) {
		if strings.EqualFold(r.Name, name) {
			return len(r.Key)
		}
	}
	return 0
}

// standing shows a key's state under one rule, or under all rules whose keys have as many values.
func (a *admin) standing(r *http.Request, v *view) error {
	cost, err := number(r, "cost", 1)
	if err != nil {
		return err
	}
	key, name := lines(r, "key"), r.PostForm.Get("rule")
	v.sent = slices.Clone(key)
	v.Standing = []standing{}
	for _, c := range complete(a.p.Current()) {
		if c.Allow || c.Disabled && name == "" || name == "" && (len(c.Key) != len(key) || len(key) == 0) || name != "" && !strings.EqualFold(name, c.Name) {
			continue
		}
		d, err := a.p.Peek(r.Context(), request(policy.Subject{Rule: c.Name, Key: key, Plan: r.PostForm.Get("plan")}), cost)
		row := standing{Rule: c.Name, Limit: d.Limit.Named("").String()}
		if err != nil && !errors.Is(err, ratelimit.ErrExceedsLimit) {
			row.Limit, row.Error = c.Limit.Named("").String(), a.errorText(err, v)
		} else {
			row.Now = shown.StandingOf(&d, d.Allowed && err == nil)
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
	out := byhand.Shown(ex)
	if ex.Err != nil {
		out.Error = a.errorText(ex.Err, v)
	}
	for i := range out.Rules {
		if each := &out.Rules[i]; !a.ShowKeys && each.Key != "" {
			each.Key, each.Hidden = "", true
		}
	}
	v.Explanation = &out
	return nil
}

// request returns the request for a subject. Without a plan, the key's last decision gives the limit.
func request(s policy.Subject) policy.Request {
	if s.Plan != "" {
		return s
	}
	return byhand.Own{Rule: s.Rule, Key: s.Key}
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
	budget := request(s)
	before, err := a.p.Peek(r.Context(), budget, 1)
	looks := !errors.Is(err, errors.ErrUnsupported)
	if err != nil && looks && !errors.Is(err, ratelimit.ErrExceedsLimit) {
		return err
	}
	if spent := before.Limit.Capacity() - before.Remaining + before.Debt; looks && do == "adjust" && delta < -spent {
		return refuse(http.StatusBadRequest, "delta: %d gives back more than the %d units that the key has spent, and nothing raises it above its limit of %d; "+
			"for a higher limit until some time, write an entry in overrides with until", delta, spent, before.Limit.Capacity())
	}
	if do == "reset" {
		err = a.p.Reset(r.Context(), budget)
	} else {
		err = a.p.Adjust(r.Context(), budget, delta)
	}
	key := joined.Key(s.Key)
	if !a.ShowKeys {
		key = a.code(key)
	}
	what := []slog.Attr{slog.String("rule", s.Rule), slog.String("key", key), slog.Int("delta", delta)}
	v.Done = fmt.Sprintf("%s of rule %s", do, s.Rule)
	if looks {
		what = append(what, slog.Int("remaining_before", before.Remaining), slog.Int("debt_before", before.Debt), slog.Duration("reset_after_before", before.ResetAfter))
		v.Done += ": " + shown.Left(before.Remaining, before.Debt) + " before"
		after, failed := a.p.Peek(r.Context(), budget, 1)
		if failed == nil || errors.Is(failed, ratelimit.ErrExceedsLimit) {
			what = append(what, slog.Int("remaining", after.Remaining), slog.Int("debt", after.Debt))
			v.Done += fmt.Sprintf(", %d now", after.Remaining)
			if after.Debt > 0 {
				v.Done += fmt.Sprintf(", %d above the limit", after.Debt)
			}
		}
	}
	if err != nil {
		v.Done = ""
		what = append(what, slog.String("error", a.errorText(err, v)))
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

// turn turns the current set's kill switch on or off.
func (a *admin) turn(r *http.Request, v *view) error {
	to, on := r.PostForm.Get("state"), false
	switch to {
	case "on", "true":
		to, on = "on", true
	case "off", "false":
		to = "off"
	default:
		return refuse(http.StatusBadRequest, "state: neither on nor off")
	}
	before := "off"
	if byhand.KillSwitch(a.p, on) {
		before = "on"
	}
	a.log(r, "kill_switch", slog.String("state", to), slog.String("state_before", before))
	v.Done = fmt.Sprintf("kill switch: %s before, %s now", before, to)
	return nil
}

// log logs a change, with the operator's name.
func (a *admin) log(r *http.Request, do string, what ...slog.Attr) {
	who := r.RemoteAddr
	if a.By != nil {
		who = cmp.Or(a.By(r), who)
	}
	attrs := append([]slog.Attr{slog.String("do", do), slog.String("by", who)}, what...)
	a.Logger.LogAttrs(r.Context(), slog.LevelWarn, "policy: changed by hand", attrs...)
}
