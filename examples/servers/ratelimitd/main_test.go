package main

import (
	"bytes"
	"context"
	"encoding/json"
	"io"
	"net"
	"net/http"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	healthpb "google.golang.org/grpc/health/grpc_health_v1"

	"github.com/weir-go/ratelimit"
	"github.com/weir-go/ratelimit/internal/dev/testsize"
	"github.com/weir-go/ratelimit/policy"
	"github.com/weir-go/ratelimit/promlimit"
)

// running is a service under test.
type running struct {
	web, rpc, operators string
	rules               string // the file's path
	drain               context.CancelFunc
	stop                func()
}

// start runs the service until the test ends, on free ports, with a copy of the example's rules.
func start(t testing.TB, c config) *running {
	t.Helper()
	s := new(running)
	if c.rules == "" {
		c.rules = filepath.Join(t.TempDir(), "rules.yaml")
		require.NoError(t, os.WriteFile(c.rules, ownRules, 0o600))
	}
	s.rules = c.rules
	c.web, c.rpc, c.operators = "127.0.0.1:0", "127.0.0.1:0", "127.0.0.1:0"
	ctx, cancel := context.WithCancel(context.Background())
	listening, ended := make(chan struct{}), make(chan error, 1)
	go func() {
		ended <- run(ctx, c, func(web, rpc, operators net.Addr) {
			s.web, s.rpc, s.operators = web.String(), rpc.String(), operators.String()
			close(listening)
		})
	}()
	select {
	case <-listening:
	case err := <-ended:
		cancel()
		require.NoError(t, err)
	}
	s.drain = cancel
	stopped := false
	s.stop = func() {
		cancel()
		if !stopped {
			stopped = true
			http.DefaultClient.CloseIdleConnections()
			assert.NoError(t, <-ended)
		}
	}
	t.Cleanup(s.stop)
	return s
}

// edit replaces the rules by others.
func (s *running) edit(t testing.TB, text string) {
	t.Helper()
	require.NoError(t, os.WriteFile(s.rules+".new", []byte(text), 0o600))
	require.NoError(t, os.Rename(s.rules+".new", s.rules))
}

func get(t testing.TB, url string) (status int, body string) {
	t.Helper()
	resp, err := http.Get(url)
	require.NoError(t, err)
	defer resp.Body.Close()
	text, err := io.ReadAll(resp.Body)
	require.NoError(t, err)
	return resp.StatusCode, string(text)
}

// check sends a request in JSON.
func (s *running) check(t testing.TB, search string) (status int, a answer) {
	t.Helper()
	resp, err := http.Post("http://"+s.web+"/check", "application/json", strings.NewReader(search))
	require.NoError(t, err)
	defer resp.Body.Close()
	text, err := io.ReadAll(resp.Body)
	require.NoError(t, err)
	if resp.StatusCode == http.StatusOK {
		require.NoError(t, json.Unmarshal(text, &a))
	}
	return resp.StatusCode, a
}

func TestCheckAnswersInJSON(t *testing.T) {
	s := start(t, config{})
	const search = `{"attributes": {"path": "/search/x", "method": "GET", "ip": "2001:db8::1"}}`
	for left := range 5 {
		status, a := s.check(t, search)
		assert.Equal(t, 200, status)
		assert.Equal(t, answer{Allowed: true, Limit: "search", Remaining: 4 - left, ResetAfter: a.ResetAfter}, a)
	}
	_, a := s.check(t, strings.Replace(search, "::1", "::2", 1))
	assert.False(t, a.Allowed)
	assert.InDelta(t, 60, a.RetryAfter, 20)
	_, a = s.check(t, `{"attributes": {"tenant": "acme"}, "cost": 21}`)
	assert.Equal(t, answer{Never: true, Limit: "tenant", Remaining: a.Remaining, ResetAfter: a.ResetAfter}, a)
	_, a = s.check(t, `{"attributes": {"tenant": "acme", "plan": "enterprise"}, "cost": 21}`)
	assert.True(t, a.Allowed)
	_, a = s.check(t, `{"attributes": {}}`)
	assert.True(t, a.Allowed, "no rule")
	for _, bad := range []string{``, `{"attributes": {"ip": "x"}}`, `{"cost": "1"}`, `{"attribute": {}}`, `{"attributes": {"tenant": "a"}, "cost": -1}`,
		`{"attributes": {"path": "/search/x", "method": "GET"}}`, strings.Repeat(" ", 70<<10) + "{}"} {
		status, _ := s.check(t, bad)
		assert.Equal(t, 400, status, "%.80q", bad)
	}
}

