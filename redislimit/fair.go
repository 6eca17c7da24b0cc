package redislimit

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/weir-go/ratelimit"
	"github.com/weir-go/ratelimit/internal/micros"
	"github.com/weir-go/ratelimit/internal/optional"
	"github.com/weir-go/ratelimit/internal/reports"
	"github.com/weir-go/ratelimit/internal/wait"
)

// Fair shares one rate among all processes' tenants, in proportion to their weights: package fair for a fleet.
// Make one with [NewFair]. It is safe for concurrent use and needs no closing. The zero Fair cannot be used.
//
// A process requests units for its tenants, every 100 ms while they have callers in line. It holds units for busy
// tenants. So most decisions need no round trip, and the processes together make at most 250 calls a second. Over
// any time t at most burst + rate·t units are used. A tenant in line gets its max–min share: its unwanted units
// go to the others. If it used units while there was no other demand, they do not count against it later.
//
// Within a process, a tenant's callers are served first come, first served. If a process
// dies, its tenants' held units are lost: at most twice their spending in a beat, and
// parts of the costs at their lines' heads. Its callers' places lapse within 1 s.
type Fair struct {
	store      *store
	keys       []string
	timeout    time.Duration // of each decision
	weight     func(string) int
	onDecision func(ratelimit.Event[string])
	maxWaiting int
	process    string // this Fair's id

	mu         sync.Mutex // guards the fields below
	limit      fairLimit
	tenants    map[string]*fairTenant
	active     []*fairTenant // tenants with something to report or to request, in the order of the next calls
	waiting    int           // callers in line
	calling    bool          // a goroutine makes the calls
	hurry      chan struct{} // has an element if a call should be made before the next beat
	pace       fairPace
	epoch      *fairEpoch     // the epoch of the present spending
	epochs     []*fairEpoch   // epochs before epoch, not yet reported by a call
	reported   int64          // the process's units by its last report, or more
	unreported int64          // the units spent since the last report
	fleet      fairFleet      // the state in the last reply
	valid      time.Time      // the end of the time for spending the held units
	failed     error          // the error of the last call, or nil
	flushes    []chan<- error // calls to Flush, waiting until the process holds nothing
}

// FairOptions configure [NewFair] besides the limit. Several goroutines may call the functions, while no lock is held.
type FairOptions struct {
	// Name is part of the Redis keys. In a cluster they all share one
	// slot. If empty, it is the limit's Name. It must not contain braces.
	Name string

	// Prefix begins all Redis keys. If empty, "ratelimit:". It must not contain braces.
	Prefix string

	// Weight returns a tenant's weight, from 1 to 2^20. It is called for each decision. If nil, all tenants weigh 1.
	Weight func(tenant string) int

	// Timeout bounds an Allow, a Take and a Reserve without a delay, in addition to the
	// caller's context. If zero, it is 50 ms; if negative, only the context bounds them.
	Timeout time.Duration

	// MaxWaiting is how many of this process's callers may be in line. If zero, 1,000.
	// If a tenant already has callers in line, a further one is accepted only while they
	// are fewer than the free places. Other callers fail with [ratelimit.ErrLimited].
	MaxWaiting int

	// Hooks run for this limiter's calls, as [Options.Hooks] do.
	Hooks []redis.Hook

	// OnDecision is called after each Allow, Take, Reserve and Wait, on the caller's goroutine. If nil, nothing is called.
	OnDecision func(ratelimit.Event[string])
}

var _ ratelimit.Reserver[string] = (*Fair)(nil)

