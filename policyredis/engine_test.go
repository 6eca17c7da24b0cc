package policyredis_test

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/weir-go/ratelimit"
	"github.com/weir-go/ratelimit/internal/dev/redistest"
	"github.com/weir-go/ratelimit/internal/dev/testsize"
	"github.com/weir-go/ratelimit/internal/outcome"
	"github.com/weir-go/ratelimit/keyfunc"
	"github.com/weir-go/ratelimit/policy"
	"github.com/weir-go/ratelimit/policyredis"
	"github.com/weir-go/ratelimit/stats"
)

func TestMain(m *testing.M) {
	if addr := os.Getenv("POLICYREDIS_TEST_CHILD"); addr != "" {
		child(addr, os.Getenv("POLICYREDIS_TEST_RULES"))
		return
	}
	os.Exit(m.Run())
}

// server starts a Redis server that saves nothing, and returns its address.
func server(t *testing.T) string {
	t.Helper()
	return redistest.Start(t).Addr
}

func parsed(t *testing.T, text string) *policy.Set {
	t.Helper()
	set, err := policy.Parse([]byte(text))
	require.NoError(t, err)
	return set
}

// shared returns policies over a server. Decisions have a minute, and are sent once: machines may be slow.
func shared(t *testing.T, addr, text string) *policy.Policies {
	t.Helper()
	client := redis.NewClient(&redis.Options{Addr: addr, ReadTimeout: time.Minute})
	t.Cleanup(func() { require.NoError(t, client.Close()) })
	p, err := policy.New(parsed(t, text), &policy.Options{Engine: policyredis.New(client, &policyredis.Options{Timeout: time.Minute})})
	require.NoError(t, err)
	return p
}

const rules = `
rules:
- {name: api, key: user, limit: fixed-window 10/h, plans: {pro: fixed-window 100/h}, overrides: [{key: mallory, limit: blocked}]}
- {name: tokens, key: user, limit: fixed-window 1000/h, cost: tokens, optional: true}
- {name: trial, shadow: true, limit: fixed-window 1/h}
`

func TestOneBudgetForSeveralPolicies(t *testing.T) {
	addr := server(t)
	a, b := shared(t, addr, rules), shared(t, addr, rules)
	ann := policy.Attributes{"user": "ann"}
	for i := range 12 {
		p := a
		if i%2 == 1 {
			p = b
		}
		d, err := p.Take(t.Context(), ann, 1)
		require.NoError(t, err)
		assert.Equal(t, i < 10, d.Allowed, i)
		assert.Equal(t, "api", d.Limit.Name)
	}
	d, err := a.Take(t.Context(), policy.Attributes{"user": "ann", "plan": "pro"}, 1)
	require.NoError(t, err)
	assert.True(t, d.Allowed)
	assert.Equal(t, 89, d.Remaining, "an upgrade keeps what was spent")
	_, err = a.Take(t.Context(), policy.Attributes{"user": "mallory"}, 1)
	require.ErrorIs(t, err, ratelimit.ErrBlocked)
}

func TestAllRulesAreChargedOrNone(t *testing.T) {
	addr := server(t)
	p := shared(t, addr, rules)
	bob := policy.Attributes{"user": "bob", "tokens": "600"}
	assert.True(t, p.Allow(bob, 1))
	assert.False(t, p.Allow(bob, 1), "600 tokens more do not fit")
	ex, err := p.Explain(policy.Attributes{"user": "bob", "tokens": "1"}, 1)
	require.NoError(t, err)
	require.Len(t, ex.Rules, 3)
	assert.Equal(t, 9, ex.Rules[0].Decision.Remaining, "what was denied has charged nothing")
	assert.Equal(t, 400, ex.Rules[1].Decision.Remaining)
	assert.Equal(t, 0, ex.Rules[2].Decision.Remaining)

	r, err := p.Reserve(t.Context(), policy.Attributes{"user": "cleo"}, 8, 0)
	require.NoError(t, err)
	require.NoError(t, r.Settle(3))
	assert.True(t, p.Allow(policy.Attributes{"user": "cleo"}, 7))
	assert.False(t, p.Allow(policy.Attributes{"user": "cleo"}, 1))
}

