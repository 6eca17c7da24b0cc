package policy

import (
	"context"
	"maps"
	"slices"
	"sync"

	"github.com/weir-go/ratelimit/internal/wait"
)

// waits are the calls of Wait that wait. A new set ends the attempts of those whose rules it changes, and they begin anew by the new rules.
type waits struct {
	mu  sync.Mutex
	all map[*waitingCall]struct{}
}

// waitingCall is a call of Wait.
type waitingCall struct {
	wait.Renewable
	among *waits
	stays func(q *query) bool // reports whether the set in force has the same rules for a query

	mu sync.Mutex
	q  *query // of the attempt under way; nil if there is none
}

func newWaitingCall(ctx context.Context, among *waits, stays func(q *query) bool) *waitingCall {
	w := &waitingCall{among: among, stays: stays}
	w.Context, w.Waits = wait.OrBackground(ctx), w.begins
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

// begins records that the call waits now. A set that has come into force since the query was made did not know of it.
func (w *waitingCall) begins() {
	w.among.mu.Lock()
	if w.among.all == nil {
		w.among.all = map[*waitingCall]struct{}{}
	}
	w.among.all[w] = struct{}{}
	w.among.mu.Unlock()
	w.check()
}

// over forgets the call.
func (w *waitingCall) over() {
	w.among.mu.Lock()
	delete(w.among.all, w)
	w.among.mu.Unlock()
	if w.Place != nil {
		w.Place.Abandon()
	}
}

// check ends the attempt under way if the set in force has other rules for the call.
func (w *waitingCall) check() {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.q != nil && !w.stays(w.q) {
		w.Renew()
	}
}

// check has the calls begin anew for which the set in force has other rules. No lock of the policies is held.
func (ws *waits) check() {
	ws.mu.Lock()
	all := slices.Collect(maps.Keys(ws.all))
	ws.mu.Unlock()
	for _, w := range all {
		w.check()
	}
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

// sameCharge reports whether two charges of a request, in two sets, are the same. The weight of a key
// and the limit that keys share are not compared, because calls in their line follow them.
func (g *generation) sameCharge(a *charge, other *generation, b *charge) bool {
	r, s := g.rules[a.Rule], other.rules[b.Rule]
	shared := a.Weight > 0
	return r.id == s.id && r.Shadow == s.Shadow && r.always() == s.always() && shared == (b.Weight > 0) &&
		a.Key == b.Key && a.Cost == b.Cost && a.Fixed == b.Fixed && a.Tariff == b.Tariff && (shared || *a.Limit == *b.Limit) &&
		same(g.decider.limiters[a.Rule], other.decider.limiters[b.Rule])
}