// NewFair returns a limiter whose tenants share a limit. It does not connect. The limit must be a token bucket. Its
// burst is at most 2^30, and takes at most 140 years to refill, counted in µs. Otherwise the error wraps
// [ratelimit.ErrInvalidLimit]. If an option is invalid, the error names it.
//
// Use it with package failover. While Redis is down, fair.New with a part of the limit can stand in. If callers
// wait in line, failover.Options.Timeout must be negative. Otherwise a longer wait counts as a failure.
func NewFair(client redis.UniversalClient, limit ratelimit.Limit, opts *FairOptions) (*Fair, error) {
	var o FairOptions
	if opts != nil {
		o = *opts
	}
	if o.Name == "" {
		o.Name = limit.Name
	}
	if o.Prefix == "" {
		o.Prefix = "ratelimit:"
	}
	if o.Timeout == 0 {
		o.Timeout = defaultTimeout
	}
	if o.MaxWaiting == 0 {
		o.MaxWaiting = 1000
	}
	switch {
	case optional.IsNil(client):
		return nil, optional.Nil("redislimit: NewFair: client")
	case o.Name == "":
		return nil, errors.New("redislimit: FairOptions.Name and the limit's Name are both empty: one of them names the budget in Redis")
	case strings.ContainsAny(o.Prefix+o.Name, "{}"):
		return nil, fmt.Errorf("redislimit: FairOptions.Prefix and Name are %q and %q, want no braces", o.Prefix, o.Name)
	}
	if err := optional.NotNegative("redislimit: FairOptions.MaxWaiting", o.MaxWaiting, "the default"); err != nil {
		return nil, err
	}
	shared, err := newFairLimit(limit)
	if err != nil {
		return nil, err
	}
	f := &Fair{
		store:      newStore(client, fairCall, 1, false, o.Hooks),
		timeout:    o.Timeout,
		weight:     o.Weight,
		onDecision: o.OnDecision,
		maxWaiting: o.MaxWaiting,
		process:    randomBytes(fairProcess),
		limit:      shared,
		tenants:    make(map[string]*fairTenant),
		hurry:      make(chan struct{}, 1),
		epoch:      new(fairEpoch),
	}
	base := o.Prefix + "{" + o.Name + "}!fair"
	f.keys = []string{base, base + ":tenants", base + ":ends", base + ":processes"}
	return f, nil
}

// Allow is Take without details. An error counts as false.
func (f *Fair) Allow(tenant string, cost int) bool {
	d, _ := f.Take(context.Background(), tenant, cost)
	return d.Allowed
}

// Take spends cost of the tenant's share, or nothing. It answers from the process's units for the tenant,
// or from the next call, within [FairOptions.Timeout]. Remaining counts the process's units for the tenant.
//
// After RetryAfter the same cost is likely to pass, if the other tenants keep their pace.
//
// Errors wrap [ratelimit.ErrExceedsLimit] if the cost is above the burst, [ratelimit.ErrNegativeCost],
// or [ratelimit.ErrUnavailable] if Redis does not answer. With an error nothing is spent.
func (f *Fair) Take(ctx context.Context, tenant string, cost int) (ratelimit.Decision, error) {
	d, _, err := f.decide(wait.OrBackground(ctx), tenant, cost, 0)
	f.report(ctx, tenant, cost, d, err)
	return d, err
}

// Reserve is like Take, but returns a charge that can be settled when the real cost is known. With a maxDelay
// above 0 it waits in line like [Fair.Wait], for at most that time, and returns when the work may start, so
// the reservation's Delay is 0. If a call is not served in time, or finds no room in line, it is denied.
//
// Settle makes no call. The next call, at most 100 ms later, reports the difference. It is lost if the process
// dies before. A cost settled below the estimate counts as if it had been charged at the beginning. If the
// cost is above the estimate, the total is charged with as much as empties the burst, and the tenant owes all.
//
// Errors are as for Take, and the context's error when it ends.
func (f *Fair) Reserve(ctx context.Context, tenant string, cost int, maxDelay time.Duration) (*ratelimit.Reservation, error) {
	ctx = wait.OrBackground(ctx)
	d, spent, err := f.reserve(ctx, tenant, cost, maxDelay)
	f.report(ctx, tenant, cost, d, err)
	return ratelimit.NewReservation(d, func(actual int) error {
		f.settle(tenant, cost, actual, spent)
		return nil
	}), err
}

