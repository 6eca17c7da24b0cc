package httplimit

import (
	"cmp"
	"math"
	"net/http"
	"strconv"
	"strings"
	"time"

	"github.com/weir-go/ratelimit/internal/pace"
	"github.com/weir-go/ratelimit/internal/told"
)

// dialectRead is one way in which servers tell what is left. In a response, the first one of
// dialectsRead that tells anything counts.
type dialectRead struct {
	structured func(h http.Header) []AdviceBudget // of one field, or nil
	plain      []plainBudget                      // of fields of their own
}

// plainBudget is a budget that is told by fields of their own.
type plainBudget struct {
	name             string
	remaining, reset string   // fields
	resetMs          string   // that tells the reset as a span in milliseconds; or ""
	after            string   // that tells the reset as a span, and counts before reset; or ""
	names            []string // fields of which the first that is there has the name
	costs            bool
	span             time.Duration // the reset, if no field tells it
	status           string        // a field that says "rejected" if nothing is left, in place of remaining; or ""
}

// dialectsRead are the dialects that are read, standards first. Each has an answer of a real API as
// its test.
var dialectsRead = []dialectRead{
	{structured: draft11},
	{structured: draft07},
	// Drafts up to -06, Kong, GitLab, Twitch. Reset is in either habit.
	{plain: []plainBudget{{remaining: "Ratelimit-Remaining", reset: "Ratelimit-Reset"}}},
	// OpenAI, Azure, Groq.
	{plain: []plainBudget{
		{name: "requests", remaining: "X-Ratelimit-Remaining-Requests", reset: "X-Ratelimit-Reset-Requests"},
		{name: "tokens", remaining: "X-Ratelimit-Remaining-Tokens", reset: "X-Ratelimit-Reset-Tokens", costs: true},
		{name: "tokens_usage_based", remaining: "X-Ratelimit-Remaining-Tokens_usage_based", reset: "X-Ratelimit-Reset-Tokens_usage_based", costs: true},
	}},
	// Anthropic. Those with a plan get the unified fields, which tell no figure.
	{plain: []plainBudget{
		anthropic("ratelimit-requests", false), anthropic("ratelimit-tokens", true), anthropic("ratelimit-input-tokens", true),
		anthropic("ratelimit-output-tokens", true), anthropic("priority-input-tokens", true), anthropic("priority-output-tokens", true),
		{name: "unified", status: "Anthropic-Ratelimit-Unified-Status", reset: "Anthropic-Ratelimit-Unified-Reset"},
	}},
	// HubSpot. What is left of a day tells no reset.
	{plain: []plainBudget{
		{name: "interval", remaining: "X-Hubspot-Ratelimit-Remaining", resetMs: "X-Hubspot-Ratelimit-Interval-Milliseconds"},
		{name: "secondly", remaining: "X-Hubspot-Ratelimit-Secondly-Remaining", span: time.Second},
	}},
	// GitHub, Discord, Envoy, Reddit, Vercel and many more.
	{plain: []plainBudget{
		{remaining: "X-Ratelimit-Remaining", reset: "X-Ratelimit-Reset", after: "X-Ratelimit-Reset-After",
			names: []string{"X-Ratelimit-Resource", "X-Ratelimit-Bucket"}},
	}},
	// X, Okta.
	{plain: []plainBudget{{remaining: "X-Rate-Limit-Remaining", reset: "X-Rate-Limit-Reset"}}},
}

func anthropic(fields string, costs bool) plainBudget {
	prefix := http.CanonicalHeaderKey("Anthropic-" + fields)
	return plainBudget{name: strings.TrimPrefix(fields, "ratelimit-"), remaining: prefix + "-Remaining", reset: prefix + "-Reset", costs: costs}
}

// read returns what a response says to be left, nil if it does not say.
func (d *dialectRead) read(h http.Header, clock time.Time) (budgets []AdviceBudget) {
	if d.structured != nil {
		return d.structured(h)
	}
	for _, p := range d.plain {
		if b, ok := p.read(h, clock); ok {
			budgets = append(budgets, b)
		}
	}
	return budgets
}

