package lease_test

import (
	"context"
	"math/big"
	"math/rand/v2"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/weir-go/ratelimit"
	"github.com/weir-go/ratelimit/lease"
)

// fleet is several processes leasing from one server. It records their admissions.
type fleet struct {
	server   *server
	nodes    []*lease.Limiter[string]
	maxBatch int
	admitted []spending
	open     []*opened
	r        *rand.Rand
}

// spending is the sum admitted at an instant.
type spending struct {
	at   time.Duration
	cost int
}

// opened is an unsettled reservation.
type opened struct {
	res  *ratelimit.Reservation
	cost int
	i    int // its index in admitted
}

func newFleet(t *testing.T, limit ratelimit.Limit, r *rand.Rand) *fleet {
	f := &fleet{server: newServer(t, limit), maxBatch: 1 + r.IntN(30), r: r}
	for range 1 + r.IntN(4) {
		f.nodes = append(f.nodes, leased(t, f.server, lease.Options[string]{
			MaxBatch: f.maxBatch,
			HoldFor:  time.Duration(1 + r.IntN(int(300*time.Millisecond))),
			DenyFor:  time.Duration(r.IntN(3)-1) * 20 * time.Millisecond,
		}))
	}
	return f
}

// step makes one decision in some process, or lets time pass for the server's clock and for the timers.
func (f *fleet) step(t *testing.T) {
	node := f.nodes[f.r.IntN(len(f.nodes))]
	now := f.server.clock.Now()
	switch f.r.IntN(10) {
	case 0:
		d := time.Duration(f.r.IntN(int(100 * time.Millisecond)))
		time.Sleep(d)
		f.server.clock.Advance(d)
	case 1:
		f.reserve(t, node, now)
	case 2:
		f.settle(t)
	case 3:
		if f.r.IntN(20) == 0 {
			require.NoError(t, node.Flush(context.Background()))
		}
	default:
		if cost := f.cost(); node.Allow("k", cost) {
			f.admitted = append(f.admitted, spending{now, cost})
		}
	}
	synctest.Wait()
}

func (f *fleet) cost() int {
	if f.r.IntN(3) == 0 {
		return 1 + f.r.IntN(f.maxBatch+3)
	}
	return 1
}

func (f *fleet) reserve(t *testing.T, node *lease.Limiter[string], now time.Duration) {
	cost := f.cost()
	res, err := node.Reserve(context.Background(), "k", cost, 0)
	if err == nil && res.Allowed {
		f.admitted = append(f.admitted, spending{now, cost})
		f.open = append(f.open, &opened{res, cost, len(f.admitted) - 1})
	}
}

// settle settles the oldest reservation at no more than its cost.
func (f *fleet) settle(t *testing.T) {
	if len(f.open) == 0 {
		return
	}
	o := f.open[0]
	f.open = f.open[1:]
	actual := f.r.IntN(o.cost + 1)
	require.NoError(t, o.res.Settle(actual))
	f.admitted[o.i].cost = actual
}

// mostOver compares the units admitted in each interval t with rate·t, and returns the maximum excess.
func (f *fleet) mostOver(rate ratelimit.Rate) *big.Rat {
	most := new(big.Rat)
	for i := range f.admitted {
		sum := int64(0)
		for _, s := range f.admitted[i:] {
			sum += int64(s.cost)
			t := int64(s.at - f.admitted[i].at)
			over := new(big.Rat).Sub(new(big.Rat).SetInt64(sum),
				new(big.Rat).Mul(big.NewRat(int64(rate.Units), int64(rate.Per)), new(big.Rat).SetInt64(t)))
			if over.Cmp(most) > 0 {
				most = over
			}
		}
	}
	return most
}

// Any interval t admits at most burst + rate·t + processes × MaxBatch.
func TestTheBoundOfATokenBucketHoldsForAnyInterval(t *testing.T) {
	tight := 0.0
	for seed := range uint64(60) {
		bubble(t, func(t *testing.T) {
			r := rand.New(rand.NewPCG(seed, 1))
			limit := ratelimit.TokenBucket(ratelimit.PerSecond(1+r.IntN(300)), 1+r.IntN(100))
			f := newFleet(t, limit, r)
			for range 300 {
				f.step(t)
			}
			bound := limit.Burst + len(f.nodes)*f.maxBatch
			over, _ := f.mostOver(limit.Rate).Float64()
			require.LessOrEqual(t, over, float64(bound), "seed %d: %v, %d processes × %d", seed, limit, len(f.nodes), f.maxBatch)
			tight = max(tight, over-float64(limit.Burst))
			for _, node := range f.nodes {
				require.NoError(t, node.Flush(context.Background()))
			}
		})
	}
	require.Greater(t, tight, 0.0, "the test never went beyond what the remote limiter allows at once")
}

// Any window admits at most Units + processes × MaxBatch.
func TestTheBoundOfASlidingLogHoldsForAnyWindow(t *testing.T) {
	for seed := range uint64(40) {
		bubble(t, func(t *testing.T) {
			r := rand.New(rand.NewPCG(seed, 2))
			limit := ratelimit.SlidingLog(ratelimit.Per(1+r.IntN(100), time.Duration(1+r.IntN(int(time.Second)))))
			f := newFleet(t, limit, r)
			for range 300 {
				f.step(t)
			}
			bound := limit.Rate.Units + len(f.nodes)*f.maxBatch
			for i, from := range f.admitted {
				sum := 0
				for _, s := range f.admitted[i:] {
					if s.at < from.at+limit.Rate.Per {
						sum += s.cost
					}
				}
				require.LessOrEqual(t, sum, bound, "seed %d: %v, %d processes × %d", seed, limit, len(f.nodes), f.maxBatch)
			}
			for _, node := range f.nodes {
				require.NoError(t, node.Flush(context.Background()))
			}
		})
	}
}

// In whatever order the calls run, no unit is admitted without a charge. Each unit charged but not admitted is held or lost.
func TestNothingIsAdmittedThatWasNotCharged(t *testing.T) {
	for seed := range uint64(25) {
		bubble(t, func(t *testing.T) {
			r := rand.New(rand.NewPCG(seed, 3))
			f := newFleet(t, tight(20_000), r)
			for range 400 {
				f.step(t)
			}
			admitted := 0
			for _, s := range f.admitted {
				admitted += s.cost
			}
			other := 0
			for _, node := range f.nodes {
				st := node.Stats()
				other += st.Held + int(st.UnitsLost)
			}
			require.Equal(t, f.server.total(), admitted+other, "seed %d", seed)
			for _, node := range f.nodes {
				require.NoError(t, node.Flush(context.Background()))
			}
		})
	}
}
