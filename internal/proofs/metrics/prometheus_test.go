package metrics

import (
	"context"
	"encoding/json"
	"fmt"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"os"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"
	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"google.golang.org/grpc"

	"github.com/weir-go/ratelimit"
	"github.com/weir-go/ratelimit/chain"
	"github.com/weir-go/ratelimit/failover"
	"github.com/weir-go/ratelimit/grpclimit"
	"github.com/weir-go/ratelimit/httplimit"
	"github.com/weir-go/ratelimit/inflight"
	"github.com/weir-go/ratelimit/lease"
	"github.com/weir-go/ratelimit/policy"
	"github.com/weir-go/ratelimit/promlimit"
	"github.com/weir-go/ratelimit/redislimit"
)

const secret = "a-key-that-must-not-be-seen"

// program runs one limiter of each kind, and each makes decisions.
func program(t testing.TB) *prometheus.Registry {
	t.Helper()
	reg := prometheus.NewPedanticRegistry()
	m, err := promlimit.New(reg)
	require.NoError(t, err)
	ctx := context.Background()

	limiter := ratelimit.Must(ratelimit.New(ratelimit.FixedWindow(ratelimit.PerHour(3)).Named("hourly"),
		&ratelimit.Options[string]{OnDecision: promlimit.OnDecision[string](m, "api")}))
	require.NoError(t, m.Register("api", limiter))
	for _, cost := range []int{1, 2, 1, 4, 0} {
		limiter.Allow(secret, cost)
	}

	down := failingReserver{}
	failing, err := failover.New[string](promlimit.Timed(m, "shared", ratelimit.Reserver[string](down)), failover.AllowAll[string](), &failover.Options{Failures: 2})
	require.NoError(t, err)
	require.NoError(t, m.Register("shared", failing))
	for range 3 {
		assert.True(t, failing.Allow(secret, 1))
	}

	leased, err := lease.New[string](limiter, &lease.Options[string]{MaxBatch: 10})
	require.NoError(t, err)
	require.NoError(t, m.Register("leased", leased))
	client := redis.NewClient(&redis.Options{Addr: "127.0.0.1:1"}) // no test calls it
	t.Cleanup(func() { _ = client.Close() })
	slots, err := redislimit.NewSemaphore(client, 1, &redislimit.SemaphoreOptions{Name: "slots"})
	require.NoError(t, err)
	require.NoError(t, m.Register("slots", slots))
	leased.Allow("another-"+secret, 1)
	require.NoError(t, leased.Flush(ctx))

	units, err := inflight.New(1, &inflight.Options[string]{Total: 10, MaxQueue: 1})
	require.NoError(t, err)
	require.NoError(t, m.Register("backend", units))
	held, err := units.TryAcquire(secret, 1)
	require.NoError(t, err)
	_, err = units.TryAcquire(secret, 1)
	require.ErrorIs(t, err, ratelimit.ErrLimited)
	time.AfterFunc(time.Millisecond, held.Release)
	_, err = units.Acquire(ctx, secret, 1)
	require.NoError(t, err)

	set, err := policy.Parse([]byte("rules:\n- {name: users, key: user, limit: fixed-window 1/h, plans: {pro: fixed-window 9/h}}\n- {name: trial, shadow: true, limit: fixed-window 1/h}"))
	require.NoError(t, err)
	policies, err := policy.New(set, &policy.Options{OnDecision: m.OnPolicyDecision(), ReuseRules: true})
	require.NoError(t, err)
	require.NoError(t, m.Register("", policies))
	for range 2 {
		policies.Allow(policy.Attributes{"user": secret}, 1)
	}
	policies.Allow(policy.Attributes{"user": secret, "plan": "pro"}, 1)
	policies.Allow(policy.Attributes{}, 1)

	limit, err := httplimit.New(ratelimit.Map(limiter, func(*http.Request) (string, error) { return secret, nil }), nil)
	require.NoError(t, err)
	require.NoError(t, m.Register("web", limit))
	limit.Wrap(http.NotFoundHandler()).ServeHTTP(httptest.NewRecorder(), httptest.NewRequest(http.MethodGet, "/", nil))
	require.NoError(t, m.Register("rpc", interceptor(t)))
	return reg
}

// interceptor returns an interceptor that has served a call although no decision was possible.
func interceptor(t testing.TB) *grpclimit.Interceptor {
	t.Helper()
	byMethod := ratelimit.Map(ratelimit.Reserver[string](failingReserver{}), grpclimit.Method)
	i, err := grpclimit.New(byMethod, &grpclimit.Options{FailOpen: true, Logger: slog.New(slog.DiscardHandler)})
	require.NoError(t, err)
	_, err = i.UnaryServerInterceptor()(t.Context(), nil, &grpc.UnaryServerInfo{FullMethod: "/a.Service/Method"},
		func(context.Context, any) (any, error) { return nil, nil })
	require.NoError(t, err)
	return i
}

