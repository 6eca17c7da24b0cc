package main

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"

	"github.com/weir-go/ratelimit"
	"github.com/weir-go/ratelimit/policy"
	"github.com/weir-go/ratelimit/policy/internal/byhand"
	"github.com/weir-go/ratelimit/policy/internal/shown"
	"github.com/weir-go/ratelimit/policy/internal/words"
)

// change is one difference between two sets.
type change struct {
	Rule string `json:"rule,omitempty"` // "" for the whole set
	What string `json:"what"`
	From string `json:"from,omitempty"`
	To   string `json:"to,omitempty"`
	Whom string `json:"whom"`         // the affected requests
	By   string `json:"by,omitempty"` // the author of the rule's last change, if the new set names any
}

// diff prints the changes, and the requests affected by them.
func (t *tool) diff(files []string) int {
	if len(files) != 2 {
		return t.usage("diff needs two files")
	}
	var sets [2]*policy.Set
	for i, file := range files {
		set, status, err := t.load(file)
		if err != nil {
			return t.fail(max(status, misuse), err)
		}
		sets[i] = set
	}
	changes := compare(sets[0], sets[1])
	if t.json {
		t.print(append([]change{}, changes...))
	} else {
		t.show(changes)
	}
	if len(changes) > 0 {
		return differ
	}
	return fine
}

func (t *tool) show(changes []change) {
	if len(changes) == 0 {
		fmt.Fprintln(t.out, "no difference")
	}
	for _, c := range changes {
		where := "all rules"
		if c.Rule != "" {
			where = "rule " + c.Rule
		}
		line := where + ": " + c.What
		switch {
		case c.From != "" && c.To != "":
			line += " " + c.From + " → " + c.To
		case c.From+c.To != "":
			line += " " + c.From + c.To
		}
		if c.By != "" {
			c.Whom += "; changed by " + c.By
		}
		fmt.Fprintln(t.out, shown.Visible(fmt.Sprintf("%s (%s)", line, c.Whom)))
	}
}

// compare returns the changes from one set to another, in the order of the new set's rules. Removed rules come last.
func compare(from, to *policy.Set) (changes []change) {
	if from.KillSwitch != to.KillSwitch {
		changes = append(changes, change{What: "kill_switch", From: fmt.Sprint(from.KillSwitch), To: fmt.Sprint(to.KillSwitch), Whom: "every request"})
	}
	if !slices.Equal(from.Attributes, to.Attributes) {
		changes = append(changes, change{What: "attributes", From: strings.Join(from.Attributes, ", "), To: strings.Join(to.Attributes, ", "),
			Whom: "no request: only check compares them"})
	}
	changes = append(changes, compareLists(from.Lists, to.Lists)...)
	old := map[string]*policy.Rule{}
	before, after := byhand.Complete(from).([]policy.Rule), byhand.Complete(to).([]policy.Rule)
	for i := range before {
		old[strings.ToLower(before[i].Name)] = &before[i]
	}
	for i := range after {
		r := &after[i]
		name := strings.ToLower(r.Name)
		if o := old[name]; o != nil {
			changes = append(changes, compareRules(o, r)...)
			delete(old, name)
			continue
		}
		what := "added"
		if r.Disabled {
			what = "added, but disabled:"
		}
		changes = append(changes, change{Rule: r.Name, What: what, To: effect(r), Whom: whom(r)})
		// The other fields are reported as differences from a rule without them.
		changes = append(changes, compareRules(&policy.Rule{Match: r.Match, Key: r.Key, Allow: r.Allow, Limit: r.Limit, Share: r.Share, Disabled: r.Disabled}, r)...)
	}
	by := map[string]string{}
	for _, r := range after {
		by[r.Name] = r.ChangedBy
	}
	for i := range changes {
		changes[i].By = by[changes[i].Rule]
	}
	for _, name := range slices.Sorted(maps.Keys(old)) {
		r := old[name]
		changes = append(changes, change{Rule: r.Name, What: "removed; its budgets are kept for ten minutes", From: effect(r), Whom: whom(r)})
	}
	return changes
}

