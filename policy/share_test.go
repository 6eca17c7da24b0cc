package policy_test

import (
	"encoding/json"
	"errors"
	"math"
	"strings"

	"go.yaml.in/yaml/v4"

	"context"
	"fmt"
	"math/rand/v2"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/weir-go/ratelimit"
	"github.com/weir-go/ratelimit/policy"
	"github.com/weir-go/ratelimit/ratelimittest"
)

const upstream = `
rules:
- name: upstream
  key: tenant
  limit: token-bucket 1000/s burst 1000
  share: 1
  shares: {pro: 3, trial: 2}
  plans: {banned: blocked, staff: unlimited}
  overrides: [{key: acme, share: 10}, {key: mallory, limit: blocked}]
`

func policiesOf(t *testing.T, text string, opts *policy.Options) *policy.Policies {
	t.Helper()
	set, problems := policy.Check([]byte(text))
	require.NotNil(t, set, problems)
	require.Empty(t, problems)
	p, err := policy.New(set, opts)
	require.NoError(t, err)
	return p
}

// queue counts the units granted to tenants. Each tenant calls Wait again and again.
type queue struct {
	mu   sync.Mutex
	used map[string]int
}

func (c *queue) wait(ctx context.Context, p *policy.Policies, tenant, plan string, cost int) {
	for p.Wait(ctx, policy.Attributes{"tenant": tenant, "plan": plan}, cost) == nil {
		c.mu.Lock()
		c.used[tenant] += cost
		c.mu.Unlock()
	}
}

// taken returns the counts since the last call.
func (c *queue) taken() map[string]int {
	c.mu.Lock()
	defer c.mu.Unlock()
	used := c.used
	c.used = map[string]int{}
	return used
}

func total(used map[string]int) (sum int) {
	for _, n := range used {
		sum += n
	}
	return sum
}

// 500 tenants of three plans share one upstream limit. All want more than their share.
func TestKeysOfARuleWithShareHaveItsRateByWeight(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := policiesOf(t, upstream, nil)
		ctx, stop := context.WithCancel(t.Context())
		defer stop()
		c := &queue{used: map[string]int{}}
		weights := map[string]float64{}
		sum := 0.0
		for i := range 500 {
			tenant, plan, weight := fmt.Sprint("t", i), "free", 1.0
			switch {
			case i == 0:
				tenant, weight = "acme", 10
			case i%10 == 1:
				plan, weight = "pro", 3
			case i%10 == 2:
				plan, weight = "trial", 2
			}
			weights[tenant] = weight
			sum += weight
			go c.wait(ctx, p, tenant, plan, 1)
		}
		time.Sleep(10 * time.Second)
		c.taken()
		time.Sleep(20 * time.Second)
		used := c.taken()
		assert.InDelta(t, 20_000, total(used), 200)
		for tenant, weight := range weights {
			assert.InEpsilon(t, 20_000*weight/sum, float64(used[tenant]), 0.1, tenant)
		}
		assert.False(t, p.Allow(policy.Attributes{"tenant": "mallory"}, 1))
		assert.False(t, p.Allow(policy.Attributes{"tenant": "x", "plan": "banned"}, 1))
		for range 100 {
			assert.True(t, p.Allow(policy.Attributes{"tenant": "x", "plan": "staff"}, 1000), "takes no part")
		}
		stop()
		synctest.Wait()
	})
}

// weighted returns a set with one rule, and weights for the tenants a and b.
func weighted(t *testing.T, limit string, a, b int) *policy.Set {
	return parsed(t, fmt.Sprintf("rules: [{name: up, key: tenant, limit: %s, share: 1, shares: {a: %d}, overrides: [{key: b, share: %d}]}]", limit, a, b))
}