type failingReserver struct{ ratelimit.Reserver[string] }

func (failingReserver) Take(context.Context, string, int) (ratelimit.Decision, error) {
	return ratelimit.Decision{}, fmt.Errorf("%w: refused", ratelimit.ErrUnavailable)
}

// requests is the expected output for the HTTP middleware web, and calls for the interceptor rpc.
func requests(allowed, denied, failedOpen int) string {
	return outcomes("ratelimit_http_requests_total", "HTTP requests, by outcome.", "web", allowed, denied, failedOpen)
}

func calls(allowed, denied, failedOpen int) string {
	return outcomes("ratelimit_grpc_calls_total", "gRPC calls, and messages of streams, by outcome.", "rpc", allowed, denied, failedOpen)
}

func outcomes(metric, help, limiter string, allowed, denied, failedOpen int) string {
	return fmt.Sprintf(`# HELP %[1]s %[2]s
# TYPE %[1]s counter
%[1]s{limiter=%[3]q,outcome="allowed"} %[4]d
%[1]s{limiter=%[3]q,outcome="denied"} %[5]d
%[1]s{limiter=%[3]q,outcome="exceeds"} 0
%[1]s{limiter=%[3]q,outcome="failed"} 0
%[1]s{limiter=%[3]q,outcome="failed-open"} %[6]d
%[1]s{limiter=%[3]q,outcome="rejected"} 0
`, metric, help, limiter, allowed, denied, failedOpen)
}

func TestEveryKindOfLimiterIsMeasured(t *testing.T) {
	reg := program(t)
	assert.NoError(t, testutil.GatherAndCompare(reg, strings.NewReader(`
# HELP ratelimit_decisions_total Decisions, by limiter, limit and outcome: allowed, denied, exceeds, unavailable, rejected or error. Each layer counts its own decision, also of a request that another layer denies.
# TYPE ratelimit_decisions_total counter
ratelimit_decisions_total{limit="hourly",limiter="api",outcome="allowed"} 4
ratelimit_decisions_total{limit="hourly",limiter="api",outcome="denied"} 2
ratelimit_decisions_total{limit="hourly",limiter="api",outcome="error"} 0
ratelimit_decisions_total{limit="hourly",limiter="api",outcome="exceeds"} 1
ratelimit_decisions_total{limit="hourly",limiter="api",outcome="rejected"} 0
ratelimit_decisions_total{limit="hourly",limiter="api",outcome="unavailable"} 0
# HELP ratelimit_spent_units_total Cost that was charged.
# TYPE ratelimit_spent_units_total counter
ratelimit_spent_units_total{limit="hourly",limiter="api"} 4
`+requests(0, 1, 0)+calls(0, 0, 1)+`# HELP ratelimit_policy_rule_decisions_total Decisions of single rules, also of shadow rules, by rule, plan and outcome.
# TYPE ratelimit_policy_rule_decisions_total counter
ratelimit_policy_rule_decisions_total{outcome="allowed",plan="",rule="users",shadow="false"} 1
ratelimit_policy_rule_decisions_total{outcome="denied",plan="",rule="users",shadow="false"} 1
ratelimit_policy_rule_decisions_total{outcome="allowed",plan="pro",rule="users",shadow="false"} 1
ratelimit_policy_rule_decisions_total{outcome="allowed",plan="",rule="trial",shadow="true"} 1
ratelimit_policy_rule_decisions_total{outcome="denied",plan="",rule="trial",shadow="true"} 2
# HELP ratelimit_policy_requests_total Requests decided by policies, by outcome: an outcome of decisions, or killed by the kill switch.
# TYPE ratelimit_policy_requests_total counter
ratelimit_policy_requests_total{outcome="allowed"} 2
ratelimit_policy_requests_total{outcome="denied"} 1
ratelimit_policy_requests_total{outcome="rejected"} 1
# HELP ratelimit_breaker_state The breaker's state: 0 closed, 1 half open, 2 open.
# TYPE ratelimit_breaker_state gauge
ratelimit_breaker_state{limiter="shared"} 2
# HELP ratelimit_breaker_forced Whether an operator has forced the breaker's state: 1 if so.
# TYPE ratelimit_breaker_forced gauge
ratelimit_breaker_forced{limiter="shared"} 0
# HELP ratelimit_failover_decisions_total Decisions, by the limiter that took them.
# TYPE ratelimit_failover_decisions_total counter
ratelimit_failover_decisions_total{by="instead",limiter="shared"} 3
ratelimit_failover_decisions_total{by="primary",limiter="shared"} 0
# HELP ratelimit_keys Keys that are tracked.
# TYPE ratelimit_keys gauge
ratelimit_keys{limiter="api"} 2
`), "ratelimit_decisions_total", "ratelimit_spent_units_total", "ratelimit_http_requests_total", "ratelimit_grpc_calls_total", "ratelimit_policy_rule_decisions_total",
		"ratelimit_policy_requests_total", "ratelimit_breaker_state", "ratelimit_breaker_forced", "ratelimit_failover_decisions_total", "ratelimit_keys"))
}

