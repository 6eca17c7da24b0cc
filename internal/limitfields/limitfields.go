// Package limitfields announces limits to clients: by the fields RateLimit-Policy and RateLimit of draft-ietf-httpapi-ratelimit-headers-11,
// over HTTP in its header and over gRPC in trailers.
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

// Views caches the text of limits: the limits that the limiter lists, and others
// that its decisions have named, which are limits of single keys or changed limits.
type Views struct {
	writer
	limits func() []ratelimit.Limit // the limiter for its limits; nil if it does not list them
	named  bool                     // the names must differ
	known  atomic.Pointer[list]
	others edge.Recent[ratelimit.Limit, *View]
}

// Options are the settings of [Views].
type Options struct {
	Package string                       // with whose name errors begin
	Unit    func(ratelimit.Limit) string // nil if all limits count requests
	Named   bool                         // the names must differ
}

// Init gets the limits of the limiter, and checks that fields can represent them. It is called before all other methods.
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

// View is how a limit is written in header fields: everything that does not change from
// request to request.
type View struct {
	Limit  ratelimit.Limit
	Name   string // of the policy; empty if there is none
	quoted string
	Quota  string // its capacity
	window int64  // seconds, 0 if there is none
	until  int64  // of a calendar: when the window ends whose length window is, in Unix seconds; else 0
	rest   string // of the item of RateLimit-Policy: its parameters
	list   *list

	// Denied, Exceeds and Blocked are for the code that answers requests: its last answer to a request that this limit has denied.
	Denied, Exceeds, Blocked atomic.Value
}

// Of returns how the limit that has decided is written.
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

// learn makes the view of an unknown limit: the limiter's own limit was changed, or a single key has this limit.
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

// renew writes a list anew because a calendar's next window, which may have another length, has begun.
func (v *Views) renew(old *list) {
	limits := make([]ratelimit.Limit, len(old.views))
	for i, w := range old.views {
		limits[i] = w.Limit
	}
	if v.known.CompareAndSwap(old, v.list(limits)) {
		v.others.Clear()
	}
}

// refresh gets the limits of the limiter again. If they cannot be listed, the list stays as it was.
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

// outerKey is the key of the names that interceptors around have used, in the context of a call.
type outerKey struct{}

// Fields returns the values of RateLimit-Policy and RateLimit for a decision, "" for fields that are not sent. The decision of a cost that
// exceeds its limit has no remaining budget, unless that is always zero; nor has the decision of a layer with a cost of its own. In one
// response a name is one policy: names that outer interceptors have used get a number. The context that Fields returns is for inner
// interceptors.
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

// Policies returns the value of RateLimit-Policy.
func (v *View) Policies() string { return v.list.policies }

// The parameters of RateLimit, as in draft 11. In the draft in progress they are ";a=" and ";w=".
const leftIs, timeIs = ";r=", ";t="

// Standing returns the item of RateLimit: how much is left.
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

// effective is the window within which no more than Remaining can be used: until the next unit, if none remains. A sliding
// counter regains in up to two windows; less than one would invite more than the rate.
func (v *View) effective(d *ratelimit.Decision) int64 {
	switch left := Clamp(Seconds(d.ResetAfter)); {
	case !d.Allowed && (d.RetryAfter > 0 || v.window > 0):
		return max(1, Clamp(Seconds(d.RetryAfter))) // as Retry-After: that must not come before
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

// Refill is the seconds after which a key that has spent everything is fresh.
func (v *View) Refill() int64 {
	if v.Limit.Algorithm == ratelimit.AlgorithmSlidingCounter {
		return Clamp(Seconds(2 * min(v.Limit.Rate.Per, math.MaxInt64/2)))
	}
	return v.window
}

// Clamp brings a figure into the range of a quota.
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

// MaxSeconds is how many seconds a time.Duration can hold.
const MaxSeconds = int64(math.MaxInt64 / time.Second)

// find returns the view of exactly this limit, or nil.
func (l *list) find(limit *ratelimit.Limit) *View {
	for _, v := range l.views {
		if v.Limit == *limit {
			return v
		}
	}
	return nil
}

// over reports whether the window has ended whose length the fields contain.
func (l *list) over() bool { return l.until > 0 && time.Now().Unix() >= l.until }
