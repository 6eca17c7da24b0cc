// Package apis plays clients of public APIs in virtual time. It measures how much of a server's limit they
// use, and how often they are refused. The servers' limits and header fields follow the APIs' documentation.
package apis

import (
	"context"
	"fmt"
	"math"
	"net/http"
	"strings"
	"time"

	"github.com/weir-go/ratelimit"
	"github.com/weir-go/ratelimit/httplimit"
)

// API is a server's limit, and how it announces the limit.
type API struct {
	Name  string
	Limit ratelimit.Limit
	// Figures reports whether the answers contain the remaining budget.
	Figures bool
	// Few marks APIs whose windows admit few requests. In most of these windows a
	// process is refused, because it cannot know the other processes' requests.
	Few    bool
	answer func(h http.Header, d ratelimit.Decision, limit ratelimit.Limit)
	own    *httplimit.Options // options of this library's middleware, used instead of answer
}

// PerHour returns the maximum number of requests that the limit admits in an hour, including its burst.
func (a API) PerHour() int { return within(a.Limit, time.Hour, true) }

// Cycle returns the time until each of several processes has had room for one request:
// until a bucket has regained a unit for each process, or a window its whole capacity.
func (a API) Cycle(processes int) time.Duration {
	per, units := a.Limit.Rate.Per, a.Limit.Rate.Units
	switch a.Limit.Algorithm {
	case ratelimit.AlgorithmTokenBucket, ratelimit.AlgorithmLeakyBucket:
		return time.Duration(processes) * per / time.Duration(units)
	}
	return per
}

// within returns the maximum number of requests that the limit admits
// in the time d. If fresh is true, the budget is full at first.
func within(l ratelimit.Limit, d time.Duration, fresh bool) int {
	n := int(math.Floor(float64(d) / float64(l.Rate.Per) * float64(l.Rate.Units)))
	if l.Algorithm == ratelimit.AlgorithmTokenBucket && fresh {
		n += l.Burst
	}
	return n
}

// Two limits that several APIs share.
var (
	minute = ratelimit.PerMinute(50)
	bucket = ratelimit.TokenBucket(minute, 50)
)

// All returns the APIs: this library's server with each dialect and algorithm, and other services.
//
// Sources: Anthropic, "Rate limits" (50 requests a minute in tier 1, a token bucket; the reset is when the limit is whole). OpenAI, "Rate
// limits in headers" (the reset is the time until the initial state). GitHub, "Rate limits for the REST API" (5,000 an hour). Discord,
// "Rate Limits" (per route, such as 5 in 5 s, with Reset-After). Shopify, "REST Admin API rate limits" (a bucket of 40 that leaks 2 a
// second). Notion, "Request limits" (an average of 3 a second, Retry-After in whole seconds). Slack, "Rate limits" (tier 3: 50 a minute,
// Retry-After). Stripe, "Rate limits" (25 a second in a sandbox; no Retry-After).
func All() []API {
	own := func(name string, limit ratelimit.Limit, d httplimit.Dialect) API {
		return API{Name: "own, " + name, Limit: limit, Figures: d != httplimit.DialectNone, own: &httplimit.Options{Dialect: d}}
	}
	return []API{
		own("draft 11", bucket, httplimit.DialectDraft11),
		own("draft 06", bucket, httplimit.DialectDraft06),
		own("X-, epoch", bucket, httplimit.DialectXEpoch),
		own("X-, delta", bucket, httplimit.DialectXDelta),
		own("Retry-After alone", bucket, httplimit.DialectNone),
		own("ten a minute, burst 100", ratelimit.TokenBucket(ratelimit.PerMinute(10), 100), httplimit.DialectDraft11),
		own("leaky bucket", ratelimit.LeakyBucket(minute, 50), httplimit.DialectDraft11),
		own("fixed window", ratelimit.FixedWindow(minute), httplimit.DialectDraft11),
		own("sliding log", ratelimit.SlidingLog(minute), httplimit.DialectDraft11),
		own("sliding counter", ratelimit.SlidingCounter(minute), httplimit.DialectDraft11),
		{Name: "Anthropic", Limit: bucket, Figures: true, answer: anthropic},
		{Name: "OpenAI", Limit: ratelimit.TokenBucket(ratelimit.PerMinute(60), 60), Figures: true, answer: openai},
		{Name: "GitHub", Limit: ratelimit.FixedWindow(ratelimit.PerHour(5000)), Figures: true, answer: github},
		{Name: "Discord", Limit: ratelimit.FixedWindow(ratelimit.Rate{Units: 5, Per: 5 * time.Second}), Figures: true, Few: true, answer: discord},
		{Name: "Shopify", Limit: ratelimit.TokenBucket(ratelimit.PerSecond(2), 40), Figures: true, answer: shopify},
		{Name: "Notion", Limit: ratelimit.TokenBucket(ratelimit.PerSecond(3), 10), answer: retryAfter},
		{Name: "Slack", Limit: ratelimit.FixedWindow(minute), answer: retryAfter},
		{Name: "Stripe", Limit: ratelimit.TokenBucket(ratelimit.PerSecond(25), 25), answer: nothing},
		{Name: "six a minute", Limit: ratelimit.TokenBucket(ratelimit.PerMinute(6), 6), answer: retryAfter},
	}
}

