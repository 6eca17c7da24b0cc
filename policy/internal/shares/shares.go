// Package shares lets a rule's keys share one limit by weight.
package shares

import (
	"context"
	"sync"
	"sync/atomic"

	"github.com/weir-go/ratelimit"
)

// Limiter is a limiter whose keys share its limit, for example one of package fair or redislimit.
type Limiter interface {
	ratelimit.Reserver[string]
	SetLimit(limit ratelimit.Limit) error
}

// Terms are the limit shared by a rule's keys, and the keys' weights. They never change.
type Terms struct {
	Limit ratelimit.Limit
	Keys  map[string]int // single keys' weights
	Plans map[string]int // other keys' weights, by plan
	Rest  int            // all remaining keys' weight
}

// Of returns a key's weight, and whether the weight comes from its plan.
func (t *Terms) Of(key, plan string) (weight int, ofPlan bool) {
	if weight, ok := t.Keys[key]; ok {
		return weight, false
	}
	if weight, ok := t.Plans[plan]; ok {
		return weight, true
	}
	return t.Rest, false
}

// Pool is the limit shared by a rule's keys. It serves all sets with the rule.
type Pool struct {
	Limiter
	weigher *weigher
}

// New returns a pool without a Limiter.
func New(t *Terms) *Pool {
	w := &weigher{keys: map[string]*weighed{}}
	w.terms.Store(t)
	return &Pool{weigher: w}
}

// Again returns a pool without a Limiter that shares p's calls under way.
func (p *Pool) Again() *Pool { return &Pool{weigher: p.weigher} }

// Weight returns a key's weight.
func (p *Pool) Weight(key string) int { return p.weigher.weight(key) }

// Adopt puts a limit and weights in force, even for waiting calls. The engine must have accepted the limit.
func (p *Pool) Adopt(t *Terms) {
	if t.Limit != p.weigher.terms.Load().Limit {
		_ = p.SetLimit(t.Limit)
	}
	for _, key := range p.weigher.adopt(t) {
		_, _ = p.Take(context.Background(), key, 0) // charges nothing, and passes the weight to the limiter
	}
}

// Call runs a call to the limiter for a key with a plan.
func (p *Pool) Call(key, plan string, do func(l Limiter) error) error {
	p.weigher.enter(key, plan)
	defer p.weigher.leave(key)
	return do(p.Limiter)
}

// weigher holds the weights of keys with calls under way. The pool's limiter reads them here, because a
// limiter has no plans. The weights come from the newest set, even for calls begun under an earlier one.
type weigher struct {
	terms atomic.Pointer[Terms]
	mu    sync.Mutex
	keys  map[string]*weighed
}

type weighed struct {
	calls  int // calls under way
	plan   string
	weight int
}

// enter begins a call for a key with a plan. leave ends it.
func (w *weigher) enter(key, plan string) {
	w.mu.Lock()
	defer w.mu.Unlock()
	x := w.keys[key]
	if x == nil {
		x = new(weighed)
		w.keys[key] = x
	}
	x.calls++
	x.plan = plan
	x.weight, _ = w.terms.Load().Of(key, plan)
}

func (w *weigher) leave(key string) {
	w.mu.Lock()
	defer w.mu.Unlock()
	x := w.keys[key]
	if x.calls--; x.calls == 0 {
		delete(w.keys, key)
	}
}

// weight returns a key's weight.
func (w *weigher) weight(key string) int {
	w.mu.Lock()
	defer w.mu.Unlock()
	if x := w.keys[key]; x != nil {
		return x.weight
	}
	return w.terms.Load().Rest
}

// adopt puts weights in force. It returns each key with a changed weight and a call under way.
func (w *weigher) adopt(t *Terms) (changed []string) {
	w.terms.Store(t)
	w.mu.Lock()
	defer w.mu.Unlock()
	for key, x := range w.keys {
		before := x.weight
		if x.weight, _ = t.Of(key, x.plan); x.weight != before {
			changed = append(changed, key)
		}
	}
	return changed
}
