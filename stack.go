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
)

// stack is the working memory of one decision over several layers. One goroutine uses it at a time. Between decisions it refers to no key
// and no account, so that its pool keeps no user data alive.
//
// A decision goes through these steps. User code runs only in the first and the last, and no lock is held then.
//
//  1. load: each layer determines its account, its cost and its plan.
//  2. lock: the stack adds up the costs of layers with the same account, and locks all accounts in the order
//     that every decision uses.
//  3. check: each account makes an offer. Nothing is spent yet. An account that all requests share is locked only now,
//     makes its offer last, and is unlocked first, because all other decisions wait for it.
//  4. commit or refuse: if the offers of all enforcing layers fit, each account spends its offer. Then each shadow
//     layer is checked in turn, and spends if its offer fits. Otherwise nothing is spent.
//  5. report: each limiter receives its own layer's decision.
//
// All accounts stay locked from 3 to 4, so no other decision sees a state in between: a denial charges nothing, not even for an instant.
// An account is unlocked only after all are locked and it has spent. So decisions take effect one after the other.
//
// If all offers fit, keys that are not tracked are inserted before 4, and the decision starts again at 2. An insertion may lock an account
// of any address, so no account may be locked during it. All accounts of the request are pinned until the decision is over. Otherwise its
// keys could evict each other. A denied request inserts nothing, so a denied client cannot fill a table.
//
// A layer is the user's configuration. A member is the layer in the decision at hand, with its key, account, plan and cost. A charge is the
// decision's cost to one account: the sum over all members with the same key of the same limiter.
type stack[R any] struct {
	layers []layer[R]
	places []int                // of layers in Limits
	pick   func(R, []int) []int // nil: all layers
	clock  Clock

	// A member is made when its layer is first used: AllOf may have a thousand layers, and a request may use three.
	made    []*member[R] // by layer
	members []*member[R] // this request's layers; with AllOf, between two requests, the layers of the last request
	which   []int        // scratch memory for pick
	watched bool         // an observer receives the decisions of a member
	brief   bool         // the caller needs only the yes or no
	every   bool         // the caller needs the decision of each layer

	// The results of load and lock.
	asked   bool // a LimitFor was called
	absent  bool // the key of a member is not tracked
	mixed   bool // two members with the same key disagree whether it is tracked
	exceeds bool // the enforcing layers charge an account more than it can ever allow

	changed bool // keys have been inserted or pinned, which withdraw takes back

	// The charges of the enforcing layers come first, so that firm and shadows are the two
	// parts of one slice. They are decided before any shadow is.
	charges []charge   // all of them
	firm    []charge   // the charges of the enforcing layers
	shadows []charge   // the charges of the shadow layers
	answers []Decision // the accounts' own, by charge; none without an observer
	locks   locks      // of the charges' accounts

	reading int64    // of the clock, before the locks: one for the whole decision
	err     error    // why no offer can ever fit
	d       Decision // the answer of the stack

	takes  bool        // requests take answers themselves
	wanted bool        // this one wants them
	taker  answerTaker // this one, if it takes answers

	follower follower // this one, if it follows the spending of its keys

	// The charge of the one account that all requests share is checked, committed and unlocked by itself if other
	// decisions have waited for the account lately: see unlockCommon. Without contention that takes more time, not less.
	common  bool // there is such an account
	crowded int  // the number of further decisions for which its charge is handled so
	late    int  // the charge in this decision if it is handled so, else none
	held    bool // the account is locked
}

// answerTaker is implemented by requests of a stack that take the decisions of all layers themselves, as requests of package
// policy do. It takes half the time of an observer on each layer.
type answerTaker interface {
	// WantsAnswers reports whether the request takes the decisions, given the result of the whole. It is called under
	// locks, so it must be quick and must not call the limiter.
	WantsAnswers(allowed bool) bool

	// TakeAnswer receives the decision of a layer that applies, whether the layer was charged, and the error of the
	// layer or of the whole decision. It is called after the decision, under no lock. It must not keep d.
	TakeAnswer(layer int, d *Decision, spent bool, err error)
}

func newStack[R any](layers []layer[R], places []int, pick func(R, []int) []int) *stack[R] {
	s := &stack[R]{layers: layers, places: places, pick: pick, clock: layers[0].clock, made: make([]*member[R], len(layers))}
	s.common, s.crowded = haveCommon(layers), crowdedFor
	_, s.takes = any(*new(R)).(answerTaker)
	if pick == nil { // then all layers are members, once and for all
		for i := range layers {
			s.add(i)
		}
	}
	return s
}