// TestAQueryInThePathEvadesNoRoute, because a client of POST /check may copy the path from a request line, with the query.
func TestAQueryInThePathEvadesNoRoute(t *testing.T) {
	s := start(t, config{})
	status, a := s.check(t, `{"attributes": {"path": "/healthz", "method": "GET", "ip": "192.0.2.1"}}`)
	require.Equal(t, 200, status)
	require.Empty(t, a.Limit, "the exact route is in force")
	status, withQuery := s.check(t, `{"attributes": {"path": "/healthz?next=/", "method": "GET", "ip": "192.0.2.1"}}`)
	require.Equal(t, 200, status)
	assert.Equal(t, a, withQuery)
}

// TestAChangedFileIsInForceAtOnce. If the file has an error, nothing changes.
func TestAChangedFileIsInForceAtOnce(t *testing.T) {
	s := start(t, config{})
	const look = `{"attributes": {"tenant": "acme"}, "cost": 0}`
	limits := func(want int) func() bool {
		return func() bool { _, a := s.check(t, look); return a.Remaining == want }
	}
	require.True(t, limits(20)())
	s.edit(t, strings.Replace(string(ownRules), "token-bucket 10/s burst 20", "token-bucket 10/s burst 7", 1))
	require.Eventually(t, limits(7), 20*time.Second, 10*time.Millisecond)
	s.edit(t, "rules:\n- {name: oops, limit: 1}\n")
	require.Eventually(t, func() bool {
		_, metrics := get(t, "http://"+s.web+"/metrics")
		return strings.Contains(metrics, "\nratelimit_policy_fault 1\n")
	}, 20*time.Second, 10*time.Millisecond)
	require.True(t, limits(7)())
}

// TestASetThatRedisRefusesIsInForceNowhere: the process decides alone, by the earlier rules, because no Redis answers.
func TestASetThatRedisRefusesIsInForceNowhere(t *testing.T) {
	s := start(t, config{redis: "redis://127.0.0.1:" + freePort(t)})
	const look = `{"attributes": {"tenant": "acme"}, "cost": 0}`
	limits := func(want int) func() bool {
		return func() bool { _, a := s.check(t, look); return a.Degraded && a.Remaining == want }
	}
	require.True(t, limits(20)())
	s.edit(t, "rules:\n- {name: tenant, key: tenant, limit: token-bucket 7/s burst 7}\n- {name: log, key: tenant, limit: sliding-log 5000/h}\n")
	require.Eventually(t, func() bool {
		_, metrics := get(t, "http://"+s.web+"/metrics")
		return strings.Contains(metrics, "\nratelimit_policy_fault 1\n")
	}, 20*time.Second, 10*time.Millisecond)
	assert.True(t, limits(20)())
	s.edit(t, "rules:\n- {name: tenant, key: tenant, limit: token-bucket 7/s burst 7}\n")
	require.Eventually(t, limits(7), 20*time.Second, 10*time.Millisecond)
}

// TestUnitsInUseAreRefused, because the service does not see a request's end.
func TestUnitsInUseAreRefused(t *testing.T) {
	s := start(t, config{})
	const look = `{"attributes": {"tenant": "acme"}, "cost": 0}`
	for _, limit := range []string{
		"limit: concurrent 8 hold 1m", "limit: fixed-window 9/s, plans: {pro: concurrent 8 hold 1m}",
		"limit: fixed-window 9/s, overrides: [{key: acme, limit: concurrent 8 hold 1m}]",
	} {
		file := "rules:\n- {name: streams, key: tenant, " + limit + "}\n"
		path := filepath.Join(t.TempDir(), "rules.yaml")
		require.NoError(t, os.WriteFile(path, []byte(file), 0o600))
		for _, client := range []redis.UniversalClient{nil, redis.NewClient(&redis.Options{Addr: "127.0.0.1:1"})} {
			_, err := newRules(t.Context(), policy.File(path), client, 1, ratelimit.Must(promlimit.New(prometheus.NewRegistry())))
			require.ErrorIs(t, err, ratelimit.ErrInvalidLimit, limit)
			require.ErrorContains(t, err, `rule "streams"`)
			require.ErrorContains(t, err, "concurrent 8 hold 1m: a rate limit service sees no end of a request")
		}
		s.edit(t, file)
		require.Eventually(t, func() bool {
			_, metrics := get(t, "http://"+s.web+"/metrics")
			return strings.Contains(metrics, "\nratelimit_policy_fault 1\n")
		}, 20*time.Second, 10*time.Millisecond)
		_, a := s.check(t, look)
		assert.Equal(t, 20, a.Remaining, "the rules before it are in force")
	}
}

