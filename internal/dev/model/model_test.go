package model

import (
	"errors"
	"math"
	"math/big"
	"slices"
	"sort"
	"time"

	"github.com/weir-go/ratelimit"
)

// This file contains the model for the property and fuzz tests: a slow, plain and sequential limiter
// of one key. It counts in integers of any size, and stores each future spending separately. To make
// or cancel a booking, it spends all other bookings again, in order, at their own instants.

// booking is one spending of a key.
type booking struct {
	at   int64    // when it counts; in a leaky bucket, when it leaves
	pos  *big.Int // when it leaves a leaky bucket, unrounded, times units
	cost int64
}

// end returns the position behind the booking in a leaky bucket.
func (b *booking) end(per int64) *big.Int { return add(b.pos, mul(b.cost, per)) }

// spending is the cost charged and not yet regained, as one algorithm stores it.
type spending interface {
	clone() spending
	// earliest returns the first instant, not before t, at which the cost fits.
	earliest(t, cost int64) int64
	// spend spends a booking, even if it does not fit.
	spend(b *booking)
	// charge spends a debt. The debt may need several windows.
	charge(now, cost int64)
	// spent returns the spending counted now, in whole units, rounded up.
	spent(now int64) int64
	// refund gives back a part of past spending.
	refund(now int64, b *booking, amount int64)
	// grant gives back any spending. It returns false if more than one result would be right.
	grant(now, amount int64) bool
	remaining(t int64) int64
	// reset returns the first instant, not before t, from which no spending counts.
	reset(t int64) int64
}

func newSpending(l ratelimit.Limit) spending {
	units, per := int64(l.Rate.Units), int64(l.Rate.Per)
	account := modelBucket{units: units, per: per, burst: int64(l.Burst), full: new(big.Int).Lsh(big.NewInt(-1), 200)}
	switch l.Algorithm {
	case ratelimit.AlgorithmTokenBucket:
		return &account
	case ratelimit.AlgorithmLeakyBucket:
		return &modelQueue{account}
	case ratelimit.AlgorithmFixedWindow:
		return &modelWindow{units: units, windows: ownWindows{per}}
	case ratelimit.AlgorithmSlidingLog:
		return &modelLog{units: units, per: per}
	case ratelimit.AlgorithmCalendar:
		return &modelWindow{units: units, windows: dates{PeriodOf(l.Period)}}
	}
	return &modelCounter{units: units, per: per}
}

// ---- token bucket ----

type modelBucket struct {
	units, per, burst int64
	full              *big.Int // units × the instant when everything is regained

	before *big.Int      // full before events
	events []modelCharge // all charges and grants
}

// modelCharge is a charge, or a grant if the cost is negative.
type modelCharge struct {
	at, cost int64
	b        *booking // nil if it is not a booking
}

func (s *modelBucket) clone() spending {
	c := *s
	c.events = slices.Clone(s.events)
	return &c
}

func (s *modelBucket) earliest(t, cost int64) int64 {
	return max(t, ceilDiv(add(s.full, mul(cost-s.burst, s.per)), s.units))
}

func (s *modelBucket) spend(b *booking) { s.happen(modelCharge{b.at, b.cost, b}) }

func (s *modelBucket) charge(now, cost int64) { s.happen(modelCharge{now, cost, nil}) }

func (s *modelBucket) happen(e modelCharge) {
	if s.before == nil {
		s.before = s.full
	}
	s.events = append(s.events, e)
	s.replay(e)
}

func (s *modelBucket) replay(e modelCharge) {
	if now := mul(e.at, s.units); e.cost >= 0 {
		s.full = add(later(s.full, now), mul(e.cost, s.per))
	} else if s.full.Cmp(now) > 0 {
		s.full = later(now, add(s.full, mul(e.cost, s.per)))
	}
}

// refund changes the spending as if the booking had cost less from the beginning.
func (s *modelBucket) refund(_ int64, b *booking, amount int64) {
	for i := range s.events {
		if e := &s.events[i]; e.b == b {
			e.cost -= amount
		}
	}
	if s.before != nil {
		s.full = s.before
	}
	for _, e := range s.events {
		s.replay(e)
	}
}

func (s *modelBucket) grant(now, amount int64) bool {
	s.happen(modelCharge{now, -amount, nil})
	return true
}

func (s *modelBucket) remaining(t int64) int64 {
	spent := later(new(big.Int), sub(s.full, mul(t, s.units)))
	return max(0, floorDiv(sub(mul(s.burst, s.per), spent), s.per))
}