func nothing(http.Header, ratelimit.Decision, ratelimit.Limit) {}

func retryAfter(h http.Header, d ratelimit.Decision, _ ratelimit.Limit) {
	if !d.Allowed {
		h.Set("Retry-After", fmt.Sprint(up(d.RetryAfter)))
	}
}

func anthropic(h http.Header, d ratelimit.Decision, limit ratelimit.Limit) {
	h.Set("Anthropic-Ratelimit-Requests-Limit", fmt.Sprint(limit.Burst))
	h.Set("Anthropic-Ratelimit-Requests-Remaining", fmt.Sprint(d.Remaining))
	h.Set("Anthropic-Ratelimit-Requests-Reset", clock(h).Add(d.ResetAfter).UTC().Format(time.RFC3339))
	retryAfter(h, d, limit)
}

func openai(h http.Header, d ratelimit.Decision, limit ratelimit.Limit) {
	h.Set("X-Ratelimit-Limit-Requests", fmt.Sprint(limit.Burst))
	h.Set("X-Ratelimit-Remaining-Requests", fmt.Sprint(d.Remaining))
	h.Set("X-Ratelimit-Reset-Requests", d.ResetAfter.Round(time.Millisecond).String())
}

func github(h http.Header, d ratelimit.Decision, limit ratelimit.Limit) {
	h.Set("X-Ratelimit-Limit", fmt.Sprint(limit.Rate.Units))
	h.Set("X-Ratelimit-Remaining", fmt.Sprint(d.Remaining))
	h.Set("X-Ratelimit-Reset", fmt.Sprint(clock(h).Add(d.ResetAfter+time.Second-1).Unix()))
	h.Set("X-Ratelimit-Resource", "core")
}

func discord(h http.Header, d ratelimit.Decision, limit ratelimit.Limit) {
	h.Set("X-Ratelimit-Limit", fmt.Sprint(limit.Rate.Units))
	h.Set("X-Ratelimit-Remaining", fmt.Sprint(d.Remaining))
	h.Set("X-Ratelimit-Reset", fmt.Sprintf("%.3f", float64(clock(h).Add(d.ResetAfter).UnixMilli())/1e3))
	h.Set("X-Ratelimit-Reset-After", fmt.Sprintf("%.3f", math.Ceil(d.ResetAfter.Seconds()*1e3)/1e3))
	h.Set("X-Ratelimit-Bucket", "abcd1234")
	retryAfter(h, d, limit)
}

func shopify(h http.Header, d ratelimit.Decision, limit ratelimit.Limit) {
	h.Set("X-Shopify-Shop-Api-Call-Limit", fmt.Sprintf("%d/%d", limit.Burst-d.Remaining, limit.Burst))
	if !d.Allowed {
		h.Set("Retry-After", "2.0")
	}
}

// clock reads the server's time from the answer's Date.
func clock(h http.Header) time.Time {
	at, err := http.ParseTime(h.Get("Date"))
	if err != nil {
		return time.Now()
	}
	return at.Add(time.Duration(time.Now().Nanosecond()))
}

// up returns the duration in seconds, rounded up.
func up(d time.Duration) int64 { return int64((d + time.Second - 1) / time.Second) }

// server is an API in operation.
type server struct {
	limiter *ratelimit.Keyed[string]
	handler http.Handler
	skew    time.Duration // how far its clock is ahead
}

func (a API) start(skew time.Duration) *server {
	limiter := ratelimit.Must(ratelimit.New[string](a.Limit, nil))
	s := &server{limiter: limiter, skew: skew}
	if a.own != nil {
		account := func(*http.Request) (string, error) { return "account", nil }
		served := http.HandlerFunc(func(http.ResponseWriter, *http.Request) {})
		s.handler = ratelimit.Must(httplimit.New(ratelimit.Map(limiter, account), a.own)).Wrap(served)
		return s
	}
	s.handler = http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		d, err := limiter.Take(context.Background(), "account", 1)
		if err != nil {
			http.Error(w, err.Error(), http.StatusInternalServerError)
			return
		}
		a.answer(w.Header(), d, d.Limit)
		if !d.Allowed {
			w.WriteHeader(http.StatusTooManyRequests)
		}
	})
	return s
}

// Named returns the APIs whose names have a prefix.
func Named(prefix string) (found []API) {
	for _, a := range All() {
		if strings.HasPrefix(a.Name, prefix) {
			found = append(found, a)
		}
	}
	return found
}
