package policy

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"

	"github.com/weir-go/ratelimit"
	"github.com/weir-go/ratelimit/failover"
	"github.com/weir-go/ratelimit/fair"
)

// sharer is a limiter whose keys share its limit, as those of packages fair and redislimit do.
type sharer interface {
	ratelimit.Reserver[string]
	SetLimit(limit ratelimit.Limit) error
}

// pool is the limit that the keys of a rule with Share have together, for all sets that have the rule.
type pool struct {
	sharer
	weigher *weigher
}

// weigher knows the weights of keys with calls under way, which the pool's limiter asks for: a limiter knows nothing of plans. The weights
// are those of the newest set, also for calls that began under an earlier one.
type weigher struct {
	rule atomic.Pointer[rule]
	mu   sync.Mutex
	keys map[string]*weighed
}

type weighed struct {
	calls  int // under way
	plan   string
	weight int
}

func newWeigher(r *rule) *weigher {
	w := &weigher{keys: map[string]*weighed{}}
	w.rule.Store(r)
	return w
}

// enter begins a call for a key of a plan. leave ends it.
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
	x.weight, _ = w.rule.Load().weightOf(key, plan)
}

func (w *weigher) leave(key string) {
	w.mu.Lock()
	defer w.mu.Unlock()
	x := w.keys[key]
	if x.calls--; x.calls == 0 {
		delete(w.keys, key)
	}
}

// weight returns the weight of a key.
func (w *weigher) weight(key string) int {
	w.mu.Lock()
	defer w.mu.Unlock()
	if x := w.keys[key]; x != nil {
		return x.weight
	}
	return w.rule.Load().Share
}

// adopt puts the weights of a rule in force, and returns the keys with calls under way whose weight it changes.
func (w *weigher) adopt(r *rule) (changed []string) {
	w.rule.Store(r)
	w.mu.Lock()
	defer w.mu.Unlock()
	for key, x := range w.keys {
		before := x.weight
		if x.weight, _ = r.weightOf(key, x.plan); x.weight != before {
			changed = append(changed, key)
		}
	}
	return changed
}

// adopt puts a rule's limit and weights in force, also for calls in line. The engine has accepted the limit.
func (p *pool) adopt(r *rule) {
	if r.whole != p.weigher.rule.Load().whole {
		_ = p.SetLimit(r.whole)
	}
	for _, key := range p.weigher.adopt(r) {
		_, _ = p.Take(context.Background(), key, 0) // it charges nothing, and brings the weight
	}
}

// call runs a call of the limiter for the key of a charge.
func (p *pool) call(ch *charge, do func(l sharer) error) error {
	p.weigher.enter(ch.Key, ch.Tariff)
	defer p.weigher.leave(ch.Key)
	return do(p.sharer)
}

// share makes a charge one of the pool that the rule's keys share, if it has one.
func (c *rule) share(r Request, ch *charge) {
	if c.pool == nil || !counts(*ch.Limit) {
		return
	}
	ch.Tariff, _ = r.Attribute(attrPlan)
	var ofPlan bool
	if ch.Weight, ofPlan = c.weightOf(ch.Key, ch.Tariff); ofPlan {
		ch.Plan = ch.Tariff
	}
}

// weightOf returns the weight of a key, and whether it is its plan's.
func (c *rule) weightOf(key, plan string) (weight int, ofPlan bool) {
	if weight, ok := c.weights[key]; ok {
		return weight, false
	}
	if weight, ok := c.Shares[plan]; ok {
		return weight, true
	}
	return c.Share, false
}

// sharerFor returns the engine's limiter for a rule with Share. Before is the limiter of the rule in the set before, if its keys shared one.
func (e Engine) sharerFor(b Budget, before ratelimit.Limiter[string]) (sharer, error) {
	l, err := e(b, before)
	if err != nil {
		return nil, err
	}
	s, ok := l.(sharer)
	if !ok || !ratelimit.Describe(l).Shared {
		return nil, fmt.Errorf("the engine returned a %T, whose keys do not share one limit, as those of Memory and policyredis do: %w", l, errors.ErrUnsupported)
	}
	return s, nil
}

// idle returns the limiter that stands in the stack for a rule with Share. Its keys without a weight are blocked or unlimited.
func (e Engine) idle(b Budget) (ratelimit.Limiter[string], error) {
	b.Limit, b.Others, b.Share, b.Weight = ratelimit.Unlimited().Named(b.Limit.Name), nil, 0, nil
	return e(b, nil)
}

// memoryPool is the limiter of [Memory] for a rule with Share.
type memoryPool struct {
	*fair.Limiter[string]
	processes int // that share the limit
	clock     ratelimit.Clock
}

// newMemoryPool returns a limiter, or the limiter before, if there was one.
func newMemoryPool(o *MemoryOptions, b Budget, before ratelimit.Limiter[string]) (ratelimit.Limiter[string], error) {
	p := &memoryPool{processes: o.Processes, clock: o.Clock}
	var err error
	p.Limiter, err = fair.New(shareOf(b.Limit, o.Processes), &fair.Options[string]{MaxKeys: o.MaxKeys, Clock: o.Clock, Weight: b.Weight})
	if before, ok := before.(*memoryPool); ok && err == nil {
		return before, nil
	}
	return p, err
}

// SetLimit changes the limit to this process's share of it.
func (p *memoryPool) SetLimit(limit ratelimit.Limit) error {
	return p.Limiter.SetLimit(shareOf(limit, p.processes))
}

// shareOf returns the part of a limit that one of several processes enforces.
func shareOf(limit ratelimit.Limit, processes int) ratelimit.Limit {
	if processes <= 1 {
		return limit
	}
	return failover.Share(limit, processes).Named(limit.Name)
}