// add makes a layer one of the request. Its member is made once and kept.
func (s *stack[R]) add(layer int) {
	m := s.made[layer]
	if m == nil {
		y := s.layers[layer]
		m = &member[R]{layer: y, index: layer, key: y.newKey(), watched: y.hasObserver || y.tell != nil}
		s.made[layer] = m
	}
	m.picked = true
	s.members = append(s.members, m)
	s.watched = s.watched || m.watched
}

// clear forgets the request, so that a stack which waits in the pool keeps no key and no
// account alive. The layers stay members: see choose.
func (s *stack[R]) clear() {
	for _, m := range s.members {
		m.clear()
	}
	for i := range s.charges {
		s.charges[i].clear()
	}
	s.locks.clear()
	s.charges, s.firm, s.shadows = s.charges[:0], nil, nil
	s.answers = s.answers[:0]
	if s.taker != nil {
		s.taker, s.wanted, s.follower = nil, false, nil
	}
	s.brief, s.every, s.changed, s.asked, s.err, s.d = false, false, false, false, nil, Decision{}
}

// yesOrNo reports whether the result of the whole is all that anyone receives. Then neither answers nor errors are
// made: a client who is refused at any rate must not cost more than one who is let in.
func (s *stack[R]) yesOrNo() bool { return s.brief && !s.watched }

// ask sets wanted, by the result of the taker's WantsAnswers, if there is a taker.
func (s *stack[R]) ask(allowed bool) {
	if s.taker != nil {
		s.wanted = s.taker.WantsAnswers(allowed)
	}
}

// observed reports whether anyone receives the per-layer decisions.
func (s *stack[R]) observed() bool { return s.watched || s.wanted || s.every }

// load determines the layers' keys, costs and plans. The first error of an enforcing layer ends it; one of a shadow layer only
// takes that layer out. It runs the functions of the user, so no lock is held, and its results may be outdated when the
// accounts are locked: then lock looks them up again, and a limit that has changed is taken over by check.
func (s *stack[R]) load(r R, cost int) error {
	if cost < 0 && s.yesOrNo() {
		return errDiscarded
	} else if cost < 0 {
		return negativeCostError(cost)
	}
	if s.pick != nil {
		if err := s.choose(r); err != nil {
			return err
		}
	}
	for _, m := range s.members {
		if m.err = m.key.load(m, r, cost); m.err != nil && !m.shadow {
			return s.fail(m)
		}
		s.asked = s.asked || m.refreshed != nil
	}
	return nil
}

// choose makes members of the layers that pick picks. Many requests in a row meet the same layers, so the layers of the last
// request stay members if they are picked again.
func (s *stack[R]) choose(r R) error {
	if s.takes {
		s.taker, _ = any(r).(answerTaker)
		if f, ok := any(r).(follower); ok && f.Following() {
			s.follower = f
		}
	}
	s.which = s.pick(r, s.which[:0])
	if s.areMembers(s.which) {
		return nil
	}
	s.leave()
	for _, i := range s.which {
		if i < 0 || i >= len(s.layers) {
			s.leave()
			return fmt.Errorf("ratelimit: pick of AllOf returned layer %d of %d", i, len(s.layers))
		}
		// A layer that is charged twice for one request, because its index was appended twice, is never intended.
		if m := s.made[i]; m == nil || !m.picked {
			s.add(i)
		}
	}
	return nil
}

// areMembers reports whether the members stand for these layers, in their order. The order counts: of layers that bind alike,
// the first gives the Decision its Limit.
func (s *stack[R]) areMembers(layers []int) bool {
	if len(s.members) != len(layers) {
		return false
	}
	for i, m := range s.members {
		if m.index != layers[i] {
			return false
		}
	}
	return true
}

// leave makes the request have no layers.
func (s *stack[R]) leave() {
	for _, m := range s.members {
		m.picked = false
	}
	s.members, s.watched = s.members[:0], false
}

