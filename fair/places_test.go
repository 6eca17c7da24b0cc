package fair_test

import (
	"fmt"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/weir-go/ratelimit/fair"
	"github.com/weir-go/ratelimit/internal/dev/testsize"
	"github.com/weir-go/ratelimit/ratelimittest"
)

// wholeSeconds rounds a RetryAfter up to a second, as HTTP does.
func wholeSeconds(d time.Duration) time.Duration {
	return (d + time.Second - 1).Truncate(time.Second)
}

// obeys adds a tenant that takes all it can. After a denial it comes back once the rounded RetryAfter has passed.
func (p *play) obeys(t *testing.T, r *rand.Rand, l *fair.Limiter[int], key, cost int, rounded func(time.Duration) time.Duration, c *caller) {
	p.add(p.clock.Now()+1+time.Duration(r.Int64N(10e6)), func() time.Duration {
		for {
			d := take(t, l, key, cost)
			if c.count(d, cost); !d.Allowed {
				return rounded(d.RetryAfter)
			}
		}
	})
}

func exactly(d time.Duration) time.Duration { return d }

// A client makes each call under a new name, and asks for half
// the burst. It takes at most 15 % of the honest tenants' shares.
func TestNamesThatNeverReturnLeaveTheHonestTheirShares(t *testing.T) {
	testsize.Extra(t)
	testsize.Sequential(t)
	for _, every := range []time.Duration{time.Second, 100 * time.Millisecond, 10 * time.Millisecond} {
		for _, cost := range []int{5, 50, 500} {
			t.Run(fmt.Sprintf("every=%v/cost=%d", every, cost), func(t *testing.T) {
				r := rand.New(rand.NewPCG(testsize.Seed(1), 8))
				p := &play{clock: new(ratelimittest.Clock)}
				l := newFair(t, perSecond(1000, 2500), &fair.Options[int]{Clock: p.clock})
				honest := make([]*caller, 5)
				for i := range honest {
					honest[i] = new(caller)
				}
				p.polls(t, r, l, 0, cost, honest[0])
				p.obeys(t, r, l, 1, cost, wholeSeconds, honest[1])
				p.obeys(t, r, l, 2, cost, exactly, honest[2])
				p.obeys(t, r, l, 3, cost, wholeSeconds, honest[3])
				p.obeys(t, r, l, 4, cost, exactly, honest[4])
				p.until(30 * time.Second)
				for _, c := range honest {
					*c = caller{}
				}
				names, stolen := 1000, 0
				p.add(p.clock.Now(), func() time.Duration {
					if d := take(t, l, names, 1250); d.Allowed {
						stolen += 1250
					}
					names++
					return every
				})
				length := 1000 * time.Second
				if testing.Short() {
					length = 200 * time.Second
				}
				p.until(p.clock.Now() + length)
				share := 200 * length.Seconds()
				for i, c := range honest {
					t.Logf("tenant %d: %.1f %%", i, 100*float64(c.spent)/share)
					require.Greater(t, float64(c.spent), 0.85*share, "tenant %d, stolen %d", i, stolen)
				}
			})
		}
	}
}

// One tenant polls, and each of the others has one to three clients.
func TestClientsOfOneTenantShareItsPlace(t *testing.T) {
	for _, rounded := range []func(time.Duration) time.Duration{exactly, wholeSeconds} {
		r := rand.New(rand.NewPCG(testsize.Seed(1), 9))
		p := &play{clock: new(ratelimittest.Clock)}
		l := newFair(t, perSecond(1000, 2500), &fair.Options[int]{Clock: p.clock})
		tenants := make([]*caller, 4)
		for key := range tenants {
			tenants[key] = new(caller)
			for range key { // none for the first tenant, which polls; one to three for the others
				p.obeys(t, r, l, key, 100, rounded, tenants[key])
			}
		}
		p.polls(t, r, l, 0, 5, tenants[0])
		p.until(30 * time.Second)
		for _, c := range tenants {
			*c = caller{}
		}
		p.until(230 * time.Second)
		for key, c := range tenants {
			require.InDelta(t, 50_000, c.spent, 1500, "tenant %d", key)
		}
	}
}
