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
	e.Engine = policy.Store(e.limiter)
	return e
}

type engine struct {
	policy.Engine
	client redis.UniversalClient
	opts   Options

	mu      sync.Mutex // guards the fields below
	opening bool       // limiters are made for a set, and not to check one
	leased  []*redislimit.LeasedLimiter
}

// Flush gives back the unused part of e's leases. Call it after the last decision. Without Tenant, and for other engines, it
// does nothing.
func Flush(ctx context.Context, e policy.Engine) error {
	mine, ok := e.(*engine)
	if !ok {
		return nil
	}
	mine.mu.Lock()
	leased := mine.leased
	mine.mu.Unlock()
	var errs []error
	for _, l := range leased {
		errs = append(errs, l.Flush(ctx))
	}
	return errors.Join(errs...)
}

// Open checks the options, and makes a limiter for each rule. Nothing is sent.
func (e *engine) Open(rules []policy.Budget) (ratelimit.Reserver[*policy.Charges], error) {
	if err := e.check(rules); err != nil {
		return nil, err
	}
	e.set(true)
	defer e.set(false)
	return e.Engine.Open(rules)
}

func (e *engine) set(opening bool) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.opening = opening
}

// Check returns the error of Open. Nothing is sent.
func (e *engine) Check(rules []policy.Budget) error {
	if err := e.check(rules); err != nil {
		return err
	}
	return e.Engine.(interface{ Check([]policy.Budget) error }).Check(rules)
}

// limiter returns the rule's limiter. Limiters in Redis know no state but their limit.
func (e *engine) limiter(r policy.Budget, _ ratelimit.Limiter[string]) (ratelimit.Limiter[string], error) {
	l, err := redislimit.New(e.client, r.Limit, e.options(r))
	if err != nil || !e.isLeased(r) {
		return l, err
	}
	if r.Limit.Algorithm == ratelimit.AlgorithmLeakyBucket {
		return nil, errors.New("policyredis: a leaky bucket might have to be spent from leases")
	}
	leased := redislimit.Leased(l, e.opts.MaxBatch)
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.opening {
		e.leased = append(e.leased, leased)
	}
	return leased, nil
}

// counts reports whether a rule counts anything.
func counts(r policy.Budget) bool {
	limits := append([]ratelimit.Limit{r.Limit}, r.Others...)
	return slices.ContainsFunc(limits, func(l ratelimit.Limit) bool {
		return l.Algorithm != ratelimit.AlgorithmUnlimited && l.Algorithm != ratelimit.AlgorithmBlocked
	})
}

// isLeased reports whether a rule is spent from leases, since its keys do not belong to one tenant.
func (e *engine) isLeased(r policy.Budget) bool {
	return e.opts.Tenant != "" && !slices.Contains(r.Key, e.opts.Tenant) && counts(r)
}

// check returns an error if the options do not fit these rules.
func (e *engine) check(rules []policy.Budget) error {
	if e.client == nil {
		return errors.New("policyredis: nil client")
	}
	if e.opts.Tenant != "" && e.opts.Slot != nil {
		return errors.New("policyredis: Options.Tenant and Options.Slot both choose the server of a key: want one of them")
	}
	if e.opts.MaxBatch < 0 {
		return fmt.Errorf("policyredis: Options.MaxBatch is %d, want 0 for the default or more", e.opts.MaxBatch)
	}
	for _, r := range rules {
		for _, limit := range append([]ratelimit.Limit{r.Limit}, r.Others...) {
			if e.isLeased(r) && limit.Algorithm == ratelimit.AlgorithmLeakyBucket {
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
