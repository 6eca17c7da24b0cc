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

// stack is the working memory of one decision over several layers. One goroutine uses it at a time.
// Between decisions it refers to no key and no account, so its pool keeps no user data alive.
//
// A decision goes through these steps. User code runs only in the first and the last, and no lock is held then.
//
//  1. load: each layer determines its account, its cost and its plan.
//  2. lock: the stack adds up the costs of layers with the same account, and locks all accounts in the common order.
//  3. check: each account makes an offer. Nothing is spent yet. An account common to all requests is
//     locked only now, makes its offer last, and is unlocked first: all other decisions wait for it.
//  4. commit or refuse: if the offers of all enforcing layers fit, each account spends its offer. Then each shadow
//     layer is checked in turn, and spends if its offer fits. Otherwise nothing is spent.
//  5. report: each limiter receives its own layer's decision.
//
// All accounts stay locked from 3 to 4, so no other decision sees a state in between: a denial charges nothing, not
// even for an instant. An account is unlocked only after all are locked and it has spent. So decisions take effect one
// after the other.
//
// If all offers fit, untracked keys are inserted before 4, and the decision starts again at 2. An insertion may lock an
// account of any address, so no account may be locked during it. All accounts of the request are pinned until the decision is
// over. Otherwise its keys could evict each other. A denied request inserts nothing, so a denied client cannot fill a table.
//
// A layer is the user's configuration. A member is the layer in the decision at hand, with its key, account, plan and
// cost. A charge is the decision's cost to one account: the sum over all members with the same key of the same limiter.
type stack[R any] struct {
	layers []layer[R]
	places []int                // each layer's index in Limits
	pick   func(R, []int) []int // nil if every request uses all layers
	clock  Clock

	// A member is made when its layer is first used: AllOf may have a thousand layers, and a request may use three.
	made    []*member[R] // made[i] belongs to layer i
	members []*member[R] // this request's layers; with AllOf, the last request's layers until choose replaces them
	which   []int        // scratch memory for pick
	watched bool         // an observer receives the decisions of some member
	brief   bool         // the caller needs only the yes or no
	every   bool         // the caller needs each layer's decision

	// The results of load and lock.
	lookedUp bool // a LimitFor was called
	absent   bool // the key of some member is not tracked
	mixed    bool // two members with the same key have found different accounts
	exceeds  bool // the enforcing layers charge an account more than it can ever allow

	changed bool // keys have been inserted or pinned, for withdraw to undo

	// The charges of the enforcing layers come first, so firm and shadows are
	// one slice's two parts. They are decided before those of the shadow layers.
	charges []charge   // all of them
	firm    []charge   // the charges of the enforcing layers
	shadows []charge   // the charges of the shadow layers
	answers []Decision // the decision of each charge's account; empty if nobody receives it
	locks   locks      // the charges' accounts

	reading int64    // the clock's reading for the whole decision, taken before the locks
	err     error    // why no offer can ever fit
	d       Decision // the stack's answer

	takes  bool        // requests take answers themselves
	wanted bool        // this request wants the answers
	taker  answerTaker // this request, if it takes answers

	follower follower // this request, if it follows its keys' spending

	// One account may be shared by all requests. If other decisions recently waited for it, its charge is checked,
	// committed and unlocked apart from the others: see unlockCommon. Without contention it would take more time, not less.
	common  bool // this request has such an account
	crowded int  // how many further decisions handle its charge apart
	late    int  // its charge's index if this decision handles it apart, else none
	held    bool // the account is locked
}

// answerTaker is a stack's request if it receives the decisions of all layers itself.
// Package policy's requests do: it takes half the time of an observer on each layer.
type answerTaker interface {
	// WantsAnswers reports whether the request takes the decisions. Allowed is the stack's
	// result. The stack calls it under locks, so it must be quick and must not call the limiter.
	WantsAnswers(allowed bool) bool

	// TakeAnswer receives an applying layer's decision, whether the layer was charged, and the layer's
	// or the stack's error. The stack calls it after the decision, without a lock. It must not keep d.
	TakeAnswer(layer int, d *Decision, spent bool, err error)
}

func newStack[R any](layers []layer[R], places []int, pick func(R, []int) []int) *stack[R] {
	s := &stack[R]{layers: layers, places: places, pick: pick, clock: layers[0].clock, made: make([]*member[R], len(layers))}
	s.common, s.crowded = haveCommon(layers), crowdedFor
	_, s.takes = any(*new(R)).(answerTaker)
	if pick == nil { // all layers are members of each decision
		for i := range layers {
			s.add(i)
		}
	}
	return s
}

