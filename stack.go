package ratelimit

import (
	"cmp"
	"fmt"
	"slices"
)

// stack is the working memory of one decision over several layers. One goroutine uses
// it at a time. In between it holds no key and no account, so that the pool that keeps
// it keeps nothing of users alive.
//
// A decision goes through these steps. User code runs only in the first and the last,
// and no lock is held then.
//
//  1. load: each layer says which account it asks for what, and under which plan.
//  2. hold: what several layers ask of one account is summed up, and all accounts are
//     locked, in the one order that all decisions use.
//  3. weigh: each account makes an offer. Nothing is spent yet.
//  4. If all of the enforcing layers' offers fit, each account accepts; then each shadow
//     layer in turn makes its offer and accepts it if it fits. Else nothing is spent.
//  5. report: each limiter is told of its own layer's answer.
//
// No other decision sees a state between 3 and 4, because all accounts are locked: a
// denial charges nothing, not even for an instant.
//
// Keys that are not tracked are inserted between 3 and 4, if all offers fit, and then the
// decision starts again at 2. An insertion locks an account of any address, so none may
// be locked meanwhile. What has been inserted, and what was there before, is pinned
// until the decision is over: else the keys of one request could evict each other.
type stack[R any] struct {
	layers []Layer[R]
	pick   func(R, []int) []int // nil: all layers
	clock  Clock

	// A seat is made when its layer is first needed. AllOf may have a thousand layers
	// of which a request needs three.
	made    []seat[R] // by layer
	seats   seats[R]  // the layers of this request; of AllOf, in between, those of the last one
	which   []int     // scratch memory for pick
	watched bool      // one of the seats' limiters has an OnDecision
	brief   bool      // the caller needs only the yes or no
	changed bool      // keys have been inserted or pinned
	asks    bool      // a LimitFor was asked
	absent  bool      // one of the seats' keys is not tracked
	mixed   bool      // of a key's seats only some have found its account
	over    bool      // the enforcing layers ask an account for more than it can ever allow

	charges charges    // all of them
	firm    charges    // those of the enforcing layers, which come first
	shadows charges    // those of the shadow layers
	answers []Decision // the accounts' own, by charge; none if nobody is told
	locks   locks      // of the charges' accounts

	reading int64
	err     error // why no offer can ever fit
	d       Decision
}

func newStack[R any](layers []Layer[R], pick func(R, []int) []int, clock Clock) *stack[R] {
	s := &stack[R]{layers: layers, pick: pick, clock: clock, made: make([]seat[R], len(layers))}
	if pick == nil {
		for i := range layers {
			s.seat(i)
		}
	}
	return s
}

// seat adds a layer to those of the request. For All that is done once and for all.
func (s *stack[R]) seat(i int) {
	x := &s.made[i]
	if x.slot == nil {
		x.slot = s.layers[i].slot(i, terms[R]{})
		x.ask = x.slot.asked()
	}
	x.seated = true
	s.seats = append(s.seats, *x)
	s.watched = s.watched || x.watched
}

// clear forgets the request. The layers keep their seats: see choose.
func (s *stack[R]) clear() {
	s.seats.clear()
	s.charges.clear()
	s.locks.clear()
	s.charges, s.firm, s.shadows = s.charges[:0], nil, nil
	s.answers = s.answers[:0]
	s.brief, s.changed, s.asks, s.err, s.d = false, false, false, nil, Decision{}
}

// load asks the layers for their keys, costs and plans. The first error of an enforcing
// layer ends it; one of a shadow layer only takes that layer out.
func (s *stack[R]) load(r R, cost int) error {
	if cost < 0 && s.untold() {
		return errUntold
	} else if cost < 0 {
		return negativeCostError(cost)
	}
	if s.pick != nil {
		if err := s.choose(r); err != nil {
			return err
		}
	}
	for i := range s.seats {
		x := &s.seats[i]
		if x.err = x.load(r, cost); x.err != nil && !x.shadow {
			return s.fail(x)
		}
		s.asks = s.asks || x.refreshed != nil
	}
	return nil
}

// choose seats the layers that pick picks. Those of the last request keep their seats: many
// requests in a row meet the same layers.
func (s *stack[R]) choose(r R) error {
	s.which = s.pick(r, s.which[:0])
	if s.seats.are(s.which) {
		return nil
	}
	return s.change()
}

// change seats the layers that have been picked in place of those that have seats, each once: a
// layer that is charged twice for one request because its index was appended twice is never
// what was meant.
func (s *stack[R]) change() error {
	s.leave()
	for _, i := range s.which {
		if i < 0 || i >= len(s.layers) {
			s.leave()
			return fmt.Errorf("ratelimit: AllOf was told to pick layer %d of %d", i, len(s.layers))
		}
		if x := &s.made[i]; x.slot == nil || !x.seated {
			s.seat(i)
		}
	}
	return nil
}

