package policy

import (
	"cmp"
	"context"
	"maps"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/weir-go/ratelimit/internal/wait"
)

// waits are the waiting calls of Wait. If a new set changes a call's rules,
// it ends the call's attempt, and the call begins anew by the new rules.
type waits struct {
	mu      sync.Mutex
	all     map[*waitingCall]struct{}
	arrived uint64
	dates   *time.Timer // nil unless calls wait by a set with dates
	spare   sync.Pool   // has *waitingCall, so a call without a wait allocates nothing

	stays func(q *query) bool // reports whether the set in force has the same rules for a query
}

// datesEvery is how often waiting calls under a set with dates check whether their rules are still in force.
const datesEvery = time.Second

// waitingCall is a call of Wait.
type waitingCall struct {
	wait.Renewable
	among  *waits
	waited atomic.Bool
	number uint64        // of its arrival among them; 0 until it waits
	stands chan struct{} // has an element when an attempt has begun to wait since, or the call is over

	mu sync.Mutex
	q  *query // of the attempt under way; nil if there is none
}

// newCall returns a call of Wait. When it ends, call over.
func (ws *waits) newCall(ctx context.Context) *waitingCall {
	w, _ := ws.spare.Get().(*waitingCall)
	if w == nil {
		w = &waitingCall{among: ws, stands: make(chan struct{}, 1)}
		w.Waits = w.begins
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

// begins records that the call waits now. If a set has come into force since the query was made, it did not know of the call.
func (w *waitingCall) begins() {
	w.waited.Store(true)
	w.mu.Lock()
	dated := w.q != nil && w.q.in.dated
	w.mu.Unlock()
	w.among.add(w, dated)
	w.stood()
	w.check()
}

func (w *waitingCall) stood() {
	select {
	case w.stands <- struct{}{}:
	default:
	}
}

func (ws *waits) add(w *waitingCall, dated bool) {
	ws.mu.Lock()
	defer ws.mu.Unlock()
	if ws.all == nil {
		ws.all = map[*waitingCall]struct{}{}
	}
	if ws.all[w] = struct{}{}; w.number == 0 {
		ws.arrived++
		w.number = ws.arrived
	}
	if dated && ws.dates == nil {
		ws.dates = time.AfterFunc(datesEvery, ws.checkDates)
	}
}

// over forgets the call. If local is true, no store has had its attempts: unless one of them has waited, nothing
// refers to them any more, and the next call gets their memory.
func (w *waitingCall) over(local bool) {
	if !w.waited.Load() {
		if local {
			w.Clear()
			w.among.spare.Put(w)
		}
		return
	}
	w.among.mu.Lock()
	delete(w.among.all, w)
	w.among.mu.Unlock()
	if w.Place != nil {
		w.Place.Abandon()
	}
	w.stood()
}

// checkDates is check, again and again while calls wait.
func (ws *waits) checkDates() {
	ws.check()
	ws.mu.Lock()
	defer ws.mu.Unlock()
	if len(ws.all) == 0 {
		ws.dates = nil
		return
	}
	ws.dates.Reset(datesEvery)
}

// check ends the attempt under way if the set in force has other rules for the call. Then it reports true.
func (w *waitingCall) check() (anew bool) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.q == nil || w.among.stays(w.q) {
		return false
	}
	select {
	case <-w.stands:
	default:
	}
	w.Renew()
	return true
}

// inOrder is how long one check has each call find its new place before the next one looks for its own.
const inOrder = time.Second / 4

// check has calls begin anew, in the order of their arrival, if the set
// in force has other rules for them. No lock of the policies is held.
func (ws *waits) check() {
	ws.mu.Lock()
	all := slices.Collect(maps.Keys(ws.all))
	ws.mu.Unlock()
	slices.SortFunc(all, func(a, b *waitingCall) int { return cmp.Compare(a.number, b.number) })
	var late <-chan time.Time
	isLate := false
	for _, w := range all {
		if anew := w.check(); !anew || isLate {
			continue
		}
		if late == nil {
			late = time.After(inOrder)
		}
		select {
		case <-w.stands:
		case <-late:
			isLate = true
		}
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

// sameCharge reports whether two charges of a request, in two sets, are the same. A key's
// weight and keys' common limit are not compared, because calls in their line follow them.
func (g *generation) sameCharge(a *charge, other *generation, b *charge) bool {
	r, s := g.rules[a.Rule], other.rules[b.Rule]
	shared := a.Weight > 0
	return r.id == s.id && r.Shadow == s.Shadow && r.always() == s.always() && shared == (b.Weight > 0) &&
		a.Key == b.Key && a.Cost == b.Cost && a.Fixed == b.Fixed && a.Tariff == b.Tariff && (shared || *a.Limit == *b.Limit) &&
		same(g.decider.limiters[a.Rule], other.decider.limiters[b.Rule])
}
