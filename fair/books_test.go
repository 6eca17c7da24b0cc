package fair

import (
	"context"
	"math"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/weir-go/ratelimit"
	"github.com/weir-go/ratelimit/internal/dev/testsize"
	"github.com/weir-go/ratelimit/internal/meter"
)

type handClock struct{ now time.Duration }

func (c *handClock) Now() time.Duration { return c.now }

// books adds up the tenants one by one, and compares the results with the limiter's sums and heaps.
func books(t *testing.T, l *Limiter[int], sums bool, seed uint64, step int) {
	var kept, weights, keptWeights uint64
	var ahead int64
	var debts float64
	counted, strangers, waiters, places, deadlines, waiting, idle := 0, 0, 0, 0, 0, 0, 0
	for key, x := range l.tenants {
		require.Equal(t, key, x.key)
		require.True(t, x.tracked)
		if x.spot.stranger {
			strangers++
			require.False(t, x.known)
		}
		switch {
		case x.line.first != nil:
			waiters++
			ahead += x.line.first.cost
			require.Same(t, x, l.waiters.items[x.index[byTag]].tenant)
			require.Equal(t, x.tag, l.waiters.items[x.index[byTag]].key)
			require.Zero(t, x.spot.cost, "seed %d step %d: it is in line once", seed, step)
			require.False(t, x.spot.kept)
		case x.spot.kept:
			kept += l.collectable(x)
			keptWeights += x.weight
			require.Equal(t, -1, x.index[byTag])
		case x.spot.cost > 0:
			places++
			ahead += x.spot.cost
			require.Same(t, x, l.places.items[x.index[byTag]].tenant)
			require.Equal(t, x.tag, l.places.items[x.index[byTag]].key)
			require.LessOrEqual(t, x.spot.cost, l.mostKept())
		default:
			require.Equal(t, -1, x.index[byTag])
		}
		if x.spot.kept || x.spot.cost > 0 {
			require.GreaterOrEqual(t, x.index[byExpires], 0, "seed %d step %d: it lapses at some time", seed, step)
		}
		if x.index[byExpires] >= 0 {
			deadlines++
			require.Same(t, x, l.deadlines.items[x.index[byExpires]].tenant)
			require.LessOrEqual(t, x.spot.look, x.spot.expires)
			require.Greater(t, x.spot.expires, l.shares.now)
		}
		for w := x.line.first; w != nil; w = w.next {
			waiting++
		}
		if x.counts {
			counted++
			weights += x.weight
			debts += float64(int64(x.finish-l.shares.virtual)) * float64(x.weight) / fraction
			require.True(t, x.inLine() || x.index[byDue] >= 0, "seed %d step %d: it stops counting at some time", seed, step)
		} else {
			require.Equal(t, -1, x.index[byDue])
			require.False(t, x.spot.kept || x.spot.cost > 0, "seed %d step %d: it counts in line", seed, step)
		}
		if x.index[byDue] >= 0 {
			require.Same(t, x, l.shares.debtors.items[x.index[byDue]].tenant)
			require.GreaterOrEqual(t, int64(x.due-l.shares.virtual), int64(0), "seed %d step %d", seed, step)
			require.True(t, x.inLine() || int64(x.finish-x.due) >= 0, "seed %d step %d", seed, step)
		}
		if x.next != nil {
			idle++
		}
		require.Equal(t, x.next != nil, !x.counts && !x.inLine(), "seed %d step %d: idle or not", seed, step)
	}
	require.Equal(t, counted, l.shares.count, "seed %d step %d", seed, step)
	require.Equal(t, weights, l.shares.weights)
	require.Equal(t, kept, l.kept, "seed %d step %d", seed, step)
	require.Equal(t, keptWeights, l.keptWeights)
	require.Equal(t, ahead, l.ahead, "seed %d step %d", seed, step)
	require.Equal(t, strangers, l.strangers)
	require.Equal(t, []int{waiters, places, deadlines, waiting}, []int{l.waiters.len(), l.places.len(), l.deadlines.len(), l.waiting}, "seed %d step %d", seed, step)
	if owed := float64(l.budget.owedParts(l.shares.now)) / fraction; sums {
		require.InDelta(t, owed, debts+float64(l.shares.common)/fraction-float64(l.shares.surplus)/fraction, 0.5, "seed %d step %d: debts less savings are the total", seed, step)
	}
}