func (s *modelBucket) reset(t int64) int64 { return max(t, ceilDiv(s.full, s.units)) }

// ---- leaky bucket: admits as a token bucket does; queued work keeps its position ----

type modelQueue struct{ modelBucket }

func (s *modelQueue) clone() spending { c := *s; return &c }

func (s *modelQueue) charge(now, cost int64) {
	s.full = add(later(s.full, mul(now, s.units)), mul(cost, s.per))
}

func (s *modelQueue) grant(_, amount int64) bool {
	s.full = sub(s.full, mul(amount, s.per))
	return true
}

func (s *modelQueue) spend(b *booking) { s.full = add(later(s.full, b.pos), mul(b.cost, s.per)) }

// enter returns the booking of a cost entering now.
func (s *modelQueue) enter(now, cost int64) *booking {
	pos := later(s.full, mul(now, s.units))
	return &booking{at: ceilDiv(pos, s.units), pos: pos, cost: cost}
}

func (s *modelQueue) refund(now int64, b *booking, amount int64) {
	if s.full.Cmp(b.end(s.per)) == 0 { // if the booking is the last in the queue
		kept := sub(mul(b.cost, s.per), mul(now-b.at, s.units)) // the part not yet regained
		s.full = sub(s.full, later(new(big.Int), earlier(mul(amount, s.per), kept)))
	}
}

// ---- fixed window, calendar ----

type modelWindow struct {
	units   int64
	windows periods
	start   int64
	used    int64 // 0 if no window is open
}

// periods are the windows in which a modelWindow counts.
type periods interface {
	open(t int64) (start int64) // the window begun by a fresh key
	end(start int64) int64      // the beginning of the next window
}

// ownWindows begin with a key's first spending.
type ownWindows struct{ per int64 }

func (w ownWindows) open(t int64) int64    { return t }
func (w ownWindows) end(start int64) int64 { return start + w.per }

func (s *modelWindow) clone() spending { c := *s; return &c }

// pass closes the windows ended by t. Each takes its units off the spending.
func (s *modelWindow) pass(t int64) {
	for s.used > 0 && t >= s.windows.end(s.start) {
		s.used = max(0, s.used-s.units)
		s.start = s.windows.end(s.start)
	}
}

func (s *modelWindow) earliest(t, cost int64) int64 {
	c := *s
	for c.pass(t); c.used+cost > c.units; c.pass(t) {
		t = c.windows.end(c.start)
	}
	return t
}

func (s *modelWindow) spend(b *booking) { s.charge(b.at, b.cost) }

func (s *modelWindow) charge(now, cost int64) {
	if s.pass(now); s.used == 0 {
		s.start = s.windows.open(now)
	}
	s.used += cost
}

func (s *modelWindow) refund(now int64, b *booking, amount int64) {
	if s.pass(now); b.at >= s.start {
		s.grant(now, amount)
	}
}

func (s *modelWindow) grant(now, amount int64) bool {
	s.pass(now)
	s.used = max(0, s.used-amount)
	return true
}

func (s *modelWindow) remaining(t int64) int64 {
	c := *s
	c.pass(t)
	return max(0, c.units-c.used)
}

func (s *modelWindow) reset(t int64) int64 {
	c := *s
	for c.pass(t); c.used > 0; c.pass(t) {
		t = c.windows.end(c.start)
	}
	return t
}

// ---- sliding log ----

type modelLog struct {
	units, per int64
	entries    []booking // sorted by instant; a debt's entries may be in the future
	debt       int       // entries at the end that form one debt
	until      int64     // the instant until which an earlier limit's longer window counts its spending
}

func (s *modelLog) clone() spending {
	c := *s
	c.entries = slices.Clone(s.entries)
	return &c
}

// within returns the spending in the window ending at t, and in later entries.
func (s *modelLog) within(t int64) (sum int64) {
	for _, e := range s.entries {
		if e.at > t-s.per {
			sum += e.cost
		}
	}
	return sum
}

func (s *modelLog) newest() int64 { return s.entries[len(s.entries)-1].at }

func (s *modelLog) earliest(t, cost int64) int64 {
	if len(s.entries) == 0 {
		return t
	}
	t = max(t, s.newest())
	for i := 0; s.within(t)+cost > s.units; i++ {
		t = max(t, s.entries[i].at+s.per)
	}
	return t
}

