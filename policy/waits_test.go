package policy_test

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/weir-go/ratelimit"
	"github.com/weir-go/ratelimit/policy"
)

// line is a line of calls to Wait, made one after the other.
type line struct {
	begin time.Time
	wg    sync.WaitGroup

	mu     sync.Mutex // guards the fields below
	served []time.Duration
	order  []int
	failed []error
}

// stand makes n calls wait, one after the other.
func stand(t *testing.T, n int, patience time.Duration, p *policy.Policies, request func(i int) policy.Request) *line {
	t.Helper()
	l := &line{begin: time.Now()}
	for i := range n {
		l.wg.Go(func() {
			ctx, cancel := context.WithTimeout(context.Background(), patience)
			defer cancel()
			err := p.Wait(ctx, request(i), 1)
			l.mu.Lock()
			defer l.mu.Unlock()
			if err != nil {
				l.failed = append(l.failed, err)
				return
			}
			l.served, l.order = append(l.served, time.Since(l.begin)), append(l.order, i)
		})
		synctest.Wait()
	}
	return l
}

// passed counts the calls served.
func (l *line) passed() int {
	synctest.Wait()
	l.mu.Lock()
	defer l.mu.Unlock()
	return len(l.served)
}

func ofAnn(int) policy.Request { return policy.Attributes{"user": "ann"} }

func limitOf(limit string) *policy.Set {
	return rules("rules: [{name: api, key: user, limit: " + limit + "}]")
}

func rules(text string) *policy.Set { return ratelimit.Must(policy.Parse([]byte(text))) }

// 300 calls wait at 1/s. After two seconds, with three of them served, a set changes the limit, or the rule.
func TestCallsInLineFollowASetThatComesIntoForce(t *testing.T) {
	const calls = 300
	for name, c := range map[string]struct {
		before, after *policy.Set
		last          time.Duration // from the change until the last call is served
		served        int           // how many calls are served
		failed        error         // the other calls' error
	}{
		"a raise":             {limitOf("token-bucket 1/s burst 1"), limitOf("token-bucket 100/s burst 100"), 1980 * time.Millisecond, calls, nil},
		"a raise of a log":    {limitOf("sliding-log 3/m"), limitOf("sliding-log 6000/m"), 0, calls, nil},
		"a raise of a window": {limitOf("fixed-window 3/m"), limitOf("fixed-window 6000/m"), 0, calls, nil},
		"a lower limit":       {limitOf("token-bucket 1/s burst 1"), limitOf("token-bucket 30/m burst 1"), 594 * time.Second, calls, nil},
		"blocked":             {limitOf("token-bucket 1/s burst 1"), limitOf("blocked"), 0, 3, ratelimit.ErrBlocked},
		"unlimited":           {limitOf("token-bucket 1/s burst 1"), limitOf("unlimited"), 0, calls, nil},
		"the rule is removed": {limitOf("token-bucket 1/s burst 1"), rules("rules: []"), 0, calls, nil},
		"the key is exempt": {limitOf("token-bucket 1/s burst 1"), rules(`rules:
- {name: api, key: user, limit: token-bucket 1/s burst 1}
- {name: staff, match: {attributes: {user: ann}}, allow: true}`), 0, calls, nil},
		"an override": {limitOf("token-bucket 1/s burst 1"), rules(`rules: [{name: api, key: user, limit: token-bucket 1/s burst 1, overrides: [{key: ann, limit: token-bucket 50/s burst 1}]}]`), 5940 * time.Millisecond, calls, nil},
		"another rule, which is slower": {limitOf("token-bucket 1/s burst 1"), rules(`rules:
- {name: api, key: user, limit: token-bucket 1/s burst 1}
- {name: all, limit: token-bucket 30/m burst 1}`), 593 * time.Second, calls, nil},
		"the kill switch": {limitOf("token-bucket 1/s burst 1"), rules("kill_switch: true\nrules: [{name: api, key: user, limit: token-bucket 1/s burst 1}]"), 0, calls, nil},
		"another attribute": {limitOf("token-bucket 1/s burst 1"), rules("rules: [{name: api, key: tenant, limit: token-bucket 1/s burst 1}]"), 0, 3,
			errors.New("")},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				var reports int
				var mu sync.Mutex
				p := ratelimit.Must(policy.New(c.before, &policy.Options{OnDecision: func(policy.Decision) {
					mu.Lock()
					defer mu.Unlock()
					reports++
				}}))
				l := stand(t, calls, 9*time.Hour, p, ofAnn)
				time.Sleep(2 * time.Second)
				require.Equal(t, 3, l.passed())
				require.NoError(t, p.Update(c.after))
				l.wg.Wait()
				require.Len(t, l.served, c.served)
				for i := range l.order { // calls passing at one instant may be recorded in any order
					require.True(t, i == 0 || l.served[i] == l.served[i-1] || l.order[i] > l.order[i-1], "first come, first served")
				}
				require.InDelta(t, c.last, l.served[len(l.served)-1]-2*time.Second, float64(time.Millisecond))
				require.Len(t, l.failed, calls-c.served)
				for _, err := range l.failed {
					if c.failed != nil && c.failed.Error() != "" {
						require.ErrorIs(t, err, c.failed)
					}
				}
				require.Equal(t, calls, reports, "each call is reported once")
			})
		})
	}
}

