package policy

import (
	"cmp"
	"encoding/json"
	"slices"
	"time"

	"go.yaml.in/yaml/v4"

	"github.com/weir-go/ratelimit"
	"github.com/weir-go/ratelimit/policy/internal/jsontree"
)

// Set is the content of a policy file. The zero Set limits nothing. A Set in force must not be changed.
type Set struct {
	// Version is any text up to 256 bytes.
	Version string `yaml:"version,omitempty" json:"version,omitempty"`
	// KillSwitch lets every request pass, uncharged.
	KillSwitch bool `yaml:"kill_switch,omitempty" json:"kill_switch,omitempty"`
	// Attributes lists the attributes that the program supplies. If it is set, [Check] warns of other attributes.
	Attributes []string `yaml:"attributes,omitempty" json:"attributes,omitempty"`
	// Lists are values that a [Match] can name, even in costs. For example, "@bad" stands for the values
	// in the list bad. For "ip" the values are addresses and networks. "@@bad" is the text "@bad".
	Lists    map[string]List `yaml:"lists,omitempty" json:"lists,omitempty"`
	Defaults *Defaults       `yaml:"defaults,omitempty" json:"defaults,omitempty"`
	// Rules are the rules. All matching rules apply, in this order.
	Rules []Rule `yaml:"rules" json:"rules"`
}

// MarshalYAML returns the file's content, as JSON has it.
func (s Set) MarshalYAML() (any, error) {
	if s.Rules == nil {
		s.Rules = []Rule{} // in YAML, null is an unfinished file
	}
	return inYAML(s)
}

// inYAML returns the tree of a value's JSON.
func inYAML(v any) (*yaml.Node, error) {
	data, err := json.Marshal(v)
	if err != nil {
		return nil, err
	}
	n, err := jsontree.Read(data)
	if err == nil {
		err = quote(n)
	}
	return n, err
}

// quote puts some of a tree's texts in quotes. Without them, some
// readers of YAML would take a text for another value, for example yes.
func quote(n *yaml.Node) error {
	if n.Kind == yaml.ScalarNode && n.Tag == "!!str" {
		return n.Encode(n.Value)
	}
	for _, inner := range n.Content {
		if err := quote(inner); err != nil {
			return err
		}
	}
	return nil
}

// Defaults are the values for a [Rule]'s missing fields. A rule with Allow
// uses only their Match, and a rule with Share does not use their Plans.
type Defaults struct {
	Match Match                      `yaml:"match,omitempty" json:"match,omitzero"`
	Key   []string                   `yaml:"key,omitempty" json:"key,omitempty"`
	Limit ratelimit.Limit            `yaml:"limit,omitempty" json:"limit,omitzero"`
	Plans map[string]ratelimit.Limit `yaml:"plans,omitempty" json:"plans,omitempty"`
	Cost  Cost                       `yaml:"cost,omitempty" json:"cost,omitzero"`
}

// complete returns the rules with the defaults filled in. Callers must not change them.
func (s *Set) complete() []Rule {
	if s.Defaults == nil {
		return s.Rules
	}
	d, rules := s.Defaults, slices.Clone(s.Rules)
	for i := range rules {
		r := &rules[i]
		if r.leavesOut("match") {
			r.Match = d.Match
		}
		if r.Allow {
			continue
		}
		if r.leavesOut("key") {
			r.Key = d.Key
		}
		if r.leavesOut("limit") {
			r.Limit = d.Limit
		}
		if r.leavesOut("plans") && r.Share == 0 {
			r.Plans = d.Plans
		}
		if r.leavesOut("cost") {
			r.Cost = d.Cost
		}
	}
	return rules
}

