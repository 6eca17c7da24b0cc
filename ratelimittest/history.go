package ratelimittest

import (
	"context"
	"fmt"
	"math"
	"math/rand/v2"
	"time"

	"github.com/weir-go/ratelimit"
)

// history is a sequence of calls to limiters, with their results.
type history struct {
	cfg   *Config
	limit ratelimit.Limit
	rng   *rand.Rand
	lim   ratelimit.Limiter[string]
	has   methods // the methods of lim
	made  []ratelimit.Limiter[string]
	id    string        // a prefix that makes its keys unique
	keys  int           // how many keys it has made
	start time.Duration // the clock's first reading
	now   time.Duration // the time since start
	steps []step

	counting bool // the check counts readings of the clock, so only it may make calls
}

// testedKey is one key of one limiter.
type testedKey struct {
	*history
	lim  ratelimit.Limiter[string]
	has  methods // the methods of lim
	name string
	key  string // the name, with the history's id before it
}

// begin makes the limiter. If possible, it sets the clock to an instant between
// five years before and five years after 0, and the wall clock to some date.
func (h *history) begin() {
	if h.cfg.Clock != nil {
		h.start = h.upto(2*span) - span
		h.cfg.Clock.Set(h.start)
		h.cfg.Clock.SetWall(h.firstWall(rand.New(rand.NewPCG(h.cfg.Seed, uint64(h.start)))))
	}
	h.use(h.newLimiter(h.limit))
}

// use sets the limiter for new keys.
func (h *history) use(l ratelimit.Limiter[string]) { h.lim, h.has = l, h.cfg.methodsOf(l) }

const (
	year = 365 * 24 * time.Hour
	span = 5 * year
)

func (h *history) newLimiter(limit ratelimit.Limit) ratelimit.Limiter[string] {
	l, err := h.cfg.New(limit)
	h.must(err == nil, exact, "New refuses a limit that it has to know: %v", err)
	h.must(l != nil, exact, "New returns nil without an error")
	return h.keep(l)
}

// keep records a limiter, so that the history's end closes it.
func (h *history) keep(l ratelimit.Limiter[string]) ratelimit.Limiter[string] {
	h.made = append(h.made, l)
	return l
}

// newKey returns a new key.
func (h *history) newKey() *testedKey {
	h.keys++
	return h.keyOf(h.lim, h.has, keyName(h.keys-1))
}

func (h *history) keyOf(l ratelimit.Limiter[string], has methods, name string) *testedKey {
	return &testedKey{h, l, has, name, h.id + name}
}

// keyOfAnother returns a key of another limiter with the same limit.
func (h *history) keyOfAnother() *testedKey { return h.newKeyOf(h.newLimiter(h.limit)) }

func (h *history) newKeyOf(l ratelimit.Limiter[string]) *testedKey {
	h.keys++
	return h.namedKey(l, keyName(h.keys-1))
}

// keyName returns a, b, …, z, a1, b1, ….
func keyName(n int) string {
	letter := string(rune('a' + n%26))
	if n < 26 {
		return letter
	}
	return fmt.Sprint(letter, n/26)
}

// namedKey returns a key with the given name.
func (h *history) namedKey(l ratelimit.Limiter[string], name string) *testedKey {
	return h.keyOf(l, h.cfg.methodsOf(l), name)
}

// shown returns the name for a failure's text. It shortens long names, because some have 65 536 bytes.
func (p *testedKey) shown() string {
	if len(p.name) <= 32 {
		return p.name
	}
	return fmt.Sprintf("%s…%s of %d bytes", p.name[:8], p.name[len(p.name)-8:], len(p.name))
}

// ---- time ----

// up rounds up to the engine's resolution.
func (h *history) up(d time.Duration) time.Duration {
	r := h.cfg.Resolution
	if over := d % r; over > 0 {
		return d - over + r
	}
	return d
}

// upto returns a random span from 0 to d, a multiple of the resolution.
func (h *history) upto(d time.Duration) time.Duration { return h.cfg.upto(h.rng, d) }