func (s *modelLog) spend(b *booking) {
	s.entries, s.debt = append(s.entries, *b), 0
}

// charge puts a debt where its first part fits, and one window's units into
// each window after that. It moves the unspent part of an older debt, too.
func (s *modelLog) charge(now, cost int64) {
	for n := len(s.entries) - 1; n >= 0 && s.debt > 0 && s.entries[n].at > now; n-- {
		cost += s.entries[n].cost
		s.entries, s.debt = s.entries[:n], s.debt-1
	}
	at, parts := s.earliest(now, min(cost, s.units)), 0
	for ; cost > 0; cost -= s.units {
		s.spend(&booking{at: at, cost: min(cost, s.units)})
		at, parts = at+s.per, parts+1
	}
	s.debt = parts
}

func (s *modelLog) refund(now int64, b *booking, amount int64) {
	for i := range s.entries {
		if e := &s.entries[i]; e.at == b.at && e.at > now-s.per {
			back := min(amount, e.cost)
			e.cost, amount = e.cost-back, amount-back
		}
	}
	s.tidy()
}

func (s *modelLog) tidy() {
	s.entries = slices.DeleteFunc(s.entries, func(e booking) bool { return e.cost == 0 })
}

// grant is specified only if it takes all entries, because the order of entries is not.
func (s *modelLog) grant(now, amount int64) bool {
	if amount < s.within(now) {
		return false
	}
	s.entries, s.debt = nil, 0
	return true
}

// grantOldest removes the entries expiring first. A debt is one charge
// of all spending under another algorithm, so its rest is charged again.
func (s *modelLog) grantOldest(now, amount int64) {
	if s.debt > 0 {
		left := s.within(now) - amount
		s.entries, s.debt = nil, 0
		s.charge(now, left)
		return
	}
	for i := range s.entries {
		if e := &s.entries[i]; e.at > now-s.per {
			off := min(amount, e.cost)
			e.cost, amount = e.cost-off, amount-off
		}
	}
	s.tidy()
}

func (s *modelLog) remaining(t int64) int64 {
	if len(s.entries) > 0 && s.newest() > t {
		return 0
	}
	return max(0, s.units-s.within(t))
}

func (s *modelLog) reset(t int64) int64 {
	if len(s.entries) == 0 {
		return t
	}
	return max(t, s.newest()+s.per)
}

// ---- sliding counter ----

type modelCounter struct {
	units, per int64
	start      int64
	curr, prev int64
}

func (s *modelCounter) clone() spending { c := *s; return &c }

func (s *modelCounter) fresh() bool { return s.curr == 0 && s.prev == 0 }

func (s *modelCounter) pass(t int64) {
	for !s.fresh() && t >= s.start+s.per {
		s.prev = min(s.curr, s.units)
		s.curr -= s.prev
		s.start += s.per
	}
}

// weight returns the weighted count of the earlier window at t, rounded up.
func (s *modelCounter) weight(t int64) int64 {
	return ceilDiv(mul(s.prev, s.start+s.per-t), s.per)
}

func (s *modelCounter) fits(t, cost int64) bool {
	return s.fresh() || s.curr+s.weight(t)+cost <= s.units
}

func (s *modelCounter) earliest(t, cost int64) int64 {
	c := *s
	for c.pass(t); !c.fits(t, cost); c.pass(t) {
		if free := c.units - c.curr - cost; free > 0 {
			// prev·(end − t) ≤ free·per
			t = max(t, c.start+c.per-floorDiv(mul(free, c.per), c.prev))
		} else {
			t = c.start + c.per
		}
	}
	return t
}

func (s *modelCounter) spend(b *booking) { s.charge(b.at, b.cost) }

func (s *modelCounter) charge(now, cost int64) {
	if s.pass(now); s.fresh() {
		s.start = now
	}
	s.curr += cost
}

func (s *modelCounter) refund(now int64, b *booking, amount int64) {
	switch s.pass(now); {
	case b.at >= s.start:
		s.curr = max(0, s.curr-amount)
	case b.at >= s.start-s.per:
		s.prev = max(0, s.prev-amount)
	}
}

// grant is specified only if it takes everything, or if no earlier
// window counts. An earlier window's share in a grant is not specified.
func (s *modelCounter) grant(now, amount int64) bool {
	if s.pass(now); s.prev > 0 && amount < s.curr+s.prev {
		return false
	}
	s.curr, s.prev = max(0, s.curr-amount), 0
	return true
}

