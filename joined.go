package ratelimit

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"math"
	"math/bits"
	"slices"
	"time"

	"github.com/weir-go/ratelimit/internal/estimates"
	"github.com/weir-go/ratelimit/internal/held"
	"github.com/weir-go/ratelimit/internal/merge"
	"github.com/weir-go/ratelimit/internal/meter"
	"github.com/weir-go/ratelimit/internal/optional"
	"github.com/weir-go/ratelimit/internal/reports"
	"github.com/weir-go/ratelimit/internal/turns"
	"github.com/weir-go/ratelimit/internal/wait"
)

// joined is one decision over layers of a store with a [Joint]. It is the request's half: keys, costs, limits
// and reports. The store decides on the charges. A pool keeps its memory, unless the decision may be settled.
type joined[R any] struct {
	l          *Layered[R]
	which      []int
	demands    []demand // one for each layer that applies: the enforcing layers, then the shadows
	charges    []Charge
	parts      []part // parts[i] belongs to charges[i]
	d          Decision
	each       bool // the caller wants each layer's decision, although nothing is charged
	sent       bool // the store has decided
	spent      bool // the decision was allowed and charged
	failedWait bool // the charge has been given back, because a Wait has failed
	settle     func(costs []int) error

	follower follower         // the request, if it follows its keys' spending
	watch    *estimates.Watch // receives the spending of these keys from the store
}

// demand is one layer's part of a request.
type demand struct {
	layer  int
	key    string
	cost   int
	own    bool // the layer charges its own cost instead of the caller's
	alone  any  // the key, if the limiter is called alone
	limit  Limit
	plan   any
	known  bool  // limit is known
	charge int   // its charge's index, or none
	err    error // why a shadow cannot decide
}

// part holds the terms of a charge's cost: own + shares × the caller's cost.
type part struct{ own, shares int64 }

func (l *Layered[R]) join() *joined[R] {
	if s, _ := l.joins.Get().(*joined[R]); s != nil {
		return s
	}
	return &joined[R]{l: l}
}

// left returns a decision's memory to the pool, without the keys. It is
// not called while a reservation or a settlement still reads the memory.
func (l *Layered[R]) left(s *joined[R]) {
	clear(s.demands)
	clear(s.charges)
	*s = joined[R]{l: l, which: s.which[:0], demands: s.demands[:0], charges: s.charges[:0], parts: s.parts[:0]}
	l.joins.Put(s)
}

// take charges all layers or none, and fills in the decision.
func (s *joined[R]) take(ctx context.Context, r R, cost int, q JointRequest) error {
	if err := ctx.Err(); err != nil {
		return fmt.Errorf("ratelimit: %w", err)
	}
	if err := s.load(r, cost); err != nil {
		return err
	}
	peek := q.Peek || cost == 0
	if !peek && (!q.Settled || q.Undone) {
		if err := s.endless(); err != nil {
			return err
		}
	}
	if err := s.sum(q.Peek); err != nil {
		return err
	}
	allowed := true
	if len(s.charges) > 0 {
		q.Peek, q.free = peek, cost == 0 && !q.Peek
		if !q.Peek {
			s.follower = s.l.followerOf(r)
		}
		var watched context.Context
		watched, s.watch = watch(ctx, s.follower, s.charges)
		var err error
		s.settle, err = s.l.joint.Decide(watched, s.charges, q)
		if err != nil && ctx.Err() == nil && s.shadowsFail(err) {
			err = nil
		}
		if err != nil {
			return err
		}
		s.sent = true
		for i := range s.charges {
			if c := &s.charges[i]; !c.Shadow {
				allowed = allowed && (!c.Decided || c.Decision.Allowed)
			}
		}
	}
	s.spent = allowed && !peek
	decided(s.follower, s.charges, s.watch, s.spent)
	s.answer(allowed)
	if cost == 0 {
		s.d.Delay = 0
	}
	return nil
}

