package metrics

import (
	"os"
	"regexp"
	"strings"
	"testing"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/weir-go/ratelimit"
	"github.com/weir-go/ratelimit/failover"
	"github.com/weir-go/ratelimit/lease"
	"github.com/weir-go/ratelimit/promlimit"
)

// TestTheMetricsPageListsAllMetrics compares docs/metrics.md with the exported names, kinds, labels and descriptions.
func TestTheMetricsPageListsAllMetrics(t *testing.T) {
	text, err := os.ReadFile("../../../docs/metrics.md")
	require.NoError(t, err)
	page := map[string]string{}
	for _, m := range regexp.MustCompile("(?m)^\\| `(ratelimit_\\w+)` (\\|.*)$").FindAllStringSubmatch(string(text), -1) {
		page[m[1]] = m[2]
	}
	families, err := program(t).Gather()
	require.NoError(t, err)
	exported := map[string]string{}
	for _, f := range families {
		var labels []string
		for _, l := range f.GetMetric()[0].GetLabel() {
			labels = append(labels, l.GetName())
		}
		exported[f.GetName()] = "| " + strings.ToLower(f.GetType().String()) + " | " + strings.Join(labels, ", ") + " | " + strings.TrimSuffix(f.GetHelp(), ".") + " |"
	}
	assert.Equal(t, exported, page)
}

// TestDegradedDecisionsAreCounted checks that a failover counts degraded
// decisions itself. A lease over it must report them to OnDecision.
func TestDegradedDecisionsAreCounted(t *testing.T) {
	reg := prometheus.NewRegistry()
	m, err := promlimit.New(reg)
	require.NoError(t, err)
	local := ratelimit.Must(ratelimit.New[string](ratelimit.FixedWindow(ratelimit.PerHour(100)), nil))
	over, err := failover.New[string](failingReserver{}, local, nil)
	require.NoError(t, err)
	require.NoError(t, m.Register("api", over))
	leased, err := lease.New[string](over, &lease.Options[string]{MaxBatch: 1, OnDecision: promlimit.OnDecision[string](m, "api")})
	require.NoError(t, err)
	over.Force(failover.StateOpen)
	require.True(t, over.Allow("ann", 1))
	require.True(t, leased.Allow("ann", 1))
	assert.NoError(t, testutil.GatherAndCompare(reg, strings.NewReader(`
# HELP ratelimit_degraded_decisions_total Decisions without the shared store that OnDecision has counted, such as decisions of a lease over a failover.
# TYPE ratelimit_degraded_decisions_total counter
ratelimit_degraded_decisions_total{limiter="api"} 1
# HELP ratelimit_failover_decisions_total Decisions, by the limiter that took them.
# TYPE ratelimit_failover_decisions_total counter
ratelimit_failover_decisions_total{by="instead",limiter="api"} 2
ratelimit_failover_decisions_total{by="primary",limiter="api"} 0
`), "ratelimit_degraded_decisions_total", "ratelimit_failover_decisions_total"))
}
