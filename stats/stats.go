// Package stats has the types that package policy passes to promlimit and otellimit, which do not import policy.
package stats

import (
	"time"

	"github.com/weir-go/ratelimit"
)

// PolicyDecision is one decision of rules, as package policy reports it.
type PolicyDecision struct {
	// Request is the request that it is about.
	Request interface {
		Attribute(name string) (value string, ok bool)
	}
	// Cost is the caller's cost.
	Cost int
	// Decision is the answer.
	Decision ratelimit.Decision
	// Err is the error that was returned, nil for a plain denial.
	Err error
	// Version and Generation identify the set of rules that decided.
	Version    string
	Generation uint64
	// KillSwitch reports that the request passed because the set's kill switch is on.
	KillSwitch bool
	// Rules are the rules that applied, in order, each with its decision. It is empty if none applied, and if an attribute was missing or
	// malformed.
	Rules []RuleDecision
}

// RuleDecision is the decision of one rule on a request.
type RuleDecision struct {
	// Rule is the rule's name.
	Rule string
	// Key is the rule's key for the request; of several attributes, it is one text. It
	// may be a secret.
	Key string
	// Plan is the plan whose limit holds, "" if that is the rule's or an override's.
	Plan string
	// Cost is the cost for the rule: the caller's, or the rule's own.
	Cost int
	// Decision is the rule's own answer. If the engine does not return it, only Limit is set.
	Decision ratelimit.Decision
	// Shadow reports that the rule never denies.
	Shadow bool
	// Answered reports whether the engine returned the rule's own answer. It does not if the decision failed.
	Answered bool
	// Spent reports whether the rule was charged. It is false if another rule denied.
	Spent bool
}

// Policies is the state of policies: the rules that are in force.
type Policies struct {
	// Version identifies the set in force.
	Version string
	// Generation counts the sets that were put in force, New's included.
	Generation uint64
	// LoadedAt is the time at which the present set came into force. CheckedAt is the time of the last check that found
	// no newer set.
	LoadedAt  time.Time
	CheckedAt time.Time
	// Rules is the number of its rules, including disabled ones, and Names are their names. Names must not be changed.
	Rules int
	Names []string
	// KillSwitch reports whether the kill switch is on, and Killed counts the requests
	// that have passed because of it.
	KillSwitch bool
	Killed     uint64
	// Exempt counts the requests that have passed because a rule exempts them.
	Exempt uint64
	// BadLimits counts the values of a rule's limit_from that were no limit.
	BadLimits uint64
	// UnknownPlans counts, by the names of the rules with plans or shares, the requests whose plan the rule does not know, such as "Pro" for "pro":
	// the rule's own limit or weight held. A request without a plan is not counted. It is nil if no rule has plans, and must not be changed.
	UnknownPlans map[string]uint64
	// Tables are the figures of each rule's table of keys, by the rule's name, since it was first in force. Of a rule with Share they are Keys,
	// Evicted and Waiting. It is nil if the engine is not Memory.
	Tables map[string]ratelimit.Stats
	// LastError is the reason why the newest set could not be put in force, nil if it could, and LastErrorAt the time of that error.
	LastError   error
	LastErrorAt time.Time
}
