package redislimit

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"math"

	"github.com/redis/go-redis/v9"

	"github.com/weir-go/ratelimit"
	"github.com/weir-go/ratelimit/internal/estimates"
	"github.com/weir-go/ratelimit/internal/optional"
	"github.com/weir-go/ratelimit/internal/wait"
)

var _ ratelimit.Joinable = (*Limiter)(nil)

// maxLayers is the maximum number of charges of a decision, since a call counts them in a byte.
const maxLayers = 255

// joint decides on keys of several limiters in one script call. A decision goes through these steps:
//
//  1. lease: the leased charges are decided, one by one, each from this process's batches.
//  2. run: one call checks all other charges, and spends them or none.
//  3. conclude: unneeded leases are given back.
//
// The leased charges come before the call, because they can be given back without a round trip, and the call's cannot.
type joint struct {
	store    *store // the first limiter's store, with the shortest timeout of all
	limiters []joinedLimiter
}

type joinedLimiter struct {
	l      *Limiter
	leases *leases // nil unless leased
	quiet  bool
}

// Join makes All decide on all layers in one script call, within the shortest of their Timeouts. The call goes to the
// first layer's client. All limiters must reach the same server; in a cluster their keys must share a slot. On a Ring or a
// ClusterClient it refuses a Global layer whose key would be on another server.
func (l *Limiter) Join(limiters []ratelimit.Joining) (ratelimit.Joint, error) { return join(limiters) }

func join(limiters []ratelimit.Joining) (*joint, error) {
	j := &joint{limiters: make([]joinedLimiter, len(limiters))}
	for i, x := range limiters {
		switch l := x.Limiter.(type) {
		case *Limiter:
			if l == nil || l.store == nil {
				return nil, optional.Zero(fmt.Sprintf("layer %d", i), "Limiter", "New")
			}
			j.limiters[i] = joinedLimiter{l: l, leases: l.leases}
		default:
			return nil, fmt.Errorf("layer %d: redislimit cannot decide on a %T together with its own limiters: %w", i, l, errors.ErrUnsupported)
		}
	}
	if err := cmp.Or(j.checkNames(), j.checkGlobals(limiters)); err != nil {
		return nil, err
	}
	j.store = j.shortest()
	return j, nil
}

// checkNames returns an error if two limiters share a name and a prefix. Equal keys of the two
// would be stored in one place, and each limiter would count the other's spending as its own.
func (j *joint) checkNames() error {
	for i := range j.limiters {
		a := &j.limiters[i]
		for k := range i {
			b := &j.limiters[k]
			if a.leases != nil && b.leases != nil && a.l == b.l {
				return fmt.Errorf("redislimit: layers %d and %d are leased from one limiter, whose budget could not be charged for both at once", k, i)
			}
			// all unleased limiters must use one server
			there := a.leases == nil && b.leases == nil || a.l.store.user == b.l.store.user
			if there && a.l != b.l && a.l.space.begin == b.l.space.begin {
				return fmt.Errorf("redislimit: layers %d and %d have different limiters of one Name and Prefix, which would share their keys: give each a Name of its own", k, i)
			}
		}
	}
	return nil
}

// checkGlobals returns an error if, on a client of several servers, a
// layer's only key is certainly on another server than the keys beside it.
func (j *joint) checkGlobals(of []ratelimit.Joining) error {
	for i := range j.limiters {
		y := &j.limiters[i]
		if !of[i].Global || y.leases != nil || y.l.space.slot != nil || !severalServers(y.l.store.user) {
			continue
		}
		for k := range j.limiters {
			if !of[k].Global && j.limiters[k].leases == nil {
				return fmt.Errorf("redislimit: layer %d is Global, and its key would be on another server of the Ring or cluster than the keys of layer %d: "+
					"spend it from leases, with Options.MaxBatch, or give the limiters of both the same Options.Slot", i, k)
			}
		}
	}
	return nil
}

// severalServers reports whether a client has several.
func severalServers(client redis.UniversalClient) bool {
	switch client.(type) {
	case *redis.Ring, *redis.ClusterClient:
		return true
	}
	return false
}

// shortest returns the first limiter's store with the shortest timeout of all.
func (j *joint) shortest() *store {
	s := j.limiters[0].l.store
	timeout := s.timeout
	for i := range j.limiters {
		if t := j.limiters[i].l.store.timeout; t >= 0 && (timeout < 0 || t < timeout) {
			timeout = t
		}
	}
	return s.within(timeout)
}