func TestEachRuleReportsItsDecision(t *testing.T) {
	addr := server(t)
	client := redis.NewClient(&redis.Options{Addr: addr, ReadTimeout: time.Minute})
	t.Cleanup(func() { _ = client.Close() })
	var decisions []policy.Decision
	p, err := policy.New(parsed(t, rules), &policy.Options{
		Engine:     policyredis.New(client, &policyredis.Options{Timeout: time.Minute}),
		OnDecision: func(d policy.Decision) { decisions = append(decisions, d) },
	})
	require.NoError(t, err)
	ann := policy.Attributes{"user": "ann"}
	for range 11 {
		_, err := p.Take(t.Context(), ann, 1)
		require.NoError(t, err)
	}
	require.Len(t, decisions, 11)
	first, second, last := decisions[0].Rules, decisions[1].Rules, decisions[10].Rules
	for _, rules := range [][]stats.RuleDecision{first, second, last} {
		require.Len(t, rules, 2)
		assert.Equal(t, []string{"api", "trial"}, []string{rules[0].Rule, rules[1].Rule})
		assert.True(t, rules[0].Answered && rules[1].Answered)
	}
	assert.Equal(t, 9, first[0].Decision.Remaining)
	assert.True(t, first[0].Spent && first[1].Spent)
	assert.True(t, second[0].Decision.Allowed && second[0].Spent)
	assert.False(t, second[1].Decision.Allowed || second[1].Spent, "the shadow rule would have denied")
	assert.False(t, last[0].Decision.Allowed || last[0].Spent)
	assert.Positive(t, last[0].Decision.RetryAfter)

	require.NoError(t, client.Close())
	_, err = p.Take(t.Context(), ann, 1)
	require.Error(t, err)
	require.Len(t, decisions, 12)
	assert.False(t, decisions[11].Rules[0].Answered, "no answer")
}

// TestOnlyTheRuleThatCanNeverAllowIsReportedDenied compares the decisions of the rules on Redis with their decisions in memory,
// with a rule that blocks or is exceeded in each place among others.
func TestOnlyTheRuleThatCanNeverAllowIsReportedDenied(t *testing.T) {
	addr := server(t)
	client := redis.NewClient(&redis.Options{Addr: addr, ReadTimeout: time.Minute})
	t.Cleanup(func() { require.NoError(t, client.Close()) })
	others := []string{
		"{name: a, key: user, limit: fixed-window 10/h}",
		"{name: b, limit: token-bucket 10/h burst 10}",
		"{name: c, shadow: true, limit: sliding-log 10/h}",
		"{name: d, key: user, limit: unlimited}",
	}
	for n, never := range []string{
		"{name: never, limit: blocked}",
		"{name: never, limit: fixed-window 3/h, cost: 4}",
		"{name: never, key: user, limit: fixed-window 10/h, overrides: [{key: ann, limit: blocked}]}",
		"{name: never, key: user, limit: fixed-window 10/h, plans: {free: leaky-bucket 1/h queue 1}, cost: 5}",
	} {
		for at := range len(others) + 1 {
			rules := slices.Insert(slices.Clone(others), at, never)
			text := "rules:\n- " + strings.Join(rules, "\n- ")
			var decisions []policy.Decision
			hook := func(d policy.Decision) { decisions = append(decisions, d) }
			for _, e := range []policy.Engine{
				policy.Memory(nil),
				policyredis.New(client, &policyredis.Options{Prefix: fmt.Sprintf("%d-%d:", n, at), Timeout: time.Minute}),
			} {
				p, err := policy.New(parsed(t, text), &policy.Options{Engine: e, OnDecision: hook})
				require.NoError(t, err)
				_, err = p.Take(t.Context(), policy.Attributes{"user": "ann", "plan": "free"}, 1)
				require.ErrorIs(t, err, ratelimit.ErrExceedsLimit)
			}
			for _, d := range decisions {
				assert.Equal(t, "never", d.Decision.Limit.Name)
				for _, r := range d.Rules {
					assert.False(t, r.Spent)
					if r.Rule == "never" {
						assert.True(t, r.Answered)
						assert.False(t, r.Decision.Allowed)
					} else if r.Answered {
						assert.True(t, r.Decision.Allowed, "%s, with %s at %d", r.Rule, never, at)
					}
				}
			}
			require.Len(t, decisions, 2)
		}
	}
}