// compareLists returns the lists' changes. It only counts their values, because they may be keys.
func compareLists(from, to map[string]policy.List) (changes []change) {
	for _, name := range names(from, to) {
		o, n := from[name], to[name]
		added, removed := lacking(n.Values, o.Values), lacking(o.Values, n.Values)
		if words.ListText(o) == words.ListText(n) && added+removed == 0 {
			continue
		}
		text := func(l policy.List) string {
			if l.File == "" && l.Values == nil {
				return "none"
			}
			return words.ListText(l)
		}
		changes = append(changes, change{What: fmt.Sprintf("list %s, %d values added and %d removed:", name, added, removed), From: text(o), To: text(n), Whom: "what matches @" + name})
	}
	return changes
}

// lacking counts the values missing in others.
func lacking(values, others []string) (n int) {
	have := make(map[string]bool, len(others))
	for _, v := range others {
		have[v] = true
	}
	for _, v := range values {
		if !have[v] {
			n, have[v] = n+1, true
		}
	}
	return n
}

// whom describes a rule's requests.
func whom(r *policy.Rule) string {
	var parts []string
	parts = append(parts, words.Match(r.Match, true)...)
	if len(r.Match.Route) > 0 {
		parts[0] = "requests to " + parts[0]
	}
	if len(parts) == 0 {
		parts = append(parts, "every request")
	}
	if len(r.Key) > 0 {
		parts = append(parts, "each "+strings.Join(r.Key, " and "))
	}
	return strings.Join(parts, ", ")
}

// compareRules returns the differences between two rules with one name. It compares values, not the texts shown for them.
func compareRules(o, r *policy.Rule) (changes []change) {
	add := func(differs bool, what, from, to, whom string) {
		if differs {
			changes = append(changes, change{Rule: r.Name, What: what, From: from, To: to, Whom: whom})
		}
	}
	all := whom(r)
	add(!sameMatch(o.Match, r.Match), "match", whom(&policy.Rule{Match: o.Match}), whom(&policy.Rule{Match: r.Match}), "who it is for")
	add(!slices.Equal(o.Key, r.Key), "key; budgets start anew", keyText(o), keyText(r), all)
	if o.Allow != r.Allow {
		add(true, "now", effect(o), effect(r), all)
	} else {
		add(o.Limit.Named("") != r.Limit.Named(""), "limit", effect(o), effect(r), all+", without a plan or an override")
	}
	for _, plan := range names(o.Plans, r.Plans) {
		from, to := planLimit(o, plan), planLimit(r, plan)
		add(from != to, "plan "+plan, from.String(), to.String(), "plan "+plan)
	}
	add(o.Share != r.Share, shareChange(o, r), shareText(o.Share), shareText(r.Share), all+", without a plan or an override")
	for _, plan := range names(o.Shares, r.Shares) {
		from, to := planShare(o, plan), planShare(r, plan)
		add(from != to, "share of plan "+plan, shareText(from), shareText(to), "plan "+plan)
	}
	before, after := overrides(o), overrides(r)
	for _, key := range names(before, after) {
		from, to := cmp.Or(before[key], "none"), cmp.Or(after[key], "none")
		add(from != to, "override of "+key, from, to, key)
	}
	add(!sameSet(lower(o.Instead), lower(r.Instead)), "instead of", insteadText(o), insteadText(r), all)
	add(o.LimitFrom != r.LimitFrom, "limit_from", cmp.Or(o.LimitFrom, "no attribute"), cmp.Or(r.LimitFrom, "no attribute"), all)
	add(!sameSet(o.Notify, r.Notify), "notify", cmp.Or(words.List(o.Notify, ", "), "never"), cmp.Or(words.List(r.Notify, ", "), "never"), all)
	add(words.Cost(o.Cost) != words.Cost(r.Cost), "cost", words.Cost(o.Cost), words.Cost(r.Cost), all)
	former := words.Of(o, true)
	for i, w := range words.Of(r, true) {
		add(former[i].Text != w.Text, w.Name, cmp.Or(former[i].Text, "none"), cmp.Or(w.Text, "none"), all)
	}
	for _, f := range []struct {
		name     string
		from, to bool
	}{{"optional", o.Optional, r.Optional}, {"shadow", o.Shadow, r.Shadow}, {"disabled", o.Disabled, r.Disabled}} {
		add(f.from != f.to, f.name, fmt.Sprint(f.from), fmt.Sprint(f.to), all)
	}
	return changes
}

