package meter

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/weir-go/ratelimit/internal/dev/testsize"
)

// 600 calls are booked at 10 a second. After a raise to 1,000 a second, 990 units a second are left for other calls.
func TestAfterARaiseFarBookingsTakeOnlyWhatTheyTake(t *testing.T) {
	const second = 1000
	for kind := TokenBucket; kind <= Calendar; kind++ {
		low, high := limitOf(kind, 10, second, 600), limitOf(kind, 1000, second, 1000)
		if kind == TokenBucket {
			low.Burst = 10
		}
		from, to := New(low), New(high)
		var s State
		booked := 0
		for range 600 {
			if !from.Take(&s, Moment{}, 1, 60*second, Booked).Denied(0) {
				booked++
			}
		}
		require.GreaterOrEqual(t, booked, 300, "%v", kind) // a sliding counter books fewer, because its spendings are farther apart
		s = to.Migrate(&from, s, 0)
		_, debt, _ := to.Standing(s, 0)
		require.Zero(t, debt, "%v", kind)
		passed, least := 0, 1000
		for second1 := range 58 {
			before := passed
			for ms := range int64(second) {
				for to.Allow(&s, int64(second1)*second+ms, 1) {
					passed++
				}
			}
			if least = min(least, passed-before); least < 300 {
				require.GreaterOrEqual(t, passed-before, 300, "%v, second %d", kind, second1)
			}
		}
		require.GreaterOrEqual(t, passed, 58*989-600, "%v", kind)
	}
}

// fitting is a state with loose bookings. It holds the same bookings as a base and a slice, too.
type fitting struct {
	m    *Meter
	base State
	list []booking
}

// allFit reports whether a cost can be spent at an instant, and whether all later bookings fit with it and without it.
func (f *fitting) allFit(at, cost int64) bool {
	m := f.m
	with, without := m.cloned(f.base), m.cloned(f.base)
	put := func(s State, at, cost int64) (State, bool) {
		fits := cost <= m.capacity() && m.earliest(s, at, cost) <= at
		return m.spend(s, at, cost), fits
	}
	i := 0
	for ; i < len(f.list) && f.list[i].at <= at; i++ {
		with, _ = put(with, f.list[i].at, f.list[i].cost)
		without, _ = put(without, f.list[i].at, f.list[i].cost)
	}
	open := m.regained(m.advance(without, at)) > at
	with, fits := put(with, at, cost)
	if !fits {
		return false
	}
	for _, b := range f.list[i:] {
		if m.log && b.at >= at+m.algorithm.(*slidingLog).per {
			break // no window contains both costs
		}
		same := m.regainedEqual(with, without, b.at)
		if (m.kind == FixedWindow || m.kind == SlidingCounter) && !same && m.regained(m.advance(without, b.at)) <= b.at && !(open && m.advance(with, b.at).At == b.at) {
			return false // the booking would not begin a window then
		}
		var fit bool
		with, fits = put(with, b.at, b.cost)
		if without, fit = put(without, b.at, b.cost); !fits || !fit && !m.log {
			return false
		}
	}
	return true
}

// regainedEqual reports whether two states are equal from an instant on.
func (m *Meter) regainedEqual(a, b State, at int64) bool {
	a, b = m.advance(m.cloned(a), at), m.advance(m.cloned(b), at)
	if !m.log {
		return a == b
	}
	return fmt.Sprint(entriesOf(a)) == fmt.Sprint(entriesOf(b))
}

func entriesOf(s State) (all []entry) {
	if s.detail == nil {
		return nil
	}
	for i := range s.log.len() {
		all = append(all, s.log.get(i))
	}
	return all
}

