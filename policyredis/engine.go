// Package policyredis keeps the budgets of package policy on Redis, for a fleet of processes.
//
//	policies, err := policy.New(set, &policy.Options{Engine: policyredis.New(client, nil)})
//
// One round trip decides all rules of a request, all or nothing. The promises of package redislimit hold.
package policyredis

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/weir-go/ratelimit"
	"github.com/weir-go/ratelimit/policy"
	"github.com/weir-go/ratelimit/redislimit"
)

// Options configure [New]. Nil and the zero Options select the defaults.
type Options struct {
	// Prefix begins all Redis keys. It defaults to "policy:". Processes that share budgets need the same Prefix.
	Prefix string
	// Timeout bounds a decision, and each lease for it. It defaults to 50 ms.
	Timeout time.Duration
	// Slot is [redislimit.Options.Slot]. All keys of one request must share a slot.
	Slot func(key string) string
	// Tenant names the attribute that spreads requests over the servers of a cluster or a Ring. Rules without it in their key are spent
	// from leases: their bound is the rule's plus processes × MaxBatch, and they cannot be leaky buckets. It excludes Slot. Call [Flush]
	// on shutdown.
	Tenant string
	// MaxBatch is the maximum number of units that a process leases for a key. It defaults to 100.
	MaxBatch int
	// Hooks is [redislimit.Options.Hooks].
	Hooks []redis.Hook
}

const defaultMaxBatch = 100

// New returns an engine on Redis. The case of rules' names plays no part.
func New(client redis.UniversalClient, opts *Options) policy.Engine {
	e := &engine{client: client}
	if opts != nil {
		e.opts = *opts
	}
	if e.opts.Prefix == "" {
		e.opts.Prefix = "policy:"
	}
	if e.opts.MaxBatch == 0 {
		e.opts.MaxBatch = defaultMaxBatch
	}
	return e
}

type engine struct {
	client redis.UniversalClient
	opts   Options

	mu     sync.Mutex  // guards opened
	opened [2]*decider // the last one, and the one before, which may hold leases still; nil for none
}

// Flush gives back the unused part of e's leases. Call it after the last decision. Without Tenant, and for other engines, it
// does nothing.
func Flush(ctx context.Context, e policy.Engine) error {
	mine, ok := e.(*engine)
	if !ok {
		return nil
	}
	mine.mu.Lock()
	opened := mine.opened
	mine.mu.Unlock()
	var errs []error
	for _, d := range opened {
		if d != nil {
			errs = append(errs, d.Flush(ctx))
		}
	}
	return errors.Join(errs...)
}

// Open makes a limiter for each rule. Nothing is sent: limiters know no state but their limit.
func (e *engine) Open(rules []policy.Budget) (ratelimit.Reserver[*policy.Charges], error) {
	if e.client == nil {
		return nil, errors.New("policyredis: nil client")
	}
	if err := e.check(rules); err != nil {
		return nil, err
	}
	if len(rules) == 0 {
		return nil, nil
	}
	layers := make([]ratelimit.Layer[*policy.Charges], len(rules))
	bare := make([]ratelimit.Layer[*policy.Charges], len(rules))
	for i, r := range rules {
		l, err := e.limiter(r)
		if err != nil {
			return nil, fmt.Errorf("rule %q: %w", r.Name, err)
		}
		if bare[i] = bareLayer(i, r, l); e.leased(r) {
			bare[i] = redislimit.Leased(bare[i], e.opts.MaxBatch)
		}
		layers[i] = wrapped(i, r, bare[i])
	}
	d, err := newDecider(layers, bare)
	if err != nil {
		return nil, err
	}
	d.engine, d.rules = e, rules
	e.mu.Lock()
	e.opened = [2]*decider{&d, e.opened[0]}
	e.mu.Unlock()
	return d, nil
}

// counts reports whether a rule counts anything.
func counts(r policy.Budget) bool {
	limits := append([]ratelimit.Limit{r.Limit}, r.Others...)
	return slices.ContainsFunc(limits, func(l ratelimit.Limit) bool {
		return l.Algorithm != ratelimit.AlgorithmUnlimited && l.Algorithm != ratelimit.AlgorithmBlocked
	})
}

