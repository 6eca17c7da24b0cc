package policy_test

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"math/rand/v2"
	"net/netip"
	"reflect"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/weir-go/ratelimit"
	"github.com/weir-go/ratelimit/internal/dev/testsize"
	"github.com/weir-go/ratelimit/keyfunc"
	"github.com/weir-go/ratelimit/policy"
	"github.com/weir-go/ratelimit/ratelimittest"
)

var histories = flag.Int("histories", testsize.Of(30, 2000), "random histories of rules that are compared with a model")

// TestPoliciesAgreeWithAModel makes random requests, changes of rules, and manual corrections. It compares the
// policies with a model evaluating each rule by itself. Time stands still, and a rule's limits are all of one kind,
// so a key's spending is two numbers: see budget. For a longer run: go test . -run AgreeWithAModel -histories 20000.
func TestPoliciesAgreeWithAModel(t *testing.T) {
	n := *histories
	for seed := range n {
		if play(t, uint64(seed)); t.Failed() {
			return
		}
	}
}

// modelLimit is a limit of the model. Its spending is never regained.
type modelLimit int

const (
	modelUnlimited modelLimit = -1
	modelBlocked   modelLimit = 0
)

func (l modelLimit) real(calendar bool) ratelimit.Limit {
	switch {
	case l == modelUnlimited:
		return ratelimit.Unlimited()
	case l == modelBlocked:
		return ratelimit.Blocked()
	case calendar:
		return ratelimit.Calendar(int(l), ratelimit.Month("UTC", 1))
	}
	return ratelimit.FixedWindow(ratelimit.PerHour(int(l)))
}

// modelRule is a rule of the model, with its defaults filled in.
type modelRule struct {
	policy.Rule
	limit     modelLimit
	plans     map[string]modelLimit
	overrides map[string]modelLimit // overrides are found by the joined key
}

type budgetOf struct{ rule, key string }

// budget is a tracked key's spending. Time stands still, so nothing is ever
// regained. Units set aside by a lowered limit count again after a raise.
type budget struct {
	limit modelLimit // the key's limit, never unlimited or blocked, because these track nothing
	spent int        // the units counted under the limit; the ones above it are a debt
	aside int        // the units not counted under the limit
}

// under returns the budget under another limit for tracked keys. At most that limit's capacity counts, and the debt.
func (b budget) under(l modelLimit) budget {
	if l == b.limit {
		return b
	}
	total, debt := b.spent+b.aside, max(0, b.spent-int(b.limit))
	spent := min(total, int(l)+debt)
	return budget{limit: l, spent: spent, aside: total - spent}
}

// adjusted returns the budget after an adjustment. A grant above the counted units lowers the units set aside.
func (b budget) adjusted(delta int) budget {
	if over := -delta - b.spent; over > 0 {
		b.aside -= min(b.aside, over)
	}
	b.spent = max(0, b.spent+delta)
	return b
}

// model evaluates rules in the plainest way.
type model struct {
	rules  []modelRule
	kill   bool
	spent  map[budgetOf]budget
	denied map[policy.Denials]int64 // denials as keys, without their counts
}

