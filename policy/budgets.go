package policy

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"time"

	"github.com/weir-go/ratelimit"
	"github.com/weir-go/ratelimit/failover"
)

// MemoryOptions are the [ratelimit.Options] of each rule.
type MemoryOptions struct {
	MaxKeys  int
	OnFull   ratelimit.Overflow
	Remember int
	Clock    ratelimit.Clock
	// Processes is the number of processes that have such an engine each, as the stand-in while a store that they share does not answer: see
	// package failover. Every limit of the rules, plans, overrides and attributes is divided by it, as [failover.Share] does, so that all
	// of them together admit the whole limit once more, rounded up for each. Zero and one divide nothing; below zero is an error of [New].
	Processes int
}

// Memory returns an engine in this process's memory.
func Memory(opts *MemoryOptions) Engine {
	var o ratelimit.Options[string]
	processes := 0
	if opts != nil {
		processes = opts.Processes
		o = ratelimit.Options[string]{MaxKeys: opts.MaxKeys, OnFull: opts.OnFull, Remember: opts.Remember, Clock: opts.Clock}
	}
	return &budgets{clock: o.Clock, inMemory: true, processes: processes, make: func(b Budget, before ratelimit.Limiter[string]) (ratelimit.Limiter[string], error) {
		if before != nil {
			return before, nil
		}
		o := o
		return ratelimit.New(b.Limit, &o)
	}}
}

// Store returns an engine in any store: make returns the limiter of a rule's budget. All limiters must be of one store: see
// [ratelimit.Joinable]. Before is the limiter of the rule of that name in the set before, or nil: a limiter that holds its spending itself
// must be returned again. A charge brings its limit, if that is not the limiter's.
//
//	policy.Store(func(b policy.Budget, _ ratelimit.Limiter[string]) (ratelimit.Limiter[string], error) {
//		return sqllimit.New(db, b.Limit, &sqllimit.Options{Name: b.Name})
//	})
func Store(make func(b Budget, before ratelimit.Limiter[string]) (ratelimit.Limiter[string], error)) Engine {
	return &budgets{make: make}
}

// budgets has a limiter for each rule. Sets that are in use at one time share the limiters, and with them the spending, but
// never a limit: a charge is decided under the limit that its own set has for it. So a decision by an earlier set does not meet
// the limits of the next.
type budgets struct {
	make      func(Budget, ratelimit.Limiter[string]) (ratelimit.Limiter[string], error)
	inMemory  bool
	processes int // whose stand-ins share each limit
	clock     ratelimit.Clock
	limiters  map[string]ratelimit.Limiter[string] // by the rule's name in lower case
	last      map[string]Budget                    // that each was opened with last
}

func (e *budgets) Open(rules []Budget) (ratelimit.Reserver[*Charges], error) {
	if err := e.checkOptions(); err != nil {
		return nil, err
	}
	if len(rules) == 0 {
		e.limiters, e.last = nil, nil
		return nil, nil
	}
	limiters := make(map[string]ratelimit.Limiter[string], len(rules))
	d := &decider{engine: e, rules: rules}
	layers := make([]ratelimit.Layer[*observed], len(rules))
	bare := make([]ratelimit.Layer[*observed], len(rules))
	for i, r := range rules {
		l, err := e.make(r, e.limiters[r.id()])
		for k := 0; k < len(r.Others) && err == nil && !e.inMemory; k++ {
			err = e.check(r, r.Others[k])
		}
		if err != nil {
			return nil, fmt.Errorf("rule %q: %w", r.Name, err)
		}
		limiters[r.id()] = l
		d.limiters = append(d.limiters, l)
		bare[i] = bareLayer(i, r, l)
		layers[i] = wrapped(i, r, bare[i])
	}
	var err error
	if d.stack, err = ratelimit.AllOf((*observed).append, layers...); err != nil {
		return nil, err
	}
	if d.bare = d.stack; slices.ContainsFunc(rules, func(r Budget) bool { return r.OwnCost || r.Shadow }) {
		if d.bare, err = ratelimit.AllOf((*observed).append, bare...); err != nil {
			return nil, err
		}
	}
	e.keep(rules, limiters)
	return d, nil
}

func (e *budgets) checkOptions() error {
	if e.processes < 0 {
		return fmt.Errorf("MemoryOptions.Processes is %d, want the number of processes, or 0", e.processes)
	}
	return nil
}

// Check returns the error of Open, without the rule's name if there is one rule.
func (e *budgets) Check(rules []Budget) error {
	if err := e.checkOptions(); err != nil {
		return err
	}
	for _, r := range rules {
		for _, limit := range append([]ratelimit.Limit{r.Limit}, r.Others...) {
			if err := e.check(r, limit); err != nil && len(rules) == 1 {
				return err
			} else if err != nil {
				return fmt.Errorf("rule %q: %w", r.Name, err)
			}
		}
	}
	return nil
}

// inMemory reports whether an engine holds its budgets itself, and frees them with their rules.
func inMemory(e Engine) bool {
	b, ok := e.(*budgets)
	return ok && b.inMemory
}

// shareOf returns the limit that this process enforces alone of a limit.
func shareOf(e Engine, limit ratelimit.Limit) ratelimit.Limit {
	if b, ok := e.(*budgets); ok && b.processes > 1 {
		return failover.Share(limit, b.processes).Named(limit.Name)
	}
	return limit
}

