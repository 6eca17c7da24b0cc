package policy

import (
	"encoding/json"
	"fmt"
	"strings"
	"time"
)

// explainedJSON is an [Explanation] as JSON: what the command policy prints and [Admin] answers.
type explainedJSON struct {
	KillSwitch bool       `json:"kill_switch"`
	Exempt     string     `json:"exempt,omitempty"` // the rule that exempts the request from all others
	Error      string     `json:"error,omitempty"`
	Rules      []ruleJSON `json:"rules"`
}

type ruleJSON struct {
	Rule     string        `json:"rule"`
	Limit    string        `json:"limit,omitempty"`
	From     string        `json:"from,omitempty"` // where the limit is from
	Key      string        `json:"key,omitempty"`
	Hidden   bool          `json:"key_hidden,omitempty"` // there is a key, and the service does not tell it
	Cost     int           `json:"cost"`
	Shadow   bool          `json:"shadow,omitempty"`
	Skipped  string        `json:"skipped,omitempty"`
	Capacity int           `json:"capacity"`
	Now      *standingJSON `json:"now,omitempty"` // absent if the engine cannot tell
}

// standingJSON is how a key stands under a rule.
type standingJSON struct {
	Allowed    bool    `json:"allowed"`
	Remaining  int     `json:"remaining"`
	RetryAfter float64 `json:"retry_after"` // in seconds; 0 if allowed, and if a retry can never pass
	ResetAfter float64 `json:"reset_after"` // in seconds
}

// MarshalJSON returns an object with kill_switch, exempt, error and rules. Times are in seconds. It holds the keys.
func (ex Explanation) MarshalJSON() ([]byte, error) { return json.Marshal(ex.plain()) }

func (ex Explanation) plain() explainedJSON {
	out := explainedJSON{KillSwitch: ex.KillSwitch, Exempt: ex.Exempt, Rules: []ruleJSON{}}
	if ex.Err != nil {
		out.Error = ex.Err.Error()
	}
	for _, r := range ex.Rules {
		out.Rules = append(out.Rules, r.plain())
	}
	return out
}

func (e Explained) plain() ruleJSON {
	r := ruleJSON{Rule: e.Rule, Shadow: e.Shadow, Skipped: e.Skipped, Key: e.Key, Cost: e.Cost}
	if e.Limit.Algorithm == 0 {
		return r
	}
	r.Limit, r.Capacity, r.From = e.Limit.String(), e.Limit.Capacity(), "the rule"
	switch {
	case e.Override:
		r.From = "an override"
	case e.Plan != "":
		r.From = "plan " + e.Plan
	}
	if d := e.Decision; d != nil {
		r.Now = &standingJSON{d.Allowed, d.Remaining, d.RetryAfter.Seconds(), d.ResetAfter.Seconds()}
	}
	return r
}

// String returns the explanation as lines of text, one for each rule that matches. It holds the keys.
func (ex Explanation) String() string { return ex.plain().text() }

// ExplanationText returns what [Explanation.String] says for the JSON of an explanation: that of a service, by
// way of [Admin]. Keys that the service hides are left out.
func ExplanationText(data []byte) (text string, refused bool, err error) {
	var ex explainedJSON
	if err := json.Unmarshal(data, &ex); err != nil {
		return "", false, fmt.Errorf("policy: not an explanation: %w", err)
	}
	return ex.text(), ex.Error != "", nil
}

func (ex explainedJSON) text() string {
	var b strings.Builder
	switch {
	case ex.KillSwitch:
		b.WriteString("the kill switch is on: every request passes\n")
	case ex.Exempt != "":
		fmt.Fprintf(&b, "rule %s allows it, whatever other rules say\n", ex.Exempt)
	case len(ex.Rules) == 0:
		b.WriteString("no rule matches: the request passes\n")
	}
	for _, r := range ex.Rules {
		b.WriteString(r.text() + "\n")
	}
	if ex.Error != "" {
		fmt.Fprintln(&b, "refused:", ex.Error)
	}
	return b.String()
}

func (r ruleJSON) text() string {
	line := r.Rule + ": "
	if r.Skipped != "" {
		line += "cannot decide: " + r.Skipped
	} else {
		line += fmt.Sprintf("%s (from %s), ", r.Limit, r.From)
		switch {
		case r.Hidden:
		case r.Key != "":
			line += fmt.Sprintf("key %q, ", r.Key)
		default:
			line += "one budget for all, "
		}
		line += fmt.Sprintf("cost %d of %d", r.Cost, r.Capacity)
	}
	if r.Shadow {
		line += ", a shadow: never denies"
	}
	if r.Now != nil {
		line += "; now: " + r.Now.text()
	}
	return line
}

func (s standingJSON) text() string {
	switch {
	case s.Allowed:
		return fmt.Sprintf("allows it, %d left", s.Remaining)
	case s.RetryAfter > 0:
		return fmt.Sprintf("denies it, %d left, retry in %v", s.Remaining, inSeconds(s.RetryAfter))
	}
	return fmt.Sprintf("denies it, %d left; a retry never passes", s.Remaining)
}

// inSeconds returns a time as text, in milliseconds at the finest, rounded up: after it a retry passes.
func inSeconds(seconds float64) time.Duration {
	d := time.Duration(seconds * float64(time.Second))
	return (d + time.Millisecond - 1).Truncate(time.Millisecond)
}