// play runs one history.
func play(t *testing.T, seed uint64) {
	rnd := rand.New(rand.NewPCG(testsize.Seed(seed), 25))
	m := &model{spent: map[budgetOf]budget{}, denied: map[policy.Denials]int64{}}
	calendars := map[string]bool{}
	var decisions *policy.Decision
	set := m.draw(rnd, calendars)
	clock := new(ratelimittest.Clock)
	opts := &policy.Options{Engine: policy.Memory(&policy.MemoryOptions{Clock: clock})}
	if seed%2 == 0 {
		opts.OnDecision = func(d policy.Decision) { decisions = &d }
	}
	p, err := policy.New(set, opts)
	require.NoError(t, err, "seed %d", seed)
	for step := range 150 {
		where := fmt.Sprintf("seed %d, step %d", seed, step)
		r, cost := drawRequest(rnd), rnd.IntN(5)
		switch rnd.IntN(12) {
		case 0:
			set = m.draw(rnd, calendars)
			require.NoError(t, p.Update(set), where)
		case 1:
			m.look(t, p, rnd, where)
		default:
			decisions = nil
			want := m.take(r, cost)
			got, err := decideBy(rnd.IntN(3), p, r, cost)
			require.Equal(t, want.allowed, got, "%s: %v costs %d: %v\n%+v", where, r, cost, err, m.rules)
			for _, is := range []error{keyfunc.ErrNoKey, keyfunc.ErrMalformedKey, keyfunc.ErrMisconfigured, ratelimit.ErrExceedsLimit} {
				if err != nil || want.err == nil {
					require.Equal(t, want.err == is, errors.Is(err, is), "%s: %v costs %d: %v\n%+v", where, r, cost, err, m.rules)
				}
			}
			if opts.OnDecision != nil {
				require.NotNil(t, decisions, where)
				var rules []string
				for _, rd := range decisions.Rules {
					rules = append(rules, rd.Rule)
				}
				require.Equal(t, want.rules, rules, "%s: %v", where, r)
			}
		}
		m.agrees(t, p, r, where)
	}
	m.deniedAgrees(t, p, seed)
}

// decideBy decides by one of the charging methods. For a method
// without an error, it returns only whether the request was allowed.
func decideBy(method int, p *policy.Policies, r policy.Request, cost int) (bool, error) {
	switch method {
	case 0:
		d, err := p.Take(context.Background(), r, cost)
		return d.Allowed && err == nil, err
	case 1:
		res, err := p.Reserve(context.Background(), r, cost, 0)
		return res.Allowed && err == nil, err
	}
	return p.Allow(r, cost), nil
}

func some[T any](rnd *rand.Rand, of ...T) T { return of[rnd.IntN(len(of))] }

// draw draws random rules, puts them in force in the model, and returns them.
func (m *model) draw(rnd *rand.Rand, calendars map[string]bool) *policy.Set {
	set := &policy.Set{Version: strconv.Itoa(rnd.IntN(1000)), KillSwitch: rnd.IntN(12) == 0}
	var d modelRule
	if rnd.IntN(2) == 0 {
		set.Defaults = new(policy.Defaults)
		if rnd.IntN(2) == 0 {
			set.Defaults.Match = drawMatch(rnd)
		}
		if rnd.IntN(2) == 0 {
			set.Defaults.Key = []string{"user"}
		}
		if rnd.IntN(2) == 0 {
			d.plans = map[string]modelLimit{"pro": 9}
			set.Defaults.Plans = map[string]ratelimit.Limit{"pro": modelLimit(9).real(false)}
		}
		if rnd.IntN(3) == 0 {
			set.Defaults.Cost = drawCost(rnd)
		}
	}
	m.rules, m.kill = nil, set.KillSwitch
	for _, name := range rnd.Perm(7)[:rnd.IntN(7)] {
		r := policy.Rule{Name: fmt.Sprintf("r%d", name), Disabled: rnd.IntN(8) == 0}
		if rnd.IntN(4) == 0 {
			r.Name = strings.ToUpper(r.Name)
		}
		if rnd.IntN(4) > 0 {
			r.Match = drawMatch(rnd)
		}
		c := modelRule{Rule: r, plans: map[string]modelLimit{}, overrides: map[string]modelLimit{}}
		if rnd.IntN(12) == 0 {
			c.Allow = true
			m.add(set, c, modelRule{})
			continue
		}
		// The model can only count a budget if its rule's limits stay of one kind.
		calendar, known := calendars[strings.ToLower(r.Name)]
		if !known {
			calendar = rnd.IntN(4) == 0
			calendars[strings.ToLower(r.Name)] = calendar
		}
		limit := func() modelLimit { return some(rnd, modelUnlimited, modelBlocked, 1, 2, 3, 5, 8, 13, 21) }
		c.limit = limit()
		c.Limit = c.limit.real(calendar)
		if rnd.IntN(4) > 0 {
			c.Key = some(rnd, nil, []string{}, []string{"user"}, []string{"user", "tenant"}, []string{"ip"}, []string{"ip/24"}, []string{"ip/16", "user"})
		}
		c.Optional, c.Shadow = rnd.IntN(3) == 0, rnd.IntN(4) == 0
		if rnd.IntN(3) == 0 {
			c.Cost = drawCost(rnd)
		}
		if rnd.IntN(2) == 0 || calendar { // inherit no plans, because their limits are of another kind
			c.Plans = map[string]ratelimit.Limit{}
			for _, plan := range []string{"free", "pro"} {
				if rnd.IntN(2) == 0 {
					c.plans[plan] = limit()
					c.Plans[plan] = c.plans[plan].real(calendar)
				}
			}
		}
		key := c.Key
		if key == nil && set.Defaults != nil {
			key = set.Defaults.Key
		}
		if len(key) > 0 && rnd.IntN(3) == 0 {
			values := make([]string, len(key))
			for i, part := range key {
				values[i] = map[string]string{"user": some(rnd, "ann", "bob"), "tenant": "acme", "ip": "192.0.2.7", "ip/24": "192.0.2.0/24", "ip/16": "192.0.0.0/16"}[part]
			}
			l := limit()
			c.overrides[strings.Join(values, "|")] = l
			c.Overrides = []policy.Override{{Key: values, Limit: l.real(calendar)}}
		}
		m.add(set, c, d)
	}
	return set
}

