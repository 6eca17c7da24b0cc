// Package policyredis keeps package policy's budgets on Redis, for a fleet.
//
//	policies, err := policy.New(set, &policy.Options{Engine: policyredis.New(client, nil)})
//
// One round trip decides all rules for a request, all or nothing. Package redislimit's promises hold. A rule with
// Share is a [redislimit.Fair], which usually needs no round trip: call [policy.Policies.Flush] on shutdown.
package policyredis

import (
	"cmp"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/weir-go/ratelimit"
	"github.com/weir-go/ratelimit/internal/optional"
	"github.com/weir-go/ratelimit/policy"
	"github.com/weir-go/ratelimit/redislimit"
)

// Options configure [New]. Nil and the zero Options select the defaults.
type Options struct {
	// Prefix begins all Redis keys. It defaults to "policy:". Processes that share budgets need the same Prefix.
	Prefix string
	// Timeout bounds a decision, and each lease for it. It defaults to 50 ms.
	Timeout time.Duration
	// Slot is [redislimit.Options.Slot]. All keys for a request must share a slot.
	Slot func(key string) string
	// Tenant is the attribute that spreads requests over the servers in a cluster or a Ring. Rules without
	// it in their key are spent from leases. Their bound is the rule's plus processes × MaxBatch, and they
	// cannot be leaky buckets. Tenant and Slot exclude each other. Call [policy.Policies.Flush] on shutdown.
	Tenant string
	// MaxBatch is the maximum number of units that a process leases for a key. It defaults to 100.
	MaxBatch int
	// Hooks is [redislimit.Options.Hooks].
	Hooks []redis.Hook
}

const defaultMaxBatch = 100

// New returns an engine on Redis. The case of rules' names does not matter. [policy.New] and
// [policy.Check] report a nil client, wrong options, and a limit that redislimit cannot count.
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
	return e.limiter
}

type engine struct {
	client redis.UniversalClient
	opts   Options
}

// limiter returns the rule's limiter, and sends nothing. A limiter on Redis has no
// state besides its limit, except if its keys share the limit: then it holds units.
func (e *engine) limiter(r policy.Budget, before ratelimit.Limiter[string]) (ratelimit.Limiter[string], error) {
	if err := cmp.Or(e.check(), e.checkServers(r)); err != nil {
		return nil, err
	}
	if r.Share > 0 {
		f, err := redislimit.NewFair(e.client, r.Limit, &redislimit.FairOptions{
			Name: strings.ToLower(r.Name), Prefix: e.opts.Prefix, Timeout: e.opts.Timeout, Weight: r.Weight, Hooks: e.opts.Hooks,
		})
		if last, ok := before.(*redislimit.Fair); ok && err == nil {
			return last, nil
		}
		return f, err
	}
	if e.isLeased(r) && r.Limit.Algorithm == ratelimit.AlgorithmLeakyBucket {
		return nil, fmt.Errorf("policyredis: rule %q has a leaky bucket and no %q in its key: it would have to be spent from leases, which a leaky bucket cannot be",
			r.Name, e.opts.Tenant)
	}
	return redislimit.New(e.client, r.Limit, e.options(r))
}

// isLeased reports whether a rule's budgets are spent from leases, because its keys do not belong to one tenant.
func (e *engine) isLeased(r policy.Budget) bool {
	return e.opts.Tenant != "" && !slices.Contains(r.Key, e.opts.Tenant)
}

// check returns an error if the client or the options are wrong.
func (e *engine) check() error {
	switch {
	case e.client == nil:
		return optional.Nil("policyredis: New: client")
	case e.opts.Tenant != "" && e.opts.Slot != nil:
		return errors.New("policyredis: Options.Tenant and Options.Slot both choose the server of a key: want one of them")
	}
	return optional.NotNegative("policyredis: Options.MaxBatch", e.opts.MaxBatch, "the default")
}

// checkServers returns an error if a client for several servers cannot serve a rule for all
// requests: if the set also has rules with keys, and no option puts these keys on one server.
func (e *engine) checkServers(r policy.Budget) error {
	switch e.client.(type) {
	case *redis.Ring, *redis.ClusterClient:
	default:
		return nil
	}
	if e.opts.Slot != nil || e.opts.Tenant != "" || len(r.Key) > 0 || !counts(r) {
		return nil
	}
	for _, other := range r.Set {
		if len(other.Key) > 0 && counts(other) && other.Share == 0 {
			return fmt.Errorf("policyredis: rule %q has one budget for all requests, which would be on another server of the Ring or cluster than the budgets of rule %q: "+
				"set Options.Tenant, or Options.Slot", r.Name, other.Name)
		}
	}
	return nil
}

// counts reports whether a rule counts anything.
func counts(r policy.Budget) bool {
	limits := append([]ratelimit.Limit{r.Limit}, r.Others...)
	return slices.ContainsFunc(limits, func(l ratelimit.Limit) bool {
		return l.Algorithm != ratelimit.AlgorithmUnlimited && l.Algorithm != ratelimit.AlgorithmBlocked
	})
}

func (e *engine) options(r policy.Budget) *redislimit.Options {
	o := &redislimit.Options{Name: strings.ToLower(r.Name), Prefix: e.opts.Prefix, Timeout: e.opts.Timeout, Slot: e.opts.Slot, Hooks: e.opts.Hooks}
	if e.opts.Tenant != "" && slices.Contains(r.Key, e.opts.Tenant) {
		o.Slot = func(key string) string {
			if values := policy.ValuesOf(key, len(r.Key)); len(values) == len(r.Key) { // Redis may list names that are not the rule's keys
				return values[slices.Index(r.Key, e.opts.Tenant)]
			}
			return ""
		}
	}
	if e.isLeased(r) {
		o.MaxBatch = e.opts.MaxBatch
	}
	return o
}