// fail ends a decision with a layer's error. The limiters of the other layers receive the decisions that their own layers would
// have made: these do not depend on another layer's error, and a limiter that has room must not count a denial. Such a report
// changes nothing, so the keys stay under their limits.
func (s *stack[R]) fail(m *member[R]) error {
	if s.yesOrNo() {
		return errDiscarded
	}
	err := &layerError{layer: m.index, err: m.why()}
	if s.ask(false); s.observed() {
		_ = s.preview(peekRequest)
	}
	if s.d = (Decision{}); m.p != nil {
		s.d.Limit = m.p.limit
	}
	return err
}

// take charges the enforcing layers, all or none, and then the shadow layers that fit. It starts again when an account that it
// has found was dropped before it was locked, and when it has inserted keys. Each time another decision has made progress in
// between, so it gives up only if keys are dropped on purpose, as Reset does.
//
// After an insertion all is checked anew. The locks were released during it, so other decisions may have spent the offered
// budget.
func (s *stack[R]) take(r R, cost int, q request) error {
	if err := s.load(r, cost); err != nil {
		return err
	}
	if cost == 0 {
		return s.preview(takeRequest)
	}
	if !q.ends {
		if err := s.endless(); err != nil {
			return err
		}
	}
	for range maxTries {
		if !s.lock(true) {
			break
		}
		fits, gone := s.check(q)
		if gone {
			s.locks.unlock()
			s.find()
			continue
		}
		if fits && s.absent && s.lacks() {
			s.pin()
			s.locks.unlock()
			if m := s.insert(); m != nil {
				s.withdraw()
				return s.fail(m)
			}
			continue
		}
		if fits {
			s.commit(q)
		} else {
			s.refuse(q)
		}
		s.locks.unlock()
		if !fits {
			s.withdraw()
		} else if s.asked {
			s.adopted()
		}
		return s.err
	}
	s.withdraw()
	s.ask(false)
	return errKeysGone
}

// endless returns the error of an enforcing layer under Concurrent, whose units a call without an end cannot give back. A shadow layer
// has the error for itself.
func (s *stack[R]) endless() error {
	q := request{brief: s.yesOrNo()}
	for _, m := range s.members {
		if m.p == nil || m.err != nil {
			continue
		}
		if m.err = m.p.endless(m.amount, &q); m.err != nil && !m.shadow {
			return s.fail(m)
		}
	}
	return nil
}

// errKeysGone ends a decision whose keys are reset, or dropped and inserted again, faster
// than it can lock their accounts.
var errKeysGone = fmt.Errorf("%w: keys of a request were dropped while it was decided, %d times in a row; Options.MaxKeys has no room for the keys of all requests at once", ErrTableFull, maxTries)

// preview answers without a charge: for Peek, and for a cost of 0. No key is inserted, so it needs no second try once all is
// locked. A cost of 0 puts keys under a changed limit, as Take does; the keys of shadow layers stay under their present limit,
// because the result of a shadow promises nothing.
func (s *stack[R]) preview(q request) error {
	if !s.lock(false) {
		s.ask(false)
		return errKeysGone
	}
	for i := range s.firm {
		s.firm[i].preview(s.reading, &q)
	}
	for i := range s.shadows {
		s.shadows[i].preview(s.reading, &peekRequest)
	}
	if s.asked && !q.peek {
		s.markStale()
	}
	fits := s.allFit()
	s.ask(fits)
	s.answer(fits)
	s.locks.unlock()
	return s.err
}

// lock sums up the costs of each account, and locks all accounts that exist. An account that was dropped since it was found is
// looked up again. It reports false if that happens too often; then nothing is locked. It reads the clock.
//
// All accounts are looked up again, not only the dropped ones. Two members with the same key must have the same account:
// otherwise they would be two charges, and one budget would be spent twice.
//
// The account that all requests share may be left to checkLate.
func (s *stack[R]) lock(leave bool) bool {
	for range maxTries {
		s.sum()
		if !leave || s.exceeds {
			s.late = none
		}
		s.reading = reading(s.clock)
		if !s.mixed {
			locked, waited := s.locks.lock(s.charges, s.late)
			if waited {
				s.crowded = crowdedFor
			}
			if locked {
				return true
			}
		}
		s.find()
	}
	return false
}

// find looks all accounts up again.
func (s *stack[R]) find() {
	for _, m := range s.members {
		m.find()
	}
}