func (s *modelCounter) remaining(t int64) int64 {
	c := *s
	if c.pass(t); c.fresh() {
		return c.units
	}
	return max(0, c.units-c.curr-c.weight(t))
}

func (s *modelCounter) reset(t int64) int64 {
	c := *s
	for c.pass(t); !c.fresh(); c.pass(t) {
		t = c.start + c.per
	}
	return t
}

// ---- the limiter of one key ----

// model is a correct limiter of one key.
type model struct {
	limit  ratelimit.Limit
	base   spending     // the spending up to last
	ahead  []*booking   // later bookings
	loose  bool         // the limit changed after these bookings, so there may be room before them
	known  bool         // whether the key is tracked
	last   int64        // the highest reading of the key's calls
	floor  int64        // when a swept key was fresh: its next life begins no earlier
	aside  aside        // spending not counted under a lowered limit
	life   int          // how often the key was forgotten
	ended  map[int]bool // the lives ended by Reset
	left   bool         // whether the key has left a limit of another kind: see Alike
	blurry bool         // whether the right answer is unknown
}

func newModel(l ratelimit.Limit) *model {
	return &model{limit: l, base: newSpending(l), floor: math.MinInt64, ended: map[int]bool{}}
}

// receipt records a model's reservation for its settlement.
type receipt struct {
	*booking
	life    int
	settled bool
	free    bool // the cost is 0, so there is no booking
	changed bool // whether the limit has changed since
}

// at returns a reading's instant. A reading below the key's last one counts as that one.
func (m *model) at(raw int64) int64 {
	if m.known {
		return max(raw, m.last)
	}
	return max(raw, m.floor)
}

// record brings the spending up to now.
func (m *model) record(now int64) {
	m.known, m.last = true, now
	for len(m.ahead) > 0 && m.ahead[0].at <= now {
		m.base.spend(m.ahead[0])
		m.ahead = m.ahead[1:]
	}
	m.loose = m.loose && len(m.ahead) > 0
}

// all returns the spending with all bookings.
func (m *model) all() spending {
	s := m.base.clone()
	for _, b := range m.ahead {
		s.spend(b)
	}
	return s
}

func (m *model) check(cost int) error {
	switch {
	case cost < 0:
		return ratelimit.ErrNegativeCost
	case cost > m.limit.Capacity():
		return ratelimit.ErrExceedsLimit
	}
	return nil
}

// take decides on a cost that may be booked up to ahead. If ahead is negative, it decides as Take
// does. If spend is true and the cost is allowed, it also charges the cost and returns the receipt.
func (m *model) take(raw int64, cost int, ahead int64, spend bool) (d ratelimit.Decision, r *receipt, err error) {
	if err = m.check(cost); err != nil || cost == 0 {
		m.standing(raw, &d)
		if d.Allowed = err == nil; d.Allowed && spend {
			r = &receipt{free: true}
		}
		return d, r, err
	}
	now := m.at(raw)
	b, retry := m.plan(raw, now, int64(cost), ahead)
	if spend {
		m.record(now)
	}
	if retry > raw {
		d.RetryAfter = time.Duration(retry - raw)
	} else {
		d.Allowed, r = true, m.book(b, spend)
	}
	if d.Allowed && b.at > now {
		d.Delay = time.Duration(b.at - raw)
	}
	m.standing(raw, &d)
	return d, r, nil
}

// plan returns the cost's booking, and the earliest reading that allows it.
func (m *model) plan(raw, now, cost, ahead int64) (b *booking, retry int64) {
	s := m.all()
	if q, ok := s.(*modelQueue); ok {
		b, retry = q.enter(now, cost), raw
		if room := q.earliest(now, cost); room > now {
			retry = room
		}
		if leaves := q.reset(now); ahead >= 0 && leaves > now {
			retry = max(retry, leaves-ahead)
		}
		return b, retry
	}
	b = &booking{at: m.first(now, cost), cost: cost}
	if span := mul(b.at-raw, int64(m.limit.Rate.Units)); ahead > 0 && span.Cmp(mul(1<<61, int64(Span(m.limit)))) > 0 {
		m.blurry = true // too many units are regained until then, so the booking's instant is not specified
	}
	if retry = raw; b.at > now {
		retry = max(raw, b.at-max(0, ahead))
	}
	return b, retry
}

