// Package redisserver starts a redis-server for a test or a benchmark.
package redisserver

import (
	"context"
	"net"
	"os"
	"os/exec"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"
)

// Start starts a redis-server that saves nothing, and returns a client with default options. Both end with
// the test. Without a redis-server the test is skipped; with CI=true it fails.
func Start(tb testing.TB) *redis.Client {
	path, err := exec.LookPath("redis-server")
	if err != nil {
		require.NotEqual(tb, "true", os.Getenv("CI"), "redis-server is not installed")
		tb.Skip("redis-server is not installed: apt-get install redis-server")
	}
	l, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(tb, err)
	addr := l.Addr().String()
	require.NoError(tb, l.Close()) // only its port was wanted
	host, port, err := net.SplitHostPort(addr)
	require.NoError(tb, err)
	cmd := exec.Command(path, "--port", port, "--bind", host, "--save", "", "--appendonly", "no", "--dir", tb.TempDir())
	require.NoError(tb, cmd.Start())
	tb.Cleanup(func() {
		_ = cmd.Process.Kill()
		_ = cmd.Wait() // it was killed
	})
	client := redis.NewClient(&redis.Options{Addr: addr})
	tb.Cleanup(func() { _ = client.Close() })
	for try := 0; client.Ping(context.Background()).Err() != nil; try++ {
		require.Less(tb, try, 500, "redis-server does not answer")
		time.Sleep(10 * time.Millisecond)
	}
	return client
}