func TestOperatorsHaveAPageOfTheirOwn(t *testing.T) {
	s := start(t, config{})
	s.check(t, `{"attributes": {"tenant": "acme"}, "cost": 20}`)
	s.check(t, `{"attributes": {"tenant": "acme"}, "cost": 20}`)
	status, body := get(t, "http://"+s.operators)
	assert.Equal(t, 200, status)
	assert.Contains(t, body, "tenant")
	resp, err := http.PostForm("http://"+s.operators, url.Values{"do": {"reset"}, "rule": {"tenant"}, "key": {"acme"}})
	require.NoError(t, err)
	require.NoError(t, resp.Body.Close())
	assert.Equal(t, 200, resp.StatusCode)
	_, a := s.check(t, `{"attributes": {"tenant": "acme"}, "cost": 20}`)
	assert.True(t, a.Allowed, "its budget is full again")
	status, _ = get(t, "http://"+s.web+"/")
	assert.Equal(t, 404, status, "not where gateways ask")

	status, body = get(t, "http://"+s.web+"/metrics")
	assert.Equal(t, 200, status)
	assert.Regexp(t, `ratelimit_policy_[a-z_]+\{[^}]*rule="tenant"`, body)
}

// TestTheServiceDrains: load balancers can see that it is not ready before it refuses connections.
func TestTheServiceDrains(t *testing.T) {
	s := start(t, config{drain: 5 * time.Second}) // all checks below end before it, on a busy machine too
	conn, err := grpc.NewClient(s.rpc, grpc.WithTransportCredentials(insecure.NewCredentials()))
	require.NoError(t, err)
	defer conn.Close()
	healthy := func() healthpb.HealthCheckResponse_ServingStatus {
		resp, err := healthpb.NewHealthClient(conn).Check(t.Context(), new(healthpb.HealthCheckRequest))
		require.NoError(t, err)
		return resp.Status
	}
	ready := func() int { status, _ := get(t, "http://"+s.web+"/readyz"); return status }
	assert.Equal(t, 200, ready())
	assert.Equal(t, healthpb.HealthCheckResponse_SERVING, healthy())
	s.drain()
	require.Eventually(t, func() bool { return ready() == 503 }, 5*time.Second, time.Millisecond)
	assert.Equal(t, healthpb.HealthCheckResponse_NOT_SERVING, healthy())
	status, _ := get(t, "http://"+s.web+"/healthz")
	assert.Equal(t, 200, status, "it is alive")
	_, a := s.check(t, `{"attributes": {"tenant": "acme"}}`)
	assert.True(t, a.Allowed, "it still answers")
	s.stop()
	_, err = http.Get("http://" + s.web + "/healthz")
	assert.Error(t, err)
}

func TestSIGTERMEndsTheProgram(t *testing.T) {
	program := filepath.Join(t.TempDir(), "ratelimitd")
	out, err := exec.Command("go", "build", "-o", program, ".").CombinedOutput()
	require.NoError(t, err, "%s", out)
	var output bytes.Buffer
	cmd := exec.Command(program, "-http", "127.0.0.1:0", "-grpc", "127.0.0.1:0", "-admin", "127.0.0.1:0", "-drain", "10ms")
	stderr, err := cmd.StderrPipe()
	require.NoError(t, err)
	require.NoError(t, cmd.Start())
	for b := make([]byte, 1024); !strings.Contains(output.String(), "listens"); {
		n, err := stderr.Read(b)
		require.NoError(t, err)
		output.Write(b[:n])
	}
	require.NoError(t, cmd.Process.Signal(syscall.SIGTERM))
	_, _ = io.Copy(&output, stderr)
	assert.NoError(t, cmd.Wait(), output.String())
}

func TestBadFlagsAreRefused(t *testing.T) {
	for want, c := range map[string]config{
		"missing.yaml": {rules: "missing.yaml"},
		"-redis":       {rules: "rules.yaml", redis: "localhost:6379"},
		"listen":       {rules: "rules.yaml", web: "203.0.113.1:99999"},
	} {
		assert.ErrorContains(t, run(t.Context(), c, nil), want)
	}
}

// TestProcessesShareBudgetsOnRedis, and each decides alone while Redis is down.
func TestProcessesShareBudgetsOnRedis(t *testing.T) {
	testsize.Program(t, "redis-server")
	port := freePort(t)
	cmd := exec.Command("redis-server", "--port", port, "--bind", "127.0.0.1", "--save", "", "--appendonly", "no", "--dir", t.TempDir())
	stop := launch(t, cmd, "127.0.0.1:"+port)
	c, short := config{redis: "redis://127.0.0.1:" + port}, timeout
	timeout = 20 * time.Second // a busy machine takes longer than 10 ms
	a, b := start(t, c), start(t, c)
	timeout = short
	other := start(t, c) // fails over after 10 ms
	const search = `{"attributes": {"path": "/search/x", "method": "GET", "ip": "192.0.2.1"}}`
	passed := 0
	for i := range 40 {
		_, got := []*running{a, b}[i%2].check(t, search)
		require.False(t, got.Degraded)
		if got.Allowed {
			passed++
		}
	}
	assert.Equal(t, 5, passed)

	stop()
	passed = 0
	for range 20 {
		_, got := other.check(t, search)
		assert.True(t, got.Degraded)
		if got.Allowed {
			passed++
		}
	}
	assert.Equal(t, 5, passed, "in its own memory")
}