// A cost goes before loose bookings, at the first instant when the cost and all bookings fit.
func TestACostGoesBeforeLooseBookingsWhereAllOfThemStillFit(t *testing.T) {
	testsize.Arithmetic(t)
	before := map[Kind]int{}
	for seed := range uint64(testsize.Of(300, 20_000)) {
		for _, kind := range []Kind{TokenBucket, FixedWindow, SlidingLog, SlidingCounter, Calendar} {
			rnd := rand.New(rand.NewPCG(seed, uint64(kind)))
			m := New(limitOf(kind, 1+rnd.Int64N(12), 1+rnd.Int64N(60), 1+rnd.Int64N(12)))
			now := rnd.Int64N(100)
			f := fitting{m: &m, base: State{At: now}}
			for range rnd.IntN(4) {
				if cost := 1 + rnd.Int64N(m.capacity()); m.earliest(f.base, now, cost) <= now {
					f.base = m.spend(f.base, now, cost)
				}
				now += rnd.Int64N(20)
			}
			at := now
			for range 1 + rnd.IntN(8) {
				at += 1 + rnd.Int64N(30)
				f.list = append(f.list, booking{at: at, cost: 1 + rnd.Int64N(m.capacity()+rnd.Int64N(2))})
			}
			var s State
			if m.log {
				s = m.advance(m.cloned(f.base), now)
				for _, b := range f.list {
					s = m.spend(s, b.at, b.cost)
				}
			} else {
				s = m.fold(m.advance(f.base, now), slices.Clone(f.list))
			}
			s = m.loosened(&m, s, now)
			require.True(t, s.loose())
			name := fmt.Sprintf("%v, seed %d, now %d, %+v", kind, seed, now, f)
			for cost := int64(1); cost <= m.capacity(); cost++ {
				want := now
				for want <= at && !f.allFit(want, cost) {
					want++
				}
				got := m.first(s, now, cost)
				if want > at { // the cost goes behind all bookings
					require.Greater(t, got, at, name)
					continue
				}
				require.Equal(t, want, got, "cost %d, %s", cost, name)
				if want < at {
					before[kind]++
				}
			}
			n, debt := m.among(s, now)
			require.GreaterOrEqual(t, n, int64(0))
			if n > 0 {
				require.Zero(t, debt)
				require.Equal(t, now, m.first(s, now, n), name)
			}
			if n < m.capacity() {
				require.Greater(t, m.first(s, now, n+1), now, name)
			}
			// Once the cost is spent, the bookings keep their instants. The state
			// is the base after spending the cost and the bookings in order.
			cost := 1 + rnd.Int64N(m.capacity())
			o := m.Offer(s, Moment{now, now}, cost, m.MaxAhead())
			m.Accept(&s, now, o, cost, Booked)
			want := m.cloned(f.base)
			i := 0
			for ; i < len(f.list) && f.list[i].at <= o.At; i++ {
				want = m.spend(want, f.list[i].at, f.list[i].cost)
			}
			want = m.spend(want, o.At, cost)
			for _, b := range f.list[i:] {
				want = m.spend(want, b.at, b.cost)
			}
			require.Equal(t, m.regained(want), m.regained(s), name)
			if !m.log {
				s = s.alone()
			}
			require.True(t, m.regainedEqual(want, s, at), name)
		}
	}
	t.Log(before)
	for _, kind := range []Kind{TokenBucket, FixedWindow, SlidingLog, SlidingCounter, Calendar} {
		require.Greater(t, before[kind], 50, "%v", kind)
	}
}

// A cost enters a queue between loose bookings if the gap is as long as the cost, and if the queue has room for all.
func TestACostLeavesAQueueBetweenLooseBookings(t *testing.T) {
	testsize.Arithmetic(t)
	before := 0
	for seed := range uint64(testsize.Of(300, 20_000)) {
		rnd := rand.New(rand.NewPCG(seed, 68))
		m := New(limitOf(LeakyBucket, 1+rnd.Int64N(12), 1+rnd.Int64N(60), 1+rnd.Int64N(12)))
		now := rnd.Int64N(100)
		base := State{At: now + rnd.Int64N(3)*rnd.Int64N(20)}
		at := base.At
		var list []booking
		for range 1 + rnd.IntN(8) {
			at += 1 + rnd.Int64N(30)
			list = append(list, booking{at: at, cost: 1 + rnd.Int64N(1+m.capacity()/4)})
		}
		s := m.loosened(&m, m.fold(base, list), now)
		name := fmt.Sprintf("seed %d, now %d, base %v, %+v", seed, now, base, list)
		for cost := int64(1); cost <= m.capacity(); cost++ {
			want := now
			for {
				if n, _ := m.among(s, want); n >= cost {
					break
				}
				want++
			}
			require.Equal(t, want, m.first(s, now, cost), "cost %d, %s", cost, name)
		}
		for range 5 {
			cost, end := 1+rnd.Int64N(m.capacity()), m.regained(s)
			o := m.Offer(s, Moment{now, now}, cost, m.MaxAhead())
			if o.Denied(now) {
				break
			}
			leaves := Spending{At: o.At, Part: o.Part}.begin()
			taken := m.leaky.plus(leaves, m.leaky.price(cost))
			require.False(t, (span{now + m.leaky.full.ticks, m.leaky.full.frac}).less(taken), name)
			if m.Accept(&s, now, o, cost, Booked); o.At < at {
				before++
				require.Equal(t, end, m.regained(s), name)
			}
		}
	}
	require.Positive(t, before)
}

