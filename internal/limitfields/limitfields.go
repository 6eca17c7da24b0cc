// Package limitfields announces limits to clients, by the fields RateLimit-Policy and RateLimit of
// draft-ietf-httpapi-ratelimit-headers-11. HTTP has these fields in the header, and gRPC in trailers.
package limitfields

import (
	"context"
	"fmt"
	"math"
	"strconv"
	"sync/atomic"
	"time"

	"github.com/weir-go/ratelimit"
	"github.com/weir-go/ratelimit/internal/edge"
)

// Views caches limits' text. These are the limits from the limiter's Describe, and
// further limits in its decisions: they belong to single keys or have changed.
type Views struct {
	writer
	limits func() []ratelimit.Limit // returns the limiter's limits; nil if they are not known
	named  bool                     // whether the names must differ
	known  atomic.Pointer[list]
	others edge.Recent[ratelimit.Limit, *View]
}

// Options are the settings of [Views].
type Options struct {
	Package string                       // the prefix of errors
	Unit    func(ratelimit.Limit) string // returns a limit's unit; nil if all limits count requests
	Named   bool                         // whether the names must differ
}

// Init reads the limiter's limits, and checks whether fields can represent them. Call it before all other methods.
func (v *Views) Init(limiter any, o Options) error {
	v.unit, v.named = o.Unit, o.Named
	v.known.Store(new(list))
	v.others.Clear()
	v.limits = func() []ratelimit.Limit { return ratelimit.Describe(limiter).Limits }
	limits := v.limits()
	if limits == nil {
		v.limits = nil
		return nil
	}
	if err := v.check(limits); err != nil {
		return fmt.Errorf("%s: %w", o.Package, err)
	}
	v.known.Store(v.list(limits))
	return nil
}

// View is a limit's text in header fields, as far as it is the same for all requests.
type View struct {
	Limit  ratelimit.Limit
	Name   string // the policy's name; empty if there is none
	quoted string
	Quota  string // the capacity
	window int64  // in seconds; 0 if there is none
	until  int64  // for a calendar, the end of the window with this length, in Unix seconds; otherwise 0
	rest   string // the item's parameters in RateLimit-Policy
	list   *list

	// Denied, Exceeds and Blocked are for the code answering requests.
	// They store its last answers to requests denied by this limit.
	Denied, Exceeds, Blocked atomic.Value
}

// Of returns the view of the deciding limit.
func (v *Views) Of(limit *ratelimit.Limit) *View {
	if known := v.known.Load(); known.over() {
		v.renew(known)
	}
	if found := v.known.Load().find(limit); found != nil {
		return found
	}
	if found, ok := v.others.Find(*limit); ok && !found.list.over() {
		return found
	}
	return v.learn(limit)
}

// learn returns an uncached limit's view. Either the limiter's limit has changed, or the limit is a single key's.
func (v *Views) learn(limit *ratelimit.Limit) *View {
	v.refresh()
	known := v.known.Load()
	if found := known.find(limit); found != nil {
		return found
	}
	view := known.with(*limit, v.writer)
	v.others.Add(*limit, view)
	return view
}

// renew replaces the list after a calendar's window has ended, because the next window may have another length.
func (v *Views) renew(old *list) {
	limits := make([]ratelimit.Limit, len(old.views))
	for i, w := range old.views {
		limits[i] = w.Limit
	}
	if v.known.CompareAndSwap(old, v.list(limits)) {
		v.others.Clear()
	}
}

// refresh reads the limiter's limits again. If fields cannot represent them, the list stays.
func (v *Views) refresh() {
	if v.limits == nil {
		return
	}
	limits := v.limits()
	if v.known.Load().same(limits) || v.check(limits) != nil {
		return
	}
	v.known.Store(v.list(limits))
	v.others.Clear()
}

// outerKey is the context key of the names used by outer interceptors.
type outerKey struct{}