// add adds a rule to the set as it is, and to the model with the defaults.
func (m *model) add(set *policy.Set, c, defaults modelRule) {
	set.Rules = append(set.Rules, c.Rule)
	if d := set.Defaults; d != nil {
		if reflect.DeepEqual(c.Match, policy.Match{}) {
			c.Match = d.Match
		}
		if !c.Allow {
			if c.Key == nil {
				c.Key = d.Key
			}
			if c.Plans == nil {
				c.Plans, c.plans = d.Plans, defaults.plans
			}
			if c.Cost == (policy.Cost{}) {
				c.Cost = d.Cost
			}
		}
	}
	m.rules = append(m.rules, c)
}

func drawCost(rnd *rand.Rand) policy.Cost {
	return some(rnd, policy.Cost{Number: 1}, policy.Cost{Number: 3}, policy.Cost{Attribute: "tokens"}, policy.Cost{Caller: true})
}

func drawMatch(rnd *rand.Rand) (m policy.Match) {
	values := func() map[string][]string {
		name := some(rnd, "user", "region", "ip")
		v := []string{some(rnd, "ann", "eu", "us", "")}
		if name == "ip" {
			v = []string{some(rnd, "192.0.2.7", "192.0.2.0/24", "192.0.0.0/16", "2001:db8::/32")}
		}
		return map[string][]string{name: append(v, "other")}
	}
	parts := func() map[string][]string {
		return map[string][]string{some(rnd, "path", "user", "tenant"): {some(rnd, "/a", "an", "b", "e")}}
	}
	if rnd.IntN(3) == 0 {
		m.Route = some(rnd, []string{"/"}, []string{"/a"}, []string{"GET /a/"}, []string{"POST /a/{id}", "/b"}, []string{"example.org/a", "/{x}"})
	}
	if rnd.IntN(5) == 0 {
		m.Attributes = values()
	}
	if rnd.IntN(5) == 0 {
		m.Not = values()
	}
	if rnd.IntN(8) == 0 {
		m.Prefix = parts()
	}
	if rnd.IntN(8) == 0 {
		m.Suffix = parts()
	}
	if rnd.IntN(8) == 0 {
		m.Absent = []string{some(rnd, "user", "region", "tenant")}
	}
	return m
}

