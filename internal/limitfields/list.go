package limitfields

import (
	"fmt"
	"math/bits"
	"slices"
	"strconv"
	"strings"
	"sync/atomic"
	"time"

	"github.com/weir-go/ratelimit"
)

// list holds the views of limits listed together in RateLimit-Policy.
type list struct {
	views    []*View
	policies string // the field's value
	until    int64  // the time of its next change, when a calendar's window ends, in Unix seconds; 0 for none

	nested atomic.Pointer[nested] // this list, as last renamed for use inside an outer middleware
}

// nested is a list for use after the lines of an outer middleware.
type nested struct {
	outer []string
	list  *list
}

// writer makes one middleware's views.
type writer struct {
	unit func(ratelimit.Limit) string // nil if all limits count requests
}

// list returns a list of views of the limits.
func (w writer) list(limits []ratelimit.Limit) *list {
	l := &list{views: make([]*View, len(limits))}
	for i, limit := range limits {
		l.views[i] = w.view(limit)
	}
	return l.joined()
}

// joined links the views to the list, and computes the list's other fields.
func (l *list) joined() *list {
	for _, v := range l.views {
		v.list = l
	}
	l.bound()
	l.policies = l.items()
	return l
}

// bound computes until.
func (l *list) bound() {
	for _, v := range l.views {
		if v.until > 0 && (l.until == 0 || v.until < l.until) {
			l.until = v.until
		}
	}
}

// items returns RateLimit-Policy's value.
func (l *list) items() string {
	var items []string
	for _, v := range l.views {
		if v.Name != "" {
			items = append(items, v.quoted+v.rest)
		}
	}
	return strings.Join(items, ", ")
}

// view returns one limit's view.
func (w writer) view(l ratelimit.Limit) *View {
	v := &View{Limit: l, Name: policyName(l)}
	if l.Algorithm == 0 || l.Algorithm == ratelimit.AlgorithmUnlimited || checkText(v.Name) != nil {
		v.Name = ""
		return v
	}
	v.quoted = quote(v.Name)
	if v.window = window(l); l.Algorithm == ratelimit.AlgorithmCalendar {
		from, to := l.Period.Window(time.Now())
		v.window, v.until = max(1, Clamp(Seconds(to.Sub(from)))), to.Unix()
	}
	v.Quota = strconv.FormatInt(Clamp(int64(l.Capacity())), 10)
	v.rest = ";q=" + v.Quota
	if v.window > 0 {
		v.rest += ";w=" + strconv.FormatInt(v.window, 10)
	}
	if w.unit != nil {
		if unit := w.unit(l); unit != "" && checkText(unit) == nil {
			v.rest += ";qu=" + quote(unit)
		}
	}
	if refills(l) {
		v.rest += ";" + Refills
	}
	return v
}

// Refills is this library's parameter of RateLimit-Policy. It reports that a budget's
// units come back one by one, like a bucket's, and not all at once at a window's end.
const Refills = "weir-refill"

func refills(l ratelimit.Limit) bool {
	switch l.Algorithm {
	case ratelimit.AlgorithmTokenBucket, ratelimit.AlgorithmLeakyBucket, ratelimit.AlgorithmSlidingLog, ratelimit.AlgorithmSlidingCounter:
		return true
	}
	return false
}

// same reports whether the list has exactly these limits.
func (l *list) same(limits []ratelimit.Limit) bool {
	return slices.EqualFunc(l.views, limits, func(v *View, limit ratelimit.Limit) bool { return v.Limit == limit })
}

// with returns the view of a key's own limit. In the list, the key's limit replaces the limit with the same name or,
// without one, the first limit that differs from key to key. If there is neither, the key's limit is listed alone.
func (l *list) with(limit ratelimit.Limit, w writer) *View {
	at := slices.IndexFunc(l.views, func(v *View) bool { return v.Name != "" && strings.EqualFold(v.Name, policyName(limit)) })
	if at < 0 {
		at = slices.IndexFunc(l.views, func(v *View) bool { return v.Limit == ratelimit.Limit{} })
	}
	if at < 0 {
		return w.list([]ratelimit.Limit{limit}).views[0]
	}
	v := w.view(limit)
	v.list = &list{views: slices.Clone(l.views)}
	v.list.views[at] = v
	v.list.bound()
	v.list.policies = v.list.items()
	return v
}

