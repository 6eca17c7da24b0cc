package meter

import (
	"math/rand/v2"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/weir-go/ratelimit/internal/dev/testsize"
)

// looked is one of two copies of a key. The test looks at one copy between the calls, and not at the other.
type looked struct {
	m *Meter
	s State
}

func (k *looked) to(m *Meter, now int64) {
	k.m.Refresh(&k.s)
	k.s, k.m = m.Migrate(k.m, k.s, now), m
}

// A look at a key does not change later calls, whatever former limits the
// key has. A look is a Peek, a denial, or a view under another limit.
func TestALookChangesNoLaterCall(t *testing.T) {
	testsize.Arithmetic(t)
	came := 0
	for seed := range uint64(testsize.Of(6000, 400_000)) {
		r := rand.New(rand.NewPCG(seed, 672))
		limits := make([]*Meter, 2+r.IntN(4))
		for i := range limits {
			limits[i] = smallMeter(r, 1+r.Int64N(40))
		}
		now, step, seldom := int64(0), 1+r.Int64N(20), 1+r.IntN(8)
		m := limits[0]
		a, b := &looked{m: m}, &looked{m: m}
		var open []Spending
		var when []*Meter
		for range 60 {
			for range r.IntN(4) { // look at b
				at := now
				now += r.Int64N(step)
				switch r.IntN(4) {
				case 0:
					b.m.Advance(&b.s, now)
				case 1:
					to := limits[r.IntN(len(limits))]
					b.m.Refresh(&b.s)
					if v := b.s; to != b.m {
						v = to.MigrateView(b.m, v, now)
						to.Standing(v, now)
						to.Offer(v, Moment{now, now}, 1, 0)
					}
				case 2:
					if c := b.m.capacity(); b.m.leaky == nil && b.m.Remaining(b.s, at) < c {
						v := b.s
						b.m.Advance(&v, now)
						if b.s = v; b.m.Remaining(b.s, now) < c {
							require.False(t, b.m.Allow(&b.s, now, c), "seed %d", seed)
						}
					}
				case 3:
					b.m.AppendState(nil, b.s, now)
				}
			}
			if r.IntN(6) == 0 {
				now += r.Int64N(100)
			}
			if r.IntN(seldom) == 0 {
				if to := limits[r.IntN(len(limits))]; to != a.m {
					a.to(to, now)
					b.to(to, now)
				}
			}
			m, cost := a.m, 1+r.Int64N(a.m.capacity())
			switch what := r.IntN(8); {
			case what == 0:
				n := r.Int64N(20) - 10
				m.Adjust(&a.s, now, n)
				m.Adjust(&b.s, now, n)
			case what == 1 && len(open) > 0:
				k := r.IntN(len(open))
				sp := open[k]
				sp.Changed = when[k] != m
				actual := r.Int64N(sp.Cost + 2)
				m.Settle(&a.s, now, sp, actual)
				m.Settle(&b.s, now, sp, actual)
				open, when = append(open[:k], open[k+1:]...), append(when[:k], when[k+1:]...)
			case what < 5:
				keep, ahead := Keep(r.IntN(3)), int64(0)
				if m.leaky != nil || r.IntN(8) == 0 && keep != Final {
					ahead = 1 + r.Int64N(40)
				}
				x := m.Take(&a.s, Moment{now, now}, cost, ahead, keep)
				y := m.Take(&b.s, Moment{now, now}, cost, ahead, keep)
				require.Equal(t, x, y, "seed %d at %d, %v", seed, now, m.algorithm)
				if !x.Denied(now) && keep != Final {
					sp := x.Spending(cost)
					sp.Open = keep == Open
					open, when = append(open, sp), append(when, m)
				}
			default:
				require.Equal(t, m.Allow(&a.s, now, cost), m.Allow(&b.s, now, cost), "seed %d at %d, %v", seed, now, m.algorithm)
			}
			m.Advance(&b.s, now)
			if a.s.formers() != nil {
				came++
			}
		}
	}
	require.Greater(t, came, 50_000)
}

// A line's turn, and a booking before it, become due under the key's present
// limit. A view under another limit serves both by the present limit first.
func TestAViewUnderAnotherLimitPassesTheBookingsBeforeALine(t *testing.T) {
	for _, kind := range []Kind{TokenBucket, FixedWindow, SlidingLog, SlidingCounter, Calendar} {
		from, to := meterOf(TokenBucket, 10, second, 10), meterOf(kind, 10, second, 10)
		s := State{}
		require.True(t, from.Allow(&s, 0, 10))
		booked := from.Take(&s, Moment{}, 5, 10*second, Booked)
		require.EqualValues(t, second/2, booked.At)
		from.Join(&s, 0, &Turn{Cost: 3, Wake: make(chan struct{}, 1)}, from.Offer(s, Moment{}, 3, 0))
		require.Zero(t, to.Remaining(to.MigrateView(from, s, 1), 1), kind)
		now := second*8/10 + 1
		view := to.MigrateView(from, s, now)
		from.Advance(&s, now)
		require.Nil(t, s.Line())
		left, debt, regained := to.Standing(to.Migrate(from, s, now), now)
		viewLeft, viewDebt, viewRegained := to.Standing(view, now)
		require.Equal(t, []int64{left, debt, regained}, []int64{viewLeft, viewDebt, viewRegained}, kind)
	}
}
