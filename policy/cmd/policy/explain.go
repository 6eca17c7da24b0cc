package main

import (
	"fmt"
	"strings"

	"github.com/weir-go/ratelimit/policy"
)

// explained is what explain says, as JSON.
type explained struct {
	KillSwitch bool          `json:"kill_switch"`
	Exempt     string        `json:"exempt,omitempty"` // the rule that exempts the request from all others
	Error      string        `json:"error,omitempty"`
	Rules      []ruleSummary `json:"rules"`
}

type ruleSummary struct {
	Rule     string `json:"rule"`
	Limit    string `json:"limit,omitempty"`
	From     string `json:"from,omitempty"` // where the limit is from
	Key      string `json:"key,omitempty"`
	Cost     int    `json:"cost"`
	Shadow   bool   `json:"shadow,omitempty"`
	Skipped  string `json:"skipped,omitempty"`
	Capacity int    `json:"capacity"`
}

// explain prints which rules match a request, and with which limit.
func (t *tool) explain(args []string) int {
	if len(args) == 0 {
		return t.usage("explain needs a file")
	}
	request := policy.Attributes{}
	for _, arg := range args[1:] {
		name, value, ok := strings.Cut(arg, "=")
		if !ok || name == "" {
			return t.usage(fmt.Sprintf("%q is not ATTRIBUTE=VALUE", arg))
		}
		request[name] = value
	}
	set, status, err := t.load(args[0])
	if err != nil {
		return t.fail(status, err)
	}
	p, err := policy.New(set, nil)
	if err != nil {
		return t.fail(differ, err)
	}
	ex, err := p.Explain(request, t.cost)
	if err != nil {
		return t.fail(misuse, err)
	}
	return t.tell(ex)
}

func (t *tool) tell(ex policy.Explanation) int {
	out := explained{KillSwitch: ex.KillSwitch, Exempt: ex.Exempt, Rules: []ruleSummary{}}
	for _, r := range ex.Rules {
		out.Rules = append(out.Rules, summary(r))
	}
	status := fine
	if ex.Err != nil {
		out.Error, status = ex.Err.Error(), differ
	}
	if t.json {
		t.print(out)
		return status
	}
	t.showRules(out)
	return status
}

func summary(r policy.Explained) ruleSummary {
	s := ruleSummary{Rule: r.Rule, Shadow: r.Shadow, Skipped: r.Skipped, Key: r.Key, Cost: r.Cost}
	if r.Limit.Algorithm == 0 {
		return s
	}
	s.Limit, s.Capacity, s.From = r.Limit.String(), r.Limit.Capacity(), "the rule"
	switch {
	case r.Override:
		s.From = "an override"
	case r.Plan != "":
		s.From = "plan " + r.Plan
	}
	return s
}

func (t *tool) showRules(ex explained) {
	switch {
	case ex.KillSwitch:
		fmt.Fprintln(t.out, "the kill switch is on: every request passes")
	case ex.Exempt != "":
		fmt.Fprintf(t.out, "rule %s allows it, whatever other rules say\n", ex.Exempt)
	case len(ex.Rules) == 0:
		fmt.Fprintln(t.out, "no rule matches: the request passes")
	}
	for _, r := range ex.Rules {
		line := r.Rule + ": "
		switch {
		case r.Skipped != "":
			line += "cannot decide: " + r.Skipped
		default:
			key := "one budget for all"
			if r.Key != "" {
				key = fmt.Sprintf("key %q", r.Key)
			}
			line += fmt.Sprintf("%s (from %s), %s, cost %d of %d", r.Limit, r.From, key, r.Cost, r.Capacity)
		}
		if r.Shadow {
			line += ", a shadow: never denies"
		}
		fmt.Fprintln(t.out, line)
	}
	if ex.Error != "" {
		fmt.Fprintln(t.out, "refused:", ex.Error)
	}
}