// leave makes all layers leave their seats.
func (s *stack[R]) leave() {
	for i := range s.seats {
		s.seats[i].seated = false
	}
	s.seats, s.watched = s.seats[:0], false
}

// fail ends a decision with a layer's error. The limiters of the other layers are told
// what their own layers would have said: that says nothing about another's error, and a
// limiter that has room must not count a denial.
func (s *stack[R]) fail(x *seat[R]) error {
	if s.untold() {
		return errUntold
	}
	err := &layerError{x.layer, x.why()}
	if s.watched {
		_ = s.look(take)
	}
	if s.d = (Decision{}); x.p != nil {
		s.d.Limit = x.p.limit
	}
	return err
}

// take charges the enforcing layers, all or none, and then the shadow layers that fit. It
// starts again when an account that it has found was dropped before it was locked, and
// when it has inserted keys. Each time another decision has made progress in between,
// so it gives up only if keys are dropped on purpose, as Reset does.
func (s *stack[R]) take(r R, cost int, q request) error {
	if err := s.load(r, cost); err != nil {
		return err
	}
	if cost == 0 {
		return s.look(take)
	}
	for range maxTries {
		if !s.hold() {
			break
		}
		fits := s.weigh(q)
		if fits && s.absent && s.seats.lack() {
			s.pin()
			s.locks.unlock()
			if x := s.seats.insert(s.clock); x != nil {
				s.withdraw()
				return s.fail(x)
			}
			continue
		}
		if fits {
			s.accept(q)
		} else {
			s.refuse(q)
		}
		s.locks.unlock()
		if !fits {
			s.withdraw()
		}
		return s.err
	}
	s.withdraw()
	return errKeysGone
}

// errKeysGone ends a decision whose keys are reset, or dropped and inserted again, faster
// than it can lock their accounts.
var errKeysGone = fmt.Errorf("%w: the keys of a request kept disappearing; gave up after %d tries", ErrTableFull, maxTries)

// look answers without spending: for Peek, and for a cost of 0. No key is inserted, so it
// needs no second try once all is locked.
func (s *stack[R]) look(q request) error {
	if !s.hold() {
		return errKeysGone
	}
	s.reading = reading(s.clock)
	s.firm.estimate(s.reading, q)
	s.shadows.estimate(s.reading, peek)
	if s.asks && !q.peek {
		s.seats.expire()
	}
	s.answer(s.fits())
	s.locks.unlock()
	return s.err
}

// hold sums up what is asked of each account, and locks all accounts that there are.
func (s *stack[R]) hold() bool {
	for range maxTries {
		s.gather()
		if !s.mixed && s.locks.lock(s.charges) {
			return true
		}
		s.seats.find()
	}
	return false
}

// gather makes the charges. What enforcing layers ask of one account is one charge, so
// that it is weighed as a whole. Shadow layers have a charge each, behind the others.
func (s *stack[R]) gather() {
	s.charges, s.absent, s.mixed, s.over = s.charges[:0], false, false, false
	shadows := false
	for i := range s.seats {
		if s.seats[i].shadow {
			shadows = true
		} else {
			s.enter(i)
		}
	}
	firm := len(s.charges)
	for i := 0; shadows && i < len(s.seats); i++ {
		if s.seats[i].shadow {
			s.enter(i)
		}
	}
	s.firm, s.shadows = s.charges[:firm], s.charges[firm:]
}

// enter adds what a seat asks to the charge of its account. A layer that does not apply,
// or that cannot decide, has no charge. An account has one limit in one decision, that of its
// first charge.
func (s *stack[R]) enter(i int) {
	x := &s.seats[i]
	if x.charge = none; x.p == nil || x.err != nil {
		return
	}
	first := none
	if x.b != nil && !s.absent {
		first = s.charges.of(x.b)
	} else {
		first = s.ofKey(x)
	}
	if first != none {
		x.p = s.charges[first].p
	}
	if x.charge = first; first == none || x.shadow {
		x.charge = len(s.charges)
		s.charges = slices.Grow(s.charges, 1)[:x.charge+1]
		s.charges[x.charge].begin(x.ask, i)
	}
	c := &s.charges[x.charge]
	c.add(x.ask)
	s.absent = s.absent || x.b == nil && x.p.tracks()
	s.over = s.over || !x.shadow && c.exceeds()
}

// ofKey returns the first charge of the seat's key, or none, where not all keys are tracked.
// [Unlimited] and [Blocked] count nothing, so each of them stands for itself.
func (s *stack[R]) ofKey(x *seat[R]) int {
	if !x.p.tracks() {
		return none
	}
	for j := range s.charges {
		c := &s.charges[j]
		if c.b != nil && x.b != nil {
			if c.b == x.b {
				return j
			}
			continue
		}
		if c.p.tracks() && x.same(s.seats[c.seat].slot) {
			s.mixed = s.mixed || c.b != x.b // it was inserted between the lookups
			return j
		}
	}
	return none
}