// load determines the keys, costs and limits, first of the enforcing layers. The error
// of an enforcing layer ends the decision. A shadow's error stays with the shadow.
func (s *joined[R]) load(r R, cost int) error {
	if cost < 0 {
		return negativeCostError(cost)
	}
	which := s.l.every
	if s.l.pick != nil {
		s.which = s.l.pick(r, s.which[:0])
		which = s.which
	}
	for _, shadow := range [...]bool{false, true} {
		for k, i := range which {
			switch {
			case i < 0 || i >= len(s.l.layers):
				return fmt.Errorf("ratelimit: pick of AllOf returned layer %d of %d", i, len(s.l.layers))
			case s.l.layers[i].shadow != shadow || s.l.pick != nil && slices.Contains(which[:k], i):
				continue
			}
			a := demand{layer: i, charge: none}
			applies, err := s.loadOne(&s.l.layers[i], r, cost, &a)
			if err != nil && !shadow && !(s.each && errors.Is(err, ErrExceedsLimit)) {
				if applies {
					s.demands = append(s.demands, a)
				}
				s.d.Limit = a.limit
				return &layerError{layer: i, err: err}
			}
			if a.err = err; applies {
				s.demands = append(s.demands, a)
			}
		}
	}
	return nil
}

// endless returns an error if an enforcing layer is under Concurrent: a call without
// an end could not give the units back. A shadow layer keeps the error for itself.
func (s *joined[R]) endless() error {
	for i := range s.demands {
		a := &s.demands[i]
		if a.err != nil || a.limit.Algorithm != AlgorithmConcurrent || a.cost == 0 || exceeds(a.limit, a.cost) {
			continue
		}
		err := &held.NoEnd{Name: a.limit.Name, Text: a.limit.String()}
		if !s.l.layers[a.layer].shadow {
			s.d.Limit = a.limit
			return &layerError{layer: a.layer, err: err}
		}
		a.err = err
	}
	return nil
}

// followerOf returns r as a follower if it follows its keys' spending, and nil otherwise.
func (l *Layered[R]) followerOf(r R) follower {
	if l.takes {
		if f, ok := any(r).(follower); ok && f.Following() {
			return f
		}
	}
	return nil
}

// loadOne determines the key, the cost and one layer's limit. It reports false if the layer does not apply.
func (s *joined[R]) loadOne(y *layer[R], r R, cost int, a *demand) (bool, error) {
	var err error
	if s.l.alone {
		a.alone, err = y.boxed(r)
	} else {
		a.key, err = y.key(r)
	}
	if errors.Is(err, SkipLayer) {
		return false, nil
	}
	if err != nil {
		return y.shadow, &keyError{err} // only a shadow's limiter reports it
	}
	a.cost, a.own = cost, y.cost != nil
	if a.own && cost > 0 {
		a.cost = y.cost(r)
	}
	if a.cost < 0 {
		return true, negativeCostError(a.cost)
	}
	var limit Limit
	if y.limit != nil {
		limit = y.limit(r)
	}
	if a.limit, a.plan, err = s.l.joint.Limit(a.layer, a.key, limit); err != nil {
		return true, err
	}
	if a.known = true; !a.counts() && a.cost > a.limit.Capacity() {
		return true, &exceedsError{a.limit, int64(a.cost)}
	}
	return true, nil
}

func (a *demand) counts() bool { return counts(a.limit) }

func counts(l Limit) bool {
	return l.Algorithm != AlgorithmUnlimited && l.Algorithm != AlgorithmBlocked
}

// exceeds reports whether a cost is more than the limit can ever allow. A limiter alone checks it itself.
func exceeds(l Limit, cost int) bool { return l.Algorithm != 0 && cost > l.Capacity() }

// sum makes the charges: for each key one for all enforcing layers, then one for each
// shadow. A key has one limit in one decision, the limit of its first layer. If each layer's
// decision is wanted, a cost above the capacity is the layer's own error and counts as 0.
func (s *joined[R]) sum(peek bool) error {
	for i := range s.demands {
		a := &s.demands[i]
		if a.err != nil || !a.counts() {
			continue
		}
		shadow := s.l.layers[a.layer].shadow
		first := s.firstOf(i)
		a.limit, a.plan = s.demands[first].limit, s.demands[first].plan
		if shadow {
			if exceeds(a.limit, a.cost) {
				a.err = &exceedsError{a.limit, int64(a.cost)}
			}
			if peek && !s.each {
				continue
			}
		}
		if a.charge = s.demands[first].charge; a.charge == none || shadow {
			a.charge = len(s.charges)
			s.charges = append(s.charges, Charge{Limiter: a.layer, Key: a.key, Limit: a.limit, Plan: a.plan, Shadow: shadow, alone: a.alone})
			s.parts = append(s.parts, part{})
		}
		if a.err == nil {
			s.add(a)
		}
		if c := &s.charges[a.charge]; exceeds(c.Limit, c.Cost) {
			err := &exceedsError{a.limit, int64(c.Cost)}
			if !s.each {
				s.d.Limit = a.limit
				return &layerError{layer: a.layer, err: err}
			}
			a.err, c.Cost = err, 0
		}
	}
	return nil
}

