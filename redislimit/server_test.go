package redislimit

import (
	"context"
	"fmt"
	"net"
	"os"
	"os/exec"
	"strconv"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"
)

// server is a redis-server of a test's own, with nothing saved.
type server struct {
	t    testing.TB
	addr string
	cmd  *exec.Cmd
}

// program returns the path of redis-server. Without it, tests on a real server are
// skipped; in CI they fail.
func program(t testing.TB) string {
	t.Helper()
	path, err := exec.LookPath("redis-server")
	if err != nil {
		if os.Getenv("CI") == "true" {
			t.Fatal("redis-server is not installed, and CI must test on a real one")
		}
		t.Skip("redis-server is not installed (apt-get install redis-server): not tested on a real server")
	}
	return path
}

// freePort returns a port that nothing listens on.
func freePort(t testing.TB) int {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	defer l.Close()
	return l.Addr().(*net.TCPAddr).Port
}

// startServer starts a server, which ends with the test.
func startServer(t testing.TB, args ...string) *server {
	t.Helper()
	path := program(t)
	for try := range 5 {
		if s := tryServer(t, path, freePort(t), args); s != nil {
			return s
		}
		t.Logf("try %d: redis-server did not start", try)
	}
	t.Fatal("redis-server does not start")
	return nil
}

func tryServer(t testing.TB, path string, port int, args []string) *server {
	t.Helper()
	all := append([]string{"--port", strconv.Itoa(port), "--bind", "127.0.0.1", "--save", "", "--appendonly", "no",
		"--dir", t.TempDir()}, args...)
	s := &server{t: t, addr: fmt.Sprintf("127.0.0.1:%d", port), cmd: exec.Command(path, all...)}
	require.NoError(t, s.cmd.Start())
	t.Cleanup(s.kill)
	c := redis.NewClient(&redis.Options{Addr: s.addr})
	defer c.Close()
	for range 500 {
		if c.Ping(context.Background()).Err() == nil {
			return s
		}
		time.Sleep(10 * time.Millisecond)
	}
	s.kill()
	return nil
}

// kill ends the server's process, even a stopped one, and waits for that.
func (s *server) kill() {
	if s.cmd.Process != nil {
		s.cmd.Process.Kill()
		s.cmd.Wait()
	}
}

// client returns a client with default options, closed with the test.
func (s *server) client() *redis.Client {
	c := redis.NewClient(&redis.Options{Addr: s.addr})
	s.t.Cleanup(func() { c.Close() })
	return c
}

func contextWithCancel(t testing.TB) (context.Context, context.CancelFunc) {
	return context.WithCancel(t.Context())
}
