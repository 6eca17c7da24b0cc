// Package figures defines limiters' metrics for both exporters, promlimit and otellimit.
package figures

import (
	"slices"
	"strings"

	"github.com/weir-go/ratelimit"
	"github.com/weir-go/ratelimit/stats"
)

// Figure describes a metric.
type Figure struct {
	Name  string   // words with dots between them, without the prefix "ratelimit."
	Unit  string   // in OpenTelemetry's notation: "{key}", "s", or "1"
	Help  string   // a description in one sentence
	Gauge bool     // whether it is a gauge or histogram; otherwise it is a counter
	By    []string // its labels' names; the figures of a [Group] have one more label, identifying the group
}

// OpenTelemetry returns the metric's name by OpenTelemetry's conventions, such as ratelimit.keys.expired.
func (f Figure) OpenTelemetry() string { return "ratelimit." + f.Name }

// Prometheus returns the metric's name by Prometheus' conventions, such as ratelimit_keys_expired_total.
// It equals the name from OpenTelemetry's exporters, except that {unit} is the only annotation in it.
func (f Figure) Prometheus() string {
	name := "ratelimit_" + strings.ReplaceAll(f.Name, ".", "_")
	switch f.Unit {
	case "s":
		name += "_seconds"
	case "{unit}":
		name += "_units"
	}
	if f.Gauge {
		return name
	}
	return name + "_total"
}

// The counters of decisions, incremented at each decision.
var (
	Decisions = Figure{Name: "decisions", Unit: "{decision}", By: []string{"limiter", "limit", "outcome"},
		Help: "Decisions, by limiter, limit and outcome: allowed, denied, exceeds, unavailable, rejected or error. Each layer counts its own decision, also of a request that another layer denies."}
	Spent         = Figure{Name: "spent", Unit: "{unit}", By: []string{"limiter", "limit"}, Help: "Cost that was charged."}
	Degraded      = Figure{Name: "degraded_decisions", Unit: "{decision}", By: []string{"limiter"}, Help: "Decisions without the shared store that OnDecision has counted, such as decisions of a lease over a failover."}
	RuleDecisions = Figure{Name: "policy.rule.decisions", Unit: "{decision}", By: []string{"rule", "plan", "shadow", "outcome"},
		Help: "Decisions of single rules, also of shadow rules, by rule, plan and outcome."}
	PolicyRequests = Figure{Name: "policy.requests", Unit: "{request}", By: []string{"outcome"},
		Help: "Requests decided by policies, by outcome: an outcome of decisions, or killed by the kill switch."}
)

// Duration is the histogram of decisions' durations.
var Duration = Figure{Name: "decision.duration", Unit: "s", Gauge: true, By: []string{"limiter"}, Help: "How long decisions took."}

// Buckets are the upper bounds of [Duration]'s buckets.
var Buckets = []float64{.0001, .00025, .0005, .001, .0025, .005, .01, .025, .05, .1, .25, 1}

// Group is a set of figures read together at each collection.
type Group struct {
	Figures []Figure
	// Read calls add for each series, with the figure's index, its value, and its labels' values.
	Read func(add func(figure int, value float64, labels ...string))
}

// ofTable returns a limiter's figures about its keys. read is the limiter's method Stats.
func ofTable(read func() ratelimit.Stats) Group {
	return Group{Figures: ofTables("keys"), Read: func(add func(int, float64, ...string)) { addTable(add, read()) }}
}

// ofRuleTables returns the figures of rules' tables. read returns the tables by rule.
func ofRuleTables(read func() map[string]ratelimit.Stats) Group {
	return Group{
		Figures: ofTables("policy.rule.keys", "rule"),
		Read: func(add func(int, float64, ...string)) {
			for rule, s := range read() {
				addTable(add, s, rule)
			}
		},
	}
}

// ofTables returns the figures of key tables, in addTable's order.
func ofTables(name string, by ...string) []Figure {
	return []Figure{
		{Name: name, Unit: "{key}", Gauge: true, By: by, Help: "Keys that are tracked."},
		{Name: name + ".expired", Unit: "{key}", By: by, Help: "Keys dropped as fresh: nothing was forgotten."},
		{Name: name + ".evicted", Unit: "{key}", By: by, Help: "Keys dropped to make room before they were fresh."},
		{Name: name + ".evicted_throttled", Unit: "{key}", By: by, Help: "Keys dropped to make room while they were throttled, and not remembered."},
		{Name: name + ".refused", Unit: "{key}", By: by, Help: "New keys refused because the table was full."},
		{Name: name + ".recalled", Unit: "{key}", By: by, Help: "New keys that began with less, because their spending was remembered."},
		{Name: name + ".overflowed", Unit: "{key}", By: by, Help: "Remembered keys forgotten before they were fresh, because too many were to be remembered."},
	}
}

func addTable(add func(int, float64, ...string), s ratelimit.Stats, labels ...string) {
	for i, v := range []float64{float64(s.Keys), float64(s.Expired), float64(s.Evicted), float64(s.EvictedThrottled), float64(s.Refused),
		float64(s.Recalled), float64(s.Overflowed)} {
		add(i, v, slices.Clone(labels)...)
	}
}

// ofPolicies returns policies' figures. read is their method Stats.
func ofPolicies(read func() stats.Policies) Group {
	return Group{
		Figures: []Figure{
			{Name: "policy.generation", Unit: "{set}", Gauge: true, Help: "How many sets of rules were put in force."},
			{Name: "policy.loaded_timestamp", Unit: "s", Gauge: true, Help: "When the set in force was put in force, in Unix time."},
			{Name: "policy.rules", Unit: "{rule}", Gauge: true, Help: "Rules of the set in force."},
			{Name: "policy.kill_switch", Unit: "1", Gauge: true, Help: "1 while the kill switch is on."},
			{Name: "policy.fault", Unit: "1", Gauge: true, Help: "1 while the newest set could not be put in force."},
			{Name: "policy.checked_timestamp", Unit: "s", Gauge: true, Help: "When the set in force was last seen to be the newest, in Unix time."},
			{Name: "policy.exempt", Unit: "{request}", Help: "Requests that passed because a rule exempts them."},
			{Name: "policy.bad_limits", Unit: "{value}", Help: "Values of the attribute of a rule's limit_from that were no limit: the rule's own limit held."},
			{Name: "policy.unknown_plans", Unit: "{request}", By: []string{"rule"}, Help: "Requests whose plan a rule with plans does not know: the rule's own limit held."},
			{Name: "policy.info", Unit: "1", Gauge: true, By: []string{"version"}, Help: "1, with the version of the set in force."},
		},
		Read: func(add func(int, float64, ...string)) {
			s := read()
			add(0, float64(s.Generation))
			add(1, float64(s.LoadedAt.UnixMilli())/1000)
			add(2, float64(s.Rules))
			add(3, oneIf(s.KillSwitch))
			add(4, oneIf(s.LastError != nil))
			add(5, float64(s.CheckedAt.UnixMilli())/1000)
			add(6, float64(s.Exempt))
			add(7, float64(s.BadLimits))
			for rule, n := range s.UnknownPlans {
				add(8, float64(n), rule)
			}
			add(9, 1, s.Version)
		},
	}
}

func oneIf(b bool) float64 {
	if b {
		return 1
	}
	return 0
}
