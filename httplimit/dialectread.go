package httplimit

import (
	"cmp"
	"math"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/weir-go/ratelimit/internal/limitfields"
	"github.com/weir-go/ratelimit/internal/pace"
)

// dialectRead is one way in which servers report a remaining budget. The first element of dialectsRead that finds one in a response counts.
type dialectRead struct {
	structured func(h http.Header) []AdviceBudget // of one field, or nil
	plain      []plainBudget                      // of fields of their own
}

// plainBudget is a budget with a field for each of its figures.
type plainBudget struct {
	name             string
	remaining, reset string   // fields
	resetMs          string   // contains the reset as a span in milliseconds; or ""
	after            string   // contains the reset as a span, and counts before reset; or ""
	names            []string // fields of which the first that is there has the name
	costs            bool
	span             time.Duration // the reset, if no field contains it
	status           string        // a field that is "rejected" if nothing is left, in place of remaining; or ""
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
	// Anthropic. Customers with a plan get the unified fields, which contain no figure. The fields of the priority tier are not read:
	// requests beyond that tier are served as usual.
	{plain: []plainBudget{
		anthropic("ratelimit-requests", false), anthropic("ratelimit-tokens", true), anthropic("ratelimit-input-tokens", true),
		anthropic("ratelimit-output-tokens", true),
		{name: "unified", status: "Anthropic-Ratelimit-Unified-Status", reset: "Anthropic-Ratelimit-Unified-Reset"},
	}},
	// HubSpot. The remaining budget of a day has no reset.
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

// read returns the remaining budgets in a response, nil if there are none.
func (d *dialectRead) read(h http.Header, clock time.Time) (budgets []AdviceBudget) {
	if d.structured != nil {
		return d.structured(h)
	}
	for _, p := range d.plain {
		budgets = append(budgets, p.read(h, clock)...)
	}
	return budgets
}

// read returns the budget in the fields. Where proxies or nested limiters have made lists of the fields, it returns as many budgets, if
// each has its reset; else a single budget with the least remaining and the longest reset.
func (p *plainBudget) read(h http.Header, clock time.Time) []AdviceBudget {
	b := AdviceBudget{Name: p.name, Costs: p.costs}
	lefts := []int64{0}
	if p.status == "" {
		lefts = leftsOf(h[p.remaining])
	} else if first(h[p.status]) != "rejected" {
		return nil
	}
	if len(lefts) == 0 {
		return nil
	}
	for _, field := range p.names {
		b.Name = cmp.Or(b.Name, first(h[field]))
	}
	resets := p.resets(h, clock)
	if len(resets) == 0 {
		return nil
	}
	if len(lefts) != len(resets) {
		lefts, resets = []int64{slices.Min(lefts)}, []time.Duration{slices.Max(resets)}
	}
	budgets := make([]AdviceBudget, len(lefts))
	for i := range budgets {
		b.Left, b.Reset = lefts[i], resets[i]
		budgets[i] = b
	}
	return budgets
}

// leftsOf reads the numbers of a field, of which one is usual. It returns nil if a value is no number of 0 or more.
func leftsOf(lines []string) (lefts []int64) {
	for _, line := range lines {
		if len(line) > maxStructured {
			return nil
		}
		for text := range strings.SplitSeq(line, ",") {
			text = strings.TrimSpace(text)
			left, err := strconv.ParseFloat(text, 64)
			if err != nil || !isNumber(text) || !(left >= 0) {
				return nil
			}
			lefts = append(lefts, int64(min(left, limitfields.MaxInteger)))
		}
	}
	return lefts
}

// resets returns the times until the reset, nil if no field contains one.
func (p *plainBudget) resets(h http.Header, clock time.Time) []time.Duration {
	ms, _ := decimal(first(h[p.resetMs]))
	if reset := max(p.span, span(ms/1000)); reset > 0 {
		return []time.Duration{reset}
	}
	if after, _ := decimal(first(h[p.after])); after > 0 {
		return []time.Duration{span(after)}
	}
	var resets []time.Duration
	read := func(value string) (time.Duration, bool) {
		reset, ok := resetOf(value, clock)
		if ok {
			resets = append(resets, reset)
		}
		return reset, ok
	}
	longest(h[p.reset], read)
	return resets
}

// isNumber reports whether a text can be a number in JSON's form. "Infinity" and "NaN" are none: a server that sends them has a bug, and
// must not close a host for years.
func isNumber(s string) bool { return s != "" && strings.Trim(s, "0123456789.eE+-") == "" }

// resetOf reads a reset in any habit: seconds from now, Unix time, a span such as "6m0s", or a
// date.
func resetOf(value string, clock time.Time) (time.Duration, bool) {
	// A number may be more than a float holds.
	if at, err := strconv.ParseFloat(value, 64); isNumber(value) && (err == nil || math.IsInf(at, 0)) {
		return fromNow(at, clock), at > 0
	}
	if d, err := time.ParseDuration(value); err == nil {
		return pace.Clamp(d), d > 0
	}
	return untilDate(value, clock)
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

// policyWindow returns the w of the policy of that name, the longest if there are several, 0 if there is none.
func policyWindow(policies []item, name string) (longest int64) {
	for _, p := range policies {
		if strings.EqualFold(p.name, name) {
			w, _ := p.get("w")
			longest = max(longest, w)
		}
	}
	return longest
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