// Rule is a limit, and a condition for its requests.
type Rule struct {
	// Name is a letter, followed by letters, digits, "_" and "-", at most 128 characters
	// in all. Names are the same if they differ only in case. Budgets belong to a name.
	Name        string `yaml:"name" json:"name"`
	Description string `yaml:"description,omitempty" json:"description,omitempty"`
	// Budget names the budgets if their name is not Name. For example, a renamed rule keeps its spending
	// under its old name. No other rule may have budgets with this name. It is written like a Name.
	Budget string `yaml:"budget,omitempty" json:"budget,omitempty"`
	// From and Until bound when the rule is in force: from From, and before Until. A zero time means no bound. At other times
	// the rule counts as Disabled. The clock is this machine's, or [MemoryOptions.Clock] if it has a method Wall() time.Time.
	From  time.Time `yaml:"from,omitempty" json:"from,omitzero"`
	Until time.Time `yaml:"until,omitempty" json:"until,omitzero"`
	Match Match     `yaml:"match,omitempty" json:"match,omitzero"`
	// Key names a key's attributes. If empty, all requests share one budget. "ip/24" cuts IPv4 addresses to
	// 24 bits. "wildcard:id" is the text for {id} in the rule's own routes, as [net/http.Request.PathValue]
	// returns it; each of the routes must have {id}. A Match and a Cost may name it like an attribute, too.
	Key []string `yaml:"key,omitempty" json:"key,omitzero"`
	// Allow exempts matching requests from all rules: they pass uncharged. Such a rule has only a Match.
	Allow bool `yaml:"allow,omitempty" json:"allow,omitempty"`
	// Instead names the rules that this rule replaces for a request. It replaces them only
	// if it is not a Shadow, and if it matches under every reading of the request's path
	// (see [HTTP]). If it is Optional, the request must also have the rule's attributes.
	Instead []string `yaml:"instead,omitempty" json:"instead,omitempty"`
	// Limit is for keys without another limit. Its Name is ignored.
	Limit ratelimit.Limit `yaml:"limit,omitempty" json:"limit,omitzero"`
	// Plans are limits by the attribute "plan". Another plan keeps the spending.
	Plans map[string]ratelimit.Limit `yaml:"plans,omitempty" json:"plans,omitzero"`
	// If Share is positive, all keys share Limit by weight, and have no budgets of their own: see package fair. A
	// key without its own weight has the weight Share, at most 2^20. Limit must be a token bucket. Key must not
	// be empty, and LimitFrom and Notify must be. Plans and Overrides have no limits except [ratelimit.Unlimited]
	// and [ratelimit.Blocked], whose keys do not share Limit. A changed Limit or weight keeps the spending, and
	// applies at once to waiting calls. If a rule gets or loses Share, its budgets start fresh.
	Share int `yaml:"share,omitempty" json:"share,omitempty"`
	// Shares are weights by the attribute "plan", in a rule with Share.
	Shares map[string]int `yaml:"shares,omitempty" json:"shares,omitempty"`
	// LimitFrom names an attribute with the limit for a request's key. The value is a limit's text, or a number
	// that scales Limit to so many units. For example, 10 under "token-bucket 100/s burst 200" gives 10/s burst
	// 20. The number 0 is [ratelimit.Blocked]. LimitFrom takes precedence over Plans. If the attribute is
	// missing, Plans and Limit apply. If its value is not a limit, Limit applies, and [Policies.Stats] counts
	// the value. Only the program may supply the attribute: headers, queries and cookies are refused.
	LimitFrom string `yaml:"limit_from,omitempty" json:"limit_from,omitempty"`
	// Notify lists shares of the limit, such as "80%". If a charge crosses one, it calls [Options.OnThreshold].
	Notify []string `yaml:"notify,omitempty" json:"notify,omitempty"`
	// Grace allows a share of the limit in addition. For example, with "10%" the rule denies
	// above 110 % of the units of a window or of a bucket's burst, rounded down. Limit,
	// Remaining and Notify refer to the limit itself, and Debt is the spending above it.
	Grace string `yaml:"grace,omitempty" json:"grace,omitempty"`
	// Overrides are single keys' limits. They take precedence over plans and LimitFrom.
	Overrides []Override `yaml:"overrides,omitempty" json:"overrides,omitempty"`
	// Cost replaces the caller's cost, unless the caller's is 0.
	Cost Cost `yaml:"cost,omitempty" json:"cost,omitzero"`
	// Costs apply to some requests: the first whose Match matches replaces Cost. If a path
	// can be read in several ways (see [HTTP]) with several costs, the highest applies.
	Costs []Cost `yaml:"costs,omitempty" json:"costs,omitempty"`
	// Charge is "always" or empty. With "always" the rule's cost is charged even if this rule or
	// another one denies the request. If necessary the cost becomes a debt, limited to the amount
	// regained in 100 years. So if a denied client continues, it is denied for longer. A cost of
	// 0 is denied while the budget is exhausted. Other rules are charged all or none, as usual.
	//
	// Use it if costs become known only afterwards. For example, decide with a cost of 0, and charge the tokens
	// later. Take and Reserve charge always. Wait charges only a passing cost. An allowed reservation's charge is
	// settled as any other. With a store, a denial's charge takes one more round trip. Its figures take another one
	// under sliding windows, leaky buckets and, with a debt, calendars. After an error nothing is charged, except
	// after [ratelimit.ErrExceedsLimit]. The rule must have neither Share nor a [ratelimit.Concurrent] limit.
	Charge string `yaml:"charge,omitempty" json:"charge,omitempty"`
	// Actual names an attribute with the real cost, a whole number from 0. When
	// a [Policies.Reserve] is settled, it is used instead of Settle's argument.
	Actual string `yaml:"actual,omitempty" json:"actual,omitempty"`
	// Optional skips the rule for requests without an attribute of Key or Cost. Otherwise they fail.
	Optional bool `yaml:"optional,omitempty" json:"optional,omitempty"`
	// Shadow makes the rule count and report, but never deny.
	Shadow bool `yaml:"shadow,omitempty" json:"shadow,omitempty"`
	// Disabled takes the rule out of force, and keeps its spending.
	Disabled  bool   `yaml:"disabled,omitempty" json:"disabled,omitempty"`
	ChangedBy string `yaml:"changed_by,omitempty" json:"changed_by,omitempty"`
}