// After returns the view for use after the lines of an outer middleware. names returns the policies' names
// in these lines. A name used there gets a number, because in one response a name stands for one policy.
func (v *View) After(outer []string, names func(lines []string) []string) *View {
	n := v.list.nested.Load()
	if n == nil || !slices.Equal(n.outer, outer) {
		n = &nested{slices.Clone(outer), v.list.renamed(names(outer))}
		v.list.nested.Store(n)
	}
	return n.list.views[slices.Index(v.list.views, v)]
}

// names appends the list's names to after.
func (l *list) names(after []string) []string {
	names := slices.Clip(after)
	for _, v := range l.views {
		if v.Name != "" {
			names = append(names, v.Name)
		}
	}
	return names
}

// renamed returns the list with unused names. It ignores case.
func (l *list) renamed(used []string) *list {
	taken := make(map[string]bool, len(used))
	for _, name := range used {
		taken[strings.ToLower(name)] = true
	}
	r := &list{views: make([]*View, len(l.views))}
	for i, v := range l.views {
		name := v.Name
		for n := 2; name != "" && taken[strings.ToLower(name)]; n++ {
			name = v.Name + "-" + strconv.Itoa(n)
		}
		taken[strings.ToLower(name)] = true
		r.views[i] = &View{Limit: v.Limit, Name: name, quoted: quote(name), Quota: v.Quota, window: v.window, until: v.until, rest: v.rest}
	}
	return r.joined()
}

// window returns the number of seconds in which a limit's whole capacity is regained, rounded up, or 0 if it never is.
func window(l ratelimit.Limit) int64 {
	switch l.Algorithm {
	case ratelimit.AlgorithmTokenBucket, ratelimit.AlgorithmLeakyBucket:
		return Clamp(regained(l))
	case ratelimit.AlgorithmFixedWindow, ratelimit.AlgorithmSlidingLog, ratelimit.AlgorithmSlidingCounter:
		return max(1, Clamp(Seconds(l.Rate.Per)))
	}
	return 0
}

// regained returns ceil(burst · per / units) in seconds. The product may need 128 bits.
func regained(l ratelimit.Limit) int64 {
	units := uint64(max(0, l.Rate.Units))
	hi, lo := bits.Mul64(uint64(max(0, l.Burst)), uint64(max(0, l.Rate.Per)))
	if hi >= units {
		return MaxInteger // New accepts no such limit
	}
	ns, rest := bits.Div64(hi, lo, units)
	s := ns / uint64(time.Second)
	if ns%uint64(time.Second) > 0 || rest > 0 {
		s++
	}
	return int64(max(1, s))
}

// policyName returns the limit's name, or "default" if it has none.
func policyName(l ratelimit.Limit) string {
	if l.Name == "" {
		return "default"
	}
	return l.Name
}

// checkText returns an error if a structured field's String cannot represent the text (RFC 9651, section 4.1.6).
func checkText(text string) error {
	for i, c := range text {
		if c < ' ' || c > '~' {
			return fmt.Errorf("%q has %q at position %d, which a header field cannot carry", text, c, i)
		}
	}
	return nil
}

// checkNames returns an error if the limits cannot be listed in one field.
func checkNames(limits []ratelimit.Limit) error {
	seen := make(map[string]ratelimit.Limit, len(limits))
	for _, l := range limits {
		name := policyName(l)
		if l == (ratelimit.Limit{}) {
			continue // the limit differs from key to key
		}
		if err := checkText(name); err != nil {
			return fmt.Errorf("limit name %w", err)
		}
		folded := strings.ToLower(name)
		if other, ok := seen[folded]; ok {
			return fmt.Errorf("limits %q and %q have the same policy name %q: distinguish them with Limit.Named", other, l, name)
		}
		seen[folded] = l
	}
	return nil
}

// checkUnits returns an error about the first limit whose unit a field cannot represent.
func (w writer) checkUnits(limits []ratelimit.Limit) error {
	if w.unit == nil {
		return nil
	}
	for _, l := range limits {
		if err := checkText(w.unit(l)); err != nil {
			return fmt.Errorf("Options.QuotaUnit of limit %q: %w", policyName(l), err)
		}
	}
	return nil
}

// quote returns a text as a String of a structured field. Only two characters need an escape.
func quote(s string) string { return `"` + escaper.Replace(s) + `"` }

var escaper = strings.NewReplacer(`\`, `\\`, `"`, `\"`)

// check returns an error if header fields cannot represent the limits.
func (v *Views) check(limits []ratelimit.Limit) error {
	if !v.named {
		return nil
	}
	if err := checkNames(limits); err != nil {
		return err
	}
	return v.checkUnits(limits)
}