// effect describes a rule's effect on its requests.
func effect(r *policy.Rule) string {
	if r.Allow {
		return "exempt from all rules"
	}
	if r.Share > 0 {
		return fmt.Sprintf("%v, shared by all keys, share %d", r.Limit, r.Share)
	}
	return r.Limit.String()
}

// question is one kind of condition on attributes.
type question struct {
	how    string
	values map[string][]string
}

func conditions(m policy.Match) []question {
	return []question{{" ", m.Attributes}, {" not ", m.Not}, {" beginning with ", m.Prefix}, {" ending with ", m.Suffix}}
}

// sameMatch reports whether two rules apply to the same requests.
// It ignores the order of patterns and values, and repeated ones.
func sameMatch(a, b policy.Match) bool {
	if !sameSet(a.Route, b.Route) || !sameSet(a.Absent, b.Absent) {
		return false
	}
	other := conditions(b)
	for i, q := range conditions(a) {
		if len(q.values) != len(other[i].values) {
			return false
		}
		for name, values := range q.values {
			if o, ok := other[i].values[name]; !ok || !sameSet(values, o) {
				return false
			}
		}
	}
	return true
}

func sameSet(a, b []string) bool {
	a, b = slices.Clone(a), slices.Clone(b)
	slices.Sort(a)
	slices.Sort(b)
	return slices.Equal(slices.Compact(a), slices.Compact(b))
}

func keyText(r *policy.Rule) string {
	if len(r.Key) == 0 {
		return "one budget for all"
	}
	return strings.Join(r.Key, " and ")
}

// insteadText lists the rules replaced by a rule.
func insteadText(r *policy.Rule) string { return cmp.Or(words.List(r.Instead, ", "), "no rule") }

func lower(names []string) []string {
	out := make([]string, len(names))
	for i, name := range names {
		out[i] = strings.ToLower(name)
	}
	return out
}

// names returns all keys of two maps, in order.
func names[V any](a, b map[string]V) []string {
	all := maps.Clone(a)
	if all == nil {
		all = map[string]V{}
	}
	maps.Copy(all, b)
	return slices.Sorted(maps.Keys(all))
}

// planLimit returns a plan's own limit, or otherwise the rule's.
func planLimit(r *policy.Rule, plan string) ratelimit.Limit {
	if l, ok := r.Plans[plan]; ok {
		return l.Named("")
	}
	return r.Limit.Named("")
}

// planShare returns a plan's own weight, or otherwise the rule's.
func planShare(r *policy.Rule, plan string) int { return cmp.Or(r.Shares[plan], r.Share) }

// shareChange describes a change in a rule's weight.
func shareChange(o, r *policy.Rule) string {
	if (o.Share == 0) != (r.Share == 0) {
		return "share; budgets start anew"
	}
	return "share"
}

// shareText returns a weight's text.
func shareText(weight int) string {
	if weight == 0 {
		return "a budget for each key"
	}
	return strconv.Itoa(weight)
}

// overrides returns single keys' limits and weights as texts, by the keys' texts.
// Different keys have different texts. An override with a time has an entry of its own.
func overrides(r *policy.Rule) map[string]string {
	all := map[string]string{}
	for _, o := range r.Overrides {
		text := o.Limit.Named("").String()
		if o.Share > 0 {
			text = "share " + strconv.Itoa(o.Share)
		}
		all[words.List(o.Key, ", ")+words.Time(&o)] = text
	}
	return all
}