// Limit implements [ratelimit.Joint].
func (j *joint) Limit(limiter int, key string, ofRequest ratelimit.Limit) (ratelimit.Limit, any, error) {
	y := &j.limiters[limiter]
	p, err := y.l.planOfLayer(key, ofRequest)
	if err == nil && y.l.leases != nil && p.unleasable() != "" {
		err = fmt.Errorf("%w: %s", ratelimit.ErrInvalidLimit, p.unleasable())
	}
	if p == nil {
		return ratelimit.Limit{}, nil, err
	}
	return p.limit, p, err
}

// Report implements [ratelimit.Joint].
func (j *joint) Report(limiter int, e ratelimit.Event[string]) {
	if y := &j.limiters[limiter]; y.l.onDecision != nil && !y.quiet {
		y.l.onDecision(e)
	}
}

// jointCall is one joint decision.
type jointCall struct {
	j       *joint
	charges []ratelimit.Charge
	r       *request
	at      []int                    // at[i] is the index of charge i in the call, -1 if it is leased
	leased  []*ratelimit.Reservation // leased[i] is the reservation of charge i

	// The memory for a decision with few charges.
	request request
	room    struct {
		at      [fewCharges]int
		keys    [fewCharges]string
		charges [fewCharges]charge
	}
}

const fewCharges = 4

// newCall returns a decision's call. It is used once, because its payload may be read after the caller has left.
func (j *joint) newCall(charges []ratelimit.Charge) *jointCall {
	x := &jointCall{j: j, charges: charges}
	x.r = &x.request
	x.r.store = j.store
	if n := len(charges); n <= fewCharges {
		x.at, x.r.keys, x.r.charges = x.room.at[:n], x.room.keys[:0], x.room.charges[:0]
	} else {
		x.at, x.r.keys, x.r.charges = make([]int, n), make([]string, 0, n), make([]charge, 0, n)
	}
	return x
}

// Decide implements [ratelimit.Joint].
func (j *joint) Decide(ctx context.Context, charges []ratelimit.Charge, q ratelimit.JointRequest) (func([]int) error, error) {
	ctx = wait.OrBackground(ctx)
	if len(charges) > maxLayers {
		return nil, fmt.Errorf("redislimit: more than %d layers apply to one request", maxLayers)
	}
	x := j.newCall(charges)
	op := byte(opTake)
	switch {
	case q.Peek:
		op = opPeek
	case q.Settled:
		op = reserveOp(ctx)
	}
	x.r.call.undone = q.Undone
	x.addCharges(q)
	w := estimates.Of(ctx)
	x.r.follows = w != nil
	allowed, err := x.lease(ctx, op, q.Settled, false)
	if err == nil && (allowed || q.Peek) && len(x.r.charges) > 0 {
		err = x.r.run(ctx, op)
		allowed = allowed && x.r.allowed
		if err == nil {
			x.conclude(allowed && op != opPeek)
			if w != nil {
				x.follow(w)
			}
		}
	}
	if err != nil {
		x.close(false)
		return nil, err
	}
	spent := allowed && op != opPeek
	if spent || q.Peek { // the decision on the shadows depends on the call's result
		_, _ = x.lease(ctx, op, spent, true)
	}
	x.concludeLeased(spent)
	if !q.Settled || !allowed {
		x.close(spent)
		return nil, nil
	}
	x.holds()
	return x.settler(w), nil
}

// holds makes the first charge under Concurrent extend all.
func (x *jointCall) holds() {
	u := x.r.inUse()
	for i, at := range x.at {
		if u != nil && at >= 0 && x.r.charges[at].plan.kind == kindHeld {
			x.charges[i].Extend = u.extend
			return
		}
	}
}

// addCharges adds the call's charges.
func (x *jointCall) addCharges(q ratelimit.JointRequest) {
	for i := range x.charges {
		c := &x.charges[i]
		y := &x.j.limiters[c.Limiter]
		if x.at[i] = -1; y.leases != nil {
			continue
		}
		p := c.Plan.(*plan)
		x.at[i] = x.r.addCharge(y.l.space.key(c.Key), p, c.Shadow)
		to := &x.r.charges[x.at[i]]
		to.cost = int64(c.Cost)
		if p.kind == kindHeld {
			to.owner = newOwner()
		}
		if p.kind == kindLeaky { // in a stack only leaky buckets delay
			to.ahead = p.clampAhead(q.MaxDelay)
		}
	}
}

