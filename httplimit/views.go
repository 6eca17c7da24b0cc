package httplimit

import (
	"net/http"
	"sync/atomic"

	"github.com/weir-go/ratelimit"
	"github.com/weir-go/ratelimit/internal/edge"
)

// views keeps how limits are written: those that the limiter lists, and those that it has
// decided with, which are plans of single keys or limits that were changed.
type views struct {
	writer
	ask   func() []ratelimit.Limit // the limiter for its limits; nil if it does not list them
	named bool                     // the names must differ
	known atomic.Pointer[list]
	plans edge.Recent[ratelimit.Limit, *view]
}

// init asks the limiter for its limits, and checks that they can be told.
func (v *views) init(limiter ratelimit.Limiter[*http.Request], o *Options) error {
	v.unit, v.named = o.QuotaUnit, o.Dialect == DialectDraft11
	v.known.Store(new(list))
	v.plans.Clear()
	l, ok := limiter.(ratelimit.LimitLister)
	if !ok {
		return nil
	}
	v.ask = l.Limits
	limits := l.Limits()
	if err := v.check(limits); err != nil {
		return err
	}
	v.known.Store(v.list(limits))
	return nil
}

// check reports why header fields cannot tell of the limits.
func (v *views) check(limits []ratelimit.Limit) error {
	if !v.named {
		return nil
	}
	if err := checkNames(limits); err != nil {
		return err
	}
	return v.checkUnits(limits)
}

// of returns how the limit that has decided is written.
func (v *views) of(limit *ratelimit.Limit) *view {
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
func (v *views) renew(old *list) {
	limits := make([]ratelimit.Limit, len(old.views))
	for i, w := range old.views {
		limits[i] = w.limit
	}
	if v.known.CompareAndSwap(old, v.list(limits)) {
		v.plans.Clear()
	}
}

// learn makes the view of a limit that was not known: the limiter's own has been
// changed, or it is the plan of a single key.
func (v *views) learn(limit *ratelimit.Limit) *view {
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
func (v *views) refresh() {
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
