package policyredis_test

import (
	"context"
	"fmt"
	"math/rand/v2"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/weir-go/ratelimit"
	"github.com/weir-go/ratelimit/internal/dev/crossings"
	"github.com/weir-go/ratelimit/internal/dev/redistest"
	"github.com/weir-go/ratelimit/internal/dev/testsize"
	"github.com/weir-go/ratelimit/policy"
	"github.com/weir-go/ratelimit/policy/admin"
	"github.com/weir-go/ratelimit/policyredis"
)

// With charge: always, a rule's denial takes one more round trip. It takes
// two more if the budgets to charge differ from those in the script's answer.
func TestADecisionIsOneRoundTrip(t *testing.T) {
	client := local(t)
	for limit, denial := range map[string]int64{
		"token-bucket 100/h burst 100": 2, "fixed-window 100/h": 2,
		"calendar 100/month UTC": 3, // months differ in length
		"sliding-log 100/h":      3,
	} {
		count := new(sent)
		p := over(client, "rules: [{name: tokens, key: user, limit: "+limit+", charge: always}, {name: calls, limit: fixed-window 100/h, cost: 1}]",
			policyredis.Options{Hooks: []redis.Hook{count}}, policy.Options{})
		require.NoError(t, client.FlushDB(t.Context()).Err())
		for _, user := range []string{"scripts", "ann"} { // the first one loads them
			for _, cost := range []int{90, 20, 35} {
				before := count.all.Load()
				allowed := take(t, p, policy.Attributes{"user": user}, cost).Allowed
				if assert.Equal(t, cost == 90, allowed, limit); user == "ann" {
					assert.Equal(t, map[bool]int64{true: 1, false: denial}[allowed], count.all.Load()-before, limit)
				}
			}
		}
		for _, key := range client.Keys(t.Context(), "*").Val() {
			assert.Regexp(t, "^policy:(tokens|calls):", key)
		}
	}
}

func TestTimeoutBoundsADecisionOfEachKindOfRule(t *testing.T) {
	silent := ratelimit.Must(net.Listen("tcp", "127.0.0.1:0"))
	defer silent.Close()
	engine := policyredis.New(dial(t, silent.Addr().String()), &policyredis.Options{Timeout: time.Millisecond})
	for name, share := range map[string]int{"plain": 0, "share": 1} {
		l := ratelimit.Must(engine(policy.Budget{Name: "a", Key: []string{"user"}, Limit: ratelimit.TokenBucket(ratelimit.PerHour(1), 9), Share: share}, nil))
		_, err := l.Take(t.Context(), "ann", 1)
		require.ErrorIs(t, err, ratelimit.ErrUnavailable)
		assert.ErrorContains(t, err, "no answer within 1ms", name)
	}
}

// TestThePageScansRedisOnceForAllRules has 200 rules and 100,000 keys, most of them others', with and without leases.
func TestThePageScansRedisOnceForAllRules(t *testing.T) {
	const rules, keys, perCall = 200, 100_000, 1000
	for name, opts := range map[string]policyredis.Options{"plain": {}, "leased": {Tenant: "tenant", MaxBatch: 1}} {
		t.Run(name, func(t *testing.T) {
			client, count := local(t), new(sent)
			opts.Hooks = []redis.Hook{count}
			// Half the keys are a removed rule's, and half of another program.
			const fill = "for i = 1, ARGV[1] / 2 do redis.call('SET', 'policy:gone:{' .. i .. '}', 'x') redis.call('SET', 'other:' .. i, 'x') end return 1"
			require.NoError(t, client.Eval(t.Context(), fill, nil, keys).Err())
			text := "rules:\n"
			for i := range rules {
				text += fmt.Sprintf("- {name: R%d, disabled: %v, match: {attributes: {n: [n%d]}}, key: user, limit: fixed-window 1/h,", i, i == 7, i) +
					" overrides: [{key: vip, limit: fixed-window 2/h}]}\n"
			}
			p := over(client, text, opts, policy.Options{})
			for i := range 2 * rules {
				take(t, p, policy.Attributes{"user": []string{"ann", "vip"}[i%2], "n": fmt.Sprint("n", i/2)}, 1)
			}
			left := map[string]int{}
			require.NoError(t, p.Each(t.Context(), "", func(key []string, d ratelimit.Decision) bool {
				left[d.Limit.Name+" "+key[0]] = d.Remaining
				return true
			}))
			assert.Len(t, left, 2*(rules-1), "all but those of the disabled rule")
			assert.Equal(t, []int{0, 1}, []int{left["R0 ann"], left["R0 vip"]}, "each under its own limit")
			scans := count.scans.Load()
			assert.Positive(t, scans)
			assert.LessOrEqual(t, scans, int64(2*keys/perCall))

			request := httptest.NewRequest(http.MethodPost, "/", strings.NewReader("do=limited"))
			request.Header = http.Header{"Content-Type": {"application/x-www-form-urlencoded"}}
			page := httptest.NewRecorder()
			admin.New(p, &admin.Options{ShowKeys: true}).ServeHTTP(page, request)
			assert.Contains(t, page.Body.String(), "ann")
			assert.LessOrEqual(t, count.scans.Load()-scans, int64(2*keys/perCall))
		})
	}
}