func TestAChangedWeightOrRateReachesCallsInLine(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p, err := policy.New(weighted(t, "token-bucket 100/s burst 100", 1, 1), nil)
		require.NoError(t, err)
		ctx, stop := context.WithCancel(t.Context())
		defer stop()
		c := &queue{used: map[string]int{}}
		go c.wait(ctx, p, "a", "a", 1)
		go c.wait(ctx, p, "b", "", 1)
		for _, step := range []struct {
			limit     string
			a, b      int
			rate      float64
			partOfOne float64
		}{
			{"token-bucket 100/s burst 100", 1, 1, 100, 0.5},
			{"token-bucket 100/s burst 100", 3, 1, 100, 0.75},
			{"token-bucket 100/s burst 100", 3, 9, 100, 0.25},
			{"token-bucket 500/s burst 500", 3, 9, 500, 0.25},
			{"token-bucket 50/s burst 50", 1, 1, 50, 0.5},
		} {
			require.NoError(t, p.Update(weighted(t, step.limit, step.a, step.b)))
			time.Sleep(5 * time.Second)
			c.taken()
			time.Sleep(20 * time.Second)
			used := c.taken()
			assert.InEpsilon(t, 20*step.rate, float64(total(used)), 0.02, step)
			assert.InDelta(t, step.partOfOne, float64(used["a"])/float64(total(used)), 0.03, step)
		}
		stop()
		synctest.Wait()
	})
}

// A call sleeps in line during the change, and no other call comes. At the old rate, it would wait for 8 minutes.
func TestAChangedRateReachesACallInLineAndKeepsTheSpending(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := ratelimit.Must(policy.New(weighted(t, "token-bucket 1/m burst 10", 1, 1), nil))
		require.True(t, p.Allow(policy.Attributes{"tenant": "c"}, 8))
		done := make(chan error, 1)
		began := time.Now()
		go func() { done <- p.Wait(t.Context(), policy.Attributes{"tenant": "d"}, 10) }()
		synctest.Wait()
		require.NoError(t, p.Update(weighted(t, "token-bucket 60/m burst 10", 1, 1)))
		require.NoError(t, <-done)
		assert.InDelta(t, 8, time.Since(began).Seconds(), 1, "8 of 10 were spent, and are not forgotten")
	})
}

// All matching rules are charged, or none, even if one rule's keys share its limit.
func TestARuleWithShareAndOthersAreChargedTogetherOrNotAtAll(t *testing.T) {
	text := `
rules:
- {name: own, key: tenant, limit: token-bucket 1/h burst %d}
- {name: up, key: tenant, limit: token-bucket 1/h burst %d, share: 1}
- {name: down, key: tenant, limit: token-bucket 1/h burst %d, share: 1}
- {name: dark, key: tenant, limit: token-bucket 1/h burst %d, share: 1, shadow: true}
`
	clock := new(ratelimittest.Clock)
	rng := rand.New(rand.NewPCG(1, 2))
	allowed, denied := 0, map[string]int{}
	for range 300 {
		var decided policy.Decision
		p := policiesOf(t, fmt.Sprintf(text, 1+rng.IntN(20), 1+rng.IntN(20), 1+rng.IntN(20), 1+rng.IntN(20)),
			&policy.Options{Engine: policy.Memory(&policy.MemoryOptions{Clock: clock}), OnDecision: func(d policy.Decision) { decided = d }})
		names := []string{"own", "up", "down"}
		var open []*ratelimit.Reservation
		var of []string
		var costs []int
		for range 40 {
			tenant, cost := string(rune('a'+rng.IntN(2))), 1+rng.IntN(4)
			request := policy.Attributes{"tenant": tenant}
			look := func(cost int) (all []ratelimit.Decision) {
				for _, name := range names {
					d, err := p.Peek(t.Context(), policy.Subject{Rule: name, Key: []string{tenant}}, cost)
					if err != nil {
						require.ErrorIs(t, err, ratelimit.ErrExceedsLimit)
					}
					all = append(all, d)
				}
				return all
			}
			if len(open) > 0 && rng.IntN(4) == 0 {
				k := rng.IntN(len(open))
				tenant = of[k]
				before := look(0)
				require.NoError(t, open[k].Cancel())
				for i, d := range look(0) {
					require.Equal(t, before[i].ResetAfter-time.Duration(costs[k])*time.Hour, d.ResetAfter, names[i])
				}
				costs = append(costs[:k], costs[k+1:]...)
				open, of = append(open[:k], open[k+1:]...), append(of[:k], of[k+1:]...)
				continue
			}
			before := look(cost)
			var d ratelimit.Decision
			var err error
			if rng.IntN(2) == 0 {
				d, err = p.Take(t.Context(), request, cost)
			} else {
				var res *ratelimit.Reservation
				if res, err = p.Reserve(t.Context(), request, cost, 0); res.Allowed {
					open, of, costs = append(open, res), append(of, tenant), append(costs, cost)
				}
				d = res.Decision
			}
			if err != nil {
				require.ErrorIs(t, err, ratelimit.ErrExceedsLimit)
			}
			want := before[0].Allowed && before[1].Allowed && before[2].Allowed
			require.Equal(t, want, d.Allowed)
			if want {
				allowed++
			}
			for i, after := range look(0) { // each unit takes an hour to regain
				spent := time.Duration(0)
				if want {
					spent = time.Duration(cost) * time.Hour
				}
				require.Equal(t, before[i].ResetAfter+spent, after.ResetAfter, names[i])
				if !before[i].Allowed {
					denied[names[i]]++
				}
			}
			for _, r := range decided.Rules {
				if !r.Shadow {
					require.Equal(t, want, r.Spent, "%s: %+v", r.Rule, decided)
				}
			}
			standing, err := p.Peek(t.Context(), request, 0)
			require.NoError(t, err)
			least := before[0].Remaining
			for _, d := range look(0) {
				least = min(least, d.Remaining)
			}
			require.Equal(t, least, standing.Remaining)
		}
	}
	assert.Greater(t, allowed, 300)
	for name, n := range denied {
		assert.Greater(t, n, 300, name)
	}
}

