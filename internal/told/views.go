package told

import (
	"fmt"
	"sync/atomic"

	"github.com/weir-go/ratelimit"
	"github.com/weir-go/ratelimit/internal/edge"
)

// Views keeps how limits are written: those that the limiter lists, and those that it has
// decided with, which are plans of single keys or limits that were changed.
type Views struct {
	writer
	ask   func() []ratelimit.Limit // the limiter for its limits; nil if it does not list them
	named bool                     // the names must differ
	known atomic.Pointer[list]
	plans edge.Recent[ratelimit.Limit, *View]
}

// Options are the settings of [Views].
type Options struct {
	Package string                       // with whose name errors begin
	Unit    func(ratelimit.Limit) string // nil if all limits count requests
	Named   bool                         // the names must differ
}

// Init asks the limiter for its limits, and checks that they can be told. It is called before
// anything else.
func (v *Views) Init(limiter any, o Options) error {
	v.unit, v.named = o.Unit, o.Named
	v.known.Store(new(list))
	v.plans.Clear()
	l, ok := limiter.(ratelimit.LimitLister)
	if !ok {
		return nil
	}
	v.ask = l.Limits
	limits := l.Limits()
	if err := v.check(limits); err != nil {
		return fmt.Errorf("%s: %w", o.Package, err)
	}
	v.known.Store(v.list(limits))
	return nil
}

// check reports why header fields cannot tell of the limits.
func (v *Views) check(limits []ratelimit.Limit) error {
	if !v.named {
		return nil
	}
	if err := checkNames(limits); err != nil {
		return err
	}
	return v.checkUnits(limits)
}

// Of returns how the limit that has decided is written.
func (v *Views) Of(limit *ratelimit.Limit) *View {
	if known := v.known.Load(); known.over() {
		v.renew(known)
	}
	if found := v.known.Load().find(limit); found != nil {
		return found
	}
	if found, ok := v.plans.Find(*limit); ok && !found.list.over() {
		return found
	}
	return v.learn(limit)
}

// renew writes a list anew because a calendar's next window, which may have another length, has begun.
func (v *Views) renew(old *list) {
	limits := make([]ratelimit.Limit, len(old.views))
	for i, w := range old.views {
		limits[i] = w.Limit
	}
	if v.known.CompareAndSwap(old, v.list(limits)) {
		v.plans.Clear()
	}
}

// learn makes the view of a limit that was not known: the limiter's own has been
// changed, or it is the plan of a single key.
func (v *Views) learn(limit *ratelimit.Limit) *View {
	v.refresh()
	known := v.known.Load()
	if found := known.find(limit); found != nil {
		return found
	}
	plan := known.with(*limit, v.writer)
	v.plans.Add(*limit, plan)
	return plan
}

// refresh asks the limiter for its limits again. If they cannot be listed, the list
// stays as it was.
func (v *Views) refresh() {
	if v.ask == nil {
		return
	}
	limits := v.ask()
	if v.known.Load().same(limits) || v.check(limits) != nil {
		return
	}
	v.known.Store(v.list(limits))
	v.plans.Clear()
}

// Fields returns the values of RateLimit-Policy and RateLimit for a decision, "" for what is not told. The decision of a
// cost that exceeds its limit does not tell how much is left, except where nothing ever is; nor does that of a layer with a
// cost of its own.
func (v *Views) Fields(d *ratelimit.Decision, exceeds bool) (policies, standing string) {
	w := v.Of(&d.Limit)
	if w.Name == "" {
		return "", ""
	}
	if capacity := w.Limit.Capacity(); d.Remaining <= capacity && (!exceeds || capacity == 0) {
		standing = w.Standing(d)
	}
	return w.Policies(), standing
}
