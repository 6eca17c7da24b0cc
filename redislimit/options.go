package redislimit

import (
	"cmp"
	"errors"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/weir-go/ratelimit"
	"github.com/weir-go/ratelimit/internal/micros"
	"github.com/weir-go/ratelimit/internal/optional"
)

// Options configure [New]. Zero means the default, but Name is required if the
// limit has none. Several goroutines may call the functions, while no lock is held.
type Options struct {
	// Name is part of the Redis keys. Limiters with the same Name, Prefix and server share their budgets,
	// even if their limits differ. If empty, it is the limit's Name. It must not contain braces.
	Name string

	// Prefix begins all Redis keys. If empty, it is "ratelimit:". It must not contain braces.
	Prefix string

	// LimitFor returns a key's limit. The zero Limit means the limit from New or SetLimit, and a limit without a name
	// gets that limit's name. LimitFor is called for each decision; concurrent decisions on a key share a call, and
	// its result. An invalid limit denies the key with [ratelimit.ErrInvalidLimit]. If nil, all keys have New's limit.
	LimitFor func(key string) ratelimit.Limit

	// Timeout bounds a decision or a settlement as a whole, in addition to the caller's context. If
	// zero, it is 50 ms. If negative, only the context and the client's own timeouts bound them.
	Timeout time.Duration

	// MaxLog bounds a sliding log's units and Concurrent's: New and SetLimit refuse more. If zero,
	// it is 2,000. The server's time for a settlement is proportional to the number of units.
	MaxLog int

	// MaxBatch, if above 0, makes the limiter spend a key's budget from leases (package lease) of at most
	// MaxBatch units in this process. Most decisions then need no round trip. In a stack, the limiter's
	// keys may be on another server than those beside them. The bound is the limit's plus processes ×
	// MaxBatch, if all processes lease. A leaky bucket cannot be leased: New and SetLimit refuse it.
	//
	// A stack is still all or nothing. A decision that fetches a batch takes up to Timeout longer, or 1 s if
	// Timeout is negative. A batch is given back after a second, and by [Limiter.Flush]; an unsettled
	// reservation holds it, as in [lease.Limiter.Reserve]. A leased shadow reports only its decisions on
	// requests charged by the other layers. Peek, Adjust, Reset and Each use the budget on Redis, where leased
	// units count as spent. If a Layer.Limit returns several limits for a key, it is leased under one at a time.
	MaxBatch int

	// Slot returns the text for a key's slot in a cluster, or its server on
	// a Ring. It must depend on the key alone. If nil, the text is the key.
	Slot func(key string) string

	// Batch is the maximum number of concurrent decisions in a round trip to one server. If zero, it is
	// 32. With 1 each decision has its own round trip. Behind a proxy that spreads keys over servers it must be 1.
	Batch int

	// DeclareKeys makes each script call declare its keys. In a cluster,
	// decisions on several slots then share round trips but no calls.
	DeclareKeys bool

	// Hooks run for this limiter's calls on a *redis.Client without ContextTimeoutEnabled, instead of
	// the client's own. Other clients run their own hooks. A Layered uses its first layer's hooks.
	Hooks []redis.Hook

	// OnDecision is called after each Allow, Take, Reserve and Wait, on the caller's goroutine. If nil, nothing is called.
	OnDecision func(ratelimit.Event[string])
}

const (
	defaultTimeout = 50 * time.Millisecond
	defaultMaxLog  = micros.MaxLog
	defaultBatch   = 32
)

// complete fills in the defaults, and returns an error with any invalid field's name.
func (o *Options) complete(client redis.UniversalClient, limit *ratelimit.Limit) error {
	if o.Name == "" {
		o.Name = limit.Name
	}
	if o.MaxLog == 0 {
		o.MaxLog = defaultMaxLog
	}
	if o.Timeout == 0 {
		o.Timeout = defaultTimeout
	}
	if o.Batch == 0 {
		o.Batch = defaultBatch
	}
	switch {
	case optional.IsNil(client):
		return optional.Nil("redislimit: New: client")
	case o.Name == "":
		return errors.New("redislimit: Options.Name and the limit's Name are both empty: one of them names the budgets in Redis")
	}
	return cmp.Or(
		optional.NotNegative("redislimit: Options.MaxLog", o.MaxLog, "the default"),
		optional.NotNegative("redislimit: Options.Batch", o.Batch, "the default"),
		optional.NotNegative("redislimit: Options.MaxBatch", o.MaxBatch, "no leases"),
	)
}
