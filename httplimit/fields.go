package httplimit

import (
	"fmt"
	"math"
	"math/bits"
	"net/http"
	"slices"
	"strconv"
	"strings"
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
	// middleware adds its own items to the lists.
	//
	// Known are the limits that the limiter lists, and the one that has decided. A key's
	// own plan ([ratelimit.Options].LimitFor) is known when it has decided: it is
	// listed in place of the limit of the same name, or of a zero Limit, which
	// stands in a limiter's list for one that differs from key to key. A layer
	// that was skipped is listed all the same. A limit that was changed
	// ([ratelimit.Keyed.SetLimit]) is listed as it is now once it has decided.
	//
	// The policy's q is the limit's capacity and w the seconds in which it is
	// regained, rounded up. RateLimit's t is chosen so that r per t invites no
	// more than the rate: it is w, or what is left of a fixed window that is the only
	// limit, or when denied the wait. There is no RateLimit where what is left is not
	// known: if a cost can never pass, or a layer that binds is
	// [ratelimit.Charging] its own.
	DialectDraft11 Dialect = iota
	// DialectDraft06 is RateLimit-Limit, RateLimit-Remaining and RateLimit-Reset
	// in seconds from now, of the drafts up to -06.
	DialectDraft06
	// DialectXEpoch is X-RateLimit-Limit, X-RateLimit-Remaining and
	// X-RateLimit-Reset in Unix seconds, as GitHub has it.
	DialectXEpoch
	// DialectXDelta is the same with Reset in seconds from now, as Envoy has it.
	DialectXDelta
	// DialectNone tells nothing but Retry-After.
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

// view is how a limit is written: all that does not change from request to request.
type view struct {
	limit    ratelimit.Limit
	name     string // of the policy; empty if there is nothing to tell
	quoted   string
	quota    string
	window   int64  // seconds, 0 if there is none
	item     string // of RateLimit-Policy
	policies string // RateLimit-Policy: this item, and the others that are known
	denied   problem
	exceeds  problem
}

// viewOf returns how a limit is written that stands alone.
func viewOf(l ratelimit.Limit) *view {
	v := &view{limit: l, name: policyName(l)}
	if l.Algorithm == 0 || l.Algorithm == ratelimit.AlgorithmUnlimited || checkName(v.name) != nil {
		v.name = ""
	} else {
		v.quoted = quote(v.name)
		v.window = window(l)
		v.quota = strconv.FormatInt(clamp(int64(l.Capacity())), 10)
		v.item = v.quoted + ";q=" + v.quota
		if v.window > 0 {
			v.item += ";w=" + strconv.FormatInt(v.window, 10)
		}
		v.policies = v.item
	}
	v.denied = newProblem(http.StatusTooManyRequests, v.name, "")
	v.exceeds = newProblem(http.StatusForbidden, v.name, exceedsDetail)
	return v
}

// viewsOf returns how limits are written that are listed together.
func viewsOf(limits []ratelimit.Limit) []*view {
	views := make([]*view, len(limits))
	var items []string
	for i, l := range limits {
		if views[i] = viewOf(l); views[i].name != "" {
			items = append(items, views[i].item)
		}
	}
	for _, v := range views {
		v.policies = strings.Join(items, ", ")
	}
	return views
}

// window is the seconds in which a limit's whole capacity is regained, rounded up;
// 0 if it never is.
func window(l ratelimit.Limit) int64 {
	switch l.Algorithm {
	case ratelimit.AlgorithmTokenBucket, ratelimit.AlgorithmLeakyBucket:
		return clamp(regained(l))
	case ratelimit.AlgorithmFixedWindow, ratelimit.AlgorithmSlidingLog, ratelimit.AlgorithmSlidingCounter:
		return max(1, clamp(seconds(l.Rate.Per)))
	}
	return 0
}

// regained is ceil(burst · per / units) in seconds. The product may need 128 bits.
func regained(l ratelimit.Limit) int64 {
	units := uint64(max(0, l.Rate.Units))
	hi, lo := bits.Mul64(uint64(max(0, l.Burst)), uint64(max(0, l.Rate.Per)))
	if hi >= units {
		return maxInteger // no limit that New takes
	}
	ns, rest := bits.Div64(hi, lo, units)
	s := ns / uint64(time.Second)
	if ns%uint64(time.Second) > 0 || rest > 0 {
		s++
	}
	return int64(max(1, s))
}

// policyName is the limit's name, or what stands for none.
func policyName(l ratelimit.Limit) string {
	if l.Name == "" {
		return "default"
	}
	return l.Name
}

// checkName reports why a structured field's String cannot carry the name (RFC
// 9651, section 4.1.6).
func checkName(name string) error {
	for i := range len(name) {
		if c := name[i]; c < ' ' || c > '~' {
			return fmt.Errorf("httplimit: limit name %q has %q at position %d, which a header field cannot carry", name, c, i)
		}
	}
	return nil
}

// checkNames reports why the limits cannot be listed in one field.
func checkNames(limits []ratelimit.Limit) error {
	seen := make(map[string]ratelimit.Limit, len(limits))
	for _, l := range limits {
		name := policyName(l)
		if l == (ratelimit.Limit{}) {
			continue // it differs from key to key
		}
		if err := checkName(name); err != nil {
			return err
		}
		folded := strings.ToLower(name)
		if other, ok := seen[folded]; ok {
			return fmt.Errorf("httplimit: limits %q and %q have the same policy name %q: tell them apart with Limit.Named", other, l, name)
		}
		seen[folded] = l
	}
	return nil
}

// quote writes a String of a structured field, in which only two characters are escaped.
func quote(s string) string {
	return `"` + strings.NewReplacer(`\`, `\\`, `"`, `\"`).Replace(s) + `"`
}

// view returns how the limit that decided is written.
func (m *Middleware) view(l ratelimit.Limit) *view {
	if v := find(*m.known.Load(), l); v != nil {
		return v
	}
	if v, ok := m.variants.Load(l); ok {
		return v.(*view)
	}
	return m.learn(l)
}

// find returns the view of that very limit, or nil.
func find(views []*view, l ratelimit.Limit) *view {
	for _, v := range views {
		if v.limit == l {
			return v
		}
	}
	return nil
}

// maxVariants bounds what is kept of plans; further ones are written anew each time.
const maxVariants = 256

// learn makes the view of a limit that was not known: the limiter's own has been
// changed, or it is the plan of a single key.
func (m *Middleware) learn(l ratelimit.Limit) *view {
	m.refresh()
	known := *m.known.Load()
	if v := find(known, l); v != nil {
		return v
	}
	v := variant(known, l)
	if m.learned.Add(1) <= maxVariants {
		m.variants.Store(l, v)
	}
	return v
}

// refresh asks the limiter for its limits again. Names that cannot be listed leave the
// list as it was.
func (m *Middleware) refresh() {
	if m.limits == nil {
		return
	}
	limits := m.limits()
	if checkNames(limits) != nil || sameLimits(*m.known.Load(), limits) {
		return
	}
	views := viewsOf(limits)
	m.known.Store(&views)
	m.variants.Clear()
	m.learned.Store(0)
}

func sameLimits(known []*view, limits []ratelimit.Limit) bool {
	return slices.EqualFunc(known, limits, func(v *view, l ratelimit.Limit) bool { return v.limit == l })
}

// variant returns the view of a key's own plan. It stands in the list for the limit
// of the same name, or for the first that differs from key to key. If there is
// neither, nobody can tell which limit it is instead of, and it stands alone.
func variant(known []*view, l ratelimit.Limit) *view {
	at := slices.IndexFunc(known, func(v *view) bool { return v.name != "" && strings.EqualFold(v.name, policyName(l)) })
	if at < 0 {
		at = slices.IndexFunc(known, func(v *view) bool { return v.limit == ratelimit.Limit{} })
	}
	if at < 0 {
		return viewOf(l)
	}
	limits := make([]ratelimit.Limit, len(known))
	for i, v := range known {
		limits[i] = v.limit
	}
	limits[at] = l
	return viewsOf(limits)[at]
}

// setLimits writes the fields that tell how the client stands. The values are kept
// in slots, of which it uses up to three. More left than the limit ever holds is the
// mark of a layer with a cost of its own, of which the decision does not tell how
// much is left: then nothing is said of that.
func (m *Middleware) setLimits(h http.Header, v *view, d *ratelimit.Decision, slots []string) {
	m.setPolicy(h, v, slots[0:1:1])
	switch {
	case v.name == "" || m.opts.Dialect == DialectNone || d.Remaining > v.limit.Capacity():
	case m.opts.Dialect == DialectDraft11:
		add(h, fieldLimit, v.standing(d), slots[1:2:2])
	default:
		names := &legacyFields[m.opts.Dialect]
		set(h, names[1], strconv.FormatInt(clamp(int64(d.Remaining)), 10), slots[1:2:2])
		set(h, names[2], strconv.FormatInt(m.reset(v, d), 10), slots[2:3:3])
	}
}

// setPolicy writes the field that tells what the limit is.
func (m *Middleware) setPolicy(h http.Header, v *view, slot []string) {
	switch {
	case v.name == "" || m.opts.Dialect == DialectNone:
	case m.opts.Dialect == DialectDraft11:
		add(h, fieldPolicy, v.policies, slot)
	default:
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

// effective is the window within which no more than Remaining can be used.
func (v *view) effective(d *ratelimit.Decision) int64 {
	switch {
	case !d.Allowed && (d.RetryAfter > 0 || v.window > 0):
		return max(1, clamp(seconds(d.RetryAfter))) // as Retry-After: that must not come before
	case v.limit.Algorithm == ratelimit.AlgorithmFixedWindow && d.ResetAfter > 0:
		return min(clamp(seconds(d.ResetAfter)), v.window)
	}
	return v.window
}

// reset is when the quota is there again, as the older dialects tell it: when the
// same request passes if it was denied, else when the limit is as good as new. Of
// several limits ResetAfter is the longest, so this one's window bounds it.
func (m *Middleware) reset(v *view, d *ratelimit.Decision) int64 {
	left := min(d.ResetAfter, time.Duration(min(v.window, maxSeconds))*time.Second)
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