// sum makes the charges of the members: first the charges of the enforcing layers, and behind them the charges of the shadows.
// So firm and shadows are two parts of one slice, and a decision allocates nothing for them.
func (s *stack[R]) sum() {
	s.charges, s.absent, s.mixed, s.exceeds, s.late, s.held = s.charges[:0], false, false, false, none, false
	shadows := false
	for i, m := range s.members {
		if m.shadow {
			shadows = true
		} else {
			s.enter(i, m)
		}
	}
	firm := len(s.charges)
	if shadows {
		for i, m := range s.members {
			if m.shadow {
				s.enter(i, m)
			}
		}
	}
	s.firm, s.shadows = s.charges[:firm], s.charges[firm:]
}

// enter adds a member's cost to the charge of its account. A layer that does not apply, or that cannot decide, has no charge.
// An account has one limit in one decision, the limit of its first charge: a key has one state, which cannot be counted under
// two limits at once.
//
// A shadow never adds to an enforcing layer's charge. It has one of its own for the same account, which is decided later, on
// the remaining budget.
func (s *stack[R]) enter(i int, m *member[R]) {
	if m.charge = none; m.p == nil || m.err != nil {
		return
	}
	first := s.chargeOf(m)
	if first != none {
		m.p = s.charges[first].p
	}
	if m.charge = first; first == none || m.shadow {
		m.charge = len(s.charges)
		s.charges = slices.Grow(s.charges, 1)[:m.charge+1]
		s.charges[m.charge].begin(m.a, m.p, &m.unseen, i)
		s.charges[m.charge].shared = m.shared
		if m.shared && s.common && s.crowded > 0 {
			s.late = m.charge
		}
	}
	c := &s.charges[m.charge]
	c.add(int64(m.amount), m.cost != nil)
	s.absent = s.absent || m.a == nil && m.p.tracks()
	s.exceeds = s.exceeds || !m.shadow && c.exceeds()
}

// chargeOf returns the first charge of the member's key, or none. Only layers of one limiter can meet at a key. [Unlimited] and
// [Blocked] count nothing, so each of them stands for itself.
//
// Another call may insert a key between the lookups of two members: then one of them has the account and the other does
// not, which is mixed. All are looked up again until they agree.
func (s *stack[R]) chargeOf(m *member[R]) int {
	if !m.meets || !m.p.tracks() {
		return none
	}
	for i := range s.charges {
		c := &s.charges[i]
		if c.p.tracks() && m.key.same(s.members[c.first].key) {
			s.mixed = s.mixed || c.a != m.a
			return i
		}
	}
	return none
}

// check gets the offers of the enforcing layers' accounts, and reports whether all fit. The accounts are locked. The clock was
// read once for all of them, before the locks, so that others do not wait for that: an account that has recorded a later
// reading since counts it as that one.
//
// A request that can never be allowed is an error, as a cost above a limit is for [Keyed]. It charges nothing, and no key
// counts it as a denial.
//
// The account that all requests share is locked and checked last. If it was dropped, gone is true, and all is to be begun
// again. If another account has denied the request and the caller gets only the yes or no, it is not locked at all.
func (s *stack[R]) check(q request) (fits, gone bool) {
	if s.late != none {
		return s.checkLate(q)
	}
	for i := range s.firm {
		if s.exceeds {
			s.firm[i].preview(s.reading, &q)
		} else {
			s.firm[i].check(s.reading, &q)
		}
	}
	return s.allFit(), false
}

// checkLate is check where the account that all requests share is locked after the others were checked.
func (s *stack[R]) checkLate(q request) (fits, gone bool) {
	fits = true
	for i := range s.firm {
		if i != s.late {
			s.firm[i].check(s.reading, &q)
			fits = fits && s.firm[i].fits()
		}
	}
	c := &s.firm[s.late]
	if !fits && s.yesOrNo() && s.taker == nil && !s.asked {
		c.skip(s.reading)
		return s.allFit(), false
	}
	if c.a != nil {
		kept, waited := c.a.lockCommon()
		if s.crowded--; waited {
			s.crowded = crowdedFor
		}
		if !kept {
			return false, true
		}
		s.locks = append(s.locks, c.a)
		s.held = true
	}
	if c.check(s.reading, &q); fits && c.fits() {
		return true, false
	}
	return s.allFit(), false
}

// allFit reports whether all enforcing layers allow the request, and sets the error of the first that never can. That error is
// the result, even if other layers deny the request only for now: no retry could succeed.
func (s *stack[R]) allFit() bool {
	fits := true
	for i := range s.firm {
		fits = fits && s.firm[i].fits()
	}
	if fits {
		return true
	}
	if c := s.never(); c != nil && s.yesOrNo() {
		s.err = errDiscarded
	} else if c != nil {
		s.err = s.exceedsError(c)
	}
	return false
}

