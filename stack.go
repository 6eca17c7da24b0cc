package ratelimit

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"time"
	"unsafe"
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
// Keys that are not tracked are inserted between 3 and 4, if all offers fit, and then
// the decision starts again at 2: an insertion needs the lock of a shard, and that comes
// before the lock of an account.
type stack[R any] struct {
	layers []Layer[R]
	pick   func(R, []int) []int // nil: all layers
	clock  Clock

	slots   []slot[R] // by layer; nil until it is first needed
	seats   []seat[R] // the layers of this request
	which   []int     // scratch memory for pick
	watched bool      // one of the seats' limiters has an OnDecision
	brief   bool      // the caller needs only the yes or no
	changed bool      // keys have been inserted or pinned

	charges []charge   // the enforcing ones first
	answers []Decision // the accounts' own, by charge; none if nobody wants to know
	shadows int        // the index of the first charge that is a shadow layer's
	order   []*account // of the charges, each once, in the order in which they are locked

	reading int64
	err     error // why no offer can ever fit
	d       Decision
}

// seat is a slot and what it asks, side by side to spare a call.
type seat[R any] struct {
	slot[R]
	*ask
}

func newStack[R any](layers []Layer[R], pick func(R, []int) []int, clock Clock) *stack[R] {
	s := &stack[R]{layers: layers, pick: pick, clock: clock, slots: make([]slot[R], len(layers))}
	if pick == nil {
		for i := range layers {
			s.seat(i)
		}
	}
	return s
}

// seat adds a layer to those of the request.
func (s *stack[R]) seat(i int) {
	if s.slots[i] == nil {
		s.slots[i] = s.layers[i].slot(i, terms[R]{})
	}
	a := s.slots[i].asked()
	a.seated = true
	s.seats = append(s.seats, seat[R]{s.slots[i], a})
	s.watched = s.watched || a.watched
}

// clear forgets the request.
func (s *stack[R]) clear() {
	for i := range s.seats {
		s.seats[i].clear()
	}
	if s.pick != nil {
		s.seats, s.watched = s.seats[:0], false
	}
	for i := range s.charges {
		s.charges[i].clear()
	}
	clear(s.order)
	s.charges, s.answers, s.order = s.charges[:0], s.answers[:0], s.order[:0]
	s.brief, s.changed, s.err, s.d = false, false, nil, Decision{}
}

// load asks the layers for their keys, costs and plans. The first error of an enforcing
// layer ends it; one of a shadow layer only takes that layer out.
func (s *stack[R]) load(r R, cost int) error {
	if cost < 0 {
		return fmt.Errorf("%w: %d", ErrNegativeCost, cost)
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
	}
	return nil
}

// choose seats the layers that pick picks, each once.
func (s *stack[R]) choose(r R) error {
	s.which = s.pick(r, s.which[:0])
	for _, i := range s.which {
		if i < 0 || i >= len(s.layers) {
			return fmt.Errorf("ratelimit: AllOf was told to pick layer %d of %d", i, len(s.layers))
		}
		if s.slots[i] == nil || !s.slots[i].asked().seated {
			s.seat(i)
		}
	}
	return nil
}

// fail ends a decision with a layer's error. The other layers' answers are told to
// their limiters all the same.
func (s *stack[R]) fail(x *seat[R]) error {
	err := fmt.Errorf("layer %d: %w", x.layer, x.err)
	if s.watched {
		_ = s.look()
	}
	if s.d = (Decision{}); x.p != nil {
		s.d.Limit = x.p.limit
	}
	return err
}

// take charges the enforcing layers, all or none, and then the shadow layers that fit.
func (s *stack[R]) take(r R, cost int, q request) error {
	if err := s.load(r, cost); err != nil {
		return err
	}
	if cost == 0 {
		return s.look()
	}
	for range maxTries {
		if !s.hold() {
			break
		}
		fits := s.weigh(q)
		if fits && s.wanting() {
			s.pin()
			s.unlock()
			if err := s.insert(); err != nil {
				return err
			}
			continue
		}
		s.conclude(fits, q)
		s.unlock()
		if !fits {
			s.withdraw()
		}
		return s.err
	}
	s.withdraw()
	return errRestless
}

// errRestless ends a decision whose keys are reset, or dropped and inserted again, faster
// than it can lock their accounts.
var errRestless = fmt.Errorf("%w: the keys of a request kept disappearing; gave up after %d tries", ErrTableFull, maxTries)

// wait takes the cost as soon as that is possible, and sleeps out the delay.
func (s *stack[R]) wait(ctx context.Context, r R, cost int) error {
	for {
		left, err := timeLeft(ctx)
		if err != nil {
			return err
		}
		s.clear()
		if err := s.take(r, cost, wait(left)); err != nil {
			return err
		}
		if s.d.Allowed {
			return s.sleepOut(ctx)
		}
		if wait := s.longest(); wait > left {
			return tooLate(cost, wait-left, left, s.d.Limit)
		}
		if err := sleep(ctx, s.d.RetryAfter, func() {}); err != nil {
			return err
		}
	}
}

