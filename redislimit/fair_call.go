package redislimit

import (
	"context"
	"errors"
	"time"

	"github.com/weir-go/ratelimit/internal/outcome"
)

// A process's calls.
const (
	fairBeat  = 100 * time.Millisecond // the time between two calls, unless a caller waits for an answer
	fairSoon  = 10 * time.Millisecond  // the minimum time between two calls
	fairCall  = time.Second            // the maximum time for a call
	fairCalls = 250                    // the maximum number of all processes' calls a second
	fairBurst = 4                      // how many calls a process may make early

	fairChunk   = 500 // the maximum number of tenants in a call
	fairRefunds = 100 // the maximum number of a tenant's refunds in a call
)

// fairPace spaces the calls: at least fairSoon apart, and on average at most the process's part of fairCalls a second.
type fairPace struct {
	last  time.Time     // the beginning of the last call
	took  time.Duration // the maximum time of recent calls; it decays
	saved time.Duration // the time saved for early calls
}

// next returns the next call's earliest time, given how many processes there are.
func (p *fairPace) next(processes int64) time.Duration {
	if p.saved > 0 {
		return fairSoon
	}
	return max(fairSoon, p.each(processes))
}

func (p *fairPace) each(processes int64) time.Duration {
	return time.Duration(max(1, processes)) * time.Second / fairCalls
}

// begin records a call's beginning.
func (p *fairPace) begin(now time.Time, processes int64) {
	each := p.each(processes)
	p.saved = min(p.saved+min(now.Sub(p.last), time.Minute)-each, fairBurst*each)
	p.last = now
}

// end records a call's end.
func (p *fairPace) end(now time.Time) { p.took = max(now.Sub(p.last), p.took*3/4) }

// fairFleet is the fleet's state, by the last reply.
type fairFleet struct {
	processes int64 // processes with callers or units
	spent     int64 // units granted to all and not regained
	weights   int64 // the sum of the weights of the tenants in line
	at        time.Time
}

// call makes calls until no tenant has anything to report or request.
func (f *Fair) call() {
	timer := time.NewTimer(0)
	defer timer.Stop()
	for {
		f.mu.Lock()
		if len(f.active) == 0 {
			f.calling = false
			f.flushedLocked(nil)
			f.mu.Unlock()
			return
		}
		soon, beat := f.pace.next(f.fleet.processes), fairBeat
		if len(f.active) > fairChunk || len(f.flushes) > 0 { // the remaining tenants do not wait for the next beat
			beat = soon
		}
		since := time.Since(f.pace.last)
		f.mu.Unlock()
		timer.Reset(max(0, beat-since))
		select {
		case <-timer.C:
		case <-f.hurry:
			timer.Reset(max(0, soon-since))
			<-timer.C
		}
		f.exchange()
	}
}

// fairRequest is a tenant's part of a call.
type fairRequest struct {
	t                          *fairTenant
	wanted, least, back, extra int64
	refunds                    []fairRefund
}

// exchange makes one call.
func (f *Fair) exchange() {
	f.mu.Lock()
	now := time.Now()
	f.expireLocked(now)
	requests, payload := f.prepareLocked()
	if len(requests) == 0 && f.reported == 0 {
		f.mu.Unlock()
		return
	}
	reported := append(f.epochs, f.epoch) // the next call will report the spending from now on
	f.epochs, f.epoch = nil, &fairEpoch{from: f.epoch.from}
	f.pace.begin(now, f.fleet.processes)
	life := f.lifeLocked()
	f.mu.Unlock()

	reply, err := f.store.eval(context.Background(), &call{script: fairScript, keys: f.keys, payload: payload, test: f.store.testWords()})

	f.mu.Lock()
	defer f.mu.Unlock()
	f.pace.end(time.Now())
	if err == nil && len(reply) != 7*(4+2*len(requests)) {
		err = errAnswer
	}
	if f.failed = err; err != nil {
		f.failLocked(requests, reported, err)
		return
	}
	f.valid = now.Add(life)
	calls := get7(reply)
	for _, e := range reported {
		e.to = calls
	}
	f.epochs, f.epoch = append(f.epochs, f.epoch), &fairEpoch{from: calls}
	f.fleet = fairFleet{get7(reply[7:]), get7(reply[14:]), get7(reply[21:]), time.Now()}
	for i, r := range requests {
		at := 28 + 14*i
		f.grantedLocked(r, get7(reply[at:]), get7(reply[at+7:])-fairZero)
	}
	f.reported = f.heldLocked(false)
	if f.heldLocked(true) == 0 {
		f.flushedLocked(nil)
	}
}

// heldLocked counts the process's units: for all tenants, or for the tenants without a caller in line.
func (f *Fair) heldLocked(idle bool) (held int64) {
	for _, t := range f.tenants {
		if !idle || len(t.line) == 0 {
			held += t.held
		}
	}
	return held
}

// lifeLocked returns how long after a call Redis considers the process alive.
func (f *Fair) lifeLocked() time.Duration {
	return max(time.Second, 4*f.cycleLocked(), 4*f.pace.took)
}

// cycleLocked returns the time until each active tenant has been in a call.
func (f *Fair) cycleLocked() time.Duration {
	calls := (len(f.active) + fairChunk - 1) / fairChunk
	return max(fairBeat, time.Duration(calls)*f.pace.next(f.fleet.processes))
}

