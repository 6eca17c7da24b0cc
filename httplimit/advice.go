package httplimit

import (
	"cmp"
	"errors"
	"math"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/weir-go/ratelimit/internal/pace"
)

// Advice is what a response announces for later requests.
type Advice struct {
	// Refused is set if the server did not process the request: any method may then be sent again.
	Refused bool
	// NoRetry is set if the request must not be sent again.
	NoRetry bool
	// Wait is how long nothing may be sent. If zero, the response demands no
	// wait, and Budgets apply. To permit an immediate retry, set one nanosecond.
	Wait    time.Duration
	Budgets []AdviceBudget
}

// AdviceBudget is a server's remaining budget until a reset.
type AdviceBudget struct {
	// Name identifies a server's budget. If two budgets have the same name, the
	// stricter one counts. A [Transport] keeps only a hash of a name above 64 bytes.
	Name string
	// Left is how many requests may be sent, or their total cost if Costs is set.
	Left int64
	// Reset is the time until the reset, above 0.
	Reset time.Duration
	// Costs is set if a request counts as its cost ([WithCost]).
	Costs bool
	// Limit is the whole budget, and Window the time in which it comes back. Both are 0 if not known.
	Limit  int64
	Window time.Duration
	// Refills is set if the budget comes back bit by bit, like a bucket's, and is whole at Reset.
	Refills bool
}

// pace converts the advice for package pace.
func (a Advice) pace(now time.Time) pace.Advice {
	p := pace.Advice{Refused: a.Refused, Wait: pace.Clamp(a.Wait), Answered: true}
	for _, b := range a.Budgets {
		if b.Left >= 0 && b.Reset > 0 {
			p.Budgets = append(p.Budgets, pace.Budget{Policy: b.Name, Left: b.Left, Units: b.Costs, Until: now.Add(pace.Clamp(b.Reset)), Limit: b.Limit, Window: b.Window, Refills: b.Refills})
		}
	}
	return p
}

// statusOverloaded is the status of some overloaded servers, such as Anthropic's.
const statusOverloaded = 529

// statusCalm is "Enhance Your Calm". Twitter once sent it instead of 429.
const statusCalm = 420

// AdviceOf returns what a [Transport] without an Advice function would read from a response received
// now. Use it in an Advice function, to extend or record the advice, and in clients without a
// Transport. It may read the first KiB of a refusal's body; the body stays readable in full. A
// response from a cache has an Age. It shortens waits, and such a response's budgets are ignored.
func AdviceOf(resp *http.Response) Advice {
	var head []byte
	if wantsHead(resp) {
		head = headOf(resp)
	}
	return adviceOf(resp, head, time.Now())
}

// throttled lists the refusals of AWS services, as in their SDKs. The status may be any.
var throttled = []string{"Throttling", "ThrottlingException", "ThrottledException", "RequestThrottledException", "RequestThrottled", "TooManyRequestsException",
	"ProvisionedThroughputExceededException", "RequestLimitExceeded", "BandwidthLimitExceeded", "LimitExceededException", "SlowDown", "PriorRequestNotComplete",
	"EC2ThrottledException", "TransactionInProgressException"}

// isThrottled reports whether x-amzn-errortype has one of these errors. Its value
// may have a suffix, as in "ThrottlingException:http://internal.amazon.com/coral/".
func isThrottled(h http.Header) bool {
	kind, _, _ := strings.Cut(first(h["X-Amzn-Errortype"]), ":")
	return slices.Contains(throttled, strings.TrimSpace(kind))
}

// wantsHead reports whether the time to wait may be only in the answer's body.
func wantsHead(resp *http.Response) bool {
	switch resp.StatusCode {
	case http.StatusTooManyRequests, http.StatusForbidden, http.StatusServiceUnavailable, statusOverloaded:
		return !slices.ContainsFunc(retryFields, func(f retryField) bool { return len(resp.Header[f.name]) > 0 })
	}
	return false
}

