package redislimit

import (
	"cmp"
	"context"
	"fmt"
	"math"
	"slices"
	"time"

	"github.com/weir-go/ratelimit"
	"github.com/weir-go/ratelimit/internal/merge"
	"github.com/weir-go/ratelimit/internal/meter"
	"github.com/weir-go/ratelimit/internal/outcome"
	"github.com/weir-go/ratelimit/internal/wait"
)

// stack holds the data of one decision over several layers. One goroutine uses it at a time; in between it is in a pool, and
// refers to nothing of a request.
//
// A decision goes through these steps:
//
//  1. load: each layer determines its key, cost and plan. This runs the functions of
//     the user. A layer's request is an ask.
//  2. sum: the asks of several layers on one key are summed up in one charge, as in package ratelimit. The
//     charges are sent.
//  3. lease: the leased layers decide, one by one, each from this process's batches. 4. run: one call checks all charges, and
//
// spends them or none. 5. conclude: the results of leases and charges become one decision, and leases that are not needed are
//
//	given back.
//
// The leases come before the call, because their charges can be given back without a round trip, and the call's charges cannot.
//
// The request is not kept: its memory may be read by a round trip that the caller has left.
type stack[R any] struct {
	of         *Layered[R]
	request    *request           // of this one decision
	asks       []ask              // of the layers that apply: the enforcing layers, then the shadow layers
	which      []int              // the indices of the layers that were picked
	d          ratelimit.Decision // of all layers that enforce
	spent      bool               // the decision was allowed and charged
	refused    bool               // a leased layer has denied, so the layers after it did not decide
	failedWait bool               // the charge has been given back, because a Wait has failed
}

func (s *stack[R]) clear() {
	clear(s.asks)
	s.asks, s.which = s.asks[:0], s.which[:0]
	s.request = nil
	s.d = ratelimit.Decision{}
	s.spent, s.refused, s.failedWait = false, false, false
}

// take charges all layers or none, and fills in the decision.
func (s *stack[R]) take(ctx context.Context, r R, cost int, ahead time.Duration, op byte) error {
	if ctx == nil {
		ctx = context.Background()
	}
	if err := ctx.Err(); err != nil {
		return ended(err, false)
	}
	if err := s.load(r, cost); err != nil {
		return err
	}
	if err := s.sum(cost, ahead, op); err != nil {
		return err
	}
	keep := op == opKeep || op == opOpen
	if cost == 0 { // nothing is charged, but the reservation may be settled at more
		op = opPeek
	}
	allowed, err := s.lease(ctx, op, keep)
	s.refused = !allowed
	if err == nil && allowed && len(s.request.charges) > 0 {
		err = s.request.run(ctx, op)
		allowed = s.request.allowed
		if err != nil && ctx.Err() == nil && s.shadowsFail(err) {
			allowed, err = true, nil
		}
	}
	if err != nil {
		s.closeLeases(false)
		return err
	}
	s.spent = allowed && op != opPeek
	if s.spent { // only now is it known that the shadow layers are to be charged
		s.leaseShadows(ctx)
	}
	s.conclude(cost, allowed)
	if !keep || !allowed {
		s.closeLeases(s.spent)
	}
	return nil
}

// load collects the keys, costs and plans of the layers, enforcing layers first. A shadow layer's error is its own, and any
// other's ends the decision before anything is sent.
func (s *stack[R]) load(r R, cost int) error {
	if cost < 0 {
		return fmt.Errorf("%w: %d", ratelimit.ErrNegativeCost, cost)
	}
	if err := s.choose(r); err != nil {
		return err
	}
	for _, shadow := range [...]bool{false, true} {
		for k, i := range s.which {
			if s.of.layers[i].shadow != shadow || s.again(k) {
				continue
			}
			if err := s.loadOne(i, r, cost); err != nil {
				return fmt.Errorf("layer %d: %w", i, err)
			}
		}
	}
	return nil
}

