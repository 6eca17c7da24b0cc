package policy

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/weir-go/ratelimit"
)

// MemoryOptions are the [ratelimit.Options] of each rule.
type MemoryOptions struct {
	MaxKeys  int
	OnFull   ratelimit.Overflow
	Remember int
	Clock    ratelimit.Clock
}

// Memory returns an engine in this process's memory.
func Memory(opts *MemoryOptions) Engine {
	e := &memory{limiters: map[string]*ratelimit.Keyed[string]{}}
	if opts != nil {
		e.opts = ratelimit.Options[string]{MaxKeys: opts.MaxKeys, OnFull: opts.OnFull, Remember: opts.Remember, Clock: opts.Clock}
	}
	return e
}

// memory has a limiter for each rule. Sets that are in use at one time share the limiters, and with them the spending, but
// never a limit: a charge is decided under the limit that its own set has for it. So a decision by an earlier set does not meet
// the limits of the next.
type memory struct {
	opts     ratelimit.Options[string]
	limiters map[string]*ratelimit.Keyed[string] // by the rule's name in lower case
	last     map[string]Budget                   // that each was opened with last
}

func (e *memory) Open(rules []Budget) (ratelimit.Reserver[*Charges], error) {
	if len(rules) == 0 {
		e.limiters, e.last = nil, nil
		return nil, nil
	}
	limiters := make(map[string]*ratelimit.Keyed[string], len(rules))
	byRule := make([]*ratelimit.Keyed[string], len(rules))
	layers := make([]ratelimit.Layer[*observed], len(rules))
	bare := make([]ratelimit.Layer[*observed], len(rules))
	for i, r := range rules {
		l, err := e.limiter(r)
		if err != nil {
			return nil, fmt.Errorf("rule %q: %w", r.Name, err)
		}
		limiters[r.id()] = l
		byRule[i] = l
		bare[i] = bareLayer(i, r, l)
		layers[i] = wrapped(i, r, bare[i])
	}
	d, err := memoryDeciderOf(rules, layers, bare)
	if err != nil {
		return nil, err
	}
	d.limiters = byRule
	e.keep(rules, limiters)
	return d, nil
}

// keep takes over the limiters of a set. A limiter remembers the limits that charges bring. If a rule has other limits than
// before, its limiter is made to forget them.
func (e *memory) keep(rules []Budget, limiters map[string]*ratelimit.Keyed[string]) {
	last := make(map[string]Budget, len(rules))
	for _, r := range rules {
		if old, ok := e.last[r.id()]; ok && (old.Limit != r.Limit || !slices.Equal(old.Others, r.Others)) {
			limiters[r.id()].Refresh()
		}
		last[r.id()] = r
	}
	e.limiters, e.last = limiters, last
}

// observed is [Charges] that take the results of a [ratelimit.Layered] themselves: see answerTaker in its stack.go.
type observed Charges

func (a *observed) of(rule int) *Charge { return (*Charges)(a).of(rule) }

func (a *observed) append(which []int) []int {
	for i := range a.List {
		which = append(which, a.List[i].Rule)
	}
	return which
}

func (a *observed) WantsAnswers(allowed bool) bool { return a.results != nil || a.shadows || !allowed }

func (a *observed) TakeAnswer(rule int, d *ratelimit.Decision, spent bool, err error) {
	(*Charges)(a).answer(rule, d, spent, err)
}

// memoryDecider decides by one stack, and peeks and adjusts by another, whose layers charge the caller's cost and are no
// shadows.
type memoryDecider struct {
	stack, bare *ratelimit.Layered[*observed]
	limiters    []*ratelimit.Keyed[string] // by rule
}

func memoryDeciderOf(rules []Budget, layers, bare []ratelimit.Layer[*observed]) (d *memoryDecider, err error) {
	d = new(memoryDecider)
	if d.stack, err = ratelimit.AllOf((*observed).append, layers...); err != nil {
		return d, err
	}
	d.bare = d.stack
	if slices.ContainsFunc(rules, func(r Budget) bool { return r.OwnCost || r.Shadow }) {
		d.bare, err = ratelimit.AllOf((*observed).append, bare...)
	}
	return d, err
}

