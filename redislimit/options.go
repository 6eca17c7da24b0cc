package redislimit

import (
	"errors"
	"fmt"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/weir-go/ratelimit"
	"github.com/weir-go/ratelimit/internal/nilcheck"
)

// Options are what [New] can be told beyond the limit. Nil and the zero Options mean
// the defaults, but Name is required if the limit has none. Functions in it are
// called concurrently, under no lock.
type Options struct {
	// Name names the budgets: it is a part of their Redis keys. Limiters of one Name,
	// Prefix and server share their budgets, whatever their limits. If empty, the
	// limit's Name; one of both is required. It must not contain braces.
	Name string

	// Prefix is what all Redis keys begin with. If empty, "ratelimit:". It must not
	// contain braces.
	Prefix string

	// LimitFor returns the limit of a key; the zero Limit means New's or SetLimit's. A
	// limit without a name gets the name of that one. It is asked for each decision.
	// If it returns an invalid limit, the key is denied with
	// [ratelimit.ErrInvalidLimit]. If nil, all keys have New's limit.
	LimitFor func(key string) ratelimit.Limit

	// Timeout bounds one decision, beside the caller's context: waiting for a
	// connection, dialling, sending and the answer together. If zero, 50 ms; below
	// zero there is no bound but the context's and the client's own. A settlement
	// has the same bound.
	Timeout time.Duration

	// MaxLog bounds Rate.Units of a sliding log, whose spendings are stored one by
	// one: New and SetLimit refuse a limit above it. If zero, 2 000. To decide among n
	// spendings takes the server time in proportion to log n, to settle one in
	// proportion to n.
	MaxLog int

	// Slot returns, in a cluster, the text by which a key's slot is chosen, so that
	// keys of several limiters that one decision needs are on one node. It must
	// depend on the key alone. If nil, the key itself chooses: limiters with equal
	// keys share a slot.
	Slot func(key string) string

	// Batch is how many decisions that are under way at once may share a round trip to one server. If zero, 32;
	// 1 means that each has its own. Behind a proxy that spreads keys over several servers it must be 1: such a
	// proxy sends all keys of a call to the server of the first.
	Batch int

	// DeclareKeys has each script call declare all its keys. Without it, in a cluster, decisions on keys of several slots
	// share a call that declares none, once the server has shown that it refuses keys that it does not serve. With it
	// they share round trips only, which takes more of the server's time.
	DeclareKeys bool

	// Hooks run for the calls of this limiter on a *redis.Client without ContextTimeoutEnabled, whose own hooks do not.
	// All other clients run their own hooks, and these are not used. A Layered has those of its first layer.
	Hooks []redis.Hook

	// OnDecision is called after each Allow, Take, Reserve and Wait, with what was
	// decided, in the caller's goroutine. It is not called by Peek. If nil, nothing is.
	OnDecision func(ratelimit.Event[string])
}

const (
	defaultTimeout = 50 * time.Millisecond
	defaultMaxLog  = 2000
	defaultBatch   = 32
)

// complete fills in the defaults, and says what is wrong.
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
	case nilcheck.IsNil(client):
		return errors.New("redislimit: the client is nil")
	case o.Name == "":
		return errors.New("redislimit: Options.Name and the limit's Name are both empty: one of them names the budgets in Redis")
	case o.MaxLog < 0:
		return fmt.Errorf("redislimit: Options.MaxLog is %d, want 0 for the default or more", o.MaxLog)
	case o.Batch < 0:
		return fmt.Errorf("redislimit: Options.Batch is %d, want 0 for the default or more", o.Batch)
	}
	return nil
}