// choose finds out which layers apply. A layer that is picked twice counts once: see again.
func (s *stack[R]) choose(r R) error {
	if s.of.pick == nil {
		for i := range s.of.layers {
			s.which = append(s.which, i)
		}
	} else {
		s.which = s.of.pick(r, s.which)
	}
	n := 0 // layers that apply, each counted once
	for k, i := range s.which {
		if i < 0 || i >= len(s.of.layers) {
			return fmt.Errorf("redislimit: AllOf's pick function returned layer %d of %d", i, len(s.of.layers))
		}
		if s.again(k) {
			continue
		}
		if n++; n > maxLayers {
			return fmt.Errorf("redislimit: more than %d layers apply to one request", maxLayers)
		}
	}
	return nil
}

// again reports whether the k-th layer that was picked was picked before.
func (s *stack[R]) again(k int) bool {
	return s.of.pick != nil && slices.Contains(s.which[:k], s.which[k])
}

func (s *stack[R]) loadOne(i int, r R, cost int) error {
	y, a := &s.of.layers[i], ask{layer: i, charge: -1}
	applies, err := y.load(r, cost, &a)
	if applies {
		s.asks = append(s.asks, a)
	}
	if err == nil || !y.shadow {
		if a.plan != nil && err != nil {
			s.d.Limit = a.plan.limit
		}
		return err
	}
	if applies {
		s.asks[len(s.asks)-1].err = err
	}
	return nil
}

// sum adds up the costs on each key: the enforcing layers in one charge for each key, then the shadow layers one by one. A key
// has one limit in one decision, the first layer's on it, because a stored state is counted under one limit at a time. An error
// here means a cost that can never pass, or sums that are too large, so nothing is sent either.
func (s *stack[R]) sum(cost int, ahead time.Duration, op byte) error {
	s.request.store = s.of.store
	for i := range s.asks {
		a := &s.asks[i]
		if a.err != nil || a.plan.kind == 0 {
			continue
		}
		y := &s.of.layers[a.layer]
		if y.leases != nil { // it is no part of the call: see lease
			continue
		}
		a.redis = y.l.space.key(a.key)
		first := s.firstOf(i)
		a.plan = s.asks[first].plan
		if y.shadow {
			a.err = a.plan.check(int64(a.cost))
			if op == opPeek || (cost == 0 || a.err != nil) && !y.hasObserver() { // nothing is charged, and no observer needs the key's state
				continue
			}
		}
		if a.charge = s.asks[first].charge; first == i || y.shadow {
			a.charge = s.request.addCharge(a.redis, a.plan, y.shadow)
		}
		if err := s.request.charges[a.charge].add(a, ahead); err != nil {
			s.d.Limit = a.plan.limit
			return fmt.Errorf("layer %d: %w", a.layer, err)
		}
	}
	return nil
}

// firstOf returns the first ask on the i-th's key. Enforcing layers come before the others.
func (s *stack[R]) firstOf(i int) int {
	for j := range i {
		if s.asks[j].redis == s.asks[i].redis {
			return j
		}
	}
	return i
}

// addCharge adds a charge of a key, and returns its index.
func (r *request) addCharge(key string, p *plan, shadow bool) int {
	var k int
	r.keys, k = withKey(r.keys, key)
	r.charges = append(r.charges, charge{plan: p, key: k, shadow: shadow})
	return len(r.charges) - 1
}

// add adds a layer's cost to a charge. A cost that a shadow layer can never allow is not charged: its key is only read.
func (c *charge) add(a *ask, ahead time.Duration) error {
	if a.err != nil {
		return nil
	}
	c.cost = meter.Add(c.cost, int64(a.cost))
	if a.own {
		c.own = meter.Add(c.own, int64(a.cost))
	} else {
		c.shares++
	}
	if c.plan.kind == kindLeaky { // in a stack only these delay
		c.ahead = c.plan.clampAhead(ahead)
	}
	return c.plan.check(c.cost)
}

// shadowsFail assigns an error of the call to its layers, if all of them are shadows. Otherwise it reports false.
func (s *stack[R]) shadowsFail(err error) bool {
	if slices.ContainsFunc(s.request.charges, func(c charge) bool { return !c.shadow }) {
		return false
	}
	for i := range s.asks {
		if a := &s.asks[i]; a.charge >= 0 {
			a.charge, a.err = -1, cmp.Or(a.err, err)
		}
	}
	s.request.charges = nil
	return true
}

