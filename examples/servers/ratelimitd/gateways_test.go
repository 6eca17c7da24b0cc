package main

import (
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/weir-go/ratelimit/internal/dev/nginx"
	"github.com/weir-go/ratelimit/internal/dev/proc"
	"github.com/weir-go/ratelimit/internal/dev/testsize"
)

// configuration returns the text of a file in the folder gateways.
func configuration(t testing.TB, file string) string {
	t.Helper()
	text, err := os.ReadFile(filepath.Join("gateways", file))
	require.NoError(t, err)
	return string(text)
}

// gateway is a program calling the service. A file in the folder gateways configures it.
type gateway struct {
	program string
	down    int // the status without the service
	start   func(t testing.TB, at func(config string) string) *exec.Cmd
}

var gateways = map[string]gateway{
	"nginx": {"nginx", http.StatusInternalServerError, func(t testing.TB, at func(string) string) *exec.Cmd {
		return nginx.Command(t, at(configuration(t, "nginx.conf")))
	}},
	"caddy": {"caddy", http.StatusBadGateway, func(t testing.TB, at func(string) string) *exec.Cmd {
		dir := t.TempDir()
		write(t, dir, "Caddyfile", "{\n\tadmin off\n\tauto_https off\n}\n"+at(configuration(t, "Caddyfile")))
		cmd := exec.Command("caddy", "run", "--config", "Caddyfile", "--adapter", "caddyfile")
		cmd.Dir = dir
		cmd.Env = append(os.Environ(), "HOME="+dir, "XDG_CONFIG_HOME="+dir, "XDG_DATA_HOME="+dir)
		return cmd
	}},
	"haproxy": {"haproxy", http.StatusServiceUnavailable, func(t testing.TB, at func(string) string) *exec.Cmd {
		dir := t.TempDir()
		write(t, dir, "haproxy.cfg", at(configuration(t, "haproxy.cfg")))
		write(t, dir, "ratelimit.lua", at(configuration(t, "ratelimit.lua")))
		cmd := exec.Command("haproxy", "-db", "-f", "haproxy.cfg")
		cmd.Dir = dir
		return cmd
	}},
}

func write(t testing.TB, dir, name, text string) {
	t.Helper()
	require.NoError(t, os.WriteFile(filepath.Join(dir, name), []byte(text), 0o600))
}

// freePort returns a port that is free now.
func freePort(t testing.TB) string {
	t.Helper()
	port, err := proc.FreePort()
	require.NoError(t, err)
	return strconv.Itoa(port)
}

// launch runs a program until the test ends or stop is called. If the test fails, it logs the program's output.
func launch(t testing.TB, cmd *exec.Cmd, listens string) (stop func()) {
	t.Helper()
	var output strings.Builder
	cmd.Stdout, cmd.Stderr = &output, &output
	require.NoError(t, cmd.Start())
	ended := make(chan struct{})
	go func() {
		_ = cmd.Wait() // the interrupt ends it with an error
		close(ended)
	}()
	stop = func() {
		_ = cmd.Process.Signal(os.Interrupt)
		select {
		case <-ended:
		case <-time.After(5 * time.Second):
			_ = cmd.Process.Kill()
			<-ended
		}
	}
	t.Cleanup(func() {
		stop()
		if t.Failed() {
			t.Log(output.String())
		}
	})
	require.Eventually(t, func() bool {
		conn, err := net.Dial("tcp", listens)
		if err == nil {
			_ = conn.Close()
		}
		return err == nil
	}, 20*time.Second, 10*time.Millisecond, "%v does not listen", cmd)
	return stop
}

// configure returns a function that inserts addresses into a configuration.
func configure(port, service, origin string) func(config string) string {
	return func(config string) string {
		return strings.NewReplacer("127.0.0.1:8080", service, "127.0.0.1:9000", origin, ":8000", ":"+port).Replace(config)
	}
}

// client returns a client that connects from an address.
func client(t testing.TB, from string) *http.Client {
	dialer := net.Dialer{LocalAddr: &net.TCPAddr{IP: net.ParseIP(from)}}
	transport := &http.Transport{DialContext: dialer.DialContext, MaxIdleConnsPerHost: 100}
	t.Cleanup(transport.CloseIdleConnections)
	return &http.Client{Transport: transport}
}