func (s *joined[R]) add(a *demand) {
	c, p := &s.charges[a.charge], &s.parts[a.charge]
	c.Cost = int(min(meter.Add(int64(c.Cost), int64(a.cost)), math.MaxInt))
	if a.own {
		p.own = meter.Add(p.own, int64(a.cost))
	} else {
		p.shares++
	}
}

// firstOf returns the index of the first demand on the same key as the i-th demand.
func (s *joined[R]) firstOf(i int) int {
	a := &s.demands[i]
	for j := range i {
		if b := &s.demands[j]; b.charge != none && b.key == a.key && s.l.layers[b.layer].limiter == s.l.layers[a.layer].limiter {
			return j
		}
	}
	return i
}

// shadowsFail assigns the store's error to the shadows if the store had nothing else to decide, and reports whether it did.
func (s *joined[R]) shadowsFail(err error) bool {
	if slices.ContainsFunc(s.charges, func(c Charge) bool { return !c.Shadow }) {
		return false
	}
	for i := range s.demands {
		if a := &s.demands[i]; a.charge != none {
			a.charge, a.err = none, cmp.Or(a.err, err)
		}
	}
	s.charges, s.parts = nil, nil
	return true
}

// afterFor computes, from the decision on a key, the time until the key has room for the units.
// A bucket regains them evenly, a window all at its end. afterFor returns 0 if the limit has
// fewer units, or if the decision does not show the time, as with sliding windows and debts.
func afterFor(d *Decision, units int64) time.Duration {
	capacity := int64(d.Limit.Capacity())
	if units > capacity {
		return 0
	}
	switch d.Limit.Algorithm {
	case AlgorithmFixedWindow, AlgorithmCalendar:
		if d.Debt == 0 {
			return d.ResetAfter
		}
		return 0 // the debt is carried from window to window
	case AlgorithmTokenBucket, AlgorithmLeakyBucket:
		if d.Limit.Rate.Units <= 0 {
			return 0
		}
		high, low := bits.Mul64(uint64(capacity-units), uint64(d.Limit.Rate.Per))
		if high >= uint64(d.Limit.Rate.Units) {
			return 0
		}
		rest, _ := bits.Div64(high, low, uint64(d.Limit.Rate.Units))
		return max(0, d.ResetAfter-time.Duration(min(rest, math.MaxInt64)))
	}
	return 0
}

// answer merges the results of the enforcing layers.
func (s *joined[R]) answer(allowed bool) {
	sum := sumOf(&s.d)
	for i := range s.demands {
		a := &s.demands[i]
		switch {
		case s.l.layers[a.layer].shadow:
		case a.charge == none && a.counts(): // the layer failed, and the caller wants each layer's decision
		case !a.counts():
			p := part{own: int64(a.cost)}
			if !a.own {
				p = part{shares: 1}
			}
			d := Decision{Allowed: true, Limit: a.limit}
			sum.Add((*merge.Decision[Limit])(&d), merge.Room(int64(a.limit.Capacity()), p.own, p.shares))
		case s.charges[a.charge].Decided && s.firstOf(i) == i:
			c, p := &s.charges[a.charge], s.parts[a.charge]
			d := c.Decision
			if n := p.own + p.shares; n != 1 { // the store's NextAfter is for one unit
				d.NextAfter = afterFor(&d, n)
			}
			sum.Add((*merge.Decision[Limit])(&d), merge.Room(int64(d.Remaining), p.own, p.shares))
		}
	}
	if s.d.Allowed = allowed; !allowed {
		s.d.Delay = 0
	}
}

