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

// dialectRead is a format in which servers report a remaining budget. The first matching element of dialectsRead is used.
type dialectRead struct {
	structured func(h http.Header) []AdviceBudget // reads one structured field, or nil
	plain      []plainBudget                      // fields with plain values
}

// plainBudget is a budget with one field for each figure.
type plainBudget struct {
	name             string
	remaining, reset string   // fields' names
	resetMs          string   // contains the reset as a span in milliseconds; or ""
	after            string   // contains the reset as a span, and counts before reset; or ""
	names            []string // fields' names; the first field present has the budget's name
	costs            bool
	limit            string // the field with the whole budget
	refills          bool
	span             time.Duration // the time until the reset, if no field has one
	status           string        // a field that is "rejected" if nothing is left, in place of remaining; or ""
}

// dialectsRead are the known dialects, standards first. The tests have an answer of a real API for each.
var dialectsRead = []dialectRead{
	{structured: draft11},
	{structured: draft07},
	// Drafts up to -06, Kong, GitLab and Twitch. Reset is an instant or a span.
	{plain: []plainBudget{{remaining: "Ratelimit-Remaining", limit: "Ratelimit-Limit", reset: "Ratelimit-Reset"}}},
	// OpenAI, Azure and Groq.
	{plain: []plainBudget{
		{name: "requests", remaining: "X-Ratelimit-Remaining-Requests", reset: "X-Ratelimit-Reset-Requests", limit: "X-Ratelimit-Limit-Requests", refills: true},
		{name: "tokens", remaining: "X-Ratelimit-Remaining-Tokens", reset: "X-Ratelimit-Reset-Tokens", limit: "X-Ratelimit-Limit-Tokens", refills: true, costs: true},
		{name: "tokens_usage_based", remaining: "X-Ratelimit-Remaining-Tokens_usage_based", reset: "X-Ratelimit-Reset-Tokens_usage_based", limit: "X-Ratelimit-Limit-Tokens_usage_based", refills: true, costs: true},
	}},
	// Anthropic. Customers with a plan get the unified fields, without figures. The fields
	// of the priority tier are not read, because requests beyond it are served as usual.
	{plain: []plainBudget{
		anthropic("ratelimit-requests", false), anthropic("ratelimit-tokens", true), anthropic("ratelimit-input-tokens", true),
		anthropic("ratelimit-output-tokens", true),
		{name: "unified", status: "Anthropic-Ratelimit-Unified-Status", reset: "Anthropic-Ratelimit-Unified-Reset"},
	}},
	// HubSpot. A day's remaining budget has no reset.
	{plain: []plainBudget{
		{name: "interval", remaining: "X-Hubspot-Ratelimit-Remaining", resetMs: "X-Hubspot-Ratelimit-Interval-Milliseconds"},
		{name: "secondly", remaining: "X-Hubspot-Ratelimit-Secondly-Remaining", span: time.Second},
	}},
	// Shopify. In "32/40", 32 units are in a bucket of 40. Under every plan, a full bucket drains within 20 s.
	{structured: shopify},
	// GitHub, Discord, Envoy, Reddit, Vercel and many others.
	{plain: []plainBudget{
		{remaining: "X-Ratelimit-Remaining", limit: "X-Ratelimit-Limit", reset: "X-Ratelimit-Reset", after: "X-Ratelimit-Reset-After",
			names: []string{"X-Ratelimit-Resource", "X-Ratelimit-Bucket"}},
	}},
	// X and Okta.
	{plain: []plainBudget{{remaining: "X-Rate-Limit-Remaining", limit: "X-Rate-Limit-Limit", reset: "X-Rate-Limit-Reset"}}},
}

func anthropic(fields string, costs bool) plainBudget {
	prefix := http.CanonicalHeaderKey("Anthropic-" + fields)
	return plainBudget{name: strings.TrimPrefix(fields, "ratelimit-"), remaining: prefix + "-Remaining", reset: prefix + "-Reset", limit: prefix + "-Limit", refills: true, costs: costs}
}

// read returns the remaining budgets in a response, or nil if there are none.
func (d *dialectRead) read(h http.Header, clock time.Time) (budgets []AdviceBudget) {
	if d.structured != nil {
		return d.structured(h)
	}
	for _, p := range d.plain {
		budgets = append(budgets, p.read(h, clock)...)
	}
	return budgets
}

