package fair

import (
	"fmt"
	"time"

	"github.com/weir-go/ratelimit"
	"github.com/weir-go/ratelimit/internal/nilcheck"
)

// Options are the settings of [New] besides the limit. Nil and zero mean the defaults. Functions are called concurrently,
// under no lock.
type Options[K comparable] struct {
	// Weight is a tenant's share, at least 1 and at most 2^20. It is called for each decision. If nil, all tenants weigh 1.
	Weight func(tenant K) int

	// MaxKeys is how many tenants are tracked at most. A full one drops a tenant that owes nothing, or whose debt would be paid
	// soonest; if callers of all tenants wait, a new one gets [ratelimit.ErrTableFull]. If zero, 65536.
	MaxKeys int

	// MaxWaiting is how many callers may wait, over all tenants. Further ones fail with [ratelimit.ErrLimited]. If
	// zero, 1000.
	MaxWaiting int

	// Clock tells the time. Wait sleeps in real time. If nil, the system's monotonic clock.
	Clock ratelimit.Clock

	// OnDecision is called after each Allow, Take, Reserve and Wait, on the caller's goroutine. If nil, nothing is called.
	OnDecision func(ratelimit.Event[K])
}

const (
	defaultMaxKeys    = 65536
	defaultMaxWaiting = 1000
	mostWeight        = 1 << 20

	// idle is for how long a tenant that owes nothing is kept at least, while there is room.
	idle = int64(time.Minute)
)

func (o *Options[K]) validate() error {
	switch {
	case o.MaxKeys < 0:
		return fmt.Errorf("fair: Options.MaxKeys is %d, want 0 for the default or more", o.MaxKeys)
	case o.MaxWaiting < 0:
		return fmt.Errorf("fair: Options.MaxWaiting is %d, want 0 for the default or more", o.MaxWaiting)
	case o.Clock != nil && nilcheck.IsNil(o.Clock):
		return fmt.Errorf("fair: Options.Clock is a nil %T, want a clock or none", o.Clock)
	}
	return nil
}
