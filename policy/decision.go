package policy

import (
	"github.com/weir-go/ratelimit"
	"github.com/weir-go/ratelimit/stats"
)

// Decision is one decision, as [Options.OnDecision] gets it.
type Decision = stats.PolicyDecision

// RuleDecision is what one rule said about a request.
type RuleDecision = stats.RuleDecision

// Stats tells how a [Policies] stands.
type Stats = stats.Policies

// report returns what is told of a decision.
func (q *query) report(d ratelimit.Decision, err error) Decision {
	report := Decision{
		Request: q.request, Cost: q.cost, Decision: d, Err: err,
		Version: q.state.set.Version, Generation: q.state.generation, KillSwitch: q.kill,
	}
	if n := len(q.charges.list); n > 0 {
		report.Rules = q.fresh(n)
	}
	for i := range report.Rules {
		ch, rd := &q.charges.list[i], &report.Rules[i]
		r := q.state.rules[ch.Rule]
		rd.Rule, rd.Key, rd.Plan, rd.Shadow, rd.Cost = r.Name, ch.Key, ch.Plan, r.Shadow, ch.Cost
		if i < len(q.charges.answers) && q.charges.answers[i].Told {
			a := &q.charges.answers[i]
			rd.Decision, rd.Spent, rd.Told = a.Decision, a.Spent, true
		} else {
			rd.Decision.Limit = *ch.Limit
		}
	}
	if q.exemptBy != nil {
		report.Rules = []RuleDecision{{Rule: q.exemptBy.Name, Cost: q.cost, Decision: d, Told: true}}
	}
	return report
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
		CheckedAt:   p.checked,
		Rules:       len(s.set.Rules),
		Names:       s.names,
		KillSwitch:  s.set.KillSwitch,
		Killed:      p.killed.Load(),
		Exempt:      p.exempt.Load(),
		LastError:   p.failed,
		LastErrorAt: p.failedT,
	}
}

// manyRules is for how many rules memory is allocated at once.
const manyRules = 64

// fresh returns memory for n rules that nobody else has: whoever is told may keep it.
func (q *query) fresh(n int) []RuleDecision {
	if len(q.spare) < n {
		q.spare = make([]RuleDecision, max(n, manyRules))
	}
	rules := q.spare[:n:n]
	q.spare = q.spare[n:]
	return rules
}

// waited returns the answer of a Wait that has ended with err, from what the enforcing rules have told:
// that of the rule with the longest RetryAfter, or if all allow, of the one that leaves the least.
func (q *query) waited(err error) (d ratelimit.Decision) {
	d.Allowed = err == nil
	known := false
	for i, a := range q.charges.answers {
		if !a.Told || q.state.rules[q.charges.list[i].Rule].Shadow {
			continue
		}
		switch more := a.Decision; {
		case !known,
			d.Allowed && !more.Allowed,
			!d.Allowed && !more.Allowed && more.RetryAfter > d.RetryAfter,
			d.Allowed && more.Allowed && more.Remaining < d.Remaining:
			d, known = more, true
		}
	}
	return d
}