func TestARuleWithShareIsWrittenAsItIsRead(t *testing.T) {
	set, err := policy.Parse([]byte("defaults: {plans: {pro: fixed-window 5/s}, limit: token-bucket 9/s burst 9}\n" + upstream[1:] + "- {name: rest, share: 1, key: tenant}\n- {name: plain, key: tenant}"))
	require.NoError(t, err)
	assert.Equal(t, 1, set.Rules[0].Share)
	assert.Equal(t, map[string]int{"pro": 3, "trial": 2}, set.Rules[0].Shares)
	assert.Equal(t, 10, set.Rules[0].Overrides[0].Share)
	whole := complete(set)
	assert.Nil(t, whole[1].Plans, "the limits of the defaults are not for weights")
	assert.NotNil(t, whole[2].Plans)
	for _, marshal := range []func(any) ([]byte, error){yaml.Marshal, json.Marshal} {
		text, err := marshal(set)
		require.NoError(t, err)
		again, err := policy.Parse(text)
		require.NoError(t, err, "%s", text)
		assert.Equal(t, set, again)
	}
}

func TestAnEngineWhoseKeysShareNoLimitRefusesARuleWithShare(t *testing.T) {
	plain := func(b policy.Budget, _ ratelimit.Limiter[string]) (ratelimit.Limiter[string], error) {
		return ratelimit.New[string](b.Limit, nil) // the engine uses only the limit
	}
	set, problems := policy.Check([]byte(upstream[1:]), plain)
	require.Nil(t, set)
	require.Len(t, problems, 1)
	assert.Equal(t, "rules[0].share", problems[0].Field)
	assert.Equal(t, 5, problems[0].Line)
	assert.ErrorContains(t, problems[0], "*ratelimit.Keyed[string], whose keys do not share one limit")
	_, err := policy.New(ratelimit.Must(policy.Parse([]byte(upstream[1:]))), &policy.Options{Engine: plain})
	require.ErrorContains(t, err, `rule "upstream": the engine returned a *ratelimit.Keyed[string]`)

	set, problems = policy.Check([]byte("rules: [{name: up, key: tenant, limit: token-bucket 1/s burst 2000000000000, share: 1}]"), policy.Memory(nil))
	require.Nil(t, set)
	assert.Equal(t, "rules[0].limit", problems[0].Field)
}

