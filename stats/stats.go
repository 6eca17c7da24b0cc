// Package stats has the types of policy's figures for promlimit and otellimit, so these need not import policy.
package stats

import (
	"time"

	"github.com/weir-go/ratelimit"
)

// PolicyDecision is one decision by rules, as package policy reports it.
type PolicyDecision struct {
	// Request is the request, as it was passed to package policy.
	Request interface {
		Attribute(name string) (value string, ok bool)
	}
	// Cost is the caller's cost.
	Cost int
	// Decision is the answer.
	Decision ratelimit.Decision
	// Err is the returned error, nil for a plain denial.
	Err error
	// Version and Generation identify the set of rules in force.
	Version    string
	Generation uint64
	// KillSwitch reports whether the request passed because the set's kill switch is on.
	KillSwitch bool
	// Rules are the applying rules, in order, each with its decision. It is
	// empty if no rule applied, or if an attribute was missing or malformed.
	Rules []RuleDecision
}

// RuleDecision is one rule's decision on a request.
type RuleDecision struct {
	// Rule is the rule's name.
	Rule string
	// Key is the rule's key for the request. A key with several attributes is one text. It may be a secret.
	Key string
	// Plan names the plan whose limit holds. It is "" if the rule's own limit or an override holds.
	Plan string
	// Cost is the cost for the rule: the caller's cost, or the rule's own.
	Cost int
	// Decision is the rule's own answer. If the engine does not return it, only Limit is set.
	Decision ratelimit.Decision
	// Shadow reports whether the rule never denies.
	Shadow bool
	// Answered reports whether the engine returned the rule's own answer. It is false if the decision failed.
	Answered bool
	// Spent reports whether the rule was charged. It is false if another rule denied.
	Spent bool
}

// Policies describes the set in force.
type Policies struct {
	// Version identifies the set in force.
	Version string
	// Generation counts the sets put in force, including the first.
	Generation uint64
	// LoadedAt is when the present set came into force. CheckedAt is when a check last found no newer set.
	LoadedAt  time.Time
	CheckedAt time.Time
	// Rules counts the rules in the set, including disabled ones. Names are their names. Callers must not change them.
	Rules int
	Names []string
	// KillSwitch reports whether the kill switch is on, and Killed counts the requests let through by it.
	KillSwitch bool
	Killed     uint64
	// Exempt counts the exempted requests.
	Exempt uint64
	// BadLimits counts invalid limits in limit_from attributes.
	BadLimits uint64
	// UnknownPlans counts requests whose plan the rule does not know, by the rule's name. For such a request,
	// for example with the plan "Pro" instead of "pro", the rule's own limit or weight holds. Requests
	// without a plan are not counted. UnknownPlans is nil if no rule has plans. Callers must not change it.
	UnknownPlans map[string]uint64
	// Tables are the figures for each rule's table of keys, by the rule's name, since the rule was first in force.
	// For a rule with Share, only Keys, Evicted and Waiting are set. Tables is nil if the engine is not Memory.
	Tables map[string]ratelimit.Stats
	// LastError is why the newest set could not be put in force. It is
	// nil if the set is in force. LastErrorAt is that error's time.
	LastError   error
	LastErrorAt time.Time
}