// addCharge adds a charge of a key, and returns its index.
func (r *request) addCharge(key string, p *plan, shadow bool) int {
	var k int
	r.keys, k = withKey(r.keys, key)
	r.charges = append(r.charges, charge{plan: p, key: k, shadow: shadow, shares: 1})
	return len(r.charges) - 1
}

// lease spends the leased charges, either those of shadows or the others, and reports whether
// all allow it. After the first denial it skips the rest, unless the decision is a Peek.
func (x *jointCall) lease(ctx context.Context, op byte, keep, shadows bool) (allowed bool, err error) {
	allowed = true
	for i := range x.charges {
		c := &x.charges[i]
		if x.at[i] >= 0 || c.Shadow != shadows || shadows && op == opPeek && c.Cost == 0 || !allowed && !shadows && op != opPeek {
			continue
		}
		y := &x.j.limiters[c.Limiter]
		k := leaseKey{key: c.Key}
		if own, err := y.l.planFor(c.Key); err != nil || own.limit != c.Limit {
			k.limit = c.Limit
		}
		if op == opPeek && !keep {
			c.Decision, err = y.leases.peek(ctx, k, c.Cost)
		} else {
			var res *ratelimit.Reservation
			res, err = y.leases.reserve(ctx, k, c.Cost, 0)
			c.Decision = res.Decision
			if x.leased == nil {
				x.leased = make([]*ratelimit.Reservation, len(x.charges))
			}
			x.leased[i] = res
		}
		if c.Decided = err == nil; err != nil && shadows {
			c.Err, err = err, nil
			continue
		}
		if err != nil {
			return false, err
		}
		c.Due = c.Decision.RetryAfter
		allowed = allowed && c.Decision.Allowed
	}
	return allowed, nil
}

// conclude fills in the call's results.
func (x *jointCall) conclude(spent bool) {
	r := x.r
	for i := range r.charges {
		if c := &r.charges[i]; c.failed == 0 && c.allowed && spent {
			c.spend()
		}
	}
	for i := range x.charges {
		if x.at[i] < 0 {
			continue
		}
		from, to := &r.charges[x.at[i]], &x.charges[i]
		if from.failed != 0 {
			to.Err = failure{code: from.failed}.err(from.plan.limit.Name)
			continue
		}
		to.Decided = true
		to.Due = between(r.reading, max(from.offer.At, from.offer.Retry))
		from.decide(r.reading, &to.Decision)
		if !spent {
			continue
		}
		for j := len(r.charges) - 1; j > x.at[i]; j-- { // the key's last spent charge has the key's state
			if last := &r.charges[j]; last.key == from.key && last.allowed && last.failed == 0 {
				last.standing(r.reading, &to.Decision)
				break
			}
		}
	}
}

// concludeLeased adds the costs put back into leases to the remaining budgets in their results.
func (x *jointCall) concludeLeased(spent bool) {
	for i, res := range x.leased {
		if c := &x.charges[i]; res != nil && res.Allowed && !spent {
			c.Decision.Remaining = clampInt(min(int64(c.Decision.Remaining)+int64(c.Cost), math.MaxInt64))
		}
	}
}

// close settles the leased charges at their cost or at 0. Until then a
// lease holds its batch. If a charge cannot be given back, it stays spent.
func (x *jointCall) close(spent bool) {
	for i, res := range x.leased {
		if res != nil && res.Allowed {
			actual := 0
			if spent {
				actual = x.charges[i].Cost
			}
			_ = res.Settle(actual)
		}
	}
}