// never returns the first charge that an enforcing layer's account can never allow, or nil.
func (s *stack[R]) never() *charge {
	for i := range s.firm {
		if s.firm[i].never {
			return &s.firm[i]
		}
	}
	return nil
}

// exceedsError is the error of the first charge that can never be allowed. It knows of the others.
func (s *stack[R]) exceedsError(first *charge) error {
	e := &layerError{layer: s.members[first.first].index, err: first.err(), over: s.overrun(first)}
	for i := range s.firm {
		if c := &s.firm[i]; c.never && c != first {
			e.more = append(e.more, s.overrun(c))
		}
	}
	return e
}

// overrun returns the layer and the cost of a charge that can never be allowed.
func (s *stack[R]) overrun(c *charge) overrun {
	cost := min(c.cost, math.MaxInt)
	if c.overflowed {
		cost = math.MaxInt
	}
	return overrun{s.places[s.members[c.first].index], int(cost)}
}

// commit spends the offers of all enforcing layers. Each account has one charge of them, and has been locked since it made the
// offer, so the offer holds. Then the shadow layers are checked and charged one after the other, on the remaining budget: two
// of them may meet at one account. The accounts are locked.
func (s *stack[R]) commit(q request) {
	if q.delay && !s.delayed() {
		q.keep = meter.Final
	}
	if s.late != none {
		s.commitLate(q.keep)
	} else {
		for i := range s.firm {
			s.firm[i].commit(q.keep)
			s.follow(&s.firm[i])
		}
	}
	for i := range s.shadows {
		s.shadows[i].try(s.reading, &q)
		s.follow(&s.shadows[i])
	}
	if s.changed {
		s.unpin()
	}
	s.ask(true)
	s.finish(true)
}

// follow reports a charge that was spent to the request's follower. The account is locked.
func (s *stack[R]) follow(c *charge) {
	if s.follower == nil || !c.spent || !s.follower.Follows(s.members[c.first].index) {
		return
	}
	before := max(0, c.p.spent(c.a.State, c.m.Now)-c.cost)
	s.follower.Charged(s.members[c.first].index, before, unknownOpen)
}

// commitLate commits the charges of the enforcing layers, first the charge of the account that all requests share.
func (s *stack[R]) commitLate(keep meter.Keep) {
	s.firm[s.late].commit(keep)
	s.follow(&s.firm[s.late])
	s.unlockCommon()
	for i := range s.firm {
		if i != s.late {
			s.firm[i].commit(keep)
			s.follow(&s.firm[i])
		}
	}
}

// delayed reports whether a leaky bucket delays the work.
func (s *stack[R]) delayed() bool {
	for i := range s.firm {
		if c := &s.firm[i]; c.o.At > c.m.Now {
			return true
		}
	}
	return false
}

// refuse spends nothing. The accounts that denied record it, because eviction keeps throttled keys longer, but not if the
// request can never be allowed: that error does not depend on the keys' states. The results of shadow layers are computed only
// for observers. The accounts are locked.
func (s *stack[R]) refuse(q request) {
	if s.err == nil {
		for i := range s.firm {
			s.firm[i].refuse()
		}
	}
	s.unlockCommon()
	if s.ask(false); s.observed() {
		q.peek = true // the result of a shadow is no reason to change its key
		for i := range s.shadows {
			s.shadows[i].preview(s.reading, &q)
		}
	}
	s.finish(false)
}

// finish fills in the answer. If the caller needs only the yes or no, and nothing is observed, it fills in just that: an
// Allow takes a fifth less time.
func (s *stack[R]) finish(allowed bool) {
	if s.asked {
		s.markStale()
	}
	if s.brief && !s.observed() {
		s.d.Allowed = allowed
	} else {
		s.answer(allowed)
	}
}

// adopted drops the plans of LimitFor's that the accounts are under from now on. No account is locked.
func (s *stack[R]) adopted() {
	for _, m := range s.members {
		if m.refreshed != nil && m.a != nil && m.amount > 0 {
			m.key.adopted(m.p)
		}
	}
}

// markStale makes accounts look up their limits again if Refresh was called while this decision was using an earlier result of
// LimitFor: Refresh may have found no account yet. The accounts are locked.
func (s *stack[R]) markStale() {
	for _, m := range s.members {
		if m.a != nil && m.outdated() {
			m.a.markStale()
		}
	}
}

