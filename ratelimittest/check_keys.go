package ratelimittest

import (
	"errors"
	"fmt"
	"strings"
	"sync"

	"github.com/weir-go/ratelimit"
)

// playInvalidKey uses NaN as a key. It does not equal itself.
func playInvalidKey(h *history) {
	l, err := h.cfg.NewFloat(h.limit)
	h.must(err == nil, exact, "NewFloat refuses a limit that it has to know: %v", err)
	nan := 0.0
	nan /= nan
	for _, cost := range []int{1, h.limit.Capacity()} {
		var d ratelimit.Decision
		err := again(func() (err error) { d, err = l.Take(h.ctx(), nan, cost); return err })
		h.reached(err)
		h.note("Take(NaN, %d): %s", cost, described(d, err))
		h.must(errors.Is(err, ratelimit.ErrInvalidKey) && !d.Allowed, chargesNothing, "the key NaN answers %s", described(d, err))
		h.must(!l.Allow(nan, cost), chargesNothing, "the key NaN is allowed")
	}
	if count := countOf(l); count != nil {
		h.must(count() == 0, chargesNothing, "the key NaN is tracked")
	}
}

// playKeys checks that keys with similar names have separate budgets.
func playKeys(h *history) {
	capacity := h.limit.Capacity()
	for _, name := range similarNames() {
		p := h.namedKey(h.lim, name)
		d, err := p.take(capacity)
		h.must(err == nil && d.Allowed, keysAreSeparate, "a key never seen answers %s", described(d, err))
	}
	for _, name := range similarNames() {
		d := h.namedKey(h.lim, name).left()
		h.must(d.Remaining == 0, keysAreSeparate, "other keys have spent, and %d remain of one that had none left", d.Remaining)
	}
}

// similarNames are keys that an engine might confuse. They differ, for example, only in case, blanks, length or encoding.
var similarNames = sync.OnceValue(func() []string {
	names := []string{"like a", "like A", "like a ", "like  a", "like a:b", "like a/b", "like ä", "like a\u0308", "like {a}", "like {a}b", "liked {a}", "{a}", "{}", "}{", "{", "{}{a}", "like a*", "like a%20",
		"like a\x00", "like a\x00b", "like a\x00c", "like a\n", "like \x80", "like \x81", "like \xff\xfe", "like \ufffd", "like \xff"}
	for _, n := range []int{16, 32, 64, 100, 128, 200, 250, 255, 256, 512, 1024, 4096, 65536} {
		long := strings.Repeat("k", n)
		names = append(names, long, long+"1", long+"2", "1"+long, "2"+long, long+"1"+long, long+"2"+long)
	}
	return names
})

// playEmptyKey spends from the empty key. It is a valid key. The suite
// cannot make it unique to a run, so it may have been used before.
func playEmptyKey(h *history) {
	empty, other := h.newKey(), h.newKey()
	empty.name, empty.key = "the empty key", ""
	if empty.has.reset != nil {
		empty.reset()
	}
	left := empty.left().Remaining
	other.spend(h.limit.Capacity())
	got := empty.left().Remaining
	h.must(got == left, keysAreSeparate, "another key has spent, and %d remain of the empty key instead of %d", got, left)
	if left > 0 {
		d, err := empty.take(left)
		h.must(err == nil && d.Allowed, remainingIsTrue, "Remaining was %d, and that cost is not allowed: %s", left, described(d, err))
	}
	d, err := empty.take(1)
	h.must(err == nil && !d.Allowed, boundHolds, "the empty key has spent all it had, and cost 1 answers %s", described(d, err))
	h.must(!empty.allow(1), boundHolds, "the empty key has spent all it had, and Allow allows cost 1")
	h.newKey().spend(h.limit.Capacity())
}

// manyKeys is the number of keys in use at the same time. If
// Config.Histories is below 10, playManyKeys uses an eighth of them.
const manyKeys = 4096

// playManyKeys spends the capacity of many keys. Each must get exactly its own capacity, and stay denied.
func playManyKeys(h *history) {
	m, keys := &crowdOfKeys{history: h}, manyKeys
	if h.cfg.Histories < 10 {
		keys /= 8
	}
	for i := range keys {
		d, err := m.take(i, h.limit.Capacity())
		h.must(err != nil || d.Allowed, keysAreSeparate, "%d keys have spent all they had, and the next, which was never seen, answers %s", i, described(d, err))
		if i%16 == 0 {
			m.remembers(h.rng.IntN(i+1), i+1)
		}
	}
	for i := range keys {
		m.remembers(i, keys)
	}
}

// crowdOfKeys is many keys of one limiter. Each has spent its capacity.
type crowdOfKeys struct {
	*history
	unknown [manyKeys]bool // whether the engine could not decide: the key may have been charged
}

// take takes a cost. If the engine could not decide, it returns an error.
func (m *crowdOfKeys) take(i, cost int) (ratelimit.Decision, error) {
	d, err := m.lim.Take(m.ctx(), fmt.Sprintf("%smany-%d", m.id, i), cost)
	if errors.Is(err, ratelimit.ErrUnavailable) {
		m.unknown[i] = true
		return d, err
	}
	m.must(err == nil, keysAreSeparate, "key %d answers %s", i, described(d, err))
	return d, nil
}

// remembers checks that a key is still denied after it has spent its whole budget.
func (m *crowdOfKeys) remembers(i, of int) {
	if m.unknown[i] {
		return
	}
	d, err := m.take(i, 1)
	m.must(err != nil || !d.Allowed, keysAreSeparate, "of %d keys that have spent all they had, number %d answers %s", of, i, described(d, err))
}

// flood is the maximum number of keys in a small table. A flood brings four times as many.
const flood = 8

// playFlood invents keys while a key is denied. The engine must not forget the denial.
func playFlood(h *history) {
	l, err := h.cfg.NewBounded(h.limit, flood)
	h.must(err == nil, exact, "NewBounded refuses a limit that it has to know: %v", err)
	p := h.newKeyOf(h.keep(l))
	p.spend(h.limit.Capacity())
	d, _ := p.take(1)
	h.must(!d.Allowed, boundHolds, "all was spent, and 1 more is allowed")
	for i := range 4 * flood {
		h.namedKey(l, fmt.Sprintf("invented-%d", i)).take(1)
		if p.has.count != nil {
			h.must(p.has.count() <= flood, keysAreBounded, "%d keys are tracked, of %d at most", p.has.count(), flood)
		}
	}
	d, _ = p.take(1)
	h.must(!d.Allowed, keysAreBounded, "a throttled key was wiped by a flood of %d invented ones", 4*flood)
}