// sleepOut sleeps for the delay. If the context ends first, all that was charged is
// taken out as if it had never been: while it slept, the charges were held.
func (s *stack[R]) sleepOut(ctx context.Context) error {
	if s.d.Delay == 0 {
		return nil
	}
	charged := s.charged()
	err := sleep(ctx, s.d.Delay, func() {
		for _, x := range charged {
			x.b.undo(s.clock, x.sp)
		}
	})
	if err == nil {
		for _, x := range charged {
			x.b.release(x.sp)
		}
	}
	return err
}

// delays reports whether an enforcing layer delays what it lets through.
func (s *stack[R]) delays() bool {
	for i := range s.charges[:s.shadows] {
		if c := &s.charges[i]; c.o.at > c.m.now {
			return true
		}
	}
	return false
}

// longest returns how long the slowest enforcing layer takes to let the cost through:
// until it has room, and the delay in its queue.
func (s *stack[R]) longest() (wait time.Duration) {
	for i := range s.charges[:s.shadows] {
		wait = max(wait, s.charges[i].wait())
	}
	return wait
}

// look answers without changing anything: for Peek, and for a cost of 0.
func (s *stack[R]) look() error {
	if !s.hold() {
		return errRestless
	}
	s.reading = reading(s.clock)
	for i := range s.charges {
		s.charges[i].estimate(s.reading, take)
	}
	s.d.Allowed = s.fits()
	s.answer()
	s.unlock()
	return s.err
}

// hold sums up what is asked of each account, and locks all accounts that there are.
func (s *stack[R]) hold() bool {
	for range maxTries {
		s.gather()
		if s.lock() {
			return true
		}
		for i := range s.seats {
			s.seats[i].find()
		}
	}
	return false
}

// gather makes the charges. What enforcing layers ask of one account is one charge, so
// that it is weighed as a whole. Shadow layers have a charge each.
func (s *stack[R]) gather() {
	s.charges = s.charges[:0]
	for i := range s.seats {
		if !s.seats[i].shadow {
			s.enter(i)
		}
	}
	s.shadows = len(s.charges)
	for i := range s.seats {
		if s.seats[i].shadow {
			s.enter(i)
		}
	}
}

// enter adds what a seat asks to the charge of its account.
func (s *stack[R]) enter(i int) {
	x := &s.seats[i]
	if x.charge = none; x.p == nil || x.err != nil {
		return
	}
	if !x.shadow {
		x.charge = s.meets(x)
	}
	if x.charge == none {
		x.charge = len(s.charges)
		s.charges = slices.Grow(s.charges, 1)[:x.charge+1]
		s.charges[x.charge].begin(x.ask, i)
	}
	s.charges[x.charge].add(x.ask)
}

// meets returns the charge of the same account, if there is one.
func (s *stack[R]) meets(x *seat[R]) int {
	for j := range s.charges {
		c := &s.charges[j]
		if c.b == x.b && (x.b != nil || x.same(s.seats[c.seat].slot)) {
			return j
		}
	}
	return none
}

// lock locks all accounts, or none if one of them has been dropped. All decisions lock
// accounts in the order of their addresses, which Go's collector does not change. So two
// of them never wait for each other, and an account that two charges share is locked once.
func (s *stack[R]) lock() bool {
	s.order = s.order[:0]
	for i := range s.charges {
		if b := s.charges[i].b; b != nil {
			s.order = append(s.order, b)
		}
	}
	if len(s.order) > 1 {
		slices.SortFunc(s.order, byAddress)
		s.order = slices.Compact(s.order)
	}
	for i, b := range s.order {
		if b.mu.Lock(); b.plan == nil {
			s.order = s.order[:i+1]
			s.unlock()
			return false
		}
	}
	return true
}

func byAddress(a, b *account) int {
	return cmp.Compare(uintptr(unsafe.Pointer(a)), uintptr(unsafe.Pointer(b)))
}

func (s *stack[R]) unlock() {
	for _, b := range s.order {
		b.mu.Unlock()
	}
}

// weigh asks for the offers of the enforcing layers, and reports whether all fit. The
// accounts are locked. The clock is read now, so that all decide as of one instant.
func (s *stack[R]) weigh(q request) bool {
	s.reading = reading(s.clock)
	for i := range s.charges[:s.shadows] {
		s.charges[i].ask(s.reading, q)
	}
	return s.fits()
}

// fits reports whether all enforcing layers allow the request, and takes note of the
// first that never can.
func (s *stack[R]) fits() bool {
	fits := true
	for i := range s.charges[:s.shadows] {
		c := &s.charges[i]
		if fits = fits && c.fits(); c.err != nil && s.err == nil {
			s.err = fmt.Errorf("layer %d: %w", s.seats[c.seat].layer, c.err)
		}
	}
	return fits
}