// read returns the budgets in the fields, usually one. Proxies or nested limiters may have
// made lists of the fields. If each value has its own reset, read returns one budget for
// each. Otherwise it returns a single budget with the least remaining and the longest reset.
func (p *plainBudget) read(h http.Header, clock time.Time) []AdviceBudget {
	b := AdviceBudget{Name: p.name, Costs: p.costs, Refills: p.refills}
	if limit := seconds(first(h[p.limit])); limit > 0 {
		b.Limit = int64(min(limit, limitfields.MaxInteger))
	}
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
	if len(resets) == 0 { // Docker Hub: "76;w=21600"
		_, w, _ := strings.Cut(first(h[p.remaining]), ";w=")
		if b.Window = span(seconds(w)); b.Window == 0 {
			return nil
		}
		resets = []time.Duration{b.Window}
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

// leftsOf reads a field's numbers, usually one. If a value is not a number of at least 0, it returns nil.
func leftsOf(lines []string) (lefts []int64) {
	for _, line := range lines {
		if len(line) > maxStructured {
			return nil
		}
		for text := range strings.SplitSeq(line, ",") {
			text, _, _ = strings.Cut(text, ";")
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

// resets returns the times until the reset, or nil if no field has one.
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

// isNumber reports whether a text can be a number in JSON's form. "Infinity"
// and "NaN" are not numbers: a server's bug must not close a host for years.
func isNumber(s string) bool { return s != "" && strings.Trim(s, "0123456789.eE+-") == "" }

// resetOf reads a reset in any common form: seconds from now, Unix time, a span such as "6m0s", or a date.
func resetOf(value string, clock time.Time) (time.Duration, bool) {
	// A number may exceed a float's range.
	if at, err := strconv.ParseFloat(value, 64); isNumber(value) && (err == nil || math.IsInf(at, 0)) {
		return fromNow(at, clock), at > 0
	}
	if d, err := time.ParseDuration(value); err == nil {
		return pace.Clamp(d), d > 0
	}
	return untilDate(value, clock)
}

// seconds returns the number at a value's beginning, without parameters, or 0 if there is none.
func seconds(value string) float64 {
	value, _, _ = strings.Cut(value, ";")
	n, _ := decimal(strings.TrimSpace(value))
	return n
}

// shopifyLeak is the time for Shopify's bucket to drain from full to empty.
const shopifyLeak = 20 * time.Second

// shopify reads the call limit of Shopify's REST API.
func shopify(h http.Header) []AdviceBudget {
	a, b, ok := strings.Cut(first(h["X-Shopify-Shop-Api-Call-Limit"]), "/")
	used, ok1 := decimal(a)
	limit, ok2 := decimal(b)
	if !ok || !ok1 || !ok2 || limit < 1 || limit > limitfields.MaxInteger {
		return nil
	}
	used = min(used, limit)
	return []AdviceBudget{{Name: "shopify", Left: int64(limit - used), Limit: int64(limit), Window: shopifyLeak, Refills: true,
		Reset: max(1, time.Duration(used/limit*float64(shopifyLeak)))}}
}

// draft11 reads RateLimit. If it has no window, draft11 uses the w of
// RateLimit-Policy. The editors' copy after draft 11 calls r and t a and w.
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
		if policies == nil {
			policies = parseItems(h[fieldPolicy])
		}
		quota, window, refills := policyOf(policies, it.name)
		if !ok {
			t = window
		}
		if t > 0 {
			budgets = append(budgets, AdviceBudget{Name: strings.ToLower(it.name), Left: left, Reset: span(float64(t)), Limit: quota, Window: span(float64(window)), Refills: refills})
		}
	}
	return budgets
}

// policyOf returns the q and the w of a policy, or 0 if there is none. If several have the name, it returns the
// longest. refills reports whether a server of this library has marked the budget as coming back unit by unit.
func policyOf(policies []item, name string) (quota, longest int64, refills bool) {
	for _, p := range policies {
		if strings.EqualFold(p.name, name) {
			if w, _ := p.get("w"); w >= longest {
				quota, _ = p.get("q")
				longest, refills = w, p.has(limitfields.Refills)
			}
		}
	}
	return max(0, quota), max(0, longest), refills
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