// add adds a layer to the request. Its member is made once and kept.
func (s *stack[R]) add(layer int) {
	m := s.made[layer]
	if m == nil {
		y := s.layers[layer]
		m = &member[R]{layer: y, index: layer, key: y.newKey(), watched: y.hasObserver || y.observe != nil}
		s.made[layer] = m
	}
	m.picked = true
	s.members = append(s.members, m)
	s.watched = s.watched || m.watched
}

// clear forgets the request, so a stack in the pool keeps no key and no account alive. The layers stay members: see choose.
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
	s.brief, s.every, s.changed, s.lookedUp, s.err, s.d = false, false, false, false, nil, Decision{}
}

// yesOrNo reports whether only the stack's yes or no is needed. Then neither answers
// nor errors are made: a refusal must not cost more than an allowed request.
func (s *stack[R]) yesOrNo() bool { return s.brief && !s.watched }

// wantResults sets wanted to the result of the taker's WantsAnswers, if there is a taker.
func (s *stack[R]) wantResults(allowed bool) {
	if s.taker != nil {
		s.wanted = s.taker.WantsAnswers(allowed)
	}
}

// observed reports whether anyone receives the per-layer decisions.
func (s *stack[R]) observed() bool { return s.watched || s.wanted || s.every }

// load determines the layers' keys, costs and plans. The first error of an enforcing layer ends it. An error of a
// shadow layer only excludes that layer. It runs user code, so no lock is held, and its results may be outdated when
// the accounts are locked. Then lock looks the accounts up again, and check adopts a changed limit.
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
		s.lookedUp = s.lookedUp || m.refreshed != nil
	}
	return nil
}

// choose makes pick's layers members. Consecutive requests often use the same
// layers, so the members of the last request stay if pick returns the same layers.
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
		// If pick appends an index twice, by accident, the layer is charged once.
		if m := s.made[i]; m == nil || !m.picked {
			s.add(i)
		}
	}
	return nil
}

// areMembers reports whether the members are these layers, in this order. The order matters: if several layers bind
// alike, the Decision has the Limit of the first.
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

// leave removes all layers from the request.
func (s *stack[R]) leave() {
	for _, m := range s.members {
		m.picked = false
	}
	s.members, s.watched = s.members[:0], false
}

// fail ends a decision with a layer's error. Each other layer's limiter receives the decision of
// its own layer. That decision does not depend on another layer's error, and a limiter with room
// must not count a denial. Such a report changes nothing, so the keys keep their present limits.
func (s *stack[R]) fail(m *member[R]) error {
	if s.yesOrNo() {
		return errDiscarded
	}
	err := &layerError{layer: m.index, err: m.why()}
	if s.wantResults(false); s.observed() {
		_ = s.preview(peekRequest)
	}
	if s.d = (Decision{}); m.p != nil {
		s.d.Limit = m.p.limit
	}
	return err
}

// take charges the enforcing layers, all or none, and then each shadow layer if it fits. It starts again after
// it has inserted keys, and if one of its accounts was dropped before it was locked. In the second case another
// decision has made progress, so take gives up only if keys are dropped again and again, for example by Reset.
//
// After an insertion take checks all accounts again. No lock was held during the insertion, so other decisions may have
// spent the offered budget.
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
		} else if s.lookedUp {
			s.adopted()
		}
		return s.err
	}
	s.withdraw()
	s.wantResults(false)
	return errKeysGone
}

// endless returns an error if an enforcing layer is under Concurrent: a call without an end cannot give its units back.
// The error of a shadow layer stays with its member.
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

// preview answers without a charge, for Peek and for a cost of 0. It inserts no key, so it needs no second try once all
// accounts are locked. A cost of 0 puts keys under a changed limit, as Take does. The keys of shadow layers keep their
// present limit, because the result of a shadow promises nothing.
func (s *stack[R]) preview(q request) error {
	if !s.lock(false) {
		s.wantResults(false)
		return errKeysGone
	}
	for i := range s.firm {
		s.firm[i].preview(s.reading, &q)
	}
	for i := range s.shadows {
		s.shadows[i].preview(s.reading, &peekRequest)
	}
	if s.lookedUp && !q.peek {
		s.markStale()
	}
	fits := s.allFit()
	s.wantResults(fits)
	s.answer(fits)
	s.locks.unlock()
	return s.err
}

// lock sums up each account's costs, reads the clock, and locks all existing accounts. If an account was dropped since it
// was found, lock looks all accounts up again. After too many such attempts, lock reports false, and nothing is locked.
//
// Members with the same key must have the same account. Otherwise they would make two charges, and one budget would be
// spent twice. So it is not enough to look up the dropped accounts.
//
// If leave is true, lock may leave the common account to checkLate.
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