func (m *model) book(b *booking, spend bool) *receipt {
	if spend {
		i := sort.Search(len(m.ahead), func(i int) bool { return m.ahead[i].at > b.at })
		m.ahead = slices.Insert(m.ahead, i, b)
		m.record(m.last)
		return &receipt{booking: b, life: m.life}
	}
	return nil
}

// standing fills in the figures of the key's state.
func (m *model) standing(raw int64, d *ratelimit.Decision) {
	s, now := m.all(), m.at(raw)
	d.Limit = m.limit
	if _, queue := s.(*modelQueue); queue || len(m.ahead) == 0 || m.ahead[len(m.ahead)-1].at <= now {
		d.Remaining = int(s.remaining(now))
	} else if m.loose {
		d.Remaining = sort.Search(m.limit.Capacity(), func(n int) bool { return m.first(now, int64(n)+1) > now })
	}
	if d.Debt = m.debt(s, now); d.Remaining > 0 && d.Debt > 0 {
		d.Debt = 0
	}
	d.ResetAfter = time.Duration(s.reset(now) - raw)
	if d.Remaining == 0 {
		d.NextAfter = time.Duration(m.next(raw, now, 1) - raw)
	}
}

// next returns the instant when a cost fits behind all other spending.
func (m *model) next(raw, now, cost int64) int64 {
	if q, ok := m.all().(*modelQueue); ok {
		return max(now, q.earliest(now, cost))
	}
	blurry := m.blurry
	b, _ := m.plan(raw, now, cost, 0)
	m.blurry = blurry
	return b.at
}

// unspecified stands for a debt that the model cannot determine.
const unspecified = -1

// debt returns the units above the capacity. Beside a booking in a window
// it is unspecified, because the windows before the booking count as full.
func (m *model) debt(s spending, now int64) int {
	switch s.(type) {
	case *modelBucket, *modelQueue:
	default:
		if len(m.ahead) > 0 && m.ahead[len(m.ahead)-1].at > now {
			return unspecified
		}
	}
	if _, left, _ := m.due(now); m.loose && len(left) > 0 {
		spent := m.base.spent(now)
		for i, s := 0, m.base.clone(); i < len(left); i++ {
			if !fitsAt(m, s, left[i]) { // this booking and all later ones count
				return int(max(0, m.all().spent(now)-int64(m.limit.Capacity())))
			}
			s.spend(left[i])
		}
		return int(max(0, spent-int64(m.limit.Capacity())))
	}
	return int(max(0, s.spent(now)-int64(m.limit.Capacity())))
}

// agree reports whether two decisions are equal. An unspecified debt equals every debt.
func agree(got, want ratelimit.Decision) bool {
	if want.Debt == unspecified && got.Debt >= 0 {
		want.Debt = got.Debt
	}
	return got == want
}

// settle corrects a charge. Only the first settlement counts.
func (m *model) settle(raw int64, r *receipt, actual int) {
	if r != nil && r.free && !r.settled {
		r.settled = true
		m.adjust(raw, max(0, actual))
		return
	}
	if r == nil || r.settled || m.ended[r.life] {
		return
	}
	late := m.late(r, actual)
	if r.settled = true; late > 0 {
		m.record(m.at(raw))
		m.charge(late)
		return
	} else if r.life != m.life {
		return
	}
	m.record(m.at(raw))
	over := max(0, int64(actual)) - r.cost
	switch i := slices.Index(m.ahead, r.booking); {
	case over > 0:
		m.charge(over)
	case over < 0 && i >= 0:
		m.blurry = m.blurry || m.shared(i)
		m.lower(i, r.cost+over)
	case over < 0 && !r.changed:
		m.giveBack(r.booking, -over)
	case over < 0 && (m.limit.Algorithm == ratelimit.AlgorithmFixedWindow || m.limit.Algorithm == ratelimit.AlgorithmSlidingLog):
		m.giveBackAside(r.booking, -over)
	case over < 0 && m.limit.Algorithm > ratelimit.AlgorithmLeakyBucket:
		m.blurry = true // a window's refund is not specified then
	}
}

// late returns the units to charge for a reservation whose key was dropped as fresh since. The reservation still counts.
func (m *model) late(r *receipt, actual int) int64 {
	if r == nil || r.free || r.settled || r.life == m.life || m.ended[r.life] {
		return 0
	}
	return max(0, int64(actual)-r.cost)
}

