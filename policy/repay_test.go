package policy_test

import (
	"context"
	"io"
	"log/slog"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/weir-go/ratelimit"
	"github.com/weir-go/ratelimit/failover"
	"github.com/weir-go/ratelimit/policy"
)

// sharedStore is a store of several processes, and may be down.
type sharedStore struct {
	*ratelimit.Keyed[string]
	down *atomic.Bool
}

func (s sharedStore) fault() error {
	if s.down.Load() {
		return ratelimit.ErrUnavailable
	}
	return nil
}

func (s sharedStore) Take(ctx context.Context, key string, cost int) (ratelimit.Decision, error) {
	if err := s.fault(); err != nil {
		return ratelimit.Decision{}, err
	}
	return s.Keyed.Take(ctx, key, cost)
}

func (s sharedStore) Reserve(ctx context.Context, key string, cost int, maxDelay time.Duration) (*ratelimit.Reservation, error) {
	if err := s.fault(); err != nil {
		return nil, err
	}
	return s.Keyed.Reserve(ctx, key, cost, maxDelay)
}

func (s sharedStore) Peek(ctx context.Context, key string, cost int) (ratelimit.Decision, error) {
	if err := s.fault(); err != nil {
		return ratelimit.Decision{}, err
	}
	return s.Keyed.Peek(ctx, key, cost)
}

func (s sharedStore) Adjust(ctx context.Context, key string, delta int) error {
	if err := s.fault(); err != nil {
		return err
	}
	return s.Keyed.Adjust(ctx, key, delta)
}

// Eight processes share a store by rules. The store is down twice, for twenty minutes each. Afterwards it is charged once
// for each outage: under a daily limit with all the units that passed, and under a limit per minute with one minute's.
func TestWhatStandInsLetPassIsChargedWhenTheStoreIsBack(t *testing.T) {
	for _, c := range []struct {
		limit  string
		least  int // the requests that pass in the outage, at least
		before int // the requests before the outage
		owed   int // the units counted after the outage
	}{
		{"fixed-window 8000/d", 2400, 100, 2400},
		{"sliding-log 8000/d", 2400, 100, 2400},
		{"fixed-window 80/m", 1600, 40, 80},
		{"token-bucket 80/m burst 80", 1600, 40, 80},
	} {
		for _, settled := range []bool{false, true} {
			synctest.Test(t, func(t *testing.T) {
				const processes = 8
				set := parsed(t, "rules: [{name: calls, key: user, limit: "+c.limit+"}]")
				store := sharedStore{ratelimit.Must(ratelimit.New[string](set.Rules[0].Limit.Named("calls"), nil)), new(atomic.Bool)}
				var fleet []ratelimit.Reserver[policy.Request]
				for range processes {
					local := ratelimit.Must(policy.New(set, &policy.Options{Engine: policy.Memory(&policy.MemoryOptions{Processes: processes})}))
					shared := ratelimit.Must(policy.New(set, &policy.Options{StandIn: local, Engine: func(policy.Budget, ratelimit.Limiter[string]) (ratelimit.Limiter[string], error) {
						return store, nil
					}}))
					fleet = append(fleet, ratelimit.Must(failover.New[policy.Request](shared, local,
						&failover.Options{Timeout: -1, Logger: slog.New(slog.NewTextHandler(io.Discard, nil))})))
				}
				ann := policy.Attributes{"user": "ann"}
				take := func(n int) (passed int) {
					for i := range n {
						l := fleet[i%processes]
						if !settled {
							if l.Allow(ann, 1) {
								passed++
							}
							continue
						}
						res, err := l.Reserve(t.Context(), ann, 3, 0) // an estimate
						require.NoError(t, err)
						if res.Allowed {
							passed++
							require.NoError(t, res.Settle(1))
						}
					}
					return passed
				}
				used := func() int {
					d, err := store.Peek(t.Context(), "ann", 0)
					require.NoError(t, err)
					return d.Limit.Capacity() - d.Remaining + d.Debt
				}
				take(c.before)
				before := used()
				for outage := 1; outage <= 2; outage++ {
					store.down.Store(true)
					passed := 0
					for range 20 {
						passed += take(120)
						time.Sleep(time.Minute)
					}
					passed += take(120)
					if outage == 1 {
						assert.GreaterOrEqual(t, passed, c.least*8/10, c.limit)
					}
					store.down.Store(false)
					for range 3 {
						take(processes)
						time.Sleep(2 * time.Second)
					}
					synctest.Wait()
					if c.owed < c.least { // under the limit per minute
						assert.InDelta(t, c.owed, used(), float64(c.owed)/4, "%s, settled %v, outage %d", c.limit, settled, outage)
					} else {
						assert.InDelta(t, before+outage*(passed+3*processes), used(), float64(outage*3*processes), "%s, settled %v, outage %d", c.limit, settled, outage)
					}
				}
			})
		}
	}
}
