package httplimit

import (
	"math"
	"net/http"
	"strconv"
	"time"

	"github.com/weir-go/ratelimit"
)

// Dialect is how limits are told in header fields. Go writes field names in its
// canonical form, such as Ratelimit-Policy; case does not matter in them.
type Dialect uint8

const (
	// DialectDraft11 is RateLimit-Policy and RateLimit as structured fields, of
	// draft-ietf-httpapi-ratelimit-headers-11 (and alike since -08). Each limit that
	// is known is a policy; RateLimit tells of the one that binds. Middleware inside
	// middleware adds its own items to the lists. If a name is used already, it
	// gets a number: "default-2". The older dialects have room for one limit: of nested
	// middlewares, the one that denies is told, or else the one that leaves the least.
	//
	// Known are the limits that the limiter lists, and the one that has decided. A key's
	// own plan ([ratelimit.Options].LimitFor) is known when it has decided. It is
	// listed in place of the limit of the same name, or of a zero Limit, by which a
	// limiter lists a limit that differs from key to key. A layer that was skipped is
	// listed too. A limit that was changed ([ratelimit.Keyed.SetLimit]) is listed with
	// its new figures once it has decided.
	//
	// The policy's q is the limit's capacity and w the seconds in which it is
	// regained, rounded up; of a sliding counter, its window. RateLimit's t is chosen so
	// that r per t invites no more than the rate: it is w; of a fixed window, what is left
	// of it; of a sliding counter, the time until the key is fresh, which is up to
	// 2·w, and at least w; and after a denial the wait. There is no RateLimit if it is
	// not known how much is left: a cost can never pass, or the layer that binds charges
	// a cost of its own ([ratelimit.Charging]).
	DialectDraft11 Dialect = iota
	// DialectDraft06 is RateLimit-Limit, RateLimit-Remaining and RateLimit-Reset
	// in seconds from now, of the drafts up to -06.
	DialectDraft06
	// DialectXEpoch is X-RateLimit-Limit, X-RateLimit-Remaining and
	// X-RateLimit-Reset in Unix seconds, as GitHub sends them.
	DialectXEpoch
	// DialectXDelta is the same with Reset in seconds from now, as Envoy sends them.
	DialectXDelta
	// DialectNone sends only Retry-After.
	DialectNone

	dialects = iota
)

// The names of the fields in the form that http.Header keeps them in.
const (
	fieldPolicy = "Ratelimit-Policy"
	fieldLimit  = "Ratelimit"
)

var legacyFields = [dialects][3]string{
	DialectDraft06: {"Ratelimit-Limit", "Ratelimit-Remaining", "Ratelimit-Reset"},
	DialectXEpoch:  {"X-Ratelimit-Limit", "X-Ratelimit-Remaining", "X-Ratelimit-Reset"},
	DialectXDelta:  {"X-Ratelimit-Limit", "X-Ratelimit-Remaining", "X-Ratelimit-Reset"},
}

// maxInteger is the largest Integer of a structured field (RFC 9651, section 3.3.1).
const maxInteger = 999_999_999_999_999

// clamp brings a figure into the range of a quota.
func clamp(n int64) int64 { return min(max(n, 0), maxInteger) }

// seconds rounds up to whole seconds.
func seconds(d time.Duration) int64 {
	s := int64(d / time.Second)
	if d%time.Second > 0 {
		s++
	}
	return s
}

// setLimits writes the fields that tell how much is left. The values are kept in slots,
// of which it uses up to three. If a layer with a cost of its own binds, the decision
// does not tell how much is left: Remaining is above the limit's capacity then, and is
// not written.
func (m *Middleware) setLimits(h http.Header, v *view, d *ratelimit.Decision, slots []string) {
	told := v.name != "" && d.Remaining <= v.limit.Capacity()
	switch {
	case m.opts.Dialect == DialectDraft11:
		m.setPolicy(h, v, slots[0:1:1])
		if told {
			add(h, fieldLimit, v.standing(d), slots[1:2:2])
		}
	case !told:
		m.setPolicy(h, v, slots[0:1:1])
	case m.opts.Dialect != DialectNone:
		m.setLegacy(h, v, d, slots)
	}
}