// shared reports whether two places in a queue fall on the same nanosecond. To
// callers they are one instant, so it is not specified which of them a refund frees.
func (m *model) shared(i int) bool {
	return m.limit.Algorithm == ratelimit.AlgorithmLeakyBucket &&
		slices.ContainsFunc(m.ahead, func(b *booking) bool { return b != m.ahead[i] && b.at == m.ahead[i].at })
}

// lower reduces the cost of a future booking.
func (m *model) lower(i int, cost int64) {
	if m.ahead[i].cost = cost; cost == 0 {
		m.ahead = slices.Delete(slices.Clone(m.ahead), i, i+1)
		m.loose = m.loose && len(m.ahead) > 0
	}
}

// giveBack reduces past spending. Bookings keep their places.
func (m *model) giveBack(b *booking, amount int64) {
	m.base.refund(m.last, b, amount)
}

// giveBackAside reduces spending from before a change of the limit,
// if it still counts. Units set aside by a lowered limit go first.
func (m *model) giveBackAside(b *booking, amount int64) {
	base := m.base.clone()
	base.refund(m.last, b, amount)
	if base.spent(m.last) == m.base.spent(m.last) {
		return
	}
	if m.aside.until > m.last {
		off := min(amount, m.aside.units)
		m.aside.units, amount = m.aside.units-off, amount-off
	}
	m.base.refund(m.last, b, amount)
}

// charge spends a cost that need not fit. Beside bookings, the order is not specified. A debt of very many
// windows takes too long to compute, and a debt of a Century is capped. In these cases the result is unspecified.
func (m *model) charge(cost int64) {
	units, per := int64(m.limit.Rate.Units), int64(Span(m.limit))
	windows := m.limit.Algorithm > ratelimit.AlgorithmLeakyBucket && cost/units > 1000 // the windows would be computed one by one
	if len(m.ahead) > 0 || windows || mul(cost, per).Cmp(mul(90*Year, units)) > 0 {
		m.blurry = true
		return
	}
	m.base.charge(m.last, cost)
}

func (m *model) adjust(raw int64, delta int) {
	if delta == 0 || delta < 0 && !m.known {
		return
	}
	if m.record(m.at(raw)); delta > 0 {
		m.charge(int64(delta))
		return
	}
	spent := m.base.spent(m.last)
	if len(m.ahead) > 0 || !m.base.grant(m.last, -int64(delta)) {
		m.blurry = true
	}
	m.aside.units -= min(m.aside.units, max(0, -int64(delta)-spent))
}

func (m *model) forget() {
	m.base, m.ahead, m.known, m.life = newSpending(m.limit), nil, false, m.life+1
	m.aside, m.left = aside{}, false
}

// reset forgets the key and ends its reservations.
func (m *model) reset() {
	if m.known {
		m.ended[m.life] = true
	}
	m.forget()
}

func (m *model) sweep(raw int64) int {
	if !m.known || m.all().reset(m.at(raw)) > raw || m.aside.units > 0 && m.aside.until > raw {
		return 0
	}
	m.floor = max(m.floor, m.all().reset(m.last))
	if m.aside.units > 0 {
		m.floor = max(m.floor, m.aside.until)
	}
	m.forget()
	return 1
}

func (m *model) len() int {
	if m.known {
		return 1
	}
	return 0
}

// sameError reports whether a limiter's error is the model's.
func sameError(got, want error) bool {
	if want == nil {
		return got == nil
	}
	return errors.Is(got, want)
}

// ---- Whole numbers ----

func add(a, b *big.Int) *big.Int { return new(big.Int).Add(a, b) }
func sub(a, b *big.Int) *big.Int { return new(big.Int).Sub(a, b) }
func mul(a, b int64) *big.Int    { return new(big.Int).Mul(big.NewInt(a), big.NewInt(b)) }

func later(a, b *big.Int) *big.Int {
	if a.Cmp(b) < 0 {
		return b
	}
	return a
}

func earlier(a, b *big.Int) *big.Int {
	if a.Cmp(b) < 0 {
		return a
	}
	return b
}

// floorDiv divides by a positive number and rounds down. A result outside of int64 becomes the farthest instant.
func floorDiv(a *big.Int, b int64) int64 {
	q := new(big.Int).Div(a, big.NewInt(b))
	switch {
	case q.IsInt64():
		return q.Int64()
	case q.Sign() < 0:
		return -1 << 63
	}
	return 1<<63 - 1
}

func ceilDiv(a *big.Int, b int64) int64 { return floorDiv(add(a, big.NewInt(b-1)), b) }