// Fields returns the values of RateLimit-Policy and RateLimit for a decision. It returns "" for an omitted
// field. RateLimit is omitted if the decision has no remaining budget: if a cost exceeds its limit, unless
// the capacity is 0, and for a layer with its own cost. In one response, a name stands for one policy, so
// names already used by outer interceptors get a number. Pass the returned context to inner interceptors.
func (v *Views) Fields(ctx context.Context, d *ratelimit.Decision, exceeds bool) (policies, standing string, inner context.Context) {
	w := v.Of(&d.Limit)
	if w.Name == "" {
		return "", "", ctx
	}
	outer, _ := ctx.Value(outerKey{}).([]string)
	if len(outer) > 0 {
		w = w.After(outer, func(names []string) []string { return names })
	}
	if capacity := w.Limit.Capacity(); d.Remaining <= capacity && (!exceeds || capacity == 0) {
		standing = w.Standing(d)
	}
	return w.Policies(), standing, context.WithValue(ctx, outerKey{}, w.list.names(outer))
}

// Policies returns RateLimit-Policy's value.
func (v *View) Policies() string { return v.list.policies }

// RateLimit's parameters, as in draft 11. In the draft in progress they are ";a=" and ";w=".
const leftIs, timeIs = ";r=", ";t="

// Standing returns RateLimit's item, with the remaining budget.
func (v *View) Standing(d *ratelimit.Decision) string {
	b := append(make([]byte, 0, 64), v.quoted...)
	b = append(b, leftIs...)
	b = strconv.AppendInt(b, Clamp(int64(d.Remaining)), 10)
	if t := v.effective(d); t > 0 {
		b = append(b, timeIs...)
		b = strconv.AppendInt(b, t, 10)
	}
	return string(b)
}

// effective returns the window, in seconds, within which no more than Remaining can be used. If
// nothing remains, it ends with the next unit. A sliding counter regains in up to two windows.
// Its result is at least one window: less would let clients send faster than the rate.
func (v *View) effective(d *ratelimit.Decision) int64 {
	switch left := Clamp(Seconds(d.ResetAfter)); {
	case !d.Allowed && (d.RetryAfter > 0 || v.window > 0):
		return max(1, Clamp(Seconds(d.RetryAfter))) // the same as Retry-After, because a retry must not come earlier
	case d.Allowed && d.Remaining <= 0 && d.NextAfter > 0:
		return max(1, Clamp(Seconds(d.NextAfter)))
	case v.Limit.Algorithm == ratelimit.AlgorithmFixedWindow && left > 0:
		return min(left, v.window)
	case v.Limit.Algorithm == ratelimit.AlgorithmCalendar:
		if left == 0 { // the budget of a fresh key expires with the window
			left = v.until - time.Now().Unix()
		}
		return max(1, min(left, v.window))
	case v.Limit.Algorithm == ratelimit.AlgorithmSlidingCounter:
		return max(v.window, min(left, v.Refill()))
	}
	return v.window
}

// Refill returns how many seconds a key takes to be fresh after it has spent everything.
func (v *View) Refill() int64 {
	if v.Limit.Algorithm == ratelimit.AlgorithmSlidingCounter {
		return Clamp(Seconds(2 * min(v.Limit.Rate.Per, math.MaxInt64/2)))
	}
	return v.window
}

// Clamp limits a figure to a quota's range.
func Clamp(n int64) int64 { return min(max(n, 0), MaxInteger) }

// Seconds rounds up to whole seconds.
func Seconds(d time.Duration) int64 {
	s := int64(d / time.Second)
	if d%time.Second > 0 {
		s++
	}
	return s
}

// MaxInteger is the largest Integer of a structured field (RFC 9651, section 3.3.1).
const MaxInteger = 999_999_999_999_999

// MaxSeconds is the maximum number of seconds in a time.Duration.
const MaxSeconds = int64(math.MaxInt64 / time.Second)

// find returns the limit's view, or nil.
func (l *list) find(limit *ratelimit.Limit) *View {
	for _, v := range l.views {
		if v.Limit == *limit {
			return v
		}
	}
	return nil
}

// over reports whether the list is outdated, because a calendar's window has ended.
func (l *list) over() bool { return l.until > 0 && time.Now().Unix() >= l.until }