// sum makes the members' charges: first the enforcing layers', then the shadow layers'. So
// firm and shadows are two parts of one slice, and a decision allocates nothing for them.
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

// enter adds a member's cost to its account's charge. If a layer does not apply or cannot
// decide, it has no charge. In one decision an account has one limit, the limit of its
// first charge: a key has one state, and a state cannot count under two limits at once.
//
// A shadow layer never adds to an enforcing layer's charge. It has its own
// charge for the same account, decided later, on the remaining budget.
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

// chargeOf returns the first charge of the member's key, or none. Only layers of one limiter can have
// a key in common. [Unlimited] and [Blocked] count nothing, so each such layer has its own charge.
//
// Another call may insert a key between the lookups of two members. Then only one has the
// account: chargeOf sets mixed, and all members look their accounts up again until they agree.
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

// check gets the offers of the enforcing layers' accounts, and reports whether all fit. The
// accounts are locked. The clock was read once for all, before the locks, so others do not
// wait for the reading. If an account has recorded a later reading since, it uses its own.
//
// If a request can never be allowed, check returns an error, as [Keyed] does for a
// cost above the limit. The request charges nothing, and no key counts it as a denial.
//
// The common account is locked and checked last. If it was dropped, gone is true, and the decision must begin again. If
// another account has denied the request and the caller gets only the yes or no, the shared account is not locked at all.
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

