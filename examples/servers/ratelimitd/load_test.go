package main

import (
	"flag"
	"io"
	"net/http"
	"net/http/httptest"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/weir-go/ratelimit/internal/dev/nginx"
	"github.com/weir-go/ratelimit/internal/dev/testsize"
)

var load = flag.Duration("load", time.Second, "time for which TestLoad sends 1,000 requests a second; 10 s for the figures of README.md")

// TestLoad sends requests through NGINX, with the service and without it. All
// pass. The test logs the median latency and the processor time per request.
func TestLoad(t *testing.T) {
	testsize.Extra(t)
	testsize.Program(t, "nginx")
	program := filepath.Join(t.TempDir(), "ratelimitd")
	out, err := exec.Command("go", "build", "-o", program, ".").CombinedOutput()
	require.NoError(t, err, "%s", out)
	dir := t.TempDir()
	write(t, dir, "rules.yaml", strings.Replace(string(ownRules), "50/s burst 100", "100000/s burst 200000", 1))
	origin := httptest.NewServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) {}))
	defer origin.Close()
	limits := regexp.MustCompile(`(?m)^ *(auth_request|auth_request_set|add_header|error_page) .*\n|(?s: *location @limited .*?\n        \}\n)`)

	run := func(limited bool) (p50, processor time.Duration) {
		port, web := freePort(t), "127.0.0.1:"+freePort(t)
		config := configure(port, web, origin.Listener.Addr().String())(configuration(t, "nginx.conf"))
		service := exec.Command(program, "-http", web, "-grpc", "127.0.0.1:0", "-admin", "127.0.0.1:0", "-drain", "1ms", "-rules", filepath.Join(dir, "rules.yaml"))
		stopService := func() {}
		if limited {
			stopService = launch(t, service, web)
		} else {
			config = limits.ReplaceAllString(config, "")
		}
		server := nginx.Command(t, config)
		stopServer := launch(t, server, "127.0.0.1:"+port)
		latencies := offer(t, client(t, "127.0.0.1"), "http://127.0.0.1:"+port+"/a", 1000, *load)
		stopServer()
		stopService()
		processor = server.ProcessState.UserTime() + server.ProcessState.SystemTime()
		if limited {
			processor += service.ProcessState.UserTime() + service.ProcessState.SystemTime()
		}
		slices.Sort(latencies)
		return latencies[len(latencies)/2], processor / time.Duration(len(latencies))
	}
	p50, processor := run(false)
	limitedP50, limitedProcessor := run(true)
	t.Logf("p50 %v without, %v with the service: %.1f times", p50, limitedP50, float64(limitedP50)/float64(p50))
	t.Logf("processor time for each request %v without, %v with the service: %.1f times", processor, limitedProcessor, float64(limitedProcessor)/float64(processor))
}

// offer sends rate requests a second, whether earlier ones were answered or not. It returns
// how long each one's answer took, counted from the instant at which the request was due.
func offer(t *testing.T, c *http.Client, url string, rate int, during time.Duration) []time.Duration {
	t.Helper()
	n := int(during.Seconds() * float64(rate))
	latencies, statuses := make([]time.Duration, n), make([]int, n)
	var wg sync.WaitGroup
	begin := time.Now()
	for i := range n {
		at := begin.Add(time.Duration(i) * time.Second / time.Duration(rate))
		time.Sleep(time.Until(at))
		wg.Go(func() {
			resp, err := c.Get(url)
			if err == nil {
				_, _ = io.Copy(io.Discard, resp.Body)
				_ = resp.Body.Close()
				statuses[i] = resp.StatusCode
			}
			latencies[i] = time.Since(at)
		})
	}
	wg.Wait()
	for i, status := range statuses {
		require.Equal(t, 200, status, "request %d", i)
	}
	assert.NotEmpty(t, latencies)
	return latencies
}