func (f *Fair) reserve(ctx context.Context, tenant string, cost int, maxDelay time.Duration) (ratelimit.Decision, *fairEpoch, error) {
	if maxDelay <= 0 {
		return f.decide(ctx, tenant, cost, 0)
	}
	left, err := wait.Left(ctx)
	if err != nil {
		return ratelimit.Decision{}, nil, ended(err, false)
	}
	inTime, stop := context.WithTimeout(ctx, maxDelay)
	defer stop()
	d, spent, err := f.decide(inTime, tenant, cost, inLine)
	late := errors.Is(err, context.DeadlineExceeded) && ctx.Err() == nil && maxDelay < left
	if late || errors.Is(err, ratelimit.ErrLimited) {
		d.Allowed, err = false, nil
	}
	return d, spent, err
}

// Wait spends cost of the tenant's share and returns nil when its time has come. While a tenant has a caller in line, its Allow and
// Take are denied.
//
// A failed Wait has spent nothing. Its error wraps the context's error when the context
// ends, [ratelimit.ErrLimited] if there is no room in line (see [FairOptions.MaxWaiting]),
// or [ratelimit.ErrUnavailable] when a call to Redis fails. It may also be one of Take's.
func (f *Fair) Wait(ctx context.Context, tenant string, cost int) error {
	d, _, err := f.decide(wait.OrBackground(ctx), tenant, cost, inLine)
	f.report(ctx, tenant, cost, d, err)
	return err
}

// SetLimit changes the limit, in this process, from the next call on. Spending stays; a lowered limit counts
// at most its burst as spent. Callers in line stay, unless their cost is now too large: these get
// [ratelimit.ErrExceedsLimit]. Each call to Redis applies its own process's limit. Errors are as for NewFair.
func (f *Fair) SetLimit(limit ratelimit.Limit) error {
	f.check()
	shared, err := newFairLimit(limit)
	if err != nil {
		return err
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	f.limit = shared
	for _, t := range f.tenants { // tenants in a call under way are not active
		f.refuseLocked(t)
	}
	f.hurryLocked()
	return nil
}

// Flush gives back this process's units, for example before a planned end of the process. Callers in
// line stay. It returns [ratelimit.ErrUnavailable] if Redis does not answer, or the context's error.
func (f *Fair) Flush(ctx context.Context) error {
	f.check()
	ctx = wait.OrBackground(ctx)
	done := make(chan error, 1)
	f.mu.Lock()
	for _, t := range f.tenants {
		t.spent, t.spending = 0, 0 // no units are fetched ahead, unless there are further calls
		if t.held > 0 {
			f.activeLocked(t)
		}
	}
	if !f.calling { // a call under way may bring units
		f.mu.Unlock()
		return nil
	}
	f.flushes = append(f.flushes, done)
	f.hurryLocked()
	f.mu.Unlock()
	select {
	case err := <-done:
		return err
	case <-ctx.Done():
		return ended(ctx.Err(), false)
	}
}

// Describe returns the tenants' common limit. Shared is true, and BooksAhead false.
func (f *Fair) Describe() ratelimit.Description {
	f.check()
	f.mu.Lock()
	defer f.mu.Unlock()
	return ratelimit.Description{Limits: []ratelimit.Limit{f.limit.limit}, Shared: true}
}

func (f *Fair) check() {
	if f == nil || f.store == nil {
		panic(optional.Zero("redislimit", "Fair", "NewFair"))
	}
}

func (f *Fair) report(ctx context.Context, key string, cost int, d ratelimit.Decision, err error) {
	if f.onDecision != nil {
		reports.Send(ctx, f.onDecision, ratelimit.Event[string]{Key: key, Cost: cost, Decision: d, Spent: d.Allowed && err == nil && cost > 0, Err: err})
	}
}

// fairLimit is the shared limit. Its plan has the rate in lowest terms.
type fairLimit struct{ *plan }

func newFairLimit(limit ratelimit.Limit) (fairLimit, error) {
	if _, _, err := micros.Shared(limit); err != nil {
		return fairLimit{}, err
	}
	p, err := newPlan(limit, defaultMaxLog)
	return fairLimit{p}, err
}

// timeFor returns the rate's time for some units, rounded up to µs.
func (l fairLimit) timeFor(units float64) time.Duration {
	us := units * float64(l.per) / float64(l.units)
	return time.Duration(min(us+1, float64(century))) * time.Microsecond
}