// leased reports whether a rule is spent from leases, since its keys do not belong to one tenant.
func (e *engine) leased(r policy.Budget) bool {
	return e.opts.Tenant != "" && !slices.Contains(r.Key, e.opts.Tenant) && counts(r)
}

// check returns an error if the options do not fit these rules.
func (e *engine) check(rules []policy.Budget) error {
	if e.opts.Tenant != "" && e.opts.Slot != nil {
		return errors.New("policyredis: Options.Tenant and Options.Slot both choose the server of a key: want one of them")
	}
	if e.opts.MaxBatch < 0 {
		return fmt.Errorf("policyredis: Options.MaxBatch is %d, want 0 for the default or more", e.opts.MaxBatch)
	}
	for _, r := range rules {
		for _, limit := range append([]ratelimit.Limit{r.Limit}, r.Others...) {
			if e.leased(r) && limit.Algorithm == ratelimit.AlgorithmLeakyBucket {
				return fmt.Errorf("policyredis: rule %q has a leaky bucket and no %q in its key: it would have to be spent from leases, which a leaky bucket cannot be",
					r.Name, e.opts.Tenant)
			}
		}
	}
	return e.checkServers(rules)
}

// checkServers returns an error if a client of several servers cannot serve the rules: a rule for all requests beside rules
// with keys, with no option that puts them on one server.
func (e *engine) checkServers(rules []policy.Budget) error {
	switch e.client.(type) {
	case *redis.Ring, *redis.ClusterClient:
	default:
		return nil
	}
	if e.opts.Slot != nil || e.opts.Tenant != "" {
		return nil
	}
	global, keyed := -1, -1
	for i, r := range rules {
		switch {
		case !counts(r):
		case len(r.Key) == 0:
			global = i
		default:
			keyed = i
		}
	}
	if global >= 0 && keyed >= 0 {
		return fmt.Errorf("policyredis: rule %q has one budget for all requests, which would be on another server of the Ring or cluster than the budgets of rule %q: "+
			"set Options.Tenant, or Options.Slot", rules[global].Name, rules[keyed].Name)
	}
	return nil
}

// limiter returns the rule's limiter. It also checks the limits that charges may bring: a limit that Redis cannot count is
// refused here, and not at each request.
func (e *engine) limiter(r policy.Budget) (*redislimit.Limiter, error) {
	for _, limit := range r.Others {
		if _, err := redislimit.New(e.client, limit, e.options(r)); err != nil {
			return nil, err
		}
	}
	return redislimit.New(e.client, r.Limit, e.options(r))
}

func (e *engine) options(r policy.Budget) *redislimit.Options {
	o := &redislimit.Options{Name: strings.ToLower(r.Name), Prefix: e.opts.Prefix, Timeout: e.opts.Timeout, Slot: e.opts.Slot, Hooks: e.opts.Hooks}
	if e.opts.Tenant != "" && slices.Contains(r.Key, e.opts.Tenant) {
		o.Slot = func(key string) string {
			if values := policy.ValuesOf(key, len(r.Key)); len(values) == len(r.Key) { // Redis may list names that are no keys of the rule
				return values[slices.Index(r.Key, e.opts.Tenant)]
			}
			return ""
		}
	}
	return o
}

var errNotCharged = errors.New("policyredis: the rule does not apply to this request")

// chargeOf returns the charge of a rule that applies, nil for another.
func chargeOf(c *policy.Charges, rule int) *policy.Charge {
	i, ok := slices.BinarySearchFunc(c.List, rule, func(ch policy.Charge, rule int) int { return ch.Rule - rule })
	if !ok {
		return nil
	}
	return &c.List[i]
}

// applying appends the indices of the rules that apply.
func applying(c *policy.Charges, which []int) []int {
	for _, ch := range c.List {
		which = append(which, ch.Rule)
	}
	return which
}

// bareLayer returns the rule's layer. If the rule has more than one limit, each charge brings
// its own.
func bareLayer(i int, r policy.Budget, l *redislimit.Limiter) ratelimit.Layer[*policy.Charges] {
	y := redislimit.By(l, func(c *policy.Charges) (string, error) {
		ch := chargeOf(c, i)
		if ch == nil {
			return "", errNotCharged
		}
		return ch.Key, nil
	})
	if len(r.Others) == 0 && !r.AnyLimit {
		return y
	}
	y.Limit = func(c *policy.Charges) ratelimit.Limit { return *chargeOf(c, i).Limit }
	return y
}

