package policy

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/weir-go/ratelimit"
)

// decider decides with one stack. It peeks and adjusts with another,
// whose layers charge the caller's cost and are not shadows.
type decider struct {
	stack, bare *ratelimit.Layered[*charges]
	limiters    []ratelimit.Limiter[string] // by rule, as the engine has returned them
	rules       []*rule
	pools       bool            // whether keys of a rule share one limit
	memory      bool            // whether the limiters are those of Memory
	clock       ratelimit.Clock // Memory's clock, or nil
}

// newDecider returns the decider of rules, or nil if there are none.
func newDecider(rules []*rule, limiters, stacked []ratelimit.Limiter[string]) (*decider, error) {
	if len(rules) == 0 {
		return nil, nil
	}
	d := &decider{limiters: limiters, rules: rules}
	layers := make([]ratelimit.Layer[*charges], len(rules))
	bare := make([]ratelimit.Layer[*charges], len(rules))
	for i, r := range rules {
		l := stacked[i]
		d.pools = d.pools || r.pool != nil
		if t, ok := l.(*table); ok {
			l, d.memory, d.clock = t.Keyed, true, t.clock
		}
		bare[i] = bareLayer(i, r, l)
		layers[i] = wrapped(i, r, bare[i])
	}
	var err error
	if d.stack, err = ratelimit.AllOf((*charges).append, layers...); err != nil {
		return nil, err
	}
	if d.bare = d.stack; slices.ContainsFunc(rules, func(r *rule) bool { return r.ownCost || r.Shadow }) {
		d.bare, err = ratelimit.AllOf((*charges).append, bare...)
	}
	return d, err
}

// peekStack is peek without keys' common limits.
func (d *decider) peekStack(ctx context.Context, c *charges, cost int) (ratelimit.Decision, error) {
	standing, err := d.of(c).Peek(ctx, c, cost)
	// the caller needs the remaining budget, and the store was not called
	if c.Bare && !d.memory && errors.Is(err, ratelimit.ErrExceedsLimit) {
		if now, failed := d.bare.Peek(ctx, c, 0); failed == nil {
			standing.Remaining, standing.Debt, standing.ResetAfter, standing.NextAfter = now.Remaining, now.Debt, now.ResetAfter, now.NextAfter
		}
	}
	return standing, err
}

// of returns the charges' stack.
func (d *decider) of(c *charges) *ratelimit.Layered[*charges] {
	if c.Bare {
		return d.bare
	}
	return d.stack
}

func (d *decider) reset(ctx context.Context, c *charges) error {
	var errs []error
	for i := range c.List {
		errs = append(errs, ratelimit.Reset(ctx, d.limiters[c.List[i].Rule], c.List[i].Key))
	}
	return errors.Join(errs...)
}

// each visits a rule's keys. limitFor returns a key's limit, given the limit of its last decision.
func (d *decider) each(ctx context.Context, rule int, limitFor limitFor, visit visitor) error {
	var failed error
	show := func(key string, standing ratelimit.Decision) (more bool) {
		more, failed = d.show(ctx, rule, key, standing, limitFor, visit)
		return more
	}
	limiter := d.limiters[rule]
	if t, ok := limiter.(*table); ok {
		limiter = t.Keyed
	}
	switch l := limiter.(type) {
	case *ratelimit.Keyed[string]:
		for key, standing := range l.All() {
			if !show(key, standing) {
				break
			}
		}
		return failed
	case interface {
		Each(ctx context.Context, visit func(key string, d ratelimit.Decision) bool) error
	}:
		return cmp.Or(l.Each(ctx, show), failed)
	}
	return fmt.Errorf("policy: the engine cannot list keys: %w", errors.ErrUnsupported)
}

// limitFor returns the limit of a rule's key. last is the limit of its last decision.
type limitFor = func(rule int, key string, last ratelimit.Limit) ratelimit.Limit

// visitor receives a key of a rule. It returns false to end the visit.
type visitor = func(rule int, key string, d ratelimit.Decision) bool

// show passes a key to visit, with the decision under the key's own limit.
func (d *decider) show(ctx context.Context, rule int, key string, standing ratelimit.Decision, limitFor limitFor, visit visitor) (more bool, err error) {
	if limit := limitFor(rule, key, standing.Limit); limit != standing.Limit {
		standing, err = d.bare.Peek(ctx, &charges{List: []charge{{Rule: rule, Key: key, Cost: 1, Limit: &limit}}, Bare: true}, 1)
		if err != nil && !errors.Is(err, ratelimit.ErrExceedsLimit) {
			return false, err
		}
	}
	if err := ctx.Err(); err != nil {
		return false, err
	}
	return visit(rule, key, standing), nil
}

// eachTogether is each for several rules, in one pass through a store's
// keys. If the store cannot do this, it visits nothing and reports false.
func (d *decider) eachTogether(ctx context.Context, rules []int, limitFor limitFor, visit visitor) (bool, error) {
	if len(rules) < 2 {
		return false, nil
	}
	joining := make([]ratelimit.Joining, len(rules))
	for i, rule := range rules {
		joining[i].Limiter = d.limiters[rule]
	}
	first, ok := d.limiters[rules[0]].(ratelimit.Joinable)
	if !ok {
		return false, nil
	}
	j, err := first.Join(joining)
	if err != nil {
		return false, nil
	}
	l, ok := j.(interface {
		Each(ctx context.Context, visit func(limiter int, key string, d ratelimit.Decision) bool) error
	})
	if !ok {
		return false, nil
	}
	var failed error
	err = l.Each(ctx, func(limiter int, key string, standing ratelimit.Decision) (more bool) {
		more, failed = d.show(ctx, rules[limiter], key, standing, limitFor, visit)
		return more
	})
	return !errors.Is(err, errors.ErrUnsupported), cmp.Or(err, failed)
}

// bareLayer returns the rule's layer. If a rule has only the limiter's limit, the layer has no Limit: it is faster.
func bareLayer(i int, r *rule, l ratelimit.Limiter[string]) ratelimit.Layer[*charges] {
	y := ratelimit.By(l, func(c *charges) (string, error) {
		ch := c.of(i)
		if ch == nil {
			return "", errNotCharged
		}
		return ch.Key, nil
	})
	if limits := ratelimit.Describe(l).Limits; !r.varies && (len(limits) == 0 || len(limits) == 1 && r.limit == limits[0]) {
		return y
	}
	y.Limit = func(c *charges) ratelimit.Limit { return *c.of(i).Limit }
	return y
}

// wrapped returns the layer with the rule's cost and shadow.
func wrapped(i int, r *rule, y ratelimit.Layer[*charges]) ratelimit.Layer[*charges] {
	if r.ownCost {
		y.Cost = func(c *charges) int { return c.of(i).Cost }
	}
	if r.settles() {
		y.Actual = func(c *charges) int { return c.real(r, c.of(i)) }
	}
	y.Shadow = r.Shadow
	return y
}

var errNotCharged = errors.New("policy: the rule does not apply to this request")

// wall returns the clock for rules' dates: the clock of the budgets in memory if it has dates, otherwise this machine's.
func (d *decider) wall() func() time.Time {
	if d != nil {
		if clock, ok := d.clock.(interface{ Wall() time.Time }); ok {
			return clock.Wall
		}
	}
	return time.Now
}
