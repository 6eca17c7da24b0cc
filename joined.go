package ratelimit

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"math"
	"slices"
	"time"

	"github.com/weir-go/ratelimit/internal/merge"
	"github.com/weir-go/ratelimit/internal/meter"
	"github.com/weir-go/ratelimit/internal/optional"
	"github.com/weir-go/ratelimit/internal/wait"
)

// joined is one decision over layers of a store that has a [Joint]. It is the request's half: keys, costs, limits and reports. The
// store decides on the charges. Its memory serves once, because a store may read it after the caller has left.
type joined[R any] struct {
	l          *Layered[R]
	which      []int
	asks       []ask // of the layers that apply: the enforcing layers, then the shadows
	charges    []Charge
	parts      []part // by charge
	d          Decision
	sent       bool // the store has decided
	spent      bool // the decision was allowed and charged
	failedWait bool // the charge has been given back, because a Wait has failed
	settle     func(costs []int) error
}

// ask is one layer's part of a request.
type ask struct {
	layer  int
	key    string
	cost   int
	own    bool // the cost is the layer's own, whatever the caller's
	limit  Limit
	known  bool  // the limit is
	charge int   // the index of its charge, or none
	err    error // of a shadow: why it cannot decide
}

// part is how a charge's cost comes about: own + shares × the caller's.
type part struct{ own, shares int64 }

func (l *Layered[R]) join() *joined[R] { return &joined[R]{l: l} }

// take charges all layers or none, and fills in the decision.
func (s *joined[R]) take(ctx context.Context, r R, cost int, q JointRequest) error {
	if err := ctx.Err(); err != nil {
		return fmt.Errorf("ratelimit: %w", err)
	}
	if err := s.load(r, cost); err != nil {
		return err
	}
	peek := q.Peek || cost == 0
	if err := s.sum(q.Peek); err != nil {
		return err
	}
	allowed := true
	if len(s.charges) > 0 {
		q.Peek = peek
		var err error
		s.settle, err = s.l.joint.Decide(ctx, s.charges, q)
		if err != nil && ctx.Err() == nil && s.shadowsFail(err) {
			err = nil
		}
		if err != nil {
			return err
		}
		s.sent = true
		for i := range s.charges {
			if c := &s.charges[i]; !c.Shadow && c.Decided {
				allowed = allowed && c.Decision.Allowed
			}
		}
	}
	s.spent = allowed && !peek
	s.answer(allowed)
	if cost == 0 {
		s.d.Delay = 0
	}
	return nil
}

// load finds out the keys, costs and limits, first of the enforcing layers. A shadow's error is its own; any other's ends the decision.
func (s *joined[R]) load(r R, cost int) error {
	if cost < 0 {
		return negativeCostError(cost)
	}
	if s.l.pick != nil {
		s.which = s.l.pick(r, nil)
	} else {
		s.which = s.l.every
	}
	for _, shadow := range [...]bool{false, true} {
		for k, i := range s.which {
			switch {
			case i < 0 || i >= len(s.l.layers):
				return fmt.Errorf("ratelimit: pick of AllOf returned layer %d of %d", i, len(s.l.layers))
			case s.l.layers[i].shadow != shadow || s.l.pick != nil && slices.Contains(s.which[:k], i):
				continue
			}
			a := ask{layer: i, charge: none}
			applies, err := s.loadOne(&s.l.layers[i], r, cost, &a)
			if err != nil && !shadow {
				if applies {
					s.asks = append(s.asks, a)
				}
				s.d.Limit = a.limit
				return &layerError{layer: i, err: err}
			}
			if a.err = err; applies {
				s.asks = append(s.asks, a)
			}
		}
	}
	return nil
}

// loadOne reports false if the layer does not apply.
func (s *joined[R]) loadOne(y *layer[R], r R, cost int, a *ask) (bool, error) {
	key, err := y.key(r)
	if errors.Is(err, SkipLayer) {
		return false, nil
	}
	if err != nil {
		return y.shadow, &keyError{err} // only a shadow's limiter reports it
	}
	a.key, a.cost, a.own = key, cost, y.cost != nil
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
	if a.limit, err = s.l.joint.Limit(a.layer, key, limit); err != nil {
		return true, err
	}
	if a.known = true; !a.counts() && a.cost > a.limit.Capacity() {
		return true, &exceedsError{a.limit, int64(a.cost)}
	}
	return true, nil
}

func (a *ask) counts() bool { return counts(a.limit) }

func counts(l Limit) bool {
	return l.Algorithm != AlgorithmUnlimited && l.Algorithm != AlgorithmBlocked
}