// shared returns rules with the limits that this process enforces alone.
func shared(e Engine, rules []Rule) []Rule {
	if b, ok := e.(*budgets); !ok || b.processes <= 1 {
		return rules
	}
	rules = slices.Clone(rules)
	for i := range rules {
		r := &rules[i]
		if r.Allow {
			continue
		}
		r.Limit, r.Plans, r.Overrides = shareOf(e, r.Limit), maps.Clone(r.Plans), slices.Clone(r.Overrides)
		for plan, limit := range r.Plans {
			r.Plans[plan] = shareOf(e, limit)
		}
		for k := range r.Overrides {
			r.Overrides[k].Limit = shareOf(e, r.Overrides[k].Limit)
		}
	}
	return rules
}

// check returns an error if the store cannot count a limit.
func (e *budgets) check(r Budget, limit ratelimit.Limit) error {
	r.Limit, r.Others = limit.Named(r.Name), nil
	_, err := e.make(r, nil)
	return err
}

// keep takes over the limiters of a set. A limiter in memory remembers the limits that charges bring. If a rule has other limits than
// before, its limiter is made to forget them.
func (e *budgets) keep(rules []Budget, limiters map[string]ratelimit.Limiter[string]) {
	last := make(map[string]Budget, len(rules))
	for _, r := range rules {
		if old, ok := e.last[r.id()]; ok && (old.Limit != r.Limit || !slices.Equal(old.Others, r.Others)) {
			if l, ok := limiters[r.id()].(interface{ Refresh(keys ...string) }); ok {
				l.Refresh()
			}
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

// decider decides by one stack, and peeks and adjusts by another, whose layers charge the caller's cost and are no
// shadows.
type decider struct {
	stack, bare *ratelimit.Layered[*observed]
	limiters    []ratelimit.Limiter[string] // by rule
	engine      *budgets
	rules       []Budget
}

func (d *decider) Allow(c *Charges, cost int) bool { return d.stack.Allow((*observed)(c), cost) }

func (d *decider) Take(ctx context.Context, c *Charges, cost int) (ratelimit.Decision, error) {
	return d.stack.Take(ctx, (*observed)(c), cost)
}

func (d *decider) Reserve(ctx context.Context, c *Charges, cost int, maxDelay time.Duration) (*ratelimit.Reservation, error) {
	return d.stack.Reserve(ctx, (*observed)(c), cost, maxDelay)
}

func (d *decider) Wait(ctx context.Context, c *Charges, cost int) error {
	return d.stack.Wait(ctx, (*observed)(c), cost)
}

func (d *decider) Peek(ctx context.Context, c *Charges, cost int) (ratelimit.Decision, error) {
	standing, err := d.of(c).Peek(ctx, (*observed)(c), cost)
	if c.Bare && !d.engine.inMemory && errors.Is(err, ratelimit.ErrExceedsLimit) { // the store was not asked, but the caller needs the remaining budget
		if now, failed := d.bare.Peek(ctx, (*observed)(c), 0); failed == nil {
			standing.Remaining, standing.Debt, standing.ResetAfter, standing.NextAfter = now.Remaining, now.Debt, now.ResetAfter, now.NextAfter
		}
	}
	return standing, err
}

// of returns the stack that some charges are about.
func (d *decider) of(c *Charges) *ratelimit.Layered[*observed] {
	if c.Bare {
		return d.bare
	}
	return d.stack
}

func (d *decider) Adjust(ctx context.Context, c *Charges, delta int) error {
	return d.of(c).Adjust(ctx, (*observed)(c), delta)
}

func (d *decider) Reset(ctx context.Context, c *Charges) error {
	var errs []error
	for i := range c.List {
		errs = append(errs, ratelimit.Reset(ctx, d.limiters[c.List[i].Rule], c.List[i].Key))
	}
	return errors.Join(errs...)
}

// CheckLimit refuses limits that the store cannot count.
func (d *decider) CheckLimit(limit ratelimit.Limit) error {
	if d.engine.inMemory {
		return nil
	}
	return d.engine.check(Budget{Name: "check"}, limit)
}

// each visits the keys of a rule, under the limit that limitFor returns for a key and the limit of its last
// decision.
func (d *decider) each(ctx context.Context, rule int, limitFor func(key string, last ratelimit.Limit) ratelimit.Limit, visit func(key string, d ratelimit.Decision) bool) error {
	var failed error
	show := func(key string, standing ratelimit.Decision) bool {
		if limit := limitFor(key, standing.Limit); limit != standing.Limit {
			var err error
			standing, err = d.bare.Peek(ctx, &observed{List: []Charge{{Rule: rule, Key: key, Cost: 1, Limit: &limit}}, Bare: true}, 1)
			if err != nil && !errors.Is(err, ratelimit.ErrExceedsLimit) {
				failed = err
				return false
			}
		}
		failed = ctx.Err()
		return failed == nil && visit(key, standing)
	}
	switch l := d.limiters[rule].(type) {
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
		return cmpOr(l.Each(ctx, show), failed)
	}
	return fmt.Errorf("policy: the engine cannot list keys: %w", errors.ErrUnsupported)
}

func cmpOr(a, b error) error {
	if a != nil {
		return a
	}
	return b
}

// bareLayer returns the rule's layer. A rule with the limiter's limit and no other need not bring it, which is faster.
func bareLayer(i int, r Budget, l ratelimit.Limiter[string]) ratelimit.Layer[*observed] {
	y := ratelimit.By(l, func(c *observed) (string, error) {
		ch := c.of(i)
		if ch == nil {
			return "", errNotCharged
		}
		return ch.Key, nil
	})
	if limits := ratelimit.Describe(l).Limits; r.fixed() && len(limits) == 1 && r.Limit == limits[0] {
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