// TestAWaitThatGivesUpIsADenial compares the reports of a Wait on Redis and in memory.
func TestAWaitThatGivesUpIsADenial(t *testing.T) {
	addr := server(t)
	client := redis.NewClient(&redis.Options{Addr: addr, ReadTimeout: time.Minute})
	t.Cleanup(func() { require.NoError(t, client.Close()) })
	const text = "rules:\n- {name: wide, limit: fixed-window 100/h}\n- {name: narrow, key: user, limit: token-bucket 1/h burst 1}\n- {name: trial, shadow: true, limit: fixed-window 1/h}"
	for name, e := range map[string]policy.Engine{"memory": policy.Memory(nil), "redis": policyredis.New(client, &policyredis.Options{Timeout: time.Minute})} {
		var decisions []policy.Decision
		p, err := policy.New(parsed(t, text), &policy.Options{Engine: e, OnDecision: func(d policy.Decision) { decisions = append(decisions, d) }})
		require.NoError(t, err)
		ann := policy.Attributes{"user": "ann"}
		require.NoError(t, p.Wait(t.Context(), ann, 1), name)
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		require.ErrorIs(t, p.Wait(ctx, ann, 1), context.DeadlineExceeded, name)
		cancel()
		ctx, cancel = context.WithCancel(t.Context())
		time.AfterFunc(50*time.Millisecond, cancel)
		require.ErrorIs(t, p.Wait(ctx, ann, 1), context.Canceled, name)
		for patience := 100 * time.Millisecond; outcome.Of(decisions[2].Decision, decisions[2].Err) == outcome.Failed && patience < time.Minute; patience *= 2 { // a busy machine had not yet booked
			decisions = decisions[:2]
			ctx, cancel = context.WithCancel(t.Context())
			time.AfterFunc(patience, cancel)
			require.ErrorIs(t, p.Wait(ctx, ann, 1), context.Canceled, name)
		}
		require.ErrorIs(t, p.Wait(ctx, ann, 1), context.Canceled, name)
		require.Len(t, decisions, 4)
		assert.Equal(t, []outcome.Outcome{outcome.Allowed, outcome.Denied, outcome.Denied, outcome.Failed},
			[]outcome.Outcome{outcome.Of(decisions[0].Decision, decisions[0].Err), outcome.Of(decisions[1].Decision, decisions[1].Err), outcome.Of(decisions[2].Decision, decisions[2].Err), outcome.Of(decisions[3].Decision, decisions[3].Err)}, name)
		assert.Equal(t, "narrow", decisions[0].Decision.Limit.Name, name)
		for _, d := range decisions[1:3] {
			assert.Equal(t, "narrow", d.Decision.Limit.Name, name)
			assert.Equal(t, []bool{true, false}, []bool{d.Rules[0].Decision.Allowed, d.Rules[1].Decision.Allowed}, name)
			assert.True(t, d.Rules[0].Answered && d.Rules[1].Answered, name)
			assert.Positive(t, d.Rules[1].Decision.RetryAfter, name)
			assert.False(t, d.Rules[0].Spent || d.Rules[1].Spent, name)
		}
		assert.False(t, decisions[3].Rules[0].Answered, name)
	}
}