// conclude spends all, or nothing. The accounts are locked.
func (s *stack[R]) conclude(fits bool, q request) {
	enforcing, shadows := s.charges[:s.shadows], s.charges[s.shadows:]
	switch {
	case fits:
		if q.undo == undoAll && !s.delays() {
			q.undo = undoNothing
		}
		for i := range enforcing {
			enforcing[i].accept(q)
		}
		for i := range shadows {
			shadows[i].try(s.reading, q)
		}
		s.unpin()
	case s.err == nil:
		for i := range enforcing {
			enforcing[i].refuse()
		}
	}
	if !fits && s.watched {
		for i := range shadows {
			shadows[i].estimate(s.reading, q)
		}
	}
	s.expire()
	if s.d.Allowed = fits; !s.brief || s.watched {
		s.answer()
	}
}

// expire makes accounts ask for their limits again if they were told to while this
// decision was under way with what LimitFor had said before. They are locked.
func (s *stack[R]) expire() {
	for i := range s.seats {
		if a := s.seats[i].ask; a.b != nil && a.outdated() {
			a.b.expire()
		}
	}
}

// wanting reports whether keys have to be inserted for all to be charged.
func (s *stack[R]) wanting() bool {
	for i := range s.seats {
		if s.seats[i].wants() {
			return true
		}
	}
	return false
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

// unpin ends this decision's pins: what it has inserted stays. The accounts are locked.
func (s *stack[R]) unpin() {
	if !s.changed {
		return
	}
	for i := range s.seats {
		if a := s.seats[i].ask; a.inserted || a.pinned {
			a.b.use.unpin()
			a.inserted, a.pinned = false, false
		}
	}
}

// insert adds the keys that are missing. A shadow layer whose key finds no room is left
// out of the decision.
func (s *stack[R]) insert() error {
	for i := range s.seats {
		x := &s.seats[i]
		if !x.wants() {
			continue
		}
		if x.err = x.insert(s.clock); x.err != nil && !x.shadow {
			s.withdraw()
			return s.fail(x)
		}
	}
	return nil
}

// withdraw undoes pin and insert after a denial, which tracks no new keys.
func (s *stack[R]) withdraw() {
	if !s.changed {
		return
	}
	for i := range s.seats {
		s.seats[i].withdraw(s.clock)
	}
}

// answer fills in each charge's own answer, and adds those of the enforcing layers up.
// The accounts are locked.
func (s *stack[R]) answer() {
	fits, sum := s.d.Allowed, tally{d: &s.d}
	sum.none()
	s.answers = slices.Grow(s.answers[:0], len(s.charges))[:len(s.charges)]
	for i := range s.charges {
		c, d := &s.charges[i], &s.answers[i]
		*d = Decision{}
		if c.answer(d); i < s.shadows {
			sum.add(d, c.room(d.Remaining))
		}
	}
	if s.d.Allowed = fits; fits {
		return
	}
	s.d.Delay = 0
	if s.err != nil {
		s.d.RetryAfter, s.d.Limit = 0, s.never()
	}
}

// never returns the limit of the first layer that can never allow the request.
func (s *stack[R]) never() Limit {
	for i := range s.charges {
		if s.charges[i].err != nil {
			return s.charges[i].p.limit
		}
	}
	return Limit{}
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
		var d Decision
		var c charge
		if x.charge != none && x.charge < len(s.answers) {
			c, d = s.charges[x.charge], s.answers[x.charge]
		} else if x.p != nil {
			d.Limit = x.p.limit
		}
		told := err
		if x.shadow {
			told = cmp.Or(x.err, c.err)
		}
		x.report(d, c.spent && x.cost > 0 && err == nil, told)
	}
}

// settler returns how to settle what has been charged.
func (s *stack[R]) settler(cost int) func(actual int) error {
	if cost == 0 {
		return s.debits()
	}
	charged := s.charged()
	return func(actual int) error {
		for i := range charged {
			charged[i].settle(s.clock, int64(actual))
		}
		return nil
	}
}

// charged returns what is needed to settle what has been charged.
func (s *stack[R]) charged() (charged []settlement) {
	for i := range s.charges {
		if c := &s.charges[i]; c.spent {
			charged = append(charged, settlement{c.b, c.o.spending(c.cost), c.shares, c.own})
		}
	}
	return charged
}

// debits returns how to charge the layers of the caller's cost, for a reservation of
// cost 0 that turns out to have cost more.
func (s *stack[R]) debits() func(actual int) error {
	var debits []func(int) error
	for i := range s.seats {
		if x := &s.seats[i]; x.p != nil && !x.own && !x.shadow {
			debits = append(debits, x.debit())
		}
	}
	return func(actual int) error {
		var errs []error
		for _, debit := range debits {
			errs = append(errs, debit(actual))
		}
		return errors.Join(errs...)
	}
}