// pin keeps the existing accounts from making room for the missing ones. They are locked. A pin belongs to the decision that
// has set it: an account that another one has pinned is left alone, and if it goes, lock finds that and looks it up again.
func (s *stack[R]) pin() {
	s.changed = true
	for i := range s.charges {
		if c := &s.charges[i]; c.a != nil && !c.a.use.isPinned() {
			c.a.use.pin()
			s.members[c.first].pinned = true
		}
	}
}

// unpin ends this decision's pins: inserted keys stay. The accounts are locked.
func (s *stack[R]) unpin() {
	for _, m := range s.members {
		if m.inserted || m.pinned {
			m.a.use.unpin()
			m.inserted, m.pinned = false, false
		}
	}
}

// lacks reports whether keys have to be inserted for all layers to be charged.
func (s *stack[R]) lacks() bool {
	for _, m := range s.members {
		if m.lacks() {
			return true
		}
	}
	return false
}

// insert adds the keys that are missing, and returns the first enforcing layer that found
// no room. A shadow layer whose key finds none is left out of the decision: it never denies.
// No account is locked, because an insertion may wait for one of any address.
func (s *stack[R]) insert() *member[R] {
	for _, m := range s.members {
		if !m.lacks() {
			continue
		}
		if m.insert(s.clock); m.err != nil && !m.shadow {
			return m
		}
	}
	return nil
}

// withdraw undoes pin and insert after a denial: a denial tracks no keys. A key that another decision has spent from in the
// meantime stays. No account is locked, because to remove a key locks its account.
func (s *stack[R]) withdraw() {
	if !s.changed {
		return
	}
	for _, m := range s.members {
		m.withdraw(s.clock)
	}
}

// answer adds up the decisions of the enforcing layers, and keeps each account's own for observers. The accounts are locked:
// Remaining and ResetAfter are read from states as the decision has left them. An error means never, so there is no time to
// retry after.
func (s *stack[R]) answer(allowed bool) {
	if s.observed() {
		s.answers = slices.Grow(s.answers[:0], len(s.charges))[:len(s.charges)]
	}
	sum := sumOf(&s.d)
	for i := range s.charges {
		if i >= len(s.firm) && !s.observed() {
			break
		}
		var d Decision
		c := &s.charges[i]
		if c.decision(&d); i < len(s.firm) {
			room, alone := c.room(d.Remaining), d.NextAfter // a copy of d would cost 2 % of a decision
			if room == 0 && c.own+c.shares != 1 {
				d.NextAfter = c.next()
			}
			sum.Add((*merge.Decision[Limit])(&d), room)
			d.NextAfter = alone
		}
		if s.observed() {
			s.answers[i] = d
		}
	}
	if s.d.Allowed = allowed; allowed {
		return
	}
	s.d.Delay = 0
	if s.err != nil {
		s.d.RetryAfter, s.d.Limit = 0, s.never().p.limit
	}
}

// report passes each layer's limiter its own decision, or passes the request all of them. An error that comes after a charge
// means that the charge has been given back. It is short, so that the compiler inlines it.
func (s *stack[R]) report(ctx context.Context, r R, err error) {
	if s.observed() {
		s.reportAll(ctx, r, err)
	}
}

// reportAll is report for a decision that is observed. No lock is held, so observers may call the limiters.
func (s *stack[R]) reportAll(ctx context.Context, r R, err error) {
	for _, m := range s.members {
		if !m.loaded || !m.watched && s.taker == nil {
			continue
		}
		d, spent, own := s.result(m)
		if !m.shadow {
			own = err
		}
		spent = spent && err == nil
		if m.watched {
			m.report(ctx, r, *d, spent, own)
		}
		if s.taker != nil {
			s.taker.TakeAnswer(m.index, d, spent, own)
		}
	}
}

// result returns a layer's decision, whether it was charged, and its own error. A layer without a charge failed
// before its account was found.
func (s *stack[R]) result(m *member[R]) (d *Decision, spent bool, err error) {
	if m.charge != none && m.charge < len(s.answers) {
		c := &s.charges[m.charge]
		return &s.answers[m.charge], c.spent && m.amount > 0, cmp.Or(m.why(), c.err())
	}
	d = new(Decision)
	if m.p != nil {
		d.Limit = m.p.limit
	}
	return d, false, m.why()
}