// TestSupportFreesAndFinanceCharges looks at single budgets and changes them, on Redis and in memory.
func TestSupportFreesAndFinanceCharges(t *testing.T) {
	addr := server(t)
	client := redis.NewClient(&redis.Options{Addr: addr, ReadTimeout: time.Minute})
	t.Cleanup(func() { require.NoError(t, client.Close()) })
	const text = `
rules:
- {name: api, key: [user, region], limit: unlimited, plans: {pro: fixed-window 100/h}, overrides: [{key: [acme, eu], limit: token-bucket 50/h burst 50}]}
- {name: nets, key: ip/24, limit: sliding-log 10/h, cost: 3, shadow: true, optional: true}
- {name: all, limit: fixed-window 1000/h}
- {name: probes, allow: true, match: {route: /health}}
`
	for name, e := range map[string]policy.Engine{"memory": policy.Memory(nil), "redis": policyredis.New(client, &policyredis.Options{Timeout: time.Minute})} {
		for _, hook := range []func(policy.Decision){nil, func(policy.Decision) {}} {
			p, err := policy.New(parsed(t, text), &policy.Options{Engine: e, OnDecision: hook})
			require.NoError(t, err)
			ann := policy.Subject{Rule: "API", Key: []string{"ann", "eu"}, Plan: "pro"}
			acme := policy.Subject{Rule: "api", Key: []string{"acme", "eu"}}
			net := policy.Subject{Rule: "nets", Key: []string{"192.0.2.7"}}
			all := policy.Subject{Rule: "all"}
			for _, s := range []policy.Subject{ann, acme, net, all} {
				require.NoError(t, p.Reset(t.Context(), s), name)
			}
			left := func(s policy.Subject) int {
				d, err := p.Peek(t.Context(), s, 1)
				require.NoError(t, err)
				return d.Remaining
			}
			require.True(t, p.Allow(policy.Attributes{"user": "ann", "region": "eu", "plan": "pro", "ip": "192.0.2.9"}, 40))
			assert.Equal(t, []int{60, 7, 960}, []int{left(ann), left(net), left(all)}, name)
			for s, remaining := range map[*policy.Subject]int{&ann: 60, &net: 7, &acme: 50} {
				d, err := p.Peek(t.Context(), s, 101)
				require.ErrorIs(t, err, ratelimit.ErrExceedsLimit, name)
				assert.Equal(t, []any{false, remaining}, []any{d.Allowed, d.Remaining}, "%s: what is left, although the cost can never pass", name)
			}
			ex, err := p.Explain(policy.Attributes{"user": "ann", "region": "eu", "plan": "pro", "ip": "192.0.2.9"}, 101)
			require.NoError(t, err)
			assert.Equal(t, []int{60, 7, 960}, []int{ex.Rules[0].Decision.Remaining, ex.Rules[1].Decision.Remaining, ex.Rules[2].Decision.Remaining}, name)
			require.NoError(t, p.Adjust(t.Context(), ann, 70), name)
			assert.Zero(t, left(ann), name)
			d, err := p.Peek(t.Context(), ann, 1)
			require.NoError(t, err)
			assert.False(t, d.Allowed)
			require.NoError(t, p.Adjust(t.Context(), ann, -20), name)
			assert.Equal(t, 10, left(ann), name)
			require.NoError(t, p.Reset(t.Context(), ann), name)
			assert.Equal(t, []int{100, 960}, []int{left(ann), left(all)}, name)
			require.NoError(t, p.Adjust(t.Context(), acme, 45), name)
			assert.Equal(t, 5, left(acme), name)
			require.NoError(t, p.Adjust(t.Context(), policy.Subject{Rule: "nets", Key: []string{"192.0.2.0/24"}}, -3), name)
			assert.Equal(t, 10, left(net), name)
			for _, bad := range []policy.Subject{{Rule: "none"}, {Rule: "probes"}, {Rule: "api", Key: []string{"ann"}}, {Rule: "api", Key: []string{"ann", ""}}, {Rule: "all", Key: []string{"x"}}} {
				require.Error(t, p.Reset(t.Context(), bad))
				require.Error(t, p.Adjust(t.Context(), bad, 1))
				_, err := p.Peek(t.Context(), bad, 1)
				require.Error(t, err)
				assert.NotContains(t, err.Error(), "ann")
			}
			request := policy.Attributes{"user": "ann", "region": "eu", "plan": "pro", "ip": "192.0.2.9"}
			require.NoError(t, p.Adjust(t.Context(), request, 30), name)
			assert.Equal(t, []int{70, 10, 930}, []int{left(ann), left(net), left(all)}, "%s: the shadow has a cost of its own", name)
			d, err = p.Peek(t.Context(), request, 60)
			require.NoError(t, err)
			assert.Equal(t, []any{true, 70}, []any{d.Allowed, d.Remaining}, name)
			require.NoError(t, p.Reset(t.Context(), request), name)
			assert.Equal(t, []int{100, 10, 1000}, []int{left(ann), left(net), left(all)}, name)
			d, err = p.Peek(t.Context(), policy.Attributes{"path": "/health"}, 5)
			require.NoError(t, err)
			assert.True(t, d.Allowed, name)
			_, err = p.Peek(t.Context(), policy.Attributes{}, 5)
			require.ErrorIs(t, err, keyfunc.ErrNoKey)
			assert.True(t, p.Describe().ReplacesCost)
			_, err = p.Peek(t.Context(), all, -1)
			require.ErrorIs(t, err, ratelimit.ErrNegativeCost)
		}
	}
}