// conclude fills in the decision from the script's reply.
func (s *stack[R]) conclude(cost int, allowed bool) {
	for i := range s.request.charges {
		if c := &s.request.charges[i]; c.failed == 0 && c.allowed && s.spent {
			c.spend()
		}
	}
	s.answer(allowed)
	if cost == 0 {
		s.d.Delay = 0
	}
}

// summand is the same Decision, as package merge adds it up: the two have the same fields.
func summand(d *ratelimit.Decision) *merge.Decision[ratelimit.Limit] {
	return (*merge.Decision[ratelimit.Limit])(d)
}

// answer merges the results of the enforcing layers. A key of several layers is one summand, with the result of its first ask.
func (s *stack[R]) answer(allowed bool) {
	sum := merge.Of(summand(&s.d), ratelimit.Unlimited())
	for i := range s.asks {
		a := &s.asks[i]
		switch {
		case s.of.layers[a.layer].shadow:
		case s.unasked(a):
		case a.asked: // of a lease
			d := a.leasedDecision(s.spent)
			own, shares := a.ownCost()
			sum.Add(summand(&d), merge.Room(int64(d.Remaining), own, shares))
		case a.plan.kind == 0: // Unlimited or Blocked: nothing is stored
			sum.Add(summand(&ratelimit.Decision{Allowed: true, Limit: a.plan.limit}), a.room())
		case s.firstOf(i) == i:
			c := &s.request.charges[a.charge]
			var d ratelimit.Decision
			s.decide(a.charge, &d)
			sum.Add(summand(&d), merge.Room(int64(d.Remaining), c.own, c.shares))
		}
	}
	if !allowed {
		s.d.Delay = 0
	}
}

// decide fills in a charge's decision. The key's state comes from the last charge of the key that was spent: a shadow layer's
// comes after the others.
func (s *stack[R]) decide(i int, d *ratelimit.Decision) {
	charges := s.request.charges
	c := &charges[i]
	c.decide(s.request.reading, d)
	if !s.spent {
		return
	}
	for j := len(charges) - 1; j > i; j-- {
		if last := &charges[j]; last.key == c.key && last.allowed && last.failed == 0 {
			last.standing(s.request.reading, d)
			return
		}
	}
}

// room is the remaining budget of a limit that tracks nothing.
func (a *ask) room() int {
	switch capacity := a.plan.limit.Capacity(); {
	case !a.own:
		return capacity
	case a.cost > capacity:
		return 0
	}
	return math.MaxInt
}

// report passes each observer of a layer the layer's own part of the decision.
func (s *stack[R]) report(r R, err error) {
	for i := range s.asks {
		a := &s.asks[i]
		y := &s.of.layers[a.layer]
		if !y.hasObserver() || s.silent(a, err) {
			continue
		}
		e := s.event(a, err)
		if f := y.l.onDecision; f != nil && !y.quiet {
			f(e)
		}
		if f := y.watch; f != nil {
			f(ratelimit.Event[R]{Key: r, Cost: e.Cost, Decision: e.Decision, Spent: e.Spent, Err: e.Err})
		}
	}
}

// askState is the source of a layer's decision, once the whole is decided.
type askState uint8

const (
	askNone      askState = iota // the layer did not decide
	askSent                      // it was to be part of the call, which has no answer
	askAnswered                  // the server has answered
	askFailed                    // the server has answered with a failure of this key
	askLeased                    // a lease has answered
	askUncounted                 // its limit is Unlimited or Blocked
)

func (s *stack[R]) stateOf(a *ask) askState {
	switch {
	case a.asked:
		return askLeased
	case a.plan != nil && a.plan.kind == 0:
		return askUncounted
	case a.charge < 0 || a.charge >= len(s.request.charges):
		return askNone
	case s.request.charges[a.charge].failed != 0:
		return askFailed
	case s.request.reading == 0:
		return askSent
	}
	return askAnswered
}