// report passes each layer's limiter and observer its own part of the decision.
func (s *joined[R]) report(ctx context.Context, r R, err error) {
	kept := reports.Of(ctx)
	var taker answerTaker
	if s.l.takes {
		if taker, _ = any(r).(answerTaker); taker != nil && !taker.WantsAnswers(s.d.Allowed) {
			taker = nil
		}
	}
	for i := range s.demands {
		a := &s.demands[i]
		y := &s.l.layers[a.layer]
		if s.silent(a, y, err) {
			continue
		}
		e := s.event(a, y, err)
		if kept == nil {
			s.l.joint.Report(a.layer, e)
		} else {
			kept.Add(s.l.reporter(a.layer, e))
		}
		if taker != nil {
			d := e.Decision // a copy on the heap
			taker.TakeAnswer(a.layer, &d, e.Spent, e.Err)
		}
		if f := y.observe; f != nil {
			reports.Send(ctx, f, Event[R]{Key: r, Cost: e.Cost, Decision: e.Decision, Spent: e.Spent, Err: e.Err})
		}
	}
}

// reporter returns a report of a layer's limiter for later.
func (l *Layered[R]) reporter(layer int, e Event[string]) func() {
	return func() { l.joint.Report(layer, e) }
}

// decided returns the demand's charge, if the store has decided on it.
func (s *joined[R]) decided(a *demand) *Charge {
	if !s.sent || a.charge == none || !s.charges[a.charge].Decided {
		return nil
	}
	return &s.charges[a.charge]
}

// silent reports whether a layer has nothing to report: the store did not decide on it, or it is a shadow, and another layer has failed.
func (s *joined[R]) silent(a *demand, y *layer[R], err error) bool {
	switch {
	case a.err != nil:
		return false
	case err == nil:
		return s.sent && a.charge != none && !s.charges[a.charge].Decided && s.charges[a.charge].Err == nil
	}
	return y.shadow && (a.charge == none || !a.counts())
}

func (s *joined[R]) event(a *demand, y *layer[R], err error) Event[string] {
	e := Event[string]{Key: a.key, Cost: a.cost, Err: err}
	c := s.decided(a)
	switch {
	case a.err != nil:
		if e.Err = a.err; c != nil {
			e.Decision = c.Decision
			e.Decision.Allowed = false
		}
	case err != nil && !y.shadow && !(s.failedWait && s.sent): // there is no decision to report
	case a.known && !a.counts():
		e.Decision = Decision{Allowed: true, Limit: a.limit, Remaining: a.limit.Capacity()}
	case c != nil:
		e.Decision = c.Decision
		e.Spent = s.spent && c.Decision.Allowed && a.cost > 0 && !s.failedWait
	case a.charge != none && a.charge < len(s.charges) && s.charges[a.charge].Err != nil:
		e.Err = s.charges[a.charge].Err
	default:
		e.Decision.Allowed = err == nil // the store did not decide, because nothing is charged
	}
	if !a.known {
		e.Decision.Limit = Limit{}
	} else if a.limit.Algorithm != 0 { // a limiter alone reports itself
		e.Decision.Limit = a.limit
	}
	return e
}

// settler returns a function to settle the charges. The function
// reads the real costs of layers with an Actual from the request.
func (s *joined[R]) settler(r R, cost int) func(actual int) error {
	l, charges, parts, f := s.l, s.charges, s.parts, s.l.followerOf(r)
	switch {
	case !s.d.Allowed || len(charges) == 0:
		return nil
	case cost == 0:
		actuals := s.actuals(r, true)
		return func(actual int) error {
			costs, err := actuals.costs(parts, actual)
			if err != nil {
				return err
			}
			back(charges, costs)
			return l.adjustJoint(context.Background(), charges, costs, f)
		}
	case s.settle == nil:
		return nil
	}
	settle, actuals, w := s.settle, s.actuals(r, false), s.watch
	return func(actual int) error {
		costs, err := actuals.costs(parts, actual)
		if err != nil {
			return err
		}
		back(charges, costs)
		err = settle(costs)
		corrected(f, charges, w)
		for i := range charges {
			l.moved(&charges[i], costs[i]-charges[i].Cost)
		}
		return err
	}
}