// sum makes the charges: of each key one for the enforcing layers, then one for each shadow. A key has one limit in one decision, the
// limit of its first layer.
func (s *joined[R]) sum(peek bool) error {
	for i := range s.asks {
		a := &s.asks[i]
		if a.err != nil || !a.counts() {
			continue
		}
		shadow := s.l.layers[a.layer].shadow
		first := s.firstOf(i)
		a.limit = s.asks[first].limit
		if shadow {
			if a.cost > a.limit.Capacity() {
				a.err = &exceedsError{a.limit, int64(a.cost)}
			}
			if peek {
				continue
			}
		}
		if a.charge = s.asks[first].charge; a.charge == none || shadow {
			a.charge = len(s.charges)
			s.charges = append(s.charges, Charge{Limiter: a.layer, Key: a.key, Limit: a.limit, Shadow: shadow})
			s.parts = append(s.parts, part{})
		}
		if a.err == nil {
			s.add(a)
		}
		if c := &s.charges[a.charge]; c.Cost > c.Limit.Capacity() {
			s.d.Limit = a.limit
			return &layerError{layer: a.layer, err: &exceedsError{a.limit, int64(c.Cost)}}
		}
	}
	return nil
}

func (s *joined[R]) add(a *ask) {
	c, p := &s.charges[a.charge], &s.parts[a.charge]
	c.Cost = int(min(meter.Add(int64(c.Cost), int64(a.cost)), math.MaxInt))
	if a.own {
		p.own = meter.Add(p.own, int64(a.cost))
	} else {
		p.shares++
	}
}

// firstOf returns the first ask on the i-th's key.
func (s *joined[R]) firstOf(i int) int {
	a := &s.asks[i]
	for j := range i {
		if b := &s.asks[j]; b.charge != none && b.key == a.key && s.l.layers[b.layer].limiter == s.l.layers[a.layer].limiter {
			return j
		}
	}
	return i
}

// shadowsFail assigns the store's error to the shadows, if there is nothing else that it could have decided.
func (s *joined[R]) shadowsFail(err error) bool {
	if slices.ContainsFunc(s.charges, func(c Charge) bool { return !c.Shadow }) {
		return false
	}
	for i := range s.asks {
		if a := &s.asks[i]; a.charge != none {
			a.charge, a.err = none, cmp.Or(a.err, err)
		}
	}
	s.charges, s.parts = nil, nil
	return true
}

// answer merges the results of the enforcing layers.
func (s *joined[R]) answer(allowed bool) {
	sum := sumOf(&s.d)
	for i := range s.asks {
		a := &s.asks[i]
		switch {
		case s.l.layers[a.layer].shadow:
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
			if p.own+p.shares != 1 { // the store has answered for one unit
				d.NextAfter = 0
			}
			sum.Add((*merge.Decision[Limit])(&d), merge.Room(int64(d.Remaining), p.own, p.shares))
		}
	}
	if s.d.Allowed = allowed; !allowed {
		s.d.Delay = 0
	}
}

// report passes each layer's limiter and observer its own part of the decision.
func (s *joined[R]) report(r R, err error) {
	taker, _ := any(r).(answerTaker)
	if taker != nil && !taker.WantsAnswers(s.d.Allowed) {
		taker = nil
	}
	for i := range s.asks {
		a := &s.asks[i]
		y := &s.l.layers[a.layer]
		if s.silent(a, y, err) {
			continue
		}
		e := s.event(a, y, err)
		s.l.joint.Report(a.layer, e)
		if taker != nil {
			taker.TakeAnswer(a.layer, &e.Decision, e.Spent, e.Err)
		}
		if f := y.tell; f != nil {
			f(Event[R]{Key: r, Cost: e.Cost, Decision: e.Decision, Spent: e.Spent, Err: e.Err})
		}
	}
}

// decided returns the ask's charge, if the store has decided on it.
func (s *joined[R]) decided(a *ask) *Charge {
	if !s.sent || a.charge == none || !s.charges[a.charge].Decided {
		return nil
	}
	return &s.charges[a.charge]
}

// silent reports whether a layer has nothing to report: the store did not decide on it, or it is a shadow, and another layer has failed.
func (s *joined[R]) silent(a *ask, y *layer[R], err error) bool {
	switch {
	case a.err != nil:
		return false
	case err == nil:
		return s.sent && a.charge != none && !s.charges[a.charge].Decided && s.charges[a.charge].Err == nil
	}
	return y.shadow && (a.charge == none || !a.counts())
}

func (s *joined[R]) event(a *ask, y *layer[R], err error) Event[string] {
	e := Event[string]{Key: a.key, Cost: a.cost, Err: err}
	c := s.decided(a)
	switch {
	case a.err != nil:
		if e.Err = a.err; c != nil {
			e.Decision = c.Decision
			e.Decision.Allowed = false
		}
	case err != nil && !y.shadow && !(s.failedWait && s.sent): // there is no answer
	case a.known && !a.counts():
		e.Decision = Decision{Allowed: true, Limit: a.limit, Remaining: a.limit.Capacity()}
	case c != nil:
		e.Decision = c.Decision
		e.Spent = s.spent && c.Decision.Allowed && a.cost > 0 && !s.failedWait
	case a.charge != none && a.charge < len(s.charges) && s.charges[a.charge].Err != nil:
		e.Err = s.charges[a.charge].Err
	default:
		e.Decision.Allowed = err == nil // it did not decide, since nothing is to be charged
	}
	if e.Decision.Limit = a.limit; !a.known {
		e.Decision.Limit = Limit{}
	}
	return e
}