// MarshalYAML returns the fields, as JSON has them.
func (r Rule) MarshalYAML() (any, error) { return inYAML(r) }

// Override is a single key's limit, or its weight in a rule with Share.
type Override struct {
	Key   []string        `yaml:"key" json:"key"` // one for each attribute of the rule's Key
	Limit ratelimit.Limit `yaml:"limit,omitempty" json:"limit,omitzero"`
	Share int             `yaml:"share,omitempty" json:"share,omitempty"` // in place of Limit
	// From and Until bound when the limit is in force, as in a Rule. A key may have several limits if their times
	// do not overlap; a limit without a time applies at all other times. With Share, From and Until are zero.
	From  time.Time `yaml:"from,omitempty" json:"from,omitzero"`
	Until time.Time `yaml:"until,omitempty" json:"until,omitzero"`
}

// chargeAlways is the only value of [Rule.Charge].
const chargeAlways = "always"

// always reports whether the rule is charged even for denials.
func (r *Rule) always() bool { return r.Charge == chargeAlways }

// holds reports whether a limit of the rule is [ratelimit.Concurrent].
func (r *Rule) holds() bool {
	held := func(l ratelimit.Limit) bool { return l.Algorithm == ratelimit.AlgorithmConcurrent }
	for _, l := range r.Plans {
		if held(l) {
			return true
		}
	}
	return held(r.Limit) || slices.ContainsFunc(r.Overrides, func(o Override) bool { return held(o.Limit) })
}

// budgets returns the name of the rule's budgets.
func (r *Rule) budgets() string { return cmp.Or(r.Budget, r.Name) }

// leavesOut reports whether a rule takes one of its fields from the defaults.
func (r *Rule) leavesOut(field string) bool {
	switch field {
	case "match":
		return r.Match.leftOut()
	case "key":
		return r.Key == nil
	case "limit":
		return r.Limit == ratelimit.Limit{}
	case "plans":
		return r.Plans == nil
	case "cost":
		return r.Cost == Cost{}
	}
	return false
}
