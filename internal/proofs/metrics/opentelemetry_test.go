package metrics

import (
	"encoding/json"
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"regexp"
	"strings"
	"testing"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"go.opentelemetry.io/otel/attribute"
	sdk "go.opentelemetry.io/otel/sdk/metric"
	"go.opentelemetry.io/otel/sdk/metric/metricdata"

	"github.com/weir-go/ratelimit"
	"github.com/weir-go/ratelimit/failover"
	"github.com/weir-go/ratelimit/httplimit"
	"github.com/weir-go/ratelimit/inflight"
	"github.com/weir-go/ratelimit/lease"
	"github.com/weir-go/ratelimit/otellimit"
	"github.com/weir-go/ratelimit/policy"
	"github.com/weir-go/ratelimit/redislimit"
)

// collected runs a program with one limiter of each kind, and returns the exported metrics.
func collected(t *testing.T) metricdata.ResourceMetrics {
	t.Helper()
	reader := sdk.NewManualReader()
	m, err := otellimit.New(sdk.NewMeterProvider(sdk.WithReader(reader)).Meter("test"))
	require.NoError(t, err)

	limiter := ratelimit.Must(ratelimit.New(ratelimit.FixedWindow(ratelimit.PerHour(3)).Named("hourly"),
		&ratelimit.Options[string]{OnDecision: otellimit.OnDecision[string](m, "api")}))
	require.NoError(t, m.Register("api", limiter))
	for _, cost := range []int{1, 2, 1, 4} {
		limiter.Allow(secret, cost)
	}
	failing, err := failover.New[string](otellimit.Timed(m, "shared", ratelimit.Reserver[string](failingReserver{})), failover.AllowAll[string](), &failover.Options{Failures: 2})
	require.NoError(t, err)
	require.NoError(t, m.Register("shared", failing))
	for range 3 {
		assert.True(t, failing.Allow(secret, 1))
	}
	leased, err := lease.New[string](limiter, &lease.Options[string]{MaxBatch: 10})
	require.NoError(t, err)
	require.NoError(t, m.Register("backend", ratelimit.Must(inflight.New(1, &inflight.Options[string]{Total: 10}))))
	require.NoError(t, m.Register("leased", leased))
	client := redis.NewClient(&redis.Options{Addr: "127.0.0.1:1"}) // no test calls it
	t.Cleanup(func() { _ = client.Close() })
	slots, err := redislimit.NewSemaphore(client, 1, &redislimit.SemaphoreOptions{Name: "slots"})
	require.NoError(t, err)
	require.NoError(t, m.Register("slots", slots))
	leased.Allow("another-"+secret, 1)
	require.NoError(t, leased.Flush(t.Context()))

	set, err := policy.Parse([]byte("rules:\n- {name: users, key: user, limit: fixed-window 1/h, plans: {pro: fixed-window 9/h}}"))
	require.NoError(t, err)
	policies, err := policy.New(set, &policy.Options{OnDecision: m.OnPolicyDecision(), ReuseRules: true})
	require.NoError(t, err)
	require.NoError(t, m.Register("", policies))
	policies.Allow(policy.Attributes{"user": secret}, 1)
	policies.Allow(policy.Attributes{"user": secret}, 1)
	limit, err := httplimit.New(ratelimit.Map(limiter, func(*http.Request) (string, error) { return secret, nil }), nil)
	require.NoError(t, err)
	require.NoError(t, m.Register("web", limit))
	limit.Wrap(http.NotFoundHandler()).ServeHTTP(httptest.NewRecorder(), httptest.NewRequest(http.MethodGet, "/", nil))
	require.NoError(t, m.Register("rpc", interceptor(t)))
	otellimit.OnDecision[string](m, "shared")(ratelimit.Event[string]{Decision: ratelimit.Decision{Allowed: true, Degraded: true}})

	var out metricdata.ResourceMetrics
	require.NoError(t, reader.Collect(t.Context(), &out))
	return out
}

// values returns the integer figures, by name and attributes.
func values(out metricdata.ResourceMetrics) map[string]int64 {
	all := map[string]int64{}
	add := func(name string, points []metricdata.DataPoint[int64]) {
		for _, p := range points {
			all[name+" "+p.Attributes.Encoded(attribute.DefaultEncoder())] = p.Value
		}
	}
	for _, scope := range out.ScopeMetrics {
		for _, m := range scope.Metrics {
			switch data := m.Data.(type) {
			case metricdata.Sum[int64]:
				add(m.Name, data.DataPoints)
			case metricdata.Gauge[int64]:
				add(m.Name, data.DataPoints)
			}
		}
	}
	return all
}

func TestEveryKindOfLimiterIsMeasuredByOpenTelemetry(t *testing.T) {
	out := collected(t)
	got := values(out)
	for name, want := range map[string]int64{
		"ratelimit.decisions limit=hourly,limiter=api,outcome=allowed":                 3,
		"ratelimit.decisions limit=hourly,limiter=api,outcome=denied":                  2,
		"ratelimit.decisions limit=hourly,limiter=api,outcome=exceeds":                 1,
		"ratelimit.spent limit=hourly,limiter=api":                                     4,
		"ratelimit.keys limiter=api":                                                   2,
		"ratelimit.breaker.state limiter=shared":                                       2,
		"ratelimit.failover.decisions by=instead,limiter=shared":                       3,
		"ratelimit.failover.decisions by=primary,limiter=shared":                       0,
		"ratelimit.failover.failures kind=unavailable,limiter=shared":                  2,
		"ratelimit.lease.decisions by=remote,limiter=leased":                           1,
		"ratelimit.lease.held limiter=leased":                                          0,
		"ratelimit.policy.generation ":                                                 1,
		"ratelimit.policy.requests outcome=allowed":                                    1,
		"ratelimit.policy.requests outcome=denied":                                     1,
		"ratelimit.policy.rule.decisions outcome=denied,plan=,rule=users,shadow=false": 1,
		"ratelimit.http.requests limiter=web,outcome=denied":                           1,
		"ratelimit.grpc.calls limiter=rpc,outcome=failed-open":                         1,
	} {
		value, ok := got[name]
		assert.True(t, ok, name)
		assert.Equal(t, want, value, name)
	}
	text, err := json.Marshal(out)
	require.NoError(t, err)
	assert.NotContains(t, string(text), secret)
}