func drawRequest(rnd *rand.Rand) attrs {
	r := attrs{"path": some(rnd, "/", "/a", "/b", "/a/7", "/a/7/8"), "method": some(rnd, "GET", "POST", "HEAD"), "host": some(rnd, "example.org", "example.com")}
	for name, values := range map[string][]string{
		"user": {"ann", "bob", "cleo"}, "tenant": {"acme", "tools"}, "region": {"eu", "us"}, "plan": {"free", "pro", "gold"},
		"ip": {"192.0.2.7", "192.0.2.8", "::ffff:192.0.2.7", "192.0.9.1", "2001:db8::1", "2001:db8::2", "nobody"}, "tokens": {"0", "1", "4", "-1", "many", "99999999999999999999"},
	} {
		switch rnd.IntN(10) {
		case 0:
		case 1:
			r[name] = ""
		default:
			r[name] = values[rnd.IntN(len(values))]
		}
	}
	return r
}

// verdict is the model's decision on a request.
type verdict struct {
	allowed bool
	err     error
	rules   []string // the rules with reported decisions
}

// query is one rule's part in the decision on a request.
type query struct {
	modelRule
	key   string
	limit modelLimit
	cost  int
}

func (m *model) take(r attrs, cost int) (v verdict) {
	if m.kill {
		return verdict{allowed: true}
	}
	var all []query
	for _, rule := range m.rules {
		if rule.Disabled || !matches(rule.Match, r) {
			continue
		}
		if rule.Allow {
			return verdict{allowed: true, rules: []string{rule.Name}}
		}
		a, applies, err := rule.requests(r, cost)
		switch {
		case err != nil && rule.Shadow, err == nil && !applies:
			continue
		case err != nil && v.err == nil:
			v.err = err
		}
		all = append(all, a)
	}
	if v.err != nil {
		return v
	}
	v.allowed = true
	never := slices.ContainsFunc(all, func(a query) bool { return !a.Shadow && a.exceeds() })
	for _, a := range all {
		v.rules = append(v.rules, a.Name)
		if !a.Shadow {
			a.move(m, cost == 0 || never)
		}
		if !a.Shadow && cost >= 0 {
			if a.exceeds() {
				v.err, v.allowed = ratelimit.ErrExceedsLimit, false
			}
			v.allowed = v.allowed && a.fits(m)
		}
	}
	for _, a := range all {
		if (!v.allowed || a.Shadow) && !a.fits(m) {
			m.denied[policy.Denials{Rule: a.Name, Key: a.reported(), Shadow: a.Shadow}]++
		}
		if v.allowed && cost > 0 && a.limit > 0 && !a.exceeds() {
			if a.Shadow {
				a.move(m, false)
			}
			if b := a.counted(m); a.cost > 0 && a.fits(m) {
				m.spent[a.budget()] = b.adjusted(a.cost)
			}
		}
	}
	return v
}

func (a query) budget() budgetOf { return budgetOf{strings.ToLower(a.Name), a.key} }

func (a query) exceeds() bool { return a.limit != modelUnlimited && a.cost > int(a.limit) }

func (a query) fits(m *model) bool {
	return a.cost == 0 || a.limit == modelUnlimited || !a.exceeds() && a.counted(m).spent+a.cost <= int(a.limit)
}

// counted returns the spending under the request's limit. An untracked key has no spending.
func (a query) counted(m *model) budget {
	if b, ok := m.spent[a.budget()]; ok && a.limit > 0 {
		return b.under(a.limit)
	}
	return budget{limit: a.limit}
}

// move puts a tracked key under the request's limit. All decisions do so for the rules that can deny them,
// and allowed decisions also for shadows. If a request charges no key, a key without spending is not moved.
func (a query) move(m *model, uncharged bool) {
	b, ok := m.spent[a.budget()]
	if !ok || a.limit <= 0 || uncharged && b.spent+b.aside == 0 {
		return
	}
	m.spent[a.budget()] = b.under(a.limit)
}

