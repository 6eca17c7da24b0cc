package policy

import (
	"context"
	"errors"
	"math/bits"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/weir-go/ratelimit"
	"github.com/weir-go/ratelimit/internal/follow"
	"github.com/weir-go/ratelimit/internal/held"
)

// Threshold is a share of a key's limit that a charge has crossed: see [Rule.Notify].
type Threshold struct {
	Rule    string
	Key     string // it may be a secret; several values are one text: see [ValuesOf]
	Plan    string // the plan whose limit holds, if the charge has brought one
	Percent int    // of the limit's capacity
	Shadow  bool
	// Decision is the rule's decision, with its Limit, and with Remaining and Debt after the charge, which count estimates of open
	// reservations as spent.
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

// A notice is a crossing: a charge, a settlement or an adjustment before which a key's settled spending was below a share of its limit, and
// after which it is not. Settled is what is spent less the estimates of open reservations: see opens. Each key's changes have an order, and
// the engine answers each with the spending that it has left, so one process alone finds the crossing, without a record of the
// keys. It has a short memory for two kinds of notices, which no single answer can tell apart: see notices.

// spentOf returns the units that a key has spent, of which a decision is the standing.
func spentOf(d *ratelimit.Decision) int64 {
	return int64(max(0, d.Limit.Capacity()-d.Remaining)) + int64(d.Debt)
}

// settled returns the part of a spending that is not an estimate.
func settled(spent, open int64) int64 { return max(0, spent-open) }

// isAtLeast reports whether a spending is at least so many percent of a capacity.
func isAtLeast(spent int64, percent, capacity int) bool {
	spentHigh, spentLow := bits.Mul64(uint64(max(0, spent)), 100)
	high, low := bits.Mul64(uint64(max(0, capacity)), uint64(percent))
	return capacity > 0 && (spentHigh > high || spentHigh == high && spentLow >= low)
}

// crossed returns the thresholds that lie between two spendings.
func crossed(thresholds []int, before, after int64, capacity int) []int {
	first := 0
	for first < len(thresholds) && isAtLeast(before, thresholds[first], capacity) {
		first++
	}
	last := first
	for last < len(thresholds) && isAtLeast(after, thresholds[last], capacity) {
		last++
	}
	return thresholds[first:last]
}

// maxNotices bounds the keys of which notices are remembered. A key beyond it may be notified of a further crossing, or denial, too early.
const maxNotices = 1 << 16

// notices remember, until keys have regained their budgets, of what this process has notified: of denials, and under limits that regain all
// the time, under which traffic may cross a share back and forth for hours.
type notices struct {
	n    atomic.Int64
	mu   sync.Mutex // never held while OnThreshold is called
	keys map[noticeKey]*notice
}

type noticeKey struct{ rule, key string }

type notice struct {
	shares []share
	until  time.Duration // when the key is fresh again, by the policies' clock
}

// share is the highest threshold of a limit that was notified of.
type share struct {
	capacity, percent int
	denied            bool // of a denial
}

// maxShares bounds the limits of one key whose notices are remembered.
const maxShares = 8

// notified returns the highest threshold of a limit that needs no notice: it, or the same share of a larger limit, was notified of. A key
// whose limit has been raised, as by another plan, is notified of the shares of that.
func (n *notice) notified(capacity int) (percent int) {
	for _, s := range n.shares {
		if s.capacity >= capacity {
			percent = max(percent, s.percent)
		}
	}
	return percent
}

// denied reports whether a denial was the notice of all of a limit, or of a larger one.
func (n *notice) denied(capacity int) bool {
	return slices.ContainsFunc(n.shares, func(s share) bool { return s.denied && s.capacity >= capacity })
}

// add records a notice.
func (n *notice) add(added share) {
	n.shares = slices.DeleteFunc(n.shares, func(s share) bool { return s.capacity <= added.capacity && s.percent <= added.percent })
	if len(n.shares) == maxShares {
		n.shares = slices.Delete(n.shares, 0, 1)
	}
	n.shares = append(n.shares, added)
}

// regainsAlways reports whether keys regain all the time, and not at the end of a window.
func regainsAlways(l ratelimit.Limit) bool {
	return l.Algorithm != ratelimit.AlgorithmFixedWindow && l.Algorithm != ratelimit.AlgorithmCalendar
}

// notable is a change of a key's spending, or a denial.
type notable struct {
	before, after int64 // the settled spending
	d             ratelimit.Decision
	lacks         bool // the key was denied for lack of budget
}

// due returns the thresholds of which to notify after a change, and remembers them.
func (n *notices) due(id noticeKey, thresholds []int, x *notable, now time.Duration) []int {
	capacity := x.d.Limit.Capacity()
	all := crossed(thresholds, x.before, x.after, capacity)
	if x.lacks && thresholds[len(thresholds)-1] == 100 {
		all = thresholds[len(thresholds)-1:]
	}
	if len(all) == 0 && n.n.Load() == 0 {
		return nil
	}
	damped := x.lacks || regainsAlways(x.d.Limit)
	n.mu.Lock()
	defer n.mu.Unlock()
	known := n.keys[id]
	if known != nil {
		known.shares = slices.DeleteFunc(known.shares, func(s share) bool { return !isAtLeast(4*x.before, s.percent, s.capacity) })
		if now >= known.until || len(known.shares) == 0 {
			delete(n.keys, id)
			known = nil
		} else {
			known.until = now + x.d.ResetAfter
		}
	}
	if damped && known != nil {
		done := known.notified(capacity)
		for len(all) > 0 && all[0] <= done {
			all = all[1:]
		}
	}
	if k := len(all) - 1; k >= 0 && all[k] == 100 && known != nil && known.denied(capacity) { // the denial was the notice
		all = all[:k]
	}
	if len(all) == 0 {
		n.n.Store(int64(len(n.keys)))
		return nil
	}
	if highest := all[len(all)-1]; damped || highest == 100 {
		if known == nil {
			known = n.new(id, now+x.d.ResetAfter)
		}
		known.add(share{capacity, highest, x.lacks})
	}
	n.n.Store(int64(len(n.keys)))
	return all
}

// new returns a key's new notice. The caller holds the lock.
func (n *notices) new(id noticeKey, until time.Duration) *notice {
	if n.keys == nil {
		n.keys = map[noticeKey]*notice{}
	}
	for other := range n.keys {
		if len(n.keys) < maxNotices {
			break
		}
		delete(n.keys, other)
	}
	id.key = strings.Clone(id.key)
	known := &notice{until: until}
	n.keys[id] = known
	return known
}

// forget forgets the notices of a key.
func (n *notices) forget(id noticeKey) {
	n.mu.Lock()
	defer n.mu.Unlock()
	delete(n.keys, id)
	n.n.Store(int64(len(n.keys)))
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

// notify calls OnThreshold for a change of a key under a rule.
func (p *Policies) notify(r *rule, ch *charge, x *notable) {
	if x.d.Limit.Algorithm == 0 || !counts(x.d.Limit) {
		return
	}
	for _, percent := range p.notices.due(noticeKey{r.id, ch.Key}, r.thresholds, x, p.reading()) {
		p.onThreshold(Threshold{Rule: r.Name, Key: ch.Key, Plan: ch.Plan, Percent: percent, Shadow: r.Shadow, Decision: x.d})
	}
}

// notifyDecided notifies of the thresholds that a decision has crossed. The charge of a reservation is an estimate, of which its settlement
// notifies.
func (p *Policies) notifyDecided(q *query) {
	for i := range q.charges.results {
		rd, ch := &q.charges.results[i], &q.charges.List[i]
		r := q.in.rules[ch.Rule]
		if len(r.thresholds) == 0 || !rd.Told || i >= len(q.charges.changes) || slices.Contains(q.charges.beside, i) { // of these, their charge has notified
			continue
		}
		change := &q.charges.changes[i]
		spent := spentOf(&rd.Decision)
		x := notable{d: rd.Decision}
		switch {
		case rd.Decision.Allowed && rd.Spent && change.known && !q.charges.isEstimate(ch):
			x.before, x.after = settled(change.before, change.openBefore), settled(spent, change.openAfter)
		case rd.Decision.Allowed || rd.Decision.RetryAfter <= 0 || !counts(rd.Decision.Limit):
			continue
		default: // it denies a cost that it would allow later
			open := change.openAfter
			if !change.known {
				open = p.opens.of(noticeKey{r.id, ch.Key}, spent)
			}
			x.before = settled(spent, open)
			x.after = x.before
			// The charge that has spent the last unit was a notice, in whatever process, unless it was spent under a larger limit.
			x.lacks = r.varies || r.moved || x.after != int64(rd.Decision.Limit.Capacity())
		}
		p.notify(r, ch, &x)
	}
}

// notifyCorrected notifies of the thresholds that settlements or adjustments have crossed.
func (p *Policies) notifyCorrected(g *generation, c *charges) {
	for i := range c.corrected {
		x := &c.corrected[i]
		p.notify(g.rules[x.charge.Rule], &x.charge, &x.notable)
	}
	c.corrected = c.corrected[:0]
}

// settling returns a reservation that notifies of the thresholds that its settlement crosses.
func (p *Policies) settling(g *generation, c *charges, inner *ratelimit.Reservation) *ratelimit.Reservation {
	if !inner.Allowed || !slices.ContainsFunc(c.List, func(ch charge) bool { return len(g.rules[ch.Rule].thresholds) > 0 }) {
		return inner
	}
	res := ratelimit.NewReservation(inner.Decision, func(actual int) error {
		err := inner.Settle(actual)
		p.lookAfter(context.Background(), g, c, func(ch *charge) int64 {
			r := g.rules[ch.Rule]
			switch {
			case actual == 0:
				return 0
			case r.settles():
				return int64(ch.Real)
			case ch.Fixed:
				return int64(ch.Cost)
			}
			return int64(actual)
		})
		p.notifyCorrected(g, c)
		return err
	})
	held.Follow(res, func(ctx context.Context, r *ratelimit.Reservation) error { return r.Extend(ctx) }, inner)
	if inner.Delay > 0 {
		follow.Wait(res, inner.Wait)
	}
	return res
}

// lookAfter adds the corrections that the engine has not answered with the keys' spending, by a look at what they have spent by now: units
// returns the units by which a settlement or an adjustment has changed it. A failure to look is no failure of the change.
func (p *Policies) lookAfter(ctx context.Context, g *generation, c *charges, units func(*charge) int64) {
	if g.inMemory() {
		return
	}
	for i := range c.changes {
		ch, change := &c.List[i], &c.changes[i]
		r := g.rules[ch.Rule]
		if len(r.thresholds) == 0 || change.corrected || c.estimates && !change.known && (ch.Cost > 0 || r.Shadow || r.ownCost && !r.settles()) {
			continue
		}
		open := p.opens.settle(change.open, noticeKey{r.id, ch.Key}, int64(ch.Cost))
		change.open = nil
		cost := units(ch)
		if cost <= 0 {
			continue
		}
		looked := *ch
		if last, ok := p.lastLimit(g, ch.Rule, ch.Key); ok {
			looked.Limit = &last
		}
		d, err := g.decider.peek(ctx, &charges{List: []charge{looked}, Bare: true}, 1)
		if err != nil && !errors.Is(err, ratelimit.ErrExceedsLimit) {
			continue
		}
		d = r.show(d)
		after := settled(spentOf(&d), open)
		c.corrected = append(c.corrected, corrected{*ch, notable{before: max(0, after-cost), after: after, d: d}})
	}
}