func (d *memoryDecider) Allow(c *Charges, cost int) bool { return d.stack.Allow((*observed)(c), cost) }

func (d *memoryDecider) Take(ctx context.Context, c *Charges, cost int) (ratelimit.Decision, error) {
	return d.stack.Take(ctx, (*observed)(c), cost)
}

func (d *memoryDecider) Reserve(ctx context.Context, c *Charges, cost int, maxDelay time.Duration) (*ratelimit.Reservation, error) {
	return d.stack.Reserve(ctx, (*observed)(c), cost, maxDelay)
}

func (d *memoryDecider) Wait(ctx context.Context, c *Charges, cost int) error {
	return d.stack.Wait(ctx, (*observed)(c), cost)
}

func (d *memoryDecider) Peek(c *Charges, cost int) (ratelimit.Decision, error) {
	return d.of(c).Peek((*observed)(c), cost)
}

// of returns the stack that some charges are about.
func (d *memoryDecider) of(c *Charges) *ratelimit.Layered[*observed] {
	if c.Bare {
		return d.bare
	}
	return d.stack
}

func (d *memoryDecider) Adjust(_ context.Context, c *Charges, delta int) error {
	return d.of(c).Adjust((*observed)(c), delta)
}

func (d *memoryDecider) Reset(_ context.Context, c *Charges) error {
	for i := range c.List {
		d.limiters[c.List[i].Rule].Reset(c.List[i].Key)
	}
	return nil
}

// each visits the tracked keys of a rule, under the limit that limitFor returns for a key and the limit of its last
// decision.
func (d *memoryDecider) each(ctx context.Context, rule int, limitFor func(key string, last ratelimit.Limit) ratelimit.Limit, visit func(key string, d ratelimit.Decision) bool) error {
	for key, standing := range d.limiters[rule].All() {
		if limit := limitFor(key, standing.Limit); limit != standing.Limit {
			var err error
			standing, err = d.bare.Peek(&observed{List: []Charge{{Rule: rule, Key: key, Cost: 1, Limit: &limit}}, Bare: true}, 1)
			if err != nil && !errors.Is(err, ratelimit.ErrExceedsLimit) {
				return err
			}
		}
		if ctx.Err() != nil || !visit(key, standing) {
			return ctx.Err()
		}
	}
	return nil
}

// limiter returns the rule's present limiter, or a new one.
func (e *memory) limiter(r Budget) (*ratelimit.Keyed[string], error) {
	if l := e.limiters[r.id()]; l != nil {
		return l, nil
	}
	opts := e.opts
	return ratelimit.New(r.Limit, &opts)
}

// bareLayer returns the rule's layer. The limiter's own limit never changes: it is the limit in the first set that had the
// rule. A rule with this limit and no other need not bring it, which is faster.
func bareLayer(i int, r Budget, l *ratelimit.Keyed[string]) ratelimit.Layer[*observed] {
	y := ratelimit.By(l, func(c *observed) (string, error) {
		ch := c.of(i)
		if ch == nil {
			return "", errNotCharged
		}
		return ch.Key, nil
	})
	if r.fixed() && r.Limit == l.Limits()[0] {
		return y
	}
	y.Limit = func(c *observed) ratelimit.Limit { return *c.of(i).Limit }
	return y
}

// wrapped returns the layer with the rule's cost and shadow. An [observed] takes the results itself.
func wrapped(i int, r Budget, y ratelimit.Layer[*observed]) ratelimit.Layer[*observed] {
	if r.OwnCost {
		y.Cost = func(c *observed) int { return c.of(i).Cost }
	}
	y.Shadow = r.Shadow
	return y
}

var errNotCharged = errors.New("policy: the rule does not apply to this request")