func TestADecisionIsOneRoundTrip(t *testing.T) {
	addr := server(t)
	p := shared(t, addr, rules)
	client := redis.NewClient(&redis.Options{Addr: addr, ReadTimeout: time.Minute})
	defer client.Close()
	require.True(t, p.Allow(policy.Attributes{"user": "ann", "tokens": "1"}, 1)) // loads the script
	calls := func() int {
		text, err := client.Info(t.Context(), "commandstats").Result()
		require.NoError(t, err)
		n := 0
		for line := range strings.Lines(text) {
			if rest, ok := strings.CutPrefix(line, "cmdstat_evalsha:calls="); ok {
				count, _, _ := strings.Cut(rest, ",")
				n, err = strconv.Atoi(count)
				require.NoError(t, err)
			}
		}
		return n
	}
	before := calls()
	for range 5 {
		require.True(t, p.Allow(policy.Attributes{"user": "ann", "tokens": "1"}, 1))
	}
	assert.Equal(t, 5, calls()-before)
}

func TestRulesThatRedisCannotCountAreErrors(t *testing.T) {
	_, err := policy.New(parsed(t, rules), &policy.Options{Engine: policyredis.New(nil, nil)})
	require.ErrorContains(t, err, "client is nil")
	client := redis.NewClient(&redis.Options{Addr: "127.0.0.1:1", MaxRetries: -1})
	defer client.Close()
	engine := policyredis.New(client, &policyredis.Options{Timeout: 5 * time.Second})
	fine := "rules:\n- {name: a, limit: fixed-window 1/h}"
	p, err := policy.New(parsed(t, fine), &policy.Options{Engine: engine})
	require.NoError(t, err, "nothing is sent before the first decision")
	_, err = p.Take(t.Context(), policy.Attributes{}, 1)
	require.ErrorIs(t, err, ratelimit.ErrUnavailable)
	for _, limit := range []string{"fixed-window 1/1ns", "sliding-log 1000000/h"} {
		require.Error(t, p.Update(parsed(t, "rules:\n- {name: a, limit: "+limit+"}")), limit)
		require.Error(t, p.Update(parsed(t, fine[:len(fine)-1]+", plans: {pro: "+limit+"}}")), "as a plan: %s", limit)
		assert.Equal(t, uint64(1), p.Stats().Generation)
	}
	require.NoError(t, p.Update(parsed(t, "rules: []")))
	assert.True(t, p.Allow(policy.Attributes{}, 1), "no rule, no server")
}