func adviceOf(resp *http.Response, head []byte, now time.Time) (a Advice) {
	h := resp.Header
	age := ageOf(h)
	clock := serversClock(h, now, age)
	a.NoRetry = strings.EqualFold(first(h["X-Should-Retry"]), "false") || strings.EqualFold(first(h["Stripe-Should-Retry"]), "false")
	switch resp.StatusCode {
	case http.StatusTooManyRequests, statusOverloaded, statusCalm:
		a.Refused = true
		a.Wait = cmp.Or(waitOf(h, clock, age), aged(bodyWait(head), age))
	case http.StatusServiceUnavailable:
		a.Wait = cmp.Or(waitOf(h, clock, age), aged(bodyWait(head), age))
	case http.StatusRequestTimeout, http.StatusInternalServerError, http.StatusBadGateway:
		a.Wait = waitOf(h, clock, age)
	case http.StatusForbidden: // GitHub's secondary limits use it
		if a.Wait = waitOf(h, clock, age); a.Wait == 0 && secondary.Match(head) {
			a.Wait = secondaryWait
		}
		a.Refused = a.Wait > 0
	case http.StatusTeapot, http.StatusRequestEntityTooLarge: // Binance's bans use 418; 413 is for a body too large for now
		a.Wait = waitOf(h, clock, age)
		a.Refused = a.Wait > 0
	}
	if isThrottled(h) {
		a.Refused, a.Wait = true, cmp.Or(a.Wait, waitOf(h, clock, age))
	}
	if resp.StatusCode == http.StatusTooManyRequests && a.Wait == 0 && secondary.Match(head) && first(h["X-Ratelimit-Remaining"]) != "0" {
		a.Wait = secondaryWait
	}
	if a.Wait > 0 || age > 0 {
		return a // a wait is more precise than the end of any window
	}
	for _, d := range dialectsRead {
		budgets := strictest(d.read(h, clock))
		if slices.ContainsFunc(budgets, func(b AdviceBudget) bool { return b.Reset > 0 }) {
			a.Budgets = budgets
			break
		}
		if a.Budgets == nil {
			a.Budgets = budgets // all resets have passed
		}
	}
	if resp.StatusCode == http.StatusForbidden { // GitHub's primary limit uses it
		for _, b := range a.Budgets {
			a.Refused = a.Refused || b.Left == 0
		}
	}
	return a
}

// strictest removes redundant budgets. A budget is redundant if
// another one of the same name leaves no more, for at least as long.
func strictest(budgets []AdviceBudget) []AdviceBudget {
	if len(budgets) < 2 {
		return budgets
	}
	order := make([]int, len(budgets))
	for i := range order {
		order[i] = i
	}
	costs := func(b AdviceBudget) int {
		if b.Costs {
			return 1
		}
		return 0
	}
	slices.SortStableFunc(order, func(i, j int) int {
		a, b := budgets[i], budgets[j]
		return cmp.Or(strings.Compare(a.Name, b.Name), cmp.Compare(costs(a), costs(b)), cmp.Compare(a.Left, b.Left), cmp.Compare(b.Reset, a.Reset))
	})
	binding := order[:1]
	for _, i := range order[1:] {
		b, last := budgets[i], budgets[binding[len(binding)-1]]
		if b.Name != last.Name || b.Costs != last.Costs || b.Reset > last.Reset {
			binding = append(binding, i)
		}
	}
	slices.Sort(binding)
	kept := make([]AdviceBudget, len(binding))
	for at, i := range binding {
		kept[at] = budgets[i]
	}
	return kept
}

// ageOf returns how long an answer has been in caches (RFC 9111, section 5.1), or 0 if it comes from the server
// itself. The age shortens a wait. Budgets in a cached answer are ignored, because they are as old as the answer.
func ageOf(h http.Header) time.Duration {
	age, _, _ := strings.Cut(first(h["Age"]), ",")
	seconds, err := strconv.ParseUint(strings.TrimSpace(age), 10, 64)
	if err != nil && !errors.Is(err, strconv.ErrRange) {
		return 0
	}
	return span(float64(seconds))
}

// aged returns the rest of a wait since the server made its answer. If the wait is over, aged returns one nanosecond.
func aged(wait, age time.Duration) time.Duration {
	if wait <= 0 {
		return 0
	}
	return max(wait-age, 1)
}

// serversClock returns the time of the server's clock at its answer. Other dates of
// the server are compared with it, because its clock may differ from the client's.
func serversClock(h http.Header, now time.Time, age time.Duration) time.Time {
	if date, ok := dateOf(first(h["Date"])); ok {
		return date
	}
	return now.Add(-age)
}

// retryField is a field with a retry's time.
type retryField struct {
	name string
	read func(value string, clock time.Time) (time.Duration, bool)
}

// retryFields are the fields with a retry's time: Retry-After, the finer fields of OpenAI
// and Azure, and other servers' own fields. The first one with a future time counts.
var retryFields = []retryField{
	{"Retry-After-Ms", retryAfterMs},
	{"X-Ms-Retry-After-Ms", retryAfterMs},
	{"Retry-After", retryAfter},
	{"X-Ratelimit-Retry-After", retryAfter},
}

