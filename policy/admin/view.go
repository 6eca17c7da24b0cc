package admin

import (
	_ "embed"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/weir-go/ratelimit/policy"
	"github.com/weir-go/ratelimit/policy/internal/byhand"
	"github.com/weir-go/ratelimit/policy/internal/joined"
	"github.com/weir-go/ratelimit/policy/internal/shown"
	"github.com/weir-go/ratelimit/policy/internal/words"
)

// view is the JSON answer, and the HTML page's data.
type view struct {
	Version     string             `json:"version"`
	Generation  uint64             `json:"generation"`
	LoadedAt    time.Time          `json:"loaded_at"`
	CheckedAt   time.Time          `json:"checked_at"`
	KillSwitch  bool               `json:"kill_switch"`
	Attributes  []string           `json:"attributes,omitempty"` // declared by the set
	Lists       []string           `json:"lists,omitempty"`      // the lists' names and how many values they have
	Killed      uint64             `json:"killed"`
	Exempt      uint64             `json:"exempt"`
	Error       string             `json:"error,omitempty"` // why the newest rules are not in force
	ErrorAt     *time.Time         `json:"error_at,omitempty"`
	Rules       []rule             `json:"rules"`
	Denied      []denied           `json:"denied"`
	Failovers   []failoverRow      `json:"failovers"`
	Write       bool               `json:"write"`
	KeysHidden  bool               `json:"keys_hidden"`
	Limited     []limited          `json:"limited,omitempty"`       // the answer to do=limited
	Without     []string           `json:"without_plans,omitempty"` // rules whose plans do=limited ignores
	Standing    []standing         `json:"standing,omitempty"`      // the answer to do=key
	Explanation *shown.Explanation `json:"explanation,omitempty"`   // the answer to do=explain
	Done        string             `json:"done,omitempty"`          // the change just made
	Failed      string             `json:"failed,omitempty"`        // why the POST has failed

	form fields
	sent []string // texts to remove from errors: a POST's values, possibly keys, and the keys behind its codes
}

// Listed reports whether keys were searched.
func (v *view) Listed() bool { return v.Limited != nil }

// WithoutPlans returns the rules whose denied keys are listed without regard to plans, because their engine stores no plans.
func (v *view) WithoutPlans() []string { return v.Without }

// Form returns the submitted fields, so that the page can show them again. It returns none if keys are hidden.
func (v *view) Form() fields { return v.form }

type fields struct{ Rule, Key, Plan, Cost, Request, Delta string }

type rule struct {
	Name        string   `json:"name"`
	Description string   `json:"description,omitempty"`
	For         []string `json:"for,omitempty"` // the rule's requests; all if empty
	Key         []string `json:"key,omitempty"`
	Instead     []string `json:"instead,omitempty"` // the rules that it replaces
	Limit       string   `json:"limit,omitempty"`
	LimitFrom   string   `json:"limit_from,omitempty"`
	Notify      []string `json:"notify,omitempty"`
	Plans       []string `json:"plans,omitempty"`
	Share       int      `json:"share,omitempty"`  // the weight of keys without their own; above 0 the keys share the limit
	Shares      []string `json:"shares,omitempty"` // plans' weights
	Overrides   int      `json:"overrides,omitempty"`
	More        []string `json:"more,omitempty"` // the rule's other fields, with their names
	State       string   `json:"state"`          // enforcing, shadow, disabled or allow
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

// AtLeast returns the count without its possible error.
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

// top is the maximum number of keys on the page.
const top = 50

// look fills in the state of all rules and failovers.
func (a *admin) look(v *view) {
	s := a.p.Stats()
	v.Version, v.Generation, v.LoadedAt, v.CheckedAt = s.Version, s.Generation, s.LoadedAt, s.CheckedAt
	v.KillSwitch, v.Killed, v.Exempt = s.KillSwitch, s.Killed, s.Exempt
	v.Write, v.KeysHidden = a.Write, !a.ShowKeys
	if s.LastError != nil {
		v.Error, v.ErrorAt = s.LastError.Error(), &s.LastErrorAt
	}
	v.Rules, v.Denied, v.Failovers = []rule{}, []denied{}, []failoverRow{}
	inMemory := s.Tables != nil
	set := a.p.Current()
	v.Attributes = set.Attributes
	for _, name := range slices.Sorted(maps.Keys(set.Lists)) {
		v.Lists = append(v.Lists, name+": "+words.ListText(set.Lists[name]))
	}
	for _, r := range complete(set) {
		v.Rules = append(v.Rules, a.rule(&r))
		if !inMemory && len(r.Plans) > 0 && r.Share == 0 {
			v.Without = append(v.Without, r.Name)
		}
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

// rule returns a rule as the page shows it. Unless keys are shown, only the
// number of values in its conditions is shown, because they may be keys.
func (a *admin) rule(r *policy.Rule) rule {
	v := rule{
		Name: r.Name, Description: r.Description, Key: r.Key, Instead: r.Instead, LimitFrom: r.LimitFrom, Notify: r.Notify, Overrides: len(r.Overrides), Share: r.Share, ChangedBy: r.ChangedBy, State: "enforcing",
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
	for _, plan := range slices.Sorted(maps.Keys(r.Shares)) {
		v.Shares = append(v.Shares, fmt.Sprintf("%s: share %d", plan, r.Shares[plan]))
	}
	for _, w := range words.Of(r, a.ShowKeys) {
		if w.Text != "" {
			v.More = append(v.More, w.Name+": "+w.Text)
		}
	}
	v.For = append(v.For, r.Match.Route...)
	for _, cond := range []struct {
		what   string
		values map[string][]string
	}{{"", r.Match.Attributes}, {"not ", r.Match.Not}, {"prefix of ", r.Match.Prefix}, {"suffix of ", r.Match.Suffix}} {
		for _, name := range slices.Sorted(maps.Keys(cond.values)) {
			values := strings.Join(cond.values[name], ", ")
			if !a.ShowKeys && name != "route" {
				values = words.Counted(cond.values[name])
			}
			v.For = append(v.For, cond.what+name+": "+values)
		}
	}
	for _, name := range r.Match.Absent {
		v.For = append(v.For, "without "+name)
	}
	return v
}

// complete returns a set's rules with their defaults.
func complete(set *policy.Set) []policy.Rule { return byhand.Complete(set).([]policy.Rule) }

// code returns a key's code.
func (a *admin) code(key string) string {
	if key == "" {
		return ""
	}
	return joined.Hash(a.HashKey, key)
}

// errorText returns an error's text. An engine's text may contain a value sent as a key. If keys are hidden,
// errorText removes such values, except values with one or two letters, because these reveal no key.
func (a *admin) errorText(err error, v *view) string {
	text := err.Error()
	if a.ShowKeys {
		return text
	}
	slices.SortFunc(v.sent, func(s, t string) int { return len(t) - len(s) }) // longest first, because one may be a part of another
	for _, s := range v.sent {
		if len(s) > 2 {
			text = strings.ReplaceAll(text, s, "…")
		}
	}
	return text
}

// shown returns a key, or "" if keys are hidden.
func (a *admin) shown(key string) string {
	if a.ShowKeys {
		return key
	}
	return ""
}