// Calls of a rule with share wait in line. If their turn would come too late, the other rules get their charges back.
func TestACallOfARuleWithShareWaitsInLine(t *testing.T) {
	settle := func(r *ratelimit.Reservation) error { return r.Settle(3) }
	for name, c := range map[string]struct {
		patience time.Duration
		end      func(*ratelimit.Reservation) error // ends the reservation; nil for a Wait
		err      error
		own      int  // what the rule own is charged at the end
		again    bool // whether another call may follow at once
	}{
		"a reservation that would be late": {patience: time.Second, end: settle}, // 40 are left of 100, and 10 come in a second
		"a reservation that is settled":    {patience: time.Minute, end: settle, own: 3},
		"a reservation that is cancelled":  {patience: time.Minute, end: (*ratelimit.Reservation).Cancel, again: true},
		"a Wait that would be late":        {patience: time.Second, err: context.DeadlineExceeded},
		"a Wait":                           {patience: time.Minute, own: 7},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				p := policiesOf(t, "rules:\n- {name: own, key: tenant, limit: fixed-window 1000/h}\n- {name: up, key: tenant, limit: token-bucket 10/s burst 100, share: 1, cost: 60}\n", nil)
				ann := policy.Attributes{"tenant": "ann"}
				own := func() int {
					d, err := p.Peek(t.Context(), policy.Subject{Rule: "own", Key: []string{"ann"}}, 0)
					require.NoError(t, err)
					return 1000 - d.Remaining
				}
				require.True(t, p.Allow(ann, 7))
				began, patient := time.Now(), c.patience == time.Minute
				if c.end == nil {
					ctx, cancel := context.WithTimeout(t.Context(), c.patience)
					defer cancel()
					require.ErrorIs(t, p.Wait(ctx, ann, 7), c.err)
				} else {
					res, err := p.Reserve(t.Context(), ann, 7, c.patience)
					require.NoError(t, err)
					assert.Equal(t, patient, res.Allowed)
					assert.Equal(t, patient, own() == 14)
					assert.Equal(t, "up", res.Limit.Name)
					assert.Zero(t, res.Delay, "the work may start")
					require.NoError(t, c.end(res))
				}
				assert.Equal(t, patient, time.Since(began) > time.Second)
				assert.Equal(t, 7+c.own, own())
				assert.Equal(t, c.again, p.Allow(ann, 7))
			})
		})
	}
}

// A waiting call tries again while another rule denies it, and also after that rule has changed.
func TestAWaitBehindAnotherRuleThanTheShareIsServed(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		text := "rules:\n- {name: own, key: tenant, limit: fixed-window 5/%s}\n- {name: up, key: tenant, limit: token-bucket 10/s burst 100, share: 1}\n"
		p := policiesOf(t, fmt.Sprintf(text, "m"), nil)
		ann := policy.Attributes{"tenant": "ann"}
		require.True(t, p.Allow(ann, 5))
		began := time.Now()
		require.NoError(t, p.Wait(t.Context(), ann, 5))
		assert.InDelta(t, 60, time.Since(began).Seconds(), 1.1)
		short, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		require.ErrorIs(t, p.Wait(short, ann, 5), context.DeadlineExceeded)
		assert.Less(t, time.Since(began), 62*time.Second, "at once")
		done := make(chan error, 1)
		go func() { done <- p.Wait(t.Context(), ann, 5) }()
		synctest.Wait()
		require.NoError(t, p.Reset(t.Context(), policy.Subject{Rule: "own", Key: []string{"ann"}}))
		require.NoError(t, <-done)
		assert.Less(t, time.Since(began), 64*time.Second)
		require.ErrorIs(t, p.Wait(t.Context(), ann, 6), ratelimit.ErrExceedsLimit)
	})
}

// A leaky bucket's queue delays a call allowed at once by a shared limit. The delay passes while the call waits in line.
func TestALeakyBucketBesideAShareDelays(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := policiesOf(t, "rules:\n- {name: own, key: tenant, limit: leaky-bucket 1/s queue 10}\n- {name: up, key: tenant, limit: token-bucket 10/s burst 100, share: 1}\n", nil)
		ann := policy.Attributes{"tenant": "ann"}
		for i := range 4 {
			d, err := p.Take(t.Context(), ann, 1)
			require.NoError(t, err)
			assert.True(t, d.Allowed)
			assert.Equal(t, time.Duration(i)*time.Second, d.Delay)
		}
		began := time.Now()
		require.NoError(t, p.Wait(t.Context(), ann, 1))
		assert.Equal(t, 4*time.Second, time.Since(began))
	})
}

func TestOneKeyOfARuleWithShareIsReadAndChanged(t *testing.T) {
	clock := new(ratelimittest.Clock)
	p := policiesOf(t, upstream, &policy.Options{Engine: policy.Memory(&policy.MemoryOptions{Clock: clock})})
	ann := policy.Subject{Rule: "upstream", Key: []string{"ann"}, Plan: "pro"}
	left := func() int {
		d, err := p.Peek(t.Context(), ann, 0)
		require.NoError(t, err)
		return d.Remaining
	}
	whole := left()
	require.NoError(t, p.Adjust(t.Context(), ann, 300))
	assert.Equal(t, whole-300, left())
	require.NoError(t, p.Adjust(t.Context(), policy.Attributes{"tenant": "ann", "plan": "pro"}, 100))
	assert.Equal(t, whole-400, left())
	require.NoError(t, p.Reset(t.Context(), ann))
	assert.Equal(t, whole, left())
	assert.Equal(t, 1, p.Stats().Tables["upstream"].Keys)
	err := p.Each(t.Context(), "upstream", func([]string, ratelimit.Decision) bool { return true })
	require.ErrorIs(t, err, errors.ErrUnsupported)
	require.NoError(t, p.Each(t.Context(), "", func([]string, ratelimit.Decision) bool { return true }), "the page lists the keys of the other rules")
	for range 9 { // each is denied, and listed as denied
		p.Allow(policy.Attributes{"tenant": "ann"}, 700)
	}
	assert.Equal(t, int64(8), p.Denied(1)[0].Count)
}

