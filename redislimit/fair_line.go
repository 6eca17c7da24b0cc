package redislimit

import (
	"context"
	"fmt"
	"slices"
	"time"

	"github.com/weir-go/ratelimit"
	"github.com/weir-go/ratelimit/internal/micros"
	"github.com/weir-go/ratelimit/internal/outcome"
)

// fairTenant is a tenant of this process. Fair.mu guards it.
type fairTenant struct {
	key    string
	weight int64
	held   int64         // the process's units for it
	line   []*fairWaiter // callers without an answer, in the order of their arrival
	queued int64         // the sum of their costs
	listed bool          // it is in Fair.active

	refused  time.Time // the time until which further callers are denied: the last call granted less than was requested
	denied   int64     // the largest cost denied since the last call; it stands in line like a caller
	credit   int64     // the unused part of its share in units, by the last reply; below 0 if it has used more
	seen     time.Time // the reply's time
	spent    int64     // the units spent since the last call
	spending float64   // its spending between two calls: the recent maximum; it decays

	back    []fairRefund // its reservations' refunds
	overrun int64        // its reservations' excess
}

// fairWaiter is an unanswered caller.
type fairWaiter struct {
	cost  int64
	waits bool          // it stays in line until it is served; otherwise the next call answers it
	done  chan struct{} // closed when it is served, denied or has an error
	ended bool          // done is closed
	d     ratelimit.Decision
	spent *fairEpoch
	err   error
}

// fairEpoch is the time between two of this process's calls. All processes' calls are numbered. from is the number of
// the last call. to is the number of the next one, and 0 until it has been answered. It reports the spending in between.
type fairEpoch struct{ from, to int64 }

// fairRefund is the unused part of a reservation.
type fairRefund struct {
	of           *fairEpoch
	cost, amount int64
}

// inLine, as a decision's manner, makes the caller wait in line.
const inLine = 1

// decide spends a cost, denies it, or waits in line. It returns the spending's epoch.
func (f *Fair) decide(ctx context.Context, tenant string, cost int, manner int) (d ratelimit.Decision, spent *fairEpoch, err error) {
	f.check()
	if err := ctx.Err(); err != nil {
		return d, nil, ended(err, false)
	}
	if cost < 0 {
		return d, nil, fmt.Errorf("%w: %d", ratelimit.ErrNegativeCost, cost)
	}
	w, err := f.join(tenant, f.weightOf(tenant), int64(cost), manner == inLine)
	if err != nil || w.done == nil {
		return w.d, w.spent, err
	}
	var late <-chan time.Time
	if !w.waits && f.timeout >= 0 {
		timer := time.NewTimer(f.timeout)
		defer timer.Stop()
		late = timer.C
	}
	select {
	case <-w.done:
	case <-late:
		f.leave(tenant, w, &outcome.Undecided{Cause: fmt.Errorf("no answer within %v (FairOptions.Timeout)", f.timeout)})
	case <-ctx.Done():
		f.leave(tenant, w, ended(ctx.Err(), false))
	}
	return w.d, w.spent, w.err
}

func (f *Fair) weightOf(tenant string) int64 {
	if f.weight == nil {
		return 1
	}
	return int64(min(max(f.weight(tenant), 1), 1<<20))
}

// join answers a caller at once, or puts it in line: then the caller has a channel. The returned caller is never nil.
func (f *Fair) join(tenant string, weight, cost int64, waits bool) (*fairWaiter, error) {
	w := &fairWaiter{cost: cost, waits: waits}
	f.mu.Lock()
	defer f.mu.Unlock()
	w.d.Limit = f.limit.limit
	if err := f.limit.check(cost); err != nil {
		return w, err
	}
	t := f.tenants[tenant]
	if t == nil {
		t = &fairTenant{key: tenant}
		if cost > 0 {
			f.tenants[tenant] = t
		}
	}
	t.weight = weight
	now := time.Now()
	f.expireLocked(now)
	switch {
	case cost == 0, len(t.line) == 0 && t.held >= cost:
		f.serveLocked(t, w)
		return w, nil
	case !waits && now.Before(t.refused):
		t.denied = max(t.denied, cost)
		f.activeLocked(t)
		f.denyLocked(t, w, now)
		return w, nil
	}
	switch free := f.maxWaiting - f.waiting; {
	case !waits:
	case free <= 0:
		return w, fmt.Errorf("redislimit: %w: %d callers wait, as many as FairOptions.MaxWaiting allows", ratelimit.ErrLimited, f.waiting)
	case len(t.line) > 0 && len(t.line) >= free:
		return w, fmt.Errorf("redislimit: %w: %d callers of the tenant wait, and the %d places that FairOptions.MaxWaiting leaves are for others",
			ratelimit.ErrLimited, len(t.line), free)
	}
	w.done = make(chan struct{})
	t.line = append(t.line, w)
	t.queued += cost
	if waits {
		f.waiting++
	}
	f.activeLocked(t)
	if !now.Before(t.refused) {
		f.hurryLocked()
	}
	return w, nil
}

