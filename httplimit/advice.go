package httplimit

import (
	"errors"
	"math"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/weir-go/ratelimit/internal/pace"
)

// Advice is what a response says about the next requests.
type Advice struct {
	// Refused reports that the server did not process the request: any method may be sent again.
	Refused bool
	// NoRetry reports that the request must not be sent again.
	NoRetry bool
	// Wait is how long nothing may be sent. If zero, Budgets count.
	Wait    time.Duration
	Budgets []AdviceBudget
}

// AdviceBudget is how much a server leaves until a reset.
type AdviceBudget struct {
	// Name tells the budgets of a server apart.
	Name string
	// Left is how many requests may be sent, or what they may cost.
	Left int64
	// Reset is the time until the reset, above 0.
	Reset time.Duration
	// Costs reports that a request counts as its cost ([WithCost]).
	Costs bool
}

// pace returns the advice as package pace has it.
func (a Advice) pace(now time.Time) pace.Advice {
	p := pace.Advice{Refused: a.Refused, Wait: pace.Clamp(a.Wait), Answered: true}
	for _, b := range a.Budgets {
		if b.Left >= 0 && b.Reset > 0 {
			p.Budgets = append(p.Budgets, pace.Budget{Policy: b.Name, Left: b.Left, Units: b.Costs, Until: now.Add(pace.Clamp(b.Reset))})
		}
	}
	return p
}

// statusOverloaded is what some servers answer that have too much to do, such as Anthropic's.
const statusOverloaded = 529

// AdviceOf returns how a [Transport] without an Advice function reads a response received now.
func AdviceOf(resp *http.Response) Advice { return adviceOf(resp, time.Now()) }

func adviceOf(resp *http.Response, now time.Time) (a Advice) {
	h := resp.Header
	clock := serversClock(h, now)
	a.NoRetry = strings.EqualFold(first(h["X-Should-Retry"]), "false")
	switch resp.StatusCode {
	case http.StatusTooManyRequests, statusOverloaded:
		a.Refused = true
		a.Wait = waitOf(h, clock)
	case http.StatusServiceUnavailable:
		a.Wait = waitOf(h, clock)
	case http.StatusForbidden: // GitHub's secondary limits
		a.Wait = waitOf(h, clock)
		a.Refused = a.Wait > 0
	}
	if a.Wait > 0 || isCached(h) {
		return a // a wait is what counts, before the end of any window
	}
	for _, d := range dialectsRead {
		budgets := d.read(h, clock)
		if slices.ContainsFunc(budgets, func(b AdviceBudget) bool { return b.Reset > 0 }) {
			a.Budgets = budgets
			break
		}
		if a.Budgets == nil {
			a.Budgets = budgets // of which the reset has come
		}
	}
	if resp.StatusCode == http.StatusForbidden { // GitHub's primary limit
		for _, b := range a.Budgets {
			a.Refused = a.Refused || b.Left == 0
		}
	}
	return a
}

// isCached reports whether a cache has answered, by Age (RFC 9111, section 5.1). What it says
// to be left was left when it got the answer: it is ignored.
func isCached(h http.Header) bool {
	age, _, _ := strings.Cut(first(h["Age"]), ",")
	seconds, err := strconv.ParseUint(strings.TrimSpace(age), 10, 64)
	return seconds > 0 && (err == nil || errors.Is(err, strconv.ErrRange))
}

// serversClock returns what the server's clock said when it answered, to compare the
// server's other dates with: it may differ from the client's.
func serversClock(h http.Header, now time.Time) time.Time {
	if text := first(h["Date"]); text != "" {
		if date, err := http.ParseTime(text); err == nil {
			return date
		}
	}
	return now
}

// waitOf reads when to retry: Retry-After, or the finer fields that OpenAI and Azure send beside it, or what others send in
// its place. The first that tells a time counts.
func waitOf(h http.Header, clock time.Time) time.Duration {
	for _, field := range []string{"Retry-After-Ms", "X-Ms-Retry-After-Ms"} {
		if wait := decimal(first(h[field])) / 1000; wait > 0 {
			return span(wait)
		}
	}
	for _, field := range []string{"Retry-After", "X-Ratelimit-Retry-After"} {
		if wait := retryAfter(first(h[field]), clock); wait > 0 {
			return wait
		}
	}
	return 0
}

// retryAfter reads Retry-After (RFC 9110, section 10.2.3), 0 if that says nothing. A
// fraction of a second is against the standard; some servers send it.
func retryAfter(value string, clock time.Time) time.Duration {
	if wait := decimal(value); wait > 0 {
		return span(wait)
	}
	if date, err := http.ParseTime(value); err == nil {
		return pace.Clamp(date.Sub(clock))
	}
	return 0
}

// decimal reads a number of nothing but digits and a dot: no sign, exponent or "Infinity". It returns 0 if it is none, and
// infinity if there are too many digits.
func decimal(s string) float64 {
	if strings.Trim(s, "0123456789.") != "" {
		return 0
	}
	n, _ := strconv.ParseFloat(s, 64)
	return n
}

// span converts seconds.
func span(seconds float64) time.Duration {
	if !(seconds > 0) { // a NaN too
		return 0
	}
	return pace.Clamp(time.Duration(math.Ceil(min(seconds, pace.MaxWait.Seconds()) * float64(time.Second))))
}
