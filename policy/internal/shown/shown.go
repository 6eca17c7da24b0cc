// Package shown formats a policy's answers as text, for the command policy, for package admin's page, and for JSON.
package shown

import (
	"encoding/json"
	"fmt"
	"strconv"
	"strings"
	"time"
	"unicode"

	"github.com/weir-go/ratelimit"
)

// Explanation is the JSON form of a policy.Explanation.
type Explanation struct {
	KillSwitch bool   `json:"kill_switch"`
	Exempt     string `json:"exempt,omitempty"` // the rule exempting the request from all others
	Error      string `json:"error,omitempty"`
	Rules      []Rule `json:"rules"`
}

// Rule is one rule in an explanation.
type Rule struct {
	Rule     string    `json:"rule"`
	Limit    string    `json:"limit,omitempty"`
	Share    int       `json:"share,omitempty"` // the key's weight, if keys share the limit
	From     string    `json:"from,omitempty"`  // where the limit or the weight comes from
	Key      string    `json:"key,omitempty"`
	Hidden   bool      `json:"key_hidden,omitempty"` // the rule has a key, and the service does not show it
	Cost     int       `json:"cost"`
	Grace    string    `json:"grace,omitempty"`  // the share allowed above the limit
	Charge   string    `json:"charge,omitempty"` // "always": the rule charges the cost whatever the decision
	Actual   string    `json:"actual,omitempty"` // the attribute with the cost when a reservation settles
	Shadow   bool      `json:"shadow,omitempty"`
	Dated    bool      `json:"dated,omitempty"` // the rule does not hold at this time
	Skipped  string    `json:"skipped,omitempty"`
	Instead  string    `json:"instead,omitempty"` // the rule in its place
	Capacity int       `json:"capacity"`
	Now      *Standing `json:"now,omitempty"` // absent if the engine cannot report it
}

// Standing is a key's state under a rule.
type Standing struct {
	Allowed    bool    `json:"allowed"`
	Remaining  int     `json:"remaining"`
	Debt       int     `json:"debt,omitempty"` // units above the limit
	RetryAfter float64 `json:"retry_after"`    // in seconds; 0 if allowed, and if a retry can never pass
	ResetAfter float64 `json:"reset_after"`    // in seconds
}

// Text formats an explanation, given in JSON, as text, and reports whether the request would be refused.
func Text(data []byte) (text string, refused bool, err error) {
	var ex Explanation
	if err := json.Unmarshal(data, &ex); err != nil {
		return "", false, fmt.Errorf("policy: not an explanation: %w", err)
	}
	return ex.Text(), ex.Error != "", nil
}

// Text returns one line for each rule.
func (ex Explanation) Text() string {
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
		b.WriteString(Visible(r.Text()) + "\n")
	}
	if ex.Error != "" {
		fmt.Fprintln(&b, "refused:", Visible(ex.Error))
	}
	return b.String()
}

// Text returns one line.
func (r Rule) Text() string {
	line := r.Rule + ": "
	if r.Instead != "" || r.Dated {
		line += "does not apply: " + r.Skipped
	} else if r.Skipped != "" {
		line += "cannot decide: " + r.Skipped
	} else {
		if r.Share > 0 {
			line += fmt.Sprintf("a share of weight %d (from %s) of %s, ", r.Share, r.From, r.Limit)
		} else {
			line += fmt.Sprintf("%s (from %s), ", r.Limit, r.From)
		}
		switch {
		case r.Hidden:
		case r.Key != "":
			line += fmt.Sprintf("key %q, ", r.Key)
		default:
			line += "one budget for all, "
		}
		line += fmt.Sprintf("cost %d of %d", r.Cost, r.Capacity)
		if r.Grace != "" {
			line += " and " + r.Grace + " above"
		}
		if r.Charge != "" {
			line += ", charged " + r.Charge
		}
		if r.Actual != "" {
			line += ", settled at " + r.Actual
		}
	}
	if r.Shadow {
		line += ", a shadow: never denies"
	}
	if r.Now != nil {
		line += "; now: " + r.Now.Text()
	}
	return line
}

// Text returns the state as text.
func (s Standing) Text() string {
	switch {
	case s.Allowed:
		return "allows it, " + Left(s.Remaining, s.Debt)
	case s.RetryAfter > 0:
		return fmt.Sprintf("denies it, %s, retry in %v", Left(s.Remaining, s.Debt), inSeconds(s.RetryAfter))
	}
	return fmt.Sprintf("denies it, %s; a retry never passes", Left(s.Remaining, s.Debt))
}

// Left returns a budget's text: its remaining units, and its debt.
func Left(remaining, debt int) string {
	if debt > 0 {
		return fmt.Sprintf("%d left, %d above the limit", remaining, debt)
	}
	return fmt.Sprintf("%d left", remaining)
}

// StandingOf returns a key's state, given a decision on it.
func StandingOf(d *ratelimit.Decision, allowed bool) *Standing {
	return &Standing{Allowed: allowed, Remaining: d.Remaining, Debt: d.Debt, RetryAfter: d.RetryAfter.Seconds(), ResetAfter: d.ResetAfter.Seconds()}
}

// inSeconds returns a number of seconds as a duration, rounded up to a millisecond, so that a retry after this time passes.
func inSeconds(seconds float64) time.Duration {
	d := time.Duration(seconds * float64(time.Second))
	return (d + time.Millisecond - 1).Truncate(time.Millisecond)
}

// Visible escapes a text's invisible characters, and characters that change other characters' order on a screen, as Go does.
func Visible(text string) string {
	if strings.IndexFunc(text, func(r rune) bool { return !unicode.IsPrint(r) }) < 0 {
		return text
	}
	var b strings.Builder
	for _, r := range text {
		if unicode.IsPrint(r) {
			b.WriteRune(r)
		} else {
			b.WriteString(strings.Trim(strconv.QuoteRune(r), "'"))
		}
	}
	return b.String()
}