// Calls that do not wait overtake nobody, whenever the limit changes.
func TestAPollerOvertakesNoCallInLineWhenTheLimitChanges(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := ratelimit.Must(policy.New(limitOf("token-bucket 1/s burst 1"), nil))
		l := stand(t, 400, time.Hour, p, ofAnn)
		polled := 0
		for i := range 40 {
			require.NoError(t, p.Update(limitOf(fmt.Sprintf("token-bucket %d/s burst 1", 10+i%7))))
			if p.Allow(ofAnn(0), 1) {
				polled++
			}
			time.Sleep(400 * time.Millisecond)
			if p.Allow(ofAnn(0), 1) {
				polled++
			}
		}
		require.Zero(t, polled)
		passed := l.passed()
		require.Greater(t, passed, 200) // 16 s at 10/s to 16/s
		require.Less(t, passed, 215)
		require.NoError(t, p.Update(limitOf("token-bucket 500/s burst 1")))
		l.wg.Wait()
		require.IsIncreasing(t, l.order)
		require.Empty(t, l.failed)
	})
}

// Each minute an operator edits the rules: rules for other requests, the limit by 1 %, or its algorithm. Meanwhile each of 60
// workers calls a model again and again. Each call waits with an estimate of 1,000 tokens, and gives the unused ones back.
func TestAnHourOfWorkersWhileTheRulesAreEdited(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		edit := func(minute int) *policy.Set {
			text := fmt.Sprintf("rules:\n- {name: tokens, key: org, limit: token-bucket %d/m burst 60000}\n- {name: web, key: ip, optional: true, limit: fixed-window %d/m}\n",
				60_000*(100+minute%2)/100, 100+minute)
			if minute%3 == 0 {
				text += "- {name: calls, key: org, limit: sliding-counter 100000/m, cost: 1}\n"
			}
			return rules(text)
		}
		p := ratelimit.Must(policy.New(edit(0), nil))
		ctx, cancel := context.WithTimeout(t.Context(), time.Hour)
		defer cancel()
		org := policy.Attributes{"org": "acme"}
		used, mu := 0, sync.Mutex{}
		var wg sync.WaitGroup
		for i := range 60 {
			wg.Go(func() {
				for {
					if err := p.Wait(ctx, org, 1000); err != nil {
						assert.ErrorIs(t, err, context.DeadlineExceeded)
						return
					}
					time.Sleep(time.Duration(500+10*i) * time.Millisecond)
					real := 100 + 37*i%300
					assert.NoError(t, p.Adjust(ctx, org, real-1000))
					mu.Lock()
					used += real
					mu.Unlock()
				}
			})
		}
		for minute := range 59 {
			time.Sleep(time.Minute)
			require.NoError(t, p.Update(edit(minute+1)))
		}
		wg.Wait()
		t.Logf("%.1f %% used", 100*float64(used)/(60*60_000))
		require.Greater(t, used, 57*60_000)
		require.LessOrEqual(t, used, 61*60_000*101/100)
	})
}

