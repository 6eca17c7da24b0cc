package metrics

import (
	"os"
	"os/exec"
	"regexp"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// TestAlertsUseMetricsThatExist compares docs/alerts.yml with the
// exported metrics, and with docs/metrics.md's table of actions.
func TestAlertsUseMetricsThatExist(t *testing.T) {
	alerts, err := os.ReadFile("../../../docs/alerts.yml")
	require.NoError(t, err)
	metrics, err := os.ReadFile("../../../docs/metrics.md")
	require.NoError(t, err)
	_, table, found := strings.Cut(string(metrics), "\n## Alerts\n")
	require.True(t, found)
	table, _, _ = strings.Cut(table, "\n## ")
	cases, err := os.ReadFile("../../../docs/alerts_test.yml")
	require.NoError(t, err)
	families, err := program(t).Gather()
	require.NoError(t, err)
	known := map[string]bool{}
	for _, f := range families {
		known[f.GetName()] = true
	}
	names := regexp.MustCompile(`ratelimit_\w+`)
	for _, text := range []string{string(alerts), table} {
		used := names.FindAllString(text, -1)
		assert.NotEmpty(t, used)
		for _, name := range used {
			assert.True(t, known[name], name)
		}
	}
	for _, alert := range regexp.MustCompile(`alert: (\w+)`).FindAllStringSubmatch(string(alerts), -1) {
		assert.Contains(t, table, "| "+alert[1]+" |")
		assert.Regexp(t, "alertname: "+alert[1]+"\\s+exp_alerts", string(cases), "there is a case in which it fires")
	}
}

// TestAlertsFire runs promtool on the alerts' tests, if it is installed.
func TestAlertsFire(t *testing.T) {
	promtool, err := exec.LookPath("promtool")
	if err != nil {
		t.Skip("promtool is not installed: install the package prometheus to run this")
	}
	out, err := exec.Command(promtool, "test", "rules", "../../../docs/alerts_test.yml").CombinedOutput()
	require.NoError(t, err, "%s", out)
}