// send returns the answer to a request, without its body.
func send(t testing.TB, c *http.Client, method, url string, header ...string) *http.Response {
	t.Helper()
	var body io.Reader
	if method == "POST" {
		body = strings.NewReader("hello")
	}
	r, err := http.NewRequest(method, url, body)
	require.NoError(t, err)
	for i := 0; i < len(header); i += 2 {
		r.Header.Set(header[i], header[i+1])
	}
	resp, err := c.Do(r)
	require.NoError(t, err)
	_, err = io.Copy(io.Discard, resp.Body)
	require.NoError(t, err)
	require.NoError(t, resp.Body.Close())
	return resp
}

// spoofed has fields for a client that pretends to be another one, or to request another path.
var spoofed = []string{
	"X-Original-Method", "OPTIONS", "X-Original-URI", "/other", "X-Original-URL", "/other", "X-Original-Host", "other", "X-Forwarded-Method", "OPTIONS",
	"X-Forwarded-Uri", "/other", "X-Forwarded-Host", "other", "X-Forwarded-For", "203.0.113.9", "X-Real-Ip", "203.0.113.9", "Forwarded", "for=203.0.113.9",
}

// calls has the fields of requests that look like remote procedure
// calls. If a denial used their protocol, it would let them pass.
var calls = [][]string{
	{"Content-Type", "application/grpc"}, {"Content-Type", "application/grpc-web"}, {"Content-Type", "application/grpc-web-text+proto"},
	{"Content-Type", "application/connect+json"}, {"Content-Type", "application/json", "Connect-Protocol-Version", "1"},
}

// TestGatewaysCallTheService runs each gateway in front of an origin.
func TestGatewaysCallTheService(t *testing.T) {
	testsize.Extra(t)
	for name, g := range gateways {
		t.Run(name, func(t *testing.T) {
			testsize.Program(t, g.program)
			var served atomic.Int64
			var body atomic.Value
			origin := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				served.Add(1)
				text, _ := io.ReadAll(r.Body)
				body.Store(string(text))
				if r.URL.Path == "/forbidden" {
					w.WriteHeader(http.StatusForbidden)
				}
			}))
			defer origin.Close()
			s := start(t, config{})
			port := freePort(t)
			launch(t, g.start(t, configure(port, s.web, origin.Listener.Addr().String())), "127.0.0.1:"+port)
			at := "http://127.0.0.1:" + port

			ann, bob := client(t, "127.0.0.2"), client(t, "127.0.0.3")
			assert.Equal(t, 200, send(t, ann, "GET", at+"/a?b=c").StatusCode)
			assert.Equal(t, 200, send(t, ann, "POST", at+"/a").StatusCode)
			assert.Equal(t, "hello", body.Load())
			assert.Equal(t, 403, send(t, ann, "GET", at+"/forbidden").StatusCode, "the origin's own")
			for range 5 {
				assert.Equal(t, 200, send(t, ann, "POST", at+"/search/x").StatusCode)
			}
			passed := served.Load()
			assert.EqualValues(t, 8, passed)
			denied := func(resp *http.Response) {
				t.Helper()
				assert.Equal(t, 429, resp.StatusCode)
				wait, err := strconv.Atoi(resp.Header.Get("Retry-After"))
				assert.NoError(t, err)
				assert.True(t, 1 <= wait && wait <= 60, "%d", wait)
				assert.Regexp(t, `"search";r=0;t=\d+`, resp.Header.Get("RateLimit"))
				assert.Contains(t, resp.Header.Get("RateLimit-Policy"), `"search";q=5;w=60`)
			}
			denied(send(t, ann, "GET", at+"/search/x"))
			denied(send(t, ann, "POST", at+"/search/y?z"))
			denied(send(t, ann, "GET", at+"/search/x", spoofed...))
			denied(send(t, ann, "GET", at+"/search/x?connect=v1"))
			denied(send(t, ann, "GET", at+"/%73earch/x"))
			for _, call := range calls {
				denied(send(t, ann, "POST", at+"/search/x", call...))
				denied(send(t, ann, "GET", at+"/search/x", append(call, spoofed...)...))
			}
			assert.Equal(t, passed, served.Load(), "nothing has reached the origin")
			assert.Equal(t, 200, send(t, bob, "GET", at+"/search/x", "X-Forwarded-For", "127.0.0.2").StatusCode, "a budget of its own")

			t.Run("IPv6", func(t *testing.T) {
				if err := exec.Command("ip", "-6", "addr", "add", "2001:db8:5e::1/128", "dev", "lo", "nodad").Run(); err != nil {
					t.Skip("addresses cannot be added to the loopback interface; TestAddressesOfOneNetworkShareABudget sends the header fields that gateways send")
				}
				defer func() {
					assert.NoError(t, exec.Command("ip", "-6", "addr", "del", "2001:db8:5e::1/128", "dev", "lo").Run())
				}()
				require.NoError(t, exec.Command("ip", "-6", "addr", "add", "2001:db8:5e::2/128", "dev", "lo", "nodad").Run())
				defer func() {
					assert.NoError(t, exec.Command("ip", "-6", "addr", "del", "2001:db8:5e::2/128", "dev", "lo").Run())
				}()
				one, two := client(t, "2001:db8:5e::1"), client(t, "2001:db8:5e::2")
				over6 := "http://[::1]:" + port
				for range 5 {
					assert.Equal(t, 200, send(t, one, "GET", over6+"/search/x").StatusCode)
				}
				denied(send(t, two, "GET", over6+"/search/x"))
			})

			s.stop()
			assert.Equal(t, g.down, send(t, bob, "GET", at+"/a").StatusCode, "without the service")
		})
	}
}