// unasked reports whether a layer is missing from a decision without an error. If a leased layer has denied, no other layer
// decides: leases come first, one by one, and the call comes after them. A leased shadow decides only if the decision is
// charged.
func (s *stack[R]) unasked(a *ask) bool {
	y := &s.of.layers[a.layer]
	if !s.refused && !(y.shadow && y.leases != nil) || a.err != nil {
		return false
	}
	state := s.stateOf(a)
	return state != askLeased && state != askUncounted
}

// silent reports whether a layer has nothing to report: it did not decide, or it is a shadow, and another layer has failed
// before.
func (s *stack[R]) silent(a *ask, err error) bool {
	switch {
	case a.err != nil:
		return false
	case err == nil:
		return s.unasked(a)
	}
	state := s.stateOf(a)
	return s.of.layers[a.layer].shadow && (state == askNone || state == askUncounted)
}

// event returns the event of a layer's own limiter and observer. Without an answer of the server it has only
// the limit and the error.
func (s *stack[R]) event(a *ask, err error) ratelimit.Event[string] {
	e := ratelimit.Event[string]{Key: a.key, Cost: a.cost, Err: err}
	shadow, state := s.of.layers[a.layer].shadow, s.stateOf(a)
	switch {
	case a.err != nil:
		if e.Err = a.err; state == askAnswered {
			s.decide(a.charge, &e.Decision)
			e.Decision.Allowed = false
		}
	case err != nil && !shadow && !(s.failedWait && s.request.reading != 0): // there is no answer
	case state == askUncounted:
		e.Decision = ratelimit.Decision{Allowed: true, Limit: a.plan.limit, Remaining: a.plan.limit.Capacity()}
	case state == askLeased:
		e.Decision = a.leasedDecision(s.spent)
		e.Spent = s.spent && a.result.Allowed && a.cost > 0 && !s.failedWait
	case state == askFailed:
		e.Err = failure{code: s.request.charges[a.charge].failed}.err(a.plan.limit.Name)
	case state == askAnswered:
		s.decide(a.charge, &e.Decision)
		e.Spent = s.spent && s.request.charges[a.charge].allowed && a.cost > 0 && !s.failedWait
	default:
		e.Decision.Allowed = err == nil // it did not decide, since nothing is to be charged
	}
	if a.plan != nil {
		e.Decision.Limit = a.plan.limit
	}
	return e
}

// wait takes the cost as soon as that is possible, and waits out the delay. A denial books nothing: it only has a time to try
// again, and others may be quicker. So a stack's Wait is not first come, first served.
func (s *stack[R]) wait(ctx context.Context, r R, cost int) error {
	for {
		left, err := wait.Left(ctx)
		if err != nil {
			return ended(err, false)
		}
		s.clear()
		s.request = new(request)
		s.request.call.undone = true // if the context ends, a possible charge is given back
		if err := s.take(ctx, r, cost, left, opKeep); err != nil {
			return err
		}
		d := s.d
		if d.Allowed {
			err := ratelimit.NewReservation(d, s.settler(max(cost, 1))).Wait(ctx)
			if err == nil {
				s.closeLeases(true)
			}
			return err
		}
		if due := s.due(); due > left {
			return outcome.TooLate(d.Limit, cost, due-left, left)
		}
		if err := wait.Sleep(ctx, d.RetryAfter); err != nil {
			return ended(err, false)
		}
	}
}

// due returns when the cost could be passed on, if nothing else is spent: when the last of the enforcing layers
// would let it out. That may be later than RetryAfter, which a leaky bucket's queue comes on top of.
func (s *stack[R]) due() (due time.Duration) {
	for i := range s.asks { // of leases: shadows did not decide
		due = max(due, s.asks[i].result.RetryAfter)
	}
	for i := range s.request.charges {
		if c := &s.request.charges[i]; !c.shadow {
			due = max(due, between(s.request.reading, max(c.offer.At, c.offer.Retry)))
		}
	}
	return due
}
