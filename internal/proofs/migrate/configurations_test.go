package migrate

import (
	"fmt"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/weir-go/ratelimit"
	"github.com/weir-go/ratelimit/internal/dev/proc"
	"github.com/weir-go/ratelimit/internal/dev/testsize"
	"github.com/weir-go/ratelimit/policy"
)

// rulesOf returns the rules in one of the page's sections.
func rulesOf(t *testing.T, section string) *policy.Policies {
	t.Helper()
	page, err := os.ReadFile("../../../docs/migrate.md")
	require.NoError(t, err)
	m := regexp.MustCompile("(?s)\n### " + regexp.QuoteMeta(section) + "\n.*?```yaml\n(.*?)```").FindSubmatch(page)
	require.NotNil(t, m, "the page has no section %q", section)
	return ratelimit.Must(policy.New(ratelimit.Must(policy.Parse(m[1])), nil))
}

// freeAddr returns an address without a listening process.
func freeAddr(t *testing.T) string {
	t.Helper()
	port, err := proc.FreePort()
	require.NoError(t, err)
	return net.JoinHostPort("127.0.0.1", strconv.Itoa(port))
}

// start runs a server until the test ends, and waits until it listens.
func start(t *testing.T, addr, program string, args ...string) {
	t.Helper()
	cmd := exec.Command(testsize.Program(t, program), args...)
	cmd.Stderr = os.Stderr
	require.NoError(t, cmd.Start())
	t.Cleanup(func() {
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
	})
	require.Eventually(t, func() bool {
		c, err := net.Dial("tcp", addr)
		if err == nil {
			_ = c.Close()
		}
		return err == nil
	}, 20*time.Second, 20*time.Millisecond, "%s listens", program)
}

// passes sends requests one after the other to the server and to
// the rules. It returns how many pass each, and how long that took.
func passes(t *testing.T, url string, p *policy.Policies, n int) (theirs, ours int, took time.Duration) {
	t.Helper()
	begin := time.Now()
	for range n {
		resp, err := http.Get(url)
		require.NoError(t, err)
		_ = resp.Body.Close()
		if resp.StatusCode < 400 {
			theirs++
		}
		if p.Allow(policy.Attributes{"ip": "127.0.0.1", "path": "/api/x", "method": "GET"}, 1) {
			ours++
		}
	}
	return theirs, ours, time.Since(begin)
}

func TestConfigurationsOfNginxAndItsRulesPassTheSame(t *testing.T) {
	dir, addr := t.TempDir(), freeAddr(t)
	require.NoError(t, os.Chmod(dir, 0o755))
	conf := fmt.Sprintf(`daemon off; master_process off; pid %[1]s/pid; error_log %[1]s/error.log;
events {}
http {
	access_log off; client_body_temp_path %[1]s/b; proxy_temp_path %[1]s/p; fastcgi_temp_path %[1]s/f; uwsgi_temp_path %[1]s/u; scgi_temp_path %[1]s/s;
	limit_req_zone $binary_remote_addr zone=api:10m rate=10r/s;
	server { listen %[2]s; location /api/ { limit_req zone=api burst=20 nodelay; try_files /none @done; } location @done { return 204; } }
}`, dir, addr)
	file := filepath.Join(dir, "nginx.conf")
	require.NoError(t, os.WriteFile(file, []byte(conf), 0o600))
	start(t, addr, "nginx", "-p", dir, "-c", file, "-e", filepath.Join(dir, "error.log"))
	p := rulesOf(t, "nginx: limit_req with a burst")
	for _, pause := range []time.Duration{0, time.Second} {
		time.Sleep(pause) // nginx reads the real time
		theirs, ours, took := passes(t, "http://"+addr+"/api/x", p, 60)
		assert.InDelta(t, theirs, ours, 2, "within what the two regain in %v", took)
	}
}

func TestConfigurationsOfHAProxyAndItsRulesPassTheSame(t *testing.T) {
	dir, addr := t.TempDir(), freeAddr(t)
	conf := fmt.Sprintf(`defaults
	mode http
	timeout client 10s
	timeout server 10s
	timeout connect 10s
frontend all
	bind %s
	stick-table type ip size 100k expire 30s store http_req_rate(10s)
	http-request track-sc0 src
	http-request deny deny_status 429 if { sc_http_req_rate(0) gt 20 }
	http-request return status 200
`, addr)
	file := filepath.Join(dir, "haproxy.cfg")
	require.NoError(t, os.WriteFile(file, []byte(conf), 0o600))
	start(t, addr, "haproxy", "-f", file)
	theirs, ours, took := passes(t, "http://"+addr+"/api/x", rulesOf(t, "HAProxy: a rate in a stick table"), 40)
	assert.InDelta(t, theirs, ours, 2, "within what the two regain in %v", took)
	assert.GreaterOrEqual(t, ours, 20)
}