// TestAFleetFollowsOneFile runs two processes that share budgets on one Redis and follow the rules in one file.
func TestAFleetFollowsOneFile(t *testing.T) {
	addr := server(t)
	path := filepath.Join(t.TempDir(), "rules.yaml")
	limit := func(limit string) {
		text := "rules:\n- {name: api, key: [user], limit: " + limit + "}\n"
		require.NoError(t, os.WriteFile(path+".new", []byte(text), 0o600))
		require.NoError(t, os.Rename(path+".new", path))
	}
	limit("fixed-window 10/h")
	fleet := []*process{start(t, addr, path), start(t, addr, path)}
	follow := func(limit string) {
		for _, p := range fleet {
			require.Eventually(t, func() bool { return p.call(t, "limit") == limit }, 30*time.Second, 20*time.Millisecond)
		}
	}
	take := func() (admitted int) {
		for i := range 30 {
			n, err := strconv.Atoi(fleet[i%2].call(t, "take"))
			require.NoError(t, err)
			admitted += n
		}
		return admitted
	}
	follow("fixed-window 10/h")
	assert.Equal(t, 10, take(), "one budget for both")
	limit("fixed-window 25/h")
	follow("fixed-window 25/h")
	assert.Equal(t, 15, take(), "the limit was raised, and the spending stays")
}

// process is one of the fleet: this test's program, started as a child.
type process struct {
	in  io.WriteCloser
	out *bufio.Scanner
}

func start(t *testing.T, addr, path string) *process {
	t.Helper()
	cmd := exec.Command(os.Args[0])
	cmd.Env = append(os.Environ(), "POLICYREDIS_TEST_CHILD="+addr, "POLICYREDIS_TEST_RULES="+path)
	cmd.Stderr = os.Stderr
	in, err := cmd.StdinPipe()
	require.NoError(t, err)
	out, err := cmd.StdoutPipe()
	require.NoError(t, err)
	require.NoError(t, cmd.Start())
	t.Cleanup(func() {
		_ = in.Close()
		_ = cmd.Wait()
	})
	return &process{in, bufio.NewScanner(out)}
}

func (p *process) call(t *testing.T, question string) string {
	t.Helper()
	_, err := fmt.Fprintln(p.in, question)
	require.NoError(t, err)
	require.True(t, p.out.Scan(), "the process has ended")
	return p.out.Text()
}

