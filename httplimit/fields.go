package httplimit

import (
	"net/http"
	"strconv"
	"time"

	"github.com/weir-go/ratelimit"
	"github.com/weir-go/ratelimit/internal/limitfields"
)

// setLimits writes the fields with the remaining budget. It keeps up to three of their values in the
// slice. If the binding layer has its own cost, it writes no remaining budget, because the decision
// has none in units of the request. Such a decision has a Remaining above the limit's capacity.
func (m *Middleware) setLimits(h http.Header, v *limitfields.View, d *ratelimit.Decision, values []string) {
	known := v.Name != "" && d.Remaining <= v.Limit.Capacity()
	switch {
	case m.opts.Dialect == DialectDraft11:
		m.setPolicy(h, v, values[0:1:1])
		if known {
			add(h, fieldLimit, v.Standing(d), values[1:2:2])
		}
	case !known:
		m.setPolicy(h, v, values[0:1:1])
	case m.opts.Dialect != DialectNone:
		m.setLegacy(h, v, d, values)
	}
}

// setLegacy writes the three fields of an older dialect. They have room for one limit. This middleware may be
// inside others with limits of their own. The fields describe the denying limit, or otherwise the strictest.
func (m *Middleware) setLegacy(h http.Header, v *limitfields.View, d *ratelimit.Decision, values []string) {
	names := &legacyFields[m.opts.Dialect]
	left, reset := limitfields.Clamp(int64(d.Remaining)), m.reset(v, d)
	if d.Allowed && stricter(h, names, left, reset) {
		return
	}
	set(h, names[0], v.Quota, values[0:1:1])
	set(h, names[1], strconv.FormatInt(left, 10), values[1:2:2])
	set(h, names[2], strconv.FormatInt(reset, 10), values[2:3:3])
}

// stricter reports whether the present fields leave less than left, or as much for longer than reset.
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

// setPolicy writes the field with the limit itself. In the older dialects it
// keeps the field of an outer middleware, so the three fields describe one limit.
func (m *Middleware) setPolicy(h http.Header, v *limitfields.View, values []string) {
	switch {
	case v.Name == "" || m.opts.Dialect == DialectNone:
	case m.opts.Dialect == DialectDraft11:
		add(h, fieldPolicy, v.Policies(), values)
	case len(h[legacyFields[m.opts.Dialect][1]]) == 0:
		set(h, legacyFields[m.opts.Dialect][0], v.Quota, values)
	}
}

// reset returns the reset time as the older dialects define it. If the request was denied, it is the time until
// the same request passes. If no unit remains, it is the time of the next unit. Otherwise it is when the key is
// fresh. ResetAfter is the longest of several limits, so the result is bounded by this limit's own figure.
func (m *Middleware) reset(v *limitfields.View, d *ratelimit.Decision) int64 {
	left := min(d.ResetAfter, time.Duration(min(v.Refill(), limitfields.MaxSeconds))*time.Second)
	switch {
	case !d.Allowed && d.RetryAfter > 0:
		left = d.RetryAfter
	case d.Allowed && d.Remaining <= 0 && d.NextAfter > 0:
		left = d.NextAfter
	}
	if m.opts.Dialect != DialectXEpoch {
		return limitfields.Clamp(limitfields.Seconds(left))
	}
	at := m.core.Now().Add(left)
	if at.Nanosecond() > 0 {
		return at.Unix() + 1
	}
	return at.Unix()
}

// view returns the description of the deciding limit for this response.
func (m *Middleware) view(h http.Header, e *event) *limitfields.View {
	v := m.views.Of(&e.Decision.Limit)
	if len(h) == 0 || m.opts.Dialect != DialectDraft11 {
		return v
	}
	if outer := h[fieldPolicy]; len(outer) > 0 {
		return v.After(outer, policyNames)
	}
	return v
}

// set does what Header.Set does, without an allocation. The name
// must be canonical, and the caller provides the value's slice.
func set(h http.Header, name, value string, values []string) {
	values[0] = value
	h[name] = values
}

// add adds a line to a list, because this middleware may be inside
// another one. Afterwards the first element of values is the value.
func add(h http.Header, name, value string, values []string) {
	if lines := h[name]; len(lines) > 0 {
		values[0] = value
		h[name] = append(lines, value)
		return
	}
	set(h, name, value, values)
}
