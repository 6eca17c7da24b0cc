package policy_test

import (
	"fmt"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/weir-go/ratelimit"
	"github.com/weir-go/ratelimit/internal/dev/testsize"
	"github.com/weir-go/ratelimit/policy"
)

// TestADecisionUsesOneSetWhole changes between two sets under load. Any mixture of these sets would decide otherwise.
func TestADecisionUsesOneSetWhole(t *testing.T) {
	for name, pair := range map[string][2]string{
		"both deny":              {"- {name: a, limit: unlimited}\n- {name: b, limit: blocked}", "- {name: a, limit: blocked}\n- {name: b, limit: unlimited}"},
		"both allow":             {"- {name: a, limit: fixed-window 1000000000/h}\n- {name: b, limit: blocked, disabled: true}", "- {name: a, limit: blocked, disabled: true}\n- {name: b, limit: fixed-window 1000000000/h}"},
		"both allow, one shadow": {"- {name: a, limit: blocked, shadow: true}\n- {name: b, limit: unlimited}", "- {name: a, limit: unlimited}\n- {name: b, limit: blocked, shadow: true}"},
		"both deny by plans":     {"- {name: a, limit: blocked, plans: {x: unlimited}}\n- {name: b, limit: unlimited, plans: {x: blocked}}", "- {name: a, limit: unlimited, plans: {x: blocked}}\n- {name: b, limit: blocked, plans: {x: unlimited}}"},
		"both deny by cost":      {"- {name: a, limit: fixed-window 2/h, cost: 1}\n- {name: b, limit: fixed-window 2/h, cost: 3}", "- {name: a, limit: fixed-window 4/h, cost: 5}\n- {name: b, limit: fixed-window 4/h, cost: 1}"},
		"with and without plans": {"- {name: a, limit: unlimited, plans: {x: blocked}}\n- {name: b, limit: unlimited}", "- {name: a, limit: unlimited}\n- {name: b, limit: blocked}"},
	} {
		t.Run(name, func(t *testing.T) {
			sets := [2]*policy.Set{}
			for i := range pair {
				sets[i] = parsed(t, fmt.Sprintf("version: v%d\nrules:\n%s", i, pair[i]))
			}
			alternate(t, sets[:], attrs{"plan": "x"}, func(d policy.Decision) error {
				want := name[:8] != "both den" && name[:4] != "with"
				if got := d.Decision.Allowed && d.Err == nil; got != want {
					return fmt.Errorf("allowed is %v", got)
				}
				return nil
			})
		})
	}
}

// TestReportedFiguresBelongToOneSet draws sets at random. The figures of all limits identify a set.
func TestReportedFiguresBelongToOneSet(t *testing.T) {
	rnd := rand.New(rand.NewPCG(28, 1))
	var sets []*policy.Set
	for v := range 8 {
		set := &policy.Set{Version: fmt.Sprint(v)}
		for _, name := range []string{"a", "b", "c", "d"} {
			limit := func() ratelimit.Limit {
				rate := ratelimit.Rate{Units: 1_000_000 + v, Per: time.Hour}
				switch rnd.IntN(4) {
				case 0:
					return ratelimit.FixedWindow(rate)
				case 1:
					return ratelimit.SlidingCounter(rate)
				}
				return ratelimit.TokenBucket(rate, rate.Units)
			}
			r := policy.Rule{Name: name, Limit: limit(), Shadow: rnd.IntN(3) == 0}
			if rnd.IntN(2) == 0 {
				r.Plans = map[string]ratelimit.Limit{"x": limit()}
			}
			if rnd.IntN(2) == 0 {
				r.Key = []string{"user"}
			}
			if rnd.IntN(2) == 0 {
				r.Cost.Number = 1 + rnd.IntN(3)
			}
			if rnd.IntN(5) > 0 {
				set.Rules = append(set.Rules, r)
			}
		}
		rnd.Shuffle(len(set.Rules), func(i, j int) { set.Rules[i], set.Rules[j] = set.Rules[j], set.Rules[i] })
		sets = append(sets, set)
	}
	alternate(t, sets, attrs{"plan": "x", "user": "ann"}, func(d policy.Decision) error {
		var v int
		if _, err := fmt.Sscan(d.Version, &v); err != nil {
			return err
		}
		if len(d.Rules) != len(sets[v].Rules) {
			return fmt.Errorf("version %d told of %d rules", v, len(d.Rules))
		}
		for i, r := range d.Rules {
			if got := r.Decision.Limit.Rate.Units; !r.Answered || got != 1_000_000+v || r.Rule != sets[v].Rules[i].Name {
				return fmt.Errorf("version %d told of %+v", v, r)
			}
		}
		if l := d.Decision.Limit; l != ratelimit.Unlimited() && l.Rate.Units != 1_000_000+v {
			return fmt.Errorf("version %d answered by %v", v, l)
		}
		return d.Err
	})
}

// alternate puts sets in force one after another while several
// goroutines decide by each method. It checks each decision's figures.
func alternate(t *testing.T, sets []*policy.Set, r policy.Request, check func(policy.Decision) error) {
	t.Helper()
	var wrong atomic.Pointer[error]
	var decisions atomic.Int64
	p, err := policy.New(sets[0], &policy.Options{OnDecision: func(d policy.Decision) {
		decisions.Add(1)
		if err := check(d); err != nil {
			wrong.CompareAndSwap(nil, &err)
		}
	}})
	require.NoError(t, err)
	stop := make(chan struct{})
	var wg sync.WaitGroup
	for range 4 {
		wg.Go(func() {
			for i := 0; ; i++ {
				select {
				case <-stop:
					return
				default:
				}
				switch i % 4 {
				case 0:
					p.Allow(r, 1)
				case 1:
					_, _ = p.Take(t.Context(), r, 1)
				case 2:
					if res, err := p.Reserve(t.Context(), r, 1, 0); err == nil {
						_ = res.Cancel()
					}
				case 3:
					_, _ = p.Explain(r, 1)
				}
			}
		})
	}
	changes := testsize.Of(60, 400)
	for i := 0; i < changes || decisions.Load() < 10*int64(changes); i++ {
		require.NoError(t, p.Update(sets[i%len(sets)]))
	}
	close(stop)
	wg.Wait()
	if err := wrong.Load(); err != nil {
		t.Fatal(*err)
	}
}
