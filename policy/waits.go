package policy

import (
	"context"
	"sync"
	"time"

	"github.com/weir-go/ratelimit/internal/wait"
)

// waits are the waiting calls to Wait. If a new set changes a call's rules,
// waits ends the call's attempt, and the call starts again under the new rules.
type waits struct {
	wait.Calls
	mu    sync.Mutex
	dates *time.Timer // nil unless calls wait by a set with dates
	spare sync.Pool   // has *waitingCall, so a call without a wait allocates nothing

	stays func(q *query) bool // reports whether the set in force has the same rules for a query
}

// datesEvery is how often waiting calls under a set with dates check whether their rules are still in force.
const datesEvery = time.Second

// waitingCall is a call to Wait.
type waitingCall struct {
	wait.Call
	among *waits

	mu sync.Mutex
	q  *query // of the attempt under way; nil if there is none
}

// newCall returns a call to Wait. When the call ends, its caller must call over.
func (ws *waits) newCall(ctx context.Context) *waitingCall {
	w, _ := ws.spare.Get().(*waitingCall)
	if w == nil {
		w = &waitingCall{among: ws}
		w.Init(&ws.Calls, w.check)
	}
	w.Context = wait.OrBackground(ctx)
	return w
}

// attempt waits until the rules of a query allow it. It reports true if other rules have come into force meanwhile.
func (w *waitingCall) attempt(q *query) (anew bool, err error) {
	w.follow(q)
	defer w.follow(nil)
	ctx := w.Begin()
	if err = q.waitEmpty(ctx); err == nil {
		err = q.in.decider.wait(ctx, &q.charges, q.cost)
	}
	return ctx.End(err), err
}

func (w *waitingCall) follow(q *query) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.q = q
}

// over forgets the call. If local is true, no store has had its attempts: unless one
// of them has waited, nothing refers to them, and the next call gets their memory.
func (w *waitingCall) over(local bool) {
	if waited := w.Over(); !waited && local {
		w.Clear()
		w.among.spare.Put(w)
	}
}

// check ends the attempt under way if the set in force has other rules for the call. Then it reports true.
// If the attempt has begun to wait by a set with dates, there are checks from now on.
func (w *waitingCall) check() (anew bool) {
	w.mu.Lock()
	defer w.mu.Unlock()
	switch {
	case w.q == nil:
		return false
	case w.q.in.dated:
		w.among.watchDates()
	}
	if anew = !w.among.stays(w.q); anew {
		w.Anew()
	}
	return anew
}

// watchDates makes checkDates run from now on, while calls wait.
func (ws *waits) watchDates() {
	ws.mu.Lock()
	defer ws.mu.Unlock()
	if ws.dates == nil {
		ws.dates = time.AfterFunc(datesEvery, ws.checkDates)
	}
}

// checkDates is Check, again and again while calls wait.
func (ws *waits) checkDates() {
	ws.Check()
	ws.mu.Lock()
	defer ws.mu.Unlock()
	if ws.Len() == 0 {
		ws.dates = nil
		return
	}
	ws.dates.Reset(datesEvery)
}

// sameCharges reports whether two queries about one request, in two sets, charge the same to the same limiters.
func sameCharges(q, other *query) bool {
	if len(q.charges.List) != len(other.charges.List) {
		return false
	}
	for i := range q.charges.List {
		if !q.in.sameCharge(&q.charges.List[i], other.in, &other.charges.List[i]) {
			return false
		}
	}
	return true
}

// sameCharge reports whether two charges of a request, in two sets, are the same. A key's
// weight and keys' common limit are not compared, because calls in their line follow them.
func (g *generation) sameCharge(a *charge, other *generation, b *charge) bool {
	r, s := g.rules[a.Rule], other.rules[b.Rule]
	shared := a.Weight > 0
	return r.id == s.id && r.Shadow == s.Shadow && r.always() == s.always() && shared == (b.Weight > 0) &&
		a.Key == b.Key && a.Cost == b.Cost && a.Fixed == b.Fixed && a.Tariff == b.Tariff && (shared || *a.Limit == *b.Limit) &&
		same(g.decider.limiters[a.Rule], other.decider.limiters[b.Rule])
}