// prepareLocked takes the next tenants from the list, and makes their
// call's payload. A tenant without anything left leaves the list.
func (f *Fair) prepareLocked() (requests []fairRequest, payload []byte) {
	n := min(len(f.active), fairChunk)
	alive := 5 * max(f.cycleLocked(), f.pace.took) / 2
	chunk := f.active[:n]
	f.active = append([]*fairTenant(nil), f.active[n:]...)
	for _, t := range chunk {
		t.listed = false
		if r, any := f.requestLocked(t); any {
			requests = append(requests, r)
		}
	}
	f.reported = max(f.reported, f.heldLocked(false))
	f.unreported = 0
	b := make([]byte, 0, 66+len(requests)*100)
	for _, n := range []int64{f.limit.units, f.limit.per, f.limit.capacity, alive.Microseconds(), f.lifeLocked().Microseconds(), f.heldLocked(false), int64(len(requests))} {
		b = put7(b, n)
	}
	b = append(b, f.process...)
	for _, r := range requests {
		for _, n := range []int64{r.t.weight, r.wanted, r.least, r.back, r.extra, int64(len(r.refunds)), int64(len(r.t.key))} {
			b = put7(b, n)
		}
		for _, x := range r.refunds {
			for _, n := range []int64{x.of.from, x.of.to, x.cost, x.amount} {
				b = put7(b, n)
			}
		}
		b = append(b, r.t.key...)
	}
	return requests, b
}

// requestLocked returns a tenant's report and request. If both are empty, it forgets the tenant.
func (f *Fair) requestLocked(t *fairTenant) (r fairRequest, any bool) {
	r.t = t
	t.spending = max(float64(t.spent), t.spending*0.9-0.1)
	t.spent = 0
	need := t.queued + t.denied
	switch {
	case len(f.flushes) > 0:
	case t.refused.IsZero(): // its share has sufficed, so it fetches its likely spending until the call after the next
		need += int64(1.5 * t.spending)
	case len(t.line) > 0: // its callers will call again soon
		need += int64(t.spending)
	}
	need = min(need, f.limit.capacity)
	r.wanted, r.back = max(0, need-t.held), max(0, t.held-need)
	switch {
	case len(t.line) > 0:
		r.least = max(0, t.line[0].cost-t.held)
	case t.denied > 0:
		r.least = max(0, t.denied-t.held)
	}
	t.denied = 0
	t.held -= r.back
	r.extra, t.overrun = t.overrun, 0
	k := min(len(t.back), fairRefunds)
	r.refunds, t.back = t.back[:k:k], t.back[k:]
	if r.wanted+r.back+r.extra > 0 || len(r.refunds) > 0 {
		return r, true
	}
	f.relistLocked(t)
	return r, false
}

// grantedLocked distributes a tenant's granted units.
func (f *Fair) grantedLocked(r fairRequest, granted, credit int64) {
	t, now := r.t, time.Now()
	t.held += granted
	t.credit, t.seen = credit, now
	t.refused = time.Time{}
	if granted < r.wanted {
		t.refused = now.Add(fairBeat)
	}
	f.serveLineLocked(t)
	if granted < r.wanted { // other callers than waiters are denied, and keep the tenant in line
		f.answerLocked(t, now, nil)
	} else if len(t.line) > 0 { // callers came during the call
		f.hurryLocked()
	}
	f.relistLocked(t)
}

// relistLocked lists a tenant for the calls after this one, or forgets it if it has nothing to report or request.
func (f *Fair) relistLocked(t *fairTenant) {
	if len(t.line) > 0 || t.denied > 0 || t.held > 0 || t.spending > 0 || len(t.back) > 0 || t.overrun > 0 || t.spent > 0 {
		f.activeLocked(t)
	} else if !t.listed {
		delete(f.tenants, t.key)
	}
}

// answerLocked denies the callers, except waiters, or returns an error to all.
func (f *Fair) answerLocked(t *fairTenant, now time.Time, err error) {
	stay := t.line[:0]
	for _, w := range t.line {
		switch {
		case err != nil:
			f.endLocked(t, w, err)
		case !w.waits:
			t.denied = max(t.denied, w.cost)
			f.denyLocked(t, w, now)
		default:
			stay = append(stay, w)
		}
	}
	clear(t.line[len(stay):])
	t.line = stay
}

// failLocked handles a failed call. If Redis may have run it, its reported refunds count
// as used, because a repetition could give them back twice. An overrun is reported again.
func (f *Fair) failLocked(requests []fairRequest, reported []*fairEpoch, err error) {
	sent := true
	if u := (*outcome.Undecided)(nil); errors.As(err, &u) {
		sent = u.Sent
	}
	if !sent {
		f.epochs = append(reported, f.epochs...)
	} else {
		for _, e := range reported { // the call may have reported them
			e.to = e.from
		}
	}
	now := time.Now()
	for _, r := range requests {
		t := r.t
		t.overrun += r.extra
		if !sent {
			t.held += r.back
			t.back = append(r.refunds, t.back...)
		}
		f.answerLocked(t, now, err)
		t.denied, t.spending = 0, 0 // while the store does not answer, no units are requested ahead
		f.relistLocked(t)
	}
	f.flushedLocked(err)
}

// flushedLocked ends the calls to Flush.
func (f *Fair) flushedLocked(err error) {
	for _, done := range f.flushes {
		done <- err
	}
	f.flushes = nil
}

// fairScript needs memory for new tenants. Redis may refuse it if memory is short.
var fairScript = newScript("", blocks{luaFiles}.lua("clock", "fair"))