// The first request and the first call are served. Meanwhile the second ones find no room.
func TestMiddlewareWithPermitsIsMeasured(t *testing.T) {
	reg := prometheus.NewPedanticRegistry()
	m := ratelimit.Must(promlimit.New(reg))
	room := func() *inflight.Limiter[string] { return ratelimit.Must(inflight.New[string](1, nil)) }

	web := ratelimit.Must(httplimit.NewInflight(room(), func(*http.Request) (string, error) { return secret, nil }, nil))
	require.NoError(t, m.Register("web", web))
	var handler http.Handler
	handler = web.Wrap(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { handler.ServeHTTP(w, r) }))
	handler.ServeHTTP(httptest.NewRecorder(), httptest.NewRequest(http.MethodGet, "/", nil))

	rpc := ratelimit.Must(grpclimit.NewInflight(room(), grpclimit.Method, nil))
	require.NoError(t, m.Register("rpc", rpc))
	call, method := rpc.UnaryServerInterceptor(), &grpc.UnaryServerInfo{FullMethod: "/a.Service/Method"}
	_, err := call(t.Context(), nil, method, func(ctx context.Context, _ any) (any, error) { return call(ctx, nil, method, nil) })
	require.Error(t, err)

	assert.NoError(t, testutil.GatherAndCompare(reg, strings.NewReader(calls(1, 1, 0)+requests(1, 1, 0)), "ratelimit_grpc_calls_total", "ratelimit_http_requests_total"))
}

func TestNamesKeepPrometheusHabits(t *testing.T) {
	problems, err := testutil.GatherAndLint(program(t))
	require.NoError(t, err)
	assert.Empty(t, problems)
}

func TestNoKeyIsALabel(t *testing.T) {
	families, err := program(t).Gather()
	require.NoError(t, err)
	for _, f := range families {
		assert.NotContains(t, f.String(), secret)
	}
}

// TestTheVersionIsOneSeries changes the rules. Only the version in force is exported.
func TestTheVersionIsOneSeries(t *testing.T) {
	reg := prometheus.NewPedanticRegistry()
	m, err := promlimit.New(reg)
	require.NoError(t, err)
	p, err := policy.New(&policy.Set{Version: "v0"}, nil)
	require.NoError(t, err)
	require.NoError(t, m.Register("", p))
	require.Error(t, m.Register("", p), "registered twice")
	for i := range 5 {
		version := fmt.Sprintf("v%d \"%c", i, 'é')
		require.NoError(t, p.Update(&policy.Set{Version: version}))
		assert.NoError(t, testutil.GatherAndCompare(reg, strings.NewReader(`
# HELP ratelimit_policy_info 1, with the version of the set in force.
# TYPE ratelimit_policy_info gauge
ratelimit_policy_info{version="`+strings.ReplaceAll(version, `"`, `\"`)+`"} 1
`), "ratelimit_policy_info"))
	}
	require.NoError(t, p.Update(&policy.Set{Version: "\xff"}))
	_, err = reg.Gather()
	require.NoError(t, err, "a version that is not UTF-8 does not spoil the others")
}

func TestOnlySourcesOfFiguresAreRegistered(t *testing.T) {
	m, err := promlimit.New(prometheus.NewRegistry())
	require.NoError(t, err)
	var p *policy.Policies
	var f *failover.Limiter[string]
	var c *chain.Limiter[string]
	for _, source := range []any{nil, p, f, c} {
		require.EqualError(t, m.Register("f", source), "promlimit: Register: source is nil")
	}
	p, err = policy.New(&policy.Set{}, nil)
	require.NoError(t, err)
	require.EqualError(t, m.Register("f", p), `promlimit: policies have no limiter's name, but are registered as "f"`)
	limiter := ratelimit.Must(ratelimit.New[string](ratelimit.FixedWindow(ratelimit.PerHour(1)), nil))
	require.ErrorContains(t, m.Register("f", limiter.Stats), "func() ratelimit.Stats is neither a limiter with a table of keys, nor of package")
	require.ErrorContains(t, m.Register("f", ratelimit.Must(chain.New[string](limiter))), "*chain.Limiter[string] is neither")
	require.NoError(t, m.Register("f", limiter), "the name is still free")
}