// back sets the costs of units in use to 0, since they are given back or were not held. A limiter alone does this itself.
func back(charges []Charge, costs []int) {
	for i := range charges {
		if c := &charges[i]; c.alone == nil && c.Limit.Algorithm == AlgorithmConcurrent {
			costs[i] = 0
		}
	}
}

// extends makes a reservation hold the charges' units under Concurrent.
func (s *joined[R]) extends(res *Reservation, cost int) {
	if !s.spent || cost == 0 {
		return
	}
	var all []func(context.Context) error
	for i := range s.charges {
		c := &s.charges[i]
		hold := c.hold
		if c.alone == nil && c.Limit.Algorithm == AlgorithmConcurrent {
			hold = c.Limit.Rate.Per
		}
		if hold == 0 || c.Cost == 0 || !c.Decided || !c.Decision.Allowed {
			continue
		}
		if res.hold == 0 || hold < res.hold {
			res.hold = hold
		}
		if c.Extend != nil {
			all = append(all, c.Extend)
		}
	}
	if res.hold == 0 {
		return
	}
	res.replaced().extend = func(ctx context.Context) (err error) {
		if len(all) == 0 {
			return fmt.Errorf("ratelimit: the store cannot extend units in use: %w", errors.ErrUnsupported)
		}
		for _, extend := range all {
			err = cmp.Or(err, extend(ctx))
		}
		return err
	}
}

// actuals removes the layers with an Actual from the parts, and returns their real costs. If
// nothing was charged (uncharged), it also removes shadows and layers with their own cost.
func (s *joined[R]) actuals(r R, uncharged bool) (all actuals) {
	for i := range s.demands {
		a := &s.demands[i]
		y := &s.l.layers[a.layer]
		if a.charge == none || a.err != nil {
			continue
		}
		p := &s.parts[a.charge]
		if f := y.actual; f != nil && !(uncharged && y.shadow) {
			p.remove(a)
			all = append(all, actual{a.charge, a.layer, func() int { return f(r) }})
		} else if uncharged && (a.own || y.shadow) {
			p.remove(a)
		}
	}
	return all
}

// remove takes a layer's cost out of the part.
func (p *part) remove(a *demand) {
	if a.own {
		p.own -= int64(a.cost)
	} else {
		p.shares--
	}
}

// costs returns each charge's real cost, given the caller's real cost. If that is 0, nothing was done, and all costs are 0.
func (all actuals) costs(parts []part, given int) ([]int, error) {
	own, err := all.read(given)
	if err != nil {
		return nil, err
	}
	costs := make([]int, len(parts))
	for i, p := range parts {
		costs[i] = p.cost(given)
	}
	for k, a := range all {
		costs[a.charge] = int(min(meter.Add(int64(costs[a.charge]), own[k]), math.MaxInt))
	}
	return costs, nil
}

// cost returns the charge's cost for the caller's real cost.
func (p part) cost(actual int) int {
	cost, over := meter.Mul(p.shares, int64(actual))
	if over {
		return math.MaxInt
	}
	if actual > 0 {
		cost = meter.Add(cost, p.own)
	}
	return int(min(cost, math.MaxInt))
}

// adjustJoint charges the costs, except zeros. It reports them to f, the request that follows the keys, unless f is nil.
func (l *Layered[R]) adjustJoint(ctx context.Context, charges []Charge, costs []int, f follower) error {
	var all []Charge
	for i, c := range charges {
		if c.Cost = costs[i]; c.Cost != 0 {
			all = append(all, c)
		}
	}
	if len(all) == 0 {
		return nil
	}
	ctx, w := watch(ctx, f, all)
	err := l.joint.Adjust(ctx, all)
	corrected(f, all, w)
	for i := range all {
		l.moved(&all[i], all[i].Cost)
	}
	return err
}

// times returns n·shares, or the nearest int64.
func times(n int, shares int64) int {
	n = max(n, -math.MaxInt)
	product, over := meter.Mul(shares, int64(max(n, -n)))
	if over {
		product = math.MaxInt64
	}
	if n < 0 {
		return int(-product)
	}
	return int(product)
}

func (l *Layered[R]) takeJoined(ctx context.Context, r R, cost int) (Decision, error) {
	s := l.join()
	err := s.take(wait.OrBackground(ctx), r, cost, JointRequest{MaxDelay: wait.Forever})
	s.report(ctx, r, err)
	d := s.d
	l.left(s)
	return d, err
}