// checkLate is check, but locks the shared account only after it has checked the others.
func (s *stack[R]) checkLate(q request) (fits, gone bool) {
	fits = true
	for i := range s.firm {
		if i != s.late {
			s.firm[i].check(s.reading, &q)
			fits = fits && s.firm[i].fits()
		}
	}
	c := &s.firm[s.late]
	if !fits && s.yesOrNo() && s.taker == nil && !s.lookedUp {
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

// allFit reports whether all enforcing layers allow the request. If one never can, allFit sets the error
// of the first such layer, even if other layers deny the request only for now: no retry could succeed.
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

// never returns the first impossible charge of an enforcing layer's account, or nil.
func (s *stack[R]) never() *charge {
	for i := range s.firm {
		if s.firm[i].never {
			return &s.firm[i]
		}
	}
	return nil
}

// exceedsError returns the error of the first impossible charge. The error lists the other such charges, too.
func (s *stack[R]) exceedsError(first *charge) error {
	e := &layerError{layer: s.members[first.first].index, err: first.err(), over: s.overrun(first)}
	for i := range s.firm {
		if c := &s.firm[i]; c.never && c != first {
			e.more = append(e.more, s.overrun(c))
		}
	}
	return e
}

// overrun returns an impossible charge's layer and cost.
func (s *stack[R]) overrun(c *charge) overrun {
	cost := min(c.cost, math.MaxInt)
	if c.overflowed {
		cost = math.MaxInt
	}
	return overrun{s.places[s.members[c.first].index], int(cost)}
}

// commit spends the offers of all enforcing layers. Their accounts have been locked since they made the offers, so the
// offers hold. Then commit checks and charges the shadow layers one after the other, on the remaining budget, because
// two of them may have one account.
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
	s.wantResults(true)
	s.finish(true)
}

// follow reports a charge spent to the request's follower. The account is locked.
func (s *stack[R]) follow(c *charge) {
	if s.follower == nil || !c.spent || !s.follower.Follows(s.members[c.first].index) {
		return
	}
	before := max(0, c.p.spent(c.a.State, c.m.Now)-c.cost)
	s.follower.Charged(s.members[c.first].index, before, unknownOpen)
}

// commitLate commits the charges of the enforcing layers, first the common account's charge.
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

// refuse spends nothing. The denying accounts record the denial, because eviction keeps throttled keys
// longer. They do not if the request can never be allowed: such an error does not depend on the keys'
// states. The decisions of shadow layers are computed only for observers. The accounts are locked.
func (s *stack[R]) refuse(q request) {
	if s.err == nil {
		for i := range s.firm {
			s.firm[i].refuse()
		}
	}
	s.unlockCommon()
	if s.wantResults(false); s.observed() {
		q.peek = true // a shadow's result is no reason to change its key
		for i := range s.shadows {
			s.shadows[i].preview(s.reading, &q)
		}
	}
	s.finish(false)
}

// finish fills in the answer. If the caller needs only the yes or no and nothing
// is observed, it fills in nothing else. Allow then takes a fifth less time.
func (s *stack[R]) finish(allowed bool) {
	if s.lookedUp {
		s.markStale()
	}
	if s.brief && !s.observed() {
		s.d.Allowed = allowed
	} else {
		s.answer(allowed)
	}
}

// adopted releases LimitFor's results: the accounts now hold them as their plans. No account is locked.
func (s *stack[R]) adopted() {
	for _, m := range s.members {
		if m.refreshed != nil && m.a != nil && m.amount > 0 {
			m.key.adopted(m.p)
		}
	}
}

// markStale marks accounts whose limits must be looked up again: Refresh was called while this decision was using an
// earlier result of LimitFor, and may have found no account yet. The accounts are locked.
func (s *stack[R]) markStale() {
	for _, m := range s.members {
		if m.a != nil && m.outdated() {
			m.a.markStale()
		}
	}
}

// pin prevents the missing accounts from evicting the existing ones. These are locked. A pin belongs to the decision that
// has set it, so pin skips an account pinned by another decision. If the account is dropped later, lock looks it up again.
func (s *stack[R]) pin() {
	s.changed = true
	for i := range s.charges {
		if c := &s.charges[i]; c.a != nil && !c.a.use.isPinned() {
			c.a.use.pin()
			s.members[c.first].pinned = true
		}
	}
}

// unpin removes this decision's pins. Inserted keys stay. The accounts are locked.
func (s *stack[R]) unpin() {
	for _, m := range s.members {
		if m.inserted || m.pinned {
			m.a.use.unpin()
			m.inserted, m.pinned = false, false
		}
	}
}

// lacks reports whether keys must be inserted before all layers can be charged.
func (s *stack[R]) lacks() bool {
	for _, m := range s.members {
		if m.lacks() {
			return true
		}
	}
	return false
}

// insert adds the missing keys, and returns the first enforcing layer without room. A shadow layer without room is left
// out of the decision, because it never denies. No account is locked: an insertion may wait for an account of any address.
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

// withdraw undoes pin and insert after a denial, because a denial tracks no keys. A key stays if another decision
// has charged it meanwhile. The caller holds no account's lock, because removing a key locks its account.
func (s *stack[R]) withdraw() {
	if !s.changed {
		return
	}
	for _, m := range s.members {
		m.withdraw(s.clock)
	}
}

// answer combines the decisions of the enforcing layers, and keeps each account's decision
// for observers. The accounts are locked, so Remaining and ResetAfter describe their states
// after the decision. After an error the request can never be allowed, so RetryAfter is 0.
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
			room, alone := c.room(d.Remaining), d.NextAfter // a copy of d would take 2 % of a decision's time
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

// report passes each layer's decision to the layer's limiter and to the request. If err came after
// the charge, the charge has been given back. The function is short, so that the compiler inlines it.
func (s *stack[R]) report(ctx context.Context, r R, err error) {
	if s.observed() {
		s.reportAll(ctx, r, err)
	}
}

// reportAll is report for an observed decision. No lock is held, so observers may call the limiters.
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

// wait returns the time until all accounts allow the cost: until each has room, or the cost leaves its queue. A Wait
// with an earlier deadline fails at once.
func (s *stack[R]) wait() time.Duration {
	var longest time.Duration
	for i := range s.firm {
		longest = max(longest, s.firm[i].wait())
	}
	return longest
}

// slowest returns the charge with the longest denial.
func (s *stack[R]) slowest() *charge {
	c := &s.firm[0]
	for i := range s.firm {
		if x := &s.firm[i]; between(x.m.Reading, x.o.Retry) > between(c.m.Reading, c.o.Retry) {
			c = x
		}
	}
	return c
}

// reservation returns a reservation of the decision's charges. It keeps no more of the stack than these, because the
// stack returns to its pool and serves other requests. Only layers with an Actual read the request again, at the
// settlement.
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
		spent := 0 // spent is the index of the charge's settlement
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

// charged returns the spent charges.
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

// debit returns the settlement of a reservation of cost 0: it charges the real cost to the layers. bind
// binds a layer's Actual to the request. If bind is nil, the layers' Actual functions are not called.
func (s *stack[R]) debit(bind func(func(R) int) func() int) func(actual int) error {
	var debits []func(int64) error
	var own actuals
	add := func(m *member[R]) {
		debit, f := m.key.debit(m.p), followedBy(s.follower, m.index)
		debits = append(debits, func(n int64) error { return debit(n, f) })
	}
	for _, m := range s.members {
		switch {
		case m.p == nil || m.shadow || m.p.holds(): // under Concurrent only a reservation holds units
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

// peekEach returns each layer's decision.
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
