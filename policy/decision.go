package policy

import (
	"time"

	"github.com/weir-go/ratelimit"
)

// Decision is one decision, as [Options.OnDecision] gets it.
type Decision struct {
	// Request is the request that it is about.
	Request Request
	// Cost is the caller's cost.
	Cost int
	// Decision is the answer.
	Decision ratelimit.Decision
	// Err is the error that was returned, nil for a plain denial.
	Err error
	// Version and Generation tell the set of rules that decided.
	Version    string
	Generation uint64
	// KillSwitch reports that the request passed because the set's kill switch is on.
	KillSwitch bool
	// Rules are the rules that applied, in order, and what each said. It is empty if none
	// applied, and if an attribute was missing or malformed.
	Rules []RuleDecision
}

// RuleDecision is what one rule said about a request.
type RuleDecision struct {
	// Rule is the rule's name.
	Rule string
	// Key is the rule's key for the request; of several attributes, it is one text. It
	// may be a secret.
	Key string
	// Plan is the plan whose limit holds, "" if that is the rule's or an override's.
	Plan string
	// Shadow reports that the rule never denies.
	Shadow bool
	// Cost is what the rule asked for: the caller's cost, or its own.
	Cost int
	// Decision is the rule's own answer. If the engine does not tell it, only Limit is
	// set.
	Decision ratelimit.Decision
	// Told reports whether the engine told the rule's own answer. An engine does not
	// if the decision failed.
	Told bool
	// Spent reports whether the rule was charged. It is false if another rule denied.
	Spent bool
}

func (q *query) report(d ratelimit.Decision, err error) Decision {
	report := Decision{
		Request: q.request, Cost: q.cost, Decision: d, Err: err,
		Version: q.state.set.Version, Generation: q.state.generation, KillSwitch: q.kill,
	}
	for i, ch := range q.charges.list {
		r := q.state.rules[ch.Rule]
		rd := RuleDecision{Rule: r.Name, Key: ch.Key, Plan: ch.Plan, Shadow: r.Shadow, Cost: ch.Cost}
		rd.Decision.Limit = *ch.Limit
		if i < len(q.charges.answers) && q.charges.answers[i].Told {
			a := q.charges.answers[i]
			rd.Decision, rd.Spent, rd.Told = a.Decision, a.Spent, true
		}
		report.Rules = append(report.Rules, rd)
	}
	return report
}

// Stats tells how a [Policies] stands.
type Stats struct {
	// Version is that of the set in force.
	Version string
	// Generation counts the sets that were put in force, New's included.
	Generation uint64
	// LoadedAt is when the set in force was put in force.
	LoadedAt time.Time
	// Rules is how many rules it has, those that are disabled included.
	Rules int
	// KillSwitch reports whether the kill switch is on, and Killed counts the requests
	// that have passed because of it.
	KillSwitch bool
	Killed     uint64
	// LastError is why the newest set could not be put in force, nil if it could, and
	// LastErrorAt is when.
	LastError   error
	LastErrorAt time.Time
}

// Stats returns how the policies stand.
func (p *Policies) Stats() Stats {
	s := p.now()
	p.mu.Lock()
	defer p.mu.Unlock()
	return Stats{
		Version:     s.set.Version,
		Generation:  s.generation,
		LoadedAt:    s.loadedAt,
		Rules:       len(s.set.Rules),
		KillSwitch:  s.set.KillSwitch,
		Killed:      p.killed.Load(),
		LastError:   p.failed,
		LastErrorAt: p.failedT,
	}
}