// TestTheDashboardUsesMetricsThatExist compares docs/grafana-dashboard.json with the metrics exported by a program.
func TestTheDashboardUsesMetricsThatExist(t *testing.T) {
	text, err := os.ReadFile("../../../docs/grafana-dashboard.json")
	require.NoError(t, err)
	var dashboard struct {
		Panels []struct {
			Title   string
			Targets []struct{ Expr string }
		}
	}
	require.NoError(t, json.Unmarshal(text, &dashboard))
	families, err := program(t).Gather()
	require.NoError(t, err)
	known := map[string]bool{}
	for _, f := range families {
		known[f.GetName()] = true
		known[f.GetName()+"_bucket"] = f.GetType().String() == "HISTOGRAM"
	}
	name := regexp.MustCompile(`ratelimit_\w+`)
	used := map[string]bool{}
	for _, p := range dashboard.Panels {
		require.NotEmpty(t, p.Targets, p.Title)
		for _, target := range p.Targets {
			names := name.FindAllString(target.Expr, -1)
			require.NotEmpty(t, names, p.Title)
			for _, n := range names {
				assert.True(t, known[n], "%s uses %s", p.Title, n)
				used[strings.TrimSuffix(n, "_bucket")] = true
			}
		}
	}
	assert.Greater(t, len(used), 12)
}

func TestTheStartOfDegradedDecisionsIsAMetric(t *testing.T) {
	reg := prometheus.NewRegistry()
	m, err := promlimit.New(reg)
	require.NoError(t, err)
	local := ratelimit.Must(ratelimit.New[string](ratelimit.FixedWindow(ratelimit.PerHour(3)), nil))
	l, err := failover.New[string](local, failover.AllowAll[string](), nil)
	require.NoError(t, err)
	require.NoError(t, m.Register("shared", l))
	figure := func(name string) float64 {
		families, err := reg.Gather()
		require.NoError(t, err)
		for _, f := range families {
			if f.GetName() == name {
				return f.GetMetric()[0].GetGauge().GetValue()
			}
		}
		t.Fatal("there is no", name)
		return 0
	}
	const since, forced = "ratelimit_failover_degraded_since_seconds", "ratelimit_breaker_forced"
	require.Zero(t, figure(since))
	before := float64(time.Now().UnixMilli()) / 1000
	l.Force(failover.StateOpen)
	require.GreaterOrEqual(t, figure(since), before)
	require.Equal(t, 1.0, figure(forced))
	l.Force(failover.StateClosed)
	require.Zero(t, figure(since))
}

// TestSeriesOfRemovedRulesDisappear removes a rule from the set in force.
func TestSeriesOfRemovedRulesDisappear(t *testing.T) {
	reg := prometheus.NewPedanticRegistry()
	m, err := promlimit.New(reg)
	require.NoError(t, err)
	set, err := policy.Parse([]byte("rules:\n- {name: stays, limit: unlimited}\n- {name: goes, limit: unlimited, plans: {pro: blocked}}"))
	require.NoError(t, err)
	p, err := policy.New(set, &policy.Options{OnDecision: m.OnPolicyDecision(), ReuseRules: true})
	require.NoError(t, err)
	require.NoError(t, m.Register("", p))
	p.Allow(policy.Attributes{}, 1)
	p.Allow(policy.Attributes{"plan": "pro"}, 1)
	series := func() (names []string) {
		families, err := reg.Gather()
		require.NoError(t, err)
		for _, f := range families {
			if f.GetName() == "ratelimit_policy_rule_decisions_total" {
				for _, s := range f.GetMetric() {
					names = append(names, s.GetLabel()[2].GetValue()+" "+s.GetLabel()[0].GetValue())
				}
			}
		}
		return names
	}
	assert.ElementsMatch(t, []string{"stays allowed", "goes allowed", "goes exceeds"}, series())
	tables := func() int {
		return testutil.CollectAndCount(reg, "ratelimit_policy_rule_keys", "ratelimit_policy_rule_keys_evicted_throttled_total")
	}
	assert.Equal(t, 4, tables(), "two figures of two tables")
	next := *p.Current()
	next.Rules = next.Rules[:1]
	require.NoError(t, p.Update(&next))
	assert.Equal(t, []string{"stays allowed"}, series())
	assert.Equal(t, 2, tables())
	p.Allow(policy.Attributes{}, 1)
	assert.NotContains(t, series(), "goes exceeds")
}
