package meter

import (
	"math/rand/v2"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/weir-go/ratelimit/internal/dev/testsize"
)

// changing is the key of a token bucket whose limit changes. The test compares it
// with a copy in which each settled reservation had its real cost from the beginning.
type changing struct {
	m      *Meter
	s      State
	now    int64
	what   []func(x *changing) // all the key's events, in order
	limits []*Meter
}

// spends is a charge whose real cost becomes known later.
type spends struct {
	at   int64
	real int64
	sp   Spending
	m    int // how often the limit changed before the charge
}

func (x *changing) to(m *Meter, now int64) {
	x.m.Advance(&x.s, now)
	x.m.Refresh(&x.s)
	x.s, x.m = m.Migrate(x.m, x.s, now), m
}

// replay returns the copy.
func (x *changing) replay() *changing {
	y := &changing{m: x.limits[0]}
	for _, do := range x.what {
		do(y)
	}
	y.m.Advance(&y.s, x.now)
	return y
}

// total adds up the spent units and the units set aside.
func (x *changing) total(now int64) int64 { return x.m.spent(x.s, now) + x.s.asideAt(now).units }

// Reservations are settled after changes of the limit. They leave at least
// as much spent as their real costs would, until units set aside lapse.
func TestSettlementsAfterChangesLeaveTheRealCosts(t *testing.T) {
	testsize.Arithmetic(t)
	settled, compared := 0, 0
	for seed := range uint64(testsize.Of(4000, 200_000)) {
		r := rand.New(rand.NewPCG(seed, 68))
		x := &changing{}
		per := 1 + r.Int64N(20)
		for range 2 + r.IntN(3) {
			x.limits = append(x.limits, meterOf(TokenBucket, 1, per, 1+r.Int64N(12)))
			if r.IntN(2) == 0 {
				per = 1 + r.Int64N(20)
			}
		}
		x.m = x.limits[0]
		var open []*spends
		changes, lapses := 0, int64(0)
		for range 50 {
			x.now += r.Int64N(1 + 2*per)
			now := x.now
			if lapses > 0 && lapses <= now {
				break // from here on, the units set aside depend on the estimates
			}
			switch r.IntN(5) {
			case 0:
				m := x.limits[r.IntN(len(x.limits))]
				if m == x.m {
					continue
				}
				x.to(m, now)
				changes++
				x.what = append(x.what, func(y *changing) { y.to(m, now) })
			case 1, 2:
				x.m.Advance(&x.s, now)
				n := x.m.Remaining(x.s, now)
				if n == 0 {
					continue
				}
				cost := 1 + r.Int64N(n)
				o := x.m.Take(&x.s, Moment{now, now}, cost, 0, Open)
				c := &spends{at: now, real: cost, sp: o.Spending(cost), m: changes}
				c.sp.Open = true
				open = append(open, c)
				x.what = append(x.what, func(y *changing) {
					y.m.Advance(&y.s, now)
					if c.real > 0 {
						y.m.Adjust(&y.s, now, c.real)
					}
				})
			case 3, 4:
				if len(open) == 0 {
					continue
				}
				i := r.IntN(len(open))
				c := open[i]
				open = append(open[:i], open[i+1:]...)
				c.sp.Changed = c.m != changes
				c.real = r.Int64N(c.sp.Cost + 1)
				x.m.Settle(&x.s, now, c.sp, c.real)
				settled++
			}
			x.m.Advance(&x.s, now)
			y := x.replay()
			require.GreaterOrEqual(t, x.total(now), y.total(now), "seed %d at %d", seed, now)
			lapses = x.s.asideAt(now).until
			if at := y.s.asideAt(now).until; at > 0 && (lapses == 0 || at < lapses) {
				lapses = at
			}
			compared++
		}
	}
	require.Greater(t, compared, 20_000)
	require.Greater(t, settled, 1000)
}

// Nine calls to a language model are under way when the limit is raised or lowered by a thousandth.
func TestOpenReservationsSurviveAChange(t *testing.T) {
	from, to := meterOf(TokenBucket, 1_000_000, 60_000_000_000, 1_000_000), meterOf(TokenBucket, 1_001_000, 60_000_000_000, 1_001_000)
	for _, first := range []*Meter{from, to} {
		var s State
		var open []Spending
		for range 9 {
			o := first.Take(&s, Moment{}, 100_000, 0, Open)
			sp := o.Spending(100_000)
			sp.Open = true
			open = append(open, sp)
		}
		second := map[*Meter]*Meter{from: to, to: from}[first]
		s = second.Migrate(first, s, 0)
		for _, sp := range open {
			sp.Changed = true
			second.Settle(&s, 0, sp, 2000)
		}
		second.Advance(&s, 0)
		assert.EqualValues(t, second.capacity()-18_000, second.Remaining(s, 0))
	}
}