// setLegacy writes the three fields of an older dialect. They have room for one limit: of
// this middleware and those around it, the stricter is told, or the one that denies.
func (m *Middleware) setLegacy(h http.Header, v *view, d *ratelimit.Decision, slots []string) {
	names := &legacyFields[m.opts.Dialect]
	left, reset := clamp(int64(d.Remaining)), m.reset(v, d)
	if d.Allowed && stricter(h, names, left, reset) {
		return
	}
	set(h, names[0], v.quota, slots[0:1:1])
	set(h, names[1], strconv.FormatInt(left, 10), slots[1:2:2])
	set(h, names[2], strconv.FormatInt(reset, 10), slots[2:3:3])
}

// stricter reports whether the fields that are there leave less than this, or as much
// and for longer.
func stricter(h http.Header, names *[3]string, left, reset int64) bool {
	theirs, err := strconv.ParseInt(first(h[names[1]]), 10, 64)
	if err != nil || theirs != left {
		return err == nil && theirs < left
	}
	at, err := strconv.ParseInt(first(h[names[2]]), 10, 64)
	return err == nil && at >= reset
}

func first(lines []string) string {
	if len(lines) == 0 {
		return ""
	}
	return lines[0]
}

// setPolicy writes the field that tells what the limit is. In the older dialects it leaves
// what a middleware around this one has told, so that the three fields are of one limit.
func (m *Middleware) setPolicy(h http.Header, v *view, slot []string) {
	switch {
	case v.name == "" || m.opts.Dialect == DialectNone:
	case m.opts.Dialect == DialectDraft11:
		add(h, fieldPolicy, v.list.policies, slot)
	case len(h[legacyFields[m.opts.Dialect][1]]) == 0:
		set(h, legacyFields[m.opts.Dialect][0], v.quota, slot)
	}
}

// set is Header.Set without an allocation: the name is canonical, and the value's
// slice is given.
func set(h http.Header, name, value string, slot []string) {
	slot[0] = value
	h[name] = slot
}

// add adds a line to a list: middleware may be inside other middleware.
func add(h http.Header, name, value string, slot []string) {
	if lines := h[name]; len(lines) > 0 {
		h[name] = append(lines, value)
		return
	}
	set(h, name, value, slot)
}

// standing is the item of RateLimit.
func (v *view) standing(d *ratelimit.Decision) string {
	b := append(make([]byte, 0, 64), v.quoted...)
	b = append(b, ";r="...)
	b = strconv.AppendInt(b, clamp(int64(d.Remaining)), 10)
	if t := v.effective(d); t > 0 {
		b = append(b, ";t="...)
		b = strconv.AppendInt(b, t, 10)
	}
	return string(b)
}

// effective is the window within which no more than Remaining can be used. A sliding
// counter regains in up to two windows; less than one would invite more than the rate.
func (v *view) effective(d *ratelimit.Decision) int64 {
	switch left := clamp(seconds(d.ResetAfter)); {
	case !d.Allowed && (d.RetryAfter > 0 || v.window > 0):
		return max(1, clamp(seconds(d.RetryAfter))) // as Retry-After: that must not come before
	case v.limit.Algorithm == ratelimit.AlgorithmFixedWindow && left > 0:
		return min(left, v.window)
	case v.limit.Algorithm == ratelimit.AlgorithmSlidingCounter:
		return max(v.window, min(left, v.refill()))
	}
	return v.window
}

// refill is the seconds after which a key that has spent everything is fresh.
func (v *view) refill() int64 {
	if v.limit.Algorithm == ratelimit.AlgorithmSlidingCounter {
		return clamp(seconds(2 * min(v.limit.Rate.Per, math.MaxInt64/2)))
	}
	return v.window
}

// reset is when the quota is there again, as the older dialects tell it: when the
// same request passes if it was denied, else when the key is fresh. Of several limits
// ResetAfter is the longest, so this one's own figure bounds it.
func (m *Middleware) reset(v *view, d *ratelimit.Decision) int64 {
	left := min(d.ResetAfter, time.Duration(min(v.refill(), maxSeconds))*time.Second)
	if !d.Allowed && d.RetryAfter > 0 {
		left = d.RetryAfter
	}
	if m.opts.Dialect != DialectXEpoch {
		return clamp(seconds(left))
	}
	at := m.opts.Now().Add(left)
	if at.Nanosecond() > 0 {
		return at.Unix() + 1
	}
	return at.Unix()
}

// maxSeconds is how many seconds a time.Duration can hold.
const maxSeconds = int64(math.MaxInt64 / time.Second)