// wrapped returns the layer with the rule's cost, shadow and observer.
func wrapped(i int, r policy.Budget, y ratelimit.Layer[*policy.Charges]) ratelimit.Layer[*policy.Charges] {
	if r.OwnCost {
		y.Cost = func(c *policy.Charges) int { return chargeOf(c, i).Cost }
	}
	y.Shadow = r.Shadow
	y.Observe = func(e ratelimit.Event[*policy.Charges]) { e.Key.TellEvent(i, e) }
	return y
}

// decider decides by one stack, and peeks by another, whose layers charge the caller's cost and are no shadows.
type decider struct {
	*redislimit.Layered[*policy.Charges]
	bare *redislimit.Layered[*policy.Charges]

	engine *engine
	rules  []policy.Budget
}

func newDecider(layers, bare []ratelimit.Layer[*policy.Charges]) (d decider, err error) {
	if d.Layered, err = redislimit.AllOf(applying, layers...); err != nil {
		return d, err
	}
	d.bare, err = redislimit.AllOf(applying, bare...)
	return d, err
}

// CheckLimit returns an error for a limit that Redis cannot count, or not from leases.
func (d decider) CheckLimit(limit ratelimit.Limit) error {
	if d.engine.opts.Tenant != "" && limit.Algorithm == ratelimit.AlgorithmLeakyBucket {
		return errors.New("policyredis: a leaky bucket might have to be spent from leases")
	}
	_, err := redislimit.New(d.engine.client, limit, &redislimit.Options{Name: "check"})
	return err
}

// Peek implements [ratelimit.Peeker]. The round trip is bounded by the limiters' Timeout.
func (d decider) Peek(ctx context.Context, c *policy.Charges, cost int) (ratelimit.Decision, error) {
	if !c.Bare {
		return d.Layered.Peek(ctx, c, cost)
	}
	standing, err := d.bare.Peek(ctx, c, cost)
	if errors.Is(err, ratelimit.ErrExceedsLimit) { // Redis was not called, but the caller needs the remaining budget
		if now, failed := d.bare.Peek(ctx, c, 0); failed == nil {
			standing.Remaining, standing.Debt, standing.ResetAfter = now.Remaining, now.Debt, now.ResetAfter
		}
	}
	return standing, err
}

// Adjust implements [ratelimit.Adjuster].
func (d decider) Adjust(ctx context.Context, c *policy.Charges, delta int) error {
	return d.each(c, func(l *redislimit.Limiter, r policy.Budget, key string) error {
		if !c.Bare && (r.OwnCost || r.Shadow) {
			return nil
		}
		return l.Adjust(ctx, key, delta)
	})
}

// Reset implements [ratelimit.Resetter].
func (d decider) Reset(ctx context.Context, c *policy.Charges) error {
	return d.each(c, func(l *redislimit.Limiter, _ policy.Budget, key string) error { return l.Reset(ctx, key) })
}

// each calls do for each charge, with a limiter of the charge's limit on the rule's budgets.
func (d decider) each(c *policy.Charges, do func(l *redislimit.Limiter, r policy.Budget, key string) error) error {
	for _, ch := range c.List {
		l, err := redislimit.New(d.engine.client, *ch.Limit, d.engine.options(d.rules[ch.Rule]))
		if err != nil {
			return err
		}
		if err := do(l, d.rules[ch.Rule], ch.Key); err != nil {
			return err
		}
	}
	return nil
}

// Each visits the keys of a rule on all servers.
func (d decider) Each(ctx context.Context, rule int, limitFor func(key string) ratelimit.Limit, visit func(key string, d ratelimit.Decision) bool) error {
	r := d.rules[rule]
	opts := d.engine.options(r)
	opts.LimitFor = limitFor
	l, err := redislimit.New(d.engine.client, r.Limit, opts)
	if err != nil {
		return err
	}
	return l.Each(ctx, visit)
}