// A queue drains in the middle of a tick. The next cost enters an empty queue, even if another cost
// is booked far behind it: the fraction of a tick at the queue's end does not delay the next cost.
func TestCostsBeforeAFarBookingLeaveAQueueAsWithoutIt(t *testing.T) {
	for seed := range uint64(500) {
		r := rand.New(rand.NewPCG(seed, 7))
		slow, fast := New(limitOf(LeakyBucket, 1, 1000, 200)), New(limitOf(LeakyBucket, 1+r.Int64N(8), 1+r.Int64N(8), 200))
		var s, alone State
		require.True(t, slow.Allow(&s, 0, 1))
		alone = fast.Migrate(&slow, s, 0)
		require.False(t, slow.Take(&s, Moment{}, 1, 2000, Booked).Denied(0)) // the cost leaves at 1000
		s = fast.Migrate(&slow, s, 0)
		for now := int64(0); now < 60; now += r.Int64N(4) {
			cost := 1 + r.Int64N(3)
			got, want := fast.Offer(s, Moment{now, now}, cost, fast.MaxAhead()), fast.Offer(alone, Moment{now, now}, cost, fast.MaxAhead())
			require.Equal(t, want, got, "seed %d", seed)
			if fast.Allow(&alone, now, cost) {
				require.True(t, fast.Allow(&s, now, cost), "seed %d", seed)
			}
		}
	}
}

// A log's debt of 3 is spent at 150, before bookings at 222 and 297. From 150 on, another cost fits before the last booking.
func TestACostGoesBetweenADebtAndALaterBookingOfALog(t *testing.T) {
	m := New(limitOf(SlidingLog, 12, 75, 12))
	state := func() State {
		var s State
		for _, e := range []entry{{75, 12}, {147, 8}, {222, 8}, {297, 5}} {
			s = m.spend(s, e.at, e.cost)
		}
		s.At, s.M = 150, 3
		s.detail.ledger = &ledger{loose: true}
		return s
	}
	const now = 121
	s := state()
	o := m.Take(&s, Moment{now, now}, 1, 0, Final)
	require.True(t, o.Denied(now))
	for at := o.Retry - 10; at < o.Retry+10; at++ {
		s, peeked := state(), state()
		allowed := !m.Offer(peeked, Moment{at, at}, 1, 0).Denied(at)
		n := m.Remaining(peeked, at)
		require.Equal(t, at >= o.Retry, m.Allow(&s, at, 1), "%d", at)
		require.Equal(t, at >= o.Retry, allowed, "%d", at)
		require.Equal(t, at >= o.Retry, n > 0, "%d", at)
	}
}

// The bookings at 200 and 600 are given back. A new cost may use
// their gaps, but not before the instant passed by its caller.
func TestAnOfferBetweenBookingsComesNoEarlierThanItMay(t *testing.T) {
	m := New(Limit{Kind: TokenBucket, Units: 1, Per: 100, Burst: 2, Horizon: 1 << 40, Most: 1 << 40})
	var s State
	var booked []Spending
	for range 5 { // the first spends the burst; the others are booked at 200, 400, 600 and 800
		o := m.Take(&s, Moment{}, 2, 1<<30, Booked)
		booked = append(booked, o.Spending(2))
	}
	m.Settle(&s, 0, booked[1], 0)
	m.Settle(&s, 0, booked[3], 0)
	m.Advance(&s, 0)
	require.True(t, m.Loosen(&s, 0))
	for after, want := range map[int64]int64{0: 200, 150: 200, 201: 600, 401: 600, 600: 600, 601: 1000, 5000: 1000} {
		o := m.OfferAfter(s, Moment{}, after, 2, 1<<30)
		require.Equal(t, want, o.At, "after %d", after)
		require.False(t, o.Denied(0))
	}
	o := m.OfferAfter(s, Moment{}, 401, 2, 500)
	require.Equal(t, int64(100), o.Retry, "600 is too far ahead")
	require.True(t, o.Denied(0))
}