// waitOf returns the time until a retry, or 0 if no field has one. If the
// retry is already due, it returns one nanosecond, because zero means no wait.
func waitOf(h http.Header, clock time.Time, age time.Duration) (wait time.Duration) {
	for _, f := range retryFields {
		d, ok := longest(h[f.name], func(value string) (time.Duration, bool) { return f.read(value, clock) })
		switch {
		case d > 0:
			return aged(d, age)
		case ok:
			wait = 1
		}
	}
	return wait
}

// longest reads all values of a field, and returns the longest time. A proxy may have joined several
// lines into a list. A date contains a comma, too, so an unreadable part is joined with the next one.
func longest(lines []string, read func(value string) (time.Duration, bool)) (longest time.Duration, ok bool) {
	for _, line := range lines {
		if len(line) > maxStructured {
			continue
		}
		parts := strings.Split(line, ",")
		for i := 0; i < len(parts); i++ {
			d, known := read(strings.TrimSpace(parts[i]))
			if !known && i+1 < len(parts) {
				if d, known = read(strings.TrimSpace(parts[i] + "," + parts[i+1])); known {
					i++
				}
			}
			if known {
				longest, ok = max(longest, d), true
			}
		}
	}
	return longest, ok
}

// retryAfter reads Retry-After (RFC 9110, section 10.2.3): a number of seconds or a date. Some servers deviate from
// the standard: they send a fraction of a second, a Unix time, a span such as "30s", or a date in another form.
func retryAfter(value string, clock time.Time) (time.Duration, bool) {
	if n, ok := decimal(value); ok {
		return fromNow(n, clock), true
	}
	if d, err := time.ParseDuration(value); err == nil {
		return pace.Clamp(d), d >= 0
	}
	return untilDate(value, clock)
}

// retryAfterMs reads a number of milliseconds.
func retryAfterMs(value string, clock time.Time) (time.Duration, bool) {
	n, ok := decimal(value)
	if n >= minUnix*1e3 {
		return fromNow(n, clock), ok
	}
	return span(n / 1000), ok
}

// minUnix is the smallest Unix time in seconds: September 2001. As a span it would be 31 years.
const minUnix = 1e9

// fromNow converts a number to the time from now. The number is a span in seconds, or a Unix time in seconds, milliseconds,
// microseconds or nanoseconds. Its size shows the unit, because the years 1973 to 5138 have their own range in each unit.
func fromNow(n float64, clock time.Time) time.Duration {
	unit := 1.0
	switch {
	case n < minUnix:
		return span(n)
	case n >= 1e17:
		unit = 1e9
	case n >= 1e14:
		unit = 1e6
	case n >= 1e11:
		unit = 1e3
	}
	return span(n/unit - (float64(clock.Unix()) + float64(clock.Nanosecond())/1e9)) // UnixNano does not reach the year 9999
}

// dateLayouts are the accepted forms of dates. These are the forms of RFC
// 9110, section 5.6.7, also with the zone UTC or a numeric zone, and RFC 3339.
var dateLayouts = []string{
	http.TimeFormat, "Mon, 2 Jan 2006 15:04:05 MST", "Mon, 2 Jan 2006 15:04:05 -0700", time.RFC850, time.ANSIC,
	time.RFC3339, "2006-01-02T15:04Z07:00", // these also accept fractions of a second
}

// dateOf reads a date. It rejects a zone whose offset is not known.
func dateOf(value string) (at time.Time, ok bool) {
	for _, layout := range dateLayouts {
		at, err := time.Parse(layout, value)
		if err != nil {
			continue
		}
		name, offset := at.Zone()
		if strings.HasSuffix(layout, "MST") && offset == 0 && name != "UTC" && name != "GMT" {
			continue // time.Parse takes an unknown name for UTC, and "+0000" for a name
		}
		return at, true
	}
	return at, false
}

func untilDate(value string, clock time.Time) (time.Duration, bool) {
	at, ok := dateOf(value)
	if !ok {
		return 0, false
	}
	return pace.Clamp(at.Sub(clock)), true
}

// decimal reads a number of digits and at most one dot, without a sign, an
// exponent or "Infinity". If there are too many digits, it returns infinity.
func decimal(s string) (n float64, ok bool) {
	if strings.Trim(s, "0123456789.") != "" {
		return 0, false
	}
	n, err := strconv.ParseFloat(s, 64)
	return n, err == nil || math.IsInf(n, 0)
}

// span converts seconds to a Duration.
func span(seconds float64) time.Duration {
	if !(seconds > 0) { // also false for a NaN
		return 0
	}
	return pace.Clamp(time.Duration(math.Ceil(min(seconds, pace.MaxWait.Seconds()) * float64(time.Second))))
}
