package fair

import (
	"cmp"
	"time"

	"github.com/weir-go/ratelimit"
	"github.com/weir-go/ratelimit/internal/optional"
)

// Options configure [New] besides the limit. Nil and zero mean the defaults.
// Several goroutines may call the functions, while no lock is held.
type Options[K comparable] struct {
	// Weight returns a tenant's weight, from 1 to 2^20. It is called for each decision. If nil, all tenants weigh 1.
	Weight func(tenant K) int

	// MaxKeys is the maximum number of tracked tenants. It defaults to 65,536. A full table drops an
	// idle tenant for a new one. If none is idle and the new tenant's cost passes, the table drops the
	// tenant whose debt is paid soonest, or a tenant with a place in line. If callers of all tenants
	// wait, the new tenant gets [ratelimit.ErrTableFull]. A denial never drops a tenant with a debt.
	MaxKeys int

	// MaxWaiting is how many callers may be in line, over all tenants. It defaults to 1,000. If a tenant
	// already has callers in line, another one joins only while more places are free than these callers take.
	// So one tenant cannot fill the line. If a caller may not join, it fails with [ratelimit.ErrLimited].
	MaxWaiting int

	// Clock measures time. It defaults to the system's monotonic clock. Wait sleeps in real time.
	Clock ratelimit.Clock

	// OnDecision is called after each Allow, Take, Reserve and Wait, on the caller's goroutine. It may be nil.
	OnDecision func(ratelimit.Event[K])
}

const (
	defaultMaxKeys    = 65536
	defaultMaxWaiting = 1000
	mostWeight        = 1 << 20

	// idle is the minimum time for which an idle tenant is kept while there is room.
	idle = int64(time.Minute)
)

func (o *Options[K]) validate() error {
	return cmp.Or(
		optional.NotNegative("fair: Options.MaxKeys", o.MaxKeys, "the default"),
		optional.NotNegative("fair: Options.MaxWaiting", o.MaxWaiting, "the default"),
		optional.NilInside("fair: Options.Clock", o.Clock),
	)
}