// reported returns the key in its reported form. If it has several values, each value has its length as a prefix.
func (a query) reported() string {
	values := strings.Split(a.key, "|")
	if len(values) < 2 {
		return a.key
	}
	text := ""
	for _, v := range values {
		text += fmt.Sprintf("%d:%s", len(v), v)
	}
	return text
}

// requests returns a rule's query for a request.
func (rule modelRule) requests(r attrs, cost int) (a query, applies bool, err error) {
	a = query{modelRule: rule, cost: cost}
	missing := false
	var values []string
	fail := func(is error) {
		if err == nil && !missing {
			err = is
		}
		missing = missing || is == keyfunc.ErrNoKey
	}
	for _, part := range rule.Key {
		name, bits, cut := strings.Cut(part, "/")
		v := r[name]
		if v == "" {
			fail(keyfunc.ErrNoKey)
			break
		}
		addr, wrong := netip.ParseAddr(v)
		if cut && wrong != nil {
			fail(keyfunc.ErrMalformedKey)
			break
		}
		if n, _ := strconv.Atoi(bits); cut && addr.Unmap().Is4() {
			v = netip.PrefixFrom(addr.Unmap(), n).Masked().String()
		} else if name == "ip" && addr.Unmap().Is4() {
			v = addr.Unmap().String()
		} else if name == "ip" && wrong == nil {
			v = netip.PrefixFrom(addr, 64).Masked().Addr().String()
		}
		values = append(values, v)
	}
	a.key = strings.Join(values, "|")
	if err == nil && (rule.Cost.Number > 0 || rule.Cost.Attribute != "") && cost > 0 {
		if a.cost = rule.Cost.Number; rule.Cost.Attribute != "" {
			n, wrong := strconv.Atoi(r[rule.Cost.Attribute])
			switch {
			case r[rule.Cost.Attribute] == "":
				fail(keyfunc.ErrNoKey)
			case wrong != nil || n < 0:
				fail(keyfunc.ErrMisconfigured)
			}
			a.cost = n
		}
	}
	if err != nil {
		if err == keyfunc.ErrNoKey && rule.Optional {
			return a, false, nil
		}
		return a, false, err
	}
	a.limit = rule.limitOf(a.key, r["plan"])
	return a, true, nil
}

func (rule modelRule) limitOf(key, plan string) modelLimit {
	if l, ok := rule.overrides[key]; ok {
		return l
	}
	if l, ok := rule.plans[plan]; ok {
		return l
	}
	return rule.limit
}

// matches evaluates a match without an index.
func matches(m policy.Match, r attrs) bool {
	has := func(name string, values []string, holds func(v, value string) bool) bool {
		v, ok := r[name]
		return ok && slices.ContainsFunc(values, func(value string) bool { return holds(v, value) })
	}
	equal := func(name string) func(v, value string) bool {
		return func(v, value string) bool {
			return v == value || name == "ip" && inNetwork(value, v)
		}
	}
	if m.Route != nil && !slices.ContainsFunc(m.Route, func(route string) bool { return routed(route, r) }) {
		return false
	}
	for name, values := range m.Attributes {
		if !has(name, values, equal(name)) {
			return false
		}
	}
	for name, values := range m.Not {
		if has(name, values, equal(name)) {
			return false
		}
	}
	for name, values := range m.Prefix {
		if !has(name, values, strings.HasPrefix) {
			return false
		}
	}
	for name, values := range m.Suffix {
		if !has(name, values, strings.HasSuffix) {
			return false
		}
	}
	for _, name := range m.Absent {
		if r[name] != "" {
			return false
		}
	}
	return true
}