// settler returns how to settle the charges.
func (s *joined[R]) settler(cost int) func(actual int) error {
	j, charges, parts := s.l.joint, s.charges, s.parts
	switch {
	case !s.d.Allowed || len(charges) == 0:
		return nil
	case cost == 0:
		return func(actual int) error {
			return adjustJoint(context.Background(), j, charges, parts, actual)
		}
	case s.settle == nil:
		return nil
	}
	settle := s.settle
	return func(actual int) error {
		costs := make([]int, len(parts))
		for i, p := range parts {
			costs[i] = p.cost(actual)
		}
		return settle(costs)
	}
}

// cost returns the charge for the caller's cost.
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

// adjustJoint charges the enforcing layers of the caller's cost.
func adjustJoint(ctx context.Context, j Joint, charges []Charge, parts []part, delta int) error {
	var all []Charge
	for i, c := range charges {
		if shares := parts[i].shares; shares > 0 && !c.Shadow && delta != 0 {
			c.Cost = times(delta, shares)
			all = append(all, c)
		}
	}
	if len(all) == 0 {
		return nil
	}
	return j.Adjust(ctx, all)
}

// times returns n·shares, or the nearest number that can be counted.
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
	s.report(r, err)
	return s.d, err
}

func (l *Layered[R]) allowJoined(r R, cost int) bool {
	if cost == 0 {
		s := l.join()
		err := s.load(r, 0)
		s.report(r, err)
		return err == nil
	}
	d, _ := l.takeJoined(context.Background(), r, cost)
	return d.Allowed
}

func (l *Layered[R]) reserveJoined(ctx context.Context, r R, cost int, maxDelay time.Duration) (*Reservation, error) {
	s := l.join()
	err := s.take(wait.OrBackground(ctx), r, cost, JointRequest{MaxDelay: max(0, maxDelay), Settled: true})
	s.report(r, err)
	return NewReservation(s.d, s.settler(cost)), err
}

func (l *Layered[R]) adjustJoined(ctx context.Context, r R, delta int) error {
	s := l.join()
	if err := s.load(r, 0); err != nil {
		return err
	}
	if err := s.sum(true); err != nil {
		return err
	}
	return adjustJoint(wait.OrBackground(ctx), l.joint, s.charges, s.parts, delta)
}

func (l *Layered[R]) waitJoined(ctx context.Context, r R, cost int) error {
	s := l.join()
	err := s.wait(wait.OrBackground(ctx), r, cost)
	s.failedWait = err != nil
	s.report(r, err)
	return err
}

// wait takes the cost as soon as that is possible, and waits out the delay.
func (s *joined[R]) wait(ctx context.Context, r R, cost int) error {
	for {
		left, err := wait.Left(ctx)
		if err != nil {
			return fmt.Errorf("ratelimit: %w", err)
		}
		*s = joined[R]{l: s.l}
		q := JointRequest{MaxDelay: left, Settled: true, Undone: true}
		if err := s.take(new(optional.Passing).From(ctx), r, cost, q); err != nil {
			return err
		}
		if s.d.Allowed {
			return NewReservation(s.d, s.settler(max(cost, 1))).Wait(ctx)
		}
		due := s.d.RetryAfter
		for i := range s.charges {
			if c := &s.charges[i]; !c.Shadow {
				due = max(due, c.Due)
			}
		}
		if due > left {
			return tooLate(cost, due, left, s.d.Limit)
		}
		if err := wait.Sleep(ctx, s.d.RetryAfter); err != nil {
			return fmt.Errorf("ratelimit: %w", err)
		}
	}
}

// localizer is a limiter of another store that can make one in memory with its settings.
type localizer interface {
	Local(share func(Limit) Limit, maxKeys int) (*Keyed[string], error)
}

// Local returns a stack in memory of the same layers, for package failover. The share function returns the part of a limit that
// this process enforces alone, such as failover.Share; Unlimited and Blocked stay. A later SetLimit does not change the stack.
// Each limiter tracks at most maxKeys keys; 0 means the default of [Options]. The error names the layer that is wrong.
func (l *Layered[R]) Local(share func(Limit) Limit, maxKeys int) (*Layered[R], error) {
	if l == nil || l.joint == nil {
		return nil, errors.New("ratelimit: Local of a Layered that is none of another store, made by All or AllOf")
	}
	if share == nil {
		return nil, errors.New("ratelimit: Local was given no share function")
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
		layers[i].Cost, layers[i].Shadow, layers[i].Observe = y.cost, y.shadow, y.tell
		if limitOf := y.limit; limitOf != nil {
			layers[i].Limit = func(r R) Limit { return shareOf(share, limitOf(r)) }
		}
	}
	if l.pick != nil {
		return AllOf(l.pick, layers...)
	}
	return All(layers...)
}

// shareOf returns the share of a limit. The zero Limit means another one, whose share is taken.
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
