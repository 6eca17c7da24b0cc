package policy

import (
	"context"
	"errors"
	"math/bits"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/weir-go/ratelimit"
	"github.com/weir-go/ratelimit/internal/held"
)

// Threshold is a share of a key's limit that its spending has reached: see [Rule.Notify].
type Threshold struct {
	Rule    string
	Key     string // it may be a secret; several values are one text: see [ValuesOf]
	Plan    string // the plan whose limit holds, if the charge has brought one
	Percent int    // of the limit's capacity
	Shadow  bool
	// Decision is the rule's decision, with its Limit, and with Remaining and Debt after the charge.
	Decision ratelimit.Decision
}

// thresholdsOf returns the percentages of a valid rule, in order.
func thresholdsOf(r *Rule) (all []int) {
	for _, text := range r.Notify {
		percent, err := percentOf(text)
		if err != nil {
			panic("policy: a rule that has not been validated: " + err.Error())
		}
		all = append(all, percent)
	}
	slices.Sort(all)
	return all
}

// maxNotices bounds the keys whose notices are known. If there are more, a key may be notified of twice.
const maxNotices = 1 << 16

// notices are the thresholds that keys have reached since they were fresh last.
type notices struct {
	mu   sync.Mutex // never held while OnThreshold is called
	keys map[noticeKey]*notice
}

type noticeKey struct{ rule, key string }

type notice struct {
	shares []share
	until  time.Duration // when the key is fresh again, by the policies' clock
}

// share is the highest threshold of a limit that was notified of.
type share struct{ capacity, percent int }

// maxShares bounds the limits of one key whose notices are known.
const maxShares = 8

// notified returns the highest threshold of a limit that needs no notice any more: it, or the same share of a larger limit, was
// notified of. A key whose limit has been raised, as by another plan, is notified of the shares of that.
func (n *notice) notified(capacity int) (percent int) {
	for _, s := range n.shares {
		if s.capacity >= capacity {
			percent = max(percent, s.percent)
		}
	}
	return percent
}

// add records a notice.
func (n *notice) add(added share) {
	n.shares = slices.DeleteFunc(n.shares, func(s share) bool { return s.capacity <= added.capacity && s.percent <= added.percent })
	if len(n.shares) == maxShares {
		n.shares = slices.Delete(n.shares, 0, 1)
	}
	n.shares = append(n.shares, added)
}

// reached returns the thresholds without a notice since the key was fresh. If lacks is true, the key was denied for lack of budget, which
// counts as 100 %.
func (n *notices) reached(id noticeKey, thresholds []int, d *ratelimit.Decision, lacks bool, now time.Duration) []int {
	highest := 0
	for highest < len(thresholds) && hasReached(d, thresholds[highest]) {
		highest++
	}
	if last := len(thresholds) - 1; lacks && highest <= last && thresholds[last] == 100 {
		thresholds = append(slices.Clone(thresholds[:highest]), 100)
		highest = len(thresholds)
	}
	n.mu.Lock()
	defer n.mu.Unlock()
	known := n.keys[id]
	if known != nil && now >= known.until { // it was fresh in between
		delete(n.keys, id)
		known = nil
	}
	if known != nil {
		known.until = now + d.ResetAfter
	}
	if highest == 0 {
		return nil
	}
	if known == nil {
		if n.keys == nil {
			n.keys = map[noticeKey]*notice{}
		}
		for other := range n.keys {
			if len(n.keys) < maxNotices {
				break
			}
			delete(n.keys, other)
		}
		known = &notice{until: now + d.ResetAfter}
		id.key = strings.Clone(id.key)
		n.keys[id] = known
	}
	capacity := d.Limit.Capacity()
	first, done := 0, known.notified(capacity)
	for first < highest && thresholds[first] <= done {
		first++
	}
	if first < highest {
		known.add(share{capacity, thresholds[highest-1]})
	}
	return thresholds[first:highest]
}

// forget forgets the notices of a key.
func (n *notices) forget(id noticeKey) {
	n.mu.Lock()
	defer n.mu.Unlock()
	delete(n.keys, id)
}