// wait returns how long the slowest of the accounts takes to let the cost through: until
// it has room, and the delay in its queue. A Wait whose deadline is before that fails at once.
func (s *stack[R]) wait() time.Duration {
	var longest time.Duration
	for i := range s.firm {
		longest = max(longest, s.firm[i].wait())
	}
	return longest
}

// slowest returns the charge that denies the cost for the longest time.
func (s *stack[R]) slowest() *charge {
	c := &s.firm[0]
	for i := range s.firm {
		if x := &s.firm[i]; between(x.m.Reading, x.o.Retry) > between(c.m.Reading, c.o.Retry) {
			c = x
		}
	}
	return c
}

// reservation returns the charges of the decision. It keeps no more of the stack than that, because the stack goes back to its
// pool and serves other requests. Only layers with an Actual read the request again, when it is settled.
func (s *stack[R]) reservation(r R, cost int) *Reservation {
	switch {
	case !s.d.Allowed:
		return NewReservation(s.d, nil)
	case cost == 0:
		return NewReservation(s.d, s.debit(func(actual func(R) int) func() int { return func() int { return actual(r) } }))
	}
	x := s.charged()
	for _, m := range s.members {
		if m.actual == nil || m.charge == none || !s.charges[m.charge].spent {
			continue
		}
		spent := 0 // the index of the charge's settlement
		for i := range m.charge {
			if s.charges[i].spent {
				spent++
			}
		}
		at, f := &x.spent[spent], m.actual
		if m.cost != nil {
			at.own -= int64(m.amount)
		} else {
			at.shares--
		}
		x.actuals = append(x.actuals, actual{spent, m.index, func() int { return f(r) }})
	}
	return &x.Reservation
}

// charged returns the charges that were spent.
func (s *stack[R]) charged() *stackReservation {
	x := &stackReservation{clock: s.clock}
	for i := range s.charges {
		if c := &s.charges[i]; c.spent {
			key := s.members[c.first].key
			spent := c.settlement(key.debit(c.p))
			spent.follow = followedBy(s.follower, s.members[c.first].index)
			if i < len(s.firm) {
				spent.room = key.waiting()
			}
			if spent.sp.number > 0 {
				spent.home = key.home()
			}
			if hold := c.p.limit.Rate.Per; spent.holds && (x.hold == 0 || hold < x.hold) {
				x.hold = hold
			}
			x.spent = append(x.spent, spent)
		}
	}
	x.Decision, x.local = s.d, x
	x.booked()
	return x
}

// debit returns how to charge the layers of the caller's cost, for a reservation of cost 0 that turns out to have cost more. Then bind
// binds the Actual of a layer to the request; if nil, the layers' Actual play no part.
func (s *stack[R]) debit(bind func(func(R) int) func() int) func(actual int) error {
	var debits []func(int64) error
	var own actuals
	add := func(m *member[R]) {
		debit, f := m.key.debit(m.p), followedBy(s.follower, m.index)
		debits = append(debits, func(n int64) error { return debit(n, f) })
	}
	for _, m := range s.members {
		switch {
		case m.p == nil || m.shadow || m.p.holds(): // of Concurrent, only a reservation holds units
		case m.actual != nil && bind != nil:
			own = append(own, actual{len(debits), m.index, bind(m.actual)})
			add(m)
		case m.cost == nil:
			add(m)
		}
	}
	return func(given int) error {
		costs, err := own.read(given)
		if err != nil {
			return err
		}
		var errs []error
		for i, debit := range debits {
			cost := int64(given)
			for k, a := range own {
				if a.charge == i {
					cost = costs[k]
				}
			}
			errs = append(errs, debit(cost))
		}
		return errors.Join(errs...)
	}
}

// peekEach returns the decision of each layer.
func (s *stack[R]) peekEach(r R, cost int) ([]Decision, error) {
	s.every = true
	if err := s.load(r, cost); err != nil {
		return nil, err
	}
	err := s.preview(peekRequest)
	if err != nil && s.err == nil {
		return nil, err
	}
	all := make([]Decision, len(s.layers))
	for _, m := range s.members {
		if !m.loaded {
			continue
		}
		d, _, own := s.result(m)
		if all[m.index] = *d; m.shadow && own != nil && err == nil {
			err = &layerError{layer: m.index, err: own}
		}
	}
	return all, err
}
