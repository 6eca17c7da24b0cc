package fair

import (
	"cmp"
	"time"

	"github.com/weir-go/ratelimit"
	"github.com/weir-go/ratelimit/internal/optional"
)

// Options are the settings of [New] besides the limit. Nil and zero mean the
// defaults. Several goroutines may call the functions, while no lock is held.
type Options[K comparable] struct {
	// Weight returns a tenant's weight, from 1 to 2^20. It is called for each decision. If nil, all tenants weigh 1.
	Weight func(tenant K) int

	// MaxKeys is the maximum number of tracked tenants. It defaults to 65,536. A full table drops an idle tenant for a new one.
	// If none is idle and the new tenant's cost passes, it drops the tenant whose debt is paid soonest, or one with a place
	// in line. If callers of all tenants wait, the new one gets [ratelimit.ErrTableFull]. A denial drops no tenant with a debt.
	MaxKeys int

	// MaxWaiting is the maximum number of callers in line, over all tenants. It defaults to 1,000. A
	// further caller of a tenant that has callers in line is accepted only while that tenant has fewer
	// callers in line than there are free places. Other callers fail with [ratelimit.ErrLimited].
	MaxWaiting int

	// Clock is the source of time. Wait sleeps in real time. It defaults to the system's monotonic clock.
	Clock ratelimit.Clock

	// OnDecision is called after each Allow, Take, Reserve and Wait, on the caller's goroutine, unless it is nil.
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