// child follows the file and answers each line of its input with a line, until the input ends.
func child(addr, path string) {
	client := redis.NewClient(&redis.Options{Addr: addr, ReadTimeout: time.Minute})
	defer client.Close()
	p, err := policy.New(nil, &policy.Options{
		Engine: policyredis.New(client, &policyredis.Options{Timeout: time.Minute}),
		Logger: slog.New(slog.DiscardHandler),
	})
	if err != nil {
		panic(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error)
	go func() {
		done <- policy.Follow(ctx, p, policy.File(path))
	}()
	questions := bufio.NewScanner(os.Stdin)
	for questions.Scan() {
		fmt.Println(answer(p, questions.Text()))
	}
	cancel()
	if err := <-done; !errors.Is(err, context.Canceled) {
		panic(err)
	}
}

func answer(p *policy.Policies, question string) string {
	if question == "take" {
		d, err := p.Take(context.Background(), policy.Attributes{"user": "ann"}, 1)
		switch {
		case err != nil:
			return err.Error()
		case d.Allowed:
			return "1"
		}
		return "0"
	}
	if rules := p.Current().Rules; len(rules) > 0 {
		return rules[0].Limit.String()
	}
	return "none"
}

// TestEnginesReportTheSame plays random requests against random rules, shadows among them, in memory and on Redis. Costs are 0,
// above a capacity, or of the rule's own. Nothing is regained during the test.
func TestEnginesReportTheSame(t *testing.T) {
	client := redis.NewClient(&redis.Options{Addr: server(t), ReadTimeout: time.Minute})
	t.Cleanup(func() { require.NoError(t, client.Close()) })
	limits := []string{"token-bucket 1/720h burst 5", "fixed-window 4/720h", "sliding-log 6/720h", "sliding-counter 7/720h", "unlimited", "blocked"}
	for seed := range uint64(30) {
		rnd := rand.New(rand.NewPCG(testsize.Seed(seed), 1))
		text := "rules:\n"
		for i := range 1 + rnd.IntN(4) {
			text += fmt.Sprintf("- {name: r%d, limit: %s, shadow: %v, optional: true", i, limits[rnd.IntN(len(limits))], rnd.IntN(2) == 0)
			text += []string{"", ", key: user", ", key: [user, plan]"}[rnd.IntN(3)]
			text += []string{"", ", cost: 2", ", cost: weight"}[rnd.IntN(3)]
			text += []string{"", ", plans: {pro: fixed-window 9/720h}"}[rnd.IntN(2)] + "}\n"
		}
		var decisions [2][]policy.Decision
		var policies [2]*policy.Policies
		for i, e := range []policy.Engine{policy.Memory(nil), policyredis.New(client, &policyredis.Options{Prefix: fmt.Sprint(seed, ":"), Timeout: time.Minute})} {
			var err error
			policies[i], err = policy.New(parsed(t, text), &policy.Options{Engine: e, OnDecision: func(d policy.Decision) { decisions[i] = append(decisions[i], d) }})
			require.NoError(t, err)
		}
		for step := range 25 {
			r := policy.Attributes{"user": []string{"ann", "bob"}[rnd.IntN(2)], "weight": strconv.Itoa(rnd.IntN(10))}
			if rnd.IntN(2) == 0 {
				r["plan"] = []string{"pro", "free"}[rnd.IntN(2)]
			}
			cost, reserve, actual := rnd.IntN(9), rnd.IntN(3) == 0, rnd.IntN(4)
			for _, p := range policies {
				if !reserve {
					_, _ = p.Take(t.Context(), r, cost)
					continue
				}
				res, err := p.Reserve(t.Context(), r, cost, 0)
				if err == nil {
					require.NoError(t, res.Settle(actual))
				}
			}
			memory, remote := decisions[0][step], decisions[1][step]
			what := fmt.Sprintf("%v: step %d of seed %d, cost %d of %v, under\n%s", remote.Err, step, seed, cost, r, text)
			assert.Equal(t, outcome.Of(memory.Decision, memory.Err), outcome.Of(remote.Decision, remote.Err), what)
			require.True(t, remote.Err != nil || memory.Decision.Remaining == remote.Decision.Remaining, what)
			require.Len(t, remote.Rules, len(memory.Rules), what)
			for i := range memory.Rules {
				m, r := memory.Rules[i], remote.Rules[i]
				if remote.Err != nil { // Redis was not called
					require.True(t, !r.Answered || r.Decision.Allowed == m.Decision.Allowed, what)
					continue
				}
				m.Decision.RetryAfter, m.Decision.ResetAfter, m.Decision.NextAfter = 0, 0, 0
				r.Decision.RetryAfter, r.Decision.ResetAfter, r.Decision.NextAfter = 0, 0, 0
				require.Equal(t, m, r, what)
			}
		}
	}
}

// TestAShadowOnADeadServerDeniesNothing: where shadows are all that matches, an outage is no reason to refuse anybody.
func TestAShadowOnADeadServerDeniesNothing(t *testing.T) {
	client := redis.NewClient(&redis.Options{Addr: server(t), ReadTimeout: time.Minute})
	var decisions []policy.Decision
	p, err := policy.New(parsed(t, `
rules:
- {name: trial, key: user, limit: fixed-window 5/h, shadow: true}
- {name: writes, key: user, limit: fixed-window 5/h, match: {attributes: {method: POST}}}
`), &policy.Options{Engine: policyredis.New(client, nil), OnDecision: func(d policy.Decision) { decisions = append(decisions, d) }})
	require.NoError(t, err)
	require.NoError(t, client.Close())
	for _, cost := range []int{0, 1, 5} {
		d, err := p.Take(t.Context(), policy.Attributes{"user": "ann"}, cost)
		require.NoError(t, err)
		assert.True(t, d.Allowed)
		assert.False(t, decisions[len(decisions)-1].Rules[0].Answered)
		_, err = p.Take(t.Context(), policy.Attributes{"user": "ann", "method": "POST"}, cost)
		require.ErrorIs(t, err, ratelimit.ErrUnavailable)
	}
	gone, cancel := context.WithCancel(t.Context())
	cancel()
	_, err = p.Take(gone, policy.Attributes{"user": "ann"}, 1)
	require.ErrorIs(t, err, context.Canceled)
}