// If a set changes only the rules for others, a line of shares stays as it is.
func TestCallsInALineOfSharesKeepTheirPlaces(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		set := func(other int, rate string) *policy.Set {
			return rules(fmt.Sprintf("rules:\n- {name: gpu, key: team, limit: token-bucket %s burst 1, share: 1}\n- {name: web, key: ip, optional: true, limit: fixed-window %d/m}", rate, other))
		}
		p := ratelimit.Must(policy.New(set(1, "1/s"), nil))
		l := stand(t, 60, time.Hour, p, func(i int) policy.Request { return policy.Attributes{"team": string("ab"[i%2])} })
		for i := range 20 {
			time.Sleep(time.Second)
			require.NoError(t, p.Update(set(2+i, "1/s")))
		}
		require.Equal(t, 21, l.passed())
		require.NoError(t, p.Update(set(1, "10/s")))
		l.wg.Wait()
		teams := [2][]int{}
		for _, call := range l.order {
			teams[call%2] = append(teams[call%2], call)
		}
		require.IsIncreasing(t, teams[0])
		require.IsIncreasing(t, teams[1])
		require.InDelta(t, 3900*time.Millisecond, l.served[59]-20*time.Second, float64(10*time.Millisecond))
	})
}

// While calls wait, an override ends, or a rule begins. The bubble's clock begins at midnight of 2000-01-01, UTC.
func TestCallsInLineFollowTheDatesOfTheirRules(t *testing.T) {
	for name, c := range map[string]struct {
		rules string
		last  time.Duration
	}{
		"an override ends": {"{name: api, key: user, limit: token-bucket 1/s burst 1, overrides: [{key: ann, until: 2000-01-01T00:00:10Z, limit: token-bucket 10/s burst 1}]}", 209 * time.Second},
		"a rule begins":    {"{name: api, key: user, limit: token-bucket 10/s burst 1}, {name: night, key: user, from: 2000-01-01T00:00:10Z, limit: token-bucket 1/s burst 1}", 209 * time.Second},
		"a rule ends":      {"{name: api, key: user, limit: token-bucket 10/s burst 1}, {name: night, key: user, until: 2000-01-01T00:00:10Z, limit: token-bucket 1/s burst 1}", 39 * time.Second},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				p := ratelimit.Must(policy.New(rules("rules: ["+c.rules+"]"), nil))
				l := stand(t, 300, time.Hour, p, ofAnn)
				l.wg.Wait()
				require.Empty(t, l.failed)
				require.IsIncreasing(t, l.order)
				require.InDelta(t, c.last, l.served[len(l.served)-1], float64(2*time.Second))
			})
		})
	}
}

// panicky is a request that panics from an instant on.
type panicky struct {
	policy.Attributes
	from time.Time
}

func (r panicky) Attribute(name string) (string, bool) {
	if !time.Now().Before(r.from) {
		panic("the request is closed")
	}
	v, ok := r.Attributes[name]
	return v, ok
}

// A panicking request panics in its caller's goroutine, and Update goes on.
func TestARequestThatPanicsWhileItWaits(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := ratelimit.Must(policy.New(limitOf("token-bucket 1/s burst 1"), nil))
		require.True(t, p.Allow(ofAnn(0), 1))
		panicked := make(chan any, 1)
		go func() {
			defer func() { panicked <- recover() }()
			_ = p.Wait(t.Context(), panicky{policy.Attributes{"user": "ann"}, time.Now().Add(time.Second / 2)}, 1)
		}()
		l := stand(t, 10, time.Hour, p, ofAnn)
		time.Sleep(600 * time.Millisecond)
		require.NoError(t, p.Update(limitOf("token-bucket 2/s burst 1")))
		require.Equal(t, "the request is closed", <-panicked)
		l.wg.Wait()
		require.Len(t, l.served, 10)
	})
}
