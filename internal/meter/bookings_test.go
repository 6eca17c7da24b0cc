package meter

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/weir-go/ratelimit/internal/dev/testsize"
)

// oneByOne computes a ledger's state by its definition: it spends the bookings on top of the base, one by one.
func oneByOne(m *Meter, base State, list []booking) State {
	for i := range list {
		base = m.replay(base, &list[i])
	}
	return base
}

// booked is a state with bookings. It holds the same bookings as a slice, too.
type booked struct {
	m    *Meter
	s    State
	base State
	list []booking
	now  int64
	rnd  *rand.Rand
}

// pass moves due bookings into the base.
func (b *booked) pass() {
	for len(b.list) > 0 && b.list[0].at <= b.now {
		b.base = b.m.replay(b.base, &b.list[0])
		b.list = b.list[1:]
	}
}

// do makes one random change to the bookings.
func (b *booked) do() {
	l := b.m.bookings(b.s)
	switch op := b.rnd.IntN(12); {
	case len(b.list) == 0 || op < 4:
		b.s = b.m.refold(b.s)
		sp := Spending{At: b.s.behind(b.now) + b.rnd.Int64N(60), Cost: 1 + b.rnd.Int64N(20)}
		if b.m.leaky != nil {
			b.m.Advance(&b.s, b.now)
			b.pass()
			if len(b.list) == 0 {
				b.m.Advance(&b.base, b.now)
			}
			if sp.At, sp.Part = b.m.leaky.leaves(b.s, b.now); sp.At-b.now > century {
				return // the queue would reach beyond a century
			}
		}
		b.s = b.m.book(b.s, sp)
		if n := len(b.list); n > 0 && b.list[n-1].at == sp.At {
			b.list[n-1].cost += sp.Cost
		} else {
			b.list = append(b.list, booking{at: sp.At, part: sp.Part, cost: sp.Cost})
		}
	case op == 4: // time passes
		b.now = max(b.now, min(b.list[b.rnd.IntN(min(3, len(b.list)))].at+b.rnd.Int64N(3), b.now+1000))
		b.s = b.m.popDue(b.s, b.now)
		b.pass()
	case op == 5:
		n := 1 + b.rnd.Int64N(50)
		took := l.reduceNewest(n)
		for n > 0 && len(b.list) > 0 {
			last := &b.list[len(b.list)-1]
			off := min(n, last.cost)
			n, took, last.cost = n-off, took-off, last.cost-off
			if last.cost == 0 {
				b.list = b.list[:len(b.list)-1]
			}
		}
		if took != 0 {
			panic("a grant took more or less than there is")
		}
	case op == 6: // a spending without a booking is refunded
		b.base.At -= b.rnd.Int64N(3)
		l.base = b.base
		l.touch(0)
	default:
		i := b.rnd.IntN(len(b.list))
		n := b.rnd.Int64N(b.list[i].cost + 1)
		if b.rnd.IntN(2) == 0 {
			n = b.list[i].cost
		}
		l.reduce(b.list[i].at, n, false)
		l.reduce(b.list[i].at+1, 0, false)
		if b.list[i].cost -= n; b.list[i].cost == 0 {
			b.list = slices.Delete(b.list, i, i+1)
		}
	}
}

// After any change of bookings, the state equals the base after spending all bookings on top.
func TestAStateIsItsBookingsOneByOne(t *testing.T) {
	const slow = 30 * 365 * 24 * hour
	for _, m := range []*Meter{
		meterOf(TokenBucket, 7, 11, 20), meterOf(TokenBucket, 7, 11, 2000), meterOf(TokenBucket, 1, slow, 3), meterOf(TokenBucket, 3, 1, 5),
		meterOf(LeakyBucket, 7, 11, 20), meterOf(LeakyBucket, 7, 11, 2000), meterOf(LeakyBucket, 1, slow, 3),
		meterOf(FixedWindow, 7, 50, 0), meterOf(FixedWindow, 70, 50, 0), meterOf(FixedWindow, 1, slow, 0),
		meterOf(SlidingCounter, 7, 50, 0), meterOf(SlidingCounter, 70, 50, 0), meterOf(SlidingCounter, 1, slow, 0),
	} {
		for seed := range uint64(15) {
			b := &booked{m: m, rnd: rand.New(rand.NewPCG(testsize.Seed(seed), 1))}
			b.s.At = b.rnd.Int64N(10)
			b.base = b.s
			for step := range 300 {
				b.do()
				if b.rnd.IntN(3) > 0 {
					continue // make several changes before the next check
				}
				b.s = b.m.refold(b.s)
				got := b.s
				got.detail = nil
				want := oneByOne(m, b.base, b.list)
				require.Equal(t, m.regained(want), m.regained(got), "%v, seed %d, step %d", m.kind, seed, step)
				require.Equal(t, m.earliest(want, b.base.At, 1), m.earliest(got, b.base.At, 1))
				require.Equal(t, len(b.list) == 0, b.m.bookings(b.s) == nil)
				if l := b.m.bookings(b.s); l != nil {
					require.Equal(t, want, got)
					require.Equal(t, costs(b.list), costs(l.list))
				}
			}
		}
	}
}

func costs(list []booking) (text []string) {
	for _, b := range list {
		text = append(text, fmt.Sprint(b.at, b.part, b.cost))
	}
	return text
}

// Bookings use no memory once they have passed or were cancelled.
func TestBookingsGiveTheirMemoryBack(t *testing.T) {
	m := meterOf(TokenBucket, 1, 1, 1)
	var s State
	for i := range int64(10_000) {
		s = m.book(s, Spending{At: i + 1, Cost: 1})
	}
	for i := int64(9_000); i > 0; i-- {
		s = m.popDue(s, 9_001-i)
	}
	l := m.bookings(s)
	require.Len(t, l.list, 1000)
	require.LessOrEqual(t, int(l.gone), len(l.list))
	require.LessOrEqual(t, cap(l.list), 3000)
}

// A place in a queue contains a fraction of a tick. The fraction
// belongs to the old limit, and means nothing under the new one.
func TestABookingBeginsAtAWholeTickUnderAnotherLimit(t *testing.T) {
	from, to := meterOf(LeakyBucket, 7, 11, 20), meterOf(LeakyBucket, 2, 3, 20)
	var s State
	for range 3 {
		o := from.Take(&s, Moment{}, 1, 100, Booked)
		require.False(t, o.Denied(0))
	}
	require.NotZero(t, from.bookings(s).list[1].part)
	s = to.Migrate(from, s, 0)
	for _, b := range to.bookings(s).list {
		require.Zero(t, b.part)
	}
	require.Less(t, s.N, int64(2))
}