// inNetwork reports whether the address v is in a network, or equals the address value.
func inNetwork(value, v string) bool {
	addr, err := netip.ParseAddr(v)
	if err != nil {
		return false
	}
	if one, err := netip.ParseAddr(value); err == nil {
		return one.Unmap() == addr.Unmap()
	}
	network, err := netip.ParsePrefix(value)
	return err == nil && network.Contains(addr.Unmap())
}

// routed reports whether a request matches a pattern of drawMatch. Its cases are written by hand.
func routed(route string, r attrs) bool {
	path, get := r["path"], r["method"] == "GET" || r["method"] == "HEAD"
	switch route {
	case "/":
		return true
	case "/a", "/b":
		return path == route
	case "GET /a/":
		return get && strings.HasPrefix(path, "/a/")
	case "POST /a/{id}":
		return r["method"] == "POST" && path == "/a/7"
	case "example.org/a":
		return r["host"] == "example.org" && path == "/a"
	case "/{x}":
		return strings.Count(path, "/") == 1 && path != "/"
	}
	panic(route)
}

// subject names a key's budget.
func (rule modelRule) subject(key, plan string) policy.Subject {
	s := policy.Subject{Rule: strings.ToLower(rule.Name), Plan: plan}
	if len(rule.Key) > 0 {
		s.Key = strings.Split(key, "|")
	}
	return s
}

// look resets and adjusts budgets, as operators do.
func (m *model) look(t *testing.T, p *policy.Policies, rnd *rand.Rand, where string) {
	r := drawRequest(rnd)
	for _, rule := range m.rules {
		a, applies, err := rule.requests(r, 0)
		if rule.Allow || err != nil || !applies {
			continue
		}
		s := rule.subject(a.key, r["plan"])
		if rnd.IntN(2) == 0 {
			require.NoError(t, p.Reset(t.Context(), s), where)
			delete(m.spent, a.budget())
			continue
		}
		delta := rnd.IntN(9) - 4
		b, tracked := m.spent[a.budget()]
		if err := p.Adjust(t.Context(), s, delta); a.limit > 0 && -delta > b.spent {
			require.ErrorIs(t, err, ratelimit.ErrExceedsLimit, where)
		} else {
			require.NoError(t, err, where)
		}
		if a.limit <= 0 || !tracked && delta <= 0 {
			continue
		}
		if !tracked {
			b.limit = a.limit
		}
		m.spent[a.budget()] = b.adjusted(delta) // a tracked key keeps its present limit
	}
}

// agrees compares the remaining budgets for a request.
func (m *model) agrees(t *testing.T, p *policy.Policies, r attrs, where string) {
	for _, rule := range m.rules {
		a, applies, err := rule.requests(r, 0)
		if rule.Allow || err != nil || !applies {
			continue
		}
		d, err := p.Peek(t.Context(), rule.subject(a.key, r["plan"]), 0)
		require.NoError(t, err, where)
		want := ratelimit.Unlimited().Capacity()
		if a.limit != modelUnlimited {
			want = max(0, int(a.limit)-a.counted(m).spent)
		}
		require.Equal(t, want, d.Remaining, "%s: %s of %q\n%+v", where, rule.Name, a.key, rule)
	}
}

// deniedAgrees compares the denials. There are so few keys that the counts are exact.
func (m *model) deniedAgrees(t *testing.T, p *policy.Policies, seed uint64) {
	want := map[policy.Denials]int64{}
	for d, n := range m.denied {
		if i := slices.IndexFunc(m.rules, func(r modelRule) bool { return strings.EqualFold(r.Name, d.Rule) }); i >= 0 {
			d.Rule = m.rules[i].Name
			want[d] += n
		}
	}
	got := map[policy.Denials]int64{}
	for _, d := range p.Denied(10_000) {
		n := d.Count
		require.Zero(t, d.Error)
		d.Count = 0
		got[d] = n
	}
	require.Equal(t, want, got, "seed %d", seed)
}