// weigh asks the accounts of the enforcing layers for their offers, and reports whether
// all fit. The accounts are locked. Only now is the clock read, once for all of them: a
// reading from before the locks could be older than what others have recorded since.
//
// A request that can never be allowed is an error, as a cost above a limit is for [Keyed].
// It charges nothing, and no key counts it as a denial.
func (s *stack[R]) weigh(q request) bool {
	s.reading = reading(s.clock)
	if s.over {
		s.firm.estimate(s.reading, q)
		return s.fits()
	}
	for i := range s.firm {
		s.firm[i].ask(s.reading, q)
	}
	return s.fits()
}

// fits reports whether all enforcing layers allow the request, and takes note of the
// first that never can.
func (s *stack[R]) fits() bool {
	fits := true
	for i := range s.firm {
		c := &s.firm[i]
		fits = fits && c.fits()
	}
	if fits {
		return true
	}
	if c := s.firm.never(); c != nil && s.untold() {
		s.err = errUntold
	} else if c != nil {
		s.err = &layerError{s.seats[c.seat].layer, c.err()}
	}
	return false
}

// untold reports whether the caller needs only the yes or no, and no limiter is to be told. Then
// neither answers nor errors are made.
func (s *stack[R]) untold() bool { return s.brief && !s.watched }

// accept spends what all enforcing layers have offered. Each of them knows of its own
// charge only, so none of the offers has changed since it was made. Then the shadow layers
// have their say, one after the other, on what is left. The accounts are locked.
func (s *stack[R]) accept(q request) {
	for i := range s.firm {
		s.firm[i].accept(q)
	}
	for i := range s.shadows {
		s.shadows[i].try(s.reading, q)
	}
	if s.changed {
		s.seats.unpin()
	}
	s.finish(true)
}

// refuse spends nothing. The accounts that denied take note of it; not so if the request
// can never be allowed, which says nothing about the keys. What the shadow layers
// would have said is found out only if somebody is told. The accounts are locked.
func (s *stack[R]) refuse(q request) {
	if s.err == nil {
		for i := range s.firm {
			s.firm[i].refuse()
		}
	}
	if s.watched {
		q.peek = true // what a shadow says is no reason to change its key
		s.shadows.estimate(s.reading, q)
	}
	s.finish(false)
}

// finish fills in the answer, unless the caller needs only the yes or no and no limiter
// is to be told: that saves a fifth of the time of an Allow.
func (s *stack[R]) finish(allowed bool) {
	if s.asks {
		s.seats.expire()
	}
	if s.untold() {
		s.d.Allowed = allowed
	} else {
		s.answer(allowed)
	}
}

// pin keeps the accounts that are there from making room for those that are missing.
// They are locked. A pin belongs to the decision that has set it.
func (s *stack[R]) pin() {
	s.changed = true
	for i := range s.charges {
		if c := &s.charges[i]; c.b != nil && !c.b.use.isPinned() {
			c.b.use.pin()
			s.seats[c.seat].pinned = true
		}
	}
}

// withdraw takes back what pin and insert have done, after a denial: it tracks no keys.
func (s *stack[R]) withdraw() {
	if s.changed {
		s.seats.withdraw(s.clock)
	}
}

// answer adds up the answers of the enforcing layers. The accounts are locked. An error
// means never, so there is no time to retry after.
func (s *stack[R]) answer(allowed bool) {
	if s.watched {
		s.answers = slices.Grow(s.answers[:0], len(s.charges))[:len(s.charges)]
	}
	sum := tally{d: &s.d}
	sum.none()
	for i := range s.charges {
		if i >= len(s.firm) && !s.watched {
			break
		}
		var d Decision
		c := &s.charges[i]
		if c.answer(&d); i < len(s.firm) {
			sum.add(&d, c.room(d.Remaining))
		}
		if s.watched {
			s.answers[i] = d
		}
	}
	if s.d.Allowed = allowed; allowed {
		return
	}
	s.d.Delay = 0
	if s.err != nil {
		s.d.RetryAfter, s.d.Limit = 0, s.firm.never().p.limit
	}
}

// report tells each layer's limiter its own answer. An error that comes after a charge
// means that the charge has been undone.
func (s *stack[R]) report(err error) {
	if !s.watched {
		return
	}
	for i := range s.seats {
		x := &s.seats[i]
		if !x.watched || !x.loaded {
			continue
		}
		d, spent, own := s.said(x)
		if !x.shadow {
			own = err
		}
		x.report(d, spent && err == nil, own)
	}
}

// said returns what a layer has to say: its answer, whether it was charged, and its own
// error. A layer without a charge has failed before it could be asked.
func (s *stack[R]) said(x *seat[R]) (d Decision, spent bool, err error) {
	if x.charge != none && x.charge < len(s.answers) {
		c := &s.charges[x.charge]
		return s.answers[x.charge], c.spent && x.cost > 0, cmp.Or(x.why(), c.err())
	}
	if x.p != nil {
		d.Limit = x.p.limit
	}
	return d, false, x.why()
}
