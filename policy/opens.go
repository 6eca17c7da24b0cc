package policy

import (
	"slices"
	"strings"
	"sync"
	"sync/atomic"

	"github.com/weir-go/ratelimit"
)

// opens are the estimates of the open reservations of this process, by key: they are charged, but are no spending yet. Of a key that has
// regained more than was settled, the estimates are at most what is left. They are bounded: a key beyond maxOpens has its estimates
// counted as spent.
//
// In memory a key's sum changes under the lock of its account, so each answer has the spending and the estimates of one moment.
type opens struct {
	n    atomic.Int64 // of keys
	mu   sync.Mutex
	keys map[noticeKey]*open
}

// open is the sum of a key's estimates. Reservations refer to it: once the key has none, or was reset, later ones have another.
type open struct {
	id  noticeKey
	sum int64
}

// maxOpens bounds the keys with estimates.
const maxOpens = 1 << 16

// of returns a key's estimates, which are at most what it has spent.
func (o *opens) of(id noticeKey, spent int64) int64 {
	if o.n.Load() == 0 {
		return 0
	}
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.find(id, spent).total()
}

// find returns the estimates of a key, nil if it has none. The caller holds the lock.
func (o *opens) find(id noticeKey, spent int64) *open {
	x := o.keys[id]
	if x == nil {
		return nil
	}
	if x.sum = min(x.sum, spent); x.sum <= 0 {
		o.drop(x)
		return nil
	}
	return x
}

func (x *open) total() int64 {
	if x == nil {
		return 0
	}
	return x.sum
}

// drop forgets a key's estimates. The caller holds the lock.
func (o *opens) drop(x *open) {
	if x.sum = 0; o.keys[x.id] == x {
		delete(o.keys, x.id)
		o.n.Store(int64(len(o.keys)))
	}
}

// add adds an estimate to those of a key that has spent so much without it.
func (o *opens) add(id noticeKey, spent, cost int64) (before int64, x *open) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if x = o.find(id, spent); x == nil {
		if len(o.keys) >= maxOpens {
			return 0, nil
		}
		if o.keys == nil {
			o.keys = map[noticeKey]*open{}
		}
		id.key = strings.Clone(id.key)
		x = &open{id: id}
		o.keys[id] = x
		o.n.Store(int64(len(o.keys)))
	}
	before = x.sum
	x.sum += cost
	return before, x
}

// settle takes an estimate out of the sum x, if there is one, and returns what the key has left.
func (o *opens) settle(x *open, id noticeKey, cost int64) int64 {
	if o.n.Load() == 0 {
		return 0
	}
	o.mu.Lock()
	defer o.mu.Unlock()
	if x != nil {
		if x.sum -= cost; x.sum <= 0 {
			o.drop(x)
		}
	}
	return o.keys[id].total()
}

// forget forgets the estimates of a key that is reset.
func (o *opens) forget(id noticeKey) {
	if o.n.Load() == 0 {
		return
	}
	o.mu.Lock()
	defer o.mu.Unlock()
	if x := o.keys[id]; x != nil {
		o.drop(x)
	}
}

// change is how a call has changed the spending of a charge's key.
type change struct {
	known                 bool // the charge was made
	corrected             bool // the engine has answered its settlement or adjustment
	before                int64
	openBefore, openAfter int64
	open                  *open // with the estimate, until it is settled
}

// corrected is a settlement or an adjustment of a charge's key.
type corrected struct {
	charge charge
	notable
}

// follow makes the charges follow the spending of their keys.
func (c *charges) follow(o *opens, rules []*rule) {
	c.opens, c.followed = o, rules
	c.changes = slices.Grow(c.changes[:0], len(c.List))[:len(c.List)]
	clear(c.changes)
}

// isEstimate reports whether a charge will be settled at its real cost. Units in use are no estimate.
func (c *charges) isEstimate(ch *charge) bool {
	return c.estimates && ch.Limit.Algorithm != ratelimit.AlgorithmConcurrent
}

// Following, Follows, Charged, Opened and Corrected make the charges follow the spending of their keys: see follower in ratelimit's
// follow.go.
func (c *charges) Following() bool { return c.opens != nil }

func (c *charges) Follows(rule int) bool {
	return c.adjusted != nil || len(c.followed[rule].thresholds) > 0
}

func (c *charges) Charged(rule int, before, open int64) {
	i, ok := c.position(rule)
	if !ok {
		return
	}
	r, ch, x := c.followed[rule], &c.List[i], &c.changes[i]
	id := noticeKey{r.id, ch.Key}
	x.known, x.before = true, before
	switch {
	case open >= 0:
		x.openBefore, x.openAfter = open, open
		if c.isEstimate(ch) {
			x.openAfter += int64(ch.Cost)
		}
	case c.isEstimate(ch):
		x.openBefore, x.open = c.opens.add(id, before, int64(ch.Cost))
		x.openAfter = x.open.total()
	default:
		x.openBefore = c.opens.of(id, before)
		x.openAfter = x.openBefore
	}
}

func (c *charges) Opened(rule int, open int64) {
	if i, ok := c.position(rule); ok {
		c.changes[i].known, c.changes[i].openAfter = true, open
	}
}

func (c *charges) Corrected(rule int, before, open, openAfter int64, d *ratelimit.Decision) {
	i, ok := c.position(rule)
	if !ok {
		return
	}
	r, ch, x := c.followed[rule], &c.List[i], &c.changes[i]
	x.corrected = true
	if c.adjusted != nil {
		c.adjusted.answer(before, d)
	}
	id := noticeKey{r.id, ch.Key}
	if d == nil {
		c.opens.settle(x.open, id, int64(ch.Cost))
		x.open = nil
		return
	}
	if open < 0 {
		open = c.opens.of(id, before)
		openAfter = c.opens.settle(x.open, id, int64(ch.Cost))
		x.open = nil
	}
	shown := r.show(*d)
	if len(r.thresholds) == 0 {
		return
	}
	c.corrected = append(c.corrected, corrected{*ch, notable{before: settled(before, open), after: settled(spentOf(&shown), openAfter), d: shown}})
}
