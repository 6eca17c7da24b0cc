package meter

import (
	"fmt"
	"math"
	"math/rand/v2"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/weir-go/ratelimit/internal/dev/testsize"
)

// oneTurnAfterTheOther computes a line's end by its definition: it spends all turns and bookings in order.
func oneTurnAfterTheOther(m *Meter, s State, l *Line) (State, int64) {
	r := m.replayed(s, l.now)
	for t := l.first; t != nil; t = t.next {
		if t.Cost <= m.capacity() {
			at, _ := r.place(t)
			r.s, r.now = m.spend(r.s, at, t.Cost), at
		}
	}
	for i := range r.booked {
		r.spend(&r.booked[i])
	}
	return r.s, r.now
}

// everyLimit returns the limits for the tests of lines: with and without fractions, narrow and wide.
func everyLimit() (all []Limit) {
	for _, kind := range []Kind{TokenBucket, LeakyBucket, FixedWindow, SlidingLog, SlidingCounter, Calendar} {
		for _, x := range [][3]int64{{1, 10, 1}, {7, 1000, 1}, {7, 1000, 5}, {10, 1000, 10}, {13, 1000, 40}, {100, 99, 30}, {3, 5, 3}} {
			all = append(all, limitOf(kind, x[0], x[1], x[2]))
		}
	}
	return all
}

// It would take hours to spend all these turns one by one, so the test compares two skips with one.
func TestALineOfASlidingCounterRepeatsItselfUnderEachLimit(t *testing.T) {
	const many = 1 << 34
	for _, x := range [][3]int64{{1, 1000, 1}, {1, 1000, 2}, {2, 1000, 2}, {3, 1000, 2}, {7, 1000, 1}, {100, 1000, 37}, {100, 999, 100}} {
		limit := limitOf(SlidingCounter, max(x[0], x[2]), x[1], x[2])
		m := New(limit)
		c := m.algorithm.(*slidingCounter)
		var s State
		m.Take(&s, Moment{5, 5}, m.capacity(), 0, Final)
		inTwo, atOnce := m.replayed(s, 5), m.replayed(s, 5)
		inTwo.skipCounter(c, x[2], 9)
		inTwo.skipCounter(c, x[2], many)
		atOnce.skipCounter(c, x[2], 9+many)
		require.Equal(t, atOnce.now, inTwo.now, "%+v", limit)
		require.Equal(t, atOnce.s.Behind(atOnce.now).alone(), inTwo.s.Behind(inTwo.now).alone(), "%+v", limit)
		require.Less(t, atOnce.now, int64(math.MaxInt64))
	}
}

func TestTheEndOfALineIsTheStateAfterAllTurns(t *testing.T) {
	testsize.Arithmetic(t)
	skipped := map[Kind]int{}
	for seed := range uint64(testsize.Of(40, 2000)) {
		for _, limit := range everyLimit() {
			rnd := rand.New(rand.NewPCG(seed, 3))
			m := New(limit)
			var s State
			now := rnd.Int64N(5000)
			for range rnd.IntN(12) {
				now += rnd.Int64N(300)
				m.Take(&s, Moment{now, now}, 1+rnd.Int64N(m.capacity()), rnd.Int64N(4000)*rnd.Int64N(2), Keep(rnd.IntN(3)))
			}
			if rnd.IntN(4) == 0 {
				m.Adjust(&s, now, 1+rnd.Int64N(2*m.capacity()))
			}
			cost := 1 + rnd.Int64N(m.capacity())
			mixed := rnd.IntN(3) == 0
			m.Advance(&s, now)
			for range 1 + rnd.IntN(200) {
				if mixed {
					cost = 1 + rnd.Int64N(m.capacity())
				}
				o := m.Offer(s, Moment{now, now}, cost, m.MaxAhead())
				if m.leaky != nil && m.earliest(m.view(s), now, cost) > now {
					break // the queue is full
				}
				if o.At > now {
					m.Join(&s, now, &Turn{Cost: cost, Wake: make(chan struct{}, 1)}, o)
				}
			}
			l := s.Line()
			if l == nil {
				continue
			}
			name := fmt.Sprintf("%+v seed %d, %d turns, mixed %v", limit, seed, l.n, mixed)
			for range 3 {
				want, last := oneTurnAfterTheOther(&m, s, l)
				if m.log {
					want.ledger = nil
				} else {
					want = want.Behind(last)
				}
				m.view(s)
				requireEqualEnds(t, &m, want, m.view(s), now, name)
				l.end.known = false // compute the end again instead of extending it
				got := m.view(s)
				requireEqualEnds(t, &m, want, got, now, name)
				if last != l.end.ledger.list[0].at {
					require.Equal(t, last, l.end.ledger.list[0].at, name)
				}
				if !m.log {
					require.Equal(t, want.alone(), got.alone(), name)
				}
				r := m.replayed(s, l.now)
				if at, _ := r.place(l.first); len(r.booked) == 0 && l.n > 1 {
					r.spendTurn(l.first.Cost, at)
					if r.skip(l, l.n-1, l.cost-l.first.Cost) {
						skipped[limit.Kind]++
					}
				}
				if m.Leave(&s, l.first.orLater(rnd.IntN(l.n))); s.Line() == nil {
					break
				}
			}
		}
	}
	t.Log(skipped)
	for kind := TokenBucket; kind <= Calendar; kind++ {
		require.Positive(t, skipped[kind], kind)
	}
}

// orLater returns the turn the given number of places behind.
func (t *Turn) orLater(places int) *Turn {
	for range places {
		t = t.next
	}
	return t
}

// requireEqualEnds checks that two states allow each cost at the same instant, and are regained at the same instant.
func requireEqualEnds(t *testing.T, m *Meter, want, got State, now int64, name string) {
	t.Helper()
	for cost := int64(1); cost <= m.capacity(); cost += 1 + m.capacity()/5 {
		if m.earliest(want, now, cost) != m.earliest(got, now, cost) {
			require.Equal(t, m.earliest(want, now, cost), m.earliest(got, now, cost), name)
		}
	}
	require.Equal(t, m.regained(want), m.regained(got), name)
}