// Whatever the tenants do, the sums match the tenants, each tenant in line leaves it at some time, and Peek
// is right. Without overruns and evictions, debts less savings equal the total's debt, to half a unit.
func TestBooksAddUp(t *testing.T) {
	testsize.Extra(t)
	testsize.Sequential(t)
	summed, served, quits, lapsed := 0, 0, 0, 0
	for i := range testsize.Of[uint64](150, 3000) {
		seed := testsize.Seed(i)
		r := rand.New(rand.NewPCG(seed, 21))
		clock := new(handClock)
		burst, rate, tenants := 4+r.IntN(2000), 1+r.IntN(2000), 1+r.IntN(12)
		weights := make([]int, tenants)
		for i := range weights {
			weights[i] = 1 + r.IntN(10)
		}
		reweigh, overruns, limits := r.IntN(3) == 0, r.IntN(2) == 0, r.IntN(3) == 0
		l, err := New(ratelimit.TokenBucket(ratelimit.PerSecond(rate), burst), &Options[int]{
			Clock: clock, MaxKeys: 2 + r.IntN(20), MaxWaiting: 1 + r.IntN(30), Weight: func(k int) int { return weights[k] },
		})
		require.NoError(t, err)
		type call struct {
			key int
			w   *waiter
		}
		var line []call
		var open []*ratelimit.Reservation
		sums := !overruns && !limits
		for step := range 300 {
			if r.IntN(2) == 0 {
				clock.now += time.Duration(r.ExpFloat64() * float64(burst) / float64(rate) / 20 * 1e9)
			}
			if r.IntN(50) == 0 {
				clock.now -= time.Duration(r.Int64N(1e9))
			}
			if l.budget.fresh(max(l.reading(), l.shares.now)) { // the rate now pays savings that no tenant spends
				l.Stats()
				sums = l.shares.count == 0 && !overruns && !limits
			}
			key, cost := r.IntN(tenants), 1+r.IntN(burst)
			if r.IntN(3) > 0 {
				cost = 1 + r.IntN(max(1, burst/10))
			}
			before := l.deadlines.len()
			switch op := r.IntN(12); {
			case op < 4:
				p, err := l.Peek(context.Background(), key, cost)
				if d, err2 := l.Take(context.Background(), key, cost); err == nil && err2 == nil {
					require.Equal(t, p.Allowed, d.Allowed, "seed %d step %d", seed, step)
				}
			case op == 4:
				l.Allow(key, cost)
			case op < 7:
				var d ratelimit.Decision
				l.mu.Lock()
				w, _ := l.joinLocked(key, l.weight(key), l.reading(), int64(cost), math.MaxInt64, meter.Final, &d, nil)
				l.mu.Unlock()
				if w != nil {
					line = append(line, call{key, w})
				}
			case op == 7 && len(line) > 0:
				i := r.IntN(len(line))
				if l.quit(line[i].key, line[i].w) {
					quits++
				} else {
					served++
				}
				line = append(line[:i], line[i+1:]...)
			case op == 8:
				if x, _ := l.Reserve(context.Background(), key, cost, 0); x.Allowed {
					open = append(open, x)
				}
			case op == 9 && len(open) > 0:
				i := r.IntN(len(open))
				actual := r.IntN(cost * 2)
				if !overruns {
					actual = 0
				}
				_ = open[i].Settle(actual)
				open = append(open[:i], open[i+1:]...)
			case op == 10 && reweigh:
				weights[key] = 1 + r.IntN(10)
			case op == 11 && overruns:
				switch r.IntN(3) {
				case 0:
					l.Reset(context.Background(), key)
				case 1:
					_ = l.Adjust(context.Background(), key, r.IntN(4*burst)-2*burst)
				}
			case op == 11 && limits && r.IntN(5) == 0:
				burst, rate = 4+r.IntN(2000), 1+r.IntN(2000)
				require.NoError(t, l.SetLimit(ratelimit.TokenBucket(ratelimit.PerSecond(rate), burst)))
			}
			if l.deadlines.len() < before {
				lapsed++
			}
			if sums = sums && l.evicted == 0; sums {
				summed++
			}
			books(t, l, sums, seed, step)
		}
	}
	t.Log("sums", summed, "served", served, "quits", quits, "lapsed", lapsed)
	require.Greater(t, summed, 1000)
	require.Greater(t, served, 500)
	require.Greater(t, quits, 500)
	require.Greater(t, lapsed, 500)
}

// While at most four tenants count, 5 % of the rate pays the common
// debt, even if the server pays in steps of a millionth of a unit.
func TestTheCommonDebtIsPaidInTheSmallestSteps(t *testing.T) {
	testsize.Sequential(t)
	s := &shares[int]{units: 1, per: 1e9}
	s.debtors.kind = byDue
	for key := range 3 {
		x := newTenant(key, 1)
		s.enter(x)
		x.finish += 1000 * fraction // the tenant counts throughout
		s.settleIn(x)
	}
	s.owed(fraction)
	const step = 2_000 // ns
	for now := int64(0); now <= 20.1e9; now += step {
		require.NotZero(t, s.common+uint64(now/19.9e9), "at %d ns", now)
		s.advance(now, func(*tenant[int]) {})
	}
	require.Zero(t, s.common)
}
