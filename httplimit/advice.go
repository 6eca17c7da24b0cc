package httplimit

import (
	"errors"
	"math"
	"net/http"
	"strconv"
	"strings"
	"time"

	"github.com/weir-go/ratelimit/internal/pace"
)

// adviceOf reads a response that was received at an instant. Fields that are malformed
// are ignored.
func adviceOf(resp *http.Response, now time.Time) (a pace.Advice) {
	h := resp.Header
	clock := serversClock(h, now)
	a.Answered = true
	a.Refused = resp.StatusCode == http.StatusTooManyRequests
	if a.Refused || resp.StatusCode == http.StatusServiceUnavailable {
		a.Wait = retryAfter(h.Get("Retry-After"), clock)
	}
	if a.Wait > 0 {
		return a // it is what counts, before the end of any window
	}
	if isCached(h) {
		return a
	}
	for _, read := range []func(http.Header, time.Time, time.Time) []pace.Budget{draft11, draft06, xRateLimit} {
		if a.Budgets = read(h, clock, now); a.Budgets != nil {
			return a
		}
	}
	return a
}

// isCached reports whether a cache has answered, by Age (RFC 9111, section 5.1). What it says
// to be left was left when it got the answer: it is ignored.
func isCached(h http.Header) bool {
	age, _, _ := strings.Cut(h.Get("Age"), ",")
	seconds, err := strconv.ParseUint(strings.TrimSpace(age), 10, 64)
	return seconds > 0 && (err == nil || errors.Is(err, strconv.ErrRange))
}

// serversClock returns what the server's clock said when it answered, to compare the
// server's other dates with: it may differ from the client's.
func serversClock(h http.Header, now time.Time) time.Time {
	if date, err := http.ParseTime(h.Get("Date")); err == nil {
		return date
	}
	return now
}

// retryAfter reads Retry-After (RFC 9110, section 10.2.3), 0 if that says nothing. A
// fraction of a second is against the standard; some servers send it.
func retryAfter(value string, clock time.Time) time.Duration {
	if value != "" && strings.Trim(value, "0123456789.") == "" { // no sign, exponent or "Infinity"
		s, _ := strconv.ParseFloat(value, 64) // 0 if there are two dots, infinite if there are too many digits
		return span(s)
	}
	if date, err := http.ParseTime(value); err == nil {
		return pace.Clamp(date.Sub(clock))
	}
	return 0
}

// span converts seconds.
func span(seconds float64) time.Duration {
	if !(seconds > 0) { // a NaN too
		return 0
	}
	return pace.Clamp(time.Duration(math.Ceil(min(seconds, pace.MaxWait.Seconds()) * float64(time.Second))))
}

// draft11 reads RateLimit, and where that has no t, the w of RateLimit-Policy.
func draft11(h http.Header, _, now time.Time) (budgets []pace.Budget) {
	var policies []item
	for _, it := range parseItems(h[fieldLimit]) {
		left, ok := it.get("r")
		if !ok || left < 0 {
			continue
		}
		t, ok := it.get("t")
		if !ok {
			if policies == nil {
				policies = parseItems(h[fieldPolicy])
			}
			t = policyWindow(policies, it.name)
		}
		if t > 0 {
			budgets = append(budgets, pace.Budget{Policy: strings.ToLower(it.name), Left: left, Until: now.Add(span(float64(t)))})
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

// draft06 reads RateLimit-Remaining and RateLimit-Reset, of the drafts up to -06.
func draft06(h http.Header, clock, now time.Time) []pace.Budget {
	return plain(h.Get(legacyFields[DialectDraft06][1]), h.Get(legacyFields[DialectDraft06][2]), clock, now)
}

// xRateLimit reads X-RateLimit-Remaining and X-RateLimit-Reset.
func xRateLimit(h http.Header, clock, now time.Time) []pace.Budget {
	return plain(h.Get(legacyFields[DialectXDelta][1]), h.Get(legacyFields[DialectXDelta][2]), clock, now)
}

// The smallest Reset that is a time of the Unix clock, in seconds and in milliseconds:
// September 2001 and March 1973. As a span they would be 31 and 3168 years.
const (
	minUnixSeconds = 1e9
	minUnixMillis  = 1e11
)

// plain reads a remaining quota, and a reset in either habit: seconds from now, or Unix
// time.
func plain(remaining, reset string, clock, now time.Time) []pace.Budget {
	left, err := strconv.ParseFloat(strings.TrimSpace(remaining), 64)
	at, err2 := strconv.ParseFloat(strings.TrimSpace(reset), 64)
	if err != nil || err2 != nil || !(left >= 0) || !(at > 0) {
		return nil
	}
	switch unix := float64(clock.UnixNano()) / float64(time.Second); {
	case at >= minUnixMillis:
		at = at/1000 - unix
	case at >= minUnixSeconds:
		at -= unix
	}
	return []pace.Budget{{Left: int64(min(left, maxInteger)), Until: now.Add(span(at))}}
}