// leave removes a caller from the line with an error, unless it has been answered.
func (f *Fair) leave(tenant string, w *fairWaiter, err error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if w.ended {
		return
	}
	t := f.tenants[tenant]
	t.line = slices.DeleteFunc(t.line, func(other *fairWaiter) bool { return other == w })
	f.endLocked(t, w, err)
	f.serveLineLocked(t) // callers behind it may have a smaller cost
}

// endLocked ends a caller's time in line.
func (f *Fair) endLocked(t *fairTenant, w *fairWaiter, err error) {
	w.err, w.ended = err, true
	if w.done != nil {
		t.queued -= w.cost
		if w.waits {
			f.waiting--
		}
		close(w.done)
	}
}

// serveLocked spends a caller's cost from the held units.
func (f *Fair) serveLocked(t *fairTenant, w *fairWaiter) {
	t.held -= w.cost
	t.spent += w.cost
	w.spent = f.epoch
	// until these units are reported, the script counts them as held: see refund there
	if f.unreported += w.cost; f.unreported > f.limit.capacity/16 {
		f.hurryLocked()
	}
	w.d.Allowed = true
	f.standingLocked(t, w)
	if w.cost > 0 {
		f.activeLocked(t) // to fetch ahead what it spends
	}
	f.endLocked(t, w, nil)
}

// denyLocked denies a caller.
func (f *Fair) denyLocked(t *fairTenant, w *fairWaiter, now time.Time) {
	f.standingLocked(t, w)
	w.d.RetryAfter = f.retryLocked(t, w.cost, now)
	f.endLocked(t, w, nil)
}

// standingLocked fills in the figures of a decision besides RetryAfter.
func (f *Fair) standingLocked(t *fairTenant, w *fairWaiter) {
	w.d.Limit = f.limit.limit
	if len(t.line) == 0 {
		w.d.Remaining = int(t.held)
	}
	if used := float64(f.fleet.spent) - time.Since(f.fleet.at).Seconds()*f.limit.perSecond(); used > 0 {
		w.d.ResetAfter = f.limit.timeFor(used)
	}
}

// retryLocked returns the time until the tenant's share covers a cost, by the last reply.
func (f *Fair) retryLocked(t *fairTenant, cost int64, now time.Time) time.Duration {
	needs := max(0, float64(cost+t.queued-t.held-t.credit)) * float64(max(f.fleet.weights, t.weight)) / float64(t.weight)
	return max(f.limit.timeFor(needs)-now.Sub(t.seen), t.refused.Sub(now), time.Millisecond)
}

// perSecond returns the rate.
func (l fairLimit) perSecond() float64 { return float64(l.units) / float64(l.per) * 1e6 }

// serveLineLocked serves callers in order while the held units suffice.
func (f *Fair) serveLineLocked(t *fairTenant) {
	n := 0
	for n < len(t.line) && t.line[n].cost <= t.held {
		w := t.line[n]
		n++
		t.line[n-1] = nil
		f.serveLocked(t, w)
	}
	t.line = t.line[n:]
}

// refuseLocked ends the waits for costs above the burst.
func (f *Fair) refuseLocked(t *fairTenant) {
	t.line = slices.DeleteFunc(t.line, func(w *fairWaiter) bool {
		err := f.limit.check(w.cost)
		if err != nil {
			f.endLocked(t, w, err)
		}
		return err != nil
	})
}

// settle replaces a reservation's cost with the real one.
func (f *Fair) settle(tenant string, cost, actual int, spent *fairEpoch) {
	if spent == nil || actual == cost {
		return
	}
	weight := f.weightOf(tenant)
	f.mu.Lock()
	defer f.mu.Unlock()
	t := f.tenants[tenant]
	if t == nil {
		t = &fairTenant{key: tenant}
		f.tenants[tenant] = t
	}
	t.weight = weight
	if actual > cost {
		t.overrun = min(t.overrun+int64(actual-cost), micros.MaxSharedBurst)
	} else {
		t.back = append(t.back, fairRefund{spent, int64(cost), int64(cost - actual)})
	}
	f.activeLocked(t)
}

// activeLocked lists a tenant for the next calls, and starts them if necessary.
func (f *Fair) activeLocked(t *fairTenant) {
	if !t.listed {
		t.listed = true
		f.active = append(f.active, t)
	}
	if !f.calling {
		f.calling = true
		go f.call()
	}
}

// hurryLocked makes the next call early.
func (f *Fair) hurryLocked() {
	select {
	case f.hurry <- struct{}{}:
	default:
	}
}

// expireLocked forgets the process's units after a long silence: Redis may then count them as used.
func (f *Fair) expireLocked(now time.Time) {
	if f.valid.IsZero() || now.Before(f.valid) {
		return
	}
	f.valid = time.Time{}
	for _, t := range f.tenants {
		t.held = 0
	}
}