// Calls wait at 6/m. Then a set raises the limit to 20/s. Each set has its own limiters on Redis, with lines of their
// own. The calls change to the new lines in the order of their arrival, and only the first call in a line calls Redis.
func TestCallsInLineOnRedisFollowASetThatComesIntoForce(t *testing.T) {
	server := redistest.Start(t)
	synctest.Test(t, func(t *testing.T) {
		const calls = 40
		client := redis.NewClient(&redis.Options{Addr: server.Addr, Dialer: redistest.InBubble, ReadTimeout: time.Minute, MaxRetries: -1})
		defer client.Close()
		count := new(sent)
		set := func(limit string) string {
			return "rules: [{name: api, key: user, limit: " + limit + "}, {name: all, limit: token-bucket 100000/s burst 100000}]"
		}
		p := over(client, set("token-bucket 6/m burst 1"), policyredis.Options{Hooks: []redis.Hook{count}}, policy.Options{})
		require.True(t, p.Allow(ann, 1))
		ctx, cancel := context.WithTimeout(t.Context(), 2*time.Hour)
		defer cancel()
		served := make(chan int, calls)
		for i := range calls {
			go func() {
				assert.NoError(t, p.Wait(ctx, ann, 1))
				served <- i
			}()
			synctest.Wait()
		}
		require.Empty(t, served)
		before := count.all.Load()
		require.NoError(t, p.Update(parsed(set("token-bucket 20/s burst 1"))))
		for place := range calls {
			require.Equal(t, place, <-served, "first come, first served")
		}
		require.Less(t, count.all.Load()-before, int64(2*calls+calls/2), "round trips")
	})
}

// TestAFleetHasOneNoticeOfEachCrossing makes eight processes take, reserve, settle, adjust, reset and change
// plans for hours. Their time is virtual: it passes only while all goroutines wait, and not during a call.
func TestAFleetHasOneNoticeOfEachCrossing(t *testing.T) {
	testsize.Sequential(t)
	server := redistest.Start(t)
	for i := range testsize.Of[uint64](1, 20) {
		seed := testsize.Seed(i)
		synctest.Test(t, func(t *testing.T) {
			var noted []string
			var processes []crossings.Process
			for process := range 8 {
				client := redis.NewClient(&redis.Options{Addr: server.Addr, Dialer: redistest.InBubble, MaxRetries: -1})
				defer client.Close()
				const text = `rules: [{name: quota, key: user, limit: calendar 100/hour UTC, plans: {pro: calendar 300/hour UTC}, notify: [50%, 80%, 100%]}]`
				p := over(client, text, policyredis.Options{Prefix: fmt.Sprint("seed", seed, ":")}, policy.Options{OnThreshold: func(at policy.Threshold) {
					noted = append(noted, fmt.Sprintf("%d %s %d", process, at.Key, at.Percent))
				}})
				processes = append(processes, crossings.ProcessOf[policy.Request](t, p, func(user, plan string) policy.Request {
					return policy.Attributes{"user": user, "plan": plan}
				}, func(user, plan string) policy.Request {
					return policy.Subject{Rule: "quota", Key: []string{user}, Plan: plan}
				}))
			}
			random := rand.New(rand.NewPCG(seed, 1))
			assert.Greater(t, crossings.Play(t, seed, crossings.Fleet{
				Processes: processes,
				Advance:   func() { time.Sleep(time.Duration(random.Int64N(int64(4 * time.Second)))) },
				Window:    func() int { return int(time.Now().Unix() / 3600) },
				Notices:   func() []string { all := noted; noted = nil; return all },
				Stored:    true,
			}, 20, 5000), 100)
		})
	}
}