func TestAnExplanationHasTheWeightOfAShare(t *testing.T) {
	p := policiesOf(t, upstream, nil)
	for who, want := range map[string]string{
		"tenant=ann":            "upstream: a share of weight 1 (from the rule) of token-bucket 1000/s burst 1000, key \"ann\", cost 1 of 1000; now: allows it, 1000 left\n",
		"tenant=ann plan=pro":   "upstream: a share of weight 3 (from plan pro) of token-bucket 1000/s burst 1000, key \"ann\", cost 1 of 1000; now: allows it, 1000 left\n",
		"tenant=acme plan=pro":  "upstream: a share of weight 10 (from an override) of token-bucket 1000/s burst 1000, key \"acme\", cost 1 of 1000; now: allows it, 1000 left\n",
		"tenant=ann plan=staff": "upstream: unlimited (from plan staff), key \"ann\", cost 1 of 9223372036854775807; now: allows it, 9223372036854775807 left\n",
	} {
		request := policy.Attributes{}
		for _, part := range strings.Fields(who) {
			name, value, _ := strings.Cut(part, "=")
			request[name] = value
		}
		ex, err := p.Explain(request, 1)
		require.NoError(t, err)
		if math.MaxInt == math.MaxInt64 {
			assert.Equal(t, want, ex.String(), who)
		}
	}
	assert.Zero(t, p.Stats().Tables["upstream"].Keys)
}

// A rule gets new budgets when it begins or ends to share its
// limit. Calls in line are served by the limit that they wait for.
func TestARuleThatBeginsToShareHasNewBudgets(t *testing.T) {
	clock := new(ratelimittest.Clock)
	const text = "rules: [{name: up, key: tenant, limit: token-bucket 1/h burst 10%s}]"
	p := policiesOf(t, fmt.Sprintf(text, ""), &policy.Options{Engine: policy.Memory(&policy.MemoryOptions{Clock: clock})})
	ann, bob := policy.Attributes{"tenant": "ann"}, policy.Attributes{"tenant": "bob"}
	for _, share := range []string{"", ", share: 1", "", ", share: 2"} {
		require.NoError(t, p.Update(ratelimit.Must(policy.Parse(fmt.Appendf(nil, text, share)))))
		assert.True(t, p.Allow(ann, 8))
		assert.False(t, p.Allow(ann, 3))
		assert.Equal(t, share == "", p.Allow(bob, 3), "with a share bob has none of it left")
	}
}

// While a fleet's store is down, keys share this process's part of the limit in the stand-in.
func TestAStandInSharesThePartOfOneProcess(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := policiesOf(t, upstream, &policy.Options{Engine: policy.Memory(&policy.MemoryOptions{Processes: 4})})
		ctx, stop := context.WithCancel(t.Context())
		c := &queue{used: map[string]int{}}
		go c.wait(ctx, p, "ann", "", 1)
		go c.wait(ctx, p, "bob", "pro", 1)
		for _, rate := range []int{1000, 500} {
			require.NoError(t, p.Update(ratelimit.Must(policy.Parse([]byte(strings.Replace(upstream, "1000/s", fmt.Sprint(rate, "/s"), 1))))))
			time.Sleep(5 * time.Second)
			c.taken()
			time.Sleep(20 * time.Second)
			used := c.taken()
			assert.InEpsilon(t, 20*rate/4, total(used), 0.02)
			assert.InEpsilon(t, 3, float64(used["bob"])/float64(used["ann"]), 0.05)
		}
		d, err := p.Take(ctx, policy.Attributes{"tenant": "ann"}, 251)
		require.ErrorIs(t, err, ratelimit.ErrExceedsLimit)
		assert.Equal(t, 250, d.Limit.Burst)
		stop()
		synctest.Wait()
	})
}