func (p *plainBudget) read(h http.Header, clock time.Time) (b AdviceBudget, ok bool) {
	b = AdviceBudget{Name: p.name, Costs: p.costs}
	if p.status == "" {
		text := strings.TrimSpace(first(h[p.remaining]))
		left, err := strconv.ParseFloat(text, 64)
		if err != nil || !isNumber(text) || !(left >= 0) {
			return b, false
		}
		b.Left = int64(min(left, told.MaxInteger))
	} else if first(h[p.status]) != "rejected" {
		return b, false
	}
	for _, field := range p.names {
		b.Name = cmp.Or(b.Name, first(h[field]))
	}
	if b.Reset = max(p.span, span(decimal(first(h[p.resetMs]))/1000)); b.Reset > 0 {
		return b, true
	}
	if after := decimal(first(h[p.after])); after > 0 {
		b.Reset = span(after)
		return b, true
	}
	b.Reset, ok = resetOf(strings.TrimSpace(first(h[p.reset])), clock)
	return b, ok
}

// The smallest Reset that is a time of the Unix clock, in seconds and in milliseconds:
// September 2001 and March 1973. As a span they would be 31 and 3168 years.
const (
	minUnixSeconds = 1e9
	minUnixMillis  = 1e11
)

// isNumber reports whether a text can be a number in JSON's form. "Infinity" and "NaN" are none: a
// server that says so has made a mistake, and must not close a host for years.
func isNumber(s string) bool { return s != "" && strings.Trim(s, "0123456789.eE+-") == "" }

// resetOf reads a reset in any habit: seconds from now, Unix time, a span such as "6m0s", or a
// date.
func resetOf(value string, clock time.Time) (time.Duration, bool) {
	// A number may be more than a float holds.
	if at, err := strconv.ParseFloat(value, 64); isNumber(value) && (err == nil || math.IsInf(at, 0)) {
		switch unix := float64(clock.Unix()) + float64(clock.Nanosecond())/1e9; { // UnixNano has no year 9999
		case !(at > 0):
			return 0, false
		case at >= minUnixMillis:
			at = at/1000 - unix
		case at >= minUnixSeconds:
			at -= unix
		}
		return span(at), true
	}
	if d, err := time.ParseDuration(value); err == nil {
		return pace.Clamp(d), d > 0
	}
	for _, layout := range []string{time.RFC3339, "2006-01-02T15:04Z07:00"} { // fractions of a second too
		if at, err := time.Parse(layout, value); err == nil {
			return pace.Clamp(at.Sub(clock)), true
		}
	}
	if at, err := http.ParseTime(value); err == nil {
		return pace.Clamp(at.Sub(clock)), true
	}
	return 0, false
}

// draft11 reads RateLimit, and where that has no window, the w of RateLimit-Policy. The
// editors' copy after draft 11 calls r and t a and w.
func draft11(h http.Header) (budgets []AdviceBudget) {
	var policies []item
	for _, it := range parseItems(h[fieldLimit]) {
		left, ok := it.get("r")
		if !ok {
			left, ok = it.get("a")
		}
		if !ok || left < 0 {
			continue
		}
		t, ok := it.get("t")
		if !ok {
			t, ok = it.get("w")
		}
		if !ok {
			if policies == nil {
				policies = parseItems(h[fieldPolicy])
			}
			t = policyWindow(policies, it.name)
		}
		if t > 0 {
			budgets = append(budgets, AdviceBudget{Name: strings.ToLower(it.name), Left: left, Reset: span(float64(t))})
		}
	}
	return budgets
}

// policyWindow returns the w of the policy of that name, 0 if there is none.
func policyWindow(policies []item, name string) int64 {
	for _, p := range policies {
		if strings.EqualFold(p.name, name) {
			w, _ := p.get("w")
			return w
		}
	}
	return 0
}

// draft07 reads RateLimit as a Dictionary: "limit=100, remaining=0, reset=5". Members of
// other types are ignored.
func draft07(h http.Header) []AdviceBudget {
	if len(h[fieldLimit]) == 0 {
		return nil
	}
	dictionary, ok := parseDictionary(h[fieldLimit])
	left, hasLeft := dictionary.get("remaining")
	reset, hasReset := dictionary.get("reset")
	if !ok || !hasLeft || !hasReset || left < 0 || reset <= 0 {
		return nil
	}
	return []AdviceBudget{{Left: left, Reset: span(float64(reset))}}
}