// TestAddressesOfOneNetworkShareABudget, in the form sent by gateways.
func TestAddressesOfOneNetworkShareABudget(t *testing.T) {
	s := start(t, config{})
	check := func(kind, address string) int {
		prefix := map[string]string{"original": "X-Original-", "forwarded": "X-Forwarded-"}[kind]
		return send(t, http.DefaultClient, "GET", "http://"+s.web+"/auth/"+kind, prefix+"Uri", "/search/x", prefix+"Method", "GET", prefix+"Host", "a",
			"X-Forwarded-For", address).StatusCode
	}
	for kind, network := range map[string]string{"original": "2001:db8:1:2:", "forwarded": "2001:db8:1:3:"} {
		for i := range 5 {
			assert.Equal(t, 204, check(kind, fmt.Sprintf("203.0.113.9, %s%d::1", network, i)))
		}
		assert.Equal(t, 429, check(kind, network+"ffff::1"))
		assert.Equal(t, 204, check(kind, "2001:db8:1:4::1"))
	}
}

// TestSubRequestsThatLackTheOriginalAreRefused: if a gateway is
// configured for another endpoint, or not at all, no request passes.
func TestSubRequestsThatLackTheOriginalAreRefused(t *testing.T) {
	s := start(t, config{})
	whole := map[string]string{"X-Original-Uri": "/", "X-Original-Method": "GET", "X-Original-Host": "a", "X-Forwarded-For": "192.0.2.1"}
	check := func(path string, fields map[string]string) int {
		var header []string
		for name, value := range fields {
			header = append(header, name, value)
		}
		return send(t, http.DefaultClient, "GET", "http://"+s.web+path, header...).StatusCode
	}
	assert.Equal(t, 204, check("/auth/original", whole))
	assert.Equal(t, 400, check("/auth/forwarded", whole))
	for name := range whole {
		some := map[string]string{}
		for other, value := range whole {
			if other != name {
				some[other] = value
			}
		}
		assert.Equal(t, 400, check("/auth/original", some), "without %s", name)
		some[name] = "%zz"
		want := 204
		if name == "X-Original-Uri" || name == "X-Forwarded-For" {
			want = 400
		}
		assert.Equal(t, want, check("/auth/original", some), "malformed %s", name)
	}
}