// TestTheVersionIsOneSeriesByOpenTelemetry changes the rules. Only the version in force is exported.
func TestTheVersionIsOneSeriesByOpenTelemetry(t *testing.T) {
	reader := sdk.NewManualReader()
	m, err := otellimit.New(sdk.NewMeterProvider(sdk.WithReader(reader)).Meter("test"))
	require.NoError(t, err)
	p, err := policy.New(&policy.Set{Version: "v0"}, nil)
	require.NoError(t, err)
	require.NoError(t, m.Register("", p))
	require.ErrorContains(t, m.Register("", p), "registered already")
	for i := range 5 {
		version := fmt.Sprintf("v%d", i)
		require.NoError(t, p.Update(&policy.Set{Version: version}))
		var out metricdata.ResourceMetrics
		require.NoError(t, reader.Collect(t.Context(), &out))
		infos := map[string]int64{}
		for name, value := range values(out) {
			if strings.HasPrefix(name, "ratelimit.policy.info ") {
				infos[name] = value
			}
		}
		assert.Equal(t, map[string]int64{"ratelimit.policy.info version=" + version: 1}, infos)
	}
}

// TestNamesAreThoseOfPrometheus compares the exported metrics with docs/metrics.md, which lists promlimit's metrics.
// Each metric must have the same kind and labels there, and the name given it by both systems' conventions.
func TestNamesAreThoseOfPrometheus(t *testing.T) {
	text, err := os.ReadFile("../../../docs/metrics.md")
	require.NoError(t, err)
	page := map[string]string{}
	for _, m := range regexp.MustCompile("(?m)^\\| `(ratelimit_\\w+)` \\| (.*?) \\| (.*?) \\|").FindAllStringSubmatch(string(text), -1) {
		page[m[1]] = m[2] + " " + m[3]
	}
	exported := map[string]string{}
	for _, scope := range collected(t).ScopeMetrics {
		for _, m := range scope.Metrics {
			assert.NotEmpty(t, m.Description, m.Name)
			assert.Regexp(t, `^ratelimit(\.[a-z]+(_[a-z]+)*)+$`, m.Name)
			name := strings.ReplaceAll(m.Name, ".", "_")
			switch m.Unit {
			case "s":
				name += "_seconds"
			case "{unit}":
				name += "_units"
			default:
				assert.Regexp(t, `^(1|\{[a-z]+\})$`, m.Unit, m.Name)
			}
			kind, labels := "gauge", []string(nil)
			see := func(set attribute.Set) {
				labels = nil
				for _, kv := range set.ToSlice() {
					labels = append(labels, string(kv.Key))
				}
			}
			switch data := m.Data.(type) {
			case metricdata.Sum[int64]:
				assert.True(t, data.IsMonotonic, m.Name)
				kind, name = "counter", name+"_total"
				see(data.DataPoints[0].Attributes)
			case metricdata.Gauge[int64]:
				see(data.DataPoints[0].Attributes)
			case metricdata.Gauge[float64]:
				see(data.DataPoints[0].Attributes)
			case metricdata.Histogram[float64]:
				kind = "histogram"
				see(data.DataPoints[0].Attributes)
			default:
				t.Errorf("%s is a %T", m.Name, data)
			}
			exported[name] = kind + " " + strings.Join(labels, ", ")
		}
	}
	assert.Equal(t, page, exported)
}

// TestSeriesOfRemovedRulesDisappearByOpenTelemetry removes a rule from the set in force.
func TestSeriesOfRemovedRulesDisappearByOpenTelemetry(t *testing.T) {
	reader := sdk.NewManualReader()
	m, err := otellimit.New(sdk.NewMeterProvider(sdk.WithReader(reader)).Meter("test"))
	require.NoError(t, err)
	set, err := policy.Parse([]byte("rules:\n- {name: stays, limit: unlimited}\n- {name: goes, limit: unlimited}"))
	require.NoError(t, err)
	p, err := policy.New(set, &policy.Options{OnDecision: m.OnPolicyDecision(), ReuseRules: true})
	require.NoError(t, err)
	require.NoError(t, m.Register("", p))
	series := func() (names []string) {
		p.Allow(policy.Attributes{}, 1)
		var out metricdata.ResourceMetrics
		require.NoError(t, reader.Collect(t.Context(), &out))
		for name := range values(out) {
			if strings.HasPrefix(name, "ratelimit.policy.rule.decisions ") {
				names = append(names, name)
			}
		}
		return names
	}
	assert.Len(t, series(), 2)
	next := *p.Current()
	next.Rules = next.Rules[:1]
	require.NoError(t, p.Update(&next))
	for range 2 {
		assert.Equal(t, []string{"ratelimit.policy.rule.decisions outcome=allowed,plan=,rule=stays,shadow=false"}, series())
	}
}