func (c *Config) upto(rng *rand.Rand, d time.Duration) time.Duration {
	r := c.Resolution
	return time.Duration(rng.Int64N(int64(d/r)+1)) * r
}

// advance moves time forward, or ends the history at the horizon.
func (h *history) advance(d time.Duration) {
	if d > h.horizon()-h.now {
		panic(enough{})
	}
	h.move(d)
}

// horizon returns a history's maximum length, so that instants do not overflow.
func (h *history) horizon() time.Duration {
	if h.cfg.Clock == nil {
		return 4 * reach
	}
	return 130 * year
}

// patience returns a history's usual maximum length. Only a check of a promised instant may exceed it.
func (h *history) patience() time.Duration {
	if h.cfg.Clock == nil {
		return reach
	}
	return span
}

func (h *history) move(d time.Duration) {
	h.now += d
	switch {
	case h.cfg.Clock != nil:
		h.cfg.Clock.Set(h.start + h.now)
	case d <= 0:
	case h.cfg.TryAdvance != nil:
		err := again(func() error { return h.cfg.TryAdvance(d) })
		h.reached(err)
		h.must(err == nil, timeMoves, "TryAdvance(%v): %v", d, err)
	default:
		h.cfg.Advance(d)
	}
}

// pause moves time forward by a random span, often to an instant promised by the last result, or to just before it.
func (h *history) pause(d ratelimit.Decision) {
	r, per := h.cfg.Resolution, h.per()
	whole := per
	if isCalendar(h.limit) {
		whole = h.untilNext()
	}
	spans := []time.Duration{0, r, d.RetryAfter, d.RetryAfter - r, d.ResetAfter, d.ResetAfter - r, whole, whole - r,
		h.upto(per), h.upto(per / 10), h.upto(max(0, d.RetryAfter)), h.upto(max(0, d.ResetAfter))}
	next := h.up(max(0, spans[h.rng.IntN(len(spans))]))
	if h.now+next < h.patience() {
		h.advance(next)
	}
}

// cost returns a random valid cost, often one near the remaining budget.
func (h *history) cost(left int) int {
	capacity := h.limit.Capacity()
	costs := []int{1, 1, 2, left, left + 1, capacity, 1 + h.rng.IntN(capacity), 1 + h.rng.IntN(min(capacity, 5))}
	return min(max(1, costs[h.rng.IntN(len(costs))]), capacity)
}

func (h *history) chance(n int) bool { return h.rng.IntN(n) == 0 }

// alike plays the same calls on two keys, and ends the history if their results differ.
func (h *history) alike(p promise, a, b *testedKey, why string) {
	for range 6 {
		cost := h.cost(a.left().Remaining)
		da, erra := a.take(cost)
		db, errb := b.take(cost)
		if da != db || (erra == nil) != (errb == nil) {
			h.fail(p, "%s: %s answers %s and %s %s", why, a.name, described(da, erra), b.name, described(db, errb))
		}
		h.pause(da)
	}
}

// keyPrefix returns a prefix for a history's keys. It contains the seed, so that no two runs share a key.
func keyPrefix(seed uint64, n int64, try int) string {
	if try > 0 {
		return fmt.Sprintf("%x-%d-again%d-", seed, n, try)
	}
	return fmt.Sprintf("%x-%d-", seed, n)
}

// times returns k·n, or the largest multiple of k that an int can hold: ints may have 32 bits.
func times(k, n int) int { return k * min(n, math.MaxInt/k) }

// twins returns two keys with the same random spending.
func (h *history) twins() (a, b *testedKey) {
	a, b = h.newKey(), h.newKey()
	for range h.rng.IntN(3) {
		cost := h.cost(a.left().Remaining)
		da, _ := a.take(cost)
		b.take(cost)
		h.pause(da)
	}
	return a, b
}

// pauseShort moves time forward by up to d, unless this exceeds patience.
func (h *history) pauseShort(d time.Duration) {
	if next := h.upto(d); h.now+next < h.patience() {
		h.advance(next)
	}
}

func (h *history) ctx() context.Context { return context.Background() }