func (l *Layered[R]) allowJoined(r R, cost int) bool {
	if cost == 0 {
		s := l.join()
		err := s.load(r, 0)
		s.report(context.Background(), r, err)
		l.left(s)
		return err == nil
	}
	d, _ := l.takeJoined(context.Background(), r, cost)
	return d.Allowed
}

func (l *Layered[R]) peekJoined(ctx context.Context, r R, cost int) (Decision, error) {
	s := l.join()
	err := s.take(wait.OrBackground(ctx), r, cost, JointRequest{MaxDelay: wait.Forever, Peek: true})
	d := s.d
	l.left(s)
	return d, err
}

func (l *Layered[R]) peekEachJoined(ctx context.Context, r R, cost int) ([]Decision, error) {
	s := l.join()
	s.each = true
	err := s.take(wait.OrBackground(ctx), r, cost, JointRequest{MaxDelay: wait.Forever, Peek: true})
	if err != nil {
		l.left(s)
		return nil, err
	}
	all := make([]Decision, len(l.layers))
	var failed error
	for i := range s.demands {
		a := &s.demands[i]
		e := s.event(a, &l.layers[a.layer], nil)
		if all[a.layer] = e.Decision; e.Err != nil && failed == nil {
			failed = &layerError{layer: a.layer, err: e.Err}
		}
	}
	l.left(s)
	return all, failed
}

func (l *Layered[R]) reserveJoined(ctx context.Context, r R, cost int, maxDelay time.Duration) (*Reservation, error) {
	s := l.join()
	err := s.take(wait.OrBackground(ctx), r, cost, JointRequest{MaxDelay: max(0, maxDelay), Settled: true})
	s.report(ctx, r, err)
	res := NewReservation(s.d, s.settler(r, cost))
	s.extends(res, cost)
	return res, err
}

func (l *Layered[R]) adjustJoined(ctx context.Context, r R, delta int) error {
	s := l.join()
	defer l.left(s)
	if err := s.load(r, 0); err != nil {
		return err
	}
	if err := s.sum(true); err != nil {
		return err
	}
	costs := make([]int, len(s.charges))
	for i, p := range s.parts {
		costs[i] = times(delta, p.shares)
	}
	return l.adjustJoint(wait.OrBackground(ctx), s.charges, costs, l.followerOf(r))
}

func (l *Layered[R]) waitJoined(ctx context.Context, r R, cost int) error {
	s := l.join()
	ctx = wait.OrBackground(ctx)
	var err error
	if l.alone && !l.layers[0].shadow {
		waiter := l.joint.(interface {
			wait(context.Context, *Charge) error
		})
		err = s.waitAlone(r, cost, func(c *Charge) error { return waiter.wait(ctx, c) })
	} else {
		err = s.wait(ctx, r, cost)
	}
	if s.failedWait = err != nil; wait.Renewed(ctx, err) == nil {
		s.report(ctx, r, err)
	}
	return err
}

// waitAlone calls the wait of a limiter alone.
func (s *joined[R]) waitAlone(r R, cost int, wait func(*Charge) error) error {
	if err := s.load(r, cost); err != nil {
		return err
	}
	if err := s.sum(false); err != nil || len(s.charges) == 0 {
		return err
	}
	c := &s.charges[0]
	if err := wait(c); err != nil {
		return err
	}
	c.Decided, c.Decision.Allowed = true, true
	s.sent, s.spent, s.d.Allowed = true, cost > 0, true
	return nil
}

// wait takes the cost in its turn, and waits out the delay. A denied call waits in this process, in the line of its slowest
// key. It tries again when it is the first there and the key may have room. So an exhausted key delays only its own callers.
func (s *joined[R]) wait(ctx context.Context, r R, cost int) error {
	if _, err := wait.Left(ctx); err != nil {
		return fmt.Errorf("ratelimit: %w", err)
	}
	if err := s.load(r, cost); err != nil {
		return err
	}
	if err := s.sum(false); err != nil {
		return err
	}
	var budgets []turns.Budget[lineKey]
	for i := range s.charges {
		if c := &s.charges[i]; !c.Shadow {
			budgets = append(budgets, turns.Budget[lineKey]{Key: s.l.lineOf(c), Cost: c.Cost})
		}
	}
	returnTo(ctx, budgets)
	err := s.l.lines.Try(ctx, budgets, func(turns.Request) (turns.Answer[lineKey], error) { return s.try(ctx, r, cost) })
	if c := wait.Renewed(ctx, err); c != nil {
		c.Place = leftLines(budgets)
	}
	if late, ok := err.(*turns.LateError); ok {
		return tooLate(late.In, s.d.Limit)
	}
	if cause := ctx.Err(); cause != nil && err == cause {
		return fmt.Errorf("ratelimit: %w", err)
	}
	return err
}