// hasReached reports whether at least so many percent of a limit's capacity are spent.
func hasReached(d *ratelimit.Decision, percent int) bool {
	if d.Limit.Algorithm == ratelimit.AlgorithmUnlimited || d.Limit.Algorithm == ratelimit.AlgorithmBlocked {
		return false
	}
	capacity := uint64(max(0, d.Limit.Capacity()))
	spent := capacity - min(capacity, uint64(max(0, d.Remaining)))
	spentHigh, spentLow := bits.Mul64(spent, 100)
	high, low := bits.Mul64(capacity, uint64(percent))
	return capacity > 0 && (spentHigh > high || spentHigh == high && spentLow >= low)
}

// notifying reports whether a rule of the set notifies the program.
func (p *Policies) notifying(g *generation) bool { return p.onThreshold != nil && g.notifies }

// reading is the time by which keys are fresh again: the time of the budgets, if it is known.
func (p *Policies) reading() time.Duration {
	if d := p.now().decider; d != nil && d.clock != nil {
		return d.clock.Now()
	}
	return time.Since(started)
}

var started = time.Now()

// notify calls OnThreshold for the decision of a rule. If lacks is true, the rule denies for lack of budget.
func (p *Policies) notify(r *rule, ch *charge, d ratelimit.Decision, lacks bool) {
	for _, percent := range p.notices.reached(noticeKey{r.id, ch.Key}, r.thresholds, &d, lacks, p.reading()) {
		p.onThreshold(Threshold{Rule: r.Name, Key: ch.Key, Plan: ch.Plan, Percent: percent, Shadow: r.Shadow, Decision: d})
	}
}

// notifyDecided notifies of the thresholds that a decision has reached. The charge of a reservation is an estimate, of which its settlement
// notifies: of a decision that may be settled, only denials count.
func (p *Policies) notifyDecided(q *query, settled bool) {
	for i := range q.charges.results {
		rd, ch := &q.charges.results[i], &q.charges.List[i]
		r := q.in.rules[ch.Rule]
		if len(r.thresholds) == 0 || !rd.Told || settled && rd.Decision.Allowed {
			continue
		}
		if rd.Spent || !rd.Decision.Allowed {
			p.notify(r, ch, rd.Decision, lacks(&rd.Decision))
		}
	}
}

// lacks reports whether a rule denies a cost that it would allow later.
func lacks(d *ratelimit.Decision) bool { return !d.Allowed && d.RetryAfter > 0 && counts(d.Limit) }

// notifyChanged notifies of the thresholds that keys have reached whose spending was changed otherwise. A failure to look is
// no failure of the change: then the next decision notifies.
func (p *Policies) notifyChanged(ctx context.Context, g *generation, list []charge) {
	for _, ch := range list {
		r := g.rules[ch.Rule]
		d, err := g.decider.peek(ctx, &charges{List: []charge{ch}, Bare: true}, 1)
		if err == nil || errors.Is(err, ratelimit.ErrExceedsLimit) {
			p.notify(r, &ch, r.show(d), false)
		}
	}
}

// notified returns copies of the charges whose rules notify the program.
func (g *generation) notified(list []charge) (some []charge) {
	for _, ch := range list {
		if len(g.rules[ch.Rule].thresholds) > 0 {
			some = append(some, ch)
		}
	}
	return some
}

// settling returns a reservation that notifies of the thresholds that its settlement reaches.
func (p *Policies) settling(g *generation, list []charge, inner *ratelimit.Reservation) *ratelimit.Reservation {
	some := g.notified(list)
	if len(some) == 0 || !inner.Allowed {
		return inner
	}
	res := ratelimit.NewReservation(inner.Decision, func(actual int) error {
		err := inner.Settle(actual)
		p.notifyChanged(context.Background(), g, some)
		return err
	})
	held.Follow(res, func(ctx context.Context, r *ratelimit.Reservation) error { return r.Extend(ctx) }, inner)
	return res
}