// settler returns a function to settle the charges.
func (x *jointCall) settler(w *estimates.Watch) func(costs []int) error {
	store, keys, items, from := x.r.store, []string(nil), []settlement(nil), []int(nil)
	for i, at := range x.at {
		if at < 0 {
			continue
		}
		c := &x.r.charges[at]
		if !c.allowed || c.cost == 0 {
			continue
		}
		item := x.r.settlementOf(c)
		keys, item.key = withKey(keys, x.r.keys[c.key])
		items, from = append(items, item), append(from, i)
	}
	leased := x.leased
	var follow *correctionFollowed
	if w != nil {
		follow = &correctionFollowed{estimates: x.r.open}
	}
	return func(costs []int) error {
		var errs []error
		actual := 0
		for n := range items {
			items[n].shares, items[n].own = 0, int64(costs[from[n]])
			actual = max(actual, min(1, costs[from[n]]))
		}
		if len(items) > 0 {
			reply, err := store.settle(keys, items, int64(actual), follow)
			errs = append(errs, err)
			if w != nil && err == nil {
				reading, all := followedOf(reply, len(keys))
				for n := range items {
					if k := &w.Keys[from[n]]; k.Wanted && all != nil {
						all[items[n].key].fill(k, reading, items[n].plan.latest(), items[n].plan)
					}
				}
			}
		}
		for i, res := range leased {
			if res != nil && res.Allowed {
				errs = append(errs, res.Settle(costs[i]))
			}
		}
		return errors.Join(errs...)
	}
}

// Adjust implements [ratelimit.Joint].
func (j *joint) Adjust(ctx context.Context, charges []ratelimit.Charge) error {
	var keys []string
	var items []correction
	for i := range charges {
		c := &charges[i]
		l := j.limiters[c.Limiter].l
		item := correction{plan: c.Plan.(*plan).latest(), delta: int64(c.Cost)}
		keys, item.key = withKey(keys, l.space.key(c.Key))
		items = append(items, item)
	}
	ctx = wait.OrBackground(ctx)
	w := estimates.Of(ctx)
	reply, err := j.store.adjust(ctx, keys, w != nil, items...)
	if w != nil && err == nil {
		reading, all := followedOf(reply, len(keys))
		for i := range items {
			if k := &w.Keys[i]; k.Wanted && all != nil {
				all[items[i].key].fill(k, reading, items[i].plan)
			}
		}
	}
	return err
}

// follow fills in a decision's sums.
func (x *jointCall) follow(w *estimates.Watch) {
	for i, at := range x.at {
		if k := &w.Keys[i]; at >= 0 && k.Wanted && x.r.opens != nil && x.r.charges[at].plan.kind != kindHeld {
			k.Open = x.r.opens[x.r.charges[at].key]
		}
	}
}

// followed is the answer of a correction about one key.
type followed struct {
	known, gone          bool
	kind                 byte
	units, per           int64
	openBefore, open     int64
	before, after, reset int64
}

// followedOf returns the answers at the end of a correction's reply, and the reading.
func followedOf(reply string, keys int) (reading int64, all []followed) {
	size := followedSize * keys
	if len(reply) < 8+size || reply[0] > answerAllowed {
		return 0, nil
	}
	reading, reply = get7(reply[1:]), reply[len(reply)-size:]
	for ; reply != ""; reply = reply[followedSize:] {
		all = append(all, followed{reply[0] == 1, reply[0] == 2, reply[1], get7(reply[2:]), get7(reply[9:]), get7(reply[16:]), get7(reply[23:]), get7(reply[30:]), get7(reply[37:]), get7(reply[44:])})
	}
	return reading, all
}

// fill fills in the answer about a charge's key, by the plan of the charge or of the limiter. It
// leaves out a key under any other limit: the figures do not show the limit's capacity or calendar.
func (f *followed) fill(k *estimates.Key, reading int64, plans ...*plan) {
	if f.gone {
		k.Answered = true
		return
	}
	if !f.known {
		return
	}
	limit := ratelimit.Limit{}
	for _, p := range plans {
		switch {
		case p.kind != f.kind:
		case p.units == f.units && p.per == f.per:
			limit = p.limit
		case p.isBucket() || p.kind == kindCalendar && p.per != f.per:
		case limit.Algorithm == 0:
			limit = p.limit
			if limit.Rate.Units = clampInt(f.units); p.kind != kindCalendar {
				limit.Rate.Per = between(0, f.per)
			}
		}
	}
	if limit.Algorithm == 0 {
		return
	}
	capacity := int64(limit.Capacity())
	k.Answered, k.Before, k.OpenBefore, k.OpenAfter = true, f.before, f.openBefore, f.open
	k.After = ratelimit.Decision{
		Limit: limit, Remaining: clampInt(max(0, capacity-f.after)), Debt: clampInt(max(0, f.after-capacity)), ResetAfter: between(reading, f.reset),
	}
}