// leftLines are the budgets of a call that starts again. One of them has the line in which the call stood.
type leftLines []turns.Budget[lineKey]

// Abandon does nothing: the call has left its line.
func (leftLines) Abandon() {}

// returnTo is for a call that starts again. It marks the budget in whose line the call
// stood. After a change of rules the limiters may be others, so it looks for the same key.
func returnTo(ctx context.Context, budgets []turns.Budget[lineKey]) {
	c := wait.RenewableOf(ctx)
	if c == nil {
		return
	}
	left, _ := c.Place.(leftLines)
	c.Place = nil
	stood := slices.IndexFunc(left, func(b turns.Budget[lineKey]) bool { return b.Stands })
	if stood < 0 {
		return
	}
	same := func(b turns.Budget[lineKey]) bool { return b.Key.key == left[stood].Key.key }
	to := slices.IndexFunc(budgets, same)
	if stood < len(budgets) && same(budgets[stood]) {
		to = stood
	}
	if to >= 0 {
		budgets[to].Stands = true
	}
}

// lineKey is a budget in which callers wait.
type lineKey struct {
	limiter any
	key     string
}

func (l *Layered[R]) lineOf(c *Charge) lineKey { return lineKey{l.layers[c.Limiter].limiter, c.Key} }

// moved lets a key's first waiter try again at once, after the key's spending has decreased.
func (l *Layered[R]) moved(c *Charge, by int) {
	if by < 0 && !l.alone { // a limiter alone has its own line
		l.lines.Moved(l.lineOf(c))
	}
}

// try takes the cost, or returns the key that denies it longest.
func (s *joined[R]) try(ctx context.Context, r R, cost int) (a turns.Answer[lineKey], err error) {
	left, err := wait.Left(ctx)
	if err != nil {
		return a, fmt.Errorf("ratelimit: %w", err)
	}
	*s = joined[R]{l: s.l}
	q := JointRequest{MaxDelay: left, Settled: true, Undone: true}
	if err = s.take(new(optional.Passing).From(ctx), r, cost, q); err != nil {
		return a, err
	}
	a.Allowed, a.Delay, a.Retry, a.Remaining = s.d.Allowed, s.d.Delay, s.d.RetryAfter, s.d.Remaining
	if a.Allowed {
		a.Settle = s.undo()
	}
	slowest := time.Duration(-1)
	for i := range s.charges {
		c := &s.charges[i]
		if c.Shadow || !c.Decided || c.Decision.Allowed != a.Allowed {
			continue
		}
		if due := max(c.Decision.RetryAfter, c.Due); !a.Allowed && due > slowest {
			slowest = due
			a.Line, a.Cost, a.Pace, a.Late = s.l.lineOf(c), c.Cost, paceOf(c.Limit), max(due, s.d.RetryAfter)
		}
	}
	return a, nil
}

// paceOf returns a limit's rate for a line.
func paceOf(l Limit) turns.Pace {
	bucket := l.Algorithm == AlgorithmTokenBucket || l.Algorithm == AlgorithmLeakyBucket
	return turns.Pace{Units: l.Rate.Units, Per: l.Rate.Per, AtOnce: !bucket}
}

// undo returns a function to give the charges back.
func (s *joined[R]) undo() func(int) error {
	settle, charges := s.settle, len(s.charges)
	if settle == nil {
		return nil
	}
	return func(int) error { return settle(make([]int, charges)) }
}

// localizer is a limiter of another store. It can make a limiter in memory with the same settings.
type localizer interface {
	Local(share func(Limit) Limit, maxKeys int) (*Keyed[string], error)
}

