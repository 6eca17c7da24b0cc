package policy

import (
	"slices"

	"github.com/weir-go/ratelimit"
	"github.com/weir-go/ratelimit/policy/internal/limits"
	"github.com/weir-go/ratelimit/policy/internal/notices"
)

// follow makes the charges follow their keys' spending.
func (c *charges) follow(o *notices.Opens, rules []*rule) {
	c.opens, c.followed = o, rules
	c.changes = slices.Grow(c.changes[:0], len(c.List))[:len(c.List)]
	clear(c.changes)
}

// isEstimate reports whether a charge will be settled at its real cost. A charge of units in use is not an estimate.
func (c *charges) isEstimate(ch *charge) bool {
	return c.estimates && ch.Limit.Algorithm != ratelimit.AlgorithmConcurrent
}

// Following, Follows, Charged, Opened and Corrected make the charges
// follow their keys' spending: see follower in ratelimit's follow.go.
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
	id := notices.Key{Rule: r.id, Key: ch.Key}
	x.known, x.before = true, before
	switch {
	case open >= 0:
		x.openBefore, x.openAfter = open, open
		if c.isEstimate(ch) {
			x.openAfter += int64(ch.Cost)
		}
	case c.isEstimate(ch):
		x.openBefore, x.open = c.opens.Add(id, before, int64(ch.Cost))
		x.openAfter = x.open.Total()
	default:
		x.openBefore = c.opens.Of(id, before)
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
	id := notices.Key{Rule: r.id, Key: ch.Key}
	if d == nil {
		c.opens.Settle(x.open, id, int64(ch.Cost))
		x.open = nil
		return
	}
	if open < 0 {
		open = c.opens.Of(id, before)
		openAfter = c.opens.Settle(x.open, id, int64(ch.Cost))
		x.open = nil
	}
	shown := r.grace.Show(*d)
	if len(r.thresholds) == 0 {
		return
	}
	c.corrected = append(c.corrected, corrected{*ch, notices.Change{Before: notices.Settled(before, open), After: notices.Settled(limits.SpentOf(&shown), openAfter), Decision: shown}})
}