// Local returns a stack with the same layers in memory, for package failover. The share function,
// for example failover.Share, returns this process's part of a limit; Unlimited and Blocked stay.
// A later SetLimit does not change the stack. Each limiter tracks at most maxKeys keys; with 0,
// as many as [Options] allows by default. The error names any layer that cannot be in memory.
func (l *Layered[R]) Local(share func(Limit) Limit, maxKeys int) (*Layered[R], error) {
	if l == nil || l.joint == nil {
		return nil, errors.New("ratelimit: Local of a Layered that is none of another store, made by All or AllOf")
	}
	if share == nil {
		return nil, optional.Nil("ratelimit: Layered.Local: share")
	}
	limiters := map[any]*Keyed[string]{}
	layers := make([]Layer[R], len(l.layers))
	for i := range l.layers {
		y := &l.layers[i]
		local := limiters[y.limiter]
		if local == nil {
			x, ok := y.limiter.(localizer)
			if !ok {
				return nil, fmt.Errorf("ratelimit: layer %d: %T has no Local", i, y.limiter)
			}
			var err error
			if local, err = x.Local(func(limit Limit) Limit { return shareOf(share, limit) }, maxKeys); err != nil {
				return nil, fmt.Errorf("ratelimit: layer %d: %w", i, err)
			}
			limiters[y.limiter] = local
		}
		layers[i] = By(local, y.key)
		layers[i].Cost, layers[i].Actual, layers[i].Shadow, layers[i].Observe = y.cost, y.actual, y.shadow, y.observe
		if limitOf := y.limit; limitOf != nil {
			layers[i].Limit = func(r R) Limit { return shareOf(share, limitOf(r)) }
		}
	}
	if l.pick != nil {
		return AllOf(l.pick, layers...)
	}
	return All(layers...)
}

// shareOf returns the share of a limit. The zero Limit stands for
// another limit, whose share is taken elsewhere, and stays zero.
func shareOf(share func(Limit) Limit, limit Limit) Limit {
	switch limit.Algorithm {
	case 0, AlgorithmUnlimited, AlgorithmBlocked:
		return limit
	}
	local := share(limit)
	if local.Name == "" {
		local.Name = limit.Name
	}
	return local
}

// spentOf computes the spending from a decision's figures.
func spentOf(d *Decision) int64 {
	return meter.Add(max(0, int64(d.Limit.Capacity())-int64(d.Remaining)), int64(d.Debt))
}

// watch returns a context under which a call to the store returns the followed keys' spending.
func watch(ctx context.Context, f follower, charges []Charge) (context.Context, *estimates.Watch) {
	if f == nil {
		return ctx, nil
	}
	w := &estimates.Watch{Keys: make([]estimates.Key, len(charges))}
	for i := range charges {
		w.Keys[i] = estimates.Key{Wanted: f.Follows(charges[i].Limiter), Open: unknownOpen}
	}
	watched := estimates.With(ctx, w)
	if optional.IsPassing(ctx) {
		watched = new(optional.Passing).From(watched)
	}
	return watched, w
}

// decided reports the charges of the store's decision to the request.
func decided(f follower, charges []Charge, w *estimates.Watch, spent bool) {
	if w == nil {
		return
	}
	for i := range charges {
		c, k := &charges[i], &w.Keys[i]
		switch {
		case !k.Wanted || !c.Decided:
		case spent && c.Decision.Allowed && c.Cost > 0:
			f.Charged(c.Limiter, max(0, spentOf(&c.Decision)-int64(c.Cost)), k.Open)
		case k.Open >= 0:
			f.Opened(c.Limiter, k.Open)
		}
	}
}

// corrected reports the settlement or the adjustment of charges to the request.
func corrected(f follower, charges []Charge, w *estimates.Watch) {
	if w == nil {
		return
	}
	for i := range charges {
		k := &w.Keys[i]
		if !k.Wanted || !k.Answered {
			continue
		}
		if d, ok := k.After.(Decision); ok {
			f.Corrected(charges[i].Limiter, k.Before, k.OpenBefore, k.OpenAfter, &d)
		} else {
			f.Corrected(charges[i].Limiter, 0, k.OpenBefore, k.OpenAfter, nil)
		}
	}
}
